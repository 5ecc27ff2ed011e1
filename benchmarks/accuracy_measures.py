"""What benchmarks/accuracy.py counts with: F1, bootstrap intervals, halves of a set, tables."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from accuracy_sets import UNTOUCHED, common
from torch import Tensor

DRAWS = 1000


def weighted_f1(found: np.ndarray, truth: np.ndarray, labels: int) -> float:
    """F1 of each label, weighted by its documents, in percent."""
    right = np.bincount(truth[found == truth], minlength=labels)
    support, claimed = np.bincount(truth, minlength=labels), np.bincount(found, minlength=labels)
    return float(100 * (support * 2 * right / np.maximum(support + claimed, 1)).sum() / len(truth))


def draws(size: int) -> Iterator[np.ndarray]:
    rng = np.random.default_rng(0)
    return (rng.integers(0, size, size) for _ in range(DRAWS))


def interval(values: list[float] | np.ndarray) -> tuple[float, float]:
    low, high = np.percentile(values, [2.5, 97.5])
    return float(low), float(high)


def plus_minus(value: float, bounds: tuple[float, float]) -> str:
    return f"{value:.1f} ±{(bounds[1] - bounds[0]) / 2:.1f}"


def table(head: list[str], rows: list[list[str]], left: int = 2) -> list[str]:
    """Lines of a markdown table, and an empty one."""
    return common.table(head, rows, left).splitlines()


def part_of(name: str) -> str:
    """What a set was used for."""
    return "untouched" if name in UNTOUCHED else "chosen on"


def halves(documents: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    order = torch.randperm(len(documents), generator=torch.Generator().manual_seed(seed))
    return order[: len(order) // 2], order[len(order) // 2 :]
