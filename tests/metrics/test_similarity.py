"""surprise_similarity, against SciPy."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from tests.metrics.helpers import check_wrong, cosines, load, rows


@pytest.mark.parametrize("own_ensemble", [False, True])
def test_similarity_is_the_score_of_each_pair(own_ensemble):
    left, right, other = rows(30), rows(30, seed=1), rows(70, seed=2)
    ensemble = other if own_ensemble else right
    z = cosines(right, left, ensemble)[1].diagonal()
    kwargs = {"ensemble": other} if own_ensemble else {}
    results = load("similarity").compute(predictions=left, references=right, **kwargs)
    np.testing.assert_allclose(results["surprise_similarity_scores"], stats.norm.cdf(z), atol=2e-6)
    assert results["surprise_similarity"] == pytest.approx(stats.norm.cdf(z).mean(), abs=1e-6)


def test_similarity_of_texts(minilm_path):
    from sentence_transformers import SentenceTransformer

    references = ["a dog barks", "stocks fell", "it rains today", "she sings", "the vote was close", "bread and soup"]
    predictions = ["a barking dog", "shares dropped", "wet weather", "a song", "a narrow election", "a red car"]
    results = load("similarity").compute(predictions=predictions, references=references, model=str(minilm_path))
    model = SentenceTransformer(str(minilm_path), device="cpu")
    expected = stats.norm.cdf(
        cosines(model.encode(references), model.encode(predictions), model.encode(references))[1].diagonal()
    )
    np.testing.assert_allclose(results["surprise_similarity_scores"], expected, atol=1e-5)
    assert min(results["surprise_similarity_scores"][:5]) > 0.95 > results["surprise_similarity_scores"][5]
    same = load("similarity").compute(
        predictions=predictions, references=references, model=model, ensemble=[*references, *predictions]
    )
    assert same["surprise_similarity"] != results["surprise_similarity"]


def test_similarity_with_one_reference_is_a_coin_toss():
    assert load("similarity").compute(predictions=[[1.0, 2.0]], references=[[1.0, 2.5]])["surprise_similarity"] == 0.5


@pytest.mark.parametrize("own_ensemble", [False, True])
def test_of_several_references_the_most_similar_counts(own_ensemble):
    """By hand: every reference is a member of the ensemble, and each prediction gets its best one's score."""
    left, right, other = rows(20), rows(45, seed=1), rows(70, seed=2)
    owner = np.concatenate((np.arange(20), np.arange(20), [3, 3, 3, 7, 19]))
    references = [[row for row, at in zip(right, owner, strict=True) if at == i] for i in range(20)]
    assert {len(several) for several in references} == {2, 3, 5}
    kwargs = {"ensemble": other} if own_ensemble else {}
    scores = stats.norm.cdf(cosines(right, left, other if own_ensemble else right)[1])
    expected = [scores[owner == i, i].max() for i in range(20)]
    results = load("similarity").compute(predictions=left, references=references, **kwargs)
    np.testing.assert_allclose(results["surprise_similarity_scores"], expected, atol=2e-6)
    assert results["surprise_similarity"] == pytest.approx(np.mean(expected), abs=1e-6)
    batches = load("similarity")
    for start in range(0, 20, 6):
        batches.add_batch(predictions=left[start : start + 6], references=references[start : start + 6])
    assert batches.compute(**kwargs) == results


def test_one_reference_in_a_list_is_one_reference():
    left, right = rows(20), rows(20, seed=1)
    several = load("similarity").compute(predictions=left, references=[[row] for row in right])
    assert several == load("similarity").compute(predictions=left, references=right)


def test_several_texts_as_references(minilm_path):
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(minilm_path), device="cpu")
    predictions = ["a barking dog", "shares dropped", "a red car"]
    references = [["a dog barks", "it rains"], ["stocks fell"], ["bread and soup", "she sings", "a blue automobile"]]
    flat = [text for several in references for text in several]
    scores = stats.norm.cdf(cosines(model.encode(flat), model.encode(predictions), model.encode(flat))[1])
    results = load("similarity").compute(predictions=predictions, references=references, model=model)
    np.testing.assert_allclose(results["surprise_similarity_scores"], scores[[0, 2, 5], [0, 1, 2]], atol=1e-5)


VECTORS = [[1.0, 2.0], [3.0, 4.0]]
WRONG = {
    "no reference in a list": (
        {"predictions": ["a", "b"], "references": [["a"], []]},
        r"references\[1\] must be a list",
    ),
    "none in the first": ({"predictions": VECTORS, "references": [[], VECTORS]}, r"references\[0\] must be a list"),
    "a list, then one": ({"predictions": ["a", "b"], "references": [["a"], "b"]}, r"references\[1\] must be a list"),
    "one, then a list": ({"predictions": ["a", "b"], "references": ["a", ["b"]]}, r"references\[1\] must be a text"),
    "a blank among several": (
        {"predictions": ["a"], "references": [["a", " "]]},
        r"references\[0\]\[1\] must be a text",
    ),
    "one of another size among several": (
        {"predictions": VECTORS, "references": [VECTORS, [[1.0, 2.0], [3.0]]]},
        r"references\[1\]\[1\] has 1 dim",
    ),
    "several of another size": (
        {"predictions": VECTORS, "references": [VECTORS, [[1.0]]]},
        r"2 dimensions, but references\[1\] has 1",
    ),
    "lengths": ({"predictions": ["a", "b"], "references": ["a"]}, "2 predictions but 1 references"),
    "one text": ({"predictions": "a", "references": ["a"]}, "predictions must be a list"),
    "ragged": (
        {"predictions": [[1.0, 2.0], [1.0]], "references": VECTORS},
        r"predictions\[1\] has 1 dim",
    ),
    "dimensions": (
        {"predictions": VECTORS, "references": [[1.0]] * 2},
        r"2 dimensions, but references\[0\] has 1",
    ),
    "NaN": ({"predictions": [[1.0, float("nan")]], "references": [[1.0, 2.0]]}, r"\[0\] holds NaN"),
    "kinds": ({"predictions": ["a"], "references": [[1.0]]}, r"references\[0\] must be a text"),
    "blank": ({"predictions": ["a"], "references": [" "]}, r"references\[0\] must be a text"),
    "texts in the ensemble": (
        {"predictions": VECTORS, "references": VECTORS, "ensemble": ["a"]},
        "pass their embeddings",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_named(case):
    check_wrong("similarity", *WRONG[case])
