"""The bodies of the CUDA kernels, run on the host thread by thread, against float64 NumPy.

csrc/testing/fiber_block.h plays the block: barriers, warp exchanges, asynchronous copies, the tensor core's fragment
layouts and its coarse sums. A race in shared memory is an error there, in whatever order the threads run.
"""

import math
import runpy
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special

from .focal import case, focal

TYPES = ("float32", "float16", "bfloat16")
# widths of every product shape, tails of rows, columns and chunks, several row tiles
SHAPES = [(1, 1, 1), (3, 2, 5), (17, 8, 64), (130, 9, 36), (129, 31, 200), (20, 50, 72), (140, 77, 33), (300, 130, 40)]


def encode(x: np.ndarray, dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """The bits the kernel reads, and the numbers they stand for."""
    if dtype == "float32":
        bits = np.ascontiguousarray(x, np.float32)
        return bits, bits.astype(np.float64)
    if dtype == "float16":
        half = np.ascontiguousarray(x, np.float16)
        return half.view(np.uint16), half.astype(np.float64)
    bits = (np.ascontiguousarray(x, np.float32).view(np.uint32) >> 16).astype(np.uint16)  # rounded toward zero
    return bits, (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


def tolerance(dtype: str, d: int) -> float:
    """Of a cosine. The 16-bit types have one sum, which every 16 columns cut by up to 18 units of 2^-24."""
    return 5e-7 if dtype == "float32" else 5e-7 + 18 * 2**-24 * d / 16


def rows(n: int, d: int, seed: int) -> np.ndarray:
    """Crowded vectors of different lengths."""
    rng = np.random.default_rng(seed)
    common = np.random.default_rng(d).standard_normal(d)
    return (2 * common + rng.standard_normal((n, d))) * np.exp(rng.standard_normal((n, 1)))


def cosines(keys: np.ndarray, queries: np.ndarray) -> np.ndarray:
    def unit(x):
        norm = np.linalg.norm(x, axis=1, keepdims=True)
        return x / np.where(norm == 0, 1, norm)

    return unit(keys) @ unit(queries).T


def pair(n: int, m: int, d: int, dtype: str):
    (k_bits, k), (q_bits, q) = encode(rows(n, d, 1), dtype), encode(rows(m, d, 2), dtype)
    return k_bits, q_bits, cosines(k, q)


# --- the host's block ----------------------------------------------------------------------------------------------

MISUSE = {
    "read unwritten": "read before it is written",
    "outside": "outside the 1024 bytes",
    "before the start": "outside the 1024 bytes",
    "misaligned": "no multiple of 8",
    "two writers": "races with the write",
    "no barrier": "races|before it is written",
    "write after read": "races with the read",
    "misaligned copy": "copy is not aligned",
    "copy read early": r"copy of thread \d+ is under way",
    "copy not awaited": r"copy of thread \d+ is under way",
    "copy left behind": "ends with an asynchronous copy",
    "missed barrier": "not reached by all",
    "split warp": "should meet come from lines",
    "two barriers": "should meet come from lines",
}


@pytest.mark.parametrize("kind", MISUSE)
def test_the_block_notices(bodies, kind):
    with pytest.raises(RuntimeError, match=MISUSE[kind]):
        bodies.misuse(kind)


@pytest.mark.parametrize("kind", ["", "copy"])
def test_the_block_lets_right_bodies_run(bodies, kind):
    bodies.misuse(kind)


# --- the product ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_product_gives_cosines_and_their_moments(bodies, shape, dtype):
    keys, queries, want = pair(*shape, dtype)
    scale, shift = bodies.prepare(dtype, keys, queries, True)
    np.testing.assert_allclose(shift, want[0], rtol=0, atol=1e-7)
    for tiles in (1, 2):
        psi, partial = bodies.product(dtype, keys, queries, scale, shift, True, tiles)
        np.testing.assert_allclose(psi, want, rtol=0, atol=tolerance(dtype, shape[2]))
        mean, std = bodies.finish_f32(partial, len(want), shift)
        np.testing.assert_allclose(mean, psi.astype(np.float64).mean(0), rtol=0, atol=1e-14)
        sigma = psi.astype(np.float64).std(0)
        np.testing.assert_allclose(std, np.where(sigma <= 8 * 2**-23, 0, sigma), rtol=1e-11, atol=0)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("output", ["z", "score", "log_tail"])
def test_product_scores_with_known_moments(bodies, output, dtype):
    keys, queries, psi = pair(150, 40, 48, dtype)
    scale, shift = bodies.prepare(dtype, keys, queries, True)
    mean, std = psi.mean(0), psi.std(0)
    got, _ = bodies.product(dtype, keys, queries, scale, shift, True, 1, output, mean, std)
    z = (psi - mean) / std
    want = {"z": z, "score": special.ndtr(z), "log_tail": special.log_ndtr(-z)}[output]
    np.testing.assert_allclose(got, want, rtol=2e-5, atol=5e-5)


@pytest.mark.parametrize("dtype", TYPES)
def test_product_without_normalising_is_the_dot_product(bodies, dtype):
    (k_bits, k), (q_bits, q) = encode(rows(40, 21, 1), dtype), encode(rows(5, 21, 2), dtype)
    scale, shift = bodies.prepare(dtype, k_bits, q_bits, False)
    psi, _ = bodies.product(dtype, k_bits, q_bits, scale, shift, False)
    size = np.linalg.norm(k, axis=1)[:, None] * np.linalg.norm(q, axis=1)
    assert (abs(psi - k @ q.T) <= 5e-7 * size).all()


def test_float32_product_is_as_accurate_as_a_float32_product(bodies):
    keys, queries, want = pair(128, 32, 768, "float32")
    scale, shift = bodies.prepare("float32", keys, queries, True)
    psi, _ = bodies.product("float32", keys, queries, scale, shift, True)
    k, q = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (keys, queries))
    plain = np.cumsum(k[:, None, :] * q, axis=2, dtype=np.float32)[:, :, -1]  # one float32 sum in order
    assert np.sqrt(np.mean((psi - want) ** 2)) <= np.sqrt(np.mean((plain - want) ** 2))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("factor", [1e-30, 1e30])
def test_rows_whose_squares_leave_float32_keep_their_cosines(bodies, factor, dtype):
    x, y = rows(6, 24, 1), rows(5, 24, 2)
    x[::2] *= factor
    y[::2] *= factor
    x[1] = 0  # a zero row has cosine 0
    (k_bits, k), (q_bits, q) = encode(x, dtype), encode(y, dtype)
    scale, shift = bodies.prepare(dtype, k_bits, q_bits, True)
    psi, _ = bodies.product(dtype, k_bits, q_bits, scale, shift, True)
    np.testing.assert_allclose(psi, cosines(k, q), rtol=0, atol=5e-7)


# --- sweeps and reductions ------------------------------------------------------------------------------------------


@given(n=st.integers(1, 90), m=st.integers(1, 300), rows_per_block=st.integers(1, 100), offset=st.floats(-1e3, 1e3))
@settings(max_examples=15, deadline=None)
def test_column_sums_give_the_moments_of_a_matrix(bodies, n, m, rows_per_block, offset):
    psi = offset + np.random.default_rng(n).standard_normal((n, m))
    mean, std = bodies.finish_f64(bodies.column_sums(psi, rows_per_block), n, psi[0])
    np.testing.assert_allclose(mean, psi.mean(0), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(std, psi.std(0), rtol=1e-9, atol=1e-12)


@given(n=st.integers(1, 60), m=st.integers(1, 270), rows_per_block=st.integers(1, 70))
@settings(max_examples=15, deadline=None)
def test_sweep_scores_every_element_once(bodies, n, m, rows_per_block):
    rng = np.random.default_rng(m)
    psi, mean, std = rng.standard_normal((n, m)), rng.standard_normal(m), rng.uniform(0.1, 3, m)
    z = (psi - mean) / std
    got = bodies.sweep_f64(psi, mean, std, "score", rows_per_block)
    np.testing.assert_allclose(got, special.ndtr(z), rtol=1e-12, atol=1e-300)
    got = bodies.sweep_f32(psi.astype(np.float32), mean, std, "score", rows_per_block)
    np.testing.assert_allclose(got, special.ndtr(z), rtol=0, atol=3e-6)


@given(n=st.integers(1, 12), m=st.integers(1, 100), k=st.integers(1, 100), levels=st.integers(1, 6))
@settings(max_examples=25, deadline=None)
def test_topk_is_a_stable_descending_sort(bodies, n, m, k, levels):
    k = min(k, m)
    rng = np.random.default_rng(n * m)
    psi = rng.integers(0, levels, (n, m)).astype(np.float64)  # few values: many ties
    mean, std = np.zeros(m), np.where(rng.random(m) < 0.3, 0.0, 1.0)  # sigma = 0: z is 0 or +inf
    with np.errstate(divide="ignore", invalid="ignore"):
        z = np.where(psi == 0, 0, psi / std)
    order = np.argsort(-z, axis=1, kind="stable")[:, :k]
    for topk, dtype in ((bodies.topk_f32, np.float32), (bodies.topk_f64, np.float64)):
        values, indices = topk(psi.astype(dtype), mean, std, k, "z")
        np.testing.assert_array_equal(indices, order)
        np.testing.assert_array_equal(values, np.take_along_axis(z, order, 1))


@pytest.mark.parametrize("dtype", [*TYPES, "float64"])
def test_unit_rows(bodies, dtype):
    x = rows(9, 37, 3) * np.array([1, 1e-3, 1e3, 1, 1, 1, 1, 1, 1])[:, None]
    x[4] = 0
    if dtype == "float64":
        x[5] *= 1e200
        bits, exact = x, x
    else:
        bits, exact = encode(x, dtype)
    peak = abs(exact).max(axis=1, keepdims=True)
    scaled = exact / np.where(peak == 0, 1, peak)
    norm = np.linalg.norm(scaled, axis=1, keepdims=True)
    np.testing.assert_allclose(bodies.unit_rows(dtype, bits, True), scaled / np.where(norm == 0, 1, norm), atol=1e-15)
    np.testing.assert_array_equal(bodies.unit_rows(dtype, bits, False), exact)


@given(n=st.integers(1, 70), d=st.integers(1, 70))
@settings(max_examples=15, deadline=None)
def test_centring_and_merging_a_batch(bodies, n, d):
    rng = np.random.default_rng(n)
    old, new = rng.standard_normal((12, d)), rng.standard_normal((n, d)).astype(np.float32)
    padded = n + 3
    centred = bodies.centre_f32(new, new.sum(0, dtype=np.float64), padded)
    np.testing.assert_allclose(centred[:, :n], (new - new.mean(0, dtype=np.float64)).T, atol=1e-6)
    assert (centred[:, n:] == 0).all()
    count, mean = np.array(12.0), old.mean(0)
    scatter = (old - mean).T @ (old - mean)
    bodies.merge_batch(centred @ centred.T, new.sum(0, dtype=np.float64), n, count, mean, scatter)
    both = np.concatenate([old, new])
    assert count == 12 + n
    np.testing.assert_allclose(mean, both.mean(0), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(scatter, (both - both.mean(0)).T @ (both - both.mean(0)), rtol=1e-4, atol=1e-4)


# --- the focal loss -------------------------------------------------------------------------------------------------


@given(
    n=st.integers(1, 70),
    m=st.integers(1, 70),
    gamma=st.sampled_from([0.0, 0.5, 1.0, 2.0]),
    softplus=st.booleans(),
    balanced=st.booleans(),
)
@settings(max_examples=25, deadline=None)
def test_focal_slopes_and_sums(bodies, n, m, gamma, softplus, balanced):
    for body, dtype, eps in ((bodies.focal_body_f32, np.float32, 3e-7), (bodies.focal_body_f64, np.float64, 1e-15)):
        cosines, positive, weight = case(n, m, n * m, dtype)
        cosines = cosines if softplus else np.abs(cosines) + dtype(0.02)
        options = (gamma, 0.05, 1e-10, softplus, balanced)
        got = body(cosines, positive, weight, *options)
        want = focal(cosines.astype(np.float64), positive, weight.astype(np.float64), *options)
        np.testing.assert_allclose(got[0], want[0], rtol=40 * eps, atol=40 * eps * np.abs(want[0]).max())
        np.testing.assert_allclose(got[1:], want[1:], rtol=10 * eps)


@pytest.mark.parametrize("dtype", TYPES)
def test_gradient_through_the_length_of_a_row(bodies, dtype):
    x = rows(9, 37, 3) * np.array([1, 1e-3, 1e3, 1, 1, 1, 1, 1, 1])[:, None]
    x[4] = 0
    bits, exact = encode(x, dtype)
    gradient = np.random.default_rng(0).standard_normal(x.shape)
    length = np.linalg.norm(exact, axis=1, keepdims=True)
    unit = exact / np.where(length == 0, 1, length)
    want = 3 * (gradient - unit * (gradient * unit).sum(1, keepdims=True)) / np.where(length == 0, np.inf, length)
    np.testing.assert_allclose(bodies.unit_gradient_body(dtype, bits, 3.0, gradient), want, rtol=1e-12, atol=1e-15)


# --- the formula ----------------------------------------------------------------------------------------------------


@given(st.floats(-40, 40, width=32))
def test_normal_cdf(bodies, z):
    want = special.ndtr(z)
    assert abs(bodies.normal_cdf(z) - want) <= (max(6e-7 * want, 1.2e-38) if z < -2.5 else 2e-7)


@given(st.floats(-1e3, 1e3))
def test_log_tail(bodies, z):
    assert math.isclose(bodies.log_tail(z), special.log_ndtr(-z), rel_tol=1e-12, abs_tol=1e-300)


@given(st.floats(-1, 1, width=32), st.floats(-1, 1), st.floats(1e-4, 2))
def test_standardize(bodies, psi, mean, std):
    # the gap is exact to a rounding of psi; z then rounds once more
    assert abs(bodies.standardize(psi, mean, std) - (psi - mean) / std) <= 2**-22 * (abs(psi - mean) + 2**-24) / std


@pytest.mark.parametrize(("psi", "want"), [(0.5, 0.0), (0.4, -math.inf), (0.6, math.inf)])
def test_standardize_without_spread(bodies, psi, want):
    assert bodies.standardize(psi, 0.5, 0.0) == want


@given(st.lists(st.floats(-2, 2), min_size=1, max_size=40), st.floats(-2, 2))
def test_finish_moments(bodies, values, shift):
    x = np.array(values)
    mean, std = bodies.finish_moments_f64(len(x), shift, (x - shift).sum(), ((x - shift) ** 2).sum())
    assert math.isclose(mean, x.mean(), rel_tol=1e-12, abs_tol=1e-12)
    assert abs(std**2 - x.var()) <= 1e-13
    mean, std = bodies.finish_moments_f32(len(x), x[0], (x - x[0]).sum(), ((x - x[0]) ** 2).sum())
    assert std == 0 or std > 8 * 2**-23 * max(1, abs(mean))


@given(st.lists(st.lists(st.floats(-5, 5), max_size=8), min_size=1, max_size=6))
def test_merge_moments_in_any_grouping(bodies, groups):
    state = (0.0, 0.0, 0.0)
    for group in groups:
        x = np.array(group)
        m2 = ((x - x.mean()) ** 2).sum() if group else 0.0
        state = bodies.merge_moments(*state, len(x), x.mean() if group else 0.0, m2)
    x = np.concatenate([np.array(g, float) for g in groups])
    want = (len(x), x.mean(), ((x - x.mean()) ** 2).sum()) if len(x) else (0.0, 0.0, 0.0)
    np.testing.assert_allclose(state, want, rtol=1e-12, atol=1e-12)


def test_the_sanitizer_sees_every_width(bodies):
    """benchmarks/gpu_sanitize.py, which runs on a GPU alone, launches the product of each width."""
    shapes = runpy.run_path(str(Path(__file__).parents[2] / "benchmarks/gpu_sanitize.py"))["SHAPES"]
    assert {bodies.product_cols(m) for _, m, _ in shapes} == {bodies.product_cols(m) for m in range(1, 1000)}
