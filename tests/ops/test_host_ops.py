"""Whole libraries for hardware that need not be here, played on the host (csrc/testing/build.py).

That of CUDA, the code around its kernels included, run block by block, and that of the CPU with the kernels of AVX-512
and of the matrix unit. What test_values.py and test_cuda.py ask of the real ones, in small: each thread of each block
is a fiber, each instruction a loop, so shapes stay under a few tiles.
"""

import math
import runpy
from pathlib import Path

import pytest
import torch

from surprise_hf import ops

from .fence import fenced
from .shapes import DTYPES, rms, rows

# each tile width of the product, tails of every kind, several row tiles
SHAPES = [
    (0, 3, 8),
    (5, 0, 8),
    (4, 2, 0),
    (1, 1, 1),
    (7, 4, 33),
    (270, 14, 40),
    (33, 31, 100),
    (40, 50, 24),
    (150, 77, 17),
]
SHAPES += [(30, 300, 16)]


BUILD = Path(__file__).resolve().parents[2] / "csrc/testing/build.py"
VECTORS = ["amx", "avx512"] if torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512") else []


def library(kind):
    """torch.ops.surprise_hf_<kind>, built on first use."""
    found = getattr(torch.ops, f"surprise_hf_{kind}")
    if not hasattr(found, "cosine_surprise"):
        torch.ops.load_library(str(runpy.run_path(str(BUILD))[f"build_{kind}_op"]()))
    return found


@pytest.fixture(params=["cuda", *VECTORS])
def op(request, monkeypatch):
    if request.param == "cuda":
        return library("host")
    monkeypatch.setenv("SURPRISE_HF_CPU", request.param)
    return library("emulated")


@pytest.fixture(params=VECTORS)
def vector_op(request, monkeypatch):
    monkeypatch.setenv("SURPRISE_HF_CPU", request.param)
    return library("emulated")


# The NaN of a GPU's arithmetic, on whose bits a careless carry runs into the sign
GPU_NAN = torch.tensor([0x7FFFFFFF], dtype=torch.int32).view(torch.float32).item()


def exact(x):
    return x.double()


def odd_rows(n, d, dtype):
    """Rows with infinities and NaN, zeros, and numbers that round to infinity in fewer bits."""
    x = torch.randn(n, d, generator=torch.Generator().manual_seed(7)).to(dtype)
    x[1] = 0
    x[2, 3] = math.inf
    x[3, 7] = -math.inf
    x[4, 3], x[4, 7] = math.inf, -math.inf
    x[5, 20] = math.nan
    x[6, 5] = torch.finfo(dtype).max if dtype != torch.float64 else 1.0
    return x


def eps(dtype, d):
    """Of a cosine. The 16-bit types have one sum, which every 16 columns cut by up to 18 units of 2^-24."""
    return {torch.float64: 1e-14, torch.float32: 5e-7}.get(dtype, 5e-7 + 18 * 2**-24 * max(d, 16) / 16)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_output(op, shape, dtype):
    n, m, d = shape
    keys, queries = rows(n, d, dtype, 1), rows(m, d, dtype, 2)
    psi, want_mean, want_std = ops.cosine_surprise(exact(keys), exact(queries), output="cosine", impl="reference")
    _, mean, std = op.cosine_surprise(keys, queries)
    torch.testing.assert_close(mean, want_mean, rtol=0, atol=eps(dtype, d))
    torch.testing.assert_close(std, want_std, rtol=0, atol=eps(dtype, d))
    assert torch.equal(torch.stack(op.cosine_moments(keys, queries)), torch.stack([mean, std]))
    for output in ops.OUTPUTS:
        got = op.cosine_surprise(keys, queries, output=output)[0]
        assert got.shape == (n, m)
        assert got.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
        assert not got.isnan().any()
        assert torch.equal(op.surprise_from_moments(keys, queries, mean, std, output=output), got)
        if output == "cosine":
            torch.testing.assert_close(got, psi.to(got.dtype), rtol=0, atol=eps(dtype, d))
            z = ((got.double() - mean) / std).nan_to_num(0)  # 0 / 0 where no row differs
        elif n > 2:  # the formula itself, on the cosines and moments the op found
            score, log_tail = 0.5 * torch.erfc(-z / math.sqrt(2)), torch.special.log_ndtr(-z)
            want = {"z": z, "score": score, "log_tail": log_tail}[output]
            # a float32 gap is exact to half a rounding of a cosine, which sigma then enlarges
            rtol, atol = (1e-11, 1e-12) if dtype == torch.float64 else (2e-5, 5e-6)
            torch.testing.assert_close(got.double(), want, rtol=rtol, atol=atol)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [s for s in SHAPES if s[1]], ids=str)
