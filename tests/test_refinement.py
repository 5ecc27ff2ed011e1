"""Refinement against its definition in NumPy, and what it promises: stays where it knows nothing, finds groups."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from surprise_hf import estimators as est
from surprise_hf import refinement
from surprise_hf.ensemble import Ensemble
from surprise_hf.ops import unit_rows
from surprise_hf.refinement import judge, refine_labels
from surprise_hf.scoring import FittedLabels, surprise


def rows(n: int, dim: int = 12, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, dim, generator=generator, dtype=torch.float64).add(0.4).to(dtype)


def unit(x: np.ndarray) -> np.ndarray:
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def transcribed(
    documents: Tensor, queries: Tensor, rounds: int, a: float = 0.4, t: float = 3.0, held: int = 0
) -> np.ndarray:
    """The module's docstring, line by line, in NumPy."""
    k, q0 = unit(documents.double().numpy()), unit(queries.double().numpy())
    m, q = k.mean(axis=0), q0
    covariance = (k - m).T @ (k - m) / len(k)
    damping = np.linalg.inv(covariance / np.linalg.eigvalsh(covariance).mean() + 4 * np.eye(len(m)))
    for _ in range(rounds):
        psi = k @ q.T
        z = (psi - psi.mean(axis=0)) / psi.std(axis=0)
        s = np.exp(t * z - (t * z).max(axis=1, keepdims=True))
        s /= s.sum(axis=1, keepdims=True)
        mean_of = (s.T @ k) / s.sum(axis=0)[:, None]
        sure = (s**2).sum(axis=0)[:, None]
        b = (1 - a) * sure / (sure + 3)
        q = unit((1 - b) * unit(q0 - m) + b * unit(unit(mean_of - m) @ damping))
        q[:held] = q0[:held]
    return q


