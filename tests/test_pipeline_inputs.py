"""The pipeline on every kind of document and label."""

from __future__ import annotations

import copy
import pickle
import types
import warnings
from concurrent.futures import ThreadPoolExecutor

import datasets
import numpy as np
import pandas as pd
import pytest
import torch
from sentence_transformers import SentenceTransformer
from transformers.pipelines.pt_utils import KeyDataset

from .pipeline_data import DOCUMENTS, LABELS, assert_results, expected_scores, make

# --- documents -------------------------------------------------------------------------------------------------------


TABLE = datasets.Dataset.from_dict({"text": DOCUMENTS, "label": list(range(len(DOCUMENTS)))})
CONTAINERS = {
    "tuple": (lambda: tuple(DOCUMENTS), list),
    "series": (lambda: pd.Series(DOCUMENTS), list),
    "array": (lambda: np.array(DOCUMENTS), list),
    "column": (lambda: TABLE["text"], list),
    "key dataset": (lambda: KeyDataset(TABLE, "text"), types.GeneratorType),
    "generator": (lambda: (d for d in DOCUMENTS), types.GeneratorType),
    "iterator": (lambda: iter(DOCUMENTS), types.GeneratorType),
    "iterable dataset": (lambda: TABLE.select_columns("text").to_iterable_dataset(), types.GeneratorType),
}


@pytest.mark.parametrize("kind", CONTAINERS)
def test_every_container_gives_every_row_in_order(pipe, kind):
    build, gives = CONTAINERS[kind]
    results = pipe(build(), LABELS)
    assert isinstance(results, gives)
    assert list(results) == pipe(DOCUMENTS, LABELS)


def test_one_text_gives_one_dict_and_a_list_of_one_a_list(pipe):
    pipe.fit_ensemble(DOCUMENTS)
    one = pipe("dog cat", LABELS)
    assert isinstance(one, dict)
    assert pipe(["dog cat"], LABELS) == [one]
    assert pipe(np.array("dog cat"), LABELS) == one  # an array without dimensions


def test_sequences_as_the_peer_calls_them(pipe):
    assert pipe(sequences=DOCUMENTS, candidate_labels=LABELS) == pipe(DOCUMENTS, LABELS)
    assert pipe(candidate_labels=LABELS, sequences=DOCUMENTS[0])["sequence"] == DOCUMENTS[0]
    with pytest.raises(ValueError, match="two names of one argument"):
        pipe(DOCUMENTS, LABELS, sequences=DOCUMENTS)


@pytest.mark.parametrize("empty", [[], (), pd.Series([], dtype=str), np.array([])])
def test_nothing_in_nothing_out(pipe, empty):
    assert pipe(empty, LABELS) == []
    assert list(pipe(iter(()), LABELS)) == []


def test_blank_documents_stay_in_place_and_out_of_the_statistics(pipe):
    mixed = [None, DOCUMENTS[0], "", *DOCUMENTS[1:], " \n\u200b", float("nan")]
    results = pipe(mixed, LABELS)
    assert [results[i] for i in (0, 2, -2, -1)] == [
        {"sequence": text, "labels": [], "scores": []} for text in (None, "", " \n\u200b", None)
    ]
    assert [r for r in results if r["labels"]] == pipe(DOCUMENTS, LABELS)
    assert pipe(["", None], LABELS) == [{"sequence": x, "labels": [], "scores": []} for x in ("", None)]
    assert pipe(" ", LABELS) == {"sequence": " ", "labels": [], "scores": []}


def test_a_wrong_type_names_its_row(pipe):
    pipe.fit_ensemble(DOCUMENTS)
    with pytest.raises(ValueError, match="document 3 must be a string, got int"):
        pipe(["a", None, "b", 7], LABELS)
    stream = pipe(iter(["a", "b", "c", 7]), LABELS, batch_size=2)
    assert [next(stream)["sequence"] for _ in range(2)] == ["a", "b"]
    with pytest.raises(ValueError, match="document 3 must be a string, got int"):
        list(stream)
    with pytest.raises(ValueError, match="no documents"):
        pipe(None, LABELS)


def test_one_document_and_identical_documents_are_never_nan(pipe):
    with pytest.warns(UserWarning, match=r"e = 1, w = 1\.000"):
        assert pipe("dog", LABELS)["scores"] == [0.5] * 3
    for result in pipe(["dog"] * 10, LABELS):
        assert result["scores"] == [0.5] * 3


