"""What an index is given: texts and embeddings in every form, documents and queries."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from surprise_hf import SurpriseIndex, SurpriseModel
from tests.index_data import TEXTS, clouds, ids_of


@pytest.mark.parametrize("weight", [0.5, 1])
@pytest.mark.parametrize("direction", ["documents", "questions"])
@pytest.mark.parametrize("scale", [1e-300, 1e-160, 1e-36, 1e-5, 1e5, 1e36, 1e160, 1e300])
def test_the_length_of_a_query_counts_for_nothing(scale: float, direction: str, weight: float) -> None:
    documents, queries = clouds(300).double(), clouds(3, seed=1).double()
    index = SurpriseIndex(weight=weight, direction=direction, ensemble=clouds(50, seed=2)).add(documents)
    expected = index.search(queries, k=5, at_least_as_similar_as=documents[0])
    mixed = torch.stack([queries[0], queries[1] * scale, queries[2]])
    for given in [mixed] + [mixed.float()] * (1e-40 < scale < 1e38):
        found = index.search(given, k=5, at_least_as_similar_as=documents[0] * scale)
        for hits, wanted in zip(found, expected, strict=True):
            assert ids_of(hits) == ids_of(wanted)
            np.testing.assert_allclose([hit[1:4] for hit in hits], [hit[1:4] for hit in wanted], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("scale", [1e-300, 1e-160, 1e160, 1e300])
def test_the_length_of_a_document_counts_for_nothing(scale: float) -> None:
    documents, queries = clouds(300).double(), clouds(3, seed=1)
    scaled = documents.clone()
    scaled[::3] *= scale
    found, expected = (SurpriseIndex(weight=1).add(rows).search(queries, k=5) for rows in (scaled, documents))
    for hits, wanted in zip(found, expected, strict=True):
        assert ids_of(hits) == ids_of(wanted)
        np.testing.assert_allclose([hit[1:4] for hit in hits], [hit[1:4] for hit in wanted], rtol=1e-5)


@pytest.fixture(scope="module")
def model(st_path: Path) -> SurpriseModel:
    return SurpriseModel(str(st_path), device="cpu")


@pytest.mark.parametrize("given", ["model", "path", "sentence-transformer"])
def test_texts_are_embedded_as_the_model_does(model: SurpriseModel, st_path: Path, given: str) -> None:
    from sentence_transformers import SentenceTransformer

    encoder = {
        "model": lambda: model,
        "path": lambda: st_path,
        "sentence-transformer": lambda: SentenceTransformer(str(st_path), device="cpu"),
    }[given]()
    index = SurpriseIndex(encoder, weight=1).add(TEXTS)
    plain = SurpriseIndex(weight=1).add(model.encode(TEXTS), texts=TEXTS)
    found, wanted = index.search("ball game", k=3), plain.search(model.encode("ball game"), k=3)
    assert [(hit.id, hit.text) for hit in found] == [(hit.id, hit.text) for hit in wanted]
    assert [hit[1:4] for hit in found] == [pytest.approx(hit[1:4], abs=1e-5) for hit in wanted]
    assert [hit.text for hit in index.search("dog", k=5)] == [TEXTS[i] for i in ids_of(index.search("dog", k=5))]


def test_every_kind_of_container(model: SurpriseModel) -> None:
    expected = SurpriseIndex(model, weight=1).add(TEXTS).search(["dog", "ball"])
    for documents in (tuple(TEXTS), np.array(TEXTS), pd.Series(TEXTS), (text for text in TEXTS)):
        index = SurpriseIndex(model, weight=1).add(documents)
        assert index.ids == [0, 1, 2, 3, 4]
        assert index.search(np.array(["dog", "ball"])) == expected
    with pytest.raises(ValueError, match="document 1 must be a string"):
        SurpriseIndex(model).add(["a", 3])
    for queries, message in ((3, "got int"), (None, "got NoneType"), (["a", 3], "document 1 must be a string")):
        with pytest.raises(ValueError, match=f"^queries, as texts: .*{message}"):
            index.search(queries)


def test_blank_documents_are_left_out_and_ids_stay_with_their_rows(model: SurpriseModel) -> None:
    with pytest.warns(UserWarning, match="3 of 5 documents have no text"):
        index = SurpriseIndex(model, weight=1).add(["dog", "", None, "ball", "  "], metadata=list("abcde"))
    assert (index.ids, index.texts, index.metadata) == ([0, 3], ["dog", "ball"], ["a", "d"])
    assert index.add(["cat"]).ids == [0, 3, 5]
    with pytest.raises(ValueError, match="queries: row 1 has no text"):
        index.search(["dog", " ", ""])
    assert SurpriseIndex(model).add([]).search("dog") == []


def test_the_ensemble_of_the_documents_is_of_their_encoder(st_path: Path) -> None:
    model = SurpriseModel(str(st_path), device="cpu")
    model.encoder_name = "me/encoder"
    for ensemble in (None, model.embed(TEXTS)[0]):
        index = SurpriseIndex(model, ensemble, weight=1).add(TEXTS).remove(2)
        assert index.ensemble is not None
        assert index.ensemble.encoder == "me/encoder"


def test_whole_numbers_are_no_embeddings() -> None:
    index = SurpriseIndex(weight=1).add(clouds(9))
    for name, options in (
        ("queries", {}),
        ("at_least_as_similar_as", {"at_least_as_similar_as": np.ones(16, dtype=int)}),
    ):
        with pytest.raises(TypeError, match=f"{name} must have a floating dtype"):
            index.search(clouds(1)[0] if options else np.ones((2, 16), dtype=int), **options)


def test_texts_as_ensemble_and_cutoff(model: SurpriseModel) -> None:
    index = SurpriseIndex(model, ensemble=TEXTS * 3, weight=1).add(TEXTS)
    assert index.ensemble is not None
    assert len(index.ensemble) == 15
    hits = index.search("dog", k=None)
    assert hits[:3] == index.search("dog", at_least_as_similar_as=hits[2].text)


@pytest.mark.parametrize("rows", [[*clouds(3)], [*clouds(3).numpy()], tuple(clouds(3)), clouds(3).tolist()], ids=type)
def test_embeddings_in_a_list_are_no_texts(rows: object, model: SurpriseModel) -> None:
    for index in (SurpriseIndex(), SurpriseIndex(model)):
        with pytest.raises(
            ValueError, match=r"^documents come as a (list|tuple) of embeddings: put them into one array"
        ):
            index.add(rows)
        with pytest.raises(ValueError, match=r"^queries come as a (list|tuple) of embeddings: put them into one array"):
            index.search(rows)


@pytest.mark.parametrize("count", [0, 9])
@pytest.mark.parametrize("nothing", [list, tuple, lambda: iter([]), lambda: np.array([], dtype=str)])
def test_no_documents_and_no_queries(nothing: Callable, count: int) -> None:
    index = SurpriseIndex(weight=1)
    if count:
        index.add(clouds(count))
    version = index.version
    assert index.search(nothing()) == []
    assert len(index.add(nothing())) == count
    assert len(index.add(nothing(), ids=[], metadata=[])) == count
    assert index.version == version
    with pytest.raises(ValueError, match="one entry for each of the 0 documents, got 1"):
        index.add(nothing(), ids=[50])
    with pytest.raises(ValueError, match="a dict, which is not a sequence"):
        index.add({})
    with pytest.raises(ValueError, match="one text or one embedding"):
        index.search(clouds(1)[0], at_least_as_similar_as=nothing())


def test_arrays_that_are_read_only_draw_no_warning() -> None:
    rows = clouds(60).numpy()
    expected = SurpriseIndex(weight=1, ensemble=rows).add(rows).search(rows[0])
    rows.flags.writeable = False
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert SurpriseIndex(weight=1, ensemble=rows).add(rows).search(rows[0]) == expected
