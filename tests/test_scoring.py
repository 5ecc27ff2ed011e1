"""surprise(), fitted labels, estimators, rescaled similarity, and decision, against float64 truth."""

from __future__ import annotations

import dataclasses
import json
import math

import numpy as np
import pytest
import scipy.special
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from surprise_hf import estimators as est
from surprise_hf import fitted, ops, scoring
from surprise_hf.ensemble import Ensemble
from surprise_hf.scoring import FittedLabels, crossover_weight, decide, surprise

ESTIMATORS = ("gaussian", "quantile", "empirical")
SIMILARITIES = ("cosine", "dot", "euclidean", "manhattan")
WEIGHTS = (0.0, 0.3, 0.9, 1.0)

estimators = pytest.mark.parametrize("estimator", ESTIMATORS)
similarities = pytest.mark.parametrize("similarity", SIMILARITIES)
weights = pytest.mark.parametrize("weight", WEIGHTS)


def rows(n: int, dim: int = 12, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, dim, generator=generator, dtype=torch.float64).add(0.4).to(dtype)


def true_psi(keys: Tensor, queries: Tensor, similarity: str) -> np.ndarray:
    k, q = keys.double().numpy(), queries.double().numpy()
    if similarity == "cosine":
        return (k / np.linalg.norm(k, axis=1, keepdims=True)) @ (q / np.linalg.norm(q, axis=1, keepdims=True)).T
    if similarity == "dot":
        return k @ q.T
    gap = k[:, None] - q[None]
    return -np.sqrt((gap**2).sum(-1)) if similarity == "euclidean" else -np.abs(gap).sum(-1)


def true_surprise(psi: np.ndarray, context: np.ndarray, estimator: str) -> np.ndarray:
    """The three estimates straight from their definitions, in float64."""
    if estimator == "empirical":
        return (context[:, None, :] < psi[None]).mean(axis=0)
    if estimator == "gaussian":
        mean, std = context.mean(axis=0), context.std(axis=0)
    else:
        mean = np.percentile(context, 50, axis=0)
        std = np.percentile(context, 84.13, axis=0) - mean
    return 0.5 * (1 + scipy.special.erf((psi - mean) / (math.sqrt(2) * std)))


def true_hat(psi: np.ndarray, context: np.ndarray, low: float, high: float) -> np.ndarray:
    """Design section 1: x scaled to the anchors, half-means with the median element counted half in each."""
    x, flat = (psi - low) / (high - low), np.sort((context.ravel() - low) / (high - low))
    doubled = np.repeat(flat, 2)  # every element twice, so that the median one can be split
    t, a, b = np.median(flat), doubled[: len(flat)].mean(), doubled[len(flat) :].mean()
    d = a - t * (a + b - 1)
    return np.where(x <= t, x * (1 - b) / d, (a * x + d - a) / d)


# --- the score ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("dtype", "atol"), [(torch.float64, 1e-12), (torch.float32, 2e-6)])
@estimators
@similarities
def test_score_equals_its_definition(estimator: str, similarity: str, dtype: torch.dtype, atol: float) -> None:
    keys, queries, documents = rows(40, seed=1, dtype=dtype), rows(5, seed=2, dtype=dtype), rows(90, dtype=dtype)
    psi, context = true_psi(keys, queries, similarity), true_psi(documents, queries, similarity)
    score = surprise(keys, queries, documents, weight=1, estimator=estimator, similarity=similarity)
    assert score.dtype == dtype
    np.testing.assert_allclose(score.numpy(), true_surprise(psi, context, estimator), rtol=0, atol=atol)


@pytest.mark.parametrize("own", [True, False])
@estimators
@similarities
def test_crossover_equals_its_definition(estimator: str, similarity: str, own: bool) -> None:
    documents, queries = rows(91, 7), rows(5, 7, seed=2)
    keys = documents if own else rows(40, 7, seed=1)
    psi, context = true_psi(keys, queries, similarity), true_psi(documents, queries, similarity)
    low, high = (-1.0, 1.0) if similarity == "cosine" else (context.min(), context.max())
    w = math.tanh(91 / 200)
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


vectors = st.builds(
    lambda n, m, dim, seed, shift, spread: (
        rows(n, dim, seed) * spread + shift,
        rows(m, dim, seed + 1) * spread + shift,
    ),
    n=st.integers(2, 40),
    m=st.integers(1, 5),
    dim=st.integers(2, 9),
    seed=st.integers(0, 10_000),
    shift=st.sampled_from([0.0, 3.0, -0.5]),
    spread=st.sampled_from([1.0, 0.05]),
)
options = st.fixed_dictionaries(
    {
        "weight": st.sampled_from([None, *WEIGHTS]),
        "estimator": st.sampled_from(ESTIMATORS),
        "similarity": st.sampled_from(SIMILARITIES),
    }
)


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


