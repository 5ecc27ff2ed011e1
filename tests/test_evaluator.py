"""evaluate.evaluator("surprise-zero-shot") with our pipeline, and that it is known in either import order."""

from __future__ import annotations

import statistics
import subprocess

import evaluate
import numpy as np
import pytest
import transformers
from datasets import ClassLabel, Dataset, Features, List, Value
from scipy.stats import binom

from surprise_hf import SurpriseModel, SurpriseZeroShotPipeline, metrics
from surprise_hf.evaluator import SurpriseZeroShotEvaluator
from tests.test_import import python

NAMES = ["sport", "money", "weather"]
TEXTS = ["sport game team", "bank price", "rain snow wind", "goal match", "stock market", "cloud sun", "player", "loss"]
TRUTH = [0, 1, 2, 0, 1, 2, 0, 1]


@pytest.fixture(scope="module")
def pipe(minilm_path) -> SurpriseZeroShotPipeline:
    return SurpriseZeroShotPipeline(SurpriseModel(str(minilm_path), device="cpu").fit_ensemble(TEXTS))


@pytest.fixture(scope="module")
def data() -> Dataset:
    features = Features({"text": Value("string"), "label": ClassLabel(names=NAMES)})
    return Dataset.from_dict({"text": TEXTS, "label": TRUTH}, features)


def best(pipe: SurpriseZeroShotPipeline) -> list[int]:
    return [NAMES.index(result["labels"][0]) for result in pipe(TEXTS, NAMES)]


def test_a_pipeline_on_a_data_set(pipe, data):
    found = evaluate.evaluator("surprise-zero-shot").compute(pipe, data)
    assert found["accuracy"] == np.mean(np.array(best(pipe)) == TRUTH)
    assert 0.5 < found["accuracy"] <= 1.0
    assert {"f1_weighted", "f1_macro", "total_time_in_seconds", "samples_per_second"} <= set(found)


@pytest.mark.parametrize("kind", ["path", "model"])
def test_models_that_are_in_no_pipeline(pipe, data, kind, tmp_path):
    pipe.model.set_labels(NAMES)
    try:
        pipe.save_pretrained(tmp_path)
    finally:
        pipe.model.set_labels(None)
    model = str(tmp_path) if kind == "path" else SurpriseModel.from_pretrained(tmp_path, device="cpu")
    found = evaluate.evaluator("surprise-zero-shot").compute(model, data, device=-1)
    assert found["accuracy"] == np.mean(np.array(best(pipe)) == TRUTH)


def test_other_columns_and_arguments_of_the_call(pipe, data):
    renamed = data.rename_columns({"text": "body", "label": "topic"}).cast_column("topic", Value("int64"))
    found = evaluate.evaluator("surprise-zero-shot").compute(
        pipe,
        renamed,
        input_column="body",
        label_column="topic",
        candidate_labels=NAMES,
        label_mapping={name: str(i) for i, name in enumerate(NAMES)},
        surprise_weight=0,
    )
    cosine = [NAMES.index(result["labels"][0]) for result in pipe(TEXTS, NAMES, surprise_weight=0)]
    assert found["accuracy"] == np.mean(np.array(cosine) == TRUTH)


def test_several_labels_a_document(pipe):
    truth = [[0], [1], [2], [0, 1], [], [2], [0], [1]]
    features = Features({"text": Value("string"), "label": List(ClassLabel(names=NAMES))})
    data = Dataset.from_dict({"text": TEXTS, "label": truth}, features)
    call = {"multi_label": True, "threshold": 0.9, "surprise_weight": 1, "estimator": "gaussian"}
    found = evaluate.evaluator("surprise-zero-shot").compute(pipe, data, **call)
    results = pipe(TEXTS, NAMES, **call)
    hits = [set(r["labels"]) == {NAMES[i] for i in own} for r, own in zip(results, truth, strict=True)]
    assert found["accuracy"] == np.mean(hits)
    assert 0 < found["accuracy"] < 1
    as_found = [[NAMES.index(label) for label in result["labels"]] for result in results]
    assert [0] in as_found
    told = Dataset.from_dict({"text": TEXTS, "label": as_found}, features)
    assert evaluate.evaluator("surprise-zero-shot").compute(pipe, told, **call)["accuracy"] == 1


