"""What similarities are compared with, in every form that a caller may give it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from . import inputs
from .ensemble import Ensemble, check_rows
from .same_encoder import same_name

if TYPE_CHECKING:
    from .model import SurpriseModel

__all__ = ["as_context", "check_context", "check_ensemble"]


def as_context(
    given: Any,
    model: SurpriseModel | None = None,
    *,
    dim: int | None = None,
    dim_of: str = "this encoder gives",
    batch_size: int = inputs.BATCH_SIZE,
) -> Tensor | Ensemble:
    """An ensemble to compare with, checked.

    Args:
        given: an `Ensemble` or the path of one (str or PathLike), embeddings (e, d) as a floating tensor or array, or
            texts in any form that the pipeline takes; blank ones are left out.
        model: embeds texts, and tells dimension and encoder; None where there is none.
        dim, dim_of: without a model: d where it is known, and whose it is, for the message.
        batch_size: of the encoder.

    Returns:
        embeddings (e, d), e >= 1, or an `Ensemble` (the one given, not a copy).

    Raises:
        FileNotFoundError: no file at the path.
        TypeError: embeddings are not floating.
        ValueError: as `check_context` and `Ensemble.load`; texts without a model, of a wrong type (the message names
            the row), or none with text.
    """
    encoder = None if model is None else model.encoder_name
    dim = dim if model is None else model.dim
    whose = "the ensemble"
    if isinstance(given, (str, os.PathLike)):
        whose, given = f"the ensemble of {os.fspath(given)}", Ensemble.load(given, dim=dim, encoder=encoder)
    elif inputs.is_array(given):
        given = inputs.as_tensor(given)
    elif not isinstance(given, Ensemble):
        given = _embedded(given, model, batch_size)
    check_context(given, dim, encoder, dim_of)
    if model is not None and isinstance(given, Ensemble) and given.probe is not None:
        model.check_probe(given.probe, whose)
    return given


def check_context(
    context: Tensor | Ensemble,
    dim: int | None,
    encoder: str | None = None,
    dim_of: str = "this encoder gives",
    similarity: str = "cosine",
) -> None:
    """Refuse what gives similarities of embeddings of dimension `dim`, made by `encoder`, no context.

    Raises:
        TypeError: neither an `Ensemble` nor a floating tensor.
        ValueError: another dimension or encoder (where both are known), an `Ensemble` with normalize=False for cosines
            or True for anything else, rows that are not finite, or no documents.
    """
    if not isinstance(context, Ensemble):
        check_rows("ensemble", context)
    found = context.dim if isinstance(context, Ensemble) else context.shape[1]
    if dim is not None and found != dim:
        raise ValueError(f"the ensemble has {found} dimensions, but {dim_of} {dim}")
    if isinstance(context, Ensemble):
        if not same_name(encoder, context.encoder):
            raise ValueError(
                f"the ensemble is of the encoder {context.encoder!r}, not of {encoder!r}: build one with {encoder!r},"
                f" or use {context.encoder!r}"
            )
        wanted = similarity == "cosine"
        if context.normalize != wanted:
            raise ValueError(
                f"similarity={similarity!r} needs an Ensemble with normalize={wanted}, this one has"
                f" normalize={context.normalize}"
            )
    if not len(context):
        raise ValueError("the ensemble holds no documents, so nothing can be a surprise; give at least one")


def check_ensemble(queries: Any, ensemble: Any, similarity: str = "cosine") -> tuple[Tensor, Tensor | Ensemble]:
    """Queries, and an ensemble that can serve them, with tensors for arrays; errors as `check_context`, and of rows
    that are none.
    """
    queries, ensemble = inputs.embeddings(queries), inputs.embeddings(ensemble)
    check_rows("queries", queries)
    check_context(ensemble, queries.shape[1], dim_of="queries have", similarity=similarity)
    return queries, ensemble


def _embedded(documents: Any, model: SurpriseModel | None, batch_size: int) -> Tensor:
    """Embeddings (e, d) of the documents with text, e >= 1."""
    if model is None:
        raise ValueError("the ensemble holds texts, and there is no model to embed them: pass their embeddings")
    parts, cut = [], 0
    try:
        for part in model.embed_documents(documents, batch_size):
            parts.append(part.emb)
            cut += part.cut
    except ValueError as error:
        raise ValueError(f"the ensemble, as texts: {error}") from error
    emb = torch.cat(parts) if parts else torch.empty(0)
    if not len(emb):
        raise ValueError("the ensemble holds no document with text")
    inputs.warn_cut(cut, len(emb), "documents of the ensemble", model.max_seq_length)
    return emb
