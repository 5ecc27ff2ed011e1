"""Refinement: the same score with labels moved towards the documents that they attract (design fact 5)."""

from __future__ import annotations

import torch
from torch import Tensor

from . import ops
from .ensemble import Ensemble, unit_rows
from .estimators import row_slices


def refine_labels(
    queries: Tensor,
    ensemble: Tensor | Ensemble,
    rounds: int = 10,
    *,
    pull: float = 0.5,
    sharpness: float = 3.0,
    impl: str = "auto",
) -> Tensor:
    """Labels after some rounds of refinement, without labelled data, for the cosine.

    Each round starts from the original label q_0:

        q <- u( a u(q_0^ - m) + (1 - a) u(M_q - m) ),     u(x) = x / |x|

    where m is the mean of the unit documents and M_q their mean weighted by softmax over labels of t z. A label that
    attracts no weight keeps q_0^.

    Args:
        queries: (m, d) floating.
        ensemble: documents (e, d), or an `Ensemble`, whose reservoir then stands for them (its mean and standard
            deviations remain those of all documents).
        rounds: 0 returns the unit queries.
        pull: a, the weight of the original label; 0.3 to 0.7 make no difference worth having.
        sharpness: t, of the softmax; 1.5 to 100 likewise.
        impl: as for the ops.

    Returns:
        (m, d) unit rows in the compute dtype of the queries.

    References: design fact 5 (mean accuracy over 33 pairs of set and encoder 60.9 -> 68.1).
    """
    start = unit_rows(queries)
    documents = ensemble.reservoir.to(queries.device) if isinstance(ensemble, Ensemble) else ensemble
    slices = list(row_slices(len(documents), max(queries.shape)))
    centre = _mean(ensemble, documents, slices).to(queries.device)
    anchor = unit_rows(start.to(torch.float64) - centre)
    moved = start
    for _ in range(rounds):
        if isinstance(ensemble, Ensemble):
            mean, std = ensemble.moments(moved)
        else:
            mean, std = ops.cosine_moments(documents, moved, impl=impl)
        weight, total = torch.zeros_like(mean), torch.zeros_like(anchor)
        for part in slices:
            z = ops.surprise_from_moments(documents[part], moved, mean, std, output="z", impl=impl)
            share = (sharpness * z.clamp(-1e6, 1e6)).softmax(dim=1)  # sigma = 0 gives infinite z
            weight += share.sum(dim=0, dtype=torch.float64)
            total += (share.T @ unit_rows(documents[part]).to(share.dtype)).to(torch.float64)
        attracted = total / torch.where(weight > 0, weight, 1.0).unsqueeze(1)
        target = unit_rows(pull * anchor + (1 - pull) * unit_rows(attracted - centre)).to(start.dtype)
        lost = (weight == 0) | (target == 0).all(dim=1)
        moved = torch.where(lost.unsqueeze(1), start, target)
    return moved


def _mean(ensemble: Tensor | Ensemble, documents: Tensor, slices: list[slice]) -> Tensor:
    """(d,) float64, the mean of the unit documents."""
    if isinstance(ensemble, Ensemble):
        return ensemble.mean
    total = torch.zeros(documents.shape[1], dtype=torch.float64, device=documents.device)
    for part in slices:
        total += unit_rows(documents[part]).sum(dim=0, dtype=torch.float64)
    return total / max(len(documents), 1)