OTHER = {"sport": "bank price market", "money": "rain snow cloud", "weather": "goal game player"}  # each means the next
GIVEN = {"array": np.array(NAMES), "descriptions": OTHER}


@pytest.mark.parametrize("column", ["names", "numbers"])
@pytest.mark.parametrize(
    ("whose", "others"), [("call", "pipeline model"), ("pipeline", ""), ("pipeline", "model"), ("model", "")]
)
@pytest.mark.parametrize("kind", GIVEN)
def test_labels_are_those_of_the_call_the_pipeline_the_model_or_the_column(pipe, data, kind, whose, others, column):
    """In that order, with their descriptions: what the pipeline is asked is what is judged."""
    given, other = GIVEN[kind], ["none", "of", "these"]
    rows = data
    if column == "names":
        features = Features({"text": Value("string"), "label": Value("string")})
        rows = Dataset.from_dict({"text": TEXTS, "label": [NAMES[i] for i in TRUTH]}, features)
    labels = {**dict.fromkeys(others.split(), other), whose: given}
    options = {"candidate_labels": labels["pipeline"]} if "pipeline" in labels else {}
    asked = SurpriseZeroShotPipeline(pipe.model, device="cpu", **options)
    pipe.model.set_labels(labels.get("model"))
    try:
        call = {"candidate_labels": given} if whose == "call" else {}
        found = evaluate.evaluator("surprise-zero-shot").compute(asked, rows, **call)
        none = evaluate.evaluator("surprise-zero-shot").compute(
            asked, rows, candidate_labels=call.get("candidate_labels")
        )
    finally:
        pipe.model.set_labels(None)
    hits = [result["labels"][0] == NAMES[i] for result, i in zip(pipe(TEXTS, given), TRUTH, strict=True)]
    assert found["accuracy"] == none["accuracy"] == np.mean(hits)
    assert (found["accuracy"] < 0.5) == (kind == "descriptions")


class Hits(evaluate.Metric):
    """A metric of someone else's: numbers in, a count out."""

    def _info(self):
        features = Features({"predictions": Value("int64"), "references": Value("int64")})
        return evaluate.MetricInfo(description="", citation="", features=features)

    def _compute(self, predictions, references):
        return {"hits": sum(p == r for p, r in zip(predictions, references, strict=True))}


def test_another_metric_gets_the_best_label_by_its_number(pipe, data):
    found = evaluate.evaluator("surprise-zero-shot").compute(pipe, data, metric=Hits())
    assert found["hits"] == sum(p == t for p, t in zip(best(pipe), TRUTH, strict=True))


def test_of_what_has_no_label_another_metric_gets_none(pipe):
    results = pipe(TEXTS, NAMES, threshold=0.9, surprise_weight=1, estimator="gaussian")
    task = evaluate.evaluator("surprise-zero-shot")
    numbers = {name: number for number, name in enumerate(NAMES)}
    found = task.predictions_processor(results, numbers, whole=False)["predictions"]
    assert found == [numbers[result["labels"][0]] if result["labels"] else None for result in results]
    assert None in found
    assert 0 in found


def test_a_mapping_of_labels_counts_more_than_the_columns_names(pipe, data):
    turned = {"sport": 2, "money": 0, "weather": 1}
    found = evaluate.evaluator("surprise-zero-shot").compute(pipe, data, metric=Hits(), label_mapping=turned)
    assert found["hits"] == sum(turned[NAMES[p]] == t for p, t in zip(best(pipe), TRUTH, strict=True))
    assert found["hits"] < 4


