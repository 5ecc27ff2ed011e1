"""Fake (shape-only) implementations and gradients of the ops. Registered once, after the schemas exist.

Gradients, with hats for unit rows, psi = k^ . q^ and z = (psi - mu_q) / sigma_q over n keys:

    g_z   = G * dS/dz            (score: phi(z); z: 1; log_tail: -phi(z) / (1 - Phi(z)); cosine: G goes to psi itself)
    g_psi = g_z / sigma  +  (g_mu - sum_k g_z / sigma) / n  +  (g_sigma - sum_k g_z z / sigma) * z / n
    g_k   = (g_k^ - k^ (k^ . g_k^)) / |k|       with g_k^ = g_psi q^   (and the same for the queries)

The second and third terms of g_psi are the path through the moments; they are absent where the moments are inputs.
Columns with sigma = 0 are constant and get no gradient. Everything here is differentiable torch, so second
derivatives follow.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import forward_ad

from . import _reference as ref


@ref.full_precision
def _psi(keys: Tensor, queries: Tensor, normalize: bool) -> tuple[Tensor, Tensor, Tensor]:
    k_hat, q_hat = ref.unit_rows(keys, normalize), ref.unit_rows(queries, normalize)
    return k_hat, q_hat, k_hat @ q_hat.T


def _grad_z(z: Tensor, grad: Tensor, output: str) -> Tensor:
    if output == "z":
        return grad
    if output == "score":
        return grad * torch.exp(-0.5 * z * z) * (1 / math.sqrt(2 * math.pi))
    # hazard phi(z) / (1 - Phi(z)) = sqrt(2/pi) / erfcx(z/sqrt 2), finite where both parts underflow
    return -grad * math.sqrt(2 / math.pi) / torch.special.erfcx(z * math.sqrt(0.5))


def _inverse(std: Tensor) -> Tensor:
    """1 / sigma, 0 where sigma = 0: such a query has no gradient."""
    alive = std > 0
    return torch.where(alive, 1 / torch.where(alive, std, torch.ones_like(std)), torch.zeros_like(std))


def _split(
    psi: Tensor, mean: Tensor, std: Tensor, grad: Tensor | None, output: str
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """(g_psi at fixed moments, its column sums = -g_mu, -g_sigma, z, 1/sigma), sigma = 0 columns all zero."""
    dtype = psi.dtype
    inv = _inverse(std)
    z = ((psi.to(torch.float64) - mean) * inv).to(dtype)
    if grad is None:
        zero = torch.zeros_like(mean)
        return torch.zeros_like(psi), zero, zero, z, inv
    if output == "cosine":
        zero = torch.zeros_like(mean)
        return grad, zero, zero, z, inv
    g = _grad_z(z, grad, output) * inv.to(dtype)
    return g, g.to(torch.float64).sum(dim=0), (g * z).to(torch.float64).sum(dim=0), z, inv


def _through_moments(g_psi: Tensor, z: Tensor, inv: Tensor, g_mean: Tensor, g_std: Tensor) -> Tensor:
    n = max(z.shape[0], 1)
    g_std = torch.where(inv > 0, g_std, torch.zeros_like(g_std))
    return g_psi + ((g_mean + g_std * z.to(torch.float64)) / n).to(g_psi.dtype)


def _or_zero(grad: Tensor | None, like: Tensor) -> Tensor:
    return torch.zeros_like(like) if grad is None else grad


@ref.full_precision
def _backward_pairs(ctx, g_psi, keys, queries, k_hat, q_hat, normalize):
    need_k, need_q = ctx.needs_input_grad[0], ctx.needs_input_grad[1]
    g_keys = ref.grad_rows(keys, k_hat, g_psi @ q_hat, normalize) if need_k else None
    g_queries = ref.grad_rows(queries, q_hat, g_psi.T @ k_hat, normalize) if need_q else None
    return g_keys, g_queries


# --- cosine_surprise ---------------------------------------------------------------------------------------------


def _cosine_surprise_fake(keys, queries, *, normalize=True, output="score"):
    dtype = ref.compute_dtype(keys.dtype)
    m = queries.shape[0]
    return (
        keys.new_empty((keys.shape[0], m), dtype=dtype),
        keys.new_empty((m,), dtype=torch.float64),
        keys.new_empty((m,), dtype=torch.float64),
    )


def _cosine_surprise_setup(ctx, inputs, keyword_only_inputs, output):
    keys, queries = inputs
    _, mean, std = output
    ctx.save_for_backward(keys, queries, mean, std)
    ctx.normalize, ctx.output = keyword_only_inputs["normalize"], keyword_only_inputs["output"]


def _cosine_surprise_backward(ctx, grad, g_mean, g_std):
    keys, queries, mean, std = ctx.saved_tensors
    k_hat, q_hat, psi = _psi(keys, queries, ctx.normalize)
    g_psi, from_mean, from_std, z, inv = _split(psi, mean, std, grad, ctx.output)
    g_mean, g_std = _or_zero(g_mean, mean) - from_mean, _or_zero(g_std, std) - from_std
    g_psi = _through_moments(g_psi, z, inv, g_mean, g_std)
    return _backward_pairs(ctx, g_psi, keys, queries, k_hat, q_hat, ctx.normalize)


# --- cosine_moments ----------------------------------------------------------------------------------------------


def _cosine_moments_fake(ensemble, queries, *, normalize=True):
    m = queries.shape[0]
    return (
        ensemble.new_empty((m,), dtype=torch.float64),
        ensemble.new_empty((m,), dtype=torch.float64),
    )


def _cosine_moments_setup(ctx, inputs, keyword_only_inputs, output):
    ctx.save_for_backward(*inputs, *output)
    ctx.normalize = keyword_only_inputs["normalize"]


def _cosine_moments_backward(ctx, g_mean, g_std):
    ensemble, queries, mean, std = ctx.saved_tensors
    k_hat, q_hat, psi = _psi(ensemble, queries, ctx.normalize)
    g_psi, _, _, z, inv = _split(psi, mean, std, None, "z")
    g_psi = _through_moments(g_psi, z, inv, _or_zero(g_mean, mean), _or_zero(g_std, std))
    return _backward_pairs(ctx, g_psi, ensemble, queries, k_hat, q_hat, ctx.normalize)


# --- surprise_from_moments ---------------------------------------------------------------------------------------


def _from_moments_fake(keys, queries, mean, std, *, normalize=True, output="score"):
    return keys.new_empty((keys.shape[0], queries.shape[0]), dtype=ref.compute_dtype(keys.dtype))


def _from_moments_setup(ctx, inputs, keyword_only_inputs, output):
    ctx.save_for_backward(*inputs)
    ctx.normalize, ctx.output = keyword_only_inputs["normalize"], keyword_only_inputs["output"]


def _from_moments_backward(ctx, grad):
    keys, queries, mean, std = ctx.saved_tensors
    k_hat, q_hat, psi = _psi(keys, queries, ctx.normalize)
    g_psi, from_mean, from_std, _, _ = _split(psi, mean, std, grad, ctx.output)
    g_keys, g_queries = _backward_pairs(ctx, g_psi, keys, queries, k_hat, q_hat, ctx.normalize)
    return g_keys, g_queries, -from_mean, -from_std


# --- surprise_topk -----------------------------------------------------------------------------------------------


def _topk_fake(keys, queries, mean, std, k, *, normalize=True, output="score"):
    shape = (keys.shape[0], k)
    return keys.new_empty(shape, dtype=ref.compute_dtype(keys.dtype)), keys.new_empty(shape, dtype=torch.int64)


def _topk_setup(ctx, inputs, keyword_only_inputs, output):
    keys, queries, mean, std, _ = inputs
    _, indices = output
    ctx.mark_non_differentiable(indices)
    ctx.save_for_backward(keys, queries, mean, std, indices)
    ctx.normalize, ctx.output = keyword_only_inputs["normalize"], keyword_only_inputs["output"]


@ref.full_precision
def _topk_backward(ctx, grad, _):
    keys, queries, mean, std, indices = ctx.saved_tensors
    k_hat, q_hat = ref.unit_rows(keys, ctx.normalize), ref.unit_rows(queries, ctx.normalize)
    picked = q_hat[indices]
    psi = (k_hat.unsqueeze(1) * picked).sum(dim=2)  # einsum has no rule for batches of gradients
    inv = _inverse(std)
    z = ((psi.to(torch.float64) - mean[indices]) * inv[indices]).to(psi.dtype)
    if ctx.output == "cosine":
        g_psi, g_mean, g_std = grad, torch.zeros_like(mean), torch.zeros_like(std)
    else:
        g_psi = _grad_z(z, grad, ctx.output) * inv[indices].to(psi.dtype)
        flat, wide = indices.reshape(-1), g_psi.to(torch.float64)
        g_mean = torch.zeros_like(mean).index_add(0, flat, -wide.reshape(-1))
        g_std = torch.zeros_like(std).index_add(0, flat, -(wide * z).reshape(-1))
    g_k = (g_psi.unsqueeze(2) * picked).sum(dim=1)
    pairs = (g_psi.unsqueeze(2) * k_hat.unsqueeze(1)).reshape(-1, k_hat.shape[1])
    g_q = torch.zeros_like(q_hat).index_add(0, indices.reshape(-1), pairs)
    return (
        ref.grad_rows(keys, k_hat, g_k, ctx.normalize),
        ref.grad_rows(queries, q_hat, g_q, ctx.normalize),
        g_mean,
        g_std,
        None,
    )


def _search_fake(keys, queries, margin, scale, k, *, upper=None):
    shape = (queries.shape[0], k)
    return keys.new_empty(shape, dtype=ref.compute_dtype(keys.dtype)), keys.new_empty(shape, dtype=torch.int64)


def _gathered_fake(near, rest, rows, queries):
    return queries.new_empty(rows.shape)


def _ensemble_update_fake(count, mean, scatter, batch, *, normalize=True, exact=False):
    return None


def _ensemble_moments_fake(mean, covariance, queries, *, normalize=True):
    shape = (queries.shape[0],)
    return queries.new_empty(shape, dtype=torch.float64), queries.new_empty(shape, dtype=torch.float64)


def _ensemble_moments_setup(ctx, inputs, keyword_only_inputs, output):
    ctx.save_for_backward(*inputs)
    ctx.normalize = keyword_only_inputs["normalize"]


def _ensemble_moments_backward(ctx, g_mean, g_var):
    """g_m = sum g_mu q^, g_C = sum g_var q^ q^T, g_q^ = g_mu m + 2 g_var C q^ (C symmetric)."""
    mean, covariance, queries = ctx.saved_tensors
    unit = ref.unit_rows(queries.to(torch.float64), ctx.normalize)
    g_mean, g_var = _or_zero(g_mean, unit[:, 0]), _or_zero(g_var, unit[:, 0])
    g_unit = g_mean[:, None] * mean + g_var[:, None] * (unit @ (covariance + covariance.T))
    return g_mean @ unit, (g_var[:, None] * unit).T @ unit, ref.grad_rows(queries, unit, g_unit, ctx.normalize)


# --- weighted_focal_loss -----------------------------------------------------------------------------------------


def _focal_fake(keys, queries, positive, weight=None, **_):
    dtype = ref.compute_dtype(torch.promote_types(keys.dtype, queries.dtype))
    return tuple(keys.new_empty(shape, dtype=dtype) for shape in ((), (), (keys.shape[0], queries.shape[0])))


def _focal_setup(ctx, inputs, keyword_only_inputs, output):
    keys, queries, *_ = inputs
    _, cross_entropy, slope = output
    ctx.mark_non_differentiable(cross_entropy, slope)
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(keys, queries, slope)


class _FocalGradient(torch.autograd.Function):
    """The gradient under create_graph=True: usable, but not differentiable itself."""

    @staticmethod
    def forward(ctx, backward, options, *tensors):  # noqa: ARG004
        return backward(*tensors, **options)

    @staticmethod
    def backward(ctx, *_):  # noqa: ARG004
        raise RuntimeError(
            "the gradient of weighted_focal_loss has no gradient of its own; for second derivatives call it with"
            " impl='reference'"
        )


def _focal_backward(backward, ctx, grad):
    """Gradients of keys and queries, where needed; the pairs and their weights have none."""
    if grad is None:
        return None, None, None, None
    need_keys, need_queries, *_ = ctx.needs_input_grad
    options = {"need_keys": need_keys, "need_queries": need_queries}
    if torch.is_grad_enabled():
        keys, queries = _FocalGradient.apply(backward, options, grad, *ctx.saved_tensors)
    else:
        keys, queries = backward(grad, *ctx.saved_tensors, **options)
    return keys if need_keys else None, queries if need_queries else None, None, None


def _focal_gradient_fake(grad, keys, queries, slope, *, need_keys=True, need_queries=True):
    return (
        keys.new_empty((keys.shape[0] if need_keys else 0, keys.shape[1])),
        queries.new_empty((queries.shape[0] if need_queries else 0, queries.shape[1])),
    )


# --- calls -------------------------------------------------------------------------------------------------------


class Rule(NamedTuple):
    """How an op's gradient is taken: what is kept of a call, and the gradients of its tensors."""

    setup: Callable[..., None]
    backward: Callable[..., tuple[Tensor | None, ...]]
    results: int | None = None  # of the op's outputs; the others are for the gradient alone


