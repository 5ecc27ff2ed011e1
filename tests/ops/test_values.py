"""Every op against the definition in float64, over shapes, dtypes, layouts and instruction sets."""

import math
import os
import subprocess
import sys

import pytest
import torch

from surprise_hf import ops

from .shapes import DTYPES, LARGE, SHAPES, devices, everywhere, rms, rows, tolerance


def exact_pair(keys, queries):
    """The same numbers in float64 on the CPU, so that only the op's own rounding is measured."""
    return keys.cpu().to(torch.float64), queries.cpu().to(torch.float64)


def pair(shape, dtype, device):
    n, m, d = shape
    return rows(n, d, dtype, 1, device), rows(m, d, dtype, 2, device)


def eager(keys, queries, mean=None, std=None):
    """The formula as people write it, in the dtype of the input."""
    k = torch.nn.functional.normalize(keys, dim=1)
    q = torch.nn.functional.normalize(queries, dim=1)
    psi = k @ q.T
    mean = psi.mean(0) if mean is None else mean.to(psi.dtype)
    std = psi.std(0, correction=0) if std is None else std.to(psi.dtype)
    z = (psi - mean) / std
    return psi, z, 0.5 * (1 + torch.erf(z / math.sqrt(2)))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@everywhere(SHAPES, LARGE)
@pytest.mark.parametrize("output", ops.OUTPUTS)
def test_cosine_surprise(device, shape, dtype, output):
    n, m, d = shape
    keys, queries = pair(shape, dtype, device)
    got, mean, std = (x.cpu() for x in ops.cosine_surprise(keys, queries, output=output))
    wide = exact_pair(keys, queries)
    want, want_mean, want_std = ops.cosine_surprise(*wide, output=output, impl="reference")
    assert got.shape == (n, m)
    assert got.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert mean.dtype == std.dtype == torch.float64
    eps = tolerance(device, dtype, d)
    torch.testing.assert_close(mean, want_mean, rtol=0, atol=eps)
    torch.testing.assert_close(std, want_std, rtol=0, atol=eps)
    if n > 2 and m:  # with two documents z = +-1 whatever the numbers
        # a rounding of eps in psi moves z by eps / sigma (1 + |z|), and log_tail by up to z times that
        z = (ops.cosine_surprise(*wide, output="z", impl="reference")[0]).abs()
        noise = 2 * eps / want_std.clamp(min=1e-3) * (2 + z) * (4 + z if output == "log_tail" else 1)
        bound = eps if output == "cosine" else noise
        assert ((got.double() - want).abs() <= bound + 1e-6 * want.abs()).all()
    assert not got.isnan().any()


@pytest.mark.parametrize("dtype", [t for t in DTYPES if t != torch.float64], ids=str)  # nothing is wider than float64
@everywhere(
    [(400, 4, 384), (400, 31, 768), (400, 150, 256)],
    cuda=[(4000, 4, 384), (4000, 31, 768), (4000, 150, 1024), (1000, 1000, 768)],
)
def test_error_is_no_larger_than_that_of_the_plain_expression(device, shape, dtype):
    keys, queries = pair(shape, dtype, device)
    assert not torch.backends.cuda.matmul.allow_tf32
    wide = exact_pair(keys, queries)
    for index, output in enumerate(("cosine", "z", "score")):
        want, mean, std = ops.cosine_surprise(*wide, output=output, impl="reference")
        naive = rms(eager(keys, queries)[index].cpu(), want)
        got = rms(ops.cosine_surprise(keys, queries, output=output)[0].cpu(), want)
        print(f"{device} {shape} {dtype} {output}: rms {got:.2e}, plain {naive:.2e}")
        assert got <= 1.1 * naive
        if device == "cpu":
            fixed = rms(eager(keys, queries, mean, std)[index], want)
            assert rms(ops.surprise_from_moments(keys, queries, mean, std, output=output), want) <= 1.1 * fixed


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@everywhere(SHAPES, LARGE)
def test_moments_alone_are_those_of_the_full_pass(device, shape, dtype):
    keys, queries = pair(shape, dtype, device)
    _, mean, std = ops.cosine_surprise(keys, queries)
    assert torch.equal(torch.stack(ops.cosine_moments(keys, queries)), torch.stack([mean, std]))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@everywhere(SHAPES, LARGE)