def test_a_metric_by_default(pipe, data):
    assert SurpriseZeroShotEvaluator().default_metric_name == metrics.path("surprise_classification")
    name = metrics.path("surprise_clustering")
    found = SurpriseZeroShotEvaluator(default_metric_name=name).compute(pipe, data)
    assert "v_measure" in found


def test_data_by_name(pipe, tmp_path):
    """Of a folder with two subsets of two splits; what a repository is to the Hub."""
    counts = {"a": {"train": 2, "test": 3}, "b": {"train": 4, "test": 5}}
    front = "---\nconfigs:\n"
    for subset, splits in counts.items():
        front += f"- config_name: {subset}\n  data_files:\n"
        for split, count in splits.items():
            lines = [f"{text},{NAMES[truth]}" for text, truth in zip(TEXTS[:count], TRUTH[:count], strict=True)]
            (tmp_path / f"{subset}_{split}.csv").write_text("\n".join(["text,label", *lines]))
            front += f"  - split: {split}\n    path: {subset}_{split}.csv\n"
    (tmp_path / "README.md").write_text(f"{front}---\n")
    task, where = evaluate.evaluator("surprise-zero-shot"), str(tmp_path)
    for subset, splits in counts.items():
        for split, count in splits.items():
            found = task.compute(pipe, where, subset=subset, split=split, candidate_labels=NAMES)
            assert round(found["samples_per_second"] * found["total_time_in_seconds"]) == count


def test_the_device_is_the_models(pipe, data, monkeypatch):
    given = {}

    def pipeline(task, **options):
        given.update(options, task=task)
        return pipe

    monkeypatch.setattr(transformers, "pipeline", pipeline)
    task = evaluate.evaluator("surprise-zero-shot")
    task.compute(pipe.model, data, device=3)
    assert given == {"task": "surprise-zero-shot", "model": pipe.model, "device": 3}
    with pytest.raises(ValueError, match="the pipe was instantiated on CPU"):
        task.compute(pipe, data, device=3)


class Drawn(Hits):
    """Keeps what it has counted."""

    def _compute(self, **columns):
        found = super()._compute(**columns)
        self.counts = [*getattr(self, "counts", []), found["hits"]]
        return found


def test_bootstrap_draws_as_often_as_asked(pipe, data):
    metric = Drawn()
    arguments = {"metric": metric, "strategy": "bootstrap", "n_resamples": 4, "random_state": 1}
    found = evaluate.evaluator("surprise-zero-shot").compute(pipe, data, **arguments)["hits"]
    whole, *drawn = metric.counts
    assert len(drawn) == 4
    assert found["score"] == whole
    assert found["standard_error"] == pytest.approx(statistics.stdev(drawn))
    assert found["standard_error"] > 0


def test_bootstrap(pipe, data):
    arguments = {"metric": Hits(), "strategy": "bootstrap", "n_resamples": 200, "random_state": 0}
    found = evaluate.evaluator("surprise-zero-shot").compute(pipe, data, **arguments)["hits"]
    share = found["score"] / len(TEXTS)
    spread = np.sqrt(len(TEXTS) * share * (1 - share))  # of a binomial
    assert found["standard_error"] == pytest.approx(spread, rel=0.25)
    assert evaluate.evaluator("surprise-zero-shot").compute(pipe, data, **arguments)["hits"] == found
    narrower = evaluate.evaluator("surprise-zero-shot").compute(pipe, data, confidence_level=0.6, **arguments)["hits"]
    for level, one in ((0.95, found), (0.6, narrower)):
        low, high = one["confidence_interval"]
        assert low <= one["score"] <= high
        assert (low, high) == tuple(binom.ppf([(1 - level) / 2, (1 + level) / 2], len(TEXTS), share))
    ours = evaluate.evaluator("surprise-zero-shot").compute(pipe, data, strategy="bootstrap", n_resamples=3)
    assert set(ours["accuracy"]) == {"score", "confidence_interval", "standard_error"}


