"""The CUDA kernels against the definition in float64 on the CPU. Collected only where there is a GPU (conftest.py)."""

import math

import pytest
import torch

from surprise_hf import ops
from surprise_hf.ops import _loader

from .shapes import DTYPES, SHAPES, rms, rows

# every tile width of the product with and without tails, several row tiles, long rows, moment sums over several tiles
LARGE = [(5_000, 10, 384), (3_001, 300, 386), (1_030, 96, 1024), (700, 129, 4100), (270_000, 3, 16), (20_000, 1_100, 8)]
ALL_SHAPES = SHAPES + LARGE


def tolerance(dtype, d):
    """Of a cosine. The 16-bit types have one sum, which every 16 columns cut by up to 18 units of 2^-24."""
    return {torch.float64: 1e-14, torch.float32: 5e-7}.get(dtype, 5e-7 + 18 * 2**-24 * d / 16)


def pair(shape, dtype):
    n, m, d = shape
    return rows(n, d, dtype, 1).cuda(), rows(m, d, dtype, 2).cuda()


def exact(x):
    return x.cpu().double()


def eager(keys, queries):
    """The formula as people write it, in the dtype of the input."""
    k = torch.nn.functional.normalize(keys, dim=1)
    q = torch.nn.functional.normalize(queries, dim=1)
    psi = k @ q.T
    z = (psi - psi.mean(0)) / psi.std(0, correction=0)
    return psi, z, 0.5 * (1 + torch.erf(z / math.sqrt(2)))


def test_the_kernels_answer():
    assert ops.build_info()["cuda_library"] is not None
    for name in (schema.split("(")[0] for schema in _loader.SCHEMAS if "ensemble_moments" not in schema):
        assert torch._C._dispatch_has_kernel_for_dispatch_key(f"surprise_hf::{name}", "CUDA")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", ALL_SHAPES, ids=str)
def test_every_output(shape, dtype):
    n, m, d = shape
    keys, queries = pair(shape, dtype)
    eps = tolerance(dtype, d)
    psi, want_mean, want_std = ops.cosine_surprise(exact(keys), exact(queries), output="cosine", impl="reference")
    for output in ops.OUTPUTS:
        got, mean, std = ops.cosine_surprise(keys, queries, output=output)
        assert got.shape == (n, m)
        assert got.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
        assert not got.isnan().any()
        torch.testing.assert_close(mean.cpu(), want_mean, rtol=0, atol=eps)
        torch.testing.assert_close(std.cpu(), want_std, rtol=0, atol=eps)
        # the same bits without keeping the matrix, and from the moments
        assert torch.equal(torch.stack(ops.cosine_moments(keys, queries)), torch.stack([mean, std]))
        assert torch.equal(ops.surprise_from_moments(keys, queries, mean, std, output=output), got)
        if n > 2 and m:  # with two documents z = +-1 whatever the numbers
            want = ops.surprise_from_moments(
                exact(keys), exact(queries), want_mean, want_std, output=output, impl="reference"
            )
            # a rounding of eps in psi moves z by eps / sigma (1 + |z|), and log_tail by up to z times that
            z = (psi - want_mean) / want_std.clamp(min=1e-3)
            noise = 2 * eps / want_std.clamp(min=1e-3) * (1 + z.abs()) * (4 + z.abs() if output == "log_tail" else 1)
            bound = eps if output == "cosine" else noise
            assert ((got.cpu().double() - want).abs() <= bound + 1e-6 * want.abs()).all()


