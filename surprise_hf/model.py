"""SurpriseModel: a SentenceTransformer that carries its ensemble, its labels and their template."""

from __future__ import annotations

import copy
import os
import warnings
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from torch import Tensor, nn

from . import inputs, windows
from .contexts import check_context
from .encoding import PROBE
from .ensemble import Ensemble, check_rows
from .fitted import FittedLabels, plain_options
from .inputs import BATCH_SIZE, Label
from .model_files import ModelFiles, in_subfolder, label_keys
from .ops import unit_rows

__all__ = ["SurpriseModel"]

PROMPT = "surprise-zero-shot"  # the name of a prompt given as a text

_ENCODER_ARGUMENTS = (
    "backend",
    "cache_folder",
    "config_kwargs",
    "default_prompt_name",
    "model_card_data",
    "processor_kwargs",
    "prompts",
    "similarity_fn_name",
    "tokenizer_kwargs",
    "truncate_dim",
)


class UnitRows(nn.Module):
    """L2-normalised rows (n, d); zero rows stay zero."""

    def forward(self, x: Tensor) -> Tensor:
        """(n, d) floating -> (n, d)."""
        return nn.functional.normalize(x, dim=-1)


class SurpriseModel(ModelFiles):
    """A sentence encoder with an ensemble of documents and a set of labels.

    Opens any sentence-transformers repository, any folder saved by this class, and any encoder that transformers
    knows (which gets mean pooling). Arguments as for `SentenceTransformer`; see also `from_pretrained`.

    Attributes:
        ensemble: documents that labels are compared with, or None. Set it with `fit_ensemble` or `set_ensemble`.
        candidate_labels: labels stored with the model, or None. Set them with `set_labels`, `add_labels`.
        hypothesis_template: the text that a label is put into, or several, whose embeddings are averaged.
        fitted: the stored labels frozen against the ensemble, or None while either is missing. Made anew where
            documents were added to the ensemble in place.
        fit_options: the scoring options that `fitted` was made with.
        encoder_name: Hub id of the encoder where known.
        report: what the model card tells beside: training arguments and evaluation results (`record_results`).
        long_texts: "truncate" (what the encoder does with a text longer than its window) or "window": embed it in
            pieces and take their mean, weighted by tokens. Saved with the ensemble and labels; `read_with` tells when
            it can be set.

    Examples:
        >>> model = SurpriseModel("sentence-transformers/all-MiniLM-L6-v2")
        >>> model.fit_ensemble(documents)
        >>> model.set_labels(["sports", "politics"])
        >>> model.save_pretrained("my-model")

    References: design facts 1 and 2; paper section 2.
    """

    input_modalities = ("text",)  # Pipeline.__repr__ asks for it, and for can_generate
    _load_error: ClassVar[tuple[str, str] | None] = None

    def __init__(self, model_name_or_path: str | None = None, **kwargs: Any) -> None:
        super().__init__(model_name_or_path, **kwargs)
        self._label_vectors: tuple[Any, Tensor] | None = None
        self._last_fit: tuple[Tensor, Ensemble, Any, FittedLabels] | None = None
        self._warned = False
        self.eval()
        if model_name_or_path:
            where: dict[str, Any] = {"cache_dir": kwargs.get("cache_folder")}
            where |= {name: kwargs[name] for name in ("token", "revision", "local_files_only") if name in kwargs}
            self._load_surprise(model_name_or_path, where)

    # --- loading -------------------------------------------------------------------------------------------------

    @classmethod
    def from_pretrained(
        cls,
        name_or_path: str | os.PathLike,
        *,
        device: str | torch.device | None = None,
        dtype: str | torch.dtype | None = None,
        device_map: Any = None,
        model_kwargs: dict[str, Any] | None = None,
        cache_dir: str | None = None,
        subfolder: str = "",
        revision: str | None = None,
        token: bool | str | None = None,
        trust_remote_code: bool | None = None,
        local_files_only: bool = False,
        _from_pipeline: str | None = None,
        **kwargs: Any,
    ) -> SurpriseModel:
        """Open a Hub repository or a folder, in the words of transformers.

        Args:
            name_or_path: Hub id or folder.
            device: where to put it; None takes an accelerator if there is one.
            dtype: as for `AutoModel.from_pretrained`; None and "auto" keep the dtype of the weights.
            device_map: as for `AutoModel.from_pretrained`.
            model_kwargs: for `AutoModel.from_pretrained`; keyword arguments unknown here are added to it.
            cache_dir: of the Hub downloads.
            subfolder: of the repository or folder, that holds the model.
            revision: branch, tag or commit, of the encoder and of `surprise/` alike.
            token: for a private repository.
            trust_remote_code: run code that the repository holds.
            local_files_only: don't ask the Hub.
            kwargs: arguments of `SentenceTransformer` (prompts, truncate_dim, ...), or more `model_kwargs`.

        Raises:
            OSError: no such repository or folder.
            ValueError: the files in `surprise/` are damaged, of a newer format, or of another encoder.
        """
        loading = {name: kwargs.pop(name) for name in _ENCODER_ARGUMENTS if name in kwargs}
        loading.setdefault("cache_folder", cache_dir)
        for_model = {"dtype": dtype, "device_map": device_map, **(model_kwargs or {}), **kwargs}
        for_model = {name: value for name, value in for_model.items() if value is not None}
        if device is None and _from_pipeline is not None and "device_map" not in for_model:
            device = "cpu"  # the pipeline moves the model itself
        SurpriseModel._load_error = None
        where = os.fspath(name_or_path)
        try:
            if subfolder:
                where = in_subfolder(where, subfolder, cache_dir, revision, token, local_files_only)
            return cls(
                where,
                device=None if device is None else str(device),
                model_kwargs=for_model or None,
                revision=revision,
                token=token,
                trust_remote_code=bool(trust_remote_code),
                local_files_only=local_files_only,
                **loading,
            )
        except Exception as error:
            name, told = os.fspath(name_or_path), error
            if type(error) is OSError and name not in str(error):  # "couldn't connect": to load what, it doesn't say
                told = OSError(f"{name}: {error}")
            # transformers.pipeline swallows it and goes on with a bare BertModel: the pipeline will look here.
            # Its words alone: by way of the traceback the error would keep the encoder alive
            SurpriseModel._load_error = name, str(told)
            if told is error:
                raise
            raise told from error

    @classmethod
    def from_encoder(cls, encoder: SentenceTransformer) -> SurpriseModel:
        """A SentenceTransformer in memory as a SurpriseModel; both share the same modules."""
        if isinstance(encoder, cls):
            return encoder
        model = cls(
            modules=OrderedDict(encoder.named_children()),
            device=str(encoder.device),
            prompts=dict(encoder.prompts),
            default_prompt_name=encoder.default_prompt_name,
            similarity_fn_name=encoder.similarity_fn_name,
            truncate_dim=encoder.truncate_dim,
        )
        model.module_kwargs = encoder.module_kwargs
        model.encoder_name = encoder.model_card_data.base_model  # of the Hub, where it was read from there
        model._model_card_text = encoder._model_card_text  # noqa: SLF001 (its license goes into the card)
        if encoder.model_card_data.license is not None:
            model.model_card_data.license = encoder.model_card_data.license
        return model

    def train(self, mode: bool = True) -> SurpriseModel:
        """As in every module. Label vectors kept so far are dropped: weights may change now, and not every optimizer
        tells (`reads_as`).
        """
        if mode:
            self._label_vectors = self._own_probe = None
        return super().train(mode)

    def can_generate(self) -> bool:
        """No: it encodes."""
        return False

    @property
    def hf_device_map(self) -> dict[str, Any]:
        """Placement by accelerate, of the transformers model inside; AttributeError where there is none, as there."""
        return self.transformers_model.hf_device_map  # type: ignore[union-attr, return-value]

    # --- texts and labels to vectors -----------------------------------------------------------------------------

    def read_with(
        self, prompt: str | None = None, prompt_name: str | None = None, long_texts: str | None = None
    ) -> None:
        """Change how texts are read from now on; None leaves things as they are.

        Args:
            prompt: put in front of every document and label; becomes the default prompt.
            prompt_name: the same, by the name of a prompt of the model.
            long_texts: "truncate" or "window".

        Raises:
            ValueError: both prompts, no prompt of that name, an unknown `long_texts`; or another than an ensemble or
                label vectors in the model were made with. Nothing is changed then.
        """
        if prompt is not None and prompt_name is not None:
            raise ValueError("give prompt or prompt_name, not both")
        if prompt_name is not None and prompt_name not in self.prompts:
            raise ValueError(f"this model has no prompt named {prompt_name!r}; it has {sorted(self.prompts)}")
        was, now = self._default_prompt, prompt
        if now is None:
            now = was if prompt_name is None else self.prompts[prompt_name] or ""
        long = self._long_texts if long_texts is None else windows.check_long_texts(long_texts)
        if self.ensemble is not None or self._given is not None:
            for name, old, new in (("prompt", was, now), ("long_texts", self._long_texts, long)):
                if old != new:
                    raise ValueError(
                        f"this model's ensemble and labels were fitted with {name}={old!r}, and texts read with"
                        f" {name}={new!r} don't compare with them: leave {name} as it is, or take them away"
                        " (model.set_ensemble(None), model.set_labels(None)) and fit again after the change"
                    )
        if now != was:
            self._probe = None  # of the old prompt; labels by name alone go with any
        if prompt is not None:
            prompt_name = PROMPT
            self.prompts[prompt_name] = prompt
        if prompt_name is not None:
            self.default_prompt_name = prompt_name
        self._long_texts = long

    @property
    def long_texts(self) -> str:  # noqa: D102 (an attribute of the class, and told there)
        return self._long_texts

    @long_texts.setter
    def long_texts(self, value: str) -> None:
        self.read_with(long_texts=value)

    def label_vectors(self, labels: Sequence[Label], template: inputs.Template) -> Tensor:
        """Vectors (m, d) of labels: of each that given to `set_labels` for it, or else that of its name."""
        if self._given is None:
            return self.name_vectors(labels, template)
        keys, vectors = self._given
        asked = label_keys(labels, template)
        if asked == keys:
            return vectors
        place = {key: row for row, key in enumerate(keys)}
        by_text = {key[1:]: row for row, key in reversed([*enumerate(keys)])}
        rows = [place.get(key, by_text.get(key[1:])) for key in asked]
        by_name = [i for i, row in enumerate(rows) if row is None]
        if len(by_name) == len(rows):
            return self.name_vectors(labels, template)
        found = vectors[[row or 0 for row in rows]]
        if by_name:
            self._warn_of_names([labels[i] for i in by_name])
            found[by_name] = self.name_vectors([labels[i] for i in by_name], template).to(found)
        return found

    def _warn_of_names(self, labels: Sequence[Label]) -> None:
        if not self._warned:
            self._warned = True
            warnings.warn(
                f"some of these labels are known by examples (fit_labels), but {', '.join(map(repr, labels[:5]))}"
                f"{' and others' if len(labels) > 5 else ''} by name alone, and scores of the two kinds don't compare"
                " well: give all of them examples",
                stacklevel=3,
            )

    def name_vectors(self, labels: Sequence[Label], template: inputs.Template) -> Tensor:
        """Embeddings (m, d) of the labels in the template, of several the mean of the unit rows.

        The last set asked for is kept until the encoder reads otherwise (`reads_as`).
        """
        texts = inputs.hypotheses(labels, template)
        key = (tuple(texts), self.reads_as())
        kept = self._label_vectors  # read once: another thread may put its own there
        if kept is None or kept[0] != key:
            vectors, cut = self.embed(texts, show_progress_bar=False)
            inputs.warn_cut(cut, len(vectors), "labels", self.max_seq_length)
            if not isinstance(template, str):
                vectors = unit_rows(vectors).reshape(len(template), len(labels), -1).mean(dim=0)
            self._label_vectors = kept = key, vectors
        return kept[1]

    # --- ensemble and labels -------------------------------------------------------------------------------------

    def fit_ensemble(
        self, documents: Any, *, batch_size: int = BATCH_SIZE, reservoir: int | None = None, update: bool = False
    ) -> SurpriseModel:
        """Make these documents the ensemble, in one pass over them: a million need no more memory than a thousand.

        Args:
            documents: any kind of input that the pipeline takes, generators included; blank ones are left out.
            batch_size: of the encoder.
            reservoir: rows kept as a sample (see `Ensemble`), 4,096 by default.
            update: add to the ensemble there is rather than replace it.

        Returns:
            self; stored labels are fitted anew.

        Raises:
            ValueError: no document with text, a wrong type (the message names the row), an embedding that is not
                finite; or with `update` another `reservoir` than the ensemble has. The ensemble then stays as it was.
        """
        if update and self.ensemble is not None:
            if reservoir not in (None, self.ensemble.reservoir_size):
                raise ValueError(
                    f"the ensemble keeps a reservoir of {self.ensemble.reservoir_size} rows, and documents added to it"
                    f" can't change that to {reservoir}: leave reservoir out, or fit all documents with update=False"
                )
            ensemble = copy.copy(self.ensemble)
            ensemble.encoder = self.encoder_name
        else:
            ensemble = Ensemble(self.dim, 4096 if reservoir is None else reservoir, encoder=self.encoder_name)
        cut, before = 0, len(ensemble)
        for part in self.embed_documents(documents, batch_size):
            ensemble.update(part.emb)
            cut += part.cut
        if len(ensemble) == before:
            raise ValueError("none of the documents has any text, so there is nothing to fit an ensemble on")
        inputs.warn_cut(cut, len(ensemble) - before, "documents", self.max_seq_length)
        self.set_ensemble(ensemble)
        ensemble.probe = self._probe
        return self

    def set_ensemble(self, ensemble: Ensemble | None) -> None:
        """Store an ensemble of embeddings that this encoder made, and fit the stored labels to it.

        Raises:
            TypeError: no `Ensemble`.
            ValueError: of another dimension or encoder, with normalize=False, or without documents.
        """
        if not isinstance(ensemble, Ensemble | None):
            raise TypeError(f"ensemble must be an Ensemble or None, got {type(ensemble).__name__}")
        if ensemble is not None:
            check_context(ensemble, self.dim, self.encoder_name)
            if ensemble.probe is not None:
                self.check_probe(ensemble.probe, "the ensemble")
        fitted = self._fit(ensemble, self.candidate_labels, self.hypothesis_template, self.fit_options)
        self.ensemble, self._last_fit = ensemble, None
        self.fitted = fitted  # after the ensemble whose size it notes
        self.forget_results()

    def set_labels(
        self,
        labels: Any,
        hypothesis_template: Any = None,
        *,
        vectors: Tensor | np.ndarray | None = None,
        **options: Any,
    ) -> SurpriseModel:
        """Store labels, and fit them if there is an ensemble.

        Args:
            labels: as for the pipeline's `candidate_labels`; None takes them away.
            hypothesis_template: None keeps the one there is.
            vectors: (m, d) floating, in place of the labels' embeddings (see `few_shot.fit_labels`).
            options: of `FittedLabels.fit` (weight, n_cross, estimator, refine).

        Raises:
            TypeError: an option of another name.
            ValueError: as `inputs.as_labels`, `inputs.check_template` and `FittedLabels.fit`. Labels then stay as
                they were.
        """
        template = inputs.check_template(
            self.hypothesis_template if hypothesis_template is None else hypothesis_template
        )
        found = None if labels is None else inputs.as_labels(labels)
        options = plain_options(options)
        before, self._given = self._given, None
        try:
            if found is not None and vectors is not None:
                vectors = inputs.embeddings(vectors)
                check_rows("vectors", vectors, self.dim)
                if len(vectors) != len(found):
                    raise ValueError(f"there are {len(vectors)} vectors but {len(found)} labels")
                self._given = label_keys(found, template), vectors.to(torch.float32)
            self.fitted = self._fit(self.ensemble, found, template, options)
        except BaseException:  # an interruption too
            self._given = before
            raise
        self.candidate_labels, self.hypothesis_template, self.fit_options = found, template, options
        self._warned = False
        self.forget_results()
        return self

    def add_labels(self, labels: Any) -> SurpriseModel:
        """Store more labels after those there are, whose scores of documents stay exactly as they are.

        With an ensemble the new ones are refined beside the old where these were refined. Without one, and once
        documents are added to it, all labels are fitted as one set, as by `set_labels`, which finds more of the new
        labels' documents (docs/guide.md).

        Args:
            labels: as for the pipeline's `candidate_labels`.

        Raises:
            ValueError: no labels are stored, one of these is stored already, or as `inputs.as_labels` and
                `FittedLabels.extended`. Labels then stay as they were.
        """
        if self.candidate_labels is None:
            raise ValueError("no labels are stored that these could be added to: store all with set_labels(labels)")
        both = inputs.as_labels([*self.candidate_labels, *inputs.as_labels(labels)])
        new = both[len(self.candidate_labels) :]
        vectors, given, fitted = self.name_vectors(new, self.hypothesis_template), self._given, self.fitted
        if given is not None:
            self._warn_of_names(new)
            given = label_keys(both, self.hypothesis_template), torch.cat((given[1], vectors.to(given[1])))
        if fitted is not None and self.ensemble is not None:
            fitted = fitted.extended(vectors, self.ensemble, refine=self.fit_options.get("refine", 0))
        self.candidate_labels, self._given, self.fitted = both, given, fitted
        self.forget_results()
        return self

    def stores(self, labels: Sequence[Label]) -> bool:
        """Whether these are the stored labels, in the same order and with the same descriptions."""
        stored = self.candidate_labels
        return stored is not None and _with_texts(labels) == _with_texts(stored)

    def fit_against(self, labels: Sequence[Label], template: inputs.Template, options: dict[str, Any]) -> FittedLabels:
        """Labels against the stored ensemble, with all options of `FittedLabels.fit`: as stored, or those made last."""
        asked_for = self.stores(labels) and template == self.hypothesis_template and options == self.fit_options
        if asked_for and self.fitted is not None:
            return self.fitted
        assert self.ensemble is not None
        queries, key = self.label_vectors(labels, template), (len(self.ensemble), options)
        last = self._last_fit
        if last is not None and last[0] is queries and last[1] is self.ensemble and last[2] == key:
            return last[3]
        fitted = FittedLabels.fit(queries, self.ensemble, **options)
        self._last_fit = queries, self.ensemble, key, fitted
        return fitted

    def _fit(
        self, ensemble: Ensemble | None, labels: list[Label] | None, template: inputs.Template, options: dict[str, Any]
    ) -> FittedLabels | None:
        self._probe = self._encode([PROBE])[0].cpu()
        if ensemble is None or labels is None:
            return None
        return FittedLabels.fit(self.label_vectors(labels, template), ensemble, **options)

    def to_linear(self) -> nn.Sequential:
        """The fitted labels as plain torch: z (n, m) of embeddings (n, d), by normalising and one `nn.Linear`.

        The order of z is the pipeline's decision where the surprise weight is 1; below it, a warning says so.

        Raises:
            ValueError: no labels are fitted.

        References: design fact 2.
        """
        if self.fitted is None:
            raise ValueError("no labels are fitted: call fit_ensemble(documents) and set_labels(labels) first")
        if self.fitted.weight < 1 or self.fitted.estimator == "empirical":
            warnings.warn(
                f"the labels are fitted with weight {self.fitted.weight:.3f} and the {self.fitted.estimator} estimator;"
                " the linear layer gives z, which decides alone only at weight 1 and not with the empirical one",
                stacklevel=2,
            )
        weight, bias = (x.to(self.device) for x in self.fitted.to_linear())
        linear = nn.Linear(weight.shape[1], weight.shape[0], device=weight.device, dtype=weight.dtype)
        with torch.no_grad():
            linear.weight.copy_(weight)
            linear.bias.copy_(bias)
        return nn.Sequential(UnitRows(), linear).eval()


def _with_texts(labels: Sequence[Label]) -> list[tuple[Label, str]]:
    return [(label, inputs.name_and_text(label)[1]) for label in labels]
