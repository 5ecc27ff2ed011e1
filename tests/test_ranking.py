"""Ranker: what is computed when, and on how much of the corpus."""

from __future__ import annotations

import pytest
import torch

from surprise_hf import SurpriseIndex, surprise
from surprise_hf.engines import Rows
from surprise_hf.ensemble import Ensemble
from surprise_hf.estimators import Rescale
from tests.index_data import clouds, unit


@pytest.fixture
def pairs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many cosines each psi^ was fitted to."""
    seen: list[int] = []

    def spy(blocks, total, *options):
        seen.append(sum(block.numel() for block in blocks()))
        assert seen[-1] == total
        return fit(blocks, total, *options)

    fit = Rescale.fit
    monkeypatch.setattr(Rescale, "fit", spy)
    return seen


def scores(index: SurpriseIndex, queries: torch.Tensor) -> torch.Tensor:
    """(b, n) float64 in the order of the rows."""
    found = torch.empty(len(queries), len(index), dtype=torch.float64)
    for row, hits in enumerate(index.search(queries, k=None)):
        found[row, [hit.id for hit in hits]] = torch.tensor([hit.score for hit in hits], dtype=torch.float64)
    return found


@pytest.mark.filterwarnings("ignore:the ensemble holds")
@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("weight", [None, 0, 0.5])
@pytest.mark.parametrize("count", [900, 3000])
def test_psi_hat_is_fitted_to_a_bounded_part(count: int, weight: float | None, own: bool, pairs: list[int]) -> None:
    """All of a small corpus, and of a large one enough to tell little from all."""
    documents, queries, other = clouds(count), clouds(4, seed=1), clouds(count, seed=2, offset=0.3)
    documents = documents[documents[:, 0].argsort()]  # the first are unlike the others
    context = documents if own else other
    wanted = surprise(queries.double(), documents.double(), context.double(), weight=weight)
    pairs.clear()
    index = SurpriseIndex(weight=weight, ensemble=None if own else Ensemble.from_embeddings(other)).add(documents)
    found = scores(index, queries)
    assert pairs == [min(count, 1024) ** 2]
    assert float((found - wanted).abs().max()) < (1e-6 if count <= 1024 else 0.004)
    assert torch.equal(scores(SurpriseIndex(weight=weight, ensemble=index._given).add(documents), queries), found)


@pytest.mark.parametrize("weight", [0, 0.5])
@pytest.mark.parametrize("count", [200, 3000])
def test_a_question_scores_alone_as_in_company(count: int, weight: float, pairs: list[int]) -> None:
    """Against given questions: theirs and the documents' cosines are what psi^ is fitted to, once."""
    documents, ensemble, queries = clouds(count), clouds(900, seed=2, offset=0.3), clouds(5, seed=1)
    index = SurpriseIndex(weight=weight, ensemble=ensemble, direction="questions").add(documents)
    together = scores(index, queries)
    alone = torch.cat([scores(index, query[None]) for query in queries])
    assert torch.equal(alone, together)
    assert pairs == [900 * min(count, 1024)]
    if count < 1024:
        hat = Rescale.fit(lambda: iter([unit(ensemble) @ unit(documents).T]), 900 * count, torch.float64, (-1.0, 1.0))
        psi = unit(queries) @ unit(documents).T
        context = unit(ensemble) @ unit(queries).T
        z = (psi - context.mean(dim=0)[:, None]) / context.std(dim=0, correction=0)[:, None]
        wanted = (1 - weight) * hat(psi)[0] + weight * torch.special.ndtr(z)
        torch.testing.assert_close(together, wanted, rtol=0, atol=1e-6)
    index.add(clouds(300, seed=7))
    assert float((scores(index, queries[:1])[:, :count] - together[:1]).abs().max()) > 1e-6  # fitted anew


@pytest.mark.filterwarnings("ignore:the ensemble holds")
@pytest.mark.parametrize("ensemble", [None, clouds(500, seed=2)])
def test_a_search_fits_and_copies_once_after_each_change(ensemble, pairs: list[int], monkeypatch) -> None:
    copies, whole = [], Rows.whole
    monkeypatch.setattr(Rows, "whole", lambda rows: copies.append(len(rows)) or whole(rows))
    index = SurpriseIndex(weight=0.5, ensemble=ensemble).add(clouds(300))
    for change in (lambda: None, lambda: index.add(clouds(5, seed=3)), lambda: index.remove([7, 8])):
        change()
        for options in ({}, {"at_least_as_similar_as": clouds(1, seed=4)[0]}, {"max_score": 0.9}):
            index.search(clouds(2, seed=1), **options)
    assert copies == [300, 305, 303]
    assert pairs == [count * (len(ensemble) if ensemble is not None else count) for count in copies]
