"""An encoder in any form that a caller may give it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .model import SurpriseModel

__all__ = ["as_model"]


def as_model(given: Any) -> SurpriseModel:
    """A `SurpriseModel` of one, of a SentenceTransformer (both share the modules), or of a folder or Hub id.

    Raises:
        OSError, ValueError: as `SurpriseModel.from_pretrained`.
        TypeError: anything else.
    """
    from .model import SurpriseModel

    if isinstance(given, (str, os.PathLike)):
        return SurpriseModel.from_pretrained(given)
    if not hasattr(given, "encode"):
        raise TypeError(f"model must be a SurpriseModel, SentenceTransformer or name, got {type(given).__name__}")
    return SurpriseModel.from_encoder(given)
