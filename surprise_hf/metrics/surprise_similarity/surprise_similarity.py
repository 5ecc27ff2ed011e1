"""Text similarity whose number means the same on every encoder: the surprise of a prediction with its reference."""

from typing import Any

import datasets
import evaluate
import torch

from surprise_hf import ops
from surprise_hf.ensemble import Ensemble
from surprise_hf.estimators import normal_cdf, standardize
from surprise_hf.inputs import is_blank
from surprise_hf.metrics import _base as base

_DESCRIPTION = """\
How much more similar a prediction is to its own reference than to the others: the surprise score of the pair, over the
ensemble of references. 0.5 is no more similar than to a reference drawn at random, 0.99 more similar than to about 99
in 100 of them. Unlike a cosine, whose usual values differ from encoder to encoder, the number is a rank, and means the
same on each. The ensemble should hold dozens of texts at least: of n references no pair can stand out by more than
sqrt(n - 1) standard deviations. Of one alone it is 0.5."""

_INPUTS = """
Args:
    predictions: texts, or their embeddings (n, d).
    references: the text, or embedding, that each prediction is compared with.
    ensemble: texts, embeddings (e, d), a `surprise_hf.Ensemble` or the path of one, to compare with in place of the
        references: pass the same one to compare systems on different references.
    model: the encoder of texts: a SentenceTransformer, a `surprise_hf.SurpriseModel`, a folder or a Hub id.

Returns:
    surprise_similarity: the mean over pairs, in [0, 1].
    surprise_similarity_scores: of each pair.

Examples:
    >>> import evaluate
    >>> import surprise_hf
    >>> metric = evaluate.load(surprise_hf.metrics.path("surprise_similarity"))
    >>> references = [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]
    >>> predictions = [[0.9, 0.1, 0.1], [0.1, 0.9, 0.1], [0.9, 0.1, 0.1]]
    >>> results = metric.compute(predictions=predictions, references=references)
    >>> [round(score, 3) for score in results["surprise_similarity_scores"]]
    [0.921, 0.921, 0.24]
    >>> round(results["surprise_similarity"], 3)
    0.694
"""

_DEFAULT_MODEL = "sentence-transformers/all-MiniLM-L6-v2"


class SurpriseSimilarity(base.SurpriseMetric):
    """See `description`."""

    def _info(self) -> evaluate.MetricInfo:
        return evaluate.MetricInfo(
            description=_DESCRIPTION,
            citation=base.CITATION,
            inputs_description=_INPUTS,
            features=[
                datasets.Features({"predictions": base.STRING, "references": base.STRING}),
                datasets.Features({"predictions": base.VECTOR, "references": base.VECTOR}),
            ],
        )

    def read(self, predictions: list[Any], references: list[Any] | None) -> Any:
        """Texts or embeddings, of the same kind on both sides."""
        if references is None:
            raise ValueError(f"{self.name}: references are missing")
        columns = {"predictions": predictions, "references": references}
        if isinstance(predictions[0], str):
            for name, column in columns.items():
                for row, value in enumerate(column):
                    if not isinstance(value, str) or is_blank(value):
                        raise ValueError(f"{name}[{row}] must be a text like predictions[0], got {base.shown(value)}")
            return columns, self.features[0]
        columns = {name: base.as_vectors(name, column) for name, column in columns.items()}
        dims = [len(column[0]) for column in columns.values()]
        if dims[0] != dims[1]:
            raise ValueError(f"predictions have {dims[0]} dimensions, but references have {dims[1]}")
        return columns, self.features[1]

    def _compute(
        self, *, predictions: list[Any], references: list[Any], ensemble: Any = None, model: Any = None
    ) -> dict[str, Any]:
        encode = None
        if isinstance(predictions[0], str):
            encode = _encoder(model)
            left, right = encode("predictions", predictions), encode("references", references)
        else:
            left, right = base.as_matrix("predictions", predictions), base.as_matrix("references", references)
        context = right if ensemble is None else base.as_ensemble(ensemble, left.shape[1], encode)
        mean, std = context.moments(left) if isinstance(context, Ensemble) else ops.cosine_moments(context, left)
        psi = (ops.unit_rows(left) * ops.unit_rows(right)).sum(dim=1)
        scores = normal_cdf(standardize(psi.unsqueeze(0), mean, std))[0]
        return {
            "surprise_similarity": float(scores.mean()),
            "surprise_similarity_scores": scores.tolist(),
        }


def _encoder(model: Any) -> Any:
    """Texts -> embeddings (n, d), by a model or the name of one."""
    from surprise_hf import SurpriseModel

    if model is None or isinstance(model, str):
        model = SurpriseModel.from_pretrained(model or _DEFAULT_MODEL)
    model = SurpriseModel.from_encoder(model)

    def encode(name: str, texts: list[str]) -> torch.Tensor:
        try:
            return model.embed(texts)[0].cpu()
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from error

    return encode