def shortest_way(op: Callable[..., Any], rule: Rule) -> Callable[..., Any]:
    """`op` with its gradient, past the dispatcher's Python, which asks for gradients in every call.

    A 4 x 4 call takes two thirds of the time, with gradients half. torch.compile takes the op itself.
    """

    class Direct(torch.autograd.Function):
        """The op under its rule; its options stand behind the tensors."""

        @staticmethod
        def forward(ctx, *args):
            *inputs, options = args
            with torch._C._AutoDispatchBelowAutograd():  # noqa: SLF001
                output = op(*inputs, **options)
            rule.setup(ctx, inputs, options, output)
            return output[: rule.results] if isinstance(output, tuple) else output

        @staticmethod
        def backward(ctx, *grads):
            return *rule.backward(ctx, *grads), None

    def call(*args: Any, **options: Any) -> Any:
        if torch.compiler.is_compiling():
            output = op(*args, **options)
        elif torch.is_grad_enabled() and any(isinstance(x, Tensor) and x.requires_grad for x in args):
            return Direct.apply(*args, options)
        else:
            with torch._C._AutoDispatchBelowAutograd():  # noqa: SLF001
                output = op(*args, **options)
        return output[: rule.results] if isinstance(output, tuple) else output

    return call


def is_transformed() -> bool:
    """May a derivative be taken that plain torch alone gives: in forward mode, or by torch.func, through vmap too?"""
    if torch.compiler.is_compiling():
        return False
    nested = torch.is_grad_enabled() and torch._C._functorch.peek_interpreter_stack() is not None  # noqa: SLF001
    return nested or forward_ad._current_level >= 0  # noqa: SLF001


