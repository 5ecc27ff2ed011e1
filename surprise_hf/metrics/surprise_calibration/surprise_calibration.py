"""Does a surprise score keep its promise: uniform on held-out documents, with known false accepts at a threshold?"""

from collections.abc import Sequence
from numbers import Real
from typing import Any

import datasets
import evaluate
import numpy as np
from scipy import stats

from surprise_hf.fitted import FittedLabels
from surprise_hf.inputs import plain, positive_int, share
from surprise_hf.metrics import _base as base

_DESCRIPTION = """\
Whether surprise scores are calibrated. A score says which share of the ensemble is less similar to a label, so over
documents like those of the ensemble, but held out of it, it should be uniform in [0, 1]: the Kolmogorov-Smirnov
distance and the expected calibration error (the mean gap between a level and the share of scores up to it; Kuleshov et
al. 2018) say how far it is from that. The false-accept rate at a threshold t, the share of (document, label) pairs that
do not belong together and yet reach it, should be 1 - t."""

_INPUTS = """
Args:
    predictions: of each held-out document its scores for every label (m), or one score, or its embedding (d) with
        `queries`.
    references: labels that each document belongs to, by number: an integer, a list of them, or None. Those pairs are
        no false accepts. Default: no document belongs to any.
    queries, ensemble: with embeddings: those of the labels (m, d), and the ensemble: embeddings (e, d), a
        `surprise_hf.Ensemble` or the path of one.
    thresholds: one or more, of the false-accept rate; default 0.9, 0.95 and 0.99.
    levels: of the calibration error, evenly spaced inside (0, 1); default 99.
    surprise_weight, n_cross, estimator, refine: with embeddings, as in the pipeline, but for the weight, which is 1 by
        default: only the surprise score itself promises to be uniform.

Returns:
    ks: Kolmogorov-Smirnov distance of all scores from the uniform, 0 to 1.
    ks_worst_label: the largest distance of one label.
    calibration_error: 0 to 0.5.
    false_accept_rate: {threshold: rate}; None where every pair belongs together.

Examples:
    >>> import evaluate
    >>> import surprise_hf
    >>> metric = evaluate.load(surprise_hf.metrics.path("surprise_calibration"))
    >>> results = metric.compute(predictions=[0.05, 0.25, 0.45, 0.65, 0.95], thresholds=[0.9])
    >>> round(results["ks"], 3), results["false_accept_rate"]
    (0.15, {0.9: 0.2})
"""


class SurpriseCalibration(base.SurpriseMetric):
    """See `description`."""

    def _info(self) -> evaluate.MetricInfo:
        return evaluate.MetricInfo(
            description=_DESCRIPTION,
            citation=base.CITATION,
            inputs_description=_INPUTS,
            features=datasets.Features({"predictions": base.NUMBERS, "references": base.INTEGERS}),
        )

    def read(self, predictions: list[Any], references: list[Any] | None) -> Any:
        """Rows of scores or embeddings, and the labels that each belongs to."""
        if base.is_number(predictions[0]):
            predictions = [[value] if base.is_number(value) else value for value in predictions]
        own = [_numbers(row, value) for row, value in enumerate(references or [None] * len(predictions))]
        return {"predictions": base.as_vectors("predictions", predictions), "references": own}, self.features

    def _compute(
        self,
        *,
        predictions: list[list[float]],
        references: list[list[int]],
        queries: Any = None,
        ensemble: Any = None,
        thresholds: float | Sequence[float] = (0.9, 0.95, 0.99),
        levels: int = 99,
        **options: Any,
    ) -> dict[str, Any]:
        levels = positive_int("levels", levels)
        given = plain(thresholds)
        several = [given] if isinstance(given, Real) else given
        thresholds = [share("thresholds", threshold) for threshold in several]
        if queries is None:
            if ensemble is not None or options:
                raise ValueError("ensemble and scoring options belong to embeddings: pass queries too")
            scores = _scores(predictions)
        else:
            scores = _scored(predictions, queries, ensemble, options)
        foreign = np.ones(scores.shape, dtype=bool)
        for row, own in enumerate(references):
            if own and not 0 <= min(own) <= max(own) < scores.shape[1]:
                raise ValueError(f"references[{row}] is {own}, but there are {scores.shape[1]} labels")
            foreign[row, own] = False
        flat, at = scores.ravel(), np.arange(1, levels + 1) / (levels + 1)
        up_to = np.searchsorted(np.sort(flat), at, side="right") / flat.size
        return {
            "ks": float(stats.kstest(flat, "uniform").statistic),
            "ks_worst_label": max(float(stats.kstest(column, "uniform").statistic) for column in scores.T),
            "calibration_error": float(np.abs(up_to - at).mean()),
            "false_accept_rate": {
                t: float((scores[foreign] >= t).mean()) if foreign.any() else None for t in thresholds
            },
        }


def _numbers(row: int, value: Any) -> list[int]:
    """The labels that one document belongs to."""
    if value is None:
        return []
    own = list(value) if hasattr(value, "__iter__") and not isinstance(value, str) else [value]
    if not all(base.is_number(label) and float(label).is_integer() for label in own):
        raise ValueError(
            f"references[{row}] must be the number of a label, a list of them or None, got {base.shown(value)}"
        )
    return [int(label) for label in own]


def _scores(rows: list[list[float]]) -> np.ndarray:
    widths = [len(row) for row in rows]
    if len(set(widths)) > 1:
        raise ValueError(
            f"predictions have {widths[0]} scores in one batch and others in another: {sorted(set(widths))}"
        )
    scores = np.asarray(rows)
    if scores.min() < 0 or scores.max() > 1:
        raise ValueError(
            f"predictions go from {scores.min():.3g} to {scores.max():.3g}, so they are no scores: of embeddings, pass"
            " queries and ensemble too"
        )
    return scores


def _scored(rows: list[list[float]], queries: Any, ensemble: Any, options: dict[str, Any]) -> np.ndarray:
    if ensemble is None:
        raise ValueError("ensemble is missing: held-out documents are judged by an ensemble they are not part of")
    keys, labels = base.as_pair(rows, queries)
    fitted = FittedLabels.fit(labels, base.as_ensemble(ensemble, keys.shape[1]), **base.scoring_options(options))
    return fitted.score(keys).double().numpy()
