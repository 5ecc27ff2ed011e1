"""The transformers pipeline "surprise-zero-shot": texts and label names in, labels with scores out.

Importing this module registers the task. sentence-transformers is imported when a model is loaded, not before, so that
this stays cheap.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import Tensor
from transformers.pipelines import PIPELINE_REGISTRY
from transformers.pipelines.base import Pipeline

from . import inputs
from .contexts import as_context
from .inputs import BATCH_SIZE
from .model_card import TASK
from .scorer import ARGUMENTS, Scorer

if TYPE_CHECKING:
    from .model import SurpriseModel

__all__ = ["DEFAULT_MODEL", "TASK", "SurpriseZeroShotPipeline"]

DEFAULT_MODEL = ("sentence-transformers/sentence-t5-base", "main")  # the paper's encoder
HUB = (  # of `save_pretrained`
    "repo_id",
    "token",
    "private",
    "commit_message",
    "commit_description",
    "revision",
    "create_pr",
    "tags",
)
TRANSFORMERS = ("max_shard_size", "use_temp_dir")  # of its own save_pretrained and push_to_hub, and of no use here


class _Documents(NamedTuple):
    """Some rows of input: what to give back for each, and the embeddings of those that have text."""

    sequences: list[str | None]
    rows: list[int]  # positions in `sequences` of the embedded ones
    emb: Tensor
    cut: int


class _Loader:
    """Stands for SurpriseModel in transformers' registry, which needs no more of it than this."""

    @classmethod
    def from_pretrained(cls, *args: Any, **kwargs: Any) -> SurpriseModel:
        from .model import SurpriseModel

        return SurpriseModel.from_pretrained(*args, **kwargs)