@pytest.mark.parametrize("dtype", [t for t in DTYPES if t != torch.float64], ids=str)
@pytest.mark.parametrize("shape", [(4000, 4, 384), (4000, 31, 768), (4000, 150, 1024), (1000, 1000, 768)], ids=str)
def test_error_is_no_larger_than_that_of_the_plain_expression(shape, dtype):
    keys, queries = pair(shape, dtype)
    assert not torch.backends.cuda.matmul.allow_tf32
    for index, output in enumerate(("cosine", "z", "score")):
        want = ops.cosine_surprise(exact(keys), exact(queries), output=output, impl="reference")[0]
        naive = rms(eager(keys, queries)[index].cpu(), want)
        got = rms(ops.cosine_surprise(keys, queries, output=output)[0].cpu(), want)
        print(f"{shape} {dtype} {output}: rms {got:.2e}, plain {naive:.2e}, ratio {got / naive:.2f}")
        assert got <= 1.1 * naive


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [s for s in ALL_SHAPES if s[1]], ids=str)
@pytest.mark.parametrize("k", [1, 2, 7])
def test_topk_is_the_sorted_matrix(shape, dtype, k):
    k = min(k, shape[1])
    keys, queries = pair(shape, dtype)
    z, mean, std = ops.cosine_surprise(keys, queries, output="z")
    order = z.argsort(dim=1, descending=True, stable=True)[:, :k]
    for output in ops.OUTPUTS:
        values, indices = ops.surprise_topk(keys, queries, mean, std, k, output=output)
        assert torch.equal(indices, order)
        matrix = ops.surprise_from_moments(keys, queries, mean, std, output=output)
        torch.testing.assert_close(values, matrix.gather(1, order), rtol=3e-7, atol=1e-30)


@pytest.mark.parametrize("exactly", [False, True])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(1, 3), (5, 1), (600, 17), (513, 48), (1100, 130), (9000, 384)], ids=str)
def test_ensemble_update(shape, dtype, exactly):
    b, d = shape
    first, second = rows(b, d, dtype, 3), rows(2 * b, d, dtype, 4)
    state = [torch.zeros(s, dtype=torch.float64, device="cuda") for s in ((), (d,), (d, d))]
    ops.ensemble_update(*state, first.cuda(), exact=exactly)
    ops.ensemble_update(*state, second.cuda(), exact=exactly)
    unit = torch.nn.functional.normalize(torch.cat([first, second]).double(), dim=1)
    centred = unit - unit.mean(0)
    tight = exactly or dtype == torch.float64
    assert state[0].item() == 3 * b
    torch.testing.assert_close(state[1].cpu(), unit.mean(0), rtol=0, atol=1e-15 if tight else 1e-7)
    want = centred.T @ centred
    torch.testing.assert_close(state[2].cpu(), want, rtol=0, atol=(1e-12 if tight else 6e-7) * 3 * b / d)
    sigma, want_sigma = (x.diagonal().sqrt() for x in (state[2].cpu(), want))
    if b > 5:
        torch.testing.assert_close(sigma, want_sigma, rtol=1e-12 if tight else 1e-6, atol=0)


@pytest.mark.parametrize("m", [1, 9, 40])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_layouts_do_not_matter(m, dtype):
    """Transposed, strided, sliced and misaligned views give the bits of a contiguous copy."""
    keys, queries = pair((60, m, 40), dtype)
    want = ops.cosine_surprise(keys, queries)

    def shifted(x, offset):
        flat = torch.full((x.numel() + 9,), float("nan"), dtype=dtype, device="cuda")
        view = flat[offset : offset + x.numel()].view(x.shape)
        return view.copy_(x)

    def padded(x):
        wide = torch.full((x.shape[0] + 2, x.shape[1] + 3), float("nan"), dtype=dtype, device="cuda")
        wide[1:-1, 1:-2] = x
        return wide[1:-1, 1:-2]

    views = [lambda x: x.T.contiguous().T, padded, lambda x: shifted(x, 1), lambda x: shifted(x, 3)]
    for view in views:
        for got, expected in zip(ops.cosine_surprise(view(keys), view(queries)), want, strict=True):
            assert torch.equal(got, expected)


@pytest.mark.parametrize("m", [1, 9, 60])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("scale", [1e-42, 1e-30, 1e-18, 1e18, 1e30])
def test_rows_of_extreme_size(m, dtype, scale):
    keys, queries = rows(40, 33, torch.float64, 1), rows(m, 33, torch.float64, 2)
    keys[::3] *= scale
    queries[::2] *= scale
    keys, queries = keys.to(dtype), queries.to(dtype)
    got = ops.cosine_surprise(keys.cuda(), queries.cuda(), output="cosine")[0]
    want = ops.cosine_surprise(keys.double(), queries.double(), output="cosine", impl="reference")[0]
    torch.testing.assert_close(got.cpu().double(), want, rtol=0, atol=tolerance(dtype, 33))


