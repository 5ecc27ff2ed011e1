"""`evaluate.evaluator("surprise-zero-shot")`: a data set, a model and a metric in one call.

evaluate 0.4's own evaluators ask transformers for classes that version 5 no longer has: no pipeline gets through.
Importing this module registers ours, which does not ask; `surprise_hf._register` imports it when evaluate is imported.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import transformers
from datasets import ClassLabel, Dataset
from evaluate.evaluator.base import Evaluator
from tqdm.auto import trange

from . import metrics
from .inputs import is_missing
from .pipeline import TASK, SurpriseZeroShotPipeline
from .targets import class_label

__all__ = ["SurpriseZeroShotEvaluator"]


class SurpriseZeroShotEvaluator(Evaluator):
    """Evaluates the pipeline on labelled texts.

    Examples:
        >>> import evaluate, surprise_hf
        >>> evaluate.evaluator("surprise-zero-shot").compute("owner/name", data=dataset)
    """

    PIPELINE_KWARGS: dict[str, Any] = {}  # noqa: RUF012 (the base class reads it)

    def __init__(self, task: str = TASK, default_metric_name: str | None = None) -> None:
        super().__init__(task, default_metric_name or metrics.path("surprise_classification"))

    def compute(
        self,
        model_or_pipeline: Any = None,
        data: Any = None,
        subset: str | None = None,
        split: str | None = None,
        metric: Any = None,
        strategy: str = "simple",
        confidence_level: float = 0.95,
        n_resamples: int = 9999,
        device: int | None = None,
        random_state: int | None = None,
        input_column: str = "text",
        label_column: str = "label",
        label_mapping: Mapping[Any, Any] | None = None,
        **call: Any,
    ) -> dict[str, Any]:
        """Label the texts and score the labels.

        Args:
            model_or_pipeline: a pipeline, a SurpriseModel or SentenceTransformer, a folder or a Hub id.
            data: a `datasets.Dataset`, or the name of one on the Hub (with `subset` and `split`).
            metric: a loaded metric or its name; default `surprise_classification`. Others are given the best label.
            strategy: "bootstrap" gives every number a confidence interval over the documents (`confidence_level`,
                `n_resamples`, `random_state`).
            device: for a model that is not in a pipeline yet.
            input_column, label_column: of the data. Labels are names, or numbers of a ClassLabel, or lists of these.
            label_mapping: from the pipeline's labels to those of the data. Default: the ClassLabel's numbers for a
                metric other than `surprise_classification`, else none.
            call: arguments of the pipeline's call. `candidate_labels` are by default those that the pipeline was made
                with, or those stored in the model, or the ClassLabel's names.

        Returns:
            What the metric returns, and total_time_in_seconds, samples_per_second, latency_in_seconds.

        Raises:
            ValueError: no rows, no such column, no labels, or one that `label_mapping` lacks; a row without a label,
                where each has one; as the pipeline and the metric.
        """
        self.check_for_mismatch_in_device_setup(device, model_or_pipeline)
        rows = self.load_data(data=data, subset=subset, split=split)
        if not len(rows):
            raise ValueError("data is empty: there is no document to evaluate on")
        inputs, texts = self.prepare_data(rows, input_column, label_column)
        _check_labelled(inputs["references"], rows.features[label_column], label_column)
        pipe = self.prepare_pipeline(model_or_pipeline, device=device)
        names = _names(rows, label_column)
        metric = self.prepare_metric(metric)
        is_ours = getattr(metric, "name", None) == "surprise_classification"  # several combined have none
        if names and is_ours:
            inputs["references"] = [_named(label, names) for label in inputs["references"]]
        elif names and label_mapping is None:
            label_mapping = {name: number for number, name in enumerate(names)}
        known = (
            call.get("candidate_labels"),
            pipe._postprocess_params.get("candidate_labels"),  # noqa: SLF001 (our own pipeline)
            pipe.model.candidate_labels,
        )
        if all(labels is None for labels in known):
            if names is None:
                raise ValueError(
                    f"no labels: neither the pipeline, nor its model, nor the column {label_column!r} names any; pass"
                    " candidate_labels"
                )
            call["candidate_labels"] = names
        outputs, times = self.call_pipeline(pipe, list(texts), **call)
        inputs |= self.predictions_processor(outputs, label_mapping, is_ours)
        scored = self.compute_metric(
            metric,
            inputs,
            strategy,
            confidence_level,
            n_resamples,
            random_state,
        )
        return {**scored, **times}

    def prepare_pipeline(self, model_or_pipeline: Any, *_: Any, device: int | None = None, **__: Any) -> Any:
        """A pipeline of this task.

        Raises:
            ValueError: a pipeline of another task.
        """
        if not isinstance(model_or_pipeline, transformers.Pipeline):
            return transformers.pipeline(self.task, model=model_or_pipeline, device=device)
        if not isinstance(model_or_pipeline, SurpriseZeroShotPipeline):
            raise ValueError(f"this evaluates {self.task} pipelines, not {type(model_or_pipeline).__name__}")
        return model_or_pipeline

    def predictions_processor(
        self, predictions: Sequence[dict[str, Any]], label_mapping: Mapping[Any, Any] | None, whole: bool = True
    ) -> dict[str, list[Any]]:
        """The outputs, labels mapped; without `whole` the best label of each alone."""

        def mapped(label: Any) -> Any:
            if label_mapping is not None and label not in label_mapping:
                raise ValueError(
                    f"label_mapping has nothing for {label!r}; it has {', '.join(map(repr, label_mapping))}"
                )
            return label if label_mapping is None else label_mapping[label]

        if whole:
            kept = [{"labels": list(map(mapped, p["labels"])), "scores": p["scores"]} for p in predictions]
            return {"predictions": kept}
        return {"predictions": [mapped(p["labels"][0]) if p["labels"] else None for p in predictions]}

    @staticmethod
    def _compute_confidence_interval(
        metric: Any,
        metric_inputs: dict[str, Any],
        metric_keys: Sequence[str],
        confidence_level: float = 0.95,
        n_resamples: int = 9999,
        random_state: int | None = None,
    ) -> dict[str, Any]:
        """Documents are drawn by number: SciPy can't resample a pipeline's outputs themselves. Percentile intervals."""
        from .encoding import progress_wanted  # and with it sentence-transformers

        count = len(metric_inputs["predictions"])
        generator = np.random.default_rng(random_state)
        drawn: dict[str, list[float]] = {key: [] for key in metric_keys}
        for _ in trange(n_resamples, desc="Resampling", disable=not progress_wanted()):
            rows = generator.integers(count, size=count)
            scored = metric.compute(**{name: [column[i] for i in rows] for name, column in metric_inputs.items()})
            for key in metric_keys:
                drawn[key].append(scored[key])
        tail = 50 * (1 - confidence_level)
        return {
            key: {
                "confidence_interval": tuple(np.percentile(values, [tail, 100 - tail]).tolist()),
                "standard_error": float(np.std(values, ddof=1)),
            }
            for key, values in drawn.items()
        }


def _check_labelled(labels: Sequence[Any], feature: Any, column: str) -> None:
    """Where a document has one label, each has one; lists of labels may be empty."""
    is_numbered = isinstance(feature, ClassLabel)
    for row, label in enumerate(labels):
        if is_missing(label) or (is_numbered and label == -1):
            raise ValueError(
                f"row {row} has no label ({label!r} in the column {column!r}), so nothing tells whether the answer is"
                " right: leave such rows out, as data.filter does, or give lists of labels, of which one may be empty"
            )


def _names(rows: Dataset, column: str) -> list[str] | None:
    """Of a column of ClassLabel, or of lists of them."""
    found = class_label(rows.features[column])
    return None if found is None else list(found.names)


def _named(label: Any, names: list[str]) -> Any:
    """Names for numbers; in a list, -1 or nothing is no label."""
    if isinstance(label, list):
        return [names[one] for one in label if one is not None and one >= 0]
    return names[label]


importlib.import_module("evaluate.evaluator").SUPPORTED_EVALUATOR_TASKS[TASK] = {
    "implementation": SurpriseZeroShotEvaluator,
    "default_metric_name": None,
}
