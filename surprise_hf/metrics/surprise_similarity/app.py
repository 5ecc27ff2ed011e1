"""The page of this metric's Space."""

from surprise_hf.metrics.space import demo

demo("surprise_similarity").launch()