def test_topk_is_the_sorted_matrix(op, shape, dtype):
    n, m, d = shape
    keys, queries = rows(n, d, dtype, 1), rows(m, d, dtype, 2)
    z, mean, std = op.cosine_surprise(keys, queries, output="z")
    for k in (1, min(m, 5)):
        order = z.argsort(dim=1, descending=True, stable=True)[:, :k]
        values, indices = op.surprise_topk(keys, queries, mean, std, k, output="z")
        assert torch.equal(indices, order)
        assert torch.equal(values, z.gather(1, order))


@pytest.mark.parametrize("dtype", [dtype for dtype in DTYPES if dtype != torch.float64], ids=str)
@pytest.mark.parametrize("m", [11, 40, 130])
def test_equal_queries_have_equal_moments(op, m, dtype):
    """To the last bit, in the last block of columns too, which may be a narrower one."""
    for seed in range(3):
        keys, queries = rows(700, 8, dtype, seed), rows(1, 8, dtype, 100 + seed).repeat(m, 1)
        scores, mean, std = op.cosine_surprise(keys, queries)
        assert torch.equal(scores, scores[:, :1].expand_as(scores))
        assert torch.equal(mean, mean[:1].expand(m))
        assert torch.equal(std, std[:1].expand(m))


@pytest.mark.parametrize("exactly", [False, True])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(1, 3), (5, 1), (300, 17), (2050, 3), (3, 0)], ids=str)
def test_ensemble_update(op, shape, dtype, exactly):
    b, d = shape
    first, second = rows(b, d, dtype, 3), rows(2 * b, d, dtype, 4)
    # a transposed scatter and a strided mean: the state need not be contiguous
    state = [torch.zeros((), dtype=torch.float64), torch.zeros(2 * d).double()[::2], torch.zeros(d, d).double().T]
    op.ensemble_update(*state, first, exact=exactly)
    op.ensemble_update(*state, second, exact=exactly)
    unit = torch.nn.functional.normalize(torch.cat([first, second]).double(), dim=1)
    centred = unit - unit.mean(0)
    tight = exactly or dtype == torch.float64
    assert state[0].item() == 3 * b
    torch.testing.assert_close(state[1], unit.mean(0), rtol=0, atol=1e-15 if tight else 1e-7)
    want = centred.T @ centred
    torch.testing.assert_close(state[2], want, rtol=0, atol=(1e-12 if tight else 6e-7) * 3 * b / max(d, 1))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_layouts_do_not_matter(op, dtype):
    keys, queries = rows(20, 16, dtype, 1), rows(9, 16, dtype, 2)
    want = op.cosine_surprise(keys, queries)

    def shifted(x):
        flat = torch.full((x.numel() + 9,), float("nan"), dtype=dtype)
        return flat[1 : 1 + x.numel()].view(x.shape).copy_(x)

    for view in (shifted, lambda x: x.T.contiguous().T):
        for got, expected in zip(op.cosine_surprise(view(keys), view(queries)), want, strict=True):
            assert torch.equal(got, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("scale", [1e-42, 1e-30, 1e-18, 1e18, 1e30])
def test_rows_of_extreme_size(op, dtype, scale):
    keys, queries = rows(10, 33, torch.float64, 1), rows(9, 33, torch.float64, 2)
    keys[::3] *= scale
    queries[::2] *= scale
    keys, queries = keys.to(dtype), queries.to(dtype)
    got, mean, std = op.cosine_surprise(keys, queries, output="cosine")
    want = ops.cosine_surprise(exact(keys), exact(queries), output="cosine", impl="reference")
    for x, y in zip((got.double(), mean, std), want, strict=True):
        torch.testing.assert_close(x, y, rtol=0, atol=eps(dtype, 33))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", ["one document", "identical", "zero documents", "zero labels"])
def test_no_spread_is_never_nan(op, case, dtype):
    keys, queries = rows(20, 40, dtype, 1), rows(5, 40, dtype, 2)
    if case == "one document":
        keys = keys[:1]
    elif case == "identical":
        keys = keys[:1].expand(20, 40) * torch.tensor([1, 2, 4, 8] * 5, dtype=dtype)[:, None]
    elif case == "zero documents":
        keys = torch.zeros_like(keys)
    else:
        queries = torch.zeros_like(queries)
    scores, mean, std = op.cosine_surprise(keys, queries)
    assert torch.equal(std, torch.zeros_like(std))
    assert torch.equal(scores, torch.full_like(scores, 0.5))
    above = op.surprise_from_moments(keys, queries, mean - 0.01, std)
    below = op.surprise_from_moments(keys, queries, mean + 0.01, std)
    assert torch.equal(above, torch.ones_like(above))
    assert torch.equal(below, torch.zeros_like(below))


def test_nan_rows_stay_in_their_row(op):
    keys, queries = rows(60, 40, torch.float32, 1), rows(12, 40, torch.float32, 2)
    _, mean, std = op.cosine_surprise(keys, queries)
    want = op.surprise_from_moments(keys, queries, mean, std)
    keys[7, 3], keys[50, 0] = float("nan"), float("inf")
    got = op.surprise_from_moments(keys, queries, mean, std)
    bad = torch.zeros(60, dtype=torch.bool)
    bad[[7, 50]] = True
    assert got[bad].isnan().all()
    assert torch.equal(got[~bad], want[~bad])
    values, indices = op.surprise_topk(keys, queries, mean, std, 3)
    assert values[bad].isnan().all()
    assert ((indices >= 0) & (indices < 12)).all()


@pytest.mark.parametrize("m", [4, 8, 12, 40])
def test_topk_puts_nan_last(op, m):
    keys, queries = rows(40, 16, torch.float32, 1), rows(m, 16, torch.float32, 2)
    keys[3], queries[[0, m // 2]] = math.nan, math.nan
    _, mean, std = op.cosine_surprise(keys[4:], queries)
    z = op.surprise_from_moments(keys, queries, mean, std, output="z")
    order = (-z).argsort(dim=1, stable=True)
    for k in (1, m):
        for output in ("z", "cosine"):
            values, indices = op.surprise_topk(keys, queries, mean, std, k, output=output)
            assert torch.equal(indices, order[:, :k])
            assert torch.equal(values.isnan(), z.gather(1, order[:, :k]).isnan())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_infinities_count_by_their_signs_without_normalising(op, dtype):
    keys, queries = odd_rows(10, 33, dtype), odd_rows(9, 33, dtype).flip(0)
    got, mean, _ = op.cosine_surprise(keys, queries, normalize=False, output="cosine")
    want = (exact(keys)[:, None] * exact(queries)).sum(2).to(got.dtype)
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-4, equal_nan=True)
    assert torch.equal(mean.isfinite(), want.isfinite().all(0))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("bad", [math.inf, GPU_NAN], ids=str)
def test_ensemble_update_does_not_hide_what_is_not_finite(op, bad, dtype):
    batch = rows(40, 5, dtype, 6)
    batch[7, 2] = bad
    state = [torch.zeros(s, dtype=torch.float64) for s in ((), (5,), (5, 5))]
    op.ensemble_update(*state, batch, normalize=False)
    assert not state[2][2].isfinite().any()
    assert not state[2][:, 2].isfinite().any()
    assert state[2][0, [0, 1, 3, 4]].isfinite().all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(1, 1, 1), (130, 5, 36), (3, 9, 33), (5, 40, 16), (4, 130, 7)], ids=str)
