"""Texts, labels and float64 truth for the tests of the pipeline."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import transformers

from surprise_hf import SurpriseZeroShotPipeline

SUBJECTS = ("sport team win", "bank money price", "rain sun snow", "dog cat bird", "song piano band")
DOCUMENTS = [f"{a} {b} {c}" for a in SUBJECTS for b in ("red", "one") for c in ("vote", "gene", "bread")]
LABELS = ["sport", "money", "animal"]
TEMPLATE = "this matter is {}"


def make(path: Path, **kwargs) -> SurpriseZeroShotPipeline:
    return transformers.pipeline("surprise-zero-shot", model=str(path), device="cpu", **kwargs)


def cosines(keys: np.ndarray, queries: np.ndarray) -> np.ndarray:
    keys, queries = keys.astype(np.float64), queries.astype(np.float64)
    return (keys / np.linalg.norm(keys, axis=1)[:, None]) @ (queries / np.linalg.norm(queries, axis=1)[:, None]).T


def expected_scores(encode, documents, labels, ensemble=None, template=TEMPLATE) -> tuple[np.ndarray, np.ndarray]:
    """The definition in float64: Phi of the standardised cosine; and the standardised cosine."""
    queries = encode([template.replace("{}", str(label)) for label in labels])
    context = cosines(encode(documents if ensemble is None else ensemble), queries)
    z = (cosines(encode(documents), queries) - context.mean(axis=0)) / context.std(axis=0)
    return np.vectorize(lambda x: math.erfc(-x / math.sqrt(2)) / 2)(z), z


def assert_results(results, documents, labels, scores, z) -> None:
    assert [r["sequence"] for r in results] == list(documents)
    for result, row, order in zip(results, scores, (-z).argsort(axis=1), strict=True):
        assert list(result) == ["sequence", "labels", "scores"]
        assert result["labels"] == [labels[i] for i in order]
        assert result["scores"] == pytest.approx(row[order], abs=2e-4)
