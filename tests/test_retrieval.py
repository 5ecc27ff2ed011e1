"""SurpriseIndex: against the n x n definition, with degenerate corpora, filters, thresholds and options."""

from __future__ import annotations

import math
import warnings
from statistics import NormalDist

import numpy as np
import pytest
import torch

import surprise_hf
from surprise_hf import Ensemble, SurpriseIndex
from surprise_hf.engines import ENGINES
from surprise_hf.scoring import surprise
from tests.index_data import clouds, ids_of, stored, unit, z_matrix

# --- values ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["exact", "faiss-flat"])
def test_order_and_scores_are_those_of_the_definition(engine: str) -> None:
    documents, queries = clouds(2000), clouds(5, seed=1)
    index = SurpriseIndex(engine=engine, weight=1).add(documents)
    z = z_matrix(queries, documents, documents)
    for row, hits in enumerate(index.search(queries, k=50)):
        best = z[row].argsort(descending=True)[:50]
        assert ids_of(hits) == best.tolist()
        np.testing.assert_allclose([hit.z for hit in hits], z[row, best], rtol=1e-6)
        np.testing.assert_allclose([hit.score for hit in hits], [NormalDist().cdf(x) for x in z[row, best].tolist()])
        np.testing.assert_allclose([hit.cosine for hit in hits], (unit(queries) @ unit(documents).T)[row, best], 1e-6)


def test_documents_are_the_side_with_the_moments() -> None:
    """Ranked by surprise the order differs from the cosine's; with the text as q it would be the cosine's."""
    documents, query = clouds(2000), clouds(1, seed=1)[0]
    surprising = SurpriseIndex(weight=1).add(documents).search(query, k=None)
    plain = SurpriseIndex(weight=0).add(documents).search(query, k=None)
    asked = SurpriseIndex(weight=1, ensemble=documents, direction="questions").add(documents).search(query, k=None)
    cosine = unit(documents) @ unit(query[None])[0]
    assert ids_of(plain) == ids_of(asked) == cosine.argsort(descending=True).tolist()
    assert ids_of(surprising)[:20] != ids_of(plain)[:20]


def test_small_corpora_are_ranked_as_surprise_ranks_labels() -> None:
    documents, queries = clouds(300), clouds(3, seed=1)
    index = SurpriseIndex().add(documents)
    with pytest.warns(UserWarning, match=r"300 documents.*weight of 0\.29"):
        found = index.search(queries, k=300)
    scores = surprise(queries.double(), documents.double(), documents.double())
    for row, hits in enumerate(found):
        np.testing.assert_allclose([hit.score for hit in hits], scores[row, ids_of(hits)], atol=1e-6)
        assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # once for an index is enough
        index.search(queries)


def test_weight_follows_the_size_of_the_ensemble() -> None:
    documents = clouds(3900, dim=8)
    index = SurpriseIndex().add(documents)  # tanh(3.9) counts as 1
    expected = z_matrix(documents[:1], documents, documents)[0].argsort(descending=True)[:9].tolist()
    assert ids_of(index.search(documents[0], k=9)) == expected


def test_a_given_ensemble_is_used_and_left_alone() -> None:
    documents, others, query = clouds(500), clouds(4000, seed=2, offset=0.1), clouds(1, seed=1)
    ensemble = Ensemble.from_embeddings(others)
    before = ensemble.scatter.clone()
    expected = z_matrix(query, documents, others)[0]
    for given in (ensemble, others, others.numpy()):
        index = SurpriseIndex(ensemble=given).add(documents[:200]).add(documents[200:])
        index.remove(7)
        hits = index.search(query[0], k=20)
        order = expected.argsort(descending=True).tolist()
        order.remove(7)
        assert ids_of(hits) == order[:20]
        np.testing.assert_allclose([hit.z for hit in hits], expected[order[:20]], rtol=1e-5)
    assert torch.equal(ensemble.scatter, before)


