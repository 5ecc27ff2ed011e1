"""Zero-shot classification by cosine and by surprise, side by side; or the score of a pipeline's output."""

from collections.abc import Sequence
from typing import Any

import datasets
import evaluate
import numpy as np
import torch
from sklearn import metrics as sklearn_metrics

from surprise_hf.fitted import FittedLabels
from surprise_hf.inputs import share
from surprise_hf.metrics import _base as base
from surprise_hf.targets import look_like_marks

_DESCRIPTION = """\
Accuracy, weighted F1 and macro F1 of labels for documents. From embeddings of documents and labels it makes the
paper's zero-shot table in one call: the label with the largest cosine beside the label with the largest surprise
score. From the output of the "surprise-zero-shot" or "zero-shot-classification" pipeline, or from labels, it scores
these. References may be one label a document, or several, or none (multi-label): then accuracy is the share of
documents whose whole set is right, and from embeddings the order of labels is judged too."""

_INPUTS = """
Args:
    predictions: of each document its embedding (d), or the pipeline's output for it, or its label (a string or an
        integer), or a list of labels, or of booleans that mark them.
    references: the label of each document, or a list of its labels (which may be empty). Strings, or integers that
        count the `label_names`, as those among the predictions do, or booleans, one for each label.
    label_names: names of the labels. With embeddings: in the order of `queries`; default 0, 1, 2, ...
    queries: with embeddings: those of the labels (m, d).
    ensemble: with embeddings: the documents that give a similarity its context, as embeddings (e, d), a
        `surprise_hf.Ensemble` or the path of one; default: the predictions.
    threshold: with several labels a document: list every label whose score reaches it (of the cosine, the score is the
        rescaled similarity). Default: the best label alone from embeddings, all labels of a pipeline's output.
    surprise_weight, n_cross, estimator, refine: as in the pipeline, but for the weight, which is 1 by default (None
        gives the pipeline's tanh(e / n_cross)).

Returns:
    accuracy, f1_weighted, f1_macro: of the surprise score, or of the labels given. A document without a predicted
        label is wrong.
    cosine_accuracy, cosine_f1_weighted, cosine_f1_macro: with embeddings.
    average_precision, cosine_average_precision: with embeddings and several labels a document: label ranking average
        precision, which needs no threshold.

Examples:
    >>> import evaluate
    >>> import surprise_hf
    >>> metric = evaluate.load(surprise_hf.metrics.path("surprise_classification"))
    >>> documents = [[0.8, 0.7], [0.3, 0.4], [0.4, 0.2], [0.7, 0.4]]
    >>> labels = [[0.3, 0.4], [0.8, 0.5]]
    >>> results = metric.compute(predictions=documents, references=[0, 0, 1, 1], queries=labels)
    >>> results["accuracy"], results["cosine_accuracy"]
    (1.0, 0.75)
    >>> outputs = [{"labels": ["cat", "dog"], "scores": [0.9, 0.2]}, {"labels": ["dog", "cat"], "scores": [0.8, 0.1]}]
    >>> metric.compute(predictions=outputs, references=["cat", "cat"])["accuracy"]
    0.5
    >>> metric.compute(predictions=outputs, references=[["cat"], ["dog"]], threshold=0.5)["f1_macro"]
    1.0
"""

_NONE = ""  # what a document without a label is predicted to be; no label is blank


