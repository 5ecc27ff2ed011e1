"""Scorer: labels and scores of embedded documents. A call of the pipeline without the encoding of its documents."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from . import inputs
from .contexts import as_context
from .ensemble import Ensemble, check_rows
from .fitted import ENOUGH, SMALL_WEIGHT, FittedLabels, plain_options
from .inputs import Label

if TYPE_CHECKING:
    from .model import SurpriseModel

__all__ = ["ARGUMENTS", "SCORING", "Scorer"]


SCORING = {"surprise_weight": "weight", "n_cross": "n_cross", "estimator": "estimator", "refine": "refine"}
ARGUMENTS = (
    "candidate_labels",
    "hypothesis_template",
    "multi_label",
    "threshold",
    "top_k",
    "ensemble",
    *SCORING,
)


class Scorer:
    """Labels and scores of embedded documents; made by `SurpriseZeroShotPipeline.scorer`.

    Args:
        model: embeds the labels, and an ensemble of texts.
        given: arguments of the pipeline's call by name (`ARGUMENTS`).
        batch_size: of the encoder.
        warn: is told what the user should know: which kind of thing it is, and the words.

    Attributes:
        labels: all candidate labels.
        context: the ensemble: embeddings (e, d) or an `Ensemble`; None where the first documents scored are to serve
            as one, which leaves it None. May be set before.
        options: for `FittedLabels.fit`, before those stored in the model. May be set before documents are scored.
        top_k: labels listed for a document; None for all.

    Raises:
        FileNotFoundError: no ensemble at the path given.
        TypeError: an ensemble of embeddings that are not floating.
        ValueError: an argument that does not fit.

    Examples:
        >>> pipe.scorer(candidate_labels=["sports", "politics"], ensemble=embeddings).score(embeddings[:2])
        [(['politics', 'sports'], [0.97, 0.31]), (['sports', 'politics'], [0.99, 0.08])]
    """

    def __init__(
        self,
        model: SurpriseModel,
        given: dict[str, Any],
        batch_size: int,
        warn: Callable[[str, str], None],
    ) -> None:
        self.model, self.batch_size, self._warn = model, batch_size, warn
        self.top_k = None if given.get("top_k") is None else inputs.positive_int("top_k", given["top_k"])
        # at 0 everything is listed, as without
        self.threshold = None if not given.get("threshold") else inputs.share("threshold", given["threshold"])
        self.multi_label = inputs.flag("multi_label", given.get("multi_label", False))
        self.template = inputs.check_template(given.get("hypothesis_template", model.hypothesis_template))
        self.per_document: list[list[Label]] | None = None
        self.labels = self._read_labels(given.get("candidate_labels"))
        if given.get("surprise_weight") is not None:
            inputs.share("surprise_weight", given["surprise_weight"])
        self.options = plain_options({to: given[name] for name, to in SCORING.items() if name in given})
        self.context = (
            as_context(given["ensemble"], model, batch_size=self.batch_size) if "ensemble" in given else model.ensemble
        )
        self._fitted: FittedLabels | None = None
        if self.threshold is not None and "estimator" not in self._stored_options():
            self.options.setdefault("estimator", "auto")

    @property
    def is_stored(self) -> bool:
        """Whether the context is the model's own."""
        return self.context is not None and self.context is self.model.ensemble

    @property
    def all_options(self) -> dict[str, Any]:
        """Those of the call and, where it leaves some open, of the model."""
        return {**self._stored_options(), **self.options}

    # --- labels and their ensemble -------------------------------------------------------------------------------

    def _read_labels(self, labels: Any) -> list[Label]:
        if labels is None:
            if self.model.candidate_labels is None:
                raise ValueError(
                    "no labels: pass candidate_labels=[...], or store some in the model with pipe.set_labels([...])"
                )
            return self.model.candidate_labels
        labels = inputs.plain(labels)
        if isinstance(labels, Iterable) and not isinstance(labels, (str, dict, Sequence)):
            labels = labels if isinstance(labels, (set, frozenset)) else list(labels)  # an iterator is read once
        if not inputs.is_per_document(labels):
            return inputs.as_labels(labels)
        self.per_document = []
        for row, some in enumerate(labels):
            if isinstance(some, str):
                raise ValueError(f"candidate_labels mixes labels and lists of labels: row {row} is {some!r}")
            try:
                self.per_document.append(inputs.as_labels(some))
            except ValueError as error:
                raise ValueError(f"labels of document {row}: {error}") from error
        # under one name two documents may mean different things
        return list({inputs.name_and_text(label): label for some in self.per_document for label in some}.values())

    def check_count(self, documents: int, more: bool = False) -> None:
        """Refuse a number of documents that the lists of their own labels do not fit; `more` may follow.

        Raises:
            ValueError: too few or too many lists.
        """
        lists = documents if self.per_document is None else len(self.per_document)
        if documents > lists:
            raise ValueError(f"there are {lists} lists of labels, but more documents")
        if documents < lists and not more:
            raise ValueError(f"there are {lists} lists of labels, but {documents} documents")

    # --- scores --------------------------------------------------------------------------------------------------

    def score(self, embeddings: Tensor, rows: Sequence[int] | None = None) -> list[tuple[list[Label], list[float]]]:
        """Labels and scores of documents, best first, after `top_k` and `threshold`.

        Args:
            embeddings: (n, d) floating, by the encoder of the labels. Without a context the first ones given serve.
            rows: where each document has labels of its own, the documents' places in that list; default: 0 ... n - 1.

        Returns:
            n pairs of labels and scores (0 to 1).

        Raises:
            TypeError, ValueError: embeddings of another kind or shape, or not finite.
        """
        check_rows("embeddings", embeddings, self.model.dim)
        if not len(embeddings):
            return []
        fitted = self.fit(embeddings)
        if self.per_document is None:
            return self._ranked(fitted, self.labels, embeddings)
        place = {inputs.name_and_text(label): i for i, label in enumerate(self.labels)}
        own = [self.per_document[row] for row in (range(len(embeddings)) if rows is None else rows)]
        groups: dict[tuple[tuple[str, str], ...], list[int]] = {}
        for at, labels in enumerate(own):
            groups.setdefault(tuple(map(inputs.name_and_text, labels)), []).append(at)
        found: list[tuple[list[Label], list[float]]] = [([], [])] * len(embeddings)
        for pairs, members in groups.items():
            results = self._ranked(fitted.select([place[pair] for pair in pairs]), own[members[0]], embeddings[members])
            for at, result in zip(members, results, strict=True):
                found[at] = result
        return found

    def fit(self, embeddings: Tensor) -> FittedLabels:
        """The labels against the context, fitted once; without a context, against `embeddings` (n, d)."""
        if self._fitted is None:
            if self.is_stored:
                fitted = self.model.fit_against(self.labels, self.template, self.all_options)
            else:
                queries = self.model.label_vectors(self.labels, self.template).to(embeddings.device)
                context = embeddings if self.context is None else self.context
                context = context.to(embeddings.device) if isinstance(context, Tensor) else context
                fitted = FittedLabels.fit(queries, context, **self.all_options)
            self._warn_of_limits(embeddings if self.context is None else self.context, fitted)
            self._fitted = fitted.to(embeddings.device)
        return self._fitted

    def _stored_options(self) -> dict[str, Any]:
        return self.model.fit_options if self.is_stored or self.model.stores(self.labels) else {}

    def _warn_of_limits(self, context: Tensor | Ensemble, fitted: FittedLabels) -> None:
        """Where the ensemble gives too little for the surprise score, or for what a threshold promises."""
        documents, weight = len(context), fitted.weight
        advice = (
            "pass ensemble=... or call pipe.fit_ensemble(documents) once with texts of this kind (--ensemble FILE on"
            " the command line)"
        )
        fixed = ", or fix surprise_weight (1 = surprise, 0 = similarity)"
        # `FittedLabels.accept` takes no mixture where there are tails; without, the best of the listed scores
        lawless = self.threshold is not None and not self.multi_label and fitted.tails is None and len(fitted) > 1
        mixed = self.threshold is not None and weight < SMALL_WEIGHT and (self.multi_label or lawless)
        promise = "; threshold is compared with that mixture and keeps its promise at surprise_weight=1 alone"
        if self.all_options.get("weight") is None and weight < SMALL_WEIGHT:
            whose = "is this call's own documents" if self.context is None else "is small"
            self._warn(
                "mixture",
                f"the ensemble {whose}: e = {documents:,}, so the surprise score gets the weight w = {weight:.3f} and"
                f" the plain similarity the other {1 - weight:.3f}. For more, {advice}{fixed}{promise * mixed}",
            )
        elif weight >= SMALL_WEIGHT and documents == 1:
            self._warn(
                "one document",
                f"one document is its own ensemble (e = 1, w = {weight:.3f}): every label surprises it equally, with"
                f" 0.5. Instead, {advice}{fixed}",
            )
        elif mixed:
            words = f"the surprise score has the weight w = {weight:.3f}, the plain similarity the rest{promise}"
            self._warn("promise", words)
        elif lawless:
            estimator = self.all_options.get("estimator", "auto")
            kept = len(context.reservoir) if isinstance(context, Ensemble) else documents
            why, instead = f"estimator={estimator!r} looks at each label alone", "take estimator='auto' or 'tail'"
            if estimator == "auto":
                of = "" if kept == documents else f" embeddings of its {documents:,}"
                why, instead = f"the ensemble has {kept:,}{of} documents, and a threshold takes {ENOUGH}", advice
            self._warn(
                "threshold",
                f"{why}: nothing tells how far a document that belongs to no label gets with its best, and many get"
                f" one. Instead, {instead}",
            )

    def _ranked(
        self, fitted: FittedLabels, labels: Sequence[Label], embeddings: Tensor
    ) -> list[tuple[list[Label], list[float]]]:
        scores, order = fitted.rank(embeddings, min(self.top_k or len(labels), len(labels)))
        by_best = self.threshold is None or self.multi_label or fitted.tails is None
        sure = scores[:, 0] if by_best else fitted.accept(embeddings)  # looks at the document's kin: not for nothing
        results = []
        for values, at, least in zip(scores.tolist(), order.tolist(), sure.tolist(), strict=True):
            kept = list(zip(at, values, strict=True))
            if self.threshold is not None and self.multi_label:
                kept = [(i, value) for i, value in kept if value >= self.threshold]
            elif self.threshold is not None and least < self.threshold:
                kept = []
            names = [str(label) if isinstance(label := labels[i], str) else label for i, _ in kept]
            results.append((names, [value for _, value in kept]))
        return results
