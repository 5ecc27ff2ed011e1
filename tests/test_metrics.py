"""The four metrics: numbers computed by hand with scikit-learn and SciPy, and evaluate's ways to call them."""

from __future__ import annotations

import doctest
import os
import re
import subprocess
import sys
import types
from pathlib import Path

import datasets
import evaluate
import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.metrics import (
    accuracy_score,
    adjusted_rand_score,
    completeness_score,
    f1_score,
    homogeneity_score,
    label_ranking_average_precision_score,
    v_measure_score,
)
from sklearn.preprocessing import MultiLabelBinarizer

import surprise_hf
from surprise_hf import Ensemble, metrics
from surprise_hf.metrics import space

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module", autouse=True)
def own_cache(tmp_path_factory):
    """evaluate's cache files and copies of the modules, away from the user's."""
    folder = tmp_path_factory.mktemp("evaluate")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evaluate.config, "HF_METRICS_CACHE", folder / "metrics")
        patch.setattr(evaluate.config, "HF_MODULES_CACHE", folder / "modules")
        patch.setattr(sys, "path", [*sys.path])
        yield folder


def load(name: str) -> evaluate.EvaluationModule:
    return evaluate.load(metrics.path(f"surprise_{name}"))


def rows(count: int, dim: int = 12, seed: int = 0) -> np.ndarray:
    """Vectors about a common centre, as those of encoders are, so that cosine and surprise differ."""
    generator = np.random.default_rng(seed)
    return (generator.normal(size=(count, dim)) + np.linspace(0, 2, dim)).astype(np.float32)


def unit(x: np.ndarray) -> np.ndarray:
    x = np.asarray(x, dtype=np.float64)
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def cosines(keys: np.ndarray, queries: np.ndarray, ensemble: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """psi (n, m) and z (n, m) in float64, straight from the paper."""
    psi, over = unit(keys) @ unit(queries).T, unit(ensemble) @ unit(queries).T
    return psi, (psi - over.mean(axis=0)) / over.std(axis=0)


# --- the folders -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", metrics.NAMES)
def test_a_folder_is_a_complete_evaluate_module(name):
    folder = Path(metrics.path(name))
    names = {path.name for path in folder.iterdir() if path.is_file()}
    assert {f"{name}.py", "README.md", "app.py", "requirements.txt"} <= names
    card = (folder / "README.md").read_text()
    assert re.match(r"---\ntitle: .+\nsdk: gradio\napp_file: app.py\n", card)
    assert "surprise-hf" in (folder / "requirements.txt").read_text().split()
    module = evaluate.load(str(folder))
    assert module.name == name
    assert "2308.09765" in module.citation
    assert module.description
    for section in ("Args:", "Returns:", "Examples:"):
        assert section in module.inputs_description
        assert section in module.compute.__doc__


@pytest.mark.parametrize("name", metrics.NAMES)
def test_examples_in_the_docstring(name):
    text = evaluate.load(metrics.path(name)).inputs_description
    test = doctest.DocTestParser().get_doctest(text, {}, name, None, 0)
    assert len(test.examples) >= 4
    assert doctest.DocTestRunner().run(test).failed == 0


def test_example_of_the_package():
    assert doctest.testmod(metrics) == (0, 4)


@pytest.mark.parametrize("name", metrics.NAMES)
def test_the_card_runs_and_names_every_result(name, capsys):
    card = (Path(metrics.path(name)) / "README.md").read_text()
    scope: dict = {}
    for snippet in re.findall(r"```python\n(.*?)```", card, flags=re.DOTALL):
        exec(snippet, scope)
    printed = capsys.readouterr().out
    results = {key for line in printed.splitlines() for key in re.findall(r"'(\w+)': ", line)}
    assert len(results) >= 2
    table = card.split("## Results")[1].split("## Limits")[0]
    named = set(re.findall(r"`(\w+)`", table)) | ({"cosine_accuracy"} if "cosine_..." in table else set())
    assert {key for key in results if not key.startswith("cosine_")} <= named


def test_paths():
    assert surprise_hf.metrics.path("surprise_clustering").endswith("surprise_clustering")
    with pytest.raises(ValueError, match="no metric named 'accuracy'; there are surprise_calibration, "):
        metrics.path("accuracy")


def test_load_offline_with_an_empty_cache(tmp_path):
    """In a process of its own, from a working directory of its own, by folder and by file (cases.md 22)."""
    code = (
        "import socket\n"
        "def refuse(*a, **k): raise AssertionError('network')\n"
        "socket.socket.connect = refuse\n"
        "import evaluate, surprise_hf\n"
        "for name in surprise_hf.metrics.NAMES:\n"
        "    path = surprise_hf.metrics.path(name)\n"
        "    assert evaluate.load(path).name == evaluate.load(f'{path}/{name}.py').name == name\n"
        "print('loaded')"
    )
    env = {**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "a cache")}
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == "loaded", done.stderr


