"""surprise_classification, against scikit-learn."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.metrics import accuracy_score, f1_score, label_ranking_average_precision_score
from sklearn.preprocessing import MultiLabelBinarizer

from surprise_hf import Ensemble
from tests.metrics.helpers import check_wrong, cosines, load, rows

SHAPES = [(40, 3), (200, 7)]


@pytest.mark.parametrize(("n", "m"), SHAPES)
def test_the_zero_shot_table(n, m):
    keys, queries = rows(n), rows(m, seed=1)
    truth = np.random.default_rng(2).integers(m, size=n)
    psi, z = cosines(keys, queries, keys)
    results = load("classification").compute(predictions=keys, references=truth, queries=queries)
    assert not np.array_equal(psi.argmax(axis=1), z.argmax(axis=1))
    for prefix, found in (("", z.argmax(axis=1)), ("cosine_", psi.argmax(axis=1))):
        assert results[f"{prefix}accuracy"] == pytest.approx(accuracy_score(truth, found))
        for average in ("weighted", "macro"):
            expected = f1_score(truth, found, average=average)
            assert results[f"{prefix}f1_{average}"] == pytest.approx(expected)
    assert len(results) == 6


def test_another_ensemble_and_named_labels():
    keys, queries, ensemble = rows(60), rows(4, seed=1), rows(90, seed=3) + 1
    names = ["a", "b", "c", "d"]
    z = cosines(keys, queries, ensemble)[1]
    truth = [names[i] for i in np.random.default_rng(2).integers(4, size=60)]
    expected = np.mean([names[i] == t for i, t in zip(z.argmax(axis=1), truth, strict=True)])
    for given in (ensemble, torch.from_numpy(ensemble), Ensemble.from_embeddings(torch.from_numpy(ensemble))):
        results = load("classification").compute(
            predictions=keys, references=truth, queries=queries, label_names=names, ensemble=given
        )
        assert results["accuracy"] == pytest.approx(expected)


def test_the_ensemble_may_be_a_file(tmp_path):
    keys, queries = rows(30), rows(4, seed=1)
    Ensemble.from_embeddings(torch.from_numpy(rows(90, seed=3))).save(tmp_path / "e.safetensors")
    arguments = {"predictions": keys, "references": [0] * 30, "queries": queries}
    one = load("classification").compute(**arguments, ensemble=str(tmp_path / "e.safetensors"))
    assert one == load("classification").compute(**arguments, ensemble=rows(90, seed=3))


@pytest.mark.parametrize("threshold", [None, 0.8])
def test_several_labels_a_document_from_embeddings(threshold):
    keys, queries = rows(50), rows(4, seed=1)
    names = ["a", "b", "c", "d"]
    rng = np.random.default_rng(4)
    truth = [[name for name in names if rng.random() < 0.4] for _ in range(50)]
    assert [] in truth
    psi, z = cosines(keys, queries, keys)
    results = load("classification").compute(
        predictions=keys, references=truth, queries=queries, label_names=names, threshold=threshold
    )
    binary = MultiLabelBinarizer(classes=names).fit([names])
    indicator = binary.transform(truth)
    # the rescaled similarity by its definition: piecewise linear, median and half means of x = (psi + 1) / 2
    x = (psi + 1) / 2
    t, (low, high) = np.median(x), np.sort(x.ravel()).reshape(2, -1).mean(axis=1)
    d = low - t * (low + high - 1)
    hat = np.where(x <= t, x * (1 - high) / d, (low * x + d - low) / d)
    for prefix, ranking, score in (("", z, stats.norm.cdf(z)), ("cosine_", psi, hat)):
        chosen = score >= threshold if threshold else ranking == ranking.max(axis=1, keepdims=True)
        assert results[f"{prefix}accuracy"] == pytest.approx(accuracy_score(indicator, chosen))
        for average in ("weighted", "macro"):
            expected = f1_score(indicator, chosen, average=average, zero_division=0)
            assert results[f"{prefix}f1_{average}"] == pytest.approx(expected)
        precision = label_ranking_average_precision_score(indicator, ranking)
        assert results[f"{prefix}average_precision"] == pytest.approx(precision)


def output(*pairs: tuple[str, float]) -> dict:
    return {"sequence": "text", "labels": [label for label, _ in pairs], "scores": [score for _, score in pairs]}


OUTPUTS = [
    output(("sport", 0.9), ("money", 0.6)),
    output(("money", 0.8), ("sport", 0.1)),
    output(("sport", 0.7), ("money", 0.2)),
    output(),
]


def test_output_of_a_pipeline():
    truth = ["sport", "sport", "money", "money"]
    results = load("classification").compute(predictions=OUTPUTS, references=truth)
    found = ["sport", "money", "sport", "none"]
    assert results["accuracy"] == accuracy_score(truth, found) == 0.25
    for average in ("weighted", "macro"):
        expected = f1_score(truth, found, labels=["money", "sport"], average=average)
        assert results[f"f1_{average}"] == pytest.approx(expected)
    by_number = load("classification").compute(
        predictions=OUTPUTS, references=[0, 0, 1, 1], label_names=["sport", "money"]
    )
    assert by_number == results


def test_output_of_a_pipeline_with_several_labels():
    truth = [["sport", "money"], ["money"], ["money"], []]
    found = [["sport", "money"], ["money"], ["sport"], []]
    binary = MultiLabelBinarizer().fit(truth)
    results = load("classification").compute(predictions=OUTPUTS, references=truth, threshold=0.5)
    assert results["accuracy"] == 0.75
    for average in ("weighted", "macro"):
        expected = f1_score(binary.transform(truth), binary.transform(found), average=average)
        assert results[f"f1_{average}"] == pytest.approx(expected)
    assert load("classification").compute(predictions=found, references=truth) == results


def test_a_score_at_the_threshold_reaches_it():
    """0.5, of a document that is all of the ensemble, reaches 0.5."""
    outputs = [output(("sport", 0.5), ("money", 0.4)), output(("money", 0.6), ("sport", 0.5))]
    truth = [["sport"], ["sport", "money"]]
    assert load("classification").compute(predictions=outputs, references=truth, threshold=0.5)["accuracy"] == 1
    results = load("classification").compute(
        predictions=[[1.0, 0.0]], references=[[0, 1]], queries=[[1.0, 0.0], [0.0, 1.0]], threshold=0.5
    )
    assert results["accuracy"] == 1


def test_labels_as_they_are():
    predictions, references = ["1", "2", "1"], ["01", "2", "1"]  # strings stay strings: "01" is not "1"
    assert load("classification").compute(predictions=predictions, references=references)["accuracy"] == 2 / 3
    assert load("classification").compute(predictions=[1, 2, 1], references=[3, 2, 1])["accuracy"] == 2 / 3


@pytest.mark.parametrize("nothing", [{"labels": [], "scores": []}, []], ids=["output", "list"])
@pytest.mark.parametrize("references", [[0, 1, 2], ["a", "b", "c"]], ids=["numbers", "names"])
def test_documents_without_a_label_are_wrong_whatever_labels_are(references, nothing):
    """No label is of no kind: it makes nothing a name among numbers, and hides no number among names."""
    results = load("classification").compute(predictions=[nothing] * 3, references=references)
    assert results == {"accuracy": 0.0, "f1_weighted": 0.0, "f1_macro": 0.0}
    one = {"labels": references[:1], "scores": [0.5]} if nothing else references[:1]
    found = load("classification").compute(predictions=[one, nothing, nothing], references=references)
    assert found["accuracy"] == pytest.approx(1 / 3)
    other = {"labels": ["x"], "scores": [0.5]} if nothing else ["x"]
    if references == [0, 1, 2]:
        arguments = {"predictions": [nothing, other, nothing], "references": references}
        check_wrong("classification", arguments, "predictions have 'x', references '0'")


NAMED = {
    "numbers": [0, 1, 0],
    "names": ["b", "a", "b"],
    "lists": [[0], [1], [0]],
    "outputs": [{"labels": [i, 1 - i], "scores": [0.9, 0.1]} for i in (0, 1, 0)],
    "outputs by name": [{"labels": [name], "scores": [0.9]} for name in "bab"],
}


@pytest.mark.parametrize("kind", NAMED)
@pytest.mark.parametrize("references", [[0, 1, 1], ["b", "a", "a"]])
def test_numbers_count_the_names_on_both_sides(kind, references):
    results = load("classification").compute(predictions=NAMED[kind], references=references, label_names=["b", "a"])
    assert results["accuracy"] == 2 / 3
    several = [[label] for label in references]
    chosen = {} if not kind.startswith("outputs") else {"threshold": 0.5}
    results = load("classification").compute(
        predictions=NAMED[kind], references=several, label_names=["b", "a"], **chosen
    )
    assert results["accuracy"] == 2 / 3


@pytest.mark.parametrize("kind", [list, np.array, torch.tensor], ids=lambda kind: kind.__name__)
def test_integers_are_numbers_in_every_container(kind):
    """A tensor of them was a TypeError, which nothing promised."""
    given = {"queries": [[1, 0], [0, 1]], "ensemble": [[1, 0], [0, 1], [2, 1]]}
    call = {"predictions": [[3.0, 1.0], [1.0, 2.0]], "references": [0, 1]}
    found = load("classification").compute(**call, **{name: kind(rows) for name, rows in given.items()})
    assert (found["accuracy"], found["cosine_accuracy"]) == (1.0, 1.0)


def test_no_labels_anywhere_is_right():
    results = load("classification").compute(predictions=[[], []], references=[[], []])
    assert results == {"accuracy": 1.0, "f1_weighted": 1.0, "f1_macro": 1.0}


VECTORS = [[1.0, 2.0], [3.0, 4.0]]
WRONG = {
    "nothing": ({}, "nothing to compute from"),
    "empty": ({"predictions": [], "references": []}, "predictions and references is empty"),
    "no queries": ({"predictions": VECTORS, "references": [0, 1]}, "as queries"),
    "queries of another size": (
        {"predictions": VECTORS, "references": [0, 1], "queries": [[1.0]]},
        "2 dimensions, but queries have 1",
    ),
    "ensemble of another size": (
        {"predictions": VECTORS, "references": [0, 1], "queries": VECTORS, "ensemble": [[1.0]]},
        "the ensemble has 1 dimensions",
    ),
    "flat queries": (
        {"predictions": VECTORS, "references": [0, 1], "queries": [1.0]},
        r"queries\[0\] must",
    ),
    "label out of range": (
        {"predictions": VECTORS, "references": [0, 2], "queries": VECTORS},
        r"references\[1\] is '2', which is none of the 2",
    ),
    "unknown number": (
        {"predictions": ["a", "b"], "references": [0, 2], "label_names": ["a", "b"]},
        r"references\[1\] is '2'",
    ),
    "names": (
        {"predictions": VECTORS, "references": [0, 1], "queries": VECTORS, "label_names": ["a"]},
        "1 label_names but 2 queries",
    ),
    "threshold": (
        {"predictions": ["a"], "references": ["a"], "threshold": 0.5},
        "threshold belongs to references with several",
    ),
    "several for one": ({"predictions": [["a", "b"]], "references": ["a"]}, r"\[0\] has 2 labels"),
    "unknown option": (
        {"predictions": VECTORS, "references": [0, 1], "queries": VECTORS, "weigth": 1},
        "unknown argument weigth",
    ),
    "options without embeddings": (
        {"predictions": ["a"], "references": ["a"], "refine": 3},
        "refine belong to embeddings",
    ),
    "half an output": (
        {"predictions": [{"labels": ["a"]}], "references": ["a"]},
        r"predictions\[0\] must be a pipeline's output",
    ),
    "uneven output": (
        {"predictions": [{"labels": ["a"], "scores": []}], "references": ["a"]},
        "1 labels but 0 scores",
    ),
    "mixed labels": ({"predictions": ["a", ["a"]], "references": ["a", "a"]}, r"predictions\[1\]"),
    "mixed references": ({"predictions": ["a", "b"], "references": [["a"], "b"]}, r"references\[1\]"),
    "names on one side": (
        {"predictions": ["sport", "news"], "references": [0, 1]},
        "numbers on one side alone .*'sport', references '0'.*label_names",
    ),
    "names on the other side": ({"predictions": [["1"], []], "references": [["a"], ["b"]]}, "pass label_names"),
    "names twice": (
        {"predictions": ["a"], "references": ["a"], "label_names": ["a", "b", "a"]},
        r"label_names\[2\] is 'a', and so is an earlier one",
    ),
    "unknown predicted number": (
        {"predictions": [0, 2], "references": ["a", "b"], "label_names": ["a", "b"]},
        r"predictions\[1\] is '2', which is none of the 2",
    ),
    "threshold that is none": (
        {"predictions": VECTORS, "references": [[0], [1]], "queries": VECTORS, "threshold": math.nan},
        "threshold must be between 0 and 1, got nan",
    ),
    "threshold of text": (
        {"predictions": [["a"]], "references": [["a"]], "threshold": "high"},
        "threshold must be between 0 and 1, got 'high'",
    ),
    "embeddings of integers": (
        {"predictions": [[1, 0], [0, 1]], "references": [0, 1], "queries": VECTORS},
        "queries belong to embeddings, .* of embeddings make floats",
    ),
    "blank label": ({"predictions": ["a"], "references": [""]}, r"references\[0\] must be one label"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_named(case):
    check_wrong("classification", *WRONG[case])


@pytest.mark.parametrize(
    "kind",
    [np.ndarray.tolist, np.asarray, torch.tensor, list, lambda x: list(torch.tensor(x)), lambda x: list(map(list, x))],
)
@pytest.mark.parametrize("names", [None, ["a", "b", "c"]])
def test_booleans_mark_the_labels_of_a_document(kind, names):
    """They were taken for lists of the labels 0 and 1, so that all rows had the same ones."""
    truth = np.array([[True, False, False], [False, True, True], [False, False, False], [True, False, True]])
    chosen = truth.copy()
    chosen[0] = ~chosen[0]
    found = load("classification").compute(predictions=kind(chosen), references=kind(truth), label_names=names)
    assert found["accuracy"] == 0.75
    for average in ("weighted", "macro"):
        expected = f1_score(truth, chosen, average=average, zero_division=0)
        assert found[f"f1_{average}"] == pytest.approx(expected)


@pytest.mark.parametrize("side", ["predictions", "references"])
def test_integers_that_look_like_marks_are_refused(side):
    columns = {"predictions": [[0], [1]], "references": [[0], [1]], side: [[0, 1], [0, 1, 0]]}
    with pytest.raises(
        ValueError, match=rf"{side}\[1\] is list \[0, 1, 0\]: integers count the labels, .*give booleans"
    ):
        load("classification").compute(**columns)
