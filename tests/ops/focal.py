"""The focal loss in NumPy's float64, for the kernels' inner pieces."""

import numpy as np


def focal(cosines, positive, weight, gamma, epsilon, delta, softplus, balanced):
    """Slopes (n, m) by the chain rule, mean loss and cross-entropy, for p inside (0, 1)."""
    return focal_and_terms(cosines, positive, weight, gamma, epsilon, delta, softplus, balanced)[:3]


def focal_and_terms(cosines, positive, weight, gamma, epsilon, delta, softplus, balanced):
    """The same, and the sum of the absolute terms of each slope, which have both signs."""
    n, m = cosines.shape
    x = 20 * cosines
    p = np.logaddexp(0, x) / 20 if softplus else cosines + delta
    dp = 1 / (1 + np.exp(-x)) if softplus else np.ones_like(p)
    i = np.where(positive, 1, epsilon)
    right, wrong = -i * np.log(p), -(1 - i) * np.log1p(-p)
    loss = (1 - p) ** gamma * right + p**gamma * wrong
    down = gamma * (1 - p) ** (gamma - 1) * right + (1 - p) ** gamma * i / p
    up = gamma * p ** (gamma - 1) * wrong + p**gamma * (1 - i) / (1 - p)
    share = np.full((n, m), 1 / (n * m))
    if balanced:
        count = positive.sum(1, keepdims=True)
        kinds = (count > 0) + (count < m).astype(int)
        share = 1 / (n * kinds * np.where(positive, count, m - count))
    own = share * weight[:, None]
    slopes, terms = ((up + sign * down) * dp * own for sign in (-1, 1))
    return slopes, (loss * own).sum(), ((right + wrong) * share).sum(), terms


def case(n, m, seed, dtype):
    """Cosines away from the ends, targets with rows of none and of all, weights."""
    rng = np.random.default_rng(seed)
    cosines = rng.uniform(-0.9, 0.95, (n, m)).astype(dtype)
    positive = rng.random((n, m)) < rng.choice([0, 0.3, 1], (n, 1))
    return cosines, positive, rng.random(n).astype(dtype)
