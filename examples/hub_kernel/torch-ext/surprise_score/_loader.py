"""In place of the package's loader: kernel-builder made the library, and `_ops.py`, which knows its namespace."""

from __future__ import annotations

import torch

from . import _autograd
from . import _reference as ref
from ._ops import ops as OPS

_fallback: torch.library.Library | None = None


def load() -> None:
    """Register fakes and gradients, and the reference for devices that this build has no kernels for. Once."""
    global _fallback
    if _fallback is None:
        _fallback = torch.library.Library(OPS.name, "FRAGMENT")
        for name, function in vars(ref).items():
            if not name.startswith("_") and hasattr(OPS, name):
                _fallback.impl(name, function, "CompositeExplicitAutograd")
        _autograd.register(OPS.name)


def build_info() -> dict[str, str]:
    """The library's namespace, and torch's version."""
    return {"implementation": "compiled", "namespace": OPS.name, "torch": torch.__version__}