@pytest.mark.parametrize("output", ops.OUTPUTS)
def test_known_moments_give_the_scores_of_the_full_pass(device, shape, dtype, output):
    keys, queries = pair(shape, dtype, device)
    scores, mean, std = ops.cosine_surprise(keys, queries, output=output)
    assert torch.equal(ops.surprise_from_moments(keys, queries, mean, std, output=output), scores)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@everywhere([s for s in SHAPES if s[1]], LARGE)
@pytest.mark.parametrize("k", [1, 2, 7])
def test_topk_is_the_sorted_matrix(device, shape, dtype, k):
    k = min(k, shape[1])
    keys, queries = pair(shape, dtype, device)
    z, mean, std = ops.cosine_surprise(keys, queries, output="z")
    order = z.argsort(dim=1, descending=True, stable=True)[:, :k]
    for output in ops.OUTPUTS:
        values, indices = ops.surprise_topk(keys, queries, mean, std, k, output=output)
        assert torch.equal(indices, order)
        matrix = ops.surprise_from_moments(keys, queries, mean, std, output=output)
        torch.testing.assert_close(values, matrix.gather(1, order), rtol=1e-6, atol=1e-30)


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@everywhere([(1, 3), (5, 1), (600, 17), (513, 48), (1100, 130), (2049, 7)], cuda=[(9000, 384)])
def test_ensemble_update(device, shape, dtype, exact):
    b, d = shape
    first, second = rows(b, d, dtype, 3), rows(2 * b, d, dtype, 4)
    state = [torch.zeros(s, dtype=torch.float64, device=device) for s in ((), (d,), (d, d))]
    ops.ensemble_update(*state, first.to(device), exact=exact)
    ops.ensemble_update(*state, second.to(device), exact=exact)
    count, mean, scatter = (x.cpu() for x in state)
    unit = torch.nn.functional.normalize(torch.cat([first, second]).double(), dim=1)
    centred = unit - unit.mean(0)
    tight = exact or dtype == torch.float64
    assert count.item() == 3 * b
    torch.testing.assert_close(mean, unit.mean(0), rtol=0, atol=1e-15 if tight else 1e-7)
    near = 1e-12 if tight else 2e-7 if device == "cpu" else 6e-7
    torch.testing.assert_close(scatter, centred.T @ centred, rtol=0, atol=near * 3 * b / d)
    if device == "cpu":
        assert torch.equal(scatter, scatter.T)
    if b > 5:
        sigma, want = (x.diagonal().sqrt() for x in (scatter, centred.T @ centred))
        torch.testing.assert_close(sigma, want, rtol=1e-12 if tight else 1e-6, atol=0)


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("blocks", [1, 2, 5])
def test_ensemble_update_gives_the_same_bits_with_any_number_of_threads(blocks, exact):
    """Many rows are two chains, whose blocks are the same whoever adds them."""
    batch = rows(512 * blocks - 100, 20, torch.float32, 7)
    states = []
    for _ in every_thread_count():
        states.append([torch.zeros(s, dtype=torch.float64) for s in ((), (20,), (20, 20))])
        ops.ensemble_update(*states[-1], batch, exact=exact)
        assert all(map(torch.equal, states[-1], states[0]))


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("offset", [0.0, 30.0])
@pytest.mark.parametrize("shape", [(2, 3), (65, 33), (900, 40), (1700, 100)], ids=str)
def test_ensemble_update_of_columns_of_any_size(shape, offset, exact):
    """Each entry is right beside its own columns' spread, whatever their mean and however small they are."""
    sizes = 10.0 ** torch.linspace(-6, 6, shape[1], dtype=torch.float64)
    batch = ((rows(*shape, torch.float64, 5) + offset) * sizes).to(torch.float64 if exact else torch.float32)
    state = [torch.zeros(s, dtype=torch.float64) for s in ((), shape[1:], shape[1:] * 2)]
    ops.ensemble_update(*state, batch, normalize=False, exact=exact)
    mean = batch.double().mean(0)
    centred = batch.double() - mean
    spread = centred.square().sum(0).sqrt()
    torch.testing.assert_close(state[1], mean, rtol=1e-14, atol=0)
    error = (state[2] - centred.T @ centred) / (spread[:, None] * spread)
    assert error.abs().max() <= (1e-12 if exact else 1e-6)
    again = [torch.zeros_like(x) for x in state]
    ops.ensemble_update(*again, batch, normalize=False, exact=exact)
    assert torch.equal(again[2], state[2])


