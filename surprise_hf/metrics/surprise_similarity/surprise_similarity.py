"""Text similarity whose number means the same on every encoder: the surprise of a prediction with its reference."""

from itertools import accumulate
from typing import Any

import datasets
import evaluate
import torch

from surprise_hf import ops
from surprise_hf.encoders import as_model
from surprise_hf.ensemble import Ensemble
from surprise_hf.inputs import is_blank
from surprise_hf.metrics import _base as base

_DESCRIPTION = """\
How much more similar a prediction is to its own reference than to the others: the surprise score of the pair, over the
ensemble of references. 0.5 is no more similar than to a reference drawn at random, 0.99 more similar than to about 99
in 100 of them. Unlike a cosine, whose usual values differ from encoder to encoder, the number is a rank, and means the
same on each. Of several references of a prediction the one that it is most similar to counts. The ensemble should hold
dozens of texts at least: of n references no pair can stand out by more than sqrt(n - 1) standard deviations. Of one
alone it is 0.5."""

_INPUTS = """
Args:
    predictions: texts, or their embeddings (n, d).
    references: the text, or embedding, that each prediction is compared with; or a list of them for each, which need
        not be equally many.
    ensemble: texts, embeddings (e, d), a `surprise_hf.Ensemble` or the path of one, to compare with in place of the
        references: pass the same one to compare systems on different references.
    model: the encoder of texts: a SentenceTransformer, a `surprise_hf.SurpriseModel`, a folder or a Hub id.

Returns:
    surprise_similarity: the mean over predictions, in [0, 1].
    surprise_similarity_scores: of each prediction with its reference, of several with the most similar one.

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
    >>> several = [[[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]], [[0.0, 1.0, 0.0]], [[0.0, 0.0, 1.0], [0.5, 0.5, 0.5]]]
    >>> results = metric.compute(predictions=predictions, references=several)
    >>> [round(score, 3) for score in results["surprise_similarity_scores"]]
    [0.943, 0.943, 0.786]
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
                datasets.Features({"predictions": one, "references": references})
                for one in (base.STRING, base.VECTOR)
                for references in (one, datasets.Sequence(one))
            ],
        )

    def read(self, predictions: list[Any], references: list[Any] | None) -> Any:
        """Texts or embeddings, of the same kind on both sides; one reference or a list of them for each."""
        if references is None:
            raise ValueError(f"{self.name}: references are missing")
        is_text = isinstance(predictions[0], str)
        check = _texts if is_text else base.as_vectors
        several = _holds_several(references[0], is_text)
        columns: dict[str, Any] = {"predictions": check("predictions", predictions)}
        if several:
            columns["references"] = [_several(row, value, check) for row, value in enumerate(references)]
        else:
            columns["references"] = check("references", references)
        if not is_text:
            dim = len(columns["predictions"][0])
            for row, value in enumerate(columns["references"]):
                found = len(value[0] if several else value)
                if found != dim:
                    raise ValueError(f"predictions have {dim} dimensions, but references[{row}] has {found}")
        return columns, self.features[2 * (not is_text) + several]

    def _compute(
        self, *, predictions: list[Any], references: list[Any], ensemble: Any = None, model: Any = None
    ) -> dict[str, Any]:
        is_text = isinstance(predictions[0], str)
        counts = [1] * len(predictions)
        if _holds_several(references[0], is_text):
            counts = [len(several) for several in references]
            references = [reference for several in references for reference in several]
        encoder = None
        if is_text:
            encoder = as_model(model or _DEFAULT_MODEL)
            left, right = _encode(encoder, "predictions", predictions), _encode(encoder, "references", references)
        else:
            left, right = base.as_matrix("predictions", predictions), base.as_matrix("references", references)
        context = right if ensemble is None else base.as_ensemble(ensemble, left.shape[1], encoder)
        mean, std = context.moments(left) if isinstance(context, Ensemble) else ops.cosine_moments(context, left)
        owner = torch.arange(len(left)).repeat_interleave(torch.tensor(counts))
        psi = (ops.unit_rows(left)[owner] * ops.unit_rows(right)).sum(dim=1)
        best = torch.stack(
            [psi[end - count : end].max() for count, end in zip(counts, accumulate(counts), strict=True)]
        )
        scores = ops.normal_cdf(ops.standardize(best.unsqueeze(0), mean, std))[0]
        return {
            "surprise_similarity": float(scores.mean()),
            "surprise_similarity_scores": scores.tolist(),
        }


def _texts(name: str, column: list[Any]) -> list[str]:
    for row, value in enumerate(column):
        if not isinstance(value, str) or is_blank(value):
            raise ValueError(f"{name}[{row}] must be a text like predictions[0], got {base.shown(value)}")
    return column


def _holds_several(value: Any, is_text: bool) -> bool:
    """Whether a row of references is a list of texts, or of embeddings."""
    if isinstance(value, (str, bytes)) or not hasattr(value, "__len__"):
        return False
    return not len(value) or isinstance(value[0], str) if is_text else not len(value) or hasattr(value[0], "__len__")


def _several(row: int, value: Any, check: Any) -> Any:
    """The references of one prediction."""
    if isinstance(value, (str, bytes)) or not hasattr(value, "__len__") or not len(value):
        raise ValueError(f"references[{row}] must be a list of references like references[0], got {base.shown(value)}")
    return check(f"references[{row}]", list(value))


def _encode(model: Any, name: str, texts: list[str]) -> torch.Tensor:
    """Embeddings (n, d)."""
    try:
        return model.embed(texts)[0].cpu()
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error