class SurpriseClassification(base.SurpriseMetric):
    """See `description`."""

    def _info(self) -> evaluate.MetricInfo:
        return evaluate.MetricInfo(
            description=_DESCRIPTION,
            citation=base.CITATION,
            inputs_description=_INPUTS,
            features=[
                datasets.Features({"predictions": predictions, "references": references})
                for predictions in (base.VECTOR, base.OUTPUT, base.STRING, base.STRINGS)
                for references in (base.STRING, base.STRINGS)
            ],
        )

    def read(self, predictions: list[Any], references: list[Any] | None) -> Any:
        """Embeddings, pipeline outputs, labels or lists of labels; labels as strings."""
        if references is None:
            raise ValueError(f"{self.name}: references are missing")
        predictions, references = _unmarked(predictions), _unmarked(references)
        first = predictions[0]
        kind: Any
        if isinstance(first, dict):
            kind, predictions = base.OUTPUT, [_output(row, value) for row, value in enumerate(predictions)]
        elif base.is_label(first):
            kind, predictions = base.STRING, _labels("predictions", predictions)
        elif base.is_vector(first) and not all(map(base.is_label, first)):
            kind, predictions = base.VECTOR, base.as_vectors("predictions", predictions)
        else:
            kind, predictions = base.STRINGS, _label_lists("predictions", predictions)
        many = not base.is_label(references[0])
        found = _label_lists("references", references) if many else _labels("references", references)
        return (
            {"predictions": predictions, "references": found},
            {"predictions": kind, "references": base.STRINGS if many else base.STRING},
        )

    def _compute(
        self,
        *,
        predictions: list[Any],
        references: list[Any],
        label_names: Sequence[Any] | None = None,
        queries: Any = None,
        ensemble: Any = None,
        threshold: float | None = None,
        **options: Any,
    ) -> dict[str, float]:
        many = isinstance(references[0], list)
        names = None if label_names is None else [str(name) for name in label_names]
        known = names or []
        for i, name in enumerate(known):
            if name in known[:i]:
                raise ValueError(f"label_names[{i}] is {name!r}, and so is an earlier one: every label must differ")
        if threshold is not None and not many:
            raise ValueError("threshold belongs to references with several labels a document; here each has one")
        threshold = None if threshold is None else share("threshold", threshold)
        if not isinstance(predictions[0], (str, dict)) and not _is_strings(predictions):
            return self._from_embeddings(predictions, references, names, queries, ensemble, threshold, options)
        given = [n for n, v in {"queries": queries, "ensemble": ensemble, **options}.items() if v is not None]
        if given:
            raise ValueError(
                f"{', '.join(given)} belong to embeddings, but predictions are labels (rows of integers are lists of"
                " labels: of embeddings make floats)"
            )
        truth = _known("references", references, names)
        if many:
            chosen = [_chosen(value, threshold) for value in predictions]
            _check_kind([x for row in chosen for x in row], [x for row in truth for x in row], names)
            return _sets(_known("predictions", chosen, names), truth)
        best = [_best(row, value) for row, value in enumerate(predictions)]
        _check_kind([label for label in best if label != _NONE], truth, names)
        return _single(_known("predictions", best, names), truth)

    def _from_embeddings(
        self,
        predictions: list[list[float]],
        references: list[Any],
        names: list[str] | None,
        queries: Any,
        ensemble: Any,
        threshold: float | None,
        options: dict[str, Any],
    ) -> dict[str, float]:
        if queries is None:
            raise ValueError("predictions are embeddings: pass those of the labels as queries, shape (labels, dim)")
        keys, labels = base.as_pair(predictions, queries)
        names = [str(i) for i in range(len(labels))] if names is None else names
        if len(names) != len(labels):
            raise ValueError(f"there are {len(names)} label_names but {len(labels)} queries")
        context = keys if ensemble is None else base.as_ensemble(ensemble, keys.shape[1])
        truth = _known("references", references, names, closed=True)
        results: dict[str, float] = {}
        for prefix, chosen in ("", base.scoring_options(options)), ("cosine_", {"weight": 0.0}):
            fitted = FittedLabels.fit(labels, context, **chosen)
            if isinstance(truth[0], str):
                found = _single([names[i] for i in fitted.decide(keys).tolist()], truth)
            else:
                found = _ranked(fitted, keys, names, truth, threshold)
            results |= {f"{prefix}{name}": value for name, value in found.items()}
        return results


# --- reading -----------------------------------------------------------------------------------------------------


def _labels(name: str, column: list[Any]) -> list[str]:
    for row, value in enumerate(column):
        if not base.is_label(value) or str(value) == _NONE:
            raise ValueError(f"{name}[{row}] must be one label like {name}[0], got {base.shown(value)}")
    return list(map(str, column))


def _label_lists(name: str, column: list[Any]) -> list[list[str]]:
    found = []
    for row, value in enumerate(column):
        if isinstance(value, (str, dict)) or not hasattr(value, "__iter__"):
            raise ValueError(f"{name}[{row}] must be a list of labels, got {base.shown(value)}")
        labels = list(value)
        found.append(_labels(f"{name}[{row}]", labels))
        if look_like_marks(labels):
            raise ValueError(
                f"{name}[{row}] is {base.shown(labels)}: integers count the labels, and one is there twice; to mark the"
                " labels that a document has, give booleans"
            )
    return found


def _unmarked(column: list[Any]) -> list[Any]:
    """Rows of booleans, which mark the labels that a document has, as the places of these."""
    return [[i for i, has in enumerate(row) if has] if base.is_marks(row) else row for row in column]