@pytest.mark.parametrize("wanted", [True, False])
def test_resampling_shows_how_far_it_is(pipe, data, wanted, monkeypatch, capfd):
    monkeypatch.setattr("surprise_hf.encoding.progress_wanted", lambda: wanted)
    arguments = {"metric": Hits(), "strategy": "bootstrap", "n_resamples": 3, "random_state": 0}
    evaluate.evaluator("surprise-zero-shot").compute(pipe, data, **arguments)
    assert ("Resampling" in capfd.readouterr().err) == wanted


def test_several_metrics_at_once(pipe, data):
    both = evaluate.combine([Hits(), Hits()])
    found = evaluate.evaluator("surprise-zero-shot").compute(pipe, data, metric=both)
    hits = sum(p == t for p, t in zip(best(pipe), TRUTH, strict=True))
    assert [value for name, value in found.items() if "hits" in name] == [hits, hits]


def test_no_label_is_not_the_last_one(pipe, data):
    """-1, as data sets hide labels: no label where there may be several, an error where there is one."""
    task, arguments = evaluate.evaluator("surprise-zero-shot"), {"multi_label": True, "threshold": 0.9}
    found = []
    for none in ([], [-1], [None]):
        truth = [[0], [1], none, [0], [1], none, [0], [1]]
        features = Features({"text": Value("string"), "label": List(ClassLabel(names=NAMES))})
        rows = Dataset.from_dict({"text": TEXTS, "label": truth}, features)
        found.append(task.compute(pipe, rows, **arguments)["accuracy"])
    assert found[0] == found[1] == found[2]
    names = [NAMES[label] for label in TRUTH]
    for feature, truth, value in (
        (data.features["label"], [*TRUTH[:-1], -1], "-1"),
        (data.features["label"], [*TRUTH[:-1], None], "None"),
        (Value("string"), [*names[:-1], None], "None"),
    ):
        hidden = Dataset.from_dict(
            {"text": TEXTS, "label": truth}, Features({"text": Value("string"), "label": feature})
        )
        for metric in (None, Hits()):
            words = rf"row 7 has no label \({value} in the column 'label'\).*data.filter"
            with pytest.raises(ValueError, match=words):
                task.compute(pipe, hidden, metric=metric, candidate_labels=NAMES)


def test_errors(pipe, data, bert_path):
    task = evaluate.evaluator("surprise-zero-shot")
    with pytest.raises(ValueError, match=r"Invalid `input_column` body specified.*\['text', 'label'\]"):
        task.compute(pipe, data, input_column="body")
    with pytest.raises(ValueError, match="neither the pipeline, nor its model, nor the column 'label' names any"):
        task.compute(pipe, data.cast_column("label", Value("int64")))
    with pytest.raises(ValueError, match=r"label_mapping has nothing for '\w+'; it has 'x'"):
        task.compute(pipe, data, label_mapping={"x": 0})
    with pytest.raises(ValueError, match="data is empty"):
        task.compute(pipe, data.select([]))
    other = transformers.pipeline("feature-extraction", model=str(bert_path), device="cpu")
    with pytest.raises(ValueError, match="surprise-zero-shot pipelines, not FeatureExtractionPipeline"):
        task.compute(other, data)


@pytest.mark.parametrize(
    "order",
    ["import surprise_hf, evaluate", "import evaluate, surprise_hf", "import transformers, evaluate, surprise_hf"],
)
def test_known_in_either_import_order(order):
    done: subprocess.CompletedProcess[str] = python(
        f"{order}\nimport sys\nprint(type(evaluate.evaluator('surprise-zero-shot')).__name__)\n"
        "assert not [f for f in sys.meta_path if type(f).__module__.startswith('surprise_hf')]\n"
        "assert 'sentence_transformers' not in sys.modules"
    )
    assert done.stdout.strip() == "SurpriseZeroShotEvaluator", done.stderr
    assert "could not register" not in done.stderr