@pytest.mark.parametrize("m", [1, 9, 60])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", ["one document", "identical", "zero documents", "zero labels"])
def test_no_spread_is_never_nan(case, m, dtype):
    keys, queries = pair((100, m, 40), dtype)
    if case == "one document":
        keys = keys[:1]
    elif case == "identical":
        keys = keys[:1].expand(100, 40) * torch.tensor([1, 2, 4, 8] * 25, dtype=dtype, device="cuda")[:, None]
    elif case == "zero documents":
        keys = torch.zeros_like(keys)
    else:
        queries = torch.zeros_like(queries)
    scores, mean, std = ops.cosine_surprise(keys, queries)
    assert torch.equal(std, torch.zeros_like(std))
    assert torch.equal(scores, torch.full_like(scores, 0.5))
    above = ops.surprise_from_moments(keys, queries, mean - 0.01, std)
    below = ops.surprise_from_moments(keys, queries, mean + 0.01, std)
    assert torch.equal(above, torch.ones_like(above))
    assert torch.equal(below, torch.zeros_like(below))


def test_nan_rows_stay_in_their_row():
    keys, queries = pair((200, 20, 40), torch.float32)
    _, mean, std = ops.cosine_surprise(keys, queries)
    want = ops.surprise_from_moments(keys, queries, mean, std)
    keys[7, 3] = float("nan")
    keys[150, 0] = float("inf")
    got = ops.surprise_from_moments(keys, queries, mean, std)
    bad = torch.zeros(200, dtype=torch.bool, device="cuda")
    bad[[7, 150]] = True
    assert got[bad].isnan().all()
    assert torch.equal(got[~bad], want[~bad])
    values, indices = ops.surprise_topk(keys, queries, mean, std, 3)
    assert values[bad].isnan().all()
    assert ((indices >= 0) & (indices < 20)).all()