@pytest.mark.parametrize("end", [True, False], ids=["end", "start"])
def test_nothing_is_read_outside_the_inputs(op, shape, dtype, end):
    """Memory that may not be touched lies right behind or before each input: a read there ends the process."""
    n, m, d = shape
    keys, queries = rows(n, d, dtype, 1), rows(m, d, dtype, 2)
    _, mean, std = op.cosine_surprise(keys, queries)
    walled = [fenced(x, end=end) for x in (keys, queries, mean, std)]
    for name, count, rest in (
        ("cosine_surprise", 2, ()),
        ("cosine_moments", 2, ()),
        ("surprise_from_moments", 4, ()),
        ("surprise_topk", 4, (1,)),
    ):
        want = getattr(op, name)(*(keys, queries, mean, std)[:count], *rest)
        got = getattr(op, name)(*walled[:count], *rest)
        for x, y in zip(*((r if isinstance(r, tuple) else (r,)) for r in (got, want)), strict=True):
            assert torch.equal(x, y)
    state, want = ([torch.zeros(s, dtype=torch.float64) for s in ((), (d,), (d, d))] for _ in range(2))
    op.ensemble_update(*want, keys)
    op.ensemble_update(*state, walled[0])
    assert all(torch.equal(x, y) for x, y in zip(state, want, strict=True))
    positive = targets(n, m)
    loss, _, slope = op.weighted_focal_loss(keys, queries, positive)
    got, _, _ = op.weighted_focal_loss(*walled[:2], fenced(positive, end=end))
    assert torch.equal(got, loss)
    one = torch.ones_like(loss)
    want = op.weighted_focal_loss_backward(one, keys, queries, slope)
    got = op.weighted_focal_loss_backward(one, *walled[:2], fenced(slope, end=end))
    assert all(torch.equal(x, y) for x, y in zip(got, want, strict=True))


