"""What the score is made of: similarities, their statistics over the ensemble, and the rescaled similarity.

Pure functions of tensors. An (ensemble, queries) matrix is never kept: it passes by in blocks of at most `BLOCK`
elements, as often as a statistic needs it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from . import ops
from .ops import compute_dtype, floored

SIMILARITIES = ("cosine", "dot", "euclidean", "manhattan")
ESTIMATORS = ("gaussian", "quantile", "empirical", "tail", "auto")
BLOCK = 1 << 20  # elements: 8 MiB in float64, and a handful of temporaries of that size

Blocks = Callable[[], Iterator[Tensor]]


def is_product(kind: str) -> bool:
    """Cosine and dot products: linear in the rows, so the ops and the Ensemble's moments serve them."""
    return kind in ("cosine", "dot")


def score_dtype(keys: Tensor, queries: Tensor) -> torch.dtype:
    """float64 if either is, else float32."""
    return compute_dtype(torch.promote_types(keys.dtype, queries.dtype))


def similarity(keys: Tensor, queries: Tensor, kind: str, impl: str = "auto") -> Tensor:
    """psi (n, m) of rows keys (n, d) and queries (m, d), larger = more alike; distances are negated."""
    if is_product(kind):
        zeros = torch.zeros(len(queries), dtype=torch.float64, device=queries.device)
        return ops.surprise_from_moments(
            keys, queries, zeros, zeros + 1, output="cosine", normalize=kind == "cosine", impl=impl
        )
    dtype = score_dtype(keys, queries)
    # the product form of the distance cancels for near rows, and its rounding depends on the batch
    exact = "donot_use_mm_for_euclid_dist"
    return -torch.cdist(keys.to(dtype), queries.to(dtype), p=2.0 if kind == "euclidean" else 1.0, compute_mode=exact)


def shuffled(rows: Tensor, seed: int = 0) -> Tensor:
    """(n,) a fixed random order; a regular one could fall in step with the documents' own."""
    return torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed)).to(rows.device)


