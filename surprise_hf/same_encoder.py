"""Are embeddings of the same encoder? Its name tells, and what it makes of one text."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["likeness", "same_name", "same_probe"]

SAME = 0.95  # cosine of two embeddings of one text: above it for another dtype or device, below for another encoder


def same_name(one: str | None, other: str | None) -> bool:
    """May embeddings of these two be compared? Not where both have names and these differ.

    sentence-transformers takes the names of its own encoders without the owner too.
    """
    bare = [name and name.removeprefix("sentence-transformers/") for name in (one, other)]
    return not all(bare) or bare[0] == bare[1]


def same_probe(one: Tensor | None, other: Tensor | None) -> bool:
    """The same of two embeddings (d,) of one text, where both are known. Once trained an encoder is another."""
    if one is None or other is None:
        return True
    return likeness(one, other) >= SAME or not (one.any() or other.any())  # zeros say nothing


def likeness(one: Tensor, other: Tensor) -> float:
    """Their cosine, for a message."""
    return float(torch.cosine_similarity(one.cpu().float(), other.cpu().float(), dim=0))