@pytest.mark.parametrize("weight", [None, *WEIGHTS])
@pytest.mark.parametrize("anchor", [-1, 0])
@estimators
@pytest.mark.parametrize(
    "documents",
    [torch.ones(1, 4), torch.ones(10, 4), torch.zeros(5, 4), torch.eye(4)[:1].repeat(3, 1), -torch.ones(2, 4)],
    ids=["one", "identical", "zero", "axis", "opposite"],
)
def test_degenerate_ensembles_never_give_nan(documents: Tensor, estimator: str, anchor: int, weight) -> None:
    queries = torch.cat((torch.eye(4)[:2], torch.zeros(1, 4), torch.ones(1, 4)))
    labels = FittedLabels.fit(queries, documents, weight=weight, estimator=estimator, anchor=anchor)
    keys = torch.cat((documents, torch.eye(4), torch.zeros(1, 4), -torch.ones(1, 4)))
    for x in (labels.score(keys), surprise(documents, queries, weight=weight, estimator=estimator, anchor=anchor)):
        assert torch.isfinite(x).all()
    assert not labels.z(keys).isnan().any()
    assert all(torch.isfinite(x).all() for x in labels.to_linear())
    assert sorted(labels.rank(keys)[1][0].tolist()) == [0, 1, 2, 3]


def test_without_deviation_the_score_is_a_step_with_half_at_the_mean() -> None:
    documents = torch.tensor([[1.0, 1.0]]).repeat(3, 1)
    keys = torch.tensor([[0.0, 1.0], [2.0, 2.0], [1.0, 0.0]])
    score = surprise(keys, torch.tensor([[1.0, 0.0]]), documents, weight=1)
    assert score.flatten().tolist() == [0.0, 0.5, 1.0]


# --- quantiles and ranks -----------------------------------------------------------------------------------------


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(-1, 1), min_size=1, max_size=30), st.sampled_from([0.0, 0.5, 0.8413, 1.0]))
def test_quantile_is_that_of_numpy_and_torch(values: list[float], p: float) -> None:
    x = torch.tensor(values, dtype=torch.float64)
    ours = est.quantile(x.sort().values[None], p)
    assert ours.item() == pytest.approx(np.quantile(values, p), abs=1e-15)
    assert ours.item() == pytest.approx(torch.quantile(x, p).item(), abs=1e-15)


def test_empirical_counts_ties_as_not_below_and_saturates_beyond_the_extremes() -> None:
    documents = torch.tensor([[1.0], [2.0], [2.0], [4.0]])
    keys = torch.tensor([[0.0], [1.0], [1.5], [2.0], [3.0], [4.0], [9.0], [99.0]])
    score = surprise(keys, torch.ones(1, 1), documents, weight=1, estimator="empirical", similarity="dot")
    assert score.flatten().tolist() == [0, 0, 0.25, 0.25, 0.75, 0.75, 1, 1]


def test_empirical_ties_are_broken_by_z_beyond_the_extremes_too() -> None:
    documents = torch.tensor([[1.0, 2.0], [2.0, 4.0], [3.0, 6.0]])
    labels = FittedLabels.fit(torch.eye(2), documents, weight=1, estimator="empirical", similarity="dot")
    keys = torch.tensor([[9.0, 10.0], [4.0, 10.0], [-1.0, -9.0], [-9.0, -1.0]])  # all above or below everything
    assert (labels.score(keys) == torch.tensor([[1.0], [1.0], [0.0], [0.0]])).all()
    assert labels.decide(keys).tolist() == [0, 1, 0, 1]


def test_empirical_score_in_blocks_of_labels_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    keys, queries = rows(60), rows(7, seed=1)
    whole = {w: surprise(keys, queries, weight=w, estimator="empirical") for w in (0.5, 1)}
    monkeypatch.setattr(est, "BLOCK", 100)
    for w, score in whole.items():
        torch.testing.assert_close(surprise(keys, queries, weight=w, estimator="empirical"), score, rtol=0, atol=1e-14)


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
    if min(values) > -1 and max(values) < 1:  # anchors are met, and nothing is flat
        assert fit(torch.tensor([-1.0, 1.0]))[0].tolist() == [0.0, 1.0]
        distinct = torch.linspace(-0.999, 0.999, 50, dtype=torch.float64)
        assert (fit(distinct)[0].diff() > 0).all()


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


