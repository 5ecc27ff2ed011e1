"""For the tests of ensembles: rows, their moments the long way, and what an ensemble is made of."""

from __future__ import annotations

import torch
from torch import Tensor

from surprise_hf.ensemble import Ensemble


def rows(n: int, dim: int = 12, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, dim, generator=generator, dtype=torch.float64).add(0.4).to(dtype)


def direct(x: Tensor, q: Tensor, normalize: bool = True) -> tuple[Tensor, Tensor]:
    """Mean and population std of the similarities, the long way in float64."""
    x, q = x.double(), q.double()
    if normalize:
        x, q = x / x.norm(dim=1, keepdim=True), q / q.norm(dim=1, keepdim=True)
    psi = x @ q.T
    return psi.mean(dim=0), psi.std(dim=0, unbiased=False)


def bits(ens: Ensemble) -> dict[str, Tensor]:
    return {"count": ens.count, "mean": ens.mean, "scatter": ens.scatter, "reservoir": ens.reservoir}
