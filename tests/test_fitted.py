"""Fitted labels: the crossover's weight, the decision, and scores that stay as they were in the crowd."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from surprise_hf import estimators as est
from surprise_hf import fitted, ops
from surprise_hf.ensemble import Ensemble
from surprise_hf.scoring import FittedLabels, crossover_weight, surprise

from .scoring_data import ESTIMATORS, WEIGHTS, estimators, options, rows, similarities, vectors, weights


def test_crossover_weight_snaps() -> None:
    assert crossover_weight(500) == pytest.approx(math.tanh(0.5))
    assert crossover_weight(100, n_cross=50) == pytest.approx(math.tanh(2))
    assert crossover_weight(4000) == 1 == crossover_weight(3, weight=0.9991)
    assert crossover_weight(0) == 0 == crossover_weight(9000, weight=0.0009)
    assert crossover_weight(3, weight=0.998) == 0.998
    for bad in ({"weight": 1.1}, {"weight": -0.1}, {"weight": math.nan}, {"weight": "1"}):
        with pytest.raises(ValueError, match="weight must be between"):
            crossover_weight(5, **bad)
    for bad in (0, -1, math.nan, "x"):
        with pytest.raises(ValueError, match="n_cross must be a positive number"):
            crossover_weight(5, n_cross=bad)


# --- the decision ------------------------------------------------------------------------------------------------


@settings(max_examples=100, deadline=None)
@given(vectors, st.sampled_from(ESTIMATORS), st.sampled_from([-1, 0]))
def test_weight_zero_decides_exactly_as_the_cosine(pair: tuple[Tensor, Tensor], estimator: str, anchor: int) -> None:
    keys, queries = (x.float() for x in pair)
    zeros = torch.zeros(len(queries), dtype=torch.float64)
    cosine = ops.surprise_from_moments(keys, queries, zeros, zeros + 1, output="cosine")
    chosen = FittedLabels.fit(queries, keys, weight=0, estimator=estimator, anchor=anchor).decide(keys)
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


@pytest.mark.parametrize("similarity", ["cosine", "dot"])
@pytest.mark.parametrize("k", [None, 200, 65, 64])
def test_a_long_list_is_that_of_the_op(similarity: str, k: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of whole numbers, so that labels tie; a list of more than 64 is sorted rather than inserted into."""
    generator = torch.Generator().manual_seed(0)
    keys, queries = (torch.randint(-2, 3, (n, 6), generator=generator).float() for n in (50, 300))
    labels = FittedLabels.fit(queries, keys, weight=1, similarity=similarity)
    monkeypatch.setattr(est, "BLOCK", 3000)  # in parts
    scores, indices = labels.rank(keys, k)
    monkeypatch.setattr(fitted, "LISTED", 300)
    expected, order = labels.rank(keys, k)
    assert torch.equal(indices, order)
    assert torch.equal(scores, expected)


@weights
@pytest.mark.parametrize("estimator", [*ESTIMATORS, "tail"])
@pytest.mark.parametrize("k", [1, 10, 30])
def test_some_of_the_labels_come_in_the_order_of_all(k: int, estimator: str, weight: float) -> None:
    """Of whole numbers, so that labels tie: by psi, by z, or by the complement and then z, and then by their place."""
    generator = torch.Generator().manual_seed(0)
    documents, queries, keys = (
        torch.randint(0, 2, (n, 4), generator=generator).double() + torch.eye(4)[0].double() for n in (40, 30, 20)
    )
    labels = FittedLabels.fit(queries, documents, weight=weight, estimator=estimator)
    if labels._is_one_op:
        labels = dataclasses.replace(labels, similarity="euclidean")  # ranked here, as a distance
    psi = labels.psi(keys)
    z = ops.standardize(psi, labels.mean, labels.std)
    last = labels._blend(psi)[1] if weight < 1 or estimator == "empirical" else -z
    by = torch.stack((-psi if weight == 0 else last, -z if weight > 0 else 0 * z)).permute(1, 2, 0).tolist()
    want = [sorted(range(30), key=lambda i, row=row: (*row[i], i))[:k] for row in by]
    assert labels.rank(keys, k)[1].tolist() == want
    assert any(row[i] == row[j] for row in by for i, j in itertools.combinations(range(30), 2))


