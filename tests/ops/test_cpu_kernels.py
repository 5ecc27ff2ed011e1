"""The inner pieces of the CPU op by themselves, for every instruction set of this processor (csrc/testing)."""

import math

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy import special

from surprise_hf import ops

from .focal import case, focal_and_terms

TYPES = {"f32": (np.float32, 3e-7), "f64": (np.float64, 1e-15)}
EXAMPLES = settings(max_examples=60, deadline=None)


@pytest.mark.parametrize("type_name", TYPES)
@given(z=st.lists(st.floats(-12, 40, width=32), min_size=1, max_size=70))
@EXAMPLES
def test_vector_normal_cdf(bodies, type_name, z):
    dtype, _ = TYPES[type_name]
    want = np.array([0.5 * math.erfc(-x / math.sqrt(2)) for x in z])
    single = dtype is np.float32
    tail = (np.array(z) < -2.5) | (not single)
    for features in bodies.cpu_sets():
        got = getattr(bodies, f"normal_cdf_vector_{type_name}")(features, np.array(z, dtype))
        np.testing.assert_allclose(got[tail], want[tail], rtol=5e-6 if single else 1e-13, atol=1e-37)
        np.testing.assert_allclose(got[~tail], want[~tail], rtol=0, atol=2e-7)


def test_vector_normal_cdf_on_normal_values(bodies):
    """Rounding the result to float32 alone is 1.7e-8."""
    z = np.random.default_rng(0).standard_normal(200_000).astype(np.float32)
    want = special.ndtr(z.astype(np.float64))
    for features in bodies.cpu_sets():
        got = bodies.normal_cdf_vector_f32(features, z)
        assert np.sqrt(np.mean((got - want) ** 2)) <= 2.4e-8, features


@pytest.mark.parametrize("type_name", TYPES)
@given(z=st.floats(-13, 13, width=32), others=st.lists(st.floats(-13, 13, width=32), min_size=15, max_size=15))
@EXAMPLES
def test_vector_normal_cdf_is_of_its_own_lane_alone(bodies, type_name, z, others):
    """Equal z tie to the last bit whatever stands beside them: one lane in the tail sends the vector another way."""
    dtype, _ = TYPES[type_name]
    for features in bodies.cpu_sets():
        cdf = getattr(bodies, f"normal_cdf_vector_{type_name}")
        assert cdf(features, np.array([z, *others], dtype))[0] == cdf(features, np.full(16, z, dtype))[0]


def test_vector_normal_cdf_at_the_ends(bodies):
    z = np.array([-np.inf, -1e30, 0.0, 1e30, np.inf, np.nan], np.float32)
    for features in bodies.cpu_sets():
        got = bodies.normal_cdf_vector_f32(features, z)
        np.testing.assert_array_equal(got, np.array([0, 0, 0.5, 1, 1, np.nan], np.float32))


@given(z=st.lists(st.floats(-13, 13, width=32), min_size=2, max_size=40))
@EXAMPLES
def test_vector_normal_cdf_never_decreases(bodies, z):
    z = np.sort(np.array(z, np.float32))
    for features in bodies.cpu_sets():
        got = bodies.normal_cdf_vector_f32(features, z)
        # neighbours closer than its rounding may change places by that rounding, no further
        assert (np.diff(got) >= -5e-6 * got[1:]).all()


