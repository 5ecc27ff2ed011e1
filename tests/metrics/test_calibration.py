"""surprise_calibration, against SciPy."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch
from scipy import stats

from tests.metrics.helpers import check_wrong, cosines, load, rows


def expected_calibration(scores: np.ndarray, foreign: np.ndarray, levels: int = 99) -> dict:
    at = np.linspace(0, 1, levels + 2)[1:-1]
    return {
        "ks": pytest.approx(stats.kstest(scores.ravel(), "uniform").statistic),
        "ks_worst_label": pytest.approx(max(stats.kstest(c, "uniform").statistic for c in scores.T)),
        "calibration_error": pytest.approx(np.mean([abs((scores <= t).mean() - t) for t in at])),
        "false_accept_rate": {t: pytest.approx((scores[foreign] >= t).mean()) for t in (0.9, 0.95, 0.99)},
    }


def test_calibration_of_scores():
    scores = np.random.default_rng(0).beta(2, 1, size=(50, 3))
    everyone = np.ones_like(scores, dtype=bool)
    assert load("calibration").compute(predictions=scores) == expected_calibration(scores, everyone)
    own = [[0], [], [1, 2], *[[row % 3] for row in range(47)]]
    foreign = np.array([[label not in labels for label in range(3)] for labels in own])
    results = load("calibration").compute(predictions=scores, references=own)
    assert results == expected_calibration(scores, foreign)
    column = load("calibration").compute(predictions=scores[:, 0])
    assert column == expected_calibration(scores[:, :1], everyone[:, :1])


def test_a_score_at_a_level_is_up_to_it():
    results = load("calibration").compute(predictions=[0.5, 0.5, 0.9], levels=1)
    assert results["calibration_error"] == pytest.approx(2 / 3 - 1 / 2)


def test_calibration_of_embeddings():
    keys, queries, ensemble = rows(400), rows(5, seed=1), rows(2000, seed=2)
    scores = stats.norm.cdf(cosines(keys, queries, ensemble)[1])
    results = load("calibration").compute(predictions=keys, queries=queries, ensemble=ensemble)
    expected = expected_calibration(scores, np.ones_like(scores, dtype=bool))
    for name in ("ks", "ks_worst_label", "calibration_error"):
        expected[name].abs = 1e-4
    assert results == expected
    assert results["ks"] < 0.1  # drawn as the ensemble was
    shifted = load("calibration").compute(predictions=keys + 1, queries=queries, ensemble=ensemble)
    assert shifted["ks"] > 0.2


def test_own_labels_of_embeddings_are_no_false_accepts():
    """Documents with none, one or several labels of their own, in the two ways there are to write them."""
    keys, queries, ensemble = rows(60), rows(3, seed=1), rows(500, seed=2)
    own = [(), (0,), (1, 2), (0, 1, 2)] * 15
    keys[3::4] += 3 * queries.mean(axis=0)
    scores = stats.norm.cdf(cosines(keys, queries, ensemble)[1])
    foreign = np.array([[label not in labels for label in range(3)] for labels in own])
    expected = {t: pytest.approx((scores[foreign] >= t).mean()) for t in (0.5, 0.9)}
    arguments = {"predictions": keys, "queries": queries, "ensemble": ensemble, "thresholds": (0.5, 0.9)}
    for references in (own, [None if not o else o[0] if len(o) == 1 else np.array(o) for o in own]):
        results = load("calibration").compute(references=references, **arguments)
        assert results["false_accept_rate"] == expected
    assert results != load("calibration").compute(**arguments)


def test_where_every_pair_belongs_together_there_is_no_false_accept_rate():
    results = load("calibration").compute(predictions=[[0.5]], references=[0], thresholds=[0.9])
    assert results["false_accept_rate"] == {0.9: None}


VECTORS = [[1.0, 2.0], [3.0, 4.0]]
WRONG = {
    "embeddings for scores": ({"predictions": [[1.5, -2.0]]}, "go from -2 to 1.5"),
    "no ensemble": ({"predictions": VECTORS, "queries": VECTORS}, "ensemble is missing"),
    "own label": ({"predictions": [[0.5, 0.6]], "references": [2]}, r"references\[0\] is \[2\]"),
    "own label below 0": ({"predictions": [[0.5, 0.6]], "references": [[-1, 0]]}, r"references\[0\] is \[-1, 0\]"),
    "own name": (
        {"predictions": [[0.5]], "references": ["a"]},
        r"references\[0\] must be the number of a label",
    ),
    "no levels": ({"predictions": [[0.5]], "levels": 0}, "levels must be a positive integer, got 0"),
    "threshold": ({"predictions": [[0.5]], "thresholds": [0.9, 95]}, "thresholds must be between 0 and 1, got 95"),
    "calibration options": ({"predictions": [[0.5]], "refine": 2}, "pass queries too"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_named(case):
    check_wrong("calibration", *WRONG[case])


ONE = [0.5, 1, np.float32(0.5), np.float64(0.5), np.int64(1), np.array(0.5), torch.tensor(0.5), Fraction(1, 2)]


@pytest.mark.parametrize("given", ONE, ids=lambda given: f"{type(given).__name__} {given}")
def test_one_threshold_is_a_number_of_any_library(given):
    results = load("calibration").compute(predictions=[0.1, 0.95, 1.0], thresholds=given)
    assert results["false_accept_rate"] == {float(given): pytest.approx({0.5: 2 / 3, 1.0: 1 / 3}[float(given)])}


@pytest.mark.parametrize("kind", [list, tuple, iter, np.array, torch.tensor, lambda x: np.array(x, dtype=np.float32)])
def test_several_thresholds_come_as_any_sequence(kind):
    results = load("calibration").compute(predictions=[0.1, 0.95, 1.0], thresholds=kind([0.5, 1.0]))
    assert results["false_accept_rate"] == {0.5: pytest.approx(2 / 3), 1.0: pytest.approx(1 / 3)}