def test_duplicates_keep_their_own_rows(pipe):
    results = pipe([*DOCUMENTS, *reversed(DOCUMENTS)], LABELS)
    assert [r["sequence"] for r in results] == [*DOCUMENTS, *reversed(DOCUMENTS)]
    for one, two in zip(results, reversed(results), strict=True):
        assert one["labels"] == two["labels"]


def test_long_documents_draw_one_warning_that_counts_them(pipe, encode):
    documents = [*DOCUMENTS, "dog " * 10_000, "cat " * 100]
    with pytest.warns(UserWarning, match="2 of 32 documents are longer than the 64 tokens") as caught:
        results = pipe(documents, LABELS, batch_size=3)
    assert len(caught) == 1
    assert_results(results, documents, LABELS, *expected_scores(encode, documents, LABELS))
    with pytest.warns(UserWarning, match="2 of 32") as caught:
        list(pipe(iter(documents), LABELS, ensemble=DOCUMENTS, batch_size=3))
    assert len(caught) == 1


@pytest.mark.parametrize("long_texts", ["truncate", "window"])
def test_threads_do_not_meet_in_the_tokenizer(st_path, long_texts, recwarn):
    pipe = make(st_path, long_texts=long_texts, surprise_weight=1).fit_ensemble(DOCUMENTS).set_labels(LABELS)
    calls = [["dog " * 100] * 3, DOCUMENTS[:3]] * 12
    want = [pipe(documents) for documents in calls[:2]]
    recwarn.clear()
    warnings.simplefilter("always")  # recwarn puts it back
    for one in (pipe, copy.deepcopy(pipe), pickle.loads(pickle.dumps(pipe))):
        with ThreadPoolExecutor(4) as pool:
            found = list(pool.map(one, calls))
        for result, expected in zip(found, want * 12, strict=True):
            for ours, theirs in zip(result, expected, strict=True):
                assert ours["labels"] == theirs["labels"]
                assert ours["scores"] == pytest.approx(theirs["scores"], abs=1e-4)
    told = ["3 of 3 documents are longer "] * (36 if long_texts == "truncate" else 0)
    assert [str(w.message)[:28] for w in recwarn] == told


@pytest.mark.parametrize("half", ["\ud83d", "dog \udc00", "é\udfff"])
def test_half_a_surrogate_pair_is_named_by_its_row(pipe, half):
    """As a cut of UTF-16, or json.loads of one, leaves it; no tokenizer takes it."""
    for documents, labels, options in (
        (["dog", "", half], LABELS, {}),
        (["dog"], ["x", "y", half], {}),
        (["dog"], LABELS, {"ensemble": ["dog", None, half]}),
    ):
        with pytest.raises(ValueError, match=r"document 2 .* half of a surrogate pair"):
            pipe(documents, labels, **options)
    stream = pipe.fit_ensemble(DOCUMENTS)(iter(["dog", "cat", half]), LABELS, batch_size=2)
    with pytest.raises(ValueError, match=r"document 2 .* half of a surrogate pair"):
        list(stream)
    assert pipe("\U0001f600 dog", LABELS)["labels"]


def test_nan_embedding_is_named_by_its_row(pipe):
    with torch.no_grad():
        pipe.model.transformers_model.embeddings.word_embeddings.weight[pipe.model.tokenizer.vocab["guitar"]] = (
            torch.nan
        )
    with pytest.raises(ValueError, match=r"document 2 \('guitar'\) is not finite"):
        pipe(["dog", "", "guitar"], LABELS)


# --- labels ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "labels",
    [tuple(LABELS), dict.fromkeys(LABELS), "sport,money, animal", datasets.ClassLabel(names=LABELS), iter(LABELS)],
    ids=lambda x: type(x).__name__,
)
def test_forms_of_labels(pipe, labels):
    assert pipe(DOCUMENTS, labels) == pipe(DOCUMENTS, LABELS)


def test_labels_with_braces_commas_and_numbers(pipe, encode):
    labels = ["dog, cat", "{} money", 7]
    results = pipe(DOCUMENTS, labels, hypothesis_template="about {}")
    scores = expected_scores(encode, DOCUMENTS, labels, template="about {}")
    assert_results(results, DOCUMENTS, labels, *scores)


