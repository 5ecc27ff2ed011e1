"""How well an ensemble serves some labels: the shape of their similarities, and whether scores keep their promise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from . import estimators as est
from .contexts import check_ensemble
from .ensemble import Ensemble
from .fitted import crossover_weight
from .inputs import own, short
from .ops import floored, normal_cdf, standardize
from .refinement import documents_of

LEVELS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.25, 0.5, 0.75, 0.9, 0.97, 0.99)
WIDTH = 60  # of a label's name in the table


@dataclass(frozen=True)
class Diagnosis:
    """What `diagnose` found. Everything is float64, one value for each label unless said otherwise.

    Attributes:
        labels: names.
        mean, std: (m,) moments of the similarity.
        skewness: (m,) third standardised moment; a gaussian has 0. Above 0, the gaussian score is too generous.
        kurtosis: (m,) excess kurtosis; a gaussian has 0.
        distance: (m,) Kolmogorov-Smirnov distance to the gaussian, the largest gap between the distribution functions.
        noise: the distance that a true gaussian sample of this size stays below in 95 % of all cases.
        levels: (K,) tail probabilities, a score of 1 - level being at stake.
        seen: (K, m) fraction of held-out documents that get there; own documents of a label count, as any.
        documents: e, all that the ensemble has seen.
        sample: rows that the shape was computed from.
        weight: w = tanh(e / n_cross), what the surprise score counts beside the plain similarity.
    """

    labels: list[str]
    mean: Tensor
    std: Tensor
    skewness: Tensor
    kurtosis: Tensor
    distance: Tensor
    noise: float
    levels: Tensor
    seen: Tensor
    documents: int
    sample: int
    weight: float

    def rows(self) -> list[dict[str, Any]]:
        """One dict for each label, for a table or data frame."""
        at = int((self.levels - 0.01).abs().argmin())
        columns = {
            "mean": self.mean,
            "std": self.std,
            "skewness": self.skewness,
            "kurtosis": self.kurtosis,
            "distance": self.distance,
            "beyond_1_percent": self.seen[at],
        }
        lists = {name: column.tolist() for name, column in columns.items()}
        return [
            {"label": label, **{name: values[i] for name, values in lists.items()}}
            for i, label in enumerate(self.labels)
        ]

    def __str__(self) -> str:
        names = [short(label, WIDTH) for label in self.labels]
        wide = max(map(len, ("label", *names)))
        head = f"{'label':{wide}}    mean     std    skew  kurtosis  distance  beyond 1 %"
        lines = [
            f"{name:{wide}}  {r['mean']:6.3f}  {r['std']:6.4f}  {r['skewness']:+6.2f}  {r['kurtosis']:+8.2f}"
            f"  {r['distance']:8.3f}  {100 * r['beyond_1_percent']:8.2f} %"
            for name, r in zip(names, self.rows(), strict=True)
        ]
        size = (
            f"{self.documents:,} documents: the surprise score counts w = {self.weight:.3f}."
            f" A gaussian sample of {self.sample:,} has a distance below {self.noise:.3f}."
        )
        return "\n".join([head, *lines, size])


@torch.no_grad()
def diagnose(
    ensemble: Tensor | np.ndarray | Ensemble,
    queries: Tensor | np.ndarray,
    labels: Sequence[object] | None = None,
    *,
    n_cross: float = 1000,
) -> Diagnosis:
    """Shape and calibration of the cosine of each label over an ensemble.

    Args:
        ensemble: documents (e, d), or an `Ensemble`, whose reservoir is looked at.
        queries: (m, d) floating, the labels' vectors.
        labels: their names; None numbers them.
        n_cross: of the crossover.

    Raises:
        TypeError, ValueError: as `surprise`; also an `Ensemble` without reservoir, or names that are not m.

    References: paper section 2.1; design section 1.
    """
    queries, ensemble = check_ensemble(queries, ensemble, "cosine")
    rows = documents_of(ensemble, queries, "a diagnosis")
    given = range(len(queries)) if labels is None else labels
    names = [own(label) if isinstance(label, str) else str(label) for label in given]
    if len(names) != len(queries):
        raise ValueError(f"there are {len(queries)} queries but {len(names)} labels")
    parts = [shape(column) for _, column in est.sorted_columns(rows, queries, "cosine")]
    empty = torch.zeros(5, 0, dtype=torch.float64, device=rows.device)
    mean, std, skewness, kurtosis, distance = torch.cat([empty, *parts], dim=1)
    levels = torch.tensor(LEVELS, dtype=torch.float64, device=rows.device)
    seen, weight = held_out(rows, queries, levels), crossover_weight(len(ensemble), None, n_cross)
    noise = 0.895 / len(rows) ** 0.5  # Lilliefors' limit
    shapes = (mean, std, skewness, kurtosis, distance)
    return Diagnosis(names, *shapes, noise, levels, seen, len(ensemble), len(rows), weight)


def shape(ascending: Tensor) -> Tensor:
    """Mean, deviation, skewness, excess kurtosis and distance of ascending rows (m, e): (5, m) float64.

    A row of equal values has skewness, kurtosis and distance 0.
    """
    wide = ascending.to(torch.float64)
    mean = wide.mean(dim=1)
    std = floored(mean, (wide - mean.unsqueeze(1)).square().mean(dim=1), torch.finfo(ascending.dtype).eps)
    alive = std > 0
    z = (wide - mean.unsqueeze(1)) / torch.where(alive, std, 1.0).unsqueeze(1)
    below = normal_cdf(z)
    count = wide.shape[1]
    step = torch.arange(count + 1, dtype=torch.float64, device=wide.device) / count
    gap = torch.maximum((step[1:] - below).amax(dim=1), (below - step[:-1]).amax(dim=1))
    higher = torch.stack((z.pow(3).mean(dim=1), z.pow(4).mean(dim=1) - 3, gap))
    return torch.cat((torch.stack((mean, std)), torch.where(alive, higher, 0.0)))


def held_out(rows: Tensor, queries: Tensor, levels: Tensor) -> Tensor:
    """(K, m): how many of one half of the rows score 1 - level or more by the moments of the other half, as a fraction.

    Each half is held out once. With a single row it is 0.
    """
    seen = torch.zeros(len(levels), len(queries), dtype=torch.float64, device=rows.device)
    halves = est.shuffled(rows).chunk(2)
    if len(halves) < 2:
        return seen
    for fit, held in (halves, halves[::-1]):
        mean, std = est.moments(rows[fit], queries, "cosine")
        for psi in est.similarity_blocks(rows[held], queries, "cosine")():
            tail = normal_cdf(-standardize(psi, mean, std))
            for i, level in enumerate(levels):
                seen[i] += (tail <= level).sum(dim=0)
    return seen / len(rows)
