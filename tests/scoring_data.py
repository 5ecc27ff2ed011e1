"""Rows, options and float64 truth for the tests of the score."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.special
import torch
from hypothesis import strategies as st
from torch import Tensor

ESTIMATORS = ("gaussian", "quantile", "empirical")


SIMILARITIES = ("cosine", "dot", "euclidean", "manhattan")


WEIGHTS = (0.0, 0.3, 0.9, 1.0)


estimators = pytest.mark.parametrize("estimator", ESTIMATORS)


similarities = pytest.mark.parametrize("similarity", SIMILARITIES)


weights = pytest.mark.parametrize("weight", WEIGHTS)


def rows(n: int, dim: int = 12, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, dim, generator=generator, dtype=torch.float64).add(0.4).to(dtype)


def true_psi(keys: Tensor, queries: Tensor, similarity: str) -> np.ndarray:
    k, q = keys.double().numpy(), queries.double().numpy()
    if similarity == "cosine":
        return (k / np.linalg.norm(k, axis=1, keepdims=True)) @ (q / np.linalg.norm(q, axis=1, keepdims=True)).T
    if similarity == "dot":
        return k @ q.T
    gap = k[:, None] - q[None]
    return -np.sqrt((gap**2).sum(-1)) if similarity == "euclidean" else -np.abs(gap).sum(-1)


def true_surprise(psi: np.ndarray, context: np.ndarray, estimator: str) -> np.ndarray:
    """The three estimates straight from their definitions, in float64."""
    if estimator == "empirical":
        return (context[:, None, :] < psi[None]).mean(axis=0)
    if estimator == "gaussian":
        mean, std = context.mean(axis=0), context.std(axis=0)
    else:
        mean = np.percentile(context, 50, axis=0)
        std = np.percentile(context, 84.13, axis=0) - mean
    return 0.5 * (1 + scipy.special.erf((psi - mean) / (math.sqrt(2) * std)))


def true_hat(psi: np.ndarray, context: np.ndarray, low: float, high: float) -> np.ndarray:
    """Design section 1: x scaled to the anchors, half-means with the median element counted half in each."""
    x, flat = (psi - low) / (high - low), np.sort((context.ravel() - low) / (high - low))
    doubled = np.repeat(flat, 2)  # every element twice, so that the median one can be split
    t, a, b = np.median(flat), doubled[: len(flat)].mean(), doubled[len(flat) :].mean()
    d = a - t * (a + b - 1)
    return np.where(x <= t, x * (1 - b) / d, (a * x + d - a) / d)


vectors = st.builds(
    lambda n, m, dim, seed, shift, spread: (
        rows(n, dim, seed) * spread + shift,
        rows(m, dim, seed + 1) * spread + shift,
    ),
    n=st.integers(2, 40),
    m=st.integers(1, 5),
    dim=st.integers(2, 9),
    seed=st.integers(0, 10_000),
    shift=st.sampled_from([0.0, 3.0, -0.5]),
    spread=st.sampled_from([1.0, 0.05]),
)


options = st.fixed_dictionaries(
    {
        "weight": st.sampled_from([None, *WEIGHTS]),
        "estimator": st.sampled_from(ESTIMATORS),
        "similarity": st.sampled_from(SIMILARITIES),
    }
)
