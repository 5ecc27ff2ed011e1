"""surprise_hf: the surprise score for text embeddings."""
