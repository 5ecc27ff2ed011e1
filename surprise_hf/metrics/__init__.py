"""Metrics as `evaluate` module folders: load one by its path, offline, or push its folder to a Space.

>>> import evaluate
>>> import surprise_hf
>>> metric = evaluate.load(surprise_hf.metrics.path("surprise_clustering"))
>>> metric.compute(predictions=[0, 0, 1], references=["a", "a", "b"])["v_measure"]
1.0
"""

from __future__ import annotations

from pathlib import Path

__all__ = ["NAMES", "path"]

NAMES = ("surprise_calibration", "surprise_classification", "surprise_clustering", "surprise_similarity")


def path(name: str) -> str:
    """The folder of a metric, for `evaluate.load`.

    Raises:
        ValueError: no such metric.
    """
    if name not in NAMES:
        raise ValueError(f"no metric named {name!r}; there are {', '.join(NAMES)}")
    return str(Path(__file__).parent / name)
