"""surprise_clustering, against scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import adjusted_rand_score, completeness_score, homogeneity_score, v_measure_score

from tests.metrics.helpers import check_wrong, load


def test_clustering():
    rng = np.random.default_rng(0)
    truth, found = rng.integers(4, size=100), rng.integers(5, size=100)
    found[:60] = truth[:60]
    results = load("clustering").compute(predictions=found, references=[f"class {i}" for i in truth])
    assert results == {
        "v_measure": pytest.approx(v_measure_score(truth, found)),
        "homogeneity": pytest.approx(homogeneity_score(truth, found)),
        "completeness": pytest.approx(completeness_score(truth, found)),
        "adjusted_rand": pytest.approx(adjusted_rand_score(truth, found)),
    }
    assert 0.2 < results["v_measure"] < 0.8


WRONG = {
    "empty references": ({"predictions": [1], "references": []}, "references is empty"),
    "no references": ({"predictions": [1]}, "references are missing"),
    "no predictions": ({"references": [1]}, "predictions are missing"),
    "lists to cluster": (
        {"predictions": [0], "references": [["a", "b"]]},
        r"references\[0\] must be one .* each document needs exactly one",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_named(case):
    check_wrong("clustering", *WRONG[case])
