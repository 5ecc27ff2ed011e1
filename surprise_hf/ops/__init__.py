"""The surprise ops: cosine matrices, per-query moments and the surprise score, in one pass over the keys.

Paper: section 2 (surprise score). Every function takes 2-D tensors whose rows are vectors, on one device; rows need
be neither normalised nor contiguous. float16, bfloat16 and float32 rows are computed in float32 and scores come back
in float32; float64 stays float64. Moments are always float64, population form (divide by n).

`output` names what the matrix holds, for a key k and a query q with moments mu_q, sigma_q:

    "cosine"    psi = k^ . q^  (the plain dot product with normalize=False)
    "z"         (psi - mu_q) / sigma_q
    "score"     Phi(z), the surprise score in [0, 1]
    "log_tail"  log(1 - Phi(z)), exact far out where the score has long rounded to 1

A query with sigma_q = 0 (one document, identical documents, zero vectors) has z = -inf, 0 or +inf and a score of
0, 0.5 or 1 below, at and above its mean: finite input never gives NaN.
"""

from __future__ import annotations

from collections.abc import Callable
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from . import _loader
from . import _reference as ref
from ._autograd import CALLS, is_transformed
from ._loader import OPS, build_info
from ._reference import (
    OUTPUTS,
    PROBABILITIES,
    compute_dtype,
    floored,
    full_precision,
    join_halves,
    normal_cdf,
    sigma_floor,
    split_halves,
    standardize,
    unit_rows,
)

__all__ = [
    "OUTPUTS",
    "PROBABILITIES",
    "build_info",
    "compute_dtype",
    "cosine_moments",
    "cosine_surprise",
    "ensemble_moments",
    "ensemble_update",
    "floored",
    "full_precision",
    "gathered_products",
    "join_halves",
    "normal_cdf",
    "search_topk",
    "sigma_floor",
    "split_halves",
    "standardize",
    "surprise_from_moments",
    "surprise_topk",
    "unit_rows",
    "weighted_focal_loss",
]

_loader.load()

IMPLEMENTATIONS = ("auto", "reference")
FLOATING = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def _check_tensor(name: str, x: object) -> None:
    if not isinstance(x, Tensor):
        raise TypeError(f"{name} must be a torch.Tensor, got {type(x).__name__}")
    if x.layout != torch.strided:
        raise TypeError(f"{name} must be dense, got {x.layout}: give its to_dense()")


def check_floating(name: str, x: object) -> None:
    """Refuse what is not a dense tensor of 16 bit floats or wider, naming the argument.

    Raises:
        TypeError: it is not.
    """
    _check_tensor(name, x)
    assert isinstance(x, Tensor)
    if x.dtype not in FLOATING:
        raise TypeError(f"{name} must have a floating dtype of 16, 32 or 64 bits, got {x.dtype}")


def _check_rows(name: str, x: Tensor) -> None:
    check_floating(name, x)
    if x.dim() != 2:
        raise ValueError(f"{name} must have shape (rows, dim), got {tuple(x.shape)}")


def _check_pair(first: str, keys: Tensor, queries: Tensor) -> tuple[Tensor, Tensor]:
    """Checked and brought to one dtype (the wider of the two)."""
    _check_rows(first, keys)
    _check_rows("queries", queries)
    if keys.shape[1] != queries.shape[1]:
        raise ValueError(f"{first} have {keys.shape[1]} dimensions but queries have {queries.shape[1]}")
    if keys.device != queries.device:
        raise ValueError(f"{first} are on {keys.device} but queries are on {queries.device}")
    if keys.dtype != queries.dtype:
        dtype = torch.promote_types(keys.dtype, queries.dtype)
        keys, queries = keys.to(dtype), queries.to(dtype)
    return keys, queries


def _check_device(name: str, x: Tensor, other: str, like: Tensor) -> None:
    _check_tensor(name, x)
    if x.device != like.device:
        raise ValueError(f"{name} is on {x.device} but {other} on {like.device}")


def _check_moments(mean: Tensor, std: Tensor, queries: Tensor) -> tuple[Tensor, Tensor]:
    for name, x in (("mean", mean), ("std", std)):
        _check_device(name, x, "queries", queries)
        if x.dim() != 1 or x.shape[0] != queries.shape[0]:
            raise ValueError(f"{name} must have shape ({queries.shape[0]},), one per query, got {tuple(x.shape)}")
    return mean.to(torch.float64), std.to(torch.float64)


def _check_statistics(side: str, like: Tensor, **given: tuple[Tensor, tuple[int, ...]]) -> None:
    for name, (x, shape) in given.items():
        _check_tensor(name, x)
        if tuple(x.shape) != shape or x.dtype != torch.float64:
            raise ValueError(f"{name} must be float64 of shape {shape}, got {x.dtype} {tuple(x.shape)}")
        _check_device(name, x, side, like)