def groups(
    sizes: list[int], noise: float = 0.25, hint: float = 0.35, labels: int | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Documents in groups of these sizes, labels that only hint at them, and the truth."""
    generator = torch.Generator().manual_seed(0)
    labels = len(sizes) if labels is None else labels
    centres = torch.eye(max(8, labels))
    truth = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    dim = centres.shape[1]
    documents = centres[truth] + noise * torch.randn(len(truth), dim, generator=generator) + 0.5
    return documents, hint * centres[:labels] + torch.randn(labels, dim, generator=generator) * 0.25 + 0.5, truth


def accuracy(documents: Tensor, queries: Tensor, truth: Tensor, refine: int | str) -> float:
    found = FittedLabels.fit(queries, documents, weight=1, refine=refine).decide(documents)
    return float((found == truth).double().mean())


# --- the formula -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("block", [est.BLOCK, 50])
def test_rounds_are_the_transcription(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    documents, queries = rows(150), rows(4, seed=1)
    want = transcribed(documents, queries, 10)
    monkeypatch.setattr(est, "BLOCK", block)
    np.testing.assert_allclose(refine_labels(queries, documents, 10).numpy(), want, rtol=0, atol=1e-6)
    ens = Ensemble.from_embeddings(documents)  # keeps float32 rows
    np.testing.assert_allclose(refine_labels(queries, ens, 10).numpy(), want, rtol=0, atol=1e-5)
    half = refine_labels(queries.bfloat16(), documents.bfloat16(), 10)
    np.testing.assert_allclose(
        half.numpy(), transcribed(documents.bfloat16(), queries.bfloat16(), 10), rtol=0, atol=1e-5
    )
    monkeypatch.setattr(refinement, "PULL", 0.3)
    monkeypatch.setattr(refinement, "SHARPNESS", 10.0)
    other = transcribed(documents, queries, 3, 0.3, 10)
    np.testing.assert_allclose(refine_labels(queries, documents, 3).numpy(), other, rtol=0, atol=1e-6)


@pytest.mark.parametrize("block", [est.BLOCK, 50])
def test_sparse_shares_are_the_dense_ones_where_the_rest_weighs_nothing(
    block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    documents, queries = rows(150), rows(9, seed=1)
    want = transcribed(documents, queries, 4, t=30)  # so sharp that the sixth best label has a share of 1e-6 at most
    monkeypatch.setattr(est, "BLOCK", block)
    monkeypatch.setattr(refinement, "MANY", 8)
    monkeypatch.setattr(refinement, "NEAREST", 6)
    monkeypatch.setattr(refinement, "SHARPNESS", 30.0)
    np.testing.assert_allclose(refine_labels(queries, documents, 4).numpy(), want, rtol=0, atol=1e-5)


def test_sparse_shares_with_all_labels_are_the_dense_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    documents, queries = rows(150), rows(9, seed=1)
    monkeypatch.setattr(refinement, "MANY", 8)
    monkeypatch.setattr(refinement, "NEAREST", 9)
    np.testing.assert_allclose(
        refine_labels(queries, documents, 10).numpy(), transcribed(documents, queries, 10), rtol=0, atol=1e-6
    )


def test_of_many_documents_some_are_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Truth alternates, so that every second document would be one group: the draw must not fall in step."""
    documents, queries, _ = groups([500, 500], hint=0.7)
    documents = documents.reshape(2, 500, -1).transpose(0, 1).reshape(1000, -1)  # 0, 1, 0, 1, ...
    truth = torch.arange(1000) % 2
    monkeypatch.setattr(refinement, "SAMPLE", 500)
    assert accuracy(documents, queries, truth, 10) > 0.97
    assert accuracy(documents, queries, truth, "auto") > 0.97
    assert torch.equal(refine_labels(queries, documents, 10), refine_labels(queries, documents, 10))
    monkeypatch.setattr(refinement, "EACH", 500)
    np.testing.assert_allclose(
        refine_labels(queries.double(), documents.double(), 5).numpy(),
        transcribed(documents, queries, 5),
        rtol=0,
        atol=1e-6,
    )


def test_score_with_refinement_is_the_score_of_the_moved_labels() -> None:
    documents, queries = rows(150), rows(4, seed=1)
    for rounds in (3, 10, "auto"):
        moved = refine_labels(queries, documents, rounds)
        for weight in (0.5, 1):
            got = surprise(documents, queries, weight=weight, refine=rounds)
            torch.testing.assert_close(got, surprise(documents, moved, weight=weight), rtol=0, atol=1e-10)
        for estimator in ("gaussian", "tail"):
            labels = FittedLabels.fit(queries, documents, refine=rounds, estimator=estimator)
            torch.testing.assert_close(labels.queries, moved, rtol=0, atol=1e-11)
    plain = torch.from_numpy(unit(queries.numpy()))
    torch.testing.assert_close(refine_labels(queries, documents, 0), plain, rtol=0, atol=1e-15)


# --- what it does ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("refine", [10, "auto"])
def test_finds_groups_that_the_labels_only_hint_at(refine: int | str) -> None:
    documents, hints, truth = groups([100, 100, 100])
    assert accuracy(documents, hints, truth, 0) < 0.97 < accuracy(documents, hints, truth, refine)


@pytest.mark.parametrize("sizes", [[270, 20, 10], [10, 20, 270], [30, 240, 30]])
def test_unbalanced_groups(sizes: list[int]) -> None:
    documents, hints, truth = groups(sizes)
    assert accuracy(documents, hints, truth, "auto") >= accuracy(documents, hints, truth, 0)


def test_a_label_without_documents_costs_little() -> None:
    documents, hints, truth = groups([100, 100, 100], hint=0.7, labels=4)
    assert accuracy(documents, hints, truth, "auto") > accuracy(documents, hints, truth, 0) - 0.03


def test_few_documents_for_many_labels_hardly_move_them() -> None:
    queries = rows(40, 64, seed=1)
    centre = torch.from_numpy(unit(rows(10, 64).numpy())).mean(dim=0)
    start = torch.nn.functional.normalize(torch.nn.functional.normalize(queries) - centre)
    moved = refine_labels(queries, rows(10, 64), 10)
    towards = (moved * start).sum(dim=1)
    assert towards.min() > 0.9
    assert (refine_labels(queries, rows(4000, 64), 10) * start).sum(dim=1).min() < 0.9


def test_a_direction_that_all_documents_vary_in_does_not_pull_the_labels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two labels lean a little on an axis that has nothing to do with them, but along which documents differ most."""
    generator = torch.Generator().manual_seed(0)
    truth = torch.arange(800) % 2
    documents = 0.2 * torch.randn(800, 32, generator=generator)
    documents[:, 0] += 0.6 * (2.0 * truth - 1)
    documents[:, 1] += 2.0 * (torch.rand(800, generator=generator) < 0.5) - 1
    documents[:, 2] += 2
    hints = torch.zeros(2, 32)
    hints[:, 0], hints[:, 1], hints[:, 2] = torch.tensor([-0.3, 0.3]), torch.tensor([-0.1, 0.1]), 2
    assert accuracy(documents, hints, truth, 10) > 0.99 > accuracy(documents, hints, truth, 0)
    monkeypatch.setattr(refinement, "RIDGE", 1e9)  # without damping
    assert accuracy(documents, hints, truth, 10) < 0.6


def test_a_label_that_attracts_nothing_keeps_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    documents = torch.cat((rows(20, 4) * 0.01 + torch.eye(4)[0], rows(20, 4, 1) * 0.01 + torch.eye(4)[1])).double()
    documents[:, 3] = 0
    queries = torch.eye(4, dtype=torch.float64)[[0, 1, 3]]  # the last is equally far from all: z = 0, never the best
    monkeypatch.setattr(refinement, "SHARPNESS", 1e5)
    moved = refine_labels(queries, documents, 5)
    assert torch.equal(moved[2], queries[2])
    assert (moved[:2] - queries[:2]).abs().max() > 0.1


# --- how far -----------------------------------------------------------------------------------------------------


def test_judge_goes_all_the_way_where_halves_agree() -> None:
    documents, hints, _ = groups([100, 100, 100])
    found = judge(hints, documents)
    assert found.rounds == 10
    assert found.agreement > 0.9
    assert 1 < found.scatter < 3
    assert torch.equal(found.queries, refine_labels(hints, documents, 10))
    assert torch.equal(found.queries, refine_labels(hints, documents, "auto"))


@pytest.mark.parametrize("size", [2, 3, 60, 61, 500])
@pytest.mark.parametrize("rounds", ["auto", 0, 10])
def test_an_ensemble_and_a_tensor_of_the_same_rows_give_the_same(size: int, rounds: int | str) -> None:
    documents, queries = rows(size, dtype=torch.float32), rows(3, seed=1, dtype=torch.float32)
    want = judge(queries, documents, rounds)
    at_once = judge(queries, Ensemble.from_embeddings(documents), rounds)
    assert torch.equal(at_once.queries, want.queries)
    assert at_once[2:4] == want[2:4]
    for one, other in zip(at_once.apart, want.apart, strict=True):
        assert all(map(torch.equal, one, other))
    for batch in (1, 7, 64):  # mean and covariance are those to rounding, the sample is the same
        ens = Ensemble(12)
        for part in documents.split(batch):
            ens.update(part)
        found = judge(queries, ens, rounds)
        assert found.rounds == want.rounds
        assert found[2:4] == pytest.approx(want[2:4], abs=1e-6)
        torch.testing.assert_close(found.queries, want.queries, rtol=0, atol=1e-5)
        for one, other in zip(found.apart, want.apart, strict=True):
            assert torch.equal(one[0], other[0])
            torch.testing.assert_close(one[1], other[1], rtol=0, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_an_ensemble_of_other_dtypes_gives_the_same(dtype: torch.dtype) -> None:
    documents, queries = rows(300, dtype=dtype), rows(3, seed=1, dtype=dtype)
    want, found = judge(queries, documents), judge(queries, Ensemble.from_embeddings(documents))
    assert found.rounds == want.rounds
    assert found.agreement == want.agreement
    torch.testing.assert_close(found.queries, want.queries, rtol=0, atol=1e-5)


def test_of_many_documents_those_are_drawn_that_an_ensemble_keeps(monkeypatch: pytest.MonkeyPatch) -> None:
    documents, queries = rows(500, dtype=torch.float32), rows(3, seed=1, dtype=torch.float32)
    monkeypatch.setattr(refinement, "SAMPLE", 200)
    monkeypatch.setattr(refinement, "EACH", 1)
    kept = Ensemble.from_embeddings(documents, reservoir=200).reservoir
    of_kept = refine_labels(queries, kept, 10)
    torch.testing.assert_close(refine_labels(queries, documents, 10), of_kept, rtol=0, atol=1e-5)
    for rounds in (10, "auto"):
        found = judge(queries, documents, rounds)
        assert torch.equal(torch.cat([part for part, _ in found.apart]), kept)


@pytest.mark.parametrize("rounds", ["auto", 0, 3, 10])
def test_labels_apart_have_not_met_their_documents(rounds: int | str) -> None:
    documents, hints, _ = groups([100, 100, 100])
    found = judge(hints, documents, rounds)
    assert found.rounds == (10 if rounds == "auto" else rounds)
    torch.testing.assert_close(found.queries, refine_labels(hints, documents, found.rounds))
    (one, by_other), (other, by_one) = found.apart
    both = torch.cat((one, other))
    assert torch.equal(both[both[:, 0].argsort()], documents[documents[:, 0].argsort()])
    torch.testing.assert_close(by_other, refine_labels(hints, other, found.rounds))
    torch.testing.assert_close(by_one, refine_labels(hints, one, found.rounds))


def test_judge_stops_early_where_halves_disagree() -> None:
    documents, queries = rows(200, 48), rows(6, 48, seed=1)  # no groups at all
    found = judge(queries, documents)
    assert found.rounds == 5
    assert found.agreement < 0.8
    assert torch.equal(found.queries, refine_labels(queries, documents, 5))


def test_judge_leaves_labels_whose_groups_are_something_else() -> None:
    """Two labels that differ along a quiet axis, and documents in two groups far apart along another."""
    generator = torch.Generator().manual_seed(0)
    documents = 0.3 * torch.randn(600, 8, generator=generator)
    documents[:, 1] += 3.0 * (torch.arange(600) % 2) - 1.5
    documents[:, 2] += 3
    queries = torch.zeros(2, 8)
    queries[:, 2] = 1
    queries[:, 0] = torch.tensor([-1.0, 1.0])
    queries[:, 1] = torch.tensor([-0.1, 0.1])
    found = judge(queries, documents)
    assert found.scatter > 3
    assert found.rounds == 0
    torch.testing.assert_close(found.queries, torch.nn.functional.normalize(queries))


@pytest.mark.parametrize(("documents", "labels"), [(1, 3), (5, 1), (2, 2)])
def test_judge_with_hardly_anything(documents: int, labels: int) -> None:
    found = judge(rows(labels, seed=1), rows(documents))
    assert torch.isfinite(found.queries).all()
    assert math.isfinite(found.agreement)
    assert math.isfinite(found.scatter)


def test_scatter_between_groups_by_hand() -> None:
    # two at (1, 0), two at (0, 1), whatever their lengths; the mean is (.5, .5)
    documents = torch.eye(2).repeat_interleave(2, dim=0) * torch.tensor([[1.0], [3.0], [0.2], [1.0]])
    assert refinement._between(documents, torch.tensor([0, 0, 1, 1]), 2) == pytest.approx(1)
    assert refinement._between(documents, torch.tensor([0, 1, 0, 1]), 3) == pytest.approx(0)
    # one alone at (1, 0); three with mean (1/3, 2/3): (1 * 1/2 + 3 * 2/36) / (4 * 1/2)
    assert refinement._between(documents, torch.tensor([0, 1, 1, 1]), 2) == pytest.approx(1 / 3)


# --- edges -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("refine", [5, "auto"])
@pytest.mark.parametrize("documents", [torch.ones(1, 4), torch.ones(6, 4), torch.zeros(3, 4)])
def test_without_deviation_it_is_finite(documents: Tensor, refine: int | str) -> None:
    queries = torch.cat((torch.ones(1, 4), torch.eye(4), torch.zeros(1, 4)))
    assert torch.isfinite(surprise(documents, queries, refine=refine)).all()
    moved = refine_labels(queries, documents, refine)[:5]
    torch.testing.assert_close(moved.norm(dim=1), torch.ones(5))  # no label is lost, not that of the documents' own


def test_survives_an_outlier_too_small_to_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Among many equal documents one lies outside rounding, but leaves sigma within it: its z is infinite."""
    documents = torch.eye(4)[:1].repeat(10_000, 1)
    documents[7, 1] = 5e-6
    queries = torch.eye(4)[:2]
    assert FittedLabels.fit(queries, documents).z(documents)[7].tolist() == [0, math.inf]
    for many in (256, 1):
        monkeypatch.setattr(refinement, "MANY", many)
        monkeypatch.setattr(refinement, "NEAREST", 2)
        assert torch.isfinite(refine_labels(queries, documents, 3)).all()


@pytest.mark.parametrize("scale", [1e-30, 1e-20, 1e18, 1e25])
def test_the_length_of_documents_is_nothing(scale: float) -> None:
    documents, queries = rows(60, dtype=torch.float32), rows(3, seed=1, dtype=torch.float32)
    scaled = documents.clone()
    scaled[::3] *= scale
    want = refine_labels(queries, documents, 4)
    torch.testing.assert_close(refine_labels(queries, scaled, 4), want, rtol=0, atol=1e-4)


def test_rows_that_are_zero_or_denormal_give_no_nan() -> None:
    documents = rows(60, dtype=torch.float32)
    documents[0], documents[1] = 0, 1e-42
    assert torch.isfinite(refine_labels(rows(3, seed=1, dtype=torch.float32), documents, 4)).all()


# --- new labels --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("estimator", ["gaussian", "quantile", "empirical", "tail"])
@pytest.mark.parametrize("weight", [0.5, 1])
def test_new_labels_leave_the_old_untouched(estimator: str, weight: float) -> None:
    documents, queries, more = rows(300), rows(4, seed=1), rows(2, seed=2)
    old = FittedLabels.fit(queries, documents, refine=10, estimator=estimator, weight=weight)
    both = old.extended(more, documents)
    assert len(both) == 6
    torch.testing.assert_close(both.score(documents)[:, :4], old.score(documents), rtol=0, atol=1e-12)
    assert torch.equal(both.queries[:4], old.queries)
    if weight == 1 and estimator != "tail":
        alone = FittedLabels.fit(more, documents, estimator=estimator, weight=1)
        torch.testing.assert_close(both.score(documents)[:, 4:], alone.score(documents), rtol=0, atol=1e-12)
    again = FittedLabels.from_state(both.state())
    assert torch.equal(again.rank(documents)[1], both.rank(documents)[1])


@pytest.mark.parametrize("held", [1, 3, 4])
def test_held_labels_stay_and_have_their_documents(held: int) -> None:
    documents, queries = rows(150), rows(4, seed=1)
    want = transcribed(documents, queries, 10, held=held)
    np.testing.assert_allclose(refine_labels(queries, documents, 10, held=held).numpy(), want, rtol=0, atol=1e-6)
    chosen = judge(queries, documents, held=held)
    want = transcribed(documents, queries, chosen.rounds, held=held)
    np.testing.assert_allclose(chosen.queries.numpy(), want, rtol=0, atol=1e-6)
    np.testing.assert_allclose(refine_labels(queries, documents, "auto", held=held).numpy(), want, rtol=0, atol=1e-6)
    for _, apart in chosen.apart:
        np.testing.assert_allclose(apart[:held].numpy(), unit(queries[:held].numpy()), rtol=0, atol=1e-12)


@pytest.mark.parametrize("refine", [10, "auto"])
def test_new_labels_are_refined_beside_the_old(refine: int | str) -> None:
    documents, queries, more = rows(300), rows(4, seed=1), rows(2, seed=2)
    old = FittedLabels.fit(queries, documents, refine=10, weight=1)
    both = old.extended(more.requires_grad_(), documents, refine=refine)
    together = torch.cat((old.queries, more.detach()))
    rounds = judge(together, documents, held=4).rounds if refine == "auto" else 10
    np.testing.assert_allclose(both.queries.numpy(), transcribed(documents, together, rounds, held=4), atol=1e-6)
    np.testing.assert_allclose(both.queries[:4].numpy(), old.queries.numpy(), atol=0)
    psi = unit(documents.numpy()) @ both.queries.numpy().T
    z = (psi - psi.mean(axis=0)) / psi.std(axis=0)
    np.testing.assert_allclose(both.z(documents).numpy(), z, rtol=0, atol=1e-8)
    assert not both.queries.requires_grad


def test_a_new_group_is_found_beside_refined_labels() -> None:
    """Refined without the last label, the others have drawn its documents to themselves."""
    documents, queries, truth = groups([150, 150, 150, 150])
    old = FittedLabels.fit(queries[:3], documents, weight=1, refine=10)
    found = {
        refine: float((old.extended(queries[3:], documents, refine=refine).decide(documents) == truth).double().mean())
        for refine in (0, 10)
    }
    assert found[10] > 0.95
    assert found[10] >= found[0]


@pytest.mark.parametrize(
    ("queries", "options", "message"),
    [
        (rows(2), {"refine": -1}, "refine must be 'auto' or a number of rounds"),
        (rows(2, dim=5), {"refine": 3}, "the ensemble has 12 dimensions, but queries have 5"),
        (rows(2), {"refine": 3, "ensemble": Ensemble.from_embeddings(rows(50), reservoir=0)}, "refine needs documents"),
    ],
)
def test_new_labels_that_do_not_fit(queries: Tensor, options: dict, message: str) -> None:
    old = FittedLabels.fit(rows(4, seed=1), rows(50), weight=1)
    with pytest.raises(ValueError, match=message):
        old.extended(queries, options.pop("ensemble", rows(50)), **options)


@pytest.mark.parametrize("function", [refine_labels, judge])
@pytest.mark.parametrize(
    ("queries", "ensemble", "rounds", "message"),
    [
        (rows(2, dim=5), rows(50), 3, "the ensemble has 12 dimensions, but queries have 5"),
        (rows(2), rows(0), 3, "the ensemble holds no documents"),
        (rows(2), Ensemble.from_embeddings(rows(50), reservoir=0), 3, "refinement needs documents"),
        (rows(2), Ensemble.from_embeddings(rows(50), reservoir=0), "auto", "refinement needs documents"),
        (rows(2), Ensemble.from_embeddings(rows(50), normalize=False), 3, "needs an Ensemble with normalize=True"),
        (rows(2), rows(50), -3, "rounds must be 'auto' or a number of rounds, 0 or more, got -3"),
        (rows(2), rows(50), 2.7, "rounds must be 'auto' or a number of rounds, 0 or more, got 2.7"),
        (rows(2) / 0, rows(50), 3, "queries: row 0, 1 holds NaN or infinity"),
    ],
)
def test_what_cannot_be_refined_is_refused(function, queries, ensemble, rounds, message) -> None:
    with pytest.raises(ValueError, match=message):
        function(queries, ensemble, rounds)


def test_no_round_needs_no_document() -> None:
    bare = Ensemble.from_embeddings(rows(50), reservoir=0)
    torch.testing.assert_close(refine_labels(rows(2), bare, 0), unit_rows(rows(2)))
    with pytest.raises(ValueError, match="refinement needs documents"):
        judge(rows(2), bare, 0)
