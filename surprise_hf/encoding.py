"""TextEncoder: a SentenceTransformer whose embeddings are checked, and which knows what it could not read."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence, Sized
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from sentence_transformers import SentenceTransformer
from torch import Tensor, nn
from transformers.utils import logging as transformers_logging

from . import inputs, windows
from .inputs import BATCH_SIZE
from .locks import OwnLock

PROBE = "The quick brown fox jumps over the lazy dog."
CHUNK = 64  # batches encoded together where documents stream: sorting by length needs some to choose from


class Embedded(NamedTuple):
    """Some documents of a stream.

    Attributes:
        rows: the row numbers of those with text.
        texts: theirs.
        emb: (len(rows), d) float32.
        cut: how many of them were longer than the encoder's window.
        read: how many rows were read, those without text among them.
    """

    rows: list[int]
    texts: list[str]
    emb: Tensor
    cut: int
    read: int


class TextEncoder(SentenceTransformer):
    """The encoder of a `SurpriseModel`."""

    def __init__(self, model_name_or_path: str | None = None, **kwargs: Any) -> None:
        super().__init__(model_name_or_path, **kwargs)
        self._long_texts = "truncate"
        self._full: list[str] | None = None
        self._lock = OwnLock()

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
            inputs.check_whole(f"document {at if rows is None else rows[at]}", text)
        if show_progress_bar is None:
            show_progress_bar = len(texts) > batch_size and progress_wanted()
        encode = self._encode_windows if self._long_texts == "window" else self._encode
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

    def embed_documents(self, documents: Any, batch_size: int = BATCH_SIZE) -> Iterator[Embedded]:
        """The documents of any container that the pipeline takes, read and embedded some at a time, under one bar.

        Raises:
            ValueError: as `embed`, and a document of a wrong type; the message names the row.
        """
        from tqdm.auto import tqdm

        total = len(documents) if isinstance(documents, Sized) and not isinstance(documents, str) else None
        few = total is not None and total <= batch_size
        with tqdm(total=total, desc="Documents", unit="doc", disable=few or not progress_wanted()) as bar:
            for rows, texts, read in inputs.chunks(documents, CHUNK * batch_size):
                emb, cut = self.embed(texts, batch_size=batch_size, show_progress_bar=False, rows=rows)
                bar.update(read)
                yield Embedded(rows, texts, emb, cut, read)

    def _encode(self, texts: list[str], show_progress_bar: bool = False, **kwargs: Any) -> Tensor:
        if not texts:
            return torch.empty(0, self.dim, dtype=torch.float32, device=self.device)
        with _without_autocast(self):
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


@contextmanager
def _without_autocast(model: nn.Module) -> Iterator[None]:
    """accelerate puts autocast around `forward` for bf16 and fp16 and leaves it there: embeddings would not be those of
    the model that is saved.
    """
    own = vars(model)
    wrapped = own.pop("forward", None) if "_original_forward" in own else None
    try:
        yield
    finally:
        if wrapped is not None:
            own["forward"] = wrapped


def progress_wanted() -> bool:
    """Standard error is a terminal, and the progress bars of transformers are not turned off."""
    return sys.stderr.isatty() and transformers_logging.is_progress_bar_enabled()
