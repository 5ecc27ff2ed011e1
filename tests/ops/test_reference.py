"""The torch reference against NumPy and SciPy: where the op is built, the other tests take it for the truth."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.stats
import torch

from surprise_hf.ops import _reference as ref

FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


def rows(n: int, d: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return (torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) + 0.2).to(dtype)


def unit(x: torch.Tensor) -> np.ndarray:
    wide = x.double().numpy()
    return wide / np.linalg.norm(wide, axis=1, keepdims=True)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_unit_rows(dtype):
    x = rows(9, 5, dtype=dtype)
    found = ref.unit_rows(x)
    assert found.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    np.testing.assert_allclose(found.double().numpy(), unit(x), rtol=3e-7)
    assert torch.equal(ref.unit_rows(x, normalize=False), x.to(found.dtype))
    x[3] = 0
    found = ref.unit_rows(x)
    assert torch.equal(found[3], torch.zeros(5, dtype=found.dtype))
    assert found.isfinite().all()


@pytest.mark.parametrize(("dtype", "scale"), [(torch.float32, 1e30), (torch.float32, 1e-30), (torch.float64, 1e200)])
def test_rows_whose_squares_overflow_or_vanish(dtype, scale):
    x = rows(9, 5, dtype=dtype)
    torch.testing.assert_close(ref.unit_rows(x * scale), ref.unit_rows(x))


def test_rows_of_no_dimension():
    x = torch.zeros(3, 0, requires_grad=True)
    assert ref.unit_rows(x).shape == (3, 0)
    assert ref.grad_rows(x, x, x).shape == (3, 0)
    score, mean, std = ref.cosine_surprise(x, x)
    assert torch.equal(score, torch.full((3, 3), 0.5))
    assert not mean.any()
    assert not std.any()


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("scale", [1.0, 1e-150, 1e150])
def test_gradient_of_unit_rows_is_autograds(scale, normalize):
    x, given = (rows(6, 4) * scale).requires_grad_(), rows(6, 4, seed=1)
    found = ref.unit_rows(x, normalize)
    (want,) = torch.autograd.grad(found, x, given)
    torch.testing.assert_close(ref.grad_rows(x.detach(), found.detach(), given, normalize), want, rtol=1e-9, atol=0)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_gradient_of_a_zero_row_is_none(dtype):
    x = torch.zeros(2, 3, dtype=dtype)
    x[1] = torch.tensor([3.0, 0.0, 4.0])
    found = ref.grad_rows(x, ref.unit_rows(x), torch.ones(2, 3))
    assert found.dtype == dtype
    assert not found[0].any()
    wide = torch.tensor([0.6, 0.0, 0.8], dtype=torch.float64)
    torch.testing.assert_close(found[1].double(), (1 - 1.4 * wide) / 5, rtol=1e-2, atol=1e-3)


def test_moments_and_z():
    psi = rows(40, 3)
    mean, std = ref.moments(psi)
    np.testing.assert_allclose(mean.numpy(), psi.numpy().mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(std.numpy(), psi.numpy().std(axis=0), rtol=1e-12)
    np.testing.assert_allclose(ref.standardize(psi, mean, std).numpy(), scipy.stats.zscore(psi.numpy()), rtol=1e-9)
    assert [x.tolist() for x in ref.moments(psi[:0])] == [[0.0] * 3] * 2


@pytest.mark.parametrize("size", [1.0, 1000.0])
def test_rounding_is_no_deviation(size):
    """Of dot products too, whose rounding grows with them."""
    eps = torch.finfo(torch.float32).eps
    noise, signal = 4 * eps * size, 64 * eps * size
    psi = torch.tensor([[size - noise, size - signal], [size + noise, size + signal]])
    _, std = ref.moments(psi)
    assert std[0] == 0
    assert std[1] == pytest.approx(signal, rel=0.05)
    assert ref.sigma_floor(torch.tensor([size, -size, 0.0]), eps).tolist() == pytest.approx(
        [8 * eps * size, 8 * eps * size, 8 * eps]
    )


def test_without_deviation_z_is_a_step():
    mean, std = torch.tensor([0.5], dtype=torch.float64), torch.zeros(1, dtype=torch.float64)
    psi = torch.tensor([[0.4], [0.5], [0.5 + 1e-7], [0.5 - 1e-7], [0.6]])
    assert ref.standardize(psi, mean, std).flatten().tolist() == [-math.inf, 0, 0, 0, math.inf]
    score = ref.from_z(psi, ref.standardize(psi, mean, std), "score")
    assert score.flatten().tolist() == [0, 0.5, 0.5, 0.5, 1]
    assert ref.from_z(psi, ref.standardize(psi, mean, std), "log_tail").flatten().tolist()[0] == 0


def test_what_is_made_of_z():
    z = torch.linspace(-30, 30, 121, dtype=torch.float64)
    psi = rows(1, 121)[0]
    assert ref.from_z(psi, z, "cosine") is psi
    assert ref.from_z(psi, z, "z") is z
    np.testing.assert_allclose(ref.from_z(psi, z, "score").numpy(), scipy.stats.norm.cdf(z.numpy()), rtol=1e-12)
    np.testing.assert_allclose(ref.from_z(psi, z, "log_tail").numpy(), scipy.stats.norm.logsf(z.numpy()), rtol=1e-10)
    assert ref.from_z(psi, z.float(), "log_tail").dtype == torch.float32
    with pytest.raises(ValueError, match="output must be one of"):
        ref.from_z(psi, z, "probability")


@pytest.mark.parametrize("normalize", [True, False])
def test_the_ops_of_scores(normalize):
    keys, queries = rows(30, 6), rows(4, 6, seed=1)
    psi = unit(keys) @ unit(queries).T if normalize else keys.numpy() @ queries.numpy().T
    z = scipy.stats.zscore(psi)
    score, mean, std = ref.cosine_surprise(keys, queries, normalize)
    np.testing.assert_allclose(score.numpy(), scipy.stats.norm.cdf(z), rtol=1e-9)
    for found in ((mean, std), ref.cosine_moments(keys, queries, normalize)):
        np.testing.assert_allclose(torch.stack(found).numpy(), [psi.mean(axis=0), psi.std(axis=0)], rtol=1e-9)
    known = ref.surprise_from_moments(keys, queries, mean, std, normalize, "z")
    np.testing.assert_allclose(known.numpy(), z, rtol=1e-9)
    best, at = ref.surprise_topk(keys, queries, mean, std, 2, normalize, "z")
    np.testing.assert_array_equal(at.numpy(), np.argsort(-z, axis=1)[:, :2])
    np.testing.assert_allclose(best.numpy(), -np.sort(-z, axis=1)[:, :2], rtol=1e-9)


def test_cosine_and_the_quicker_products_are_the_defaults():
    keys, queries = rows(30, 6, dtype=torch.float32), rows(4, 6, seed=1, dtype=torch.float32)
    mean, std = ref.cosine_moments(keys, queries, True)
    state = [torch.zeros((), dtype=torch.int64), torch.zeros(6).double(), torch.zeros(6, 6).double()]
    wanted = [x.clone() for x in state]
    ref.ensemble_update(*state, keys)
    ref.ensemble_update(*wanted, keys, True, False)
    for found, want in (
        (ref.unit_rows(keys), ref.unit_rows(keys, True)),
        (
            ref.grad_rows(keys, ref.unit_rows(keys), keys.exp()),
            ref.grad_rows(keys, ref.unit_rows(keys), keys.exp(), True),
        ),
        (ref.cosine_surprise(keys, queries)[0], ref.cosine_surprise(keys, queries, True, "score")[0]),
        (ref.cosine_moments(keys, queries)[0], mean),
        (ref.surprise_from_moments(keys, queries, mean, std), ref.cosine_surprise(keys, queries)[0]),
        (
            ref.surprise_topk(keys, queries, mean, std, 4)[0],
            ref.cosine_surprise(keys, queries)[0].sort(descending=True)[0],
        ),
        (
            ref.ensemble_moments(mean[[0] * 6], state[2], queries)[1],
            ref.ensemble_moments(mean[[0] * 6], state[2], queries, True)[1],
        ),
    ):
        torch.testing.assert_close(found, want, rtol=1e-12, atol=1e-7)
    assert not torch.equal(ref.unit_rows(keys), keys)
    assert all(torch.equal(found, want) for found, want in zip(state, wanted, strict=True))
    ref.ensemble_update(*(exact := [torch.zeros_like(x) for x in state]), keys, True, True)
    assert not torch.equal(exact[2], state[2])


def test_among_equal_labels_the_first_comes_first():
    queries = rows(1, 6).expand(5, 6)
    mean, std = torch.zeros(5, dtype=torch.float64), torch.ones(5, dtype=torch.float64)
    assert ref.surprise_topk(rows(3, 6), queries, mean, std, 3)[1].tolist() == [[0, 1, 2]] * 3


# --- searching -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [5, 3000, 70_003])
def test_largest_of_each_column(n):
    values = torch.randn(n, 3, generator=torch.Generator().manual_seed(n))
    want = values.T.topk(5, dim=1)
    found, at = ref._largest(values, 5)
    assert torch.equal(found, want.values)
    assert torch.equal(at, want.indices)


@pytest.mark.parametrize("pieces", [False, True])
@pytest.mark.parametrize("upper", [None, 1.0, math.inf])
@pytest.mark.parametrize("scaled", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_search(dtype, scaled, upper, pieces, monkeypatch):
    """keys . q + margin, times scale: the k largest, none that surely lies above `upper`."""
    if pieces:
        monkeypatch.setattr(ref, "SEARCH_PIECE", 40)
        monkeypatch.setattr(ref, "SEARCH_TILE", 500)
    keys, queries = rows(200, 8, dtype=dtype), rows(7, 8, seed=1, dtype=dtype)
    margin, scale = rows(1, 7, seed=2)[0].abs() / 10, rows(1, 200, seed=3)[0].abs() if scaled else None
    best, at = ref.search_topk(keys, queries, margin, scale, 4, upper)
    factor = 1.0 if scale is None else scale.numpy()[:, None]
    low = keys.double().numpy() @ queries.double().numpy().T
    values, least = (low + margin.numpy()) * factor, (low - margin.numpy()) * factor
    if upper is not None and upper < math.inf:
        values = np.where(least > upper, -np.inf, values)
    order = np.argsort(-values, axis=0, kind="stable")[:4].T
    np.testing.assert_array_equal(at.numpy(), order)
    np.testing.assert_allclose(best.numpy(), np.take_along_axis(values.T, order, axis=1), rtol=1e-5)


def test_search_keeps_what_float32_products_lose():
    """Products of float32 in float64."""
    keys = torch.tensor([[1e8, 1.0, -1e8], [1e8, 2.0, -1e8]])
    best, at = ref.search_topk(keys, torch.ones(1, 3), torch.zeros(1), None, 2)
    assert best.tolist() == [[2.0, 1.0]]
    assert at.tolist() == [[1, 0]]


def test_halves_of_float32():
    """The nearest bfloat16, and what brings the number back bit by bit."""
    bits = torch.randint(-(2**31), 2**31, (20_000,), generator=torch.Generator().manual_seed(0)).to(torch.int32)
    x = bits.view(torch.float32)
    x = torch.cat((x[x.abs() < 1e38], torch.tensor([0.0, -0.0, 1e-45, 1.0, -1.0, 1.00390625])))
    near, rest = ref.split_halves(x)
    assert torch.equal(ref.join_halves(near, rest).view(torch.int32), x.view(torch.int32))
    gap = (near.float() - x).abs()
    assert (gap <= x.abs() * 2**-8 + 1e-40).all()
    assert (gap <= (x.to(torch.bfloat16).float() - x).abs()).all()


@pytest.mark.parametrize("shape", [(1, 1), (3, 5), (2, 5000), (5000, 2), (0, 3), (3, 0)])
def test_gathered_products(shape):
    keys, queries = rows(300, 6, dtype=torch.float32), rows(shape[0], 6, seed=1)
    at = torch.randint(-1, 300, shape, generator=torch.Generator().manual_seed(0))
    found = ref.gathered_products(*ref.split_halves(keys), at, queries)
    want = np.einsum("bkd,bd->bk", keys.double().numpy()[at.numpy()], queries.numpy())
    np.testing.assert_allclose(found.numpy(), np.where(at.numpy() < 0, 0, want), rtol=1e-12, atol=1e-14)


# --- ensembles -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("exact", [True, False])
def test_an_ensemble_batch_by_batch(exact, normalize):
    documents = rows(700, 5, dtype=torch.float32)
    count = torch.zeros((), dtype=torch.int64)
    mean, scatter = torch.zeros(5, dtype=torch.float64), torch.zeros(5, 5, dtype=torch.float64)
    for size in (0, 1, 300, 399):
        start = int(count)
        ref.ensemble_update(count, mean, scatter, documents[start : start + size], normalize, exact)
    x = unit(documents) if normalize else documents.double().numpy()
    accuracy = 1e-12 if exact else 1e-6
    assert int(count) == 700
    np.testing.assert_allclose(mean.numpy(), x.mean(axis=0), rtol=0, atol=accuracy)
    np.testing.assert_allclose(scatter.numpy() / 700, np.cov(x.T, bias=True), rtol=0, atol=accuracy)
    queries = rows(4, 5, seed=1)
    found = ref.ensemble_moments(mean, scatter / 700, queries, normalize)
    psi = x @ (unit(queries) if normalize else queries.numpy()).T
    np.testing.assert_allclose(found[0].numpy(), psi.mean(axis=0), rtol=0, atol=10 * accuracy)
    np.testing.assert_allclose(found[1].numpy(), psi.var(axis=0), rtol=0, atol=10 * accuracy)


# --- the weighted focal loss: its gradient as written out for devices without a kernel --------------------------------


def focal_batch(dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, ...]:
    """Documents with one label, several, all and none, of both signs of cosine; weights."""
    keys, queries = rows(6, 4, dtype=dtype), rows(3, 4, seed=1, dtype=dtype)
    keys[1] = -keys[1]
    positive = torch.tensor([[1, 0, 0], [0, 1, 0], [1, 0, 1], [1, 1, 1], [0, 0, 0], [0, 0, 1]], dtype=torch.bool)
    return keys, queries, positive, torch.tensor([1.0, 2.0, 0.5, 1.0, 3.0, 0.0], dtype=torch.float64)


@pytest.mark.parametrize("balanced", [True, False])
@pytest.mark.parametrize("gamma", [0.0, 1.0, 2.5])
@pytest.mark.parametrize("probability", ref.PROBABILITIES)
def test_focal_gradient_is_the_definitions(probability, gamma, balanced):
    keys, queries, positive, weight = focal_batch()
    options = {"gamma": gamma, "epsilon": 0.1, "probability": probability, "delta": 1e-3, "balanced": balanced}
    left, right = keys.clone().requires_grad_(), queries.clone().requires_grad_()
    loss, entropy = ref.focal_loss(left, right, positive, weight, **options)
    assert not entropy.requires_grad
    want = torch.autograd.grad(2.5 * loss, (left, right))
    found_loss, found_entropy, slope = ref.weighted_focal_loss(keys, queries, positive, weight, **options)
    torch.testing.assert_close((found_loss, found_entropy), (loss.detach(), entropy), rtol=1e-14, atol=0)
    grad = torch.tensor(2.5, dtype=torch.float64)
    found = ref.weighted_focal_loss_backward(grad, keys, queries, slope)
    torch.testing.assert_close(found, want, rtol=1e-11, atol=1e-14)
    keys_only = ref.weighted_focal_loss_backward(grad, keys, queries, slope, need_queries=False)
    queries_only = ref.weighted_focal_loss_backward(grad, keys, queries, slope, need_keys=False)
    assert torch.equal(keys_only[0], found[0])
    assert torch.equal(queries_only[1], found[1])
    assert keys_only[1].shape == queries_only[0].shape == (0, 4)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("gamma", [0.0, 1.0, 2.0])
@pytest.mark.parametrize(
    ("probability", "cos", "signs"),
    [
        ("relu", -1.0, [0, 0]),  # on the flat side of ReLU nothing moves
        ("relu", 1.0, [-1, 1]),  # p = 1, where the wrong pair's logarithm has no value: it is pushed away all the same
        ("softplus", 1.0, [-1, 1]),
        ("softplus", -0.25, [-1, -1]),  # p = 0.0003: a wrong pair is drawn, too, to its target of 0.05
    ],
)
def test_focal_slopes_at_the_edges(dtype, gamma, probability, cos, signs):
    keys = torch.tensor([[cos, math.sqrt(1 - cos * cos)]], dtype=torch.float64).to(dtype)
    queries = torch.tensor([[2.0, 0.0], [2.0, 0.0]], dtype=torch.float64).to(dtype)
    positive = torch.tensor([[True, False]])
    _, _, slope = ref.weighted_focal_loss(keys, queries, positive, gamma=gamma, probability=probability)
    assert slope.isfinite().all()
    assert slope.sign().tolist() == [signs]


FORMS = {
    "definition": lambda *args, **options: ref.focal_loss(*args, None, **options),
    "written out": lambda *args, **options: ref.weighted_focal_loss(*args, None, **options)[:2],
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("right", FLOATS, ids=str)
@pytest.mark.parametrize("left", FLOATS, ids=str)
def test_focal_loss_of_mixed_dtypes(left, right, form):
    """At cosine 1 a wrong pair's -log(1 - p) is that of the coarser side's rounding, in the wider compute dtype."""
    keys, queries = torch.tensor([[2.0, 0.0]], dtype=left), torch.tensor([[1.0, 0.0]], dtype=right)
    options = {"gamma": 0.0, "epsilon": 0.0, "probability": "relu", "delta": 1e-10, "balanced": True}
    loss, entropy = FORMS[form](keys, queries, torch.tensor([[False]]), **options)
    assert loss.dtype == entropy.dtype == (torch.float64 if torch.float64 in (left, right) else torch.float32)
    want = -math.log(max(torch.finfo(left).eps, torch.finfo(right).eps))
    assert loss.item() == entropy.item() == pytest.approx(want, rel=1e-6)


@pytest.mark.parametrize("form", FORMS)
def test_focal_loss_keeps_float32_under_autocast(form):
    keys, queries, positive, _ = focal_batch(torch.float32)
    options = {"gamma": 1.0, "epsilon": 0.05, "probability": "softplus", "delta": 1e-10, "balanced": True}
    want = FORMS[form](keys, queries, positive, **options)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = FORMS[form](keys, queries, positive, **options)
    assert torch.equal(torch.stack(found), torch.stack(want))


def test_a_standard_deviation_that_is_noise_has_no_gradient():
    """Not an infinite one, which makes NaN of a zero before it."""
    mean, var = torch.zeros(3, dtype=torch.float64), torch.tensor([0.0, 4.0, -1e-17], dtype=torch.float64)
    var.requires_grad_()
    std = ref.floored(mean, var, torch.finfo(torch.float64).eps)
    assert std.tolist() == [0.0, 2.0, 0.0]
    std.sum().backward()
    assert var.grad.tolist() == [0.0, 0.25, 0.0]


def test_only_float32_is_taken_apart():
    """The bits of another dtype would be those of other numbers."""
    x = torch.ones(2, 4)
    near, rest = ref.split_halves(x)
    for wrong in (x.double(), x.half(), x.int()):
        with pytest.raises(TypeError, match="only float32"):
            ref.split_halves(wrong)
    for pair in ((near.half(), rest), (near, rest.int()), (x, rest)):
        with pytest.raises(TypeError, match="bfloat16 and int16"):
            ref.join_halves(*pair)