# --- crossover and decision --------------------------------------------------------------------------------------


def test_crossover_weight_snaps() -> None:
    assert crossover_weight(500) == pytest.approx(math.tanh(0.5))
    assert crossover_weight(100, n_cross=50) == pytest.approx(math.tanh(2))
    assert crossover_weight(4000) == 1 == crossover_weight(3, weight=0.9991)
    assert crossover_weight(0) == 0 == crossover_weight(9000, weight=0.0009)
    assert crossover_weight(3, weight=0.998) == 0.998
    for bad in ({"weight": 1.1}, {"weight": -0.1}, {"weight": math.nan}):
        with pytest.raises(ValueError, match="weight must be between"):
            crossover_weight(5, **bad)
    with pytest.raises(ValueError, match="n_cross must be positive"):
        crossover_weight(5, n_cross=0)


@settings(max_examples=100, deadline=None)
@given(vectors, st.sampled_from(ESTIMATORS), st.sampled_from([-1, 0]))
def test_weight_zero_decides_exactly_as_the_cosine(pair: tuple[Tensor, Tensor], estimator: str, anchor: int) -> None:
    keys, queries = (x.float() for x in pair)
    zeros = torch.zeros(len(queries), dtype=torch.float64)
    cosine = ops.surprise_from_moments(keys, queries, zeros, zeros + 1, output="cosine")
    chosen = decide(keys, queries, weight=0, estimator=estimator, anchor=anchor)
    assert torch.equal(chosen, cosine.argmax(dim=1))
    if anchor == -1:  # the scores can tie by rounding, but never disagree
        score = surprise(keys, queries, weight=0, estimator=estimator)
        assert torch.equal(score.gather(1, chosen[:, None])[:, 0], score.amax(dim=1))


@settings(max_examples=100, deadline=None)
@given(vectors, options)
def test_rank_orders_by_the_score_where_the_score_can_tell(pair: tuple[Tensor, Tensor], opts: dict) -> None:
    keys, queries = pair
    labels = FittedLabels.fit(queries, keys, **opts)
    scores, indices = labels.rank(keys)
    torch.testing.assert_close(scores, labels.score(keys).gather(1, indices), rtol=0, atol=1e-13)
    assert (scores.diff(dim=1) <= 1e-12).all()
    assert torch.equal(indices.sort(dim=1).values, torch.arange(len(queries)).expand(len(keys), -1))
    top, chosen = labels.rank(keys, 1)
    assert torch.equal(chosen[:, 0], indices[:, 0])
    assert torch.equal(labels.decide(keys), indices[:, 0])
    assert top.shape == (len(keys), 1)


@pytest.mark.parametrize("weight", [1.0, 0.95])
def test_decision_holds_where_scores_have_rounded_to_one(weight: float) -> None:
    """Two labels at z about 20 and 30 (with psi^ near 1): S and S_w tie in float32, the decision does not."""
    documents = torch.zeros(2000, 4, dtype=torch.float32)
    documents[:, 3] = 1
    documents[:, :3] = torch.randn(2000, 3, generator=torch.Generator().manual_seed(0)) * torch.tensor([2e-2, 1e-2, 1])
    queries = torch.eye(4)[:2]
    key = torch.tensor([[1.0, 1.0, 0.0, 0.0], [1.0, 0.999999, 0.0, 0.0], [0.999999, 1.0, 0.0, 0.0]])
    labels = FittedLabels.fit(queries, documents, weight=weight)
    z = labels.z(key)
    assert (z > 15).all()
    if weight == 1:
        assert (labels.score(key) == 1).all()
        assert labels.decide(key).tolist() == [1, 1, 1]  # sigma is half as large for the second
        assert torch.equal(labels.decide(key), z.argmax(dim=1))
    else:
        assert labels.decide(key[1:]).tolist() == [0, 1]  # tails have vanished: what is left is 1 - psi^


