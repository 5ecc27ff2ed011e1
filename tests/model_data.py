"""For the tests of models: an encoder opened as a SurpriseModel, with an ensemble and labels, or as it is."""

from __future__ import annotations

from pathlib import Path

from sentence_transformers import SentenceTransformer

from surprise_hf import SurpriseModel

DOCUMENTS = [
    f"{a} {b} {c}" for a in ("sport", "bank", "rain", "dog") for b in ("red", "one", "cat") for c in ("vote", "gene")
]
LABELS = ["sport", "money", "animal"]


def load(path: Path, **kwargs) -> SurpriseModel:
    return SurpriseModel.from_pretrained(path, device="cpu", **kwargs)


def fitted(path: Path, **options) -> SurpriseModel:
    return load(path).fit_ensemble(DOCUMENTS).set_labels(LABELS, **options)


def plain(path: Path, **kwargs) -> SentenceTransformer:
    return SentenceTransformer(str(path), device="cpu", **kwargs)
