"""Clusters against classes: v-measure and adjusted Rand index."""

from typing import Any

import datasets
import evaluate
from sklearn import metrics as sklearn_metrics

from surprise_hf.metrics import _base as base

_DESCRIPTION = """\
How well clusters agree with classes, whatever either are called: the v-measure (the harmonic mean of homogeneity, each
cluster holding one class, and completeness, each class lying in one cluster) and the adjusted Rand index (pairs of
documents treated alike, 0 for clusters drawn by chance)."""

_INPUTS = """
Args:
    predictions: the cluster of each document, strings or integers.
    references: the class of each document, strings or integers; exactly one, for a division into classes is compared.

Returns:
    v_measure, homogeneity, completeness: in [0, 1], 1 being best.
    adjusted_rand: in [-0.5, 1], 1 being best, 0 chance.

Examples:
    >>> import evaluate
    >>> import surprise_hf
    >>> metric = evaluate.load(surprise_hf.metrics.path("surprise_clustering"))
    >>> results = metric.compute(predictions=[0, 0, 1, 1], references=["dog", "dog", "cat", "dog"])
    >>> {name: round(value, 3) for name, value in results.items()}
    {'v_measure': 0.344, 'homogeneity': 0.384, 'completeness': 0.311, 'adjusted_rand': 0.0}
"""


class SurpriseClustering(base.SurpriseMetric):
    """See `description`."""

    def _info(self) -> evaluate.MetricInfo:
        return evaluate.MetricInfo(
            description=_DESCRIPTION,
            citation=base.CITATION,
            inputs_description=_INPUTS,
            features=datasets.Features({"predictions": base.STRING, "references": base.STRING}),
        )

    def read(self, predictions: list[Any], references: list[Any] | None) -> Any:
        """Names of clusters and classes."""
        if references is None:
            raise ValueError(f"{self.name}: references are missing")
        columns = {"predictions": predictions, "references": references}
        for name, column in columns.items():
            for row, value in enumerate(column):
                if not base.is_label(value):
                    raise ValueError(
                        f"{name}[{row}] must be one string or integer, got {base.shown(value)}; clusters are compared"
                        " with a division into classes, so each document needs exactly one"
                    )
        return {name: list(map(str, column)) for name, column in columns.items()}, self.features

    def _compute(self, *, predictions: list[str], references: list[str]) -> dict[str, float]:
        homogeneity, completeness, v = sklearn_metrics.homogeneity_completeness_v_measure(references, predictions)
        return {
            "v_measure": float(v),
            "homogeneity": float(homogeneity),
            "completeness": float(completeness),
            "adjusted_rand": float(sklearn_metrics.adjusted_rand_score(references, predictions)),
        }
