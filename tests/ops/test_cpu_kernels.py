"""The inner pieces of the CPU op by themselves, for every instruction set of this processor (csrc/testing)."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

TYPES = {"f32": (np.float32, 3e-7), "f64": (np.float64, 1e-15)}
EXAMPLES = settings(max_examples=60, deadline=None)


@pytest.mark.parametrize("type_name", TYPES)
@given(z=st.lists(st.floats(-12, 40, width=32), min_size=1, max_size=70))
@EXAMPLES
def test_vector_normal_cdf(bodies, type_name, z):
    dtype, _ = TYPES[type_name]
    want = [0.5 * math.erfc(-x / math.sqrt(2)) for x in z]
    for features in bodies.cpu_sets():
        got = getattr(bodies, f"normal_cdf_vector_{type_name}")(features, np.array(z, dtype))
        np.testing.assert_allclose(got, want, rtol=1e-13 if dtype is np.float64 else 5e-6, atol=1e-37)


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
    scale = 1.0 if normalize else d
    for features in bodies.cpu_sets():
        got = getattr(bodies, f"tile_product_{type_name}")(features, keys, queries, begin, end, normalize)
        np.testing.assert_allclose(got[begin:end], want[begin:end], rtol=0, atol=4 * eps * scale)
        assert np.isnan(got[:begin]).all()
        assert np.isnan(got[end:]).all()