def in_chains(keys, queries, length):
    """Cosines in float32, the products of so many columns summed one after another, as a BLAS sums them."""
    k, q = (torch.nn.functional.normalize(x, dim=1) for x in (keys, queries))
    sums = []
    for first in range(0, k.shape[1], length):
        sums.append(torch.zeros(len(k), len(q)))
        for i in range(first, min(first + length, k.shape[1])):
            sums[-1].addcmul_(k[:, i, None], q[:, i])
    return torch.stack(sums).sum(dim=0)


def test_float32_stays_as_accurate_as_plain_float32_on_the_coarsest_tensor_core(op):
    """Three tf32 products against float32 sums in chains of 384, as a BLAS has them (torch's own differ from one CPU to
    another: 192 on some, 384 on others); the host's block cuts sums as early tensor cores do.
    """
    keys, queries = rows(128, 768, torch.float32, 1), rows(16, 768, torch.float32, 2)
    want = ops.cosine_surprise(exact(keys), exact(queries), output="cosine", impl="reference")[0]
    got = op.cosine_surprise(keys, queries, output="cosine")[0]
    assert rms(got, want) <= 1.1 * rms(in_chains(keys, queries, 384), want)


def test_plain_dot_products(op):
    keys, queries = rows(30, 24, torch.float32, 1), rows(6, 24, torch.float32, 2)
    scores, mean, std = op.cosine_surprise(keys, queries, normalize=False, output="cosine")
    want = exact(keys) @ exact(queries).T
    torch.testing.assert_close(scores.double(), want, rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(mean, want.mean(0), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(std, want.std(0, correction=0), rtol=1e-5, atol=1e-5)


def test_moment_sums_over_several_tiles_of_one_block(op):
    """More row tiles than there may be groups of moment sums (2,048)."""
    n = 2_049 * 128 + 5
    keys, queries = rows(n, 1, torch.float32, 1), rows(1, 1, torch.float32, 2)
    mean, std = op.cosine_moments(keys, queries)
    want_mean, want_std = ops.cosine_moments(exact(keys), exact(queries), impl="reference")
    torch.testing.assert_close(mean, want_mean, rtol=0, atol=1e-7)
    torch.testing.assert_close(std, want_std, rtol=0, atol=1e-7)


# --- the focal loss -------------------------------------------------------------------------------------------------


def targets(n, m):
    return torch.rand(n, m, generator=torch.Generator().manual_seed(3)) < 0.2


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [s for s in SHAPES if s[2] != 1], ids=str)  # one column: cosines of 1, p at its end
def test_focal_loss_and_its_gradient(op, shape, dtype):
    n, m, d = shape
    keys, queries, positive = rows(n, d, dtype, 1), rows(m, d, dtype, 2), targets(n, m)
    weight = torch.rand(n, generator=torch.Generator().manual_seed(4))
    weight = weight.double() if dtype == torch.float64 else weight
    for options in ({}, {"gamma": 2.0, "balanced": False}):
        wide = [x.double().requires_grad_() for x in (keys, queries)]
        want = ops.weighted_focal_loss(*wide, positive, weight=weight, impl="reference", **options)
        loss, cross_entropy, slope = op.weighted_focal_loss(keys, queries, positive, weight, **options)
        tolerance = {torch.float64: 1e-12, torch.float32: 5e-6}.get(dtype, 5e-5)  # 1 / (1 - p) at cosines near 0.9
        assert loss.item() == pytest.approx(want[0].item(), rel=tolerance)
        assert cross_entropy.item() == pytest.approx(want[1].item(), rel=tolerance)
        grad = torch.tensor(2.0, dtype=slope.dtype)
        exact_grads = torch.autograd.grad(2 * want[0], wide)
        got = op.weighted_focal_loss_backward(grad, keys, queries, slope)
        for found, wanted, source in zip(got, exact_grads, (keys, queries), strict=True):
            assert (found.dtype, found.shape) == (dtype, source.shape)
            # in the measure of a unit row: lengths differ
            x, y = (g.double() * source.double().norm(dim=1, keepdim=True) for g in (found, wanted))
            assert not x.isnan().any()
            if x.numel():
                noise = 20 * tolerance + (0 if dtype == torch.float64 else torch.finfo(dtype).eps)
                assert (x - y).abs().max() <= noise * y.abs().max() + (1e-6 if dtype == torch.float16 else 0)


def test_focal_gradient_of_one_side_and_of_mixed_dtypes(op):
    keys, queries, positive = rows(9, 24, torch.bfloat16, 1), rows(5, 24, torch.float32, 2), targets(9, 5)
    loss, _, slope = op.weighted_focal_loss(keys, queries, positive)
    grad = torch.ones(())
    both = op.weighted_focal_loss_backward(grad, keys, queries, slope)
    assert [x.dtype for x in both] == [torch.bfloat16, torch.float32]
    keys_only = op.weighted_focal_loss_backward(grad, keys, queries, slope, need_queries=False)
    queries_only = op.weighted_focal_loss_backward(grad, keys, queries, slope, need_keys=False)
    assert torch.equal(keys_only[0], both[0])
    assert torch.equal(queries_only[1], both[1])
    assert (keys_only[1].shape, queries_only[0].shape) == ((0, 24), (0, 24))
    torch.testing.assert_close(loss, ops.weighted_focal_loss(keys, queries, positive)[0], rtol=5e-6, atol=0)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("probability", ops.PROBABILITIES)
def test_focal_loss_is_finite_at_the_edges(op, probability, dtype):
    queries = torch.eye(4, dtype=dtype)
    keys = torch.cat([queries, -queries, queries[:1] * 0])
    for positive in (torch.ones(9, 4, dtype=torch.bool), torch.zeros(9, 4, dtype=torch.bool)):
        loss, cross_entropy, slope = op.weighted_focal_loss(keys, queries, positive, probability=probability)
        grads = op.weighted_focal_loss_backward(torch.ones((), dtype=slope.dtype), keys, queries, slope)
        assert all(x.isfinite().all() for x in (loss, cross_entropy, slope, *grads))


# --- the CPU's kernels alone ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("d", [256, 768])
def test_float32_is_as_accurate_as_plain_float32_in_short_chains(vector_op, d):
    keys, queries = rows(128, d, torch.float32, 1), rows(40, d, torch.float32, 2)
    want = ops.cosine_surprise(exact(keys), exact(queries), output="cosine", impl="reference")[0]
    got = vector_op.cosine_surprise(keys, queries, output="cosine")[0]
    assert rms(got, want) <= 1.1 * rms(in_chains(keys, queries, 128), want)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(200, 16, 384), (99, 29, 200), (97, 14, 1024), (101, 3, 1024)], ids=str)
