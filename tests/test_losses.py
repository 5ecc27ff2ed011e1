"""The weighted focal loss: its formula and its gradient."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from surprise_hf.losses import PROBABILITIES, WeightedFocalLoss, weighted_focal_loss

FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def batch(rows: int = 5, labels: int = 3, dim: int = 4, dtype: torch.dtype = torch.float64, seed: int = 0):
    """Keys and queries with cosines of both signs, and targets: one label, several, none."""
    draw = torch.Generator().manual_seed(seed)
    keys, queries = (torch.randn(n, dim, generator=draw, dtype=torch.float64).to(dtype) for n in (rows, labels))
    positive = torch.zeros(rows, labels, dtype=torch.bool)
    for row, label in ((0, 0), (1, 1), (2, 0), (2, 2)):
        positive[row : row + 1, label : label + 1] = True
    return keys.requires_grad_(), queries.requires_grad_(), positive


def pair(cos: float, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    """One document and one label with this cosine, not of unit length."""
    key = torch.tensor([[3.0 * cos, 3.0 * math.sqrt(1 - cos * cos)]], dtype=torch.float64).to(dtype)
    return key.requires_grad_(), torch.tensor([[2.0, 0.0]], dtype=dtype).requires_grad_()


# --- the formula -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("impl", ["auto", "reference"])
def test_values_by_hand(impl):
    """l = -i (1-p)^gamma log p - (1-i) p^gamma log(1-p), with i = 1 and 0.05, for cosines 0.6 and 0.2."""
    keys = torch.tensor([[0.6, 0.8, 0.0]], dtype=torch.float64)
    queries = torch.tensor([[5.0, 0.0, 0.0], [0.2 / 0.6, 0.0, math.sqrt(1 - 1 / 9)]], dtype=torch.float64)
    positive = torch.tensor([[True, False]])
    right, wrong = -math.log(0.6), -0.05 * math.log(0.2) - 0.95 * math.log(0.8)
    for gamma, expected in (
        (0.0, (right + wrong) / 2),
        (1.0, (0.4 * right - 0.05 * 0.8 * math.log(0.2) - 0.95 * 0.2 * math.log(0.8)) / 2),
        (2.0, (0.16 * right - 0.05 * 0.64 * math.log(0.2) - 0.95 * 0.04 * math.log(0.8)) / 2),
    ):
        loss, ce = weighted_focal_loss(
            keys, queries, positive, gamma=gamma, probability="relu", balanced=False, impl=impl
        )
        assert loss.item() == pytest.approx(expected, rel=1e-8)  # delta is 1e-10
        assert ce.item() == pytest.approx((right + wrong) / 2, rel=1e-8)
        assert not ce.requires_grad


@pytest.mark.parametrize("impl", ["auto", "reference"])
def test_right_and_wrong_labels_of_a_document_weigh_the_same(impl):
    """Mean over documents of (mean over its right labels + mean over its wrong ones) / 2; one kind alone counts 1."""
    keys, queries, positive = batch()
    positive[4] = True

    def pairs(rows: list[int], columns: list[int]) -> Tensor:
        chosen = positive[rows][:, columns]
        return torch.stack(weighted_focal_loss(keys[rows], queries[columns], chosen, balanced=False, impl=impl))

    by_hand = [
        (pairs([0], [0]) + pairs([0], [1, 2])) / 2,
        (pairs([1], [1]) + pairs([1], [0, 2])) / 2,
        (pairs([2], [0, 2]) + pairs([2], [1])) / 2,
        pairs([3], [0, 1, 2]),  # no label
        pairs([4], [0, 1, 2]),  # every label
    ]
    found = torch.stack(weighted_focal_loss(keys, queries, positive, impl=impl))
    torch.testing.assert_close(found, torch.stack(by_hand).mean(dim=0))


def test_the_right_label_keeps_its_weight_among_many():
    """Where right pairs are far and wrong ones at rest, the mean tells so however many labels there are."""
    for m in (2, 150):
        keys = torch.eye(1, 4)
        queries = torch.zeros(m, 4)
        queries[:, 1] = 1.0
        positive = torch.zeros(1, m, dtype=torch.bool)
        positive[0, 0] = True
        assert weighted_focal_loss(keys, queries, positive)[1].item() > 1.5
    assert weighted_focal_loss(keys, queries, positive, balanced=False)[1].item() < 0.3  # as if all were well


def test_softplus_by_hand():
    key, query = pair(-0.1)
    p = math.log1p(math.exp(-2)) / 20
    loss, ce = weighted_focal_loss(key, query, torch.tensor([[True]]))
    assert loss.item() == pytest.approx(-(1 - p) * math.log(p), rel=1e-12)
    assert ce.item() == pytest.approx(-math.log(p), rel=1e-12)


@pytest.mark.parametrize("probability", PROBABILITIES)
@pytest.mark.parametrize("gamma", [0.0, 0.5, 1.0, 2.5])
@pytest.mark.parametrize("balanced", [True, False])
def test_gradient(probability, gamma, balanced):
    keys, queries, positive = batch()
    weight = torch.tensor([1.0, 0.3, 2.0, 0.0, 1.5])

    def loss(keys: Tensor, queries: Tensor, impl: str = "auto") -> Tensor:
        options = {"weight": weight, "gamma": gamma, "probability": probability, "balanced": balanced, "impl": impl}
        return weighted_focal_loss(keys, queries, positive, **options)[0]

    assert torch.autograd.gradcheck(loss, (keys, queries))
    ours = torch.autograd.grad(2 * loss(keys, queries), (keys, queries))
    theirs = torch.autograd.grad(2 * loss(keys, queries, "reference"), (keys, queries))
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("probability", PROBABILITIES)
@pytest.mark.parametrize("dtype", FLOATS)
def test_gradient_at_the_ends_is_that_of_the_reference(dtype, probability):
    """Rows of zeros get none; a pair that is too alike for its dtype keeps its slope."""
    keys, queries, positive = batch(6, 4, 8, torch.float64)
    with torch.no_grad():
        keys, queries = keys + 0.5, queries + 0.5
        keys[1], queries[2] = 0, 0
        queries[1] = keys[2] + 0.01 * keys[3]
    keys, queries = (x.to(dtype).requires_grad_() for x in (keys, queries))
    positive[:, 0] = False
    found = [
        torch.autograd.grad(
            weighted_focal_loss(keys, queries, positive, probability=probability, impl=impl)[0], (keys, queries)
        )
        for impl in ("auto", "reference")
    ]
    assert (found[0][0][1] == 0).all()
    assert (found[0][1][2] == 0).all()
    assert found[0][0][2].abs().max() > 0
    kind = torch.finfo(dtype)
    tolerance = {torch.float64: 1e-10, torch.float32: 2e-2}.get(dtype, 4 * kind.eps)
    for ours, theirs in zip(*found, strict=True):
        scale = float(theirs.abs().max())
        torch.testing.assert_close(ours.double(), theirs.double(), rtol=0, atol=tolerance * scale)


# no vector, one and several with a tail; more labels than fit in a packed block; dot form forward and backward
@pytest.mark.parametrize("shape", [(9, 2, 3), (40, 3, 5), (1, 16, 8), (17, 33, 100), (64, 150, 33), (3, 2900, 768)])
@pytest.mark.parametrize("dtype", FLOATS)
def test_matches_the_definition_in_float64(shape, dtype):
    rows, labels, dim = shape
    keys, queries, _ = batch(rows, labels, dim, dtype)
    positive = torch.rand(rows, labels, generator=torch.Generator().manual_seed(1)) < 0.3
    weight = torch.rand(rows, generator=torch.Generator().manual_seed(2))
    options = [{}, {"gamma": 0.7, "epsilon": 0.2}]
    if dim > 10 and dtype in (
        torch.float64,
        torch.float32,
    ):  # away from p = 0 and 1, which each dtype keeps off in its way
        keys, queries = ((x.detach() + 1).requires_grad_() for x in (keys, queries))
        options += [{"probability": "relu", "delta": 0.01, "balanced": False}]
    wide = [x.detach().double().requires_grad_() for x in (keys, queries)]
    for chosen in options:
        got = weighted_focal_loss(keys, queries, positive, weight=weight, **chosen)
        want = weighted_focal_loss(*wide, positive, weight=weight, impl="reference", **chosen)
        eps = 1e-12 if dtype == torch.float64 else 2e-6
        for value, other in zip(got, want, strict=True):
            assert value.item() == pytest.approx(other.item(), rel=eps)
        grads, exact = torch.autograd.grad(got[0], (keys, queries)), torch.autograd.grad(want[0], wide)
        kind = torch.finfo(dtype)
        for grad, other in zip(grads, exact, strict=True):
            assert grad.dtype == dtype
            error, size = (grad.double() - other).norm(dim=1), other.norm(dim=1).max()
            smallest = kind.smallest_normal * kind.eps * dim**0.5
            assert (error <= 4 * (kind.eps + eps) * size + smallest).all()


@pytest.mark.parametrize("scale", [1e-30, 1e-18, 1e18, 1e30])
def test_rows_of_extreme_size(scale):
    """The loss does not see lengths; gradients are the inverse of them."""
    keys, queries, positive = batch(dtype=torch.float32, dim=40)
    loss, _ = weighted_focal_loss(keys, queries, positive)
    large = (keys * scale).detach().requires_grad_()
    same, _ = weighted_focal_loss(large, queries, positive)
    torch.testing.assert_close(same, loss, rtol=1e-6, atol=0)
    (want,), (got,) = torch.autograd.grad(loss, keys), torch.autograd.grad(same, large)
    torch.testing.assert_close(got.double() * scale, want.double(), rtol=1e-5, atol=1e-7)


def test_same_bits_from_run_to_run_and_for_every_number_of_threads():
    keys, queries, _ = batch(rows=64, labels=150, dim=96, dtype=torch.float32)
    positive = torch.eye(150, dtype=torch.bool)[:64]

    def results() -> list[Tensor]:
        loss, ce = weighted_focal_loss(keys, queries, positive)
        return [loss, ce, *torch.autograd.grad(loss, (keys, queries))]

    first, threads = results(), torch.get_num_threads()
    try:
        for count in (threads, 1, 2):
            torch.set_num_threads(count)
            assert all(map(torch.equal, results(), first))
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize(("rows", "labels"), [(36, 90), (90, 36), (5, 9)])
def test_equal_documents_have_equal_gradients(rows, labels):
    """To the last bit, wherever they stand."""
    keys = torch.randn(1, 200, generator=torch.Generator().manual_seed(0)).repeat(rows, 1).requires_grad_()
    _, queries, _ = batch(labels=labels, dim=200, dtype=torch.float32)
    positive = torch.eye(labels, dtype=torch.bool)[:1].repeat(rows, 1)
    (grad,) = torch.autograd.grad(weighted_focal_loss(keys, queries, positive)[0], keys)
    assert torch.equal(grad, grad[:1].expand_as(grad))


@pytest.mark.parametrize("dtype", FLOATS)
def test_layouts_do_not_matter(dtype):
    keys, queries, positive = batch(dtype=dtype)
    want = torch.autograd.grad(weighted_focal_loss(keys, queries, positive)[0], (keys, queries))
    views = [x.detach().T.contiguous().T.requires_grad_() for x in (keys, queries)]
    got = torch.autograd.grad(weighted_focal_loss(*views, positive.T.contiguous().T)[0], views)
    assert all(map(torch.equal, got, want))


@pytest.mark.parametrize("dtype", FLOATS)
def test_low_precision_is_computed_in_float32(dtype):
    keys, queries, positive = batch(dtype=dtype)
    loss, ce = weighted_focal_loss(keys, queries, positive)
    exact = weighted_focal_loss(keys.double(), queries.double(), positive)
    assert loss.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    torch.testing.assert_close((loss.double(), ce.double()), exact, rtol=2e-5, atol=0)
    grads = torch.autograd.grad(loss, (keys, queries))
    exact_grads = torch.autograd.grad(exact[0], (keys, queries))
    for grad, other, rows in zip(grads, exact_grads, (keys, queries), strict=True):
        assert grad.dtype == rows.dtype == dtype
        torch.testing.assert_close(grad, other, rtol=4 * torch.finfo(dtype).eps + 1e-5, atol=1e-5)


def test_autocast_does_not_coarsen_the_cosine():
    keys, queries, positive = batch(dtype=torch.float32)
    expected = weighted_focal_loss(keys, queries, positive)[0]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss, _ = weighted_focal_loss(keys, queries, positive)
        loss.backward()
    assert torch.equal(loss, expected)
    torch.testing.assert_close(keys.grad, torch.autograd.grad(expected, keys)[0])


# --- its edges -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("impl", ["auto", "reference"])
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("probability", PROBABILITIES)
@pytest.mark.parametrize("gamma", [0.0, 0.5, 1.0, 2.0])
@pytest.mark.parametrize("right", [True, False])
@pytest.mark.parametrize("cos", [-1.0, -0.3, 0.0, 1e-9, 1.0])
def test_finite_at_the_edges(cos, right, gamma, probability, dtype, impl):
    key, query = pair(cos, dtype)
    key = torch.cat((key, torch.zeros_like(key))).detach().requires_grad_()  # and a zero row
    positive = torch.tensor([[right], [right]])
    loss, ce = weighted_focal_loss(key, query, positive, gamma=gamma, probability=probability, impl=impl)
    grads = torch.autograd.grad(loss, (key, query))
    assert all(torch.isfinite(x).all() for x in (loss, ce, *grads))
    assert loss >= 0


def slope(cos: float, right: bool, **options) -> float:
    """dl/dcos, from the gradient in the direction in which the cosine grows."""
    key, query = pair(cos)
    loss, _ = weighted_focal_loss(key, query, torch.tensor([[right]]), **options)
    (grad,) = torch.autograd.grad(loss, key)
    across = torch.tensor([math.sqrt(1 - cos * cos), -cos], dtype=torch.float64)
    return float(grad[0] @ across) * 3.0 / math.sqrt(1 - cos * cos)


def test_a_right_pair_with_negative_cosine_learns_with_softplus_only():
    assert slope(-0.4, True) < -1
    assert slope(-0.4, True, probability="relu") == 0
    assert slope(0.4, True) == pytest.approx(slope(0.4, True, probability="relu"), rel=1e-2)


def test_a_wrong_pair_at_cosine_one_is_pushed_away():
    for probability in PROBABILITIES:
        assert slope(1 - 1e-12, False, probability=probability) > 1e3


def test_a_wrong_pair_rests_at_epsilon():
    """Where p = eps the cross-entropy of a negative pair is smallest: its weight in many labels stays small."""
    assert slope(0.05, False, gamma=0, probability="relu") == pytest.approx(0, abs=1e-6)
    assert slope(0.2, False, gamma=0, probability="relu", epsilon=0.2) == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize(("rows", "labels"), [(0, 3), (4, 0), (0, 0)])
def test_no_pairs(rows, labels):
    keys, queries = torch.randn(rows, 2, requires_grad=True), torch.randn(labels, 2, requires_grad=True)
    loss, ce = weighted_focal_loss(keys, queries, torch.zeros(rows, labels, dtype=torch.bool))
    loss.backward()
    assert loss.item() == ce.item() == 0
    assert not keys.grad.any()


def test_rows_without_label_are_pushed_from_every_label():
    keys, queries, _ = batch()
    positive = torch.zeros(5, 3, dtype=torch.bool)
    loss, _ = weighted_focal_loss(keys, queries, positive)
    one = torch.stack([weighted_focal_loss(keys[[i]], queries, positive[[i]])[0] for i in range(5)])
    torch.testing.assert_close(loss, one.mean())


# --- weights ---------------------------------------------------------------------------------------------------------


def test_a_weight_counts_as_so_many_copies():
    keys, queries, positive = batch()
    twice = [0, 1, 1, 2, 3, 4]
    weight = torch.tensor([1.0, 2.0, 1.0, 1.0, 1.0])
    weighted, ce = weighted_focal_loss(keys, queries, positive, weight=weight)
    copied, _ = weighted_focal_loss(keys[twice], queries, positive[twice])
    torch.testing.assert_close(weighted * 5, copied * 6)
    assert torch.equal(ce, weighted_focal_loss(keys, queries, positive)[1])


@pytest.mark.parametrize("impl", ["auto", "reference"])
def test_a_weight_takes_no_gradient(impl):
    keys, queries, positive = batch()
    weight = torch.full((5,), 2.0, dtype=torch.float64, requires_grad=True)
    weighted_focal_loss(keys, queries, positive, weight=weight, impl=impl)[0].backward()
    assert weight.grad is None
    assert keys.grad is not None


@pytest.mark.parametrize(
    ("weight", "words"),
    [
        ([1.0, math.nan], "finite number"),
        ([1.0, math.inf], "finite number"),
        ([1.0, -1.0], "from 0 on"),
        ([[1.0, 2.0]], "for each label"),
        ([1.0], "1 weig"),
    ],
)
def test_wrong_class_weights(weight, words):
    with pytest.raises(ValueError, match=words):
        WeightedFocalLoss(class_weight=weight)(torch.ones(2, 3), torch.ones(2, 3), torch.eye(2, dtype=torch.bool))


def test_the_cross_entropy_has_no_gradient():
    keys, queries, positive = batch()
    loss, ce = weighted_focal_loss(keys.requires_grad_(), queries, positive)
    assert (loss.requires_grad, ce.requires_grad) == (True, False)


def test_under_a_transform_it_is_the_same_two_values():
    keys, queries, positive = (x.detach() for x in batch())
    want = torch.stack(weighted_focal_loss(keys, queries, positive))
    found = torch.vmap(lambda k: torch.stack(weighted_focal_loss(k, queries, positive)))(keys.unsqueeze(0))
    torch.testing.assert_close(found, want.unsqueeze(0))
    assert not torch.func.grad(lambda k: weighted_focal_loss(k, queries, positive)[1])(keys).any()


def test_shapes_alone_give_the_wider_of_two_dtypes():
    keys, queries, positive = batch()
    for one, other in ((keys.float(), queries.double()), (keys.double(), queries.float())):
        with FakeTensorMode(allow_non_fake_inputs=True):
            assert weighted_focal_loss(one, other, positive)[0].dtype == torch.float64


def test_class_weights():
    keys, queries, positive = batch()
    loss, _ = WeightedFocalLoss(class_weight=[2.0, 3.0, 6.0])(keys, queries, positive)
    by_hand = torch.tensor([2.0, 3.0, 4.0, 1.0, 1.0])  # row 2 has labels 0 and 2; rows 3 and 4 have none
    torch.testing.assert_close(loss, weighted_focal_loss(keys, queries, positive, weight=by_hand)[0])
    sample = torch.tensor([1.0, 0.5, 0.5, 2.0, 0.0])
    loss, _ = WeightedFocalLoss(class_weight=[2.0, 3.0, 6.0])(keys, queries, positive, sample)
    torch.testing.assert_close(loss, weighted_focal_loss(keys, queries, positive, weight=by_hand * sample)[0])


def test_parts_of_a_batch_average_to_the_whole():
    keys, queries, positive = batch(rows=6)
    weight = torch.rand(6)
    whole, _ = weighted_focal_loss(keys, queries, positive, weight=weight)
    parts = [
        weighted_focal_loss(keys[p], queries, positive[p], weight=weight[p])[0] for p in (slice(0, 3), slice(3, 6))
    ]
    torch.testing.assert_close(whole, torch.stack(parts).mean())


def test_wrong_arguments_are_named():
    keys, queries, positive = batch()
    for change, error, words in (
        ({"positive": positive.float()}, TypeError, "positive must be boolean"),
        ({"positive": positive.T}, ValueError, r"positive must have shape \(5, 3\)"),
        ({"queries": queries[:, :2]}, ValueError, "keys have 4 dimensions but queries have 2"),
        ({"keys": keys.long()}, TypeError, "keys must have a floating dtype"),
        ({"weight": torch.ones(3)}, ValueError, r"weight must have shape \(5,\)"),
        ({"probability": "sigmoid"}, ValueError, "probability must be one of"),
        ({"epsilon": 1.5}, ValueError, "epsilon=1.5"),
        ({"epsilon": -0.1}, ValueError, "epsilon=-0.1"),
        ({"gamma": -1.0}, ValueError, "gamma=-1.0"),
        ({"gamma": math.nan}, ValueError, "gamma=nan"),
        ({"delta": 0.0}, ValueError, "delta=0.0"),
        ({"delta": 1.0}, ValueError, "delta=1.0"),
        ({"impl": "cuda"}, ValueError, "impl"),
    ):
        with pytest.raises(error, match=words):
            weighted_focal_loss(**{"keys": keys, "queries": queries, "positive": positive, **change})


# --- as torch asks ---------------------------------------------------------------------------------------------------


def test_opcheck():
    keys, queries, positive = batch(dtype=torch.float32)
    op = torch.ops.surprise_hf
    for options in ({}, {"gamma": 2.0, "epsilon": 0.1, "probability": "relu", "delta": 1e-6, "balanced": False}):
        torch.library.opcheck(op.weighted_focal_loss.default, (keys, queries, positive, torch.ones(5)), options)
    torch.library.opcheck(op.weighted_focal_loss.default, (keys.half(), queries, positive))  # each of its own dtype
    slope = op.weighted_focal_loss(keys, queries, positive)[2]
    for options in ({}, {"need_keys": False}, {"need_queries": False}):
        arguments = (torch.tensor(2.0), keys.detach().bfloat16(), queries.detach(), slope)
        torch.library.opcheck(op.weighted_focal_loss_backward.default, arguments, options)


def test_compiles_whole():
    keys, queries, positive = batch(dtype=torch.float32)
    compiled = torch.compile(
        lambda *args: weighted_focal_loss(*args)[0], fullgraph=True, dynamic=True, backend="aot_eager"
    )
    ours = torch.autograd.grad(compiled(keys, queries, positive), (keys, queries))
    theirs = torch.autograd.grad(weighted_focal_loss(keys, queries, positive)[0], (keys, queries))
    torch.testing.assert_close(ours, theirs)


def test_a_second_derivative_says_how_to_get_it():
    keys, queries, positive = batch()

    def grads(impl: str) -> tuple[Tensor, ...]:
        loss, _ = weighted_focal_loss(keys, queries, positive, impl=impl)
        return torch.autograd.grad(loss, (keys, queries), create_graph=True)

    torch.testing.assert_close(grads("auto"), grads("reference"), rtol=1e-12, atol=1e-14)
    with pytest.raises(RuntimeError, match="impl='reference'"):
        grads("auto")[0].sum().backward()
    assert torch.autograd.gradgradcheck(
        lambda k, q: weighted_focal_loss(k, q, positive, impl="reference")[0], (keys, queries)
    )


def test_meta_tensors_give_shapes():
    keys, queries = torch.empty(7, 9, device="meta", dtype=torch.bfloat16), torch.empty(5, 9, device="meta")
    keys.requires_grad_()
    loss, ce = weighted_focal_loss(keys, queries, torch.empty(7, 5, device="meta", dtype=torch.bool))
    assert (loss.shape, loss.dtype, ce.shape) == ((), torch.float32, ())
    (grad,) = torch.autograd.grad(loss, keys)
    assert (grad.shape, grad.dtype) == (keys.shape, keys.dtype)


def test_keeps_no_more_than_the_matrix():
    """What autograd holds between forward and backward beyond the inputs: one (B, m) matrix."""
    keys, queries, positive = batch(rows=40, labels=30, dim=64, dtype=torch.float32)
    kept: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x) or x, lambda x: x):
        weighted_focal_loss(keys, queries, positive)
    own = [x.numel() for x in kept if x.data_ptr() not in (keys.data_ptr(), queries.data_ptr())]
    assert own == [1200]


def test_a_string_is_no_truth_value():
    """ "False" is true."""
    with pytest.raises(ValueError, match="balanced must be True or False, got 'False'"):
        WeightedFocalLoss(balanced="False")