def _output(row: int, value: Any) -> dict[str, list[Any]]:
    try:
        labels, scores = list(map(str, value["labels"])), list(map(float, value["scores"]))
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"predictions[{row}] must be a pipeline's output with labels and scores, got {base.shown(value)}"
        ) from error
    if len(labels) != len(scores):
        raise ValueError(f"predictions[{row}] has {len(labels)} labels but {len(scores)} scores")
    return {"labels": labels, "scores": scores}


def _is_strings(column: list[Any]) -> bool:
    return all(isinstance(label, str) for row in column for label in row)


def _check_kind(predictions: list[str], references: list[str], names: list[str] | None) -> None:
    """Refuse names on one side and numbers alone on the other: they would all be wrong."""
    sides = [[_is_number(label) for label in side] for side in (predictions, references)]
    if names is None and all(sides) and any(all(one) and not any(two) for one, two in (sides, sides[::-1])):
        raise ValueError(
            f"labels are numbers on one side alone (predictions have {predictions[0]!r}, references {references[0]!r}):"
            " pass label_names=[...]"
        )


def _is_number(label: str) -> bool:
    return label.removeprefix("-").isdecimal()


def _known(name: str, column: list[Any], names: list[str] | None, closed: bool = False) -> list[Any]:
    """Labels by name; a number that is no name counts the names."""
    if names is None:
        return column
    places = {str(i): label for i, label in enumerate(names)} | {label: label for label in names}

    def one(row: int, label: str) -> str:
        if label not in places and (closed or _is_number(label)):
            raise ValueError(f"{name}[{row}] is {label!r}, which is none of the {len(names)} label_names")
        return places.get(label, label)

    return [[one(i, x) for x in v] if isinstance(v, list) else one(i, v) for i, v in enumerate(column)]


def _chosen(value: Any, threshold: float | None) -> list[str]:
    """The labels predicted for one document, where it may have several."""
    if not isinstance(value, dict):
        return [value] if isinstance(value, str) else value
    pairs = zip(value["labels"], value["scores"], strict=True)
    return [label for label, score in pairs if threshold is None or score >= threshold]


def _best(row: int, value: Any) -> str:
    """The label predicted for one document, where it has one."""
    labels = [value] if isinstance(value, str) else value["labels"][:1] if isinstance(value, dict) else value
    if len(labels) > 1:
        raise ValueError(f"predictions[{row}] has {len(labels)} labels, but references have one each")
    return labels[0] if labels else _NONE


# --- scoring -----------------------------------------------------------------------------------------------------


def _single(predicted: list[str], truth: list[str]) -> dict[str, float]:
    classes = sorted({*predicted, *truth} - {_NONE})
    f1 = {a: sklearn_metrics.f1_score(truth, predicted, labels=classes, average=a, zero_division=0) for a in _AVERAGES}
    return {"accuracy": float(np.mean([p == t for p, t in zip(predicted, truth, strict=True)]))} | _named(f1)


def _sets(predicted: list[list[str]], truth: list[list[str]]) -> dict[str, float]:
    classes = sorted({label for row in (*predicted, *truth) for label in row})
    ours, theirs = _indicator(predicted, classes), _indicator(truth, classes)
    f1 = {a: sklearn_metrics.f1_score(theirs, ours, average=a, zero_division=0) for a in _AVERAGES} if classes else {}
    return {"accuracy": float((ours == theirs).all(axis=1).mean())} | _named(f1 or dict.fromkeys(_AVERAGES, 1.0))


def _ranked(
    fitted: FittedLabels, keys: torch.Tensor, names: list[str], truth: list[list[str]], threshold: float | None
) -> dict[str, float]:
    scores, order = fitted.rank(keys)
    count = (scores >= threshold).sum(dim=1) if threshold is not None else torch.ones(len(keys), dtype=torch.int64)
    chosen = [[names[i] for i in row[:n]] for row, n in zip(order.tolist(), count.tolist(), strict=True)]
    place = -order.argsort(dim=1).to(torch.float64)  # the order tells labels apart where scores have rounded to 1
    precision = sklearn_metrics.label_ranking_average_precision_score(_indicator(truth, names), place.numpy())
    return _sets(chosen, truth) | {"average_precision": float(precision)}


_AVERAGES = ("weighted", "macro")


def _named(f1: dict[str, Any]) -> dict[str, float]:
    return {f"f1_{average}": float(value) for average, value in f1.items()}


def _indicator(rows: list[list[str]], classes: list[str]) -> np.ndarray:
    place = {label: i for i, label in enumerate(classes)}
    found = np.zeros((len(rows), len(classes)), dtype=np.int64)
    for row, labels in enumerate(rows):
        found[row, [place[label] for label in labels]] = 1
    return found