@pytest.mark.parametrize("name", metrics.NAMES)
def test_app(name, monkeypatch):
    """The page of the Space hands the metric what is in its boxes; gradio is a stand-in."""
    made = {}

    class Page:
        def launch(self):
            made["launched"] = True

    def interface(**kwargs):
        made.update(kwargs)
        return Page()

    error = type("Error", (Exception,), {})
    fake = types.SimpleNamespace(Interface=interface, Code=lambda **kwargs: kwargs, Error=error)
    monkeypatch.setitem(sys.modules, "gradio", fake)
    exec((Path(metrics.path(name)) / "app.py").read_text(), {})
    assert made["launched"]
    assert made["title"] == name
    assert "license:" not in made["article"].splitlines()[0]
    result = made["fn"](*(box["value"] for box in made["inputs"]))
    assert re.search(r'"(ks|accuracy|v_measure|surprise_similarity)": \d', result)
    with pytest.raises(error, match="references is no JSON"):
        made["fn"]("[1]", "[1", "")
    with pytest.raises(error, match="predictions"):
        made["fn"]("[]", "[1]", "")


def test_app_without_gradio(monkeypatch):
    monkeypatch.setitem(sys.modules, "gradio", None)
    with pytest.raises(ImportError, match="pip install gradio"):
        space.demo("surprise_clustering")


# --- values: classification ------------------------------------------------------------------------------------------

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


def test_labels_as_they_are():
    predictions, references = ["1", "2", "1"], ["01", "2", "1"]  # strings stay strings: "01" is not "1"
    assert load("classification").compute(predictions=predictions, references=references)["accuracy"] == 2 / 3
    assert load("classification").compute(predictions=[1, 2, 1], references=[3, 2, 1])["accuracy"] == 2 / 3


def test_no_labels_anywhere_is_right():
    results = load("classification").compute(predictions=[[], []], references=[[], []])
    assert results == {"accuracy": 1.0, "f1_weighted": 1.0, "f1_macro": 1.0}


# --- values: similarity ----------------------------------------------------------------------------------------------


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


# --- values: clustering ----------------------------------------------------------------------------------------------


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


# --- values: calibration ---------------------------------------------------------------------------------------------


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


def test_where_every_pair_belongs_together_there_is_no_false_accept_rate():
    results = load("calibration").compute(predictions=[[0.5]], references=[0], thresholds=[0.9])
    assert results["false_accept_rate"] == {0.9: None}


# --- evaluate's ways -------------------------------------------------------------------------------------------------


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


# --- errors ----------------------------------------------------------------------------------------------------------