@devices
def test_ensemble_update_of_a_state_in_any_layout(device):
    batch = rows(70, 20, torch.float32, 6, device)
    wide = torch.zeros(20, 40, dtype=torch.float64, device=device)
    state = torch.zeros((), dtype=torch.float64, device=device), wide[:, 1], wide[:, ::2].T
    plain = [x.clone(memory_format=torch.contiguous_format) for x in state]
    for _ in range(2):
        ops.ensemble_update(*state, batch)
        ops.ensemble_update(*plain, batch)
    assert plain[0].item() == 140
    for got, want in zip(state, plain, strict=True):
        assert torch.equal(got, want)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("exact", [False, True])
def test_ensemble_update_does_not_hide_what_is_not_finite(exact, bad):
    batch = rows(40, 5, torch.float32, 6)
    batch[7, 2] = bad
    state = [torch.zeros(s, dtype=torch.float64) for s in ((), (5,), (5, 5))]
    ops.ensemble_update(*state, batch, normalize=False, exact=exact)
    assert not state[2][2].isfinite().any()
    assert state[2][0, [0, 1, 3, 4]].isfinite().all()


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@everywhere([(0, 5), (1, 1), (3, 4), (97, 17), (200, 100), (130, 385)])
def test_ensemble_moments(device, shape, dtype, normalize):
    m, d = shape
    documents, queries = rows(3 * d, d, torch.float64, 3), rows(m, d, dtype, 4)
    unit = torch.nn.functional.normalize(documents, dim=1)
    covariance = torch.cov(unit.T, correction=0).reshape(d, d)
    on_device = (x.to(device) for x in (unit.mean(0), covariance, queries))
    mean, variance = (x.cpu() for x in ops.ensemble_moments(*on_device, normalize=normalize))
    q = queries.double()
    psi = unit @ (torch.nn.functional.normalize(q, dim=1) if normalize else q).T
    scale = 1.0 if normalize else q.square().sum(1).max().item() if m else 1.0
    torch.testing.assert_close(mean, psi.mean(0), rtol=1e-12, atol=1e-14 * scale)
    want = (psi - psi.mean(0)).square().mean(0)
    torch.testing.assert_close(variance, want, rtol=1e-9, atol=1e-14 * scale)


