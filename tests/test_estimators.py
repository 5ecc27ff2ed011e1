"""Quantiles, ranks and the rescaled similarity, by hand, against NumPy, and in blocks."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from surprise_hf import estimators as est
from surprise_hf import fitted
from surprise_hf.ensemble import Ensemble
from surprise_hf.scoring import FittedLabels, surprise

from .scoring_data import estimators, rows, similarities


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(-1, 1), min_size=1, max_size=30), st.sampled_from([0.0, 0.5, 0.8413, 1.0]))
def test_quantile_is_that_of_numpy_and_torch(values: list[float], p: float) -> None:
    x = torch.tensor(values, dtype=torch.float64)
    ours = est.quantile(x.sort().values[None], p)
    assert ours.item() == pytest.approx(np.quantile(values, p), abs=1e-15)
    assert ours.item() == pytest.approx(torch.quantile(x, p).item(), abs=1e-15)


FEW = st.sampled_from([-torch.inf, -1.0, -0.0, 0.0, 0.25, 1.0, torch.inf])  # so that most values have equals


@settings(max_examples=150, deadline=None)
@given(st.data(), st.integers(0, 4), st.integers(1, 25), st.booleans())
def test_the_best_are_the_first_of_a_stable_sort(data: st.DataObject, n: int, m: int, with_ties: bool) -> None:
    draw = lambda: [data.draw(st.lists(FEW, min_size=m, max_size=m)) for _ in range(n)]  # noqa: E731
    values, ties = draw(), draw()
    x, y = (torch.tensor(rows, dtype=torch.float64).reshape(n, m) for rows in (values, ties))
    for k in {1, min(10, m), m}:
        found = est.best(x, k, y if with_ties else None)
        second = ties if with_ties else [[0.0] * m] * n
        for row, one, other in zip(found.tolist(), values, second, strict=True):
            assert row == sorted(range(m), key=lambda i: (-one[i], -other[i], i))[:k]


def test_empirical_counts_ties_as_not_below_and_saturates_beyond_the_extremes() -> None:
    documents = torch.tensor([[1.0], [2.0], [2.0], [4.0]])
    keys = torch.tensor([[0.0], [1.0], [1.5], [2.0], [3.0], [4.0], [9.0], [99.0]])
    score = surprise(keys, torch.ones(1, 1), documents, weight=1, estimator="empirical", similarity="dot")
    assert score.flatten().tolist() == [0, 0, 0.25, 0.25, 0.75, 0.75, 1, 1]


def test_empirical_score_in_blocks_of_labels_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    keys, queries = rows(60), rows(7, seed=1)
    whole = {w: surprise(keys, queries, weight=w, estimator="empirical") for w in (0.5, 1)}
    monkeypatch.setattr(est, "BLOCK", 100)
    for w, score in whole.items():
        torch.testing.assert_close(surprise(keys, queries, weight=w, estimator="empirical"), score, rtol=0, atol=1e-14)


@similarities
def test_a_document_ties_with_its_own_row_that_an_ensemble_keeps(similarity: str) -> None:
    """The rows are kept in float32, whatever the documents and labels are; products of these are all below 0."""
    documents, queries = rows(40).abs() * torch.logspace(0, 3, 40)[:, None], -rows(4, seed=1).abs()
    ens = Ensemble.from_embeddings(documents, normalize=similarity == "cosine")
    opts = {"weight": 1, "estimator": "empirical", "similarity": similarity}
    want = surprise(documents, queries, documents, **opts)
    torch.testing.assert_close(surprise(documents, queries, ens, **opts), want, rtol=0, atol=1e-12)


@estimators
@similarities
def test_blocks_change_nothing(estimator: str, similarity: str, monkeypatch: pytest.MonkeyPatch) -> None:
    keys, queries, documents = rows(30, seed=2), rows(7, seed=1), rows(83)
    opts = {"weight": 0.4, "estimator": estimator, "similarity": similarity}
    whole = FittedLabels.fit(queries, documents, **opts)
    want = whole.score(keys), *whole.rank(keys, 3)
    largest = 0
    plain = est.similarity

    def watched(*args, **kwargs) -> Tensor:
        nonlocal largest
        psi = plain(*args, **kwargs)
        largest = max(largest, psi.numel())
        return psi

    monkeypatch.setattr(est, "BLOCK", 90)
    monkeypatch.setattr(fitted, "PIECE", 40)
    monkeypatch.setattr(est, "similarity", watched)
    parts = FittedLabels.fit(queries, documents, **opts)
    got = parts.score(keys), *parts.rank(keys, 3)
    assert 0 < largest <= 90
    for x, y in zip(got, want, strict=True):
        torch.testing.assert_close(x, y, rtol=0, atol=1e-13)


# --- the rescaled similarity -------------------------------------------------------------------------------------


def test_rescaled_similarity_by_hand() -> None:
    """Cosines -0.6, 0, 0.2, 0.6, 0.8 -> x = 0.2, 0.5, 0.6, 0.8, 0.9: t = 0.6, a = (0.2 + 0.5 + 0.3) / 2.5 = 0.4,

    b = (0.3 + 0.8 + 0.9) / 2.5 = 0.8, D = 0.4 - 0.6 * 0.2 = 0.28; below x * 0.2 / 0.28, above 1 - (1 - x) * 0.4 / 0.28.
    """
    psi = torch.tensor([[-0.6], [0.0], [0.2], [0.6], [0.8]], dtype=torch.float64)
    keys = torch.cat((psi, (1 - psi**2).sqrt()), dim=1)
    hat = surprise(keys, torch.tensor([[1.0, 0.0]], dtype=torch.float64), weight=0).flatten()
    want = [0.2 * 0.2 / 0.28, 0.5 * 0.2 / 0.28, 0.6 * 0.2 / 0.28, 1 - 0.2 * 0.4 / 0.28, 1 - 0.1 * 0.4 / 0.28]
    assert hat.tolist() == pytest.approx(want, abs=1e-12)
    assert sum(want) / 5 == pytest.approx(0.5, abs=1e-12)


def test_papers_anchor_by_hand() -> None:
    """Cosines 0.2, 0.6, 0.8 anchored at 0: t = 0.6, a = 0.5 / 1.5, b = 1.1 / 1.5, D = a - t (a + b - 1)."""
    psi = torch.tensor([[0.2], [0.6], [0.8]], dtype=torch.float64)
    keys = torch.cat((psi, (1 - psi**2).sqrt()), dim=1)
    hat = surprise(keys, torch.tensor([[1.0, 0.0]], dtype=torch.float64), weight=0, anchor=0).flatten()
    a, b, t = 0.5 / 1.5, 1.1 / 1.5, 0.6
    d = a - t * (a + b - 1)
    assert hat.tolist() == pytest.approx([0.2 * (1 - b) / d, 0.6 * (1 - b) / d, 1 - 0.2 * a / d], abs=1e-12)
    below = torch.tensor([[-0.8, 0.6]], dtype=torch.float64)
    below = surprise(below, torch.tensor([[1.0, 0.0]], dtype=torch.float64), keys, weight=0, anchor=0)
    assert below.item() == pytest.approx(-0.8 * (1 - b) / d, abs=1e-12)
    assert hat.mean().item() == pytest.approx(0.5, abs=1e-12)


cosines = st.lists(st.floats(-1, 1, width=32), min_size=1, max_size=60)


@settings(max_examples=300, deadline=None)
@given(cosines, st.sampled_from([torch.float32, torch.float64]))
def test_map_has_mean_half_increases_and_stays_in_bounds(values: list[float], dtype: torch.dtype) -> None:
    psi = torch.tensor(values, dtype=dtype)
    fit = est.Rescale.fit(lambda: iter(psi.split(7)), len(psi), dtype, (-1.0, 1.0))
    hat, gap = fit(psi)
    assert hat.mean().item() == pytest.approx(0.5, abs=1e-9)
    grid = torch.cat((torch.linspace(-1, 1, 201, dtype=torch.float64), psi.double())).sort().values
    on_grid, _ = fit(grid)
    assert ((on_grid >= 0) & (on_grid <= 1)).all()
    assert (on_grid.diff() >= -1e-12).all()
    torch.testing.assert_close(gap, 1 - hat, rtol=0, atol=1e-12)
    if min(values) > -1 + 1e-5 and max(values) < 1 - 1e-5:  # anchors are met, and nothing is flat
        assert fit(torch.tensor([-1.0, 1.0]))[0].tolist() == [0.0, 1.0]
        distinct = torch.linspace(-0.999, 0.999, 50, dtype=torch.float64)
        assert (fit(distinct)[0].diff() > 0).all()


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_cosines_that_rounding_parts_from_one_end_are_all_alike(dtype: torch.dtype, sign: int) -> None:
    """D = 0 gives 0.5 (design section 1): of copies of the label's own text, rounding makes no ranking."""
    steps = torch.tensor([0, 1, 3, 0, 2], dtype=torch.float64)
    eps = torch.finfo(dtype).eps
    for anchors in ((-1.0, 1.0), None):
        for scale, flat in ((eps / 2, True), (64 * eps, False)):
            psi = (sign * (1 - scale * steps)).to(dtype)
            fit = est.Rescale.fit(lambda psi=psi: iter(psi.split(2)), len(psi), dtype, anchors)
            hat, gap = fit(psi)
            assert (hat.tolist() == [0.5] * 5) == flat, (anchors, scale)
            torch.testing.assert_close(gap, 1 - hat, rtol=0, atol=1e-12)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.floats(allow_nan=False, allow_infinity=False, width=32), min_size=1, max_size=80),
    st.sampled_from([torch.float32, torch.float64]),
    st.integers(1, 9),
)
def test_radix_select_is_the_lower_median(values: list[float], dtype: torch.dtype, size: int) -> None:
    x = torch.tensor(values, dtype=dtype)
    assert est._lower_median(lambda: iter(x.split(size)), len(x), dtype) == torch.median(x).item()


@pytest.mark.parametrize("similarity", ["dot", "euclidean", "manhattan"])
def test_unbounded_similarities_are_anchored_at_their_extremes(similarity: str) -> None:
    documents, queries = rows(50), rows(3, seed=1)
    hat = surprise(documents, queries, weight=0, similarity=similarity)
    assert (hat.min(), hat.max()) == (0, 1)
    assert hat.mean().item() == pytest.approx(0.5, abs=1e-12)
    far = torch.cat((documents * 100, -documents * 100))
    beyond = surprise(far, queries, documents, weight=0, similarity=similarity)
    assert ((beyond >= 0) & (beyond <= 1)).all()