def row_slices(rows: int, width: int, most: int | None = None) -> Iterator[slice]:
    """Slices of `rows` rows: at most `most` (default: `BLOCK`) elements of `width` columns; one slice at least."""
    step = max(1, (BLOCK if most is None else most) // max(width, 1))
    for start in range(0, max(rows, 1), step):
        yield slice(start, min(start + step, rows))


def similarity_blocks(rows: Tensor, queries: Tensor, kind: str, impl: str = "auto") -> Blocks:
    """psi(rows, queries) in blocks of rows, each time it is called; a matrix of one block is computed once."""
    parts = list(row_slices(len(rows), len(queries)))
    if len(parts) == 1:
        whole = similarity(rows, queries, kind, impl)
        return lambda: iter((whole,))
    return lambda: (similarity(rows[part], queries, kind, impl) for part in parts)


# --- moments -----------------------------------------------------------------------------------------------------


def moments(rows: Tensor, queries: Tensor, kind: str, impl: str = "auto") -> tuple[Tensor, Tensor]:
    """Mean and population standard deviation (m,) float64 of psi(rows, q), in one pass."""
    if is_product(kind):
        return ops.cosine_moments(rows, queries, normalize=kind == "cosine", impl=impl)
    mean = torch.zeros(len(queries), dtype=torch.float64, device=queries.device)
    square = torch.zeros_like(mean)
    count, eps = 0, 0.0
    for psi in similarity_blocks(rows, queries, kind)():
        eps = torch.finfo(psi.dtype).eps
        wide = psi.to(torch.float64)
        n, block_mean = len(wide), wide.mean(dim=0)
        delta = block_mean - mean
        mean = mean + delta * (n / (count + n))
        square += (wide - block_mean).square().sum(dim=0) + delta.square() * (count * n / (count + n))
        count += n
    return mean, floored(mean, square / max(count, 1), eps)


# --- the order of labels -----------------------------------------------------------------------------------------


def best(values: Tensor, k: int, ties: Tensor | None = None) -> Tensor:
    """Places (n, k) int64 of the k largest of each row (n, m), k <= m, largest first.

    Of equal values the one with the larger of `ties` (n, m) comes first, then the one that stands first.
    """
    place = torch.arange(values.shape[1], device=values.device).expand_as(values)
    if k < values.shape[1] and len(values):
        # nothing but the k largest and what equals the last of them needs sorting
        largest = values.topk(k, dim=1)
        most = max(k, int((values >= largest.values[:, -1:]).sum(dim=1).max()))
        place = (largest if most == k else values.topk(most, dim=1)).indices.sort(dim=1).values
    if ties is not None:
        place = place.gather(1, ties.gather(1, place).argsort(dim=1, descending=True, stable=True))
    return place.gather(1, values.gather(1, place).argsort(dim=1, descending=True, stable=True))[:, :k]


# --- order statistics of each query's column ---------------------------------------------------------------------


def sorted_columns(rows: Tensor, queries: Tensor, kind: str, impl: str = "auto") -> Iterator[tuple[slice, Tensor]]:
    """(queries' slice, psi(rows, q) as ascending rows (m', e)) for blocks of queries."""
    for part in row_slices(len(queries), len(rows)):
        # as coarse as the rows, which sets how far values count as ties (a reservoir is float32)
        psi = similarity(rows, queries[part], kind, impl).to(compute_dtype(rows.dtype))
        yield part, psi.T.contiguous().sort(dim=1).values


def quantile(ascending: Tensor, p: float) -> Tensor:
    """The p-quantile of each row (m, e) by linear interpolation, as NumPy's default: (m,) float64."""
    at = p * (ascending.shape[1] - 1)
    low = ascending[:, int(at)].to(torch.float64)
    high = ascending[:, min(int(at) + 1, ascending.shape[1] - 1)].to(torch.float64)
    return torch.lerp(low, high, at - int(at))


def quantile_moments(rows: Tensor, queries: Tensor, kind: str, impl: str = "auto") -> tuple[Tensor, Tensor]:
    """Median and 84.13th percentile - median of psi(rows, q): a gaussian's mean and sigma. (m,) float64 each."""
    parts = []
    for _, column in sorted_columns(rows, queries, kind, impl):
        median = quantile(column, 0.5)
        std = quantile(column, 0.8413) - median
        parts.append((median, floored(median, std.square(), torch.finfo(column.dtype).eps)))
    medians, stds = zip(*parts, strict=True)
    return torch.cat(medians), torch.cat(stds)


def fraction_below(psi: Tensor, ascending: Tensor, kind: str) -> Tensor:
    """The definition of the score: the fraction of each query's column strictly below psi (n, m). float64.

    Values within rounding of psi are ties, not below it: a document meets itself in the ensemble, and the last bit
    of a product depends on how many rows were multiplied with it.
    """
    dtype = torch.promote_types(psi.dtype, ascending.dtype)
    noise = 8 * torch.finfo(ascending.dtype).eps
    scale = torch.ones_like(psi[:1]).T if kind == "cosine" else ascending[:, [0, -1]].abs().amax(dim=1, keepdim=True)
    edge = psi.T.to(dtype) - (noise * scale).to(dtype)
    below = torch.searchsorted(ascending.to(dtype), edge.contiguous(), side="left")
    return below.T.to(torch.float64) / ascending.shape[1]


# --- the rescaled similarity -------------------------------------------------------------------------------------


class Rescale(NamedTuple):
    """The map of design section 1: increasing, piecewise linear, one for the whole matrix, mean 0.5 over (E, Q).

    `low` -> 0 and `high` -> 1 are similarities; knee (the median), below and above (the means of the halves) are on
    the scale x = (psi - low) / (high - low).
    """

    low: float
    high: float
    knee: float
    below: float
    above: float

    @classmethod
    def fit(cls, blocks: Blocks, total: int, dtype: torch.dtype, anchors: tuple[float, float] | None) -> Rescale:
        """From the `total` elements of psi(E, Q) of this dtype; anchors None takes the extremes. Exact for any size."""
        if total == 0:
            return cls(0.0, 1.0, 0.5, 0.5, 0.5)
        middle = _lower_median(blocks, total, dtype)
        less = equal = 0
        sum_less = total_sum = 0.0
        following = low = torch.inf
        high = -torch.inf
        for psi in blocks():
            wide = psi.to(torch.float64)
            is_less, is_more = wide < middle, wide > middle
            less += int(is_less.sum())
            equal += int((wide == middle).sum())
            sum_less += float(wide[is_less].sum())
            total_sum += float(wide.sum())
            following = min(following, float(torch.where(is_more, wide, torch.inf).min()))
            low, high = min(low, float(wide.min())), max(high, float(wide.max()))
        upper_middle = middle if less + equal > total // 2 else following
        below = (sum_less + (total / 2 - less) * middle) / (total / 2)  # of an odd number the middle one counts half
        above = 2 * total_sum / total - below
        if anchors is not None:
            low, high = anchors
        span, floor = high - low, 8 * torch.finfo(dtype).eps  # what rounding leaves, as of a sigma (design fact 4)
        if span <= floor * max(1.0, abs(high)):
            return cls(low, low + 1.0, 0.0, 0.0, 0.0)
        knee, below, above = ((v - low) / span for v in ((middle + upper_middle) / 2, below, above))
        if anchors == (-1.0, 1.0) and below * (1 - knee) + knee * (1 - above) <= floor:  # at one end of them: D = 0
            knee = below = above = float(round(knee))
        return cls(low, high, knee, below, above)

    def __call__(self, psi: Tensor, bounded: bool = True) -> tuple[Tensor, Tensor]:
        """psi^ and 1 - psi^, each exact where it is small, float64, of the shape of psi.

        `bounded` holds what lies beyond the anchors at 0 and 1 (not the paper's anchor=0, which leaves [0, 1]).
        """
        x = (psi.to(torch.float64) - self.low) / (self.high - self.low)
        span = self.below * (1 - self.knee) + self.knee * (1 - self.above)  # D = a - t (a + b - 1)
        if span == 0 or not self.high > self.low:
            return torch.full_like(x, 0.5), torch.full_like(x, 0.5)
        lower, upper_gap = x * ((1 - self.above) / span), (1 - x) * (self.below / span)
        is_low = x <= self.knee
        hat, gap = torch.where(is_low, lower, 1 - upper_gap), torch.where(is_low, 1 - lower, upper_gap)
        return (hat.clamp(0.0, 1.0), gap.clamp(0.0, 1.0)) if bounded else (hat, gap)


def _ordered(x: Tensor) -> Tensor:
    """Bits of floats as integers in the same order (the same turn leads back)."""
    bits = x.view(torch.int32 if x.element_size() == 4 else torch.int64) if x.is_floating_point() else x
    return bits ^ ((bits >> (8 * bits.element_size() - 1)) & torch.iinfo(bits.dtype).max)


def _lower_median(blocks: Blocks, total: int, dtype: torch.dtype) -> float:
    """The lower median of all elements: a radix select, 16 bits a pass, so that no more than a block is in memory."""
    bits = torch.finfo(dtype).bits
    rank, prefix = (total - 1) // 2, 0
    for shift in range(bits - 16, -1, -16):
        counts = torch.zeros(1 << 16, dtype=torch.int64)
        leading = shift == bits - 16
        for psi in blocks():
            key = _ordered(psi.flatten())
            if not leading:
                key = key[(key >> (shift + 16)) == prefix]
            digit = (key >> shift) + (1 << 15) if leading else (key >> shift) & 0xFFFF
            counts += torch.bincount(digit, minlength=1 << 16).cpu()
        running = counts.cumsum(0)
        chosen = int(torch.searchsorted(running, rank, right=True))
        rank -= int(running[chosen] - counts[chosen])
        prefix = chosen - (1 << 15) if leading else (prefix << 16) + chosen
    key = torch.tensor(prefix, dtype=torch.int32 if bits == 32 else torch.int64)
    return float(_ordered(key).view(dtype))