@pytest.mark.parametrize("type_name", TYPES)
@given(
    n=st.integers(1, 210),
    m=st.integers(1, 110),
    d=st.integers(1, 420),
    normalize=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
    data=st.data(),
)
@EXAMPLES
def test_tile_product(bodies, type_name, n, m, d, normalize, seed, data):
    """Any part of the rows gets its similarities; no other row is written to."""
    dtype, eps = TYPES[type_name]
    random = np.random.default_rng(seed)
    keys, queries = random.standard_normal((n, d)).astype(dtype), random.standard_normal((m, d)).astype(dtype)
    begin = data.draw(st.integers(0, n - 1))
    end = data.draw(st.integers(begin + 1, n))
    k, q = keys.astype(np.float64), queries.astype(np.float64)
    if normalize:
        k, q = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (k, q))
    want = k @ q.T
    scale = 1.0 if normalize else np.linalg.norm(k, axis=1).max() * np.linalg.norm(q, axis=1).max()
    for features in bodies.cpu_sets():
        got = getattr(bodies, f"tile_product_{type_name}")(features, keys, queries, begin, end, normalize)
        np.testing.assert_allclose(got[begin:end], want[begin:end], rtol=0, atol=4 * eps * scale)
        assert np.isnan(got[:begin]).all()
        assert np.isnan(got[end:]).all()


@pytest.mark.parametrize("type_name", TYPES)
@pytest.mark.parametrize("m", range(1, 17))
def test_few_queries_of_long_rows(bodies, type_name, m):
    """Whole blocks of rows against queries that the first-level cache does not hold together."""
    dtype, eps = TYPES[type_name]
    random = np.random.default_rng(m)
    keys, queries = (random.standard_normal((n, 1300)).astype(dtype) for n in (200, m))
    k, q = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (keys.astype(np.float64), queries.astype(np.float64)))
    for features in bodies.cpu_sets():
        got = getattr(bodies, f"tile_product_{type_name}")(features, keys, queries, 0, 200, True)
        np.testing.assert_allclose(got, k @ q.T, rtol=0, atol=4 * eps)


@pytest.mark.parametrize("type_name", ["bf16", *TYPES])
@given(
    n=st.integers(1, 210),
    m=st.integers(1, 110),
    d=st.integers(1, 14).map(lambda x: 32 * x) | st.integers(1, 420),
    scaled=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
    data=st.data(),
)
@EXAMPLES
def test_search_offers_what_is_above_the_bar(bodies, type_name, n, m, d, scaled, seed, data):
    """Those rows and no others, whatever lies behind the last; bfloat16 whole steps wide has a form of its own."""
    dtype, eps = TYPES.get(type_name, (np.float32, 2.0**-24 * d))
    random = np.random.default_rng(seed)
    keys, queries = random.standard_normal((n, d)).astype(dtype), random.standard_normal((m, d)).astype(dtype)
    passed = keys, queries
    if type_name == "bf16":
        passed = [(x.view(np.uint32) >> 16).astype(np.uint16) for x in passed]
        keys, queries = ((x.astype(np.uint32) << 16).view(np.float32) for x in passed)
    margin = random.random(m).astype(dtype)
    scale = random.random(n).astype(dtype) + dtype(0.5) if scaled else None
    begin = data.draw(st.integers(0, n - 1))
    end = data.draw(st.integers(begin + 1, n))
    want = (queries.astype(np.float64) @ keys.astype(np.float64).T + margin[:, None]) * (
        1.0 if scale is None else scale
    )
    bar = np.quantile(want, 0.9, axis=1).astype(dtype)
    longest = np.linalg.norm(keys, axis=1).max() * np.linalg.norm(queries, axis=1).max()
    wide = 6 * eps * 1.5 * (longest + 1)  # the margin, below 1, is rounded with the product
    for features in bodies.cpu_sets():
        offered = getattr(bodies, f"search_{'f64' if dtype is np.float64 else 'f32'}")(
            features, *passed, margin, scale, bar, begin, end
        )
        got = np.full(want.shape, -np.inf)
        for query, row, value in offered:
            assert got[query, row] == -np.inf
            got[query, row] = value
        assert (got[:, :begin] == -np.inf).all()
        assert (got[:, end:] == -np.inf).all()
        here, there = want[:, begin:end], got[:, begin:end] > -np.inf
        assert there[here > bar[:, None] + wide].all()
        assert not there[here < bar[:, None] - wide].any()
        np.testing.assert_allclose(got[:, begin:end][there], here[there], rtol=0, atol=wide)


