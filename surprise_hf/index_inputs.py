"""What an index is given to hold and to be searched for, texts or embeddings, as rows."""

from __future__ import annotations

import warnings
from numbers import Real
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from . import index_values, inputs
from .ensemble import check_rows
from .ops import compute_dtype, unit_rows

if TYPE_CHECKING:
    from .model import SurpriseModel

__all__ = ["Given", "read_documents", "read_queries"]

NORMAL = 1e-140, 1e140  # lengths whose squares are far from the ends of float64


class Given(NamedTuple):
    """Documents to add.

    Attributes:
        parts: embeddings, each (b, d).
        rows: row number of each, those without text left out.
        texts: of each, or None.
        read: how many rows there were.
    """

    parts: list[Tensor]
    rows: list[int]
    texts: list[str | None]
    read: int


def read_documents(documents: Any, texts: Any, dim: int | None, model: SurpriseModel | None, batch_size: int) -> Given:
    """Arguments and errors as for `SurpriseIndex.add`; `dim` of the embeddings, where it is known."""
    if inputs.is_array(documents):
        emb = inputs.as_tensor(documents)
        check_rows("documents", emb, dim)
        held = index_values.column("texts", index_values.read_texts(texts), len(emb))
        return Given([emb], list(range(len(emb))), held, len(emb))
    if texts is not None:
        raise ValueError("texts belong to embeddings; documents are texts already")
    _refuse_rows("documents", documents)
    found = Given([], [], [], 0)
    if model is None and not any(True for _ in inputs.iterate(documents)):
        return found
    cut = read = 0
    encoder = _need_model("documents are texts", model)
    for part in encoder.embed_documents(documents, batch_size):
        found.parts.append(part.emb)
        found.rows.extend(part.rows)
        found.texts.extend(part.texts)
        cut += part.cut
        read += part.read
    inputs.warn_cut(cut, len(found.rows), "documents", encoder.max_seq_length)
    if len(found.rows) < read:
        warnings.warn(f"{read - len(found.rows):,} of {read:,} documents have no text and are left out", stacklevel=3)
    return found._replace(read=read)


def read_queries(name: str, queries: Any, dim: int | None, model: SurpriseModel | None) -> tuple[bool, np.ndarray]:
    """Whether it is one query; unit rows (b, d) float64. Errors as for `SurpriseIndex.search`."""
    if inputs.is_array(queries):
        emb = inputs.as_tensor(queries)
        single = emb.dim() == 1
        emb = emb.unsqueeze(0) if single else emb
    else:
        single, texts = isinstance(queries, str), _texts(name, queries)
        if not texts:
            return False, np.empty((0, dim or 0))
        encoder = _need_model(f"{name} are texts", model)
        emb, cut = encoder.embed(texts, show_progress_bar=False)
        inputs.warn_cut(cut, len(texts), name, encoder.max_seq_length)
    rows = emb.detach().to("cpu", compute_dtype(emb.dtype)).numpy().astype(np.float64)
    # quicker for one query than NumPy's norm, and does not warn where squares are infinite
    length = np.sqrt(np.einsum("ij,ij->i", rows, rows)) if rows.ndim == 2 else np.array([np.nan])
    low, high = NORMAL
    if rows.shape[-1] == dim and emb.is_floating_point() and ((length > low) & (length < high)).all():
        return single, rows / length[:, None]
    check_rows(name, emb, dim)
    return single, unit_rows(torch.from_numpy(rows)).numpy()


def _texts(name: str, queries: Any) -> list[str]:
    _refuse_rows(name, queries)
    try:
        texts = [inputs.text_of(row, i) for i, row in enumerate(inputs.iterate(queries))]
    except ValueError as error:
        raise ValueError(f"{name}, as texts: {error}") from error
    blank = [i for i, text in enumerate(texts) if inputs.is_blank(text)]
    if blank:
        raise ValueError(f"{name}: row {blank[0]} has no text to search for")
    return [str(text) for text in texts]


def _refuse_rows(name: str, given: Any) -> None:
    """Embeddings one by one in a list, which would be taken for texts."""
    first: Any = given[0] if isinstance(given, (list, tuple)) and given else None
    numbers = isinstance(first, (list, tuple)) and all(isinstance(x, Real) for x in first)
    if numbers or (inputs.is_array(first) and first.ndim):
        raise ValueError(
            f"{name} come as a {type(given).__name__} of embeddings: put them into one array (rows, dim), as by"
            " np.array, or torch.stack for tensors"
        )


def _need_model(what: str, model: SurpriseModel | None) -> SurpriseModel:
    if model is None:
        raise ValueError(f"{what}, and this index has no model: pass embeddings, or SurpriseIndex(model=...)")
    return model