def test_complement_keeps_order_where_the_blend_saturates() -> None:
    """dot, w = 0.5: both labels reach psi^ = 1 in float64 or nearly; only the gaussian tails differ."""
    documents = rows(500, 3, dtype=torch.float64)
    documents[0] = 30.0  # the upper anchor
    queries = torch.eye(3, dtype=torch.float64)[:2]
    key = torch.tensor([[30.0, 30.0, 0.0]], dtype=torch.float64)
    labels = FittedLabels.fit(queries, documents, weight=0.5, similarity="dot")
    assert labels.score(key).tolist() == [[1.0, 1.0]]
    assert labels.decide(key).item() == labels.z(key).argmax().item()
    far = documents.clone()
    far[0] = 3000.0  # z beyond 39: the tails are 0 in float64 too
    beyond = FittedLabels.fit(queries, far * torch.tensor([1.0, 2.0, 1.0]), weight=0.5, similarity="dot")
    beyond = dataclasses.replace(beyond, mean=torch.tensor([0.5, 0.5]), std=torch.tensor([2.0, 1.0]))
    assert beyond.decide(key * 1000).item() == 1
    flipped = FittedLabels.fit(queries.flip(0), documents, weight=0.5, similarity="dot")
    assert flipped.decide(key).item() == 1 - labels.decide(key).item()


# --- fitted labels -----------------------------------------------------------------------------------------------


@weights
@estimators
@similarities
def test_a_document_alone_scores_as_in_the_crowd(estimator: str, similarity: str, weight: float) -> None:
    documents, queries = rows(200, dtype=torch.float32), rows(5, seed=1, dtype=torch.float32)
    opts = {"weight": weight, "estimator": estimator, "similarity": similarity}
    crowd = surprise(documents, queries, **opts)
    labels = FittedLabels.fit(queries, documents, **opts)
    kept = FittedLabels.from_state(_through_json(labels.state()))
    for fit in (labels, kept, labels.to("cpu")):
        alone = torch.cat([fit.score(document[None]) for document in documents[:40]])
        torch.testing.assert_close(alone, crowd[:40], rtol=0, atol=2e-6)
    assert torch.equal(kept.decide(documents), labels.decide(documents))
    assert torch.equal(kept.z(documents), labels.z(documents))
    some = labels.select([3, 0])
    torch.testing.assert_close(some.score(documents), crowd[:, [3, 0]], rtol=0, atol=2e-6)


def _through_json(state: dict) -> dict:
    """Tensors as they are, scalars as strings, which is what a safetensors file can hold."""
    assert all(isinstance(value, Tensor | float | int | str) for value in state.values())
    return {k: v if isinstance(v, Tensor) else v if isinstance(v, str) else json.dumps(v) for k, v in state.items()}


@weights
@estimators
@similarities
def test_an_ensemble_object_scores_as_its_documents(estimator: str, similarity: str, weight: float) -> None:
    documents, queries = rows(300, dtype=torch.float32), rows(4, seed=1, dtype=torch.float32)
    ens = Ensemble.from_embeddings(documents, normalize=similarity == "cosine", precision="exact")
    opts = {"weight": weight, "estimator": estimator, "similarity": similarity}
    keys = rows(30, seed=2, dtype=torch.float32)
    got, want = surprise(keys, queries, ens, **opts), surprise(keys, queries, documents, **opts)
    torch.testing.assert_close(got, want, rtol=0, atol=3e-6)


def test_gaussian_moments_of_an_ensemble_see_all_documents_though_the_sample_does_not() -> None:
    documents, queries = rows(3000), rows(4, seed=1)
    small = Ensemble.from_embeddings(documents, reservoir=50, precision="exact")
    exact = surprise(documents, queries, weight=1)
    torch.testing.assert_close(surprise(documents, queries, small, weight=1), exact, rtol=0, atol=1e-9)
    sampled = surprise(documents, queries, small, weight=1, estimator="empirical")
    assert set((sampled * 50).round(decimals=6).flatten().tolist()) <= set(range(51))
    assert (sampled - exact).abs().mean() < 0.1


def test_an_ensemble_weighs_by_its_count_not_by_its_sample() -> None:
    ens = Ensemble.from_embeddings(rows(900), reservoir=50)
    assert FittedLabels.fit(rows(2, seed=1), ens).weight == pytest.approx(math.tanh(0.9))