def test_questions_are_scored_against_questions() -> None:
    documents, questions = clouds(400), clouds(5000, seed=3)
    psi = unit(questions) @ unit(documents).T
    context = unit(questions) @ unit(questions).T
    z = (psi - context.mean(dim=1, keepdim=True)) / context.std(dim=1, correction=0, keepdim=True)
    index = SurpriseIndex(direction="questions").add(documents)
    for row, hits in enumerate(index.search(questions, k=5)[:30]):
        assert ids_of(hits) == psi[row].argsort(descending=True)[:5].tolist()
        np.testing.assert_allclose([hit.z for hit in hits], z[row, ids_of(hits)], rtol=1e-6)
    given = SurpriseIndex(ensemble=questions, direction="questions").add(documents)
    assert ids_of(given.search(questions[3], k=5)) == psi[3].argsort(descending=True)[:5].tolist()
    np.testing.assert_allclose(given.search(questions[3], k=1)[0].z, z[3].max(), rtol=1e-6)


@pytest.mark.parametrize("engine", ["exact", "faiss-flat"])
@pytest.mark.parametrize("direction", ["documents", "questions"])
@pytest.mark.parametrize(("crowd", "spread"), [(12, 1e-6), (300, 1e-5), (2000, 3e-4), (3500, 1e-2)])
def test_the_order_is_that_of_float64(engine: str, direction: str, crowd: int, spread: float) -> None:
    """Documents nearer to each other than bfloat16 can tell, and than float32 can; fewer and more than are fetched."""
    base = clouds(4000)
    near = base[:1] + spread * torch.randn(crowd, 16, generator=torch.Generator().manual_seed(5))
    documents = torch.cat((base, near))
    index = SurpriseIndex(weight=1, engine=engine, direction=direction, ensemble=base).add(documents)
    kept, queries = stored(index), torch.cat((base[:2], clouds(1, seed=1)))
    z = z_matrix(queries, kept, base)
    if direction == "questions":
        z = z_matrix(kept, queries, base).T
    for k in (1, 8, 150):
        for row, hits in enumerate(index.search(queries, k=k)):
            found = torch.tensor([hit.z for hit in hits], dtype=torch.float64)
            np.testing.assert_allclose(found, z[row].topk(k).values, rtol=1e-8)
            np.testing.assert_allclose(z[row, ids_of(hits)], found, rtol=1e-8)
    hits = index.search(queries[0], k=None)
    limit = (hits[39].score + hits[40].score) / 2  # between two, of which processors round the last digit otherwise
    below = index.search(queries[0], k=8, max_score=limit)
    scores = torch.special.ndtr(z[0])
    expected = z[0].masked_fill(scores > limit, -math.inf).topk(8).values
    np.testing.assert_allclose([hit.z for hit in below], expected, rtol=1e-8)


# --- degenerate corpora ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("weight", [None, 0, 0.5, 1])
@pytest.mark.parametrize("direction", ["documents", "questions"])
def test_never_nan(weight: float | None, direction: str) -> None:
    for documents in (torch.ones(1, 4), torch.ones(10, 4), torch.zeros(3, 4), torch.eye(4)[:2]):
        index = SurpriseIndex(weight=weight, n_cross=1, direction=direction).add(documents)
        for query in (torch.ones(4), -torch.ones(4), torch.zeros(4), torch.eye(4)[3]):
            hits = index.search(query)
            assert len(hits) == len(documents)
            assert all(0 <= hit.score <= 1 and hit.z == hit.z for hit in hits)


