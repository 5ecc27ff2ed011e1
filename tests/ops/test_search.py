"""The two ops of a search: the rows with the largest products for each query, and exact products of rows found."""

import math

import pytest
import torch

from surprise_hf import ops

from .shapes import DTYPES, devices, everywhere, rows

SHAPES = [(1, 1, 1), (5, 2, 7), (33, 3, 64), (97, 16, 32), (200, 5, 100), (1500, 40, 96), (3000, 1, 384)]


def bounds(keys, queries, margin, scale):
    """(m, n) float64, by the definition."""
    return (queries.double() @ keys.double().T + margin[:, None]) * (1.0 if scale is None else scale.double())


@pytest.mark.parametrize("impl", ["auto", "reference"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("k", [1, 4, 60])
@everywhere(SHAPES, [(100_000, 200, 384)])
def test_the_largest_come_first(device, shape, k, dtype, impl):
    n, m, d = shape
    k = min(k, n)
    generator = torch.Generator().manual_seed(n)
    keys, queries = (rows(count, d, torch.float64, seed) for count, seed in ((n, 1), (m, 2)))
    keys, queries = (torch.nn.functional.normalize(x).to(dtype) for x in (keys, queries))
    margin = 0.1 * torch.rand(m, dtype=torch.float64, generator=generator)
    scale = 0.5 + torch.rand(n, generator=generator)
    for given, upper in ((None, None), (scale, None), (scale.where(torch.arange(n) % 3 > 0, math.nan), 0.4)):
        want = bounds(keys, queries, margin, given)
        left_out = want.isnan()
        if upper is not None:
            left_out |= bounds(keys, queries, -margin, given) > upper
        best = want.masked_fill(left_out, -math.inf).sort(dim=1, descending=True).values[:, :k]
        on_device = (x if x is None else x.to(device) for x in (keys, queries, margin, given))
        values, index = (x.cpu() for x in ops.search_topk(*on_device, k, upper=upper, impl=impl))
        assert values.dtype == ops.compute_dtype(dtype)
        error = 1e-13 if dtype == torch.float64 else 3e-7 * max(1, d / 16)
        torch.testing.assert_close(values.double(), best, rtol=0, atol=error)
        there = values > -math.inf
        torch.testing.assert_close(want.gather(1, index)[there], values.double()[there], rtol=0, atol=error)
        assert all(len(found[some].unique()) == some.sum() for found, some in zip(index, there, strict=True))
        assert (index[~there] == 0).all()


@devices
def test_rows_that_are_no_numbers_are_left_out(device):
    keys = torch.eye(3, 4, device=device)
    keys[1, 3] = math.nan
    values, index = ops.search_topk(keys, torch.ones(1, 4, device=device), torch.zeros(1, device=device), None, 3)
    assert values.tolist() == [[1, 1, -math.inf]]
    assert sorted(index[0].tolist()) == [0, 0, 2]


@devices
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("n", [5, 37, 70])
def test_rows_that_share_memory(n, dtype, device):
    flat, query = (rows(1, size, dtype, 3, device)[0] for size in (n + 63, 64))
    for keys in (flat.unfold(0, 64, 1), flat[:64].expand(n, 64)):
        for m in (1, 5, 40):
            found, want = (
                ops.search_topk(x, query.expand(m, 64), torch.zeros(m, device=device), None, 3)
                for x in (keys, keys.clone(memory_format=torch.contiguous_format))
            )
            assert torch.equal(found[0], want[0])


@devices
def test_of_equal_rows_none_comes_twice(device):
    keys, query = torch.ones(5000, 32, device=device), torch.ones(1, 32, device=device)
    for dtype in DTYPES:
        values, index = ops.search_topk(keys.to(dtype), query.to(dtype), torch.zeros(1, device=device), None, 700)
        assert (values == 32).all()
        assert len(index.unique()) == 700


@devices
@pytest.mark.parametrize("impl", ["auto", "reference"])
@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (9, 3, 5, 7), (300, 70, 80, 33), (50, 2, 9000, 8)], ids=str)
def test_gathered_products(shape, impl, device):
    n, b, f, d = shape
    generator = torch.Generator().manual_seed(n)
    keys, queries = rows(n, d, torch.float32, 1), rows(b, d, torch.float64, 2)
    near, rest = ops.split_halves(keys)
    assert torch.equal(ops.join_halves(near, rest), keys)
    assert ((near - keys).abs() <= keys.abs() * 2**-8).all()
    index = torch.randint(-1, n, (b, f), generator=generator)
    index[index < 0] = -1 - torch.arange(int((index < 0).sum())) % (2 * n)  # any negative one is no row
    index[0, 0] = min(n - 1, 3)
    want = (keys.double()[index.clamp(min=0)] @ queries[:, :, None]).squeeze(2).masked_fill(index < 0, 0)
    got = ops.gathered_products(*(x.to(device) for x in (near, rest, index, queries)), impl=impl).cpu()
    torch.testing.assert_close(got, want, rtol=0, atol=1e-15 * d * keys.abs().max().item() * queries.abs().max().item())
    index[0, 0] = n
    with pytest.raises(IndexError if impl == "reference" else RuntimeError):
        ops.gathered_products(*(x.cpu() for x in (near, rest, index, queries)), impl=impl)


@devices
@pytest.mark.parametrize("impl", ["auto", "reference"])
def test_a_search_takes_any_layout_and_has_no_gradient(impl, device):
    draw = torch.Generator().manual_seed(0)
    keys, queries, margin, scale = (
        torch.rand(*shape, generator=draw).to(device) for shape in ((6, 20), (6, 4), (8,), (40,))
    )
    values = []
    for part in (lambda x: x, torch.Tensor.contiguous):
        given = [keys.T, queries.T, margin.double()[::2], scale[::2]]
        values.append(ops.search_topk(*(part(x).requires_grad_() for x in given), 3, impl=impl))
        assert not values[-1][0].requires_grad
    torch.testing.assert_close(values[0], values[1])


HALVES = ops.split_halves(torch.zeros(3, 4))
INDEX, QUERIES = torch.zeros(2, 5, dtype=torch.int64), torch.zeros(2, 4, dtype=torch.float64)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: ops.search_topk(QUERIES, QUERIES, torch.zeros(2), None, 3), ValueError, "between 1 and the 2 keys"),
        (lambda: ops.search_topk(QUERIES, QUERIES, torch.zeros(2), None, 0), ValueError, "between 1 and the 2 keys"),
        (lambda: ops.search_topk(QUERIES, QUERIES, torch.zeros(3), None, 1), ValueError, "margin must have shape"),
        (lambda: ops.search_topk(QUERIES, QUERIES, torch.zeros(2), torch.ones(1), 1), ValueError, "scale must have"),
        (lambda: ops.gathered_products(*HALVES[::-1], INDEX, QUERIES), TypeError, "near must be torch.bfloat16"),
        (lambda: ops.gathered_products(*HALVES, INDEX[0], QUERIES), ValueError, "rows must have 2 dimensions"),
        (lambda: ops.gathered_products(*HALVES, INDEX, QUERIES[:1]), ValueError, "queries"),
        (lambda: ops.gathered_products(HALVES[0], HALVES[1][:1], INDEX, QUERIES), ValueError, "the shape of near"),
        (lambda: ops.gathered_products(*HALVES, INDEX + 3, QUERIES), (RuntimeError, IndexError), "below 3|out of"),
    ],
)
def test_what_does_not_fit_is_named(call, error, message):
    with pytest.raises(error, match=message):
        call()