def test_long_rows(vector_op, shape, dtype):
    n, m, d = shape
    keys, queries = rows(n, d, dtype, 1), rows(m, d, dtype, 2)
    want = ops.cosine_surprise(exact(keys), exact(queries), output="cosine", impl="reference")
    near = 1e-14 if dtype == torch.float64 else 5e-7
    for got, expected in zip(vector_op.cosine_surprise(keys, queries, output="cosine"), want, strict=True):
        torch.testing.assert_close(got.double(), expected, rtol=0, atol=near)
    z, mean, std = vector_op.cosine_surprise(keys, queries, output="z")
    values, index = vector_op.surprise_topk(keys, queries, mean, std, 3, output="z")
    assert torch.equal(index, z.argsort(dim=1, descending=True, stable=True)[:, :3])
    assert torch.equal(values, z.gather(1, index))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(33, 3, 64), (97, 16, 32), (200, 5, 100), (300, 40, 96)], ids=str)
def test_search(vector_op, shape, dtype):
    n, m, d = shape
    keys, queries = (torch.nn.functional.normalize(rows(count, d, dtype, count).double()).to(dtype) for count in (n, m))
    margin = torch.linspace(0, 0.1, m, dtype=torch.float64)
    scale = torch.linspace(0.5, 1.5, n, dtype=ops.compute_dtype(dtype))
    for given in (None, scale):
        bounds = (exact(queries) @ exact(keys).T + margin[:, None]) * (1 if given is None else exact(given))
        values, index = vector_op.search_topk(keys, queries, margin, given, 9)
        best = bounds.topk(9, dim=1).values
        error = 1e-13 if dtype == torch.float64 else 2e-6
        torch.testing.assert_close(values.double(), best, rtol=0, atol=error)
        torch.testing.assert_close(bounds.gather(1, index), best, rtol=0, atol=error)
        assert all(len(found.unique()) == 9 for found in index)