@pytest.mark.parametrize("engine", ["exact", "faiss-flat"])
@pytest.mark.parametrize("direction", ["documents", "questions"])
def test_of_any_number_of_equal_documents_the_first_are_found(engine: str, direction: str) -> None:
    """More copies than any margin: float32 can't order them, nor can a k-th value tell which of them were fetched."""
    documents, query = clouds(4000), clouds(1, seed=1)[0]
    best = int(z_matrix(query[None], documents, documents)[0].argmax())
    if direction == "questions":
        best = int((unit(documents) @ unit(query[None])[0]).argmax())
    context, copies = documents.clone(), torch.arange(300) * 13 + 5
    documents[copies] = documents[best].clone()
    index = SurpriseIndex(engine=engine, direction=direction, weight=1, ensemble=context).add(documents)
    expected = sorted({best, *copies.tolist()})
    assert ids_of(index.search(query, k=4)) == expected[:4]
    batch = torch.stack([clouds(1, seed=2)[0], query, clouds(1, seed=3)[0]])
    found = index.search(batch, k=7)
    assert ids_of(found[1]) == expected[:7]
    assert [found[0], found[2]] == [index.search(batch[i], k=7) for i in (0, 2)]


def test_identical_documents_count_as_ties() -> None:
    index = SurpriseIndex(weight=1).add(torch.ones(10, 4))
    for query, score in ((torch.ones(4), 0.5), (torch.eye(4)[0], 0.0)):  # a tie, and below all
        assert {hit.score for hit in index.search(query)} == {score}
    assert ids_of(index.search(torch.ones(4), k=4)) == [0, 1, 2, 3]


@pytest.mark.parametrize("direction", ["documents", "questions"])
@pytest.mark.parametrize("copies", [1, 10])
def test_a_text_is_at_the_mean_of_its_copies_whatever_its_batch_was(direction: str, copies: int) -> None:
    """Encoders round the same text differently in another batch: by a few float32 units in the last place."""
    text = torch.nn.functional.normalize(torch.randn(1, 384, generator=torch.Generator().manual_seed(0)))
    other = torch.nn.functional.normalize(torch.randn(50, 384, generator=torch.Generator().manual_seed(1)))
    ensemble = None if direction == "documents" else text
    index = SurpriseIndex(weight=1, direction=direction, ensemble=ensemble).add(text.expand(copies, -1))
    again = text * (1 + 1.5e-7 * torch.randn(50, 384, generator=torch.Generator().manual_seed(2)))
    assert not any(torch.equal(row, text[0]) for row in again)
    for hits in index.search(again):
        assert [(hit.score, hit.z) for hit in hits] == [(0.5, 0.0)] * copies
    if direction == "documents":
        for hits in index.search(other):
            assert [(hit.score, hit.z) for hit in hits] == [(0.0, -math.inf)] * copies


ALONE = {
    "one question": {"direction": "questions"},
    "one given question": {"direction": "questions", "ensemble": clouds(1, seed=2)},
    "one document": {},
    "one given document": {"ensemble": clouds(1, seed=2)},
}


@pytest.mark.parametrize("kind", ALONE)
@pytest.mark.parametrize("weight", [None, 0.3, 0.95, 1])
def test_an_ensemble_of_one_is_told(kind: str, weight: float | None) -> None:
    """By the definition a score is then 0, 0.5 or 1; and weight=1, the way around small ensembles, leads there."""
    documents = clouds(1 if kind == "one document" else 30)
    index = SurpriseIndex(weight=weight, **ALONE[kind]).add(documents)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        hits = index.search(clouds(1, seed=1)[0], k=None)
        index.search(clouds(1, seed=1)[0])
    told = [str(one.message) for one in told]
    assert len(told) == (weight != 0.3)
    if weight in (0.95, 1):
        assert "the ensemble holds one text: whatever is less similar than that text itself scores 0" in told[0]
    assert not told or ("more questions at once" in told[0]) == (kind == "one question")
    assert not told or "weight=1" not in told[0]
    if weight == 1:
        query, unit_rows = unit(clouds(1, seed=1)), unit(documents)
        q = query if "direction" in ALONE[kind] else unit_rows
        context = query if kind == "one question" else unit(ALONE[kind].get("ensemble", documents))
        gap = query @ unit_rows.T - context @ q.T
        assert {hit.id: hit.score for hit in hits} == dict(enumerate((gap[0] > 0).double().tolist()))