class SurpriseZeroShotPipeline(Pipeline):
    """Zero-shot classification by the surprise score.

    Args:
        model: a SurpriseModel or SentenceTransformer. `transformers.pipeline("surprise-zero-shot", model=...)` takes
            a folder or Hub id too.
        prompt: put in front of every document and label ("query: " for E5). Becomes the model's default prompt, and
            is saved with it.
        prompt_name: the same, by the name of a prompt of the model.
        long_texts: "truncate" (default) or "window", see `SurpriseModel`; saved with the model.
        device, batch_size: as for every pipeline.
        kwargs: defaults for any argument of `__call__`.

    Raises:
        TypeError: no model of these kinds, or an unknown argument.
        ValueError: a prompt or `long_texts` that does not fit, or is another than the ensemble or examples of the
            model were embedded with (`SurpriseModel.read_with`).

    Examples:
        >>> import surprise_hf, transformers
        >>> pipe = transformers.pipeline("surprise-zero-shot", model="sentence-transformers/all-MiniLM-L6-v2")
        >>> pipe(documents, candidate_labels=["sports", "politics"])

    References: paper sections 2 and 3; design section 1.
    """

    # the model tokenises; nothing else is loaded beside it
    _load_tokenizer = _load_processor = _load_image_processor = False  # type: ignore[assignment]
    _load_feature_extractor = _load_video_processor = False  # type: ignore[assignment]
    model: SurpriseModel  # type: ignore[assignment]

    def __init__(
        self,
        model: Any,
        *args: Any,
        prompt: str | None = None,
        prompt_name: str | None = None,
        long_texts: str | None = None,
        **kwargs: Any,
    ) -> None:
        model = _as_model(model)
        if getattr(model, "tokenizer", None) is not None:
            kwargs["tokenizer"] = model.tokenizer  # whichever is given, the encoder takes its own
        kwargs.pop("local_files_only", None)  # transformers.pipeline has loaded the model, and leaves it here
        self._warned: set[str] = set()  # of what, with the ensemble as it is
        super().__init__(model, *args, **kwargs)
        model.read_with(prompt, prompt_name, long_texts)  # a call that is refused leaves the model as it was
        self._context: tuple[Any, Any] | None = None
        for name, value in self._postprocess_params.items():
            if isinstance(value, Iterator):  # it is read once, and the default of every call
                self._postprocess_params[name] = list(value)
        self.model.eval()  # the base class does not

    # --- the call ------------------------------------------------------------------------------------------------

    def __call__(  # type: ignore[override]
        self,
        inputs: Any = None,
        candidate_labels: Any = None,
        *,
        sequences: Any = None,
        hypothesis_template: str | Sequence[str] | None = None,
        multi_label: bool | None = None,
        threshold: float | None = None,
        top_k: int | None = None,
        ensemble: Any = None,
        surprise_weight: float | None = None,
        n_cross: float | None = None,
        estimator: str | None = None,
        refine: int | str | None = None,
        batch_size: int | None = None,
        num_workers: int | None = None,
    ) -> Any:
        """Labels for each document, best first.

        The order is the decision rule of the paper's score (z, or the complement where the similarity has a part in
        it), which tells labels apart where their scores have both rounded to 1.

        Args:
            inputs: one text, or texts as a list, tuple, pandas Series, array, dataset column, KeyDataset, torch or
                `datasets` dataset, iterator or generator. Blank ones (None, NaN, "", whitespace) stay in their place,
                get no label and are left out of every statistic.
            sequences: another name of `inputs`, as in transformers' zero-shot pipeline.
            candidate_labels: as for `surprise_hf.inputs.as_labels`, or a list of such lists, one for each document.
                A dict {label: description} embeds the descriptions. None takes those stored in the model.
            hypothesis_template: what to embed for a label, `{}` being the label. Default: the model's, which is
                "this matter is {}" unless set. Of a list of templates the embeddings are averaged.
            multi_label: True judges every label by itself: with `threshold`, those that reach it are listed.
            threshold: 1 - the chance of a false label, 0 to 1, measured on the ensemble: at 0.99 about 1 % of the
                documents that do not belong to a label reach it. Without `multi_label`, a document gets no label
                where one that belongs to none would get as far with its best (`surprise_hf.tails`,
                `surprise_hf.kinship`); that takes the embeddings of 200 documents and the estimator "auto" or "tail",
                else the best score is compared, with a warning. 0 lists everything, also where the pipeline has a
                threshold of its own.
            top_k: list no more than this many labels. More than there are lists all, also where the pipeline has a
                top_k of its own.
            ensemble: the documents that give a similarity its context: texts, embeddings (tensor or array), an
                `Ensemble`, or the path of one. Default: the ensemble stored in the model; without one, the documents
                of this call, which makes each document's scores depend on the others.
            surprise_weight: w, from 0 (rescaled similarity) to 1 (surprise). Default: tanh(e / n_cross) for an
                ensemble of e documents.
            n_cross: of that default, 1000.
            estimator: "gaussian" (default without a threshold), "quantile", "empirical", "tail" or
                "auto" (default with one: the tail where the gaussian does not keep its promise).
            refine: rounds of refinement, default 0; or "auto", as in `surprise_hf.surprise`.
            batch_size: of the encoder, 32 by default. Datasets and generators are read in steps of it.
            num_workers: accepted as in other pipelines; tokenising needs no worker here.

        Returns:
            For one text a dict with "sequence", "labels" and "scores" (floats in [0, 1], surprise scores, which need
            not add up to 1); for a container a list of them; for a generator or dataset a generator, which reads
            everything first where the ensemble is the call's own documents.

        Raises:
            ValueError: an argument that does not fit, a document that is no string (the message names the row), or
                an embedding that is not finite.
        """
        del num_workers
        if inputs is not None and sequences is not None:
            raise ValueError("inputs and sequences are two names of one argument: give one of them")
        given = {name: value for name, value in locals().items() if name in ARGUMENTS and value is not None}
        return self._run(sequences if inputs is None else inputs, self.scorer(batch_size=batch_size, **given))

    def _run(self, documents: Any, scorer: Scorer) -> Any:
        if documents is None:
            raise ValueError("no documents given (None)")
        if getattr(documents, "ndim", 1) == 0:
            documents = documents.item()  # an array that holds one string
        if inputs.is_stream(documents):
            return self._stream(inputs.iterate(documents), scorer)
        results = list(self._stream(inputs.iterate(documents), scorer, whole=True))
        return results[0] if isinstance(documents, str) else results

    def _stream(self, rows: Iterator[Any], scorer: Scorer, whole: bool = False) -> Iterator[dict[str, Any]]:
        """Results in order; read at once where the whole is wanted or the ensemble is the documents themselves."""
        position = cut = embedded = 0
        size = None if whole or scorer.context is None else scorer.batch_size
        while block := list(islice(rows, size)):
            read = self._read(block, position, scorer.batch_size)
            scorer.check_count(position + len(block), more=True)
            yield from self._score(read, position, scorer)
            position, cut, embedded = position + len(block), cut + read.cut, embedded + len(read.rows)
            if size is None:
                break
        scorer.check_count(position)
        inputs.warn_cut(cut, embedded, "documents", self.model.max_seq_length)

    def _read(self, block: Sequence[Any], start: int, batch_size: int) -> _Documents:
        sequences = [inputs.text_of(row, start + i) for i, row in enumerate(block)]
        rows = [i for i, text in enumerate(sequences) if not inputs.is_blank(text)]
        texts = [str(sequences[i]) for i in rows]
        emb, cut = self.model.embed(texts, batch_size=batch_size, rows=[start + i for i in rows])
        return _Documents(sequences, rows, emb, cut)

    def _score(self, read: _Documents, start: int, scorer: Scorer) -> Iterator[dict[str, Any]]:
        found = {}
        if read.rows:
            results = scorer.score(read.emb, [start + row for row in read.rows])
            found = dict(zip(read.rows, results, strict=True))
        for row, sequence in enumerate(read.sequences):
            labels, scores = found.get(row, ([], []))
            yield {"sequence": sequence, "labels": labels, "scores": scores}

    def scorer(self, *, batch_size: int | None = None, **kwargs: Any) -> Scorer:
        """A call in two steps, for embeddings of one's own or documents read in parts: `pipe.scorer(...).score(emb)`.

        Args:
            batch_size: of the encoder, for the labels and an ensemble of texts.
            kwargs: as for the call, from `candidate_labels` on.

        Raises:
            TypeError: an argument that the call does not have.
            ValueError: as the call.
        """
        size, given = self._size(batch_size), self._sanitize_parameters(**kwargs)[2]
        if "ensemble" in self._postprocess_params and "ensemble" not in given:
            given["ensemble"] = self._own_context(size)
        return Scorer(self.model, {**self._postprocess_params, **given}, size, self._warn_once)

    def _own_context(self, batch_size: int) -> Any:
        """The ensemble that the pipeline was given, embedded once while the encoder reads as it does."""
        key, kept = self.model.reads_as(), self._context  # read once: another thread may put its own there
        if kept is None or kept[0] != key:
            given = self._postprocess_params["ensemble"]
            self._context = kept = key, as_context(given, self.model, batch_size=batch_size)
        return kept[1]

    def _size(self, batch_size: int | None) -> int:
        """Texts that the encoder takes at once: as given, or as the pipeline was given it."""
        sizes = (size for size in (batch_size, self._batch_size, BATCH_SIZE) if size is not None)
        return inputs.positive_int("batch_size", next(sizes))

    def _warn_once(self, kind: str, words: str) -> None:
        if kind not in self._warned:
            self._warned.add(kind)
            warnings.warn(words, stacklevel=2)

    # --- state ---------------------------------------------------------------------------------------------------

    def fit_ensemble(
        self, documents: Any, *, batch_size: int | None = None, reservoir: int | None = None, update: bool = False
    ) -> SurpriseZeroShotPipeline:
        """Store an ensemble in the model: from then on a document alone scores as it does in the crowd.

        Arguments and errors as for `SurpriseModel.fit_ensemble`. Returns self.
        """
        size = self._size(batch_size)
        self.model.fit_ensemble(documents, batch_size=size, reservoir=reservoir, update=update)
        self._warned.clear()
        return self

    def set_labels(
        self,
        candidate_labels: Any,
        hypothesis_template: str | Sequence[str] | None = None,
        *,
        surprise_weight: float | None = None,
        n_cross: float | None = None,
        estimator: str | None = None,
        refine: int | str | None = None,
    ) -> SurpriseZeroShotPipeline:
        """Store labels, their template and how to score them in the model. Arguments as for the call. Returns self."""
        self.model.set_labels(
            candidate_labels,
            hypothesis_template,
            weight=surprise_weight,
            n_cross=n_cross,
            estimator=estimator,
            refine=refine,
        )
        return self

    def add_labels(self, candidate_labels: Any) -> SurpriseZeroShotPipeline:
        """Store more labels in the model; the scores of those there are stay. As `SurpriseModel.add_labels`."""
        self.model.add_labels(candidate_labels)
        return self

    def fit_labels(
        self,
        texts: Any,
        labels: Any,
        *,
        candidate_labels: Any = None,
        hypothesis_template: Any = None,
        documents: Any = None,
        batch_size: int | None = None,
        surprise_weight: float | None = None,
        n_cross: float | None = None,
        estimator: str | None = None,
        refine: int | str | None = None,
    ) -> SurpriseZeroShotPipeline:
        """Store labels that some examples describe besides their names, in seconds and without training.

        Arguments and errors as for `few_shot.fit_labels` and the call; refine is "auto" unless given, 0 where there are
        no more documents than examples. Returns self.
        """
        from .few_shot import fit_labels

        fit_labels(
            self.model,
            texts,
            labels,
            candidate_labels=candidate_labels,
            hypothesis_template=hypothesis_template,
            documents=documents,
            batch_size=self._size(batch_size),
            weight=surprise_weight,
            n_cross=n_cross,
            estimator=estimator,
            refine=refine,
        )
        return self

    def save_pretrained(self, save_directory: str | os.PathLike, **kwargs: Any) -> None:
        """Save the model: the encoder, its ensemble and its labels; with `push_to_hub=True` push it too (`HUB`).

        The base class would also write `custom_pipelines` into config.json, after which the folder asks for
        trust_remote_code even where this package is installed.
        """
        push = kwargs.pop("push_to_hub", False)
        hub = {name: kwargs.pop(name) for name in HUB if name in kwargs} if push else {}
        for name in TRANSFORMERS:
            kwargs.pop(name, None)
        self.model.save_pretrained(os.fspath(save_directory), **kwargs)
        if push:
            self.push_to_hub(hub.pop("repo_id", Path(save_directory).resolve().name), **hub)

    def push_to_hub(self, repo_id: str, **kwargs: Any) -> str:
        """Push the model, as `SentenceTransformer.push_to_hub`; an existing repository gets a new commit."""
        for name in TRANSFORMERS:
            kwargs.pop(name, None)
        kwargs.setdefault("exist_ok", True)
        return self.model.push_to_hub(repo_id, **kwargs)

    # --- what the base class asks for ----------------------------------------------------------------------------

    def _sanitize_parameters(self, **kwargs: Any) -> tuple[dict, dict, dict]:
        unknown = sorted(set(kwargs) - set(ARGUMENTS))
        if unknown:
            raise TypeError(f"unknown argument {', '.join(unknown)}; known are {', '.join(ARGUMENTS)}")
        return {}, {}, {name: value for name, value in kwargs.items() if value is not None}

    def preprocess(self, input_: Any, **_: Any) -> dict[str, Any]:
        """Nothing: `encode` tokenises, sorted by length, which the base class's one-by-one loop could not."""
        return {"documents": input_}

    def _forward(self, input_tensors: dict[str, Any], **_: Any) -> Any:
        return self(input_tensors["documents"])

    def postprocess(self, model_outputs: Any, **_: Any) -> Any:
        """Nothing."""
        return model_outputs


def _as_model(model: Any) -> SurpriseModel:
    from sentence_transformers import SentenceTransformer

    from .model import SurpriseModel

    failed, SurpriseModel._load_error = SurpriseModel._load_error, None  # noqa: SLF001 (of one load alone)
    if isinstance(model, SentenceTransformer):
        return SurpriseModel.from_encoder(model)
    if failed is not None and failed[0] == getattr(model, "name_or_path", None):
        raise ValueError(failed[1])
    raise TypeError(
        f"the {TASK} pipeline needs a SurpriseModel or SentenceTransformer, got {type(model).__name__}; pass"
        " surprise_hf.SurpriseModel.from_pretrained(folder or Hub id), or the folder itself to transformers.pipeline"
    )


PIPELINE_REGISTRY.register_pipeline(
    TASK, pipeline_class=SurpriseZeroShotPipeline, pt_model=_Loader, default={"model": DEFAULT_MODEL}, type="text"
)
# with it, Pipeline.save_pretrained would write `custom_pipelines`
del SurpriseZeroShotPipeline._registered_impl  # type: ignore[attr-defined]  # noqa: SLF001