@given(d=st.integers(1, 420), seed=st.integers(0, 2**32 - 1))
@EXAMPLES
def test_halves_product(bodies, d, seed):
    random = np.random.default_rng(seed)
    row = (random.standard_normal(d) * 10.0 ** random.integers(-30, 30)).astype(np.float32)
    near, rest = (x.view(torch.int16).numpy() for x in ops.split_halves(torch.from_numpy(row)))
    query = random.standard_normal(d)
    want = row.astype(np.float64) @ query
    for features in bodies.cpu_sets():
        got = bodies.halves_product(features, near.view(np.uint16), rest, query)
        assert abs(got - want) <= 1e-15 * np.abs(row * query).sum()


@pytest.mark.parametrize("type_name", TYPES)
@given(
    n=st.integers(1, 20),
    m=st.integers(1, 70),
    gamma=st.sampled_from([0.0, 0.5, 1.0, 2.0, 3.7]),
    epsilon=st.floats(0, 1),
    softplus=st.booleans(),
    balanced=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
@example(n=1, m=1, gamma=2.0, epsilon=0.0, softplus=True, balanced=False, seed=443)
@example(n=1, m=1, gamma=2.0, epsilon=0.12109375, softplus=False, balanced=False, seed=10000000)
@EXAMPLES
def test_focal_rows(bodies, type_name, n, m, gamma, epsilon, softplus, balanced, seed):
    dtype, eps = TYPES[type_name]
    cosines, positive, weight = case(n, m, seed, dtype)
    cosines = cosines if softplus else np.abs(cosines) + dtype(0.02)
    options = (gamma, epsilon, 1e-10, softplus, balanced)
    *want, terms = focal_and_terms(cosines.astype(np.float64), positive, weight.astype(np.float64), *options)
    for features in bodies.cpu_sets():
        got = getattr(bodies, f"focal_{type_name}")(features, cosines, positive, weight, *options)
        # terms of both signs meet in a slope: it is as exact as the largest of them
        np.testing.assert_allclose(got[0], want[0], rtol=40 * eps, atol=40 * eps * terms.max())
        # p^gamma = e^(gamma log p), and log p, down to -23 with softplus, is rounded
        np.testing.assert_allclose(got[1:], want[1:], rtol=(10 + 5 * gamma) * eps)


def unit_gradient(rows, g):
    """The gradient of rows whose unit rows have the gradient g; zero rows have none."""
    length = np.linalg.norm(rows, axis=1, keepdims=True)
    unit = rows / np.where(length == 0, 1, length)
    return (g - unit * (g * unit).sum(1, keepdims=True)) * (length > 0), length


@pytest.mark.parametrize("type_name", TYPES)
@given(
    n=st.integers(1, 70),
    m=st.integers(1, 420),
    d=st.integers(1, 300),
    shares=st.integers(1, 3),
    scale=st.sampled_from([1e-30, 1.0, 1e30]),
    seed=st.integers(0, 2**32 - 1),
)
@EXAMPLES
def test_focal_gradient(bodies, type_name, n, m, d, shares, scale, seed):
    dtype, eps = TYPES[type_name]
    random = np.random.default_rng(seed)
    keys, queries, slope = (random.standard_normal(shape).astype(dtype) for shape in ((n, d), (m, d), (n, m)))
    keys[0], queries[-1] = 0, queries[-1] * dtype(scale)
    k, q, s = (x.astype(np.float64) for x in (keys, queries, slope))
    k_hat, q_hat = (x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-300) for x in (k, q))
    want = [unit_gradient(k, 2 * (s @ q_hat)), unit_gradient(q, 2 * (s.T @ k_hat))]
    for features in bodies.cpu_sets():
        got = getattr(bodies, f"focal_gradient_{type_name}")(features, keys, queries, slope, 2.0, shares)
        for rows, (times_length, length), depth in zip(got, want, (m, n), strict=True):
            error = rows * length - times_length
            assert np.abs(error).max() <= 20 * eps * depth**0.5 * np.abs(s).max(), features
