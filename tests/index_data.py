"""Embeddings for the tests of indexes, and the definition to hold them to."""

from __future__ import annotations

import math

import torch

from surprise_hf import SurpriseIndex
from surprise_hf.ranking import Ranker

TEXTS = ["sport ball game", "money bank price", "science star planet", "bread soup cheese", "dog cat horse"]


def clouds(n: int, dim: int = 16, seed: int = 0, offset: float = 0.7) -> torch.Tensor:
    """Rows around a few directions that all lean one way, so that means and deviations differ from row to row."""
    centres = torch.randn(7, dim, generator=torch.Generator().manual_seed(99))
    gen = torch.Generator().manual_seed(seed)
    spread = torch.rand(n, 1, generator=gen) + 0.2
    rows = centres[torch.randint(7, (n,), generator=gen)] + spread * torch.randn(n, dim, generator=gen)
    return rows + offset * math.sqrt(dim) * torch.eye(dim)[0]


def unit(x: torch.Tensor) -> torch.Tensor:
    x = x.to(torch.float64)
    return x / x.norm(dim=1, keepdim=True)


def z_matrix(keys: torch.Tensor, documents: torch.Tensor, ensemble: torch.Tensor) -> torch.Tensor:
    """z of keys (rows) for documents (columns) by the whole similarity matrix, float64: the definition."""
    psi = unit(keys) @ unit(documents).T
    context = unit(ensemble) @ unit(documents).T
    return (psi - context.mean(dim=0)) / context.std(dim=0, correction=0)


def ranker_of(index: SurpriseIndex) -> Ranker:
    ranker = index._corpus.ranker
    assert ranker is not None
    return ranker


def stored(index: SurpriseIndex) -> torch.Tensor:
    return ranker_of(index).rows.whole()


def ids_of(hits: list) -> list:
    return [hit.id for hit in hits]