def test_refused_labels_and_templates(pipe):
    for labels, message in (([], "empty"), (["a", "a "], "both 'a'"), (None, "no labels: pass candidate_labels")):
        with pytest.raises(ValueError, match=message):
            pipe(DOCUMENTS, labels)
    with pytest.raises(ValueError, match="exactly once"):
        pipe(DOCUMENTS, LABELS, hypothesis_template="no slot")


def test_stored_labels_and_template(pipe):
    pipe.set_labels(LABELS, "about {}")
    assert pipe(DOCUMENTS) == pipe(DOCUMENTS, LABELS, hypothesis_template="about {}")
    assert (
        pipe(DOCUMENTS, ["rain", "song"])[0]["scores"]
        == pipe(DOCUMENTS, "rain,song", hypothesis_template="about {}")[0]["scores"]
    )


def test_labels_are_embedded_once(pipe, monkeypatch):
    calls = []
    real = SentenceTransformer.encode
    monkeypatch.setattr(
        SentenceTransformer, "encode", lambda self, texts, **kw: calls.append(len(texts)) or real(self, texts, **kw)
    )
    for _ in range(3):
        pipe(DOCUMENTS, LABELS, batch_size=4)
    assert sorted(calls) == [3, 30, 30, 30]  # one call for all documents, so that encode can sort them by length


def test_per_document_labels(pipe, encode):
    own = [LABELS if i % 2 else ("rain", "sport") for i in range(len(DOCUMENTS))]
    scores, z = expected_scores(encode, DOCUMENTS, ["rain", *LABELS])
    index = {label: i for i, label in enumerate(["rain", *LABELS])}
    for results in (pipe(DOCUMENTS, own), list(pipe(iter(DOCUMENTS), own, batch_size=4))):
        for row, (result, some) in enumerate(zip(results, own, strict=True)):
            order = sorted(some, key=lambda label: -z[row, index[label]])
            assert result["labels"] == order
            assert result["scores"] == pytest.approx([scores[row, index[label]] for label in order], abs=2e-4)
    assert [len(r["labels"]) for r in pipe(DOCUMENTS, own, top_k=1)] == [1] * len(DOCUMENTS)
    assert pipe("dog", [["sport", "money"]], ensemble=DOCUMENTS) == pipe("dog", ["sport", "money"], ensemble=DOCUMENTS)


def test_per_document_labels_mean_what_their_own_list_says(pipe):
    pipe.fit_ensemble(DOCUMENTS)
    own = [{"a": "sport", "b": "money"}, {"a": "rain", "b": "money"}, ["a", "b"], {"a": "rain", "b": "money"}]
    found = pipe(["dog"] * 4, own)
    for one, labels in zip(found, own, strict=True):
        alone = pipe("dog", labels)
        assert one["labels"] == alone["labels"]
        assert one["scores"] == pytest.approx(alone["scores"], abs=1e-6)
    assert found[1] == found[3]
    assert len({max(one["scores"]) for one in found}) == 3


def test_per_document_labels_keep_their_place_beside_blanks(pipe):
    pipe.fit_ensemble(DOCUMENTS)
    results = pipe(["dog", "", "cat"], [["sport"], ["money"], ["animal", "rain"]])
    assert [sorted(r["labels"]) for r in results] == [["sport"], [], ["animal", "rain"]]


@pytest.mark.parametrize("count", [2, 4])
def test_per_document_labels_must_match_the_documents(pipe, count):
    pipe.fit_ensemble(DOCUMENTS)
    with pytest.raises(ValueError, match=f"there are {count} lists of labels, but"):
        pipe(DOCUMENTS[:3], [["a", "b"]] * count)
    with pytest.raises(ValueError, match=f"there are {count} lists of labels, but"):
        list(pipe(iter(DOCUMENTS[:3]), [["a", "b"]] * count, batch_size=1))
    with pytest.raises(ValueError, match="labels of document 1: candidate_labels 0 and 1"):
        pipe(DOCUMENTS[:2], [["a"], ["b", "b"]])
    with pytest.raises(ValueError, match="mixes labels and lists"):
        pipe(DOCUMENTS[:2], [["a"], "b"])