CALLS: dict[str, Callable[..., Any]] = {}  # the ops that have gradients, once they are registered


def register(namespace: str) -> None:
    """Attach fakes and gradients to the schemas of `torch.ops.<namespace>`."""
    library = torch.library
    ops = getattr(torch.ops, namespace)

    focal_gradient = ops.weighted_focal_loss_backward.default

    def focal_backward(ctx, grad, *_):
        return _focal_backward(focal_gradient, ctx, grad)

    for name, fake, rule in (
        ("cosine_surprise", _cosine_surprise_fake, Rule(_cosine_surprise_setup, _cosine_surprise_backward)),
        ("cosine_moments", _cosine_moments_fake, Rule(_cosine_moments_setup, _cosine_moments_backward)),
        ("surprise_from_moments", _from_moments_fake, Rule(_from_moments_setup, _from_moments_backward)),
        ("surprise_topk", _topk_fake, Rule(_topk_setup, _topk_backward)),
        ("ensemble_moments", _ensemble_moments_fake, Rule(_ensemble_moments_setup, _ensemble_moments_backward)),
        ("weighted_focal_loss", _focal_fake, Rule(_focal_setup, focal_backward, results=2)),
    ):
        library.register_fake(f"{namespace}::{name}", fake)
        library.register_autograd(f"{namespace}::{name}", rule.backward, setup_context=rule.setup)
        CALLS[name] = shortest_way(getattr(ops, name).default, rule)
    library.register_fake(f"{namespace}::search_topk", _search_fake)
    library.register_fake(f"{namespace}::gathered_products", _gathered_fake)
    library.register_fake(f"{namespace}::ensemble_update", _ensemble_update_fake)
    library.register_fake(f"{namespace}::weighted_focal_loss_backward", _focal_gradient_fake)