def _check_output(output: str) -> None:
    if output not in OUTPUTS:
        raise ValueError(f"output must be one of {OUTPUTS}, got {output!r}")


def _backend(name: str, impl: str) -> Callable[..., Any]:
    if impl not in IMPLEMENTATIONS:
        raise ValueError(f"impl must be one of {IMPLEMENTATIONS}, got {impl!r}")
    if impl == "reference" or is_transformed():
        return getattr(ref, name)
    return CALLS.get(name) or getattr(OPS, name)


def cosine_surprise(
    keys: Tensor, queries: Tensor, *, output: str = "score", normalize: bool = True, impl: str = "auto"
) -> tuple[Tensor, Tensor, Tensor]:
    """Surprise of every key for every query, the keys being the ensemble.

    Args:
        keys: (n, d) floating.
        queries: (m, d) floating, same device.
        output: one of `OUTPUTS`.
        normalize: False scores the dot product of the rows as they are.
        impl: "auto" (compiled where there is a kernel) or "reference" (plain torch).

    Returns:
        scores (n, m) float32 (float64 for float64 input), mean (m,) float64, std (m,) float64.

    Raises:
        TypeError: an argument is not a floating tensor.
        ValueError: shapes, devices, `output` or `impl` do not fit; the message names the argument.
    """
    keys, queries = _check_pair("keys", keys, queries)
    _check_output(output)
    return _backend("cosine_surprise", impl)(keys, queries, normalize=normalize, output=output)


