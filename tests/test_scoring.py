"""surprise() against its definition in float64: values, invariances, sizes, types, errors."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from surprise_hf import estimators as est
from surprise_hf import fitted, ops, scoring
from surprise_hf.ensemble import Ensemble
from surprise_hf.scoring import FittedLabels, surprise

from .scoring_data import (
    SIMILARITIES,
    estimators,
    options,
    rows,
    similarities,
    true_hat,
    true_psi,
    true_surprise,
    vectors,
    weights,
)


@pytest.mark.parametrize(("dtype", "atol"), [(torch.float64, 1e-12), (torch.float32, 2e-6)])
@estimators
@similarities
def test_score_equals_its_definition(estimator: str, similarity: str, dtype: torch.dtype, atol: float) -> None:
    keys, queries, documents = rows(40, seed=1, dtype=dtype), rows(5, seed=2, dtype=dtype), rows(90, dtype=dtype)
    psi, context = true_psi(keys, queries, similarity), true_psi(documents, queries, similarity)
    score = surprise(keys, queries, documents, weight=1, estimator=estimator, similarity=similarity)
    assert score.dtype == FittedLabels.fit(queries, documents, similarity=similarity).z(keys).dtype == dtype
    np.testing.assert_allclose(score.numpy(), true_surprise(psi, context, estimator), rtol=0, atol=atol)


def test_distances_of_near_rows_keep_their_digits() -> None:
    """Far from the origin and near to each other, and enough rows for torch to take distances from products."""
    keys, queries = (100 + 0.01 * rows(60, seed=seed).float() for seed in (1, 2))
    want = true_psi(keys, queries, "euclidean")
    np.testing.assert_allclose(est.similarity(keys, queries, "euclidean").numpy(), want, rtol=1e-5)


@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("count", [90, 91])  # of an even number of similarities the median is between two
@estimators
@similarities
def test_crossover_equals_its_definition(estimator: str, similarity: str, count: int, own: bool) -> None:
    documents, queries = rows(count, 7), rows(5, 7, seed=2)
    keys = documents if own else rows(40, 7, seed=1)
    psi, context = true_psi(keys, queries, similarity), true_psi(documents, queries, similarity)
    low, high = (-1.0, 1.0) if similarity == "cosine" else (context.min(), context.max())
    w = math.tanh(count / 200)
    want = (1 - w) * true_hat(psi, context, low, high).clip(0, 1) + w * true_surprise(psi, context, estimator)
    ensemble = None if own else documents
    score = surprise(keys, queries, ensemble, n_cross=200, estimator=estimator, similarity=similarity)
    np.testing.assert_allclose(score.numpy(), want, rtol=0, atol=1e-11)


def test_default_is_one_op(monkeypatch: pytest.MonkeyPatch) -> None:
    keys, queries = rows(4000, 8, dtype=torch.float32), rows(3, 8, seed=1, dtype=torch.float32)
    calls = []
    op = ops.cosine_surprise

    def spy(*args, **kwargs):
        calls.append(kwargs)
        return op(*args, **kwargs)

    for name in ("cosine_moments", "surprise_from_moments", "surprise_topk", "ensemble_update"):
        monkeypatch.setattr(ops, name, lambda *_, **__: pytest.fail("another op was called"))
    monkeypatch.setattr(ops, "cosine_surprise", spy)
    score = surprise(keys, queries)  # tanh(4) counts as 1
    assert calls == [{"normalize": True, "impl": "auto"}]
    assert torch.equal(score, op(keys, queries)[0])
    assert torch.equal(surprise(keys, queries, keys), score)
    assert len(calls) == 2


def test_fast_path_carries_the_gradient_of_the_op() -> None:
    keys, queries = rows(9, 3).requires_grad_(), rows(2, 3, seed=1).requires_grad_()
    assert torch.autograd.gradcheck(lambda k, q: surprise(k, q, weight=1), (keys, queries))
    assert not surprise(keys, queries, weight=0.5).requires_grad


@pytest.mark.parametrize("seed", range(3))
def test_score_is_not_symmetric(seed: int) -> None:
    x = rows(50, seed=seed)
    score = surprise(x, x, weight=1)
    assert (score - score.T).abs().max() > 0.05


@settings(max_examples=150, deadline=None)
@given(vectors, options)
def test_score_is_a_probability_and_monotone_in_psi(pair: tuple[Tensor, Tensor], opts: dict) -> None:
    documents, queries = pair
    keys = torch.cat((documents, rows(20, documents.shape[1], 77) * 2))
    score = surprise(keys, queries, documents, **opts)
    assert ((score >= 0) & (score <= 1)).all()
    psi = est.similarity(keys, queries, opts["similarity"])
    order = psi.argsort(dim=0)
    assert (score.gather(0, order).diff(dim=0) >= -1e-12).all()


@settings(max_examples=100, deadline=None)
@given(vectors, options, st.integers(0, 1000))
def test_permuting_and_rescaling_rows_changes_nothing(pair: tuple[Tensor, Tensor], opts: dict, seed: int) -> None:
    documents, queries = pair
    generator = torch.Generator().manual_seed(seed)
    to_keys = torch.randperm(len(documents), generator=generator)
    to_queries = torch.randperm(len(queries), generator=generator)
    score = surprise(documents, queries, **opts)
    moved = surprise(documents[to_keys], queries[to_queries], **opts)
    torch.testing.assert_close(moved, score[to_keys][:, to_queries], rtol=0, atol=1e-9)
    if opts["similarity"] == "cosine":
        scale = torch.rand(len(documents), 1, generator=generator, dtype=torch.float64) * 100 + 1e-3
        torch.testing.assert_close(surprise(documents * scale, queries * scale[0], **opts), score, rtol=0, atol=1e-9)


def test_without_deviation_the_score_is_a_step_with_half_at_the_mean() -> None:
    documents = torch.tensor([[1.0, 1.0]]).repeat(3, 1)
    keys = torch.tensor([[0.0, 1.0], [2.0, 2.0], [1.0, 0.0]])
    score = surprise(keys, torch.tensor([[1.0, 0.0]]), documents, weight=1)
    assert score.flatten().tolist() == [0.0, 0.5, 1.0]


# --- sizes, types, errors ----------------------------------------------------------------------------------------


@estimators
@similarities
@weights
def test_no_documents_and_no_labels_give_empty_results(estimator: str, similarity: str, weight: float) -> None:
    opts = {"estimator": estimator, "similarity": similarity, "weight": weight}
    assert surprise(rows(4), rows(0), **opts).shape == (4, 0)
    assert surprise(rows(0), rows(3), **opts).shape == (0, 3)
    assert surprise(rows(0), rows(3), rows(5), **opts).shape == (0, 3)
    assert FittedLabels.fit(rows(3), rows(5), **opts).decide(rows(0)).shape == (0,)


@estimators
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_float32(estimator: str, dtype: torch.dtype) -> None:
    keys, queries = rows(50, dtype=dtype), rows(3, seed=1, dtype=dtype)
    for similarity in SIMILARITIES:
        for weight in (0.5, 1):
            opts = {"weight": weight, "estimator": estimator, "similarity": similarity}
            score = surprise(keys, queries, **opts)
            assert score.dtype == torch.float32
            torch.testing.assert_close(score, surprise(keys.float(), queries.float(), **opts), rtol=0, atol=1e-6)


def test_mixed_dtypes_take_the_wider() -> None:
    for weight in (0.5, 1):
        assert surprise(rows(9, dtype=torch.float32), rows(2), weight=weight).dtype == torch.float64


@pytest.mark.parametrize("impl", ["auto", "reference"])
@weights
def test_impl_is_handed_on(impl: str, weight: float) -> None:
    keys, queries = rows(50, dtype=torch.float32), rows(3, seed=1, dtype=torch.float32)
    torch.testing.assert_close(
        surprise(keys, queries, weight=weight, impl=impl), surprise(keys, queries, weight=weight), rtol=0, atol=2e-6
    )
    with pytest.raises(ValueError, match="impl must be one of"):
        surprise(keys, queries, weight=weight, impl="fastest")


NAN = rows(5)
NAN[3, 1] = math.nan


@pytest.mark.parametrize(
    ("args", "opts", "error", "message"),
    [
        ((rows(5), rows(2, 5)), {}, ValueError, "keys have 12 dimensions but queries have 5"),
        ((rows(5), rows(2), rows(5, 4)), {}, ValueError, "the ensemble has 4 dimensions, but queries have 12"),
        ((rows(5), rows(2), Ensemble(4)), {}, ValueError, "the ensemble has 4 dimensions, but queries have 12"),
        ((rows(5), rows(2), rows(0)), {}, ValueError, "the ensemble holds no documents"),
        ((rows(5), rows(2), Ensemble(12)), {}, ValueError, "the ensemble holds no documents"),
        ((rows(5), rows(2), [1]), {}, TypeError, "ensemble must be a torch.Tensor, got list"),
        ((rows(5).tolist(), rows(2)), {}, TypeError, "keys must be a torch.Tensor, got list"),
        ((rows(5).int().numpy(), rows(2)), {}, TypeError, "keys must have a floating dtype .*got torch.int32"),
        ((rows(5), rows(2).to_sparse()), {}, TypeError, "queries must be dense"),
        ((rows(5)[0], rows(2)), {}, ValueError, "keys must have shape"),
        ((NAN, rows(2)), {}, ValueError, "keys: row 3 holds NaN"),
        ((rows(5), NAN), {"weight": 1}, ValueError, "queries: row 3 holds NaN"),
        ((rows(5), rows(2), NAN), {}, ValueError, "ensemble: row 3 holds NaN"),
        ((rows(5), rows(2)), {"estimator": "best"}, ValueError, "estimator must be one of .*got 'best'"),
        ((rows(5), rows(2)), {"similarity": "best"}, ValueError, "similarity must be one of"),
        ((rows(5), rows(2)), {"anchor": 1}, ValueError, "anchor must be one of"),
        ((rows(5), rows(2)), {"anchor": 0, "similarity": "dot"}, ValueError, "anchor=0 is the paper's form"),
        ((rows(5), rows(2)), {"weight": 2}, ValueError, "weight must be between"),
        ((rows(5), rows(2)), {"refine": "yes"}, ValueError, "refine must be 'auto' or a number of rounds"),
        ((rows(5), rows(2)), {"refine": -1}, ValueError, "refine must be 'auto' or a number of rounds"),
        ((rows(5), rows(2)), {"refine": True}, ValueError, "refine must be 'auto' or a number of rounds"),
        ((rows(5), rows(2)), {"refine": 2, "similarity": "dot"}, ValueError, "refine works on the cosine"),
        (
            (rows(5), rows(2), Ensemble.from_embeddings(rows(5))),
            {"similarity": "dot"},
            ValueError,
            "similarity='dot' needs an Ensemble with normalize=False",
        ),
    ],
)
def test_errors_name_the_argument(args: tuple, opts: dict, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        surprise(*args, **opts)


@pytest.mark.parametrize("integer", [np.int64, np.uint8])
def test_rounds_are_integers_of_any_library(integer: type) -> None:
    want = surprise(rows(20), rows(3, seed=1), refine=2)
    assert torch.equal(surprise(rows(20), rows(3, seed=1), refine=integer(2)), want)
    assert not torch.equal(surprise(rows(20), rows(3, seed=1)), want)


def test_public_names() -> None:
    assert scoring.FittedLabels is fitted.FittedLabels
    assert set(scoring.__all__) == {"FittedLabels", "crossover_weight", "refine_labels", "surprise"}
