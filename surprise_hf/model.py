"""SurpriseModel: a SentenceTransformer that carries its ensemble, its labels and their template."""

from __future__ import annotations

import os
import re
import sys
import threading
import warnings
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from sentence_transformers import SentenceTransformer
from torch import Tensor, nn
from transformers.utils import logging as transformers_logging

from . import inputs, windows
from .ensemble import Ensemble, check_rows
from .fitted import FittedLabels
from .inputs import BATCH_SIZE, Label
from .model_files import PROBE, ModelFiles, in_subfolder
from .ops import unit_rows

__all__ = ["SurpriseModel"]

SURROGATE = re.compile("[\ud800-\udfff]")
CHUNK = 64  # batches encoded together where documents stream: sorting by length needs some to choose from

_ENCODER_ARGUMENTS = (
    "backend",
    "cache_folder",
    "config_kwargs",
    "default_prompt_name",
    "model_card_data",
    "processor_kwargs",
    "prompts",
    "similarity_fn_name",
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
        candidate_labels: labels stored with the model, or None. Set them with `set_labels`.
        hypothesis_template: the text that a label is put into, or several, whose embeddings are averaged.
        fitted: the stored labels frozen against the ensemble, or None while either is missing.
        fit_options: the scoring options that `fitted` was made with.
        encoder_name: Hub id of the encoder where known.
        report: what the model card tells beside: training arguments and evaluation results (`record_results`).
        long_texts: "truncate" (what the encoder does with a text longer than its window) or "window": embed it in
            pieces and take their mean, weighted by tokens. Saved with the ensemble and labels.

    Examples:
        >>> model = SurpriseModel("sentence-transformers/all-MiniLM-L6-v2")
        >>> model.fit_ensemble(documents)
        >>> model.set_labels(["sports", "politics"])
        >>> model.save_pretrained("my-model")

    References: design facts 1 and 2; paper section 2.
    """

    input_modalities = ("text",)  # Pipeline.__repr__ asks for it, and for can_generate
    _load_error: ClassVar[tuple[str, Exception] | None] = None

    def __init__(self, model_name_or_path: str | None = None, **kwargs: Any) -> None:
        super().__init__(model_name_or_path, **kwargs)
        self._full: list[str] | None = None
        self._lock = _Lock()
        self._label_vectors: tuple[Any, Tensor] | None = None
        self.eval()
        if model_name_or_path:
            names = ("token", "cache_folder", "revision", "local_files_only")
            self._load_surprise(model_name_or_path, {name: kwargs[name] for name in names if name in kwargs})

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
            # transformers.pipeline swallows it and goes on with a bare BertModel: the pipeline will look here
            SurpriseModel._load_error = name, told
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
        return model

    def train(self, mode: bool = True) -> SurpriseModel:
        """As in every module. Label vectors kept so far are dropped: weights may change now, and not every optimizer
        tells (a fused AdamW leaves `_version` as it was).
        """
        if mode:
            self._label_vectors = None
        return super().train(mode)

    def can_generate(self) -> bool:
        """No: it encodes."""
        return False

    @property
    def hf_device_map(self) -> dict[str, Any]:
        """Placement by accelerate, of the transformers model inside; AttributeError where there is none, as there."""
        return self.transformers_model.hf_device_map  # type: ignore[union-attr, return-value]

    # --- embedding -----------------------------------------------------------------------------------------------

    @property
    def _default_prompt(self) -> str:
        return (self.prompts.get(self.default_prompt_name) or "") if self.default_prompt_name else ""

    @property
    def dim(self) -> int:
        """d, the length of an embedding."""
        dim = self.get_embedding_dimension()
        return int(dim) if dim is not None else self._encode([PROBE]).shape[1]

    def preprocess(self, inputs: Sequence[Any], prompt: str | None = None, **kwargs: Any) -> dict[str, Any]:
        """As `SentenceTransformer.preprocess`; notes which texts fill the whole window, to count those cut off."""
        features = super().preprocess(inputs, prompt=prompt, **kwargs)
        mask, limit = features.get("attention_mask"), self.max_seq_length
        if self._full is not None and limit and mask is not None and mask.dim() == 2 and mask.shape[1] >= limit:
            full = (mask.sum(dim=1) >= limit).tolist()
            self._full += [text for text, is_full in zip(inputs, full, strict=True) if is_full]
        return features

    def embed(
        self,
        texts: Sequence[str],
        *,
        batch_size: int = BATCH_SIZE,
        show_progress_bar: bool | None = None,
        rows: Sequence[int] | None = None,
    ) -> tuple[Tensor, int]:
        """`encode` as a tensor, checked.

        Args:
            texts: n strings.
            batch_size: of the encoder.
            show_progress_bar: None shows it on a terminal for more than one batch.
            rows: what to call each text in an error message; 0, 1, ... by default.

        Returns:
            (n, d) float32 on the model's device (the CPU in place of one without float64), equal to what
            `SentenceTransformer.encode` gives; and how many texts were longer than the encoder's window.

        Raises:
            ValueError: a text holds half of a surrogate pair, or an embedding is not finite; the message names the row
                and its text.
        """
        for at, text in enumerate(texts):
            if not text.isascii() and SURROGATE.search(text):
                raise ValueError(
                    f"document {at if rows is None else rows[at]} ({text[:60]!r}) holds half of a surrogate pair, which"
                    " no tokenizer reads; mend it, as by text.encode('utf-16', 'surrogatepass').decode('utf-16',"
                    " 'replace')"
                )
        if show_progress_bar is None:
            show_progress_bar = len(texts) > batch_size and progress_wanted()
        encode = self._encode_windows if windows.check_long_texts(self.long_texts) == "window" else self._encode
        with self._lock:  # truncation is a state of the tokenizer, which counting and splitting change
            self._full = []
            try:
                emb = encode(list(texts), batch_size=batch_size, show_progress_bar=show_progress_bar)
                cut = self._count_longer(self._full) if self._full else 0
            finally:
                self._full = None
        bad = (~torch.isfinite(emb).all(dim=1)).nonzero().flatten().tolist()
        if bad:
            row = bad[0] if rows is None else rows[bad[0]]
            raise ValueError(
                f"the embedding of document {row} ({texts[bad[0]][:60]!r}) is not finite, and {len(bad)} of"
                f" {len(texts)} are not: try dtype=torch.float32, or check the weights of the encoder"
            )
        return emb, cut

    def _encode(self, texts: list[str], show_progress_bar: bool = False, **kwargs: Any) -> Tensor:
        if not texts:
            return torch.empty(0, self.dim, device=self.device)
        emb = self.encode(texts, convert_to_tensor=True, show_progress_bar=show_progress_bar, **kwargs)
        # encode runs in inference mode, whose tensors can't be stored and trained against later: hence the copy
        return emb.to("cpu" if emb.device.type == "mps" else emb.device, torch.float32, copy=True)

    def _encode_windows(self, texts: list[str], **kwargs: Any) -> Tensor:
        limit = self.max_seq_length
        if not limit:
            return self._encode(texts, **kwargs)
        pieces = [windows.split(self.tokenizer, text, limit, self._default_prompt) for text in texts]
        owner = [row for row, parts in enumerate(pieces) for _ in parts]
        flat = [part for parts in pieces for part in parts]
        emb = self._encode([piece for piece, _ in flat], **kwargs)
        if len(flat) == len(texts):
            return emb
        return windows.mean_of_pieces(emb, owner, [tokens for _, tokens in flat], len(texts))

    def _count_longer(self, texts: list[str]) -> int:
        """How many of `texts`, each of which fills the window, really are longer than it."""
        limit = int(self.max_seq_length or 0)
        prompt = self._default_prompt

        def longer(parts: list[str]) -> list[bool]:
            return [len(ids) > limit for ids in self.tokenizer(parts, verbose=False)["input_ids"]] if parts else []

        head = 8 * limit  # characters: nearly always enough to tell, and cheap for a text of any length
        full = [prompt + text for text in texts]
        found = longer([text[:head] for text in full])
        unsure = [text for text, is_longer in zip(full, found, strict=True) if not is_longer and len(text) > head]
        return sum(found) + sum(longer(unsure))

    def label_vectors(self, labels: Sequence[Label], template: inputs.Template) -> Tensor:
        """Vectors (m, d) of labels: those given to `set_labels` as they are, or else those of their names."""
        if self._given is not None and self._given[0] == inputs.hypotheses(labels, template):
            return self._given[1]
        return self.name_vectors(labels, template)

    def name_vectors(self, labels: Sequence[Label], template: inputs.Template) -> Tensor:
        """Embeddings (m, d) of the labels in the template, of several the mean of the unit rows.

        The last set asked for is kept until a weight changes.
        """
        # every in-place change (an optimizer's step, load_state_dict) raises a tensor's _version
        weights = [(p.data_ptr(), 0 if p.is_inference() else p._version) for p in self.parameters()]  # noqa: SLF001
        texts = inputs.hypotheses(labels, template)
        key = (tuple(texts), self._default_prompt, tuple(weights))
        if self._label_vectors is None or self._label_vectors[0] != key:
            vectors, cut = self.embed(texts, show_progress_bar=False)
            inputs.warn_cut(cut, len(vectors), "labels", self.max_seq_length)
            if not isinstance(template, str):
                vectors = unit_rows(vectors).reshape(len(template), len(labels), -1).mean(dim=0)
            self._label_vectors = key, vectors
        return self._label_vectors[1]

    # --- ensemble and labels -------------------------------------------------------------------------------------

    def fit_ensemble(
        self, documents: Any, *, batch_size: int = BATCH_SIZE, reservoir: int = 4096, update: bool = False
    ) -> SurpriseModel:
        """Make these documents the ensemble, in one pass over them: a million need no more memory than a thousand.

        Args:
            documents: any kind of input that the pipeline takes, generators included; blank ones are left out.
            batch_size: of the encoder.
            reservoir: rows kept as a sample (see `Ensemble`).
            update: add to the ensemble there is rather than replace it.

        Returns:
            self; stored labels are fitted anew.

        Raises:
            ValueError: no document with text, a wrong type (the message names the row), an embedding that is not
                finite. The ensemble then stays as it was.
        """
        from tqdm.auto import tqdm

        if update and self.ensemble is not None:
            ensemble = Ensemble(self.ensemble.dim, self.ensemble.reservoir_size, encoder=self.encoder_name)
            ensemble.merge(self.ensemble)
        else:
            ensemble = Ensemble(self.dim, reservoir, encoder=self.encoder_name)
        total = len(documents) if hasattr(documents, "__len__") else None
        cut, before = 0, len(ensemble)
        with tqdm(total=total, desc="Documents", unit="doc", disable=not progress_wanted()) as bar:
            for rows, texts, read in inputs.chunks(documents, CHUNK * batch_size):
                emb, more = self.embed(texts, batch_size=batch_size, show_progress_bar=False, rows=rows)
                ensemble.update(emb)
                cut += more
                bar.update(read)
        if len(ensemble) == before:
            raise ValueError("none of the documents has any text, so there is nothing to fit an ensemble on")
        inputs.warn_cut(cut, len(ensemble) - before, "documents", self.max_seq_length)
        self.set_ensemble(ensemble)
        return self

    def set_ensemble(self, ensemble: Ensemble | None) -> None:
        """Store an ensemble of embeddings that this encoder made, and fit the stored labels to it.

        Raises:
            ValueError: another dimension.
        """
        if ensemble is not None and ensemble.dim != self.dim:
            raise ValueError(f"the ensemble has {ensemble.dim} dimensions, but this encoder gives {self.dim}")
        self.fitted = self._fit(ensemble, self.candidate_labels, self.hypothesis_template, self.fit_options)
        self.ensemble = ensemble

    def set_labels(
        self, labels: Any, hypothesis_template: Any = None, *, vectors: Tensor | None = None, **options: Any
    ) -> SurpriseModel:
        """Store labels, and fit them if there is an ensemble.

        Args:
            labels: as for the pipeline's `candidate_labels`; None takes them away.
            hypothesis_template: None keeps the one there is.
            vectors: (m, d) floating, in place of the labels' embeddings (see `few_shot.fit_labels`).
            options: of `FittedLabels.fit` (weight, n_cross, estimator, refine).

        Raises:
            ValueError: as `inputs.as_labels`, `inputs.check_template` and `FittedLabels.fit`.
        """
        template = inputs.check_template(
            self.hypothesis_template if hypothesis_template is None else hypothesis_template
        )
        found = None if labels is None else inputs.as_labels(labels)
        options = {name: value for name, value in options.items() if value is not None}
        before, self._given = self._given, None
        try:
            if found is not None and vectors is not None:
                check_rows("vectors", vectors, self.dim)
                if len(vectors) != len(found):
                    raise ValueError(f"there are {len(vectors)} vectors but {len(found)} labels")
                self._given = inputs.hypotheses(found, template), vectors.to(torch.float32)
            self.fitted = self._fit(self.ensemble, found, template, options)
        except Exception:
            self._given = before
            raise
        self.candidate_labels, self.hypothesis_template, self.fit_options = found, template, options
        return self

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


class _Lock:
    """A lock that every copy of its owner has for itself; a plain one can be neither copied nor pickled."""

    def __init__(self) -> None:
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def __reduce__(self) -> tuple[type[_Lock], tuple[()]]:
        return _Lock, ()


def progress_wanted() -> bool:
    """Standard error is a terminal, and the progress bars of transformers are not turned off."""
    return sys.stderr.isatty() and transformers_logging.is_progress_bar_enabled()
