"""The random order in which an `Ensemble` keeps rows: the same whatever the batches were, on every device."""

from __future__ import annotations

from numbers import Integral
from typing import Any

import torch
from torch import Tensor

_GAMMA = 0x9E3779B97F4A7C15 - (1 << 64)


def _mix(x: Tensor) -> Tensor:
    """splitmix64's finaliser: int64 -> int64, uniform and the same on every device."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9 - (1 << 64)), (27, 0x94D049BB133111EB - (1 << 64)), (31, 1)):
        logical = (x >> shift) & ((1 << (64 - shift)) - 1)
        x = (x ^ logical) * factor
    return x


def smallest_priorities(seed: int, start: int, count: int, keep: int) -> tuple[Tensor, Tensor]:
    """The `keep` smallest of the priorities of positions start ... start + count - 1, ascending.

    A row's priority is a hash of (seed, its position in the stream); the rows with the smallest ones are a uniform
    sample whatever the batches were.

    Returns:
        priorities and offsets from `start`, two int64 tensors of min(keep, count) on the CPU.
    """
    best = torch.empty(0, dtype=torch.int64)
    where = torch.empty(0, dtype=torch.int64)
    if keep == 0:
        return best, where
    offset = _mix(torch.tensor(seed, dtype=torch.int64) + _GAMMA)
    for first in range(0, count, 1 << 20):
        index = torch.arange(first, min(first + (1 << 20), count))
        priority = torch.cat((best, _mix(offset + (index + start + 1) * _GAMMA)))
        where = torch.cat((where, index))
        best, order = priority.sort()
        best, where = best[:keep], where[order[:keep]]
    return best, where


def reservoir_order(count: int, keep: int, seed: int = 0) -> Tensor:
    """(min(keep, count),) int64 on the CPU: which of `count` rows an `Ensemble` of that seed keeps, in its order.

    The order is random, so any part of it is a uniform sample.
    """
    return smallest_priorities(seed, 0, count, keep)[1]


def check_seed(seed: Any) -> int:
    """The seed as int, or a ValueError."""
    if isinstance(seed, bool) or not isinstance(seed, Integral) or int(seed) not in range(-(1 << 63), 1 << 63):
        raise ValueError(f"seed must be an integer of 64 bits, got {seed!r}")
    return int(seed)
