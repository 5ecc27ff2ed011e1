"""evaluate's ways to call a metric: batches, any container, several at once, combined."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import datasets
import evaluate
import numpy as np
import pytest
import torch
from sklearn.metrics import adjusted_rand_score

from surprise_hf import metrics
from surprise_hf.metrics._base import is_number
from tests.metrics.helpers import load, rows

ROOT = Path(__file__).parents[2]
VECTORS = [[1.0, 2.0], [3.0, 4.0]]


def test_batches_give_what_the_whole_gives():
    keys, queries = rows(30), rows(4, seed=1)
    truth = list(np.random.default_rng(2).integers(4, size=30))
    whole = load("classification").compute(predictions=keys, references=truth, queries=queries)
    metric = load("classification")
    for start in range(0, 30, 7):
        metric.add_batch(predictions=torch.from_numpy(keys[start : start + 7]), references=truth[start : start + 7])
    assert metric.compute(queries=queries) == whole
    for key, label in zip(keys, truth, strict=True):  # the same object again, row by row
        metric.add(prediction=key, reference=label)
    assert metric.compute(queries=queries) == whole


CONTAINERS = {
    "tuple": tuple,
    "numpy": np.array,
    "torch": torch.tensor,
    "pandas": lambda x: __import__("pandas").Series(x),
    "column": lambda x: datasets.Dataset.from_dict({"x": list(x)})["x"],
    "generator": lambda x: (i for i in x),
}


@pytest.mark.parametrize("kind", CONTAINERS)
def test_containers(kind):
    make = CONTAINERS[kind]
    results = load("clustering").compute(predictions=make([0, 0, 1, 1]), references=make([5, 5, 5, 7]))
    assert results["adjusted_rand"] == adjusted_rand_score([5, 5, 5, 7], [0, 0, 1, 1])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_tensors_of_any_precision(dtype):
    left, right = torch.tensor(VECTORS, dtype=dtype, requires_grad=True), torch.tensor(VECTORS[::-1], dtype=dtype)
    results = load("similarity").compute(predictions=left, references=right)
    assert results == load("similarity").compute(predictions=VECTORS, references=VECTORS[::-1])


def test_two_at_once():
    """Interleaved, the second writing while the first holds its file; and in two processes at the same time."""
    one, two = load("clustering"), load("clustering")
    one.add_batch(predictions=[0, 0], references=[0, 0])
    two.add_batch(predictions=[0, 1, 2], references=[0, 1, 2])
    one.add_batch(predictions=[1, 1], references=[0, 1])
    two.add_batch(predictions=[3], references=[3])
    assert two.compute()["adjusted_rand"] == 1.0
    assert one.compute()["adjusted_rand"] == adjusted_rand_score([0, 0, 0, 1], [0, 0, 1, 1])


def test_two_processes_at_once(tmp_path):
    code = (
        "import evaluate, surprise_hf, sys, time\n"
        "metric = evaluate.load(surprise_hf.metrics.path('surprise_clustering'))\n"
        "metric.add_batch(predictions=[0, 0], references=[0, 0])\n"
        "print('ready', flush=True)\nsys.stdin.readline()\n"
        "metric.add_batch(predictions=[1], references=[int(sys.argv[1])])\n"
        "print(metric.compute()['adjusted_rand'])"
    )
    env = {**os.environ, "PYTHONPATH": str(ROOT), "HF_HOME": str(tmp_path)}
    running = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(i)], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for i in range(2)
    ]
    for process in running:
        assert process.stdout.readline() == "ready\n"
    answers = [process.communicate("go\n")[0].strip() for process in running]
    assert answers == ["0.0", "1.0"]


def test_combine():
    both = evaluate.combine([metrics.path("surprise_clustering"), metrics.path("surprise_classification")])
    results = both.compute(predictions=["a", "b", "b"], references=["a", "b", "a"])
    assert results["accuracy"] == 2 / 3
    assert results["adjusted_rand"] == adjusted_rand_score(["a", "b", "a"], ["a", "b", "b"])
    assert len(results) == 7
    both.add_batch(predictions=["a", "b"], references=["a", "b"])
    assert both.compute()["accuracy"] == 1.0


ROW_WISE = {
    "singular": lambda metric, p, r: metric.add(prediction=p, reference=r),
    "plural": lambda metric, p, r: metric.add(predictions=p, references=r),
    "mixed": lambda metric, p, r: metric.add(prediction=p, references=r),
}


@pytest.mark.parametrize("add", ROW_WISE.values(), ids=ROW_WISE)
@pytest.mark.parametrize("names", [["classification"], ["clustering", "classification"]], ids=["one", "combined"])
def test_rows_by_every_name_of_their_arguments(names, add):
    """evaluate's own examples and its combined metrics say `predictions` for one row."""
    metric = load(names[0]) if names[1:] == [] else evaluate.combine([metrics.path(f"surprise_{n}") for n in names])
    for prediction, reference in zip("abb", "aba", strict=True):
        add(metric, prediction, reference)
    assert metric.compute()["accuracy"] == 2 / 3


def test_a_row_with_an_unknown_argument_or_without_a_prediction():
    metric = load("classification")
    with pytest.raises(ValueError, match="takes predictions and references, not sources"):
        metric.add(prediction="a", reference="b", sources="c")
    with pytest.raises(ValueError, match="predictions are missing"):
        metric.add(references="a")


def test_a_refused_batch_leaves_the_metric_usable():
    metric = load("clustering")
    metric.add_batch(predictions=[0, 1], references=[0, 1])
    with pytest.raises(ValueError, match="1 predictions but 2 references"):
        metric.add_batch(predictions=[0], references=[0, 1])
    assert metric.compute()["v_measure"] == 1.0
    with pytest.raises(ValueError, match="nothing to compute from"):
        metric.compute()


def test_a_batch_of_another_kind_is_refused():
    metric = load("similarity")
    metric.add_batch(predictions=["a"], references=["b"])
    with pytest.raises(ValueError, match="another kind than those before"):
        metric.add_batch(predictions=VECTORS, references=VECTORS)
    with pytest.raises(ValueError, match="takes predictions and references, not sources"):
        metric.add_batch(predictions=["a"], references=["b"], sources=["c"])


def test_numbers_are_real_and_no_truth_values():
    for value in (1, 0.5, np.int8(1), np.float16(1), np.float32(1), np.longdouble(1)):
        assert is_number(value)
    for value in (True, np.True_, 1j, np.complex64(1), "1", None):
        assert not is_number(value)


def test_ragged_batches_are_named():
    metric = load("similarity")
    metric.add_batch(predictions=VECTORS, references=VECTORS)
    metric.add_batch(predictions=[[1.0]], references=[[1.0]])
    with pytest.raises(ValueError, match=r"predictions\[2\] has 1 dimensions, but predictions\[0\] has 2"):
        metric.compute()