def test_empirical_ties_are_broken_by_z_beyond_the_extremes_too() -> None:
    documents = torch.tensor([[1.0, 2.0], [2.0, 4.0], [3.0, 6.0]])
    labels = FittedLabels.fit(torch.eye(2), documents, weight=1, estimator="empirical", similarity="dot")
    keys = torch.tensor([[9.0, 10.0], [4.0, 10.0], [-1.0, -9.0], [-9.0, -1.0]])  # all above or below everything
    assert (labels.score(keys) == torch.tensor([[1.0], [1.0], [0.0], [0.0]])).all()
    assert labels.decide(keys).tolist() == [0, 1, 0, 1]


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


# --- frozen against an ensemble ----------------------------------------------------------------------------------


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


@pytest.mark.parametrize("estimator", [*ESTIMATORS, "tail"])
@weights
def test_a_state_with_values_that_can_not_be_is_refused(estimator: str, weight: float) -> None:
    """NaN anywhere would score NaN; also where documents are one or alike, every value is finite."""
    for documents in (rows(20), rows(1), rows(1).repeat(9, 1), torch.zeros(3, 12)):
        state = FittedLabels.fit(rows(2, seed=1), documents, estimator=estimator, weight=weight).state()
        FittedLabels.from_state(state)
    parts = {name: value for name, value in state.items() if isinstance(value, Tensor)}
    for name, value in parts.items():
        for bad in (math.nan, math.inf):
            damaged = value.contiguous().clone()
            damaged.view(-1)[-1] = bad
            with pytest.raises(ValueError, match=f"`{name}` holds NaN or infinity"):
                FittedLabels.from_state({**state, name: damaged})
    for wrong in ({"std": state["std"] - 1}, {"weight": 2.0 if weight == 1 else -1.0}):
        with pytest.raises(ValueError, match="a std is below 0, or the weight"):
            FittedLabels.from_state({**state, **wrong})


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


@pytest.mark.parametrize("estimator", ["gaussian", "tail"])
def test_keys_and_k_of_fitted_labels_are_checked(estimator: str) -> None:
    labels = FittedLabels.fit(rows(2, seed=1), rows(20), estimator=estimator)
    for call in (labels.score, labels.rank, labels.decide, labels.z, labels.accept):
        with pytest.raises(ValueError, match=r"keys must have shape \(rows, 12\)"):
            call(rows(3, 5))
    for k in (0, 3):
        with pytest.raises(ValueError, match="k must be between 1 and the 2 labels"):
            labels.rank(rows(3), k)


@pytest.mark.parametrize("weight", [0, 0.5, 1])
@pytest.mark.parametrize("estimator", ["gaussian", "quantile"])
def test_ranking_among_many_labels_takes_little_memory(weight: float, estimator: str) -> None:
    """Temporaries in float64, a dozen for each pair in flight, stay small beside the 15 MiB of the labels."""
    code = f"""
import resource, torch
from surprise_hf.scoring import FittedLabels
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
torch.manual_seed(0)
documents, labels = torch.randn(500, 64), torch.randn(10000, 64)
held = torch.randn(30, 64)
fitted = FittedLabels.fit(labels, held, weight={weight}, estimator="{estimator}")
fitted.rank(held[:2], 1)
before = peak()
fitted.rank(documents, 1)
print(peak() - before)
"""
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300)
    assert float(out.stdout) < 32


def test_no_matrix_of_documents_and_labels_is_ever_held() -> None:
    """1,000,000 documents with 64 labels, and 10,000 labels for 4,000 documents: a part of the matrix's size."""
    code = """
import resource, torch
from surprise_hf.scoring import FittedLabels
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
def most(documents, labels):
    found = []
    for n, m in ((9, 7), (documents, labels)):
        keys, queries = torch.randn(n, 64), torch.randn(m, 64)
        before = peak()
        FittedLabels.fit(queries, keys, weight=1).rank(keys, 1)
        found.append(peak() - before)
    return found[1]
print(most(4_000, 10_000), most(1_000_000, 64))
"""
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300)
    many_labels, many_documents = map(float, out.stdout.split())
    assert many_labels < 30  # MiB; the matrix takes 153
    assert many_documents < 50  # 244