def test_an_empty_index_finds_nothing() -> None:
    index = SurpriseIndex()
    assert len(index) == 0
    assert index.search(torch.ones(4)) == []
    assert index.search(torch.ones(2, 4)) == [[], []]
    index.add(torch.ones(1, 4))
    assert index.search(torch.empty(0, 4)) == []
    index.remove(0)
    assert index.search(torch.ones(4)) == []
    with pytest.raises(ValueError, match="empty"):
        index.export_vectors()


# --- filters, thresholds -----------------------------------------------------------------------------------------


def test_a_filter_without_metadata_says_so() -> None:
    index = SurpriseIndex(weight=1).add(clouds(9))
    with pytest.raises(ValueError, match="filter looks at metadata, and no document of this index has any"):
        index.search(clouds(1)[0], filter=lambda data: data["colour"] == "red")
    assert len(index.search(clouds(1)[0], k=3, filter=lambda data: data is None)) == 3


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("direction", ["documents", "questions"])
def test_a_filter_narrows_the_search_and_not_the_ensemble(engine: str, direction: str) -> None:
    documents, query = clouds(1000), clouds(1, seed=1)
    index = SurpriseIndex(engine=engine, weight=1, direction=direction, ensemble=documents)
    index.add(documents, metadata=[{"colour": "red" if i % 50 == 3 else "blue"} for i in range(1000)])
    hits = index.search(query[0], k=12, filter=lambda data: data["colour"] == "red")
    z = z_matrix(query, documents, documents)[0]
    order = z if direction == "documents" else (unit(query) @ unit(documents).T)[0]
    red = [i for i in order.argsort(descending=True).tolist() if i % 50 == 3]
    assert ids_of(hits) == red[:12]
    assert all(hit.metadata == {"colour": "red"} for hit in hits)
    assert index.search(query[0], filter=lambda data: data["colour"] == "green") == []
    assert len(index.search(query[0], k=None, filter=lambda data: data["colour"] == "red")) == 20


@pytest.mark.parametrize("weight", [0.4, 1])
@pytest.mark.parametrize("engine", ["exact", "faiss-flat"])
@pytest.mark.parametrize("direction", ["documents", "questions"])
def test_thresholds(engine: str, direction: str, weight: float) -> None:
    documents, query = clouds(1000), clouds(1, seed=1)[0]
    index = SurpriseIndex(engine=engine, weight=weight, direction=direction, ensemble=clouds(900, seed=6)).add(
        documents
    )
    every = index.search(query, k=None)
    assert len(every) == 1000
    low, high = every[700].score, every[300].score
    found = index.search(query, k=None, min_score=low, max_score=high)
    assert ids_of(found) == ids_of(every)[300:701]
    assert ids_of(index.search(query, k=5, max_score=high)) == ids_of(every)[300:305]
    assert ids_of(index.search(query, k=400, min_score=every[99].score)) == ids_of(every)[:100]
    # at least as similar as a text that is in the index: that text is the last one found
    for place in range(0, 1000, 37):
        cutoff = documents[every[place].id]
        assert ids_of(index.search(query, k=None, at_least_as_similar_as=cutoff)) == ids_of(every)[: place + 1]


def test_the_cutoff_text_is_judged_as_a_document() -> None:
    documents, queries, cutoff = clouds(2000), clouds(3, seed=1), clouds(1, seed=9)
    index = SurpriseIndex(weight=1).add(documents)
    z = z_matrix(queries, documents, documents)
    limit = z_matrix(queries, cutoff, documents)
    for row, hits in enumerate(index.search(queries, k=None, at_least_as_similar_as=cutoff[0])):
        assert len(hits) == int((z[row] >= limit[row]).sum())