@devices
def test_plain_dot_products(device):
    keys, queries = pair((50, 6, 24), torch.float32, device)
    scores, mean, std = (x.cpu() for x in ops.cosine_surprise(keys, queries, normalize=False, output="cosine"))
    k, q = exact_pair(keys, queries)
    want = k @ q.T
    torch.testing.assert_close(scores.double(), want, rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(mean, want.mean(0), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(std, want.std(0, correction=0), rtol=1e-5, atol=1e-5)


@devices
@pytest.mark.parametrize("m", [1, 3, 4, 5, 9, 20, 40])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_layouts_do_not_matter(m, dtype, device):
    """Transposed, strided, sliced and misaligned views give the bits of a contiguous copy."""
    keys, queries = pair((60, m, 40), dtype, device)
    want = ops.cosine_surprise(keys, queries)

    def transposed(x):
        return x.T.contiguous().T

    def strided(x):
        wide = torch.full((x.shape[0], 2 * x.shape[1]), float("nan"), dtype=dtype, device=device)
        wide[:, ::2] = x
        return wide[:, ::2]

    def padded(x):  # neighbours are NaN: reading one of them would show
        wide = torch.full((x.shape[0] + 2, x.shape[1] + 3), float("nan"), dtype=dtype, device=device)
        wide[1:-1, 1:-2] = x
        return wide[1:-1, 1:-2]

    def shifted(x):
        flat = torch.full((x.numel() + 9,), float("nan"), dtype=dtype, device=device)
        return flat[3 : 3 + x.numel()].view(x.shape).copy_(x)

    for view in (transposed, strided, padded, shifted):
        for got, expected in zip(ops.cosine_surprise(view(keys), view(queries)), want, strict=True):
            assert torch.equal(got, expected)
    for view in (lambda x: x.reshape(-1)[: len(x) + 39].unfold(0, 40, 1), lambda x: x[:1].expand(len(x), -1)):
        overlapping = view(keys), view(queries)
        want = ops.cosine_surprise(*(x.clone(memory_format=torch.contiguous_format) for x in overlapping))
        for got, expected in zip(ops.cosine_surprise(*overlapping), want, strict=True):
            assert torch.equal(got, expected)


@devices
@pytest.mark.parametrize("m", [1, 4, 9, 29, 60])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("scale", [1e-42, 1e-30, 1e-18, 1e18, 1e30])
def test_rows_of_extreme_size(m, dtype, scale, device):
    keys, queries = rows(40, 33, torch.float64, 1), rows(m, 33, torch.float64, 2)
    keys[::3] *= scale
    queries[::2] *= scale
    keys, queries = keys.to(dtype), queries.to(dtype)
    got = ops.cosine_surprise(keys.to(device), queries.to(device), output="cosine")[0].cpu()
    want = ops.cosine_surprise(*exact_pair(keys, queries), output="cosine", impl="reference")[0]
    torch.testing.assert_close(got.double(), want, rtol=0, atol=tolerance("cuda", dtype, 33))


@devices
@pytest.mark.parametrize("m", [1, 4, 9, 60])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", ["one document", "identical", "zero documents", "zero labels"])
def test_no_spread_is_never_nan(case, m, dtype, device):
    """sigma = 0: the score is 0 below the mean, 0.5 at it, 1 above (design, fact 4)."""
    keys, queries = pair((100, m, 40), dtype, device)
    if case == "one document":
        keys = keys[:1]
    elif case == "identical":
        keys = keys[:1].expand(100, 40) * torch.tensor([1, 2, 4, 8] * 25, dtype=dtype, device=device)[:, None]
    elif case == "zero documents":
        keys = torch.zeros_like(keys)
    else:
        queries = torch.zeros_like(queries)
    scores, mean, std = ops.cosine_surprise(keys, queries)
    assert torch.equal(std, torch.zeros_like(std))
    assert torch.equal(scores, torch.full_like(scores, 0.5))
    z = ops.cosine_surprise(keys, queries, output="z")[0]
    assert torch.equal(z, torch.zeros_like(z))
    above = ops.surprise_from_moments(keys, queries, mean - 0.01, std)
    below = ops.surprise_from_moments(keys, queries, mean + 0.01, std)
    assert torch.equal(above, torch.ones_like(above))
    assert torch.equal(below, torch.zeros_like(below))


@devices
def test_nan_rows_stay_in_their_row(device):
    keys, queries = pair((200, 20, 40), torch.float32, device)
    _, mean, std = ops.cosine_surprise(keys, queries)
    want = ops.surprise_from_moments(keys, queries, mean, std)
    keys[7, 3] = float("nan")
    keys[150, 0] = float("inf")
    got = ops.surprise_from_moments(keys, queries, mean, std)
    bad = torch.zeros(200, dtype=torch.bool, device=device)
    bad[[7, 150]] = True
    assert got[bad].isnan().all()
    assert torch.equal(got[~bad], want[~bad])
    values, indices = ops.surprise_topk(keys, queries, mean, std, 3)
    assert values[bad].isnan().all()
    assert ((indices >= 0) & (indices < 20)).all()


@devices
@pytest.mark.parametrize("impl", ops.IMPLEMENTATIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("m", [2, 3, 4, 6, 8, 12, 16, 40])
def test_topk_puts_nan_last(m, dtype, impl, device):
    """Whichever labels have no numbers, and however many are asked for: the others as if alone, no index twice."""
    keys, queries = pair((40, m, 16), dtype, device)
    keys[3] = float("nan")
    for bad in ([0], [m // 2], [m - 1], [0, m // 2]):
        some = queries.clone()
        some[bad] = float("nan")
        _, mean, std = ops.cosine_surprise(keys[4:], some)
        for output in ("z", "cosine"):
            matrix = ops.surprise_from_moments(keys, some, mean, std, output=output, impl=impl).double()
            z = matrix if output == "z" else (matrix - mean) / std
            order = (-z).argsort(dim=1, stable=True)  # NaN last
            for k in {1, min(2, m), m}:
                values, indices = ops.surprise_topk(keys, some, mean, std, k, output=output, impl=impl)
                assert torch.equal(indices, order[:, :k])
                got, want = values.double(), matrix.gather(1, order)[:, :k]
                torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)


@devices
@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("copies", [1, 2, 5])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rows_that_are_infinite_nan_huge_or_tiny(dtype, copies, normalize, device):
    """Each entry is what the sum of its products is by IEEE rules: NaN, an infinity of that sign, or a number."""
    inf, nan, limits = math.inf, math.nan, torch.finfo(dtype)
    x = torch.randn(10, 65, generator=torch.Generator().manual_seed(7)).to(dtype)
    x[1] = 0
    x[2, 3] = inf
    x[3, 7] = -inf
    x[4, 3], x[4, 7] = inf, -inf
    x[5, 40] = nan
    x[6] = torch.where(x[6] > 0, inf, -inf)
    x[7] *= limits.max**0.45
    x[8] *= limits.tiny / 8
    x[9] = 0
    x[9, 64] = inf
    keys, queries = x.repeat(copies, 1), x.flip(0).repeat(copies, 1)

    def rows_of(rows):
        rows = rows.double()
        if not normalize:
            return rows
        rows = rows / rows.abs().amax(1, keepdim=True).clamp_min(1e-320)
        return rows / rows.norm(dim=1, keepdim=True).clamp_min(1e-300)

    k, q = rows_of(keys), rows_of(queries)
    want = (k[:, None] * q).sum(2)
    got = ops.cosine_surprise(keys.to(device), queries.to(device), normalize=normalize, output="cosine")[0]
    got = got.cpu().double()
    assert torch.equal(got.isnan(), want.isnan())
    infinite = want.isinf()
    assert torch.equal(got[infinite], want[infinite])
    finite = want.isfinite()
    size = (k.norm(dim=1)[:, None] * q.norm(dim=1))[finite]
    rounding = 1e-14 if dtype == torch.float64 else 1e-6 if device == "cpu" else tolerance(device, dtype, 65)
    # a tensor core need not keep what is smaller than the smallest normal number
    least = 1e-44 if device == "cpu" else 100 * torch.finfo(torch.float32).tiny
    assert ((got - want)[finite].abs() <= rounding * size + least).all()


def test_the_far_tail():
    """log(1 - Phi(z)) against mpmath's values, where 1 - Phi(z) has long been 0 in float32."""
    # keys along the query at chosen cosines; mean 0 and std chosen so that z is the wanted number
    z = torch.tensor([-20.0, -3.0, 0.0, 1.0, 5.0, 9.0, 20.0, 37.0, 100.0], dtype=torch.float64)
    want = [
        -2.7536241186062337e-89,
        -0.0013508099647481938,
        -0.6931471805599453,
        -1.8410216450092636,
        -15.064998393988725,
        -43.628149113332114,
        -203.91715537109727,
        -689.0305855768906,
        -5005.524208694205,
    ]
    cosine = z / 128
    keys = torch.stack([cosine, (1 - cosine**2).sqrt()], dim=1)
    queries = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    mean, std = torch.zeros(1, dtype=torch.float64), torch.full((1,), 1 / 128, dtype=torch.float64)
    got = ops.surprise_from_moments(keys, queries, mean, std, output="log_tail")[:, 0]
    torch.testing.assert_close(got, torch.tensor(want, dtype=torch.float64), rtol=1e-12, atol=0)
    got = ops.surprise_from_moments(keys.float(), queries.float(), mean, std, output="log_tail")[:, 0]
    torch.testing.assert_close(got.double(), torch.tensor(want, dtype=torch.float64), rtol=2e-5, atol=1e-37)


def test_score_of_chosen_z_in_float32():
    """The vector form of Phi over its whole range: a relative error in the lower tail, never outside [0, 1]."""
    z = torch.linspace(-13, 9, 20_001, dtype=torch.float64)
    keys = torch.stack([z / 16, (1 - (z / 16) ** 2).sqrt()], dim=1).float()
    mean, std = torch.zeros(1, dtype=torch.float64), torch.full((1,), 1 / 16, dtype=torch.float64)
    queries = torch.tensor([[1.0, 0.0]])
    got = ops.surprise_from_moments(keys, queries, mean, std)[:, 0]
    seen = ops.surprise_from_moments(keys, queries, mean, std, output="z")[:, 0].double()
    want = 0.5 * torch.erfc(-seen * math.sqrt(0.5))  # torch.special.ndtr cancels below -8
    assert ((got >= 0) & (got <= 1)).all()
    # without a fused multiply-add (SSE2) the square in exp(-z^2/2) is rounded once more
    rounding = 5e-6 if ops.build_info()["cpu_features"] == "portable" else 1e-6
    tail = seen < -2.5
    torch.testing.assert_close(got.double()[tail], want[tail], rtol=rounding, atol=1e-37)
    torch.testing.assert_close(got.double()[~tail], want[~tail], rtol=0, atol=2e-7)


def every_thread_count():
    """Goes through numbers of threads, and back to the one there was."""
    threads = torch.get_num_threads()
    try:
        for count in (threads, threads, 1, 2, 3):
            torch.set_num_threads(count)
            yield count
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@everywhere(
    [(5_000, 40, 100), (5_000, 29, 104), (5_000, 10, 96)],
    cuda=[(20_000, 7, 100), (20_000, 40, 100), (20_000, 300, 100)],
)
def test_same_bits_from_run_to_run_and_for_every_row_order(device, shape, dtype):
    keys, queries = pair(shape, dtype, device)
    first = ops.cosine_surprise(keys, queries)
    for _ in every_thread_count():
        for got, want in zip(ops.cosine_surprise(keys, queries), first, strict=True):
            assert torch.equal(got, want)
    if device == "cpu" or dtype != torch.float64:  # there the library's product may choose by shape, not by row
        order = torch.randperm(len(keys), generator=torch.Generator().manual_seed(0)).to(device)
        _, mean, std = first
        scores = ops.surprise_from_moments(keys, queries, mean, std)
        assert torch.equal(ops.surprise_from_moments(keys[order], queries, mean, std), scores[order])


@devices
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("m", [2, 6, 7, 9, 10, 20, 29, 47, 77])
def test_equal_queries_tie(m, dtype, device):
    """To the last bit, wherever they stand: the best are then the first ones."""
    keys, queries = rows(90, 104, dtype, 1, device), rows(1, 104, dtype, 2, device).repeat(m, 1)
    scores, mean, std = ops.cosine_surprise(keys, queries)
    assert torch.equal(scores, scores[:, :1].expand_as(scores))
    _, indices = ops.surprise_topk(keys, queries, mean, std, 2)
    assert torch.equal(indices.cpu(), torch.tensor([0, 1]).expand(90, 2))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("m", "d"), [(1, 384), (4, 40), (6, 33), (9, 600), (14, 129), (20, 300), (60, 777)])
def test_half_precision_is_float32_of_the_same_numbers(m, d, dtype):
    """To the last bit: widening is exact, and the additions go the same way. AMX takes bfloat16 as it is."""
    keys, queries = pair((230, m, d), dtype, "cpu")
    got, want = ops.cosine_surprise(keys, queries), ops.cosine_surprise(keys.float(), queries.float())
    amx = ops.build_info()["cpu_features"] == "amx"
    for x, y in zip(got, want, strict=True):
        torch.testing.assert_close(x, y, rtol=0, atol=1e-5 if amx else 0)


@pytest.mark.parametrize(("m", "d"), [(9_000, 512), (20_000, 4)])
def test_more_queries_than_fit_in_one_packed_block(m, d):
    keys, queries = rows(50, d, torch.float32, 1), rows(m, d, torch.float32, 2)
    got, mean, std = ops.cosine_surprise(keys, queries, output="z")
    wide = exact_pair(keys, queries)
    want, want_mean, _ = ops.cosine_surprise(*wide, output="z", impl="reference")
    torch.testing.assert_close(mean, want_mean, rtol=0, atol=3e-7)
    torch.testing.assert_close(got.double(), want, rtol=0, atol=2e-3)
    values, indices = ops.surprise_topk(keys, queries, mean, std, 3, output="z")
    best = got.topk(3, dim=1)
    assert torch.equal(indices, best.indices)
    assert torch.equal(values, best.values)


@pytest.mark.parametrize("features", ["portable", "avx2", "avx512", "amx"])
def test_every_instruction_set(features):
    """The CPU's part of this file again, on two threads, under each set of kernels this processor can run (the best one
    otherwise).
    """
    if os.environ.get("SURPRISE_HF_CPU") is not None:
        return  # already inside such a run
    env = {**os.environ, "SURPRISE_HF_CPU": features, "OMP_NUM_THREADS": "2"}
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-k", "not cuda", __file__]
    run = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout[-3000:]


@devices
@pytest.mark.parametrize("m", [1, 14, 15, 40, 200])
def test_rows_without_columns_know_nothing_of_the_call_before(device, m):
    ops.cosine_surprise(torch.full((100, 64), math.inf, device=device), torch.ones(m, 64, device=device))
    empty = (torch.empty(n, 0, device=device) for n in (100, m))
    score, mean, std = ops.cosine_surprise(*empty)
    assert (score == 0.5).all()
    assert (mean == 0).all()
    assert (std == 0).all()