def cosine_moments(
    ensemble: Tensor, queries: Tensor, *, normalize: bool = True, impl: str = "auto"
) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of each query's similarity over the ensemble; no (e, m) matrix is kept.

    Args and errors as in `cosine_surprise`; `ensemble` is (e, d).

    Returns:
        mean (m,) and std (m,), float64. An empty ensemble gives zeros.
    """
    ensemble, queries = _check_pair("ensemble", ensemble, queries)
    return _backend("cosine_moments", impl)(ensemble, queries, normalize=normalize)


def surprise_from_moments(
    keys: Tensor,
    queries: Tensor,
    mean: Tensor,
    std: Tensor,
    *,
    output: str = "score",
    normalize: bool = True,
    impl: str = "auto",
) -> Tensor:
    """Surprise of every key for every query from known moments, in one pass.

    Args as in `cosine_surprise`, and mean (m,), std (m,): moments of each query, any floating dtype (used in float64).

    Returns:
        (n, m) float32 (float64 for float64 input).
    """
    keys, queries = _check_pair("keys", keys, queries)
    mean, std = _check_moments(mean, std, queries)
    _check_output(output)
    return _backend("surprise_from_moments", impl)(keys, queries, mean, std, normalize=normalize, output=output)


def surprise_topk(
    keys: Tensor,
    queries: Tensor,
    mean: Tensor,
    std: Tensor,
    k: int,
    *,
    output: str = "score",
    normalize: bool = True,
    impl: str = "auto",
) -> tuple[Tensor, Tensor]:
    """The k most surprising queries of each key, best first, without the (n, m) matrix.

    The order is that of z, so it holds where scores have rounded to 1; among equal z the lower index comes first. A z
    that is NaN comes last, and its value is NaN.

    Args as in `surprise_from_moments`, and k: 1 <= k <= m.

    Returns:
        values (n, k) as `output` names them, and indices (n, k) int64 into `queries`.
    """
    keys, queries = _check_pair("keys", keys, queries)
    mean, std = _check_moments(mean, std, queries)
    _check_output(output)
    if not 1 <= k <= queries.shape[0]:
        raise ValueError(f"k must be between 1 and the {queries.shape[0]} queries, got {k}")
    return _backend("surprise_topk", impl)(keys, queries, mean, std, k, normalize=normalize, output=output)


def search_topk(
    keys: Tensor,
    queries: Tensor,
    margin: Tensor,
    scale: Tensor | None,
    k: int,
    *,
    upper: float | None = None,
    impl: str = "auto",
) -> tuple[Tensor, Tensor]:
    """The k keys with the largest products for each query, in one pass and without the (n, m) matrix.

    With scale = 1 / sigma of each key, products with a centred query order the keys by surprise (design fact 2). The
    value of key i for query j is (keys_i . queries_j + margin_j) scale_i, rows taken as they are: an upper bound
    where rounded rows leave a product uncertain by `margin`. No gradient.

    Args:
        keys: (n, d) floating.
        queries: (m, d) floating, same device.
        margin: (m,) any floating dtype, used in float64.
        scale: (n,) any floating dtype, used in that of the values; NaN leaves the key out. None for ones.
        k: 1 <= k <= n.
        upper: keys whose lower bound, (keys_i . queries_j - margin_j) scale_i, is larger are left out. None: none.

    Returns:
        values (m, k) float32 (float64 for float64 input), largest first, and keys (m, k) int64; of equal values any
        may come first. -inf and 0 where fewer than k keys are left.

    Raises:
        TypeError, ValueError: as in `cosine_surprise`.
    """
    keys, queries = _check_pair("keys", keys, queries)
    n, m = keys.shape[0], queries.shape[0]  # not len(), which would fix a dynamic size in torch.export
    for name, x, like, count in (("margin", margin, "queries", m), ("scale", scale, "keys", n)):
        if x is None:
            continue
        _check_device(name, x, "keys", keys)
        if tuple(x.shape) != (count,):
            raise ValueError(f"{name} must have shape ({count},), one for each of the {like}, got {tuple(x.shape)}")
    if not 1 <= k <= n:
        raise ValueError(f"k must be between 1 and the {n} keys, got {k}")
    if scale is not None:
        scale = scale.detach().to(compute_dtype(keys.dtype)).contiguous()
    keys, queries, margin = keys.detach(), queries.detach(), margin.detach().to(torch.float64)
    return _backend("search_topk", impl)(keys, queries, margin, scale, k, upper=upper)


def gathered_products(near: Tensor, rest: Tensor, rows: Tensor, queries: Tensor, *, impl: str = "auto") -> Tensor:
    """Each query's inner products with rows of its own, in float64: what settles the order that `search_topk` leaves.

    Args:
        near: (n, d) bfloat16, rest: (n, d) int16: float32 rows as `split_halves` takes them apart.
        rows: (b, f) int64, below n; a negative one is no row.
        queries: (b, d) float64, same device.

    Returns:
        (b, f) float64; 0 where there is no row.

    Raises:
        TypeError, ValueError: dtypes, shapes or devices do not fit.
        IndexError: a row of n or more (RuntimeError by the compiled op).
    """
    for name, x, dtype in (
        ("near", near, torch.bfloat16),
        ("rest", rest, torch.int16),
        ("rows", rows, torch.int64),
        ("queries", queries, torch.float64),
    ):
        _check_tensor(name, x)
        if x.dtype != dtype:
            raise TypeError(f"{name} must be {dtype}, got {x.dtype}")
        if x.dim() != 2:
            raise ValueError(f"{name} must have 2 dimensions, got shape {tuple(x.shape)}")
        _check_device(name, x, "near", near)
    wanted = rows.shape[0], near.shape[1]
    if rest.shape != near.shape or queries.shape != wanted:
        raise ValueError(
            f"rest must have the shape of near, {tuple(near.shape)}, and queries {tuple(wanted)}, one for each row of"
            f" rows; got {tuple(rest.shape)} and {tuple(queries.shape)}"
        )
    near, rest, rows, queries = (x.detach().contiguous() for x in (near, rest, rows, queries))
    return _backend("gathered_products", impl)(near, rest, rows, queries)


def ensemble_update(
    count: Tensor,
    mean: Tensor,
    scatter: Tensor,
    batch: Tensor,
    *,
    normalize: bool = True,
    exact: bool = False,
    impl: str = "auto",
) -> None:
    """Merge a batch of rows into running statistics, in place (Chan, Golub and LeVeque).

    Args:
        count: () float64, rows seen so far. Changed in place.
        mean: (d,) float64, mean of the unit rows. Changed in place.
        scatter: (d, d) float64, sum of the outer products of the centred unit rows (covariance times count).
            Changed in place.
        batch: (b, d) floating, same device.
        normalize: False takes the rows as they are.
        exact: multiply in float64 (1e-12) instead of float32 tiles added in float64 (standard deviations to 1e-6).

    Raises:
        TypeError, ValueError: as in `cosine_surprise`; statistics that require a gradient.
    """
    _check_rows("batch", batch)
    dim = batch.shape[1]
    _check_statistics("batch", batch, count=(count, ()), mean=(mean, (dim,)), scatter=(scatter, (dim, dim)))
    for name, x in (("count", count), ("mean", mean), ("scatter", scatter)):
        if x.requires_grad:
            raise ValueError(f"{name} requires a gradient, and is changed in place: give its detach()")
    _backend("ensemble_update", impl)(count, mean, scatter, batch.detach(), normalize=normalize, exact=exact)
    if not torch.compiler.is_compiling() and not count.is_inference():
        torch.autograd.graph.increment_version((count, mean, scatter))  # or a gradient would take them for unchanged


def ensemble_moments(
    mean: Tensor, covariance: Tensor, queries: Tensor, *, normalize: bool = True, impl: str = "auto"
) -> tuple[Tensor, Tensor]:
    """Mean and variance of each query's similarity to documents known by their mean and covariance alone.

    mu_q = m . q^ and sigma_q^2 = q^ . C q^ (design fact 1): O(d^2) a query however many documents there were.

    Args:
        mean: (d,) float64, mean of the unit documents.
        covariance: (d, d) float64, symmetric, population covariance of the unit documents.
        queries: (m, d) floating, same device.
        normalize: False takes the queries as they are.

    Returns:
        mean (m,) and variance (m,), float64. Rounding may leave a variance of about -1e-17 in place of 0.

    Raises:
        TypeError, ValueError: as in `cosine_surprise`.
    """
    _check_rows("queries", queries)
    dim = queries.shape[1]
    _check_statistics("queries", queries, mean=(mean, (dim,)), covariance=(covariance, (dim, dim)))
    return _backend("ensemble_moments", impl)(mean, covariance, queries, normalize=normalize)


def check_focal_options(gamma: float, epsilon: float, probability: str, delta: float) -> None:
    """Refuse options that `weighted_focal_loss` does not take, with a ValueError."""
    if probability not in PROBABILITIES:
        raise ValueError(f"probability must be one of {PROBABILITIES}, got {probability!r}")
    real = all(isinstance(x, Real) for x in (gamma, epsilon, delta))
    if not real or not gamma >= 0 or not 0 <= epsilon <= 1 or not 0 < delta < 1:
        raise ValueError(f"gamma >= 0, 0 <= epsilon <= 1, 0 < delta < 1 must hold: {gamma=}, {epsilon=}, {delta=}")


def weighted_focal_loss(
    keys: Tensor,
    queries: Tensor,
    positive: Tensor,
    *,
    weight: Tensor | None = None,
    gamma: float = 1.0,
    epsilon: float = 0.05,
    probability: str = "softplus",
    delta: float = 1e-10,
    balanced: bool = True,
    impl: str = "auto",
) -> tuple[Tensor, Tensor]:
    """The weighted focal loss of every document with every label, and the plain cross-entropy beside it.

    Args:
        keys: (B, d) floating: the documents.
        queries: (m, d) floating: the labels.
        positive: (B, m) bool, True where the label is right; a row may have several, or none.
        weight: (B,) of the documents; None counts each once. It is not divided by its sum, so that the mean over
            parts of a batch is that over the whole.
        gamma: of the focal factor; 0 gives the cross-entropy.
        epsilon: target of the negative pairs, 0 to 1.
        probability: p of a cosine. "relu": max(0, cos + delta), the paper's, which gives no gradient to a right pair
            with negative cosine. "softplus": log(1 + e^(20 cos)) / 20, nearly the same above 0.15, with a slope
            everywhere.
        delta: of "relu".
        balanced: half of a document's mean for its right labels, half for the others; False averages over all pairs
            alike, as the paper does.
        impl: "auto" (the op, whose gradient has no gradient) or "reference" (autograd, for higher derivatives).

    Returns:
        loss: () the mean, float32 (float64 for float64 input), differentiable in keys and queries.
        cross_entropy: () the mean of -i log p - (1 - i) log(1 - p) without `weight` and without gradient.
        No pairs give 0.

    Raises:
        TypeError: keys or queries are not floating, or `positive` is not boolean.
        ValueError: shapes, devices or options do not fit.
        RuntimeError: a second derivative is taken with impl="auto".

    References: paper section 3.2, equations of i, FL and l.
    """
    _check_rows("keys", keys)
    _check_rows("queries", queries)
    (n, d), (m, other) = keys.shape, queries.shape
    if d != other:
        raise ValueError(f"keys have {d} dimensions but queries have {other}")
    _check_tensor("positive", positive)
    if positive.dtype != torch.bool:
        raise TypeError(f"positive must be boolean, got {positive.dtype}")
    if positive.shape != (n, m):
        raise ValueError(f"positive must have shape {(n, m)}, got {tuple(positive.shape)}")
    if weight is not None:
        _check_tensor("weight", weight)
        if weight.shape != (n,):
            raise ValueError(f"weight must have shape ({n},), one for each document, got {tuple(weight.shape)}")
        weight = weight.detach().to(compute_dtype(torch.promote_types(keys.dtype, queries.dtype)))
    for name, x in (("queries", queries), ("positive", positive), ("weight", weight)):
        if x is not None and x.device != keys.device:
            raise ValueError(f"keys are on {keys.device} but {name} is on {x.device}")
    check_focal_options(gamma, epsilon, probability, delta)
    options: dict[str, Any] = {
        "gamma": gamma,
        "epsilon": epsilon,
        "probability": probability,
        "delta": delta,
        "balanced": balanced,
    }
    # the op's own reference has its gradient written out; autograd differentiates this one
    if impl == "reference" or is_transformed():
        return ref.focal_loss(keys, queries, positive, weight, **options)
    return _backend("weighted_focal_loss", impl)(keys, queries, positive, weight, **options)
