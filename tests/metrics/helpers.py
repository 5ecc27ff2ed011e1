"""What the tests of the metrics share."""

from __future__ import annotations

import evaluate
import numpy as np
import pytest

from surprise_hf import metrics


def load(name: str) -> evaluate.EvaluationModule:
    return evaluate.load(metrics.path(f"surprise_{name}"))


def rows(count: int, dim: int = 12, seed: int = 0) -> np.ndarray:
    """Vectors about a common centre, as those of encoders are, so that cosine and surprise differ."""
    generator = np.random.default_rng(seed)
    return (generator.normal(size=(count, dim)) + np.linspace(0, 2, dim)).astype(np.float32)


def unit(x: np.ndarray) -> np.ndarray:
    x = np.asarray(x, dtype=np.float64)
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def cosines(keys: np.ndarray, queries: np.ndarray, ensemble: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """psi (n, m) and z (n, m) in float64, straight from the paper."""
    psi, over = unit(keys) @ unit(queries).T, unit(ensemble) @ unit(queries).T
    return psi, (psi - over.mean(axis=0)) / over.std(axis=0)


def check_wrong(name: str, arguments: dict, message: str) -> None:
    """A call that the metric refuses, saying why."""
    metric = load(name)
    with pytest.raises(ValueError, match=message):
        metric.compute(**arguments)