@pytest.mark.parametrize("similarity", ["cosine", "dot"])
@pytest.mark.parametrize("estimator", ["gaussian", "quantile"])
def test_to_linear_is_a_linear_layer_on_unit_documents(similarity: str, estimator: str) -> None:
    documents, queries = rows(200), rows(5, seed=1)
    labels = FittedLabels.fit(queries, documents, similarity=similarity, estimator=estimator, weight=1)
    weight, bias = labels.to_linear()
    layer = torch.nn.Linear(12, 5, dtype=torch.float64)
    layer.load_state_dict({"weight": weight, "bias": bias})
    unit = documents / documents.norm(dim=1, keepdim=True) if similarity == "cosine" else documents
    torch.testing.assert_close(layer(unit).detach(), labels.z(documents), rtol=1e-10, atol=1e-10)
    with pytest.raises(ValueError, match="not linear"):
        FittedLabels.fit(queries, documents, similarity="manhattan").to_linear()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"mean": None}, "'mean'"),
        ({"mean": torch.zeros(3)}, "do not fit together"),
        ({"mean": "x"}, "must be tensors"),
        ({"rescale": None}, "lack a part"),
        ({"weight": "heavy"}, "no fitted labels"),
        ({"estimator": "best"}, "estimator must be one of"),
        ({"estimator": "empirical"}, "lack a part"),
    ],
)
def test_a_damaged_state_is_refused(change: dict, message: str) -> None:
    state = {**FittedLabels.fit(rows(2, seed=1), rows(20)).state(), **change}
    with pytest.raises(ValueError, match=message):
        FittedLabels.from_state({name: value for name, value in state.items() if value is not None})


# --- sizes, types, errors ----------------------------------------------------------------------------------------


@estimators
@similarities
@weights
def test_no_documents_and_no_labels_give_empty_results(estimator: str, similarity: str, weight: float) -> None:
    opts = {"estimator": estimator, "similarity": similarity, "weight": weight}
    assert surprise(rows(4), rows(0), **opts).shape == (4, 0)
    assert surprise(rows(0), rows(3), **opts).shape == (0, 3)
    assert surprise(rows(0), rows(3), rows(5), **opts).shape == (0, 3)
    assert decide(rows(0), rows(3), rows(5), **opts).shape == (0,)


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
        ((rows(5), rows(2), rows(5, 4)), {}, ValueError, "the ensemble has 4 dimensions but queries have 12"),
        ((rows(5), rows(2), Ensemble(4)), {}, ValueError, "the ensemble has 4 dimensions but queries have 12"),
        ((rows(5), rows(2), rows(0)), {}, ValueError, "the ensemble holds no documents"),
        ((rows(5), rows(2), Ensemble(12)), {}, ValueError, "the ensemble holds no documents"),
        ((rows(5), rows(2), [1]), {}, TypeError, "ensemble must be a torch.Tensor, got list"),
        ((rows(5).numpy(), rows(2)), {}, TypeError, "keys must be a torch.Tensor, got ndarray"),
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
    for function in (surprise, decide):
        if function is decide and message.startswith("keys have"):
            message = "dimensions|shape"
        with pytest.raises(error, match=message):
            function(*args, **opts)


@pytest.mark.parametrize(
    ("opts", "what"),
    [
        ({"weight": 0.5}, "a surprise weight of 0.500, below 1,"),
        ({"weight": 1, "estimator": "quantile"}, "estimator='quantile'"),
        ({"weight": 1, "estimator": "empirical"}, "estimator='empirical'"),
        ({"weight": 1, "refine": 3}, "refine"),
    ],
)
def test_without_reservoir_an_ensemble_says_what_it_cannot_give(opts: dict, what: str) -> None:
    ens = Ensemble.from_embeddings(rows(20), reservoir=0)
    assert surprise(rows(3), rows(2, seed=1), ens, weight=1).shape == (3, 2)
    with pytest.raises(ValueError, match=rf"{what} needs documents, and this Ensemble keeps none \(reservoir=0\)"):
        surprise(rows(3), rows(2, seed=1), ens, **opts)
    dot = Ensemble.from_embeddings(rows(20), reservoir=0, normalize=False)
    with pytest.raises(ValueError, match="similarity='manhattan' needs documents"):
        surprise(rows(3), rows(2, seed=1), dot, weight=1, similarity="manhattan")


def test_keys_and_k_of_fitted_labels_are_checked() -> None:
    labels = FittedLabels.fit(rows(2, seed=1), rows(20))
    for call in (labels.score, labels.rank, labels.decide, labels.z):
        with pytest.raises(ValueError, match=r"keys must have shape \(rows, 12\)"):
            call(rows(3, 5))
    for k in (0, 3):
        with pytest.raises(ValueError, match="k must be between 1 and the 2 labels"):
            labels.rank(rows(3), k)


def test_public_names() -> None:
    assert scoring.FittedLabels is fitted.FittedLabels
    assert set(scoring.__all__) == {"FittedLabels", "crossover_weight", "decide", "refine_labels", "surprise"}