def test_gathered_products(vector_op):
    keys, queries = rows(30, 70, torch.float32, 1), rows(3, 70, torch.float64, 2)
    index = torch.arange(24).view(3, 8) - 1
    want = (keys.double()[index] @ queries[:, :, None]).squeeze(2).masked_fill(index < 0, 0)
    got = vector_op.gathered_products(*ops.split_halves(keys), index, queries)
    torch.testing.assert_close(got, want, rtol=1e-13, atol=1e-12)


@pytest.mark.parametrize("exactly", [False, True])
@pytest.mark.parametrize("shape", [(900, 150), (70, 400)], ids=str)
def test_scatter_of_several_panels(vector_op, shape, exactly):
    b, d = shape
    state = [torch.zeros(s, dtype=torch.float64) for s in ((), (d,), (d, d))]
    batch = rows(b, d, torch.float32, 3)
    vector_op.ensemble_update(*state, batch, exact=exactly)
    unit = torch.nn.functional.normalize(batch.double(), dim=1)
    centred = unit - unit.mean(0)
    torch.testing.assert_close(state[1], unit.mean(0), rtol=0, atol=1e-15 if exactly else 1e-7)
    torch.testing.assert_close(state[2], centred.T @ centred, rtol=0, atol=(1e-12 if exactly else 6e-7) * b / d)