VECTORS = [[1.0, 2.0], [3.0, 4.0]]
WRONG = {
    "nothing": ("classification", {}, "nothing to compute from"),
    "empty": ("classification", {"predictions": [], "references": []}, "predictions and references is empty"),
    "empty references": ("clustering", {"predictions": [1], "references": []}, "references is empty"),
    "no references": ("clustering", {"predictions": [1]}, "references are missing"),
    "no predictions": ("clustering", {"references": [1]}, "predictions are missing"),
    "lengths": ("similarity", {"predictions": ["a", "b"], "references": ["a"]}, "2 predictions but 1 references"),
    "one text": ("similarity", {"predictions": "a", "references": ["a"]}, "predictions must be a list"),
    "ragged": (
        "similarity",
        {"predictions": [[1.0, 2.0], [1.0]], "references": VECTORS},
        r"predictions\[1\] has 1 dim",
    ),
    "dimensions": (
        "similarity",
        {"predictions": VECTORS, "references": [[1.0]] * 2},
        "2 dimensions, but references have 1",
    ),
    "NaN": ("similarity", {"predictions": [[1.0, float("nan")]], "references": [[1.0, 2.0]]}, r"\[0\] holds NaN"),
    "kinds": ("similarity", {"predictions": ["a"], "references": [[1.0]]}, r"references\[0\] must be a text"),
    "blank": ("similarity", {"predictions": ["a"], "references": [" "]}, r"references\[0\] must be a text"),
    "texts in the ensemble": (
        "similarity",
        {"predictions": VECTORS, "references": VECTORS, "ensemble": ["a"]},
        "pass their embeddings",
    ),
    "no queries": ("classification", {"predictions": VECTORS, "references": [0, 1]}, "as queries"),
    "queries of another size": (
        "classification",
        {"predictions": VECTORS, "references": [0, 1], "queries": [[1.0]]},
        "2 dimensions, but queries have 1",
    ),
    "ensemble of another size": (
        "classification",
        {"predictions": VECTORS, "references": [0, 1], "queries": VECTORS, "ensemble": [[1.0]]},
        "the ensemble has 1 dimensions",
    ),
    "flat queries": (
        "classification",
        {"predictions": VECTORS, "references": [0, 1], "queries": [1.0]},
        r"queries\[0\] must",
    ),
    "label out of range": (
        "classification",
        {"predictions": VECTORS, "references": [0, 2], "queries": VECTORS},
        r"references\[1\] is '2', which is none of the 2",
    ),
    "unknown number": (
        "classification",
        {"predictions": ["a", "b"], "references": [0, 2], "label_names": ["a", "b"]},
        r"references\[1\] is '2'",
    ),
    "names": (
        "classification",
        {"predictions": VECTORS, "references": [0, 1], "queries": VECTORS, "label_names": ["a"]},
        "1 label_names but 2 queries",
    ),
    "threshold": (
        "classification",
        {"predictions": ["a"], "references": ["a"], "threshold": 0.5},
        "threshold belongs to references with several",
    ),
    "several for one": ("classification", {"predictions": [["a", "b"]], "references": ["a"]}, r"\[0\] has 2 labels"),
    "unknown option": (
        "classification",
        {"predictions": VECTORS, "references": [0, 1], "queries": VECTORS, "weigth": 1},
        "unknown argument weigth",
    ),
    "options without embeddings": (
        "classification",
        {"predictions": ["a"], "references": ["a"], "refine": 3},
        "refine belong to embeddings",
    ),
    "half an output": (
        "classification",
        {"predictions": [{"labels": ["a"]}], "references": ["a"]},
        r"predictions\[0\] must be a pipeline's output",
    ),
    "uneven output": (
        "classification",
        {"predictions": [{"labels": ["a"], "scores": []}], "references": ["a"]},
        "1 labels but 0 scores",
    ),
    "mixed labels": ("classification", {"predictions": ["a", ["a"]], "references": ["a", "a"]}, r"predictions\[1\]"),
    "mixed references": ("classification", {"predictions": ["a", "b"], "references": [["a"], "b"]}, r"references\[1\]"),
    "blank label": ("classification", {"predictions": ["a"], "references": [""]}, r"references\[0\] must be one label"),
    "lists to cluster": (
        "clustering",
        {"predictions": [0], "references": [["a", "b"]]},
        r"references\[0\] must be one",
    ),
    "embeddings for scores": ("calibration", {"predictions": [[1.5, -2.0]]}, "go from -2 to 1.5"),
    "no ensemble": ("calibration", {"predictions": VECTORS, "queries": VECTORS}, "ensemble is missing"),
    "own label": ("calibration", {"predictions": [[0.5, 0.6]], "references": [2]}, r"references\[0\] is \[2\]"),
    "own name": (
        "calibration",
        {"predictions": [[0.5]], "references": ["a"]},
        r"references\[0\] must be the number of a label",
    ),
    "calibration options": ("calibration", {"predictions": [[0.5]], "refine": 2}, "pass queries too"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_named(case):
    name, arguments, message = WRONG[case]
    metric = load(name)
    with pytest.raises(ValueError, match=message):
        metric.compute(**arguments)


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


def test_ragged_batches_are_named():
    metric = load("similarity")
    metric.add_batch(predictions=VECTORS, references=VECTORS)
    metric.add_batch(predictions=[[1.0]], references=[[1.0]])
    with pytest.raises(ValueError, match=r"predictions\[2\] has 1 dimensions, but predictions\[0\] has 2"):
        metric.compute()