def test_plain_dot_products():
    keys, queries = pair((50, 6, 24), torch.float32)
    scores, mean, std = ops.cosine_surprise(keys, queries, normalize=False, output="cosine")
    want = exact(keys) @ exact(queries).T
    torch.testing.assert_close(scores.cpu().double(), want, rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(mean.cpu(), want.mean(0), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(std.cpu(), want.std(0, correction=0), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("m", [7, 40, 300])
def test_same_bits_from_run_to_run_and_for_every_row_order(m, dtype):
    keys, queries = pair((20_000, m, 100), dtype)
    first = ops.cosine_surprise(keys, queries)
    for _ in range(3):
        for got, want in zip(ops.cosine_surprise(keys, queries), first, strict=True):
            assert torch.equal(got, want)
    if dtype != torch.float64:  # there the library's product may choose by shape, not by row
        order = torch.randperm(20_000, generator=torch.Generator().manual_seed(0)).cuda()
        _, mean, std = first
        scores = ops.surprise_from_moments(keys, queries, mean, std)
        assert torch.equal(ops.surprise_from_moments(keys[order], queries, mean, std), scores[order])


def test_the_current_stream_is_used():
    keys, queries = pair((60_000, 20, 512), torch.float32)
    want = ops.cosine_surprise(keys, queries)[0]
    late = torch.zeros_like(keys)
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        torch.cuda._sleep(20_000_000)
        late.copy_(keys)
        got = ops.cosine_surprise(late, queries)[0]
    torch.cuda.synchronize()
    assert torch.equal(got, want)


def test_memory_beyond_inputs_and_outputs_is_bounded():
    keys, queries = pair((300_000, 200, 64), torch.bfloat16)
    scores, mean, std = ops.cosine_surprise(keys, queries)
    output = scores.numel() * 4
    for call, kept in (
        (lambda: ops.cosine_surprise(keys, queries), output),
        (lambda: ops.cosine_moments(keys, queries), 0),
        (lambda: ops.surprise_topk(keys, queries, mean, std, 1), len(keys) * 12),
    ):
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        call()
        assert torch.cuda.max_memory_allocated() - before <= kept + (32 << 20)


# --- conformance ----------------------------------------------------------------------------------------------------


def sample(dtype, grad=False):
    keys, queries = pair((13, 5, 12), dtype)
    return keys.requires_grad_(grad), queries.requires_grad_(grad)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_opcheck(dtype):
    keys, queries = sample(dtype, grad=True)
    op = torch.ops.surprise_hf
    _, mean, std = op.cosine_surprise(keys.detach(), queries.detach())
    for output in ("z", "score"):
        torch.library.opcheck(op.cosine_surprise.default, (keys, queries), {"output": output}, atol=1e-4, rtol=1e-3)
        torch.library.opcheck(
            op.surprise_from_moments.default, (keys, queries, mean, std), {"output": output}, atol=1e-4, rtol=1e-3
        )
    torch.library.opcheck(op.cosine_moments.default, (keys, queries), atol=1e-4, rtol=1e-3)
    torch.library.opcheck(op.surprise_topk.default, (keys, queries, mean, std, 2), atol=1e-4, rtol=1e-3)
    state = [torch.zeros(s, dtype=torch.float64, device="cuda") for s in ((), (12,), (12, 12))]
    torch.library.opcheck(op.ensemble_update.default, (*state, keys.detach()))


@pytest.mark.parametrize("output", ops.OUTPUTS)
def test_gradients(output):
    keys, queries = sample(torch.float64, grad=True)
    mean, std = (x.requires_grad_() for x in ops.cosine_moments(keys.detach(), queries.detach()))
    check = torch.autograd.gradcheck
    assert check(lambda k, q: ops.cosine_surprise(k, q, output=output), (keys, queries))
    assert check(ops.cosine_moments, (keys, queries))
    assert check(lambda *x: ops.surprise_from_moments(*x, output=output), (keys, queries, mean, std))
    assert check(lambda *x: ops.surprise_topk(*x, 2, output=output)[0], (keys, queries, mean, std))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(64, 150, 768), (5, 3, 7), (300, 14, 385)], ids=str)
def test_focal_loss(shape, dtype):
    n, m, _ = shape
    keys, queries = (x.requires_grad_() for x in pair(shape, dtype))
    positive = torch.rand(n, m, generator=torch.Generator().manual_seed(3)) < 0.2
    wide = [exact(x.detach()).requires_grad_() for x in (keys, queries)]
    want = ops.weighted_focal_loss(*wide, positive, impl="reference")
    got = ops.weighted_focal_loss(keys, queries, positive.cuda())
    eps = {torch.float64: 1e-12, torch.float32: 5e-6}.get(dtype, 5e-5)
    for x, y in zip(got, want, strict=True):
        assert x.item() == pytest.approx(y.item(), rel=eps)
    grads, exact_grads = torch.autograd.grad(got[0], (keys, queries)), torch.autograd.grad(want[0], wide)
    for found, wanted, source in zip(grads, exact_grads, wide, strict=True):
        x, y = (g.cpu().double() * source.detach().norm(dim=1, keepdim=True) for g in (found, wanted))
        noise = 20 * eps + (0 if dtype == torch.float64 else torch.finfo(dtype).eps)
        assert (x - y).abs().max() <= noise * y.abs().max() + (1e-6 if dtype == torch.float16 else 0)


def test_focal_loss_conforms():
    keys, queries = sample(torch.float64, grad=True)
    positive = torch.eye(13, 5, dtype=torch.bool, device="cuda")
    torch.library.opcheck(torch.ops.surprise_hf.weighted_focal_loss.default, (keys, queries, positive))
    assert torch.autograd.gradcheck(lambda k, q: ops.weighted_focal_loss(k, q, positive)[0], (keys, queries))


def test_compiles_into_one_graph():
    keys, queries = sample(torch.float32)

    def f(keys, queries):
        scores, mean, std = ops.cosine_surprise(keys * 2, queries)
        best, _ = ops.surprise_topk(keys, queries, mean, std, 1)
        return scores + 1, best, ops.surprise_from_moments(keys, queries, *ops.cosine_moments(keys, queries)), std

    for got, want in zip(torch.compile(f, fullgraph=True)(keys, queries), f(keys, queries), strict=True):
        torch.testing.assert_close(got, want)