def test_a_cutoff_that_is_beyond_every_score() -> None:
    """Against one text no similarity deviates: what is above its mean has a z of infinity."""
    index = SurpriseIndex(weight=1, ensemble=clouds(1, seed=2)).add(documents := clouds(60))
    with pytest.warns(UserWarning, match="one text"):
        every = index.search(clouds(1, seed=1)[0], k=None)
    above = [hit.id for hit in every if hit.z == math.inf]
    assert 5 < len(above) < 55
    for place in (0, -1):
        cutoff = documents[above[place]]
        assert ids_of(index.search(clouds(1, seed=1)[0], k=None, at_least_as_similar_as=cutoff)) == above
    below = documents[every[-1].id]
    assert index.search(clouds(1, seed=1)[0], k=None, at_least_as_similar_as=below) == every


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"min_score": 0.9, "max_score": 0.1}, "min_score=0.9 and at most max_score=0.1"),
        ({"min_score": math.nan}, "min_score must be between 0 and 1, got nan"),
        ({"max_score": "0.5"}, "max_score must be between 0 and 1, got '0.5'"),
        ({"min_score": -1}, "min_score must be between 0 and 1, got -1"),
        ({"max_score": 95}, "max_score must be between 0 and 1, got 95"),
    ],
)
def test_limits_that_leave_no_score_are_refused(limits: dict, message: str) -> None:
    for index in (SurpriseIndex(weight=1).add(clouds(20)), SurpriseIndex()):
        with pytest.raises(ValueError, match=message):
            index.search(clouds(1)[0], **limits)


def test_limits_that_leave_one_score() -> None:
    index = SurpriseIndex(weight=1).add(clouds(20))
    every = index.search(clouds(1, seed=1)[0], k=None)
    at = every[7].score
    assert [hit.id for hit in index.search(clouds(1, seed=1)[0], k=None, min_score=at, max_score=at)] == [every[7].id]


# --- options -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["engine", "engine_options", "direction", "weight", "n_cross", "device"])
def test_options_are_fixed(name: str) -> None:
    """An index whose option was set went on as it was, and was saved as what it was not."""
    index = SurpriseIndex(weight=1).add(clouds(9))
    before = getattr(index, name)
    with pytest.raises(AttributeError, match=f"{name} is fixed .*: make a new one") as told:
        setattr(index, name, 0.0)
    assert (f"open it with {name}=..." in str(told.value)) == (name != "direction")
    assert getattr(index, name) == before
    for name in ("ids", "texts", "metadata", "version"):
        with pytest.raises(AttributeError):
            setattr(index, name, [])


def test_options_are_checked() -> None:
    for options, message in (
        ({"engine": "annoy"}, "engine must be one of"),
        ({"direction": "up"}, "direction must be one of"),
        ({"weight": 2}, "weight must be between"),
        ({"n_cross": 0}, "n_cross must be a positive number"),
        ({"ensemble": Ensemble(4)}, "holds no documents"),
        ({"ensemble": Ensemble.from_embeddings(torch.ones(2, 4), normalize=False)}, "normalize=False"),
        ({"ensemble": ["text"]}, "no model"),
    ):
        with pytest.raises(ValueError, match=message):
            SurpriseIndex(**options)
    with pytest.raises(TypeError, match="model must be"):
        SurpriseIndex(model=3)
    index = SurpriseIndex().add(clouds(3))
    for k in (0, -1, True, 2.5):
        with pytest.raises(ValueError, match="k must be a positive integer"):
            index.search(clouds(1)[0], k=k)
    with pytest.raises(ValueError, match="shape"):
        index.search(torch.ones(5))
    with pytest.raises(ValueError, match="one text or one embedding"):
        index.search(clouds(1)[0], at_least_as_similar_as=clouds(2))
    with pytest.raises(ValueError, match="no model"):
        index.search("dog")
    with pytest.raises(TypeError, match="floating"):
        index.add(np.ones((2, 16), dtype=int))


def test_public_name_is_lazy() -> None:
    assert surprise_hf.SurpriseIndex is SurpriseIndex
