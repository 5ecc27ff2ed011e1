"""The definition of every op in plain torch.

This file is what the compiled kernels are tested against, what answers on devices without a kernel, and what
`impl="reference"` calls. It imports torch alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

import torch
from torch import Tensor

OUTPUTS = ("cosine", "z", "score", "log_tail")
PROBABILITIES = ("softplus", "relu")
SEARCH_PIECE = 1 << 18  # numbers widened at once by `search_topk`: 1 MiB stays in a core's cache
SEARCH_TILE = 1 << 22  # its values held at once
SEARCH_GROUP = 32  # of its values looked at by their maximum first
SEARCH_SMALL = 1 << 16  # so few are searched for the largest directly
GATHERED = 4096  # rows at once in `gathered_products`
SHARPNESS = 20.0  # of softplus: the line p = cos above about 0.15, a tail e^(20 cos) / 20 below

P = ParamSpec("P")
R = TypeVar("R")


def full_precision(function: Callable[P, R]) -> Callable[P, R]:
    """The function outside autocast, on the device of its first tensor: a cosine in half precision is too coarse.

    For products in float32; autocast leaves float64 as it is.
    """

    @wraps(function)
    def outside(*args: P.args, **kwargs: P.kwargs) -> R:
        first = next((x for x in (*args, *kwargs.values()) if isinstance(x, Tensor)), None)
        kind = "cpu" if first is None else first.device.type
        if kind == "meta" or not torch.is_autocast_enabled(kind):
            return function(*args, **kwargs)
        with torch.autocast(kind, enabled=False):
            return function(*args, **kwargs)

    return outside


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """float64 stays float64; float32, float16 and bfloat16 are computed and returned in float32."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def unit_rows(x: Tensor, normalize: bool = True) -> Tensor:
    """L2-normalised rows in the compute dtype; a zero row stays zero.

    The row is first divided by its largest magnitude so that the squares neither overflow nor vanish.

    Args:
        x: (n, d) floating.
        normalize: False changes the dtype alone.

    Returns:
        (n, d) float64 for float64, else float32.
    """
    x = x.to(compute_dtype(x.dtype))
    if not normalize or x.shape[1] == 0:
        return x
    peak = x.detach().abs().amax(dim=1, keepdim=True)
    x = x / torch.where(peak > 0, peak, torch.ones_like(peak))
    squares = (x * x).sum(dim=1, keepdim=True)
    return x / squares.masked_fill(squares == 0, math.inf).sqrt()  # no gradient for a zero row, as `grad_rows`


def grad_rows(x: Tensor, unit: Tensor, grad_unit: Tensor, normalize: bool = True) -> Tensor:
    """Gradient through `unit_rows`, in the dtype of `x`; zero rows get none."""
    if normalize and x.shape[1]:
        wide = x.to(unit.dtype)
        peak = wide.detach().abs().amax(dim=1, keepdim=True)
        safe = torch.where(peak > 0, peak, torch.ones_like(peak))
        norm = (wide / safe).norm(dim=1, keepdim=True) * safe
        along = (unit * grad_unit).sum(dim=1, keepdim=True)
        grad_unit = torch.where(peak > 0, (grad_unit - unit * along) / torch.where(peak > 0, norm, 1.0), 0.0)
    return grad_unit.to(x.dtype)


def sigma_floor(mean: Tensor, eps: float) -> Tensor:
    """8 eps max(1, |mean|): a standard deviation at or below it is rounding noise and counts as 0 (design fact 4).

    Args:
        mean: floating, of any shape, which the result has too.
        eps: of the dtype that the similarities came in.
    """
    return 8 * eps * mean.abs().clamp(min=1.0)


def floored(mean: Tensor, var: Tensor, eps: float) -> Tensor:
    """Standard deviation of a variance, 0 where it is rounding noise: no gradient there, rather than an infinite one.

    Args:
        mean, var: floating, of one shape; the result has it too, in the dtype of `var`.
        eps: of the dtype that the similarities came in.
    """
    dead = var.detach() <= sigma_floor(mean.detach(), eps).square()
    return torch.where(dead, torch.zeros_like(var), torch.where(dead, torch.ones_like(var), var).sqrt())


def normal_cdf(z: Tensor) -> Tensor:
    """Phi(z), accurate far into the lower tail, where `torch.special.ndtr` is 0 from z = -8.3 on.

    Floating of any shape; dtype and shape stay.
    """
    return 0.5 * torch.erfc(z * -math.sqrt(0.5))


