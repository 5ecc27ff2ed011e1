"""The definition of every op in plain torch.

This file is what the compiled kernels are tested against, what answers on devices without a kernel, and what
`impl="reference"` calls. It imports torch alone.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

OUTPUTS = ("cosine", "z", "score", "log_tail")


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """float64 stays float64; float32, float16 and bfloat16 are computed and returned in float32."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def unit_rows(x: Tensor, normalize: bool = True) -> Tensor:
    """L2-normalised rows in the compute dtype; a zero row stays zero.

    The row is first divided by its largest magnitude so that the squares neither overflow nor vanish.
    """
    x = x.to(compute_dtype(x.dtype))
    if not normalize or x.shape[1] == 0:
        return x
    peak = x.detach().abs().amax(dim=1, keepdim=True)
    x = x / torch.where(peak > 0, peak, torch.ones_like(peak))
    squares = (x * x).sum(dim=1, keepdim=True)
    zero = squares == 0
    return x / torch.where(zero, torch.ones_like(squares), squares).sqrt()


def sigma_floor(mean: Tensor, eps: float) -> Tensor:
    """8 eps max(1, |mean|): a standard deviation at or below it is rounding noise and counts as 0 (design fact 4)."""
    return 8 * eps * mean.abs().clamp(min=1.0)


def moments(psi: Tensor) -> tuple[Tensor, Tensor]:
    """Population mean and standard deviation of each column of `psi` (n, m), in float64: two tensors (m,)."""
    n, m = psi.shape
    if n == 0:
        zeros = torch.zeros(m, dtype=torch.float64, device=psi.device)
        return zeros, zeros.clone()
    wide = psi.to(torch.float64)
    mean = wide.mean(dim=0)
    var = (wide - mean).square().mean(dim=0)
    dead = var.detach() <= sigma_floor(mean.detach(), torch.finfo(psi.dtype).eps).square()
    std = torch.where(dead, torch.zeros_like(var), torch.where(dead, torch.ones_like(var), var).sqrt())
    return mean, std


def standardize(psi: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """z = (psi - mean) / std; where std = 0: -inf below the mean, 0 at it (within rounding), +inf above."""
    gap = psi.to(torch.float64) - mean
    dead = std == 0
    z = gap / torch.where(dead, torch.ones_like(std), std)
    edge = torch.where(gap.abs() <= sigma_floor(mean, torch.finfo(psi.dtype).eps), 0.0, torch.sign(gap) * math.inf)
    return torch.where(dead, edge, z).to(psi.dtype)


def from_z(psi: Tensor, z: Tensor, output: str) -> Tensor:
    """The requested quantity from the similarity and z, in the dtype of `z`."""
    if output == "cosine":
        return psi
    if output == "z":
        return z
    if output == "score":
        return 0.5 * torch.erfc(z * -math.sqrt(0.5))  # torch.special.ndtr cancels below z = -8
    if output == "log_tail":
        # torch.special.log_ndtr has no NaN at -inf but loses digits in float32: compute in float64
        return torch.special.log_ndtr(-z.to(torch.float64)).to(z.dtype)
    raise ValueError(f"output must be one of {OUTPUTS}, got {output!r}")


def cosine_surprise(
    keys: Tensor, queries: Tensor, normalize: bool = True, output: str = "score"
) -> tuple[Tensor, Tensor, Tensor]:
    psi = unit_rows(keys, normalize) @ unit_rows(queries, normalize).T
    mean, std = moments(psi)
    return from_z(psi, standardize(psi, mean, std), output), mean, std


def cosine_moments(ensemble: Tensor, queries: Tensor, normalize: bool = True) -> tuple[Tensor, Tensor]:
    return moments(unit_rows(ensemble, normalize) @ unit_rows(queries, normalize).T)


def surprise_from_moments(
    keys: Tensor, queries: Tensor, mean: Tensor, std: Tensor, normalize: bool = True, output: str = "score"
) -> Tensor:
    psi = unit_rows(keys, normalize) @ unit_rows(queries, normalize).T
    return from_z(psi, standardize(psi, mean, std), output)


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
    z = standardize(psi, mean, std)
    # a stable sort puts the lower index first among equals, as the kernels do
    order = z.detach().argsort(dim=1, descending=True, stable=True)[:, :k]
    return from_z(psi.gather(1, order), z.gather(1, order), output), order


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


def ensemble_moments(
    mean: Tensor, covariance: Tensor, queries: Tensor, normalize: bool = True
) -> tuple[Tensor, Tensor]:
    """mu = m . q^ and sigma^2 = q^ . C q^ (design fact 1); rounding may leave a variance just below 0."""
    unit = unit_rows(queries.to(torch.float64), normalize)
    return unit @ mean, ((unit @ covariance) * unit).sum(dim=1)