def moments(psi: Tensor) -> tuple[Tensor, Tensor]:
    """Population mean and standard deviation of each column of `psi` (n, m), in float64: two tensors (m,)."""
    n, m = psi.shape
    if n == 0:
        zeros = torch.zeros(m, dtype=torch.float64, device=psi.device)
        return zeros, zeros.clone()
    wide = psi.to(torch.float64)
    mean = wide.mean(dim=0)
    var = (wide - mean).square().mean(dim=0)
    return mean, floored(mean, var, torch.finfo(psi.dtype).eps)


def standardize(psi: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """z (n, m) in float64 of psi (n, m), mean and std (m,): (psi - mean) / std (paper section 2).

    Where std = 0: -inf below the mean, 0 at it within rounding, +inf above (design, fact 4).
    """
    gap = psi.to(torch.float64) - mean
    dead = std == 0
    at = gap.abs() <= sigma_floor(mean, torch.finfo(psi.dtype).eps)
    step = torch.where(at, 0.0, gap.sign() * math.inf)
    return torch.where(dead, step, gap / torch.where(dead, 1.0, std))


def from_z(psi: Tensor, z: Tensor, output: str) -> Tensor:
    """The requested quantity from the similarity and z, in the dtype of `z`."""
    if output == "cosine":
        return psi
    if output == "z":
        return z
    if output == "score":
        return normal_cdf(z)
    if output == "log_tail":
        # torch.special.log_ndtr has no NaN at -inf but loses digits in float32: compute in float64
        return torch.special.log_ndtr(-z.to(torch.float64)).to(z.dtype)
    raise ValueError(f"output must be one of {OUTPUTS}, got {output!r}")


@full_precision
def cosine_surprise(
    keys: Tensor, queries: Tensor, normalize: bool = True, output: str = "score"
) -> tuple[Tensor, Tensor, Tensor]:
    psi = unit_rows(keys, normalize) @ unit_rows(queries, normalize).T
    mean, std = moments(psi)
    return from_z(psi, standardize(psi, mean, std).to(psi.dtype), output), mean, std


@full_precision
def cosine_moments(ensemble: Tensor, queries: Tensor, normalize: bool = True) -> tuple[Tensor, Tensor]:
    return moments(unit_rows(ensemble, normalize) @ unit_rows(queries, normalize).T)


@full_precision
def surprise_from_moments(
    keys: Tensor, queries: Tensor, mean: Tensor, std: Tensor, normalize: bool = True, output: str = "score"
) -> Tensor:
    psi = unit_rows(keys, normalize) @ unit_rows(queries, normalize).T
    return from_z(psi, standardize(psi, mean, std).to(psi.dtype), output)


@full_precision
def surprise_topk(
    keys: Tensor,
    queries: Tensor,
    mean: Tensor,
    std: Tensor,
    k: int,
    normalize: bool = True,
    output: str = "score",
) -> tuple[Tensor, Tensor]:
    psi = unit_rows(keys, normalize) @ unit_rows(queries, normalize).T
    z = standardize(psi, mean, std).to(psi.dtype)
    # a stable sort puts the lower index first among equals, as the kernels do, and an ascending one NaN last
    order = (-z.detach()).argsort(dim=1, stable=True)[:, :k]
    z = z.gather(1, order)
    return from_z(psi.gather(1, order), z, output).masked_fill(z.isnan(), math.nan), order


@full_precision
def search_topk(
    keys: Tensor, queries: Tensor, margin: Tensor, scale: Tensor | None, k: int, upper: float | None = None
) -> tuple[Tensor, Tensor]:
    # half precision in float32 and that in float64, whose products no GPU takes for TensorFloat's
    wide = torch.float32 if keys.element_size() == 2 else torch.float64
    piece = max(1, SEARCH_PIECE // max(keys.shape[1], 1)) if keys.device.type == "cpu" else len(keys)
    factor = None if scale is None else scale.to(wide).unsqueeze(1)
    best = keys.new_empty((len(queries), k), dtype=compute_dtype(keys.dtype))
    rows = keys.new_empty(best.shape, dtype=torch.int64)
    step = max(1, SEARCH_TILE // len(keys))
    for first in range(0, len(queries), step):
        some = slice(first, first + step)
        right, width = queries[some].to(wide).T, margin[some].to(wide)
        values = torch.cat([part.to(wide) @ right + width for part in keys.split(piece)])
        if factor is not None:
            values.mul_(factor)
        if upper is not None and upper < math.inf:
            values.masked_fill_(values - 2 * width * (1 if factor is None else factor) > upper, -math.inf)
        best[some], rows[some] = _largest(values.nan_to_num_(-math.inf, math.inf, -math.inf), k)
    return best, rows.masked_fill_(best == -math.inf, 0)


def split_halves(rows: Tensor) -> tuple[Tensor, Tensor]:
    """float32 as the nearest bfloat16 and what is missing: the bits are 2^16 times the former's and the latter.

    Args:
        rows: float32, of any shape.

    Returns:
        near: bfloat16, rest: int16, of the same shape. `join_halves` gives the very same numbers back.

    Raises:
        TypeError: of another dtype.
    """
    if rows.dtype != torch.float32:
        raise TypeError(f"only float32 has these halves, got {rows.dtype}")
    bits = rows.view(torch.int32)
    near = (bits + 0x8000).bitwise_right_shift_(16).to(torch.int16)
    return near.view(torch.bfloat16), bits.to(torch.int16)


def join_halves(near: Tensor, rest: Tensor) -> Tensor:
    """The float32 numbers that `split_halves` took apart: near bfloat16, rest int16, of one shape, which stays.

    Raises:
        TypeError: of other dtypes.
    """
    if (near.dtype, rest.dtype) != (torch.bfloat16, torch.int16):
        raise TypeError(f"halves are bfloat16 and int16, got {near.dtype} and {rest.dtype}")
    return near.view(torch.int16).to(torch.int32).bitwise_left_shift_(16).add_(rest).view(torch.float32)


@full_precision
def gathered_products(near: Tensor, rest: Tensor, rows: Tensor, queries: Tensor) -> Tensor:
    out = queries.new_empty(rows.shape)
    width = min(GATHERED, max(rows.shape[1], 1))
    for top in range(0, len(rows), GATHERED // width):
        for left in range(0, rows.shape[1], width):
            here = slice(top, top + GATHERED // width), slice(left, left + width)
            part = rows[here]
            some = part.clamp(min=0)  # a negative one is no row
            wide = join_halves(near[some], rest[some]).to(torch.float64)
            out[here] = (wide @ queries[here[0]].unsqueeze(2)).squeeze(2).masked_fill_(part < 0, 0)
    return out


def _largest(values: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k largest (b, k) of each column of (n, b), and their rows: in the k groups with the largest maxima.

    A group's rows stand `groups` apart, so that maxima are taken of whole stretches of memory.
    """
    groups = len(values) // SEARCH_GROUP
    if groups < 2 * k or values.numel() < SEARCH_SMALL:
        return values.T.topk(k, dim=1)
    maxima = values[: groups * SEARCH_GROUP].unflatten(0, (SEARCH_GROUP, groups)).amax(dim=0)
    best = maxima.T.contiguous().topk(k, dim=1, sorted=False).indices
    members = groups * torch.arange(SEARCH_GROUP, device=values.device)
    index = (best.unsqueeze(2) + members).flatten(1)
    rest = torch.arange(groups * SEARCH_GROUP, len(values), device=values.device)
    index = torch.cat((index, rest.expand(len(index), -1)), dim=1)
    found, at = values.T.gather(1, index).topk(k, dim=1)
    return found, index.gather(1, at)


@full_precision
def ensemble_update(
    count: Tensor, mean: Tensor, scatter: Tensor, batch: Tensor, normalize: bool = True, exact: bool = False
) -> None:
    """Chan et al.: merge the batch's (count, mean, scatter) into the running ones, in place."""
    rows = batch.shape[0]
    if rows == 0:
        return
    if exact:
        batch = batch.to(torch.float64)
    unit = unit_rows(batch, normalize)
    batch_mean = unit.to(torch.float64).mean(dim=0)
    centred = (unit.to(torch.float64) - batch_mean).to(unit.dtype)
    # blocks of rows bound the float32 error: each partial product is added in float64
    product = torch.zeros_like(scatter)
    for block in centred.split(256):
        product += (block.T @ block).to(torch.float64)
    old = count.to(torch.float64)
    delta = batch_mean - mean
    scatter += product + (old * rows / (old + rows)) * torch.outer(delta, delta)
    mean += delta * (rows / (old + rows))
    count += rows


@full_precision
def ensemble_moments(
    mean: Tensor, covariance: Tensor, queries: Tensor, normalize: bool = True
) -> tuple[Tensor, Tensor]:
    """mu = m . q^ and sigma^2 = q^ . C q^ (design fact 1); rounding may leave a variance just below 0."""
    unit = unit_rows(queries.to(torch.float64), normalize)
    return unit @ mean, ((unit @ covariance) * unit).sum(dim=1)


# --- the weighted focal loss -------------------------------------------------------------------------------------

_Matrix = tuple[Tensor, Tensor, Tensor]


def _probability(cos: Tensor, kind: str, delta: float, coarse: float) -> _Matrix:
    """p, dp/dcos and d(log p)/dcos of cosines, p kept where its logarithms are finite.

    `coarse` is the rounding of the embeddings: a cosine closer than that to 1 (half precision: to 0 too) is not
    known to differ from it. At p = 1 the slope stays, so that a wrong pair leaves; below 0 ReLU has none.
    """
    least = 0.0
    if kind == "relu":
        free = torch.relu(cos + delta)
        slope = (free > 0).to(cos.dtype)
        least = coarse if coarse > 1e-4 else min(delta, 1e-10)
    else:
        free = torch.nn.functional.softplus(cos * SHARPNESS) / SHARPNESS
        slope = torch.sigmoid(cos * SHARPNESS)
    p = free.detach().clamp(least, 1 - coarse)
    return p + (free - free.detach()), slope, slope / p  # for autograd, too, the slope is that of `free`


def _cross_entropy(p: Tensor, positive: Tensor, epsilon: float) -> _Matrix:
    """i, and the two parts of the cross-entropy of every pair: -i log p and -(1 - i) log(1 - p)."""
    i = torch.full_like(p, epsilon).masked_fill(positive, 1.0)
    return i, -i * p.log(), (i - 1) * torch.log1p(-p)


def _shares(positive: Tensor, weight: Tensor | None, balanced: bool, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Share of each pair in the mean, without and with `weight`: (B, m) or something that broadcasts to it."""
    rows, m = positive.shape
    if balanced:
        count = positive.sum(dim=1, keepdim=True)
        kinds = rows * ((count > 0).long() + (count < m))
        share = 1 / (kinds * torch.where(positive, count, m - count)).to(dtype)
    else:
        share = positive.new_full((1, 1), 1 / max(rows * m, 1), dtype=dtype)
    return share, share if weight is None else share * weight.to(dtype).unsqueeze(1)


def _common_unit(keys: Tensor, queries: Tensor) -> tuple[Tensor, Tensor, float]:
    """Unit rows in the wider compute dtype, and the rounding of the coarser input."""
    dtype = compute_dtype(torch.promote_types(keys.dtype, queries.dtype))
    coarse = max(torch.finfo(keys.dtype).eps, torch.finfo(queries.dtype).eps)
    return unit_rows(keys.to(dtype)), unit_rows(queries.to(dtype)), coarse


@full_precision
def focal_loss(
    keys: Tensor,
    queries: Tensor,
    positive: Tensor,
    weight: Tensor | None,
    *,
    gamma: float,
    epsilon: float,
    probability: str,
    delta: float,
    balanced: bool,
) -> tuple[Tensor, Tensor]:
    """Loss and cross-entropy for autograd to differentiate: the definition."""
    k_hat, q_hat, coarse = _common_unit(keys, queries)
    p, _, _ = _probability(k_hat @ q_hat.T, probability, delta, coarse)
    _, right, wrong = _cross_entropy(p, positive, epsilon)
    plain, share = _shares(positive, weight, balanced, p.dtype)
    loss = (1 - p) ** gamma * right + p**gamma * wrong
    return (loss * share).sum(), ((right + wrong).detach() * plain).sum()


@full_precision
def weighted_focal_loss(
    keys: Tensor,
    queries: Tensor,
    positive: Tensor,
    weight: Tensor | None = None,
    gamma: float = 1.0,
    epsilon: float = 0.05,
    probability: str = "softplus",
    delta: float = 1e-10,
    balanced: bool = True,
) -> _Matrix:
    """Loss, cross-entropy, and the slopes dl/dcos (B, m): all that the gradient needs beside keys and queries."""
    k_hat, q_hat, coarse = _common_unit(keys, queries)
    p, dp, dlog = _probability(k_hat @ q_hat.T, probability, delta, coarse)
    i, right, wrong = _cross_entropy(p, positive, epsilon)
    plain, share = _shares(positive, weight, balanced, p.dtype)
    left = 1 - p
    focus_right, focus_wrong = left**gamma, p**gamma
    loss = focus_right * right + focus_wrong * wrong
    inner = gamma * (p ** (gamma - 1) * wrong - left ** (gamma - 1) * right)
    slope = (inner + (1 - i) * focus_wrong / left) * dp - i * focus_right * dlog
    return (loss * share).sum(), ((right + wrong) * plain).sum(), slope * share


@full_precision
def weighted_focal_loss_backward(
    grad: Tensor, keys: Tensor, queries: Tensor, slope: Tensor, need_keys: bool = True, need_queries: bool = True
) -> tuple[Tensor, Tensor]:
    """Gradients of keys and queries; (0, d) where one is not wanted."""
    k_hat, q_hat, _ = _common_unit(keys, queries)
    slope = slope * grad
    return (
        grad_rows(keys, k_hat, slope @ q_hat) if need_keys else keys.new_empty((0, keys.shape[1])),
        grad_rows(queries, q_hat, slope.T @ k_hat) if need_queries else queries.new_empty((0, keys.shape[1])),
    )
