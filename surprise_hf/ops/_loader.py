"""Finds the compiled libraries, or defines the same schemas in Python; either way `torch.ops.surprise_hf.*` exists.

The reference is registered as CompositeExplicitAutograd: it answers on every device that has no kernel of its own.
The first CUDA tensor that it meets loads the CUDA kernels, if the GPUs can run them.
"""

from __future__ import annotations

import functools
import importlib.machinery
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from . import _autograd
from . import _reference as ref

OPS = torch.ops.surprise_hf

# The one other copy is csrc/bindings.cpp; tests/ops/test_torch_contract.py holds them equal.
SCHEMAS = (
    "cosine_surprise(Tensor keys, Tensor queries, *, bool normalize=True, str output='score')"
    " -> (Tensor scores, Tensor mean, Tensor std)",
    "cosine_moments(Tensor ensemble, Tensor queries, *, bool normalize=True) -> (Tensor mean, Tensor std)",
    "surprise_from_moments(Tensor keys, Tensor queries, Tensor mean, Tensor std, *, bool normalize=True,"
    " str output='score') -> Tensor",
    "surprise_topk(Tensor keys, Tensor queries, Tensor mean, Tensor std, int k, *, bool normalize=True,"
    " str output='score') -> (Tensor values, Tensor indices)",
    "search_topk(Tensor keys, Tensor queries, Tensor margin, Tensor? scale, int k, *, float? upper=None)"
    " -> (Tensor values, Tensor indices)",
    "gathered_products(Tensor near, Tensor rest, Tensor rows, Tensor queries) -> Tensor",
    "ensemble_update(Tensor(a!) count, Tensor(b!) mean, Tensor(c!) scatter, Tensor batch, *,"
    " bool normalize=True, bool exact=False) -> ()",
    "ensemble_moments(Tensor mean, Tensor covariance, Tensor queries, *, bool normalize=True)"
    " -> (Tensor mean, Tensor variance)",
    "weighted_focal_loss(Tensor keys, Tensor queries, Tensor positive, Tensor? weight=None, *, float gamma=1.0,"
    " float epsilon=0.05, str probability='softplus', float delta=1e-10, bool balanced=True)"
    " -> (Tensor loss, Tensor cross_entropy, Tensor slope)",
    "weighted_focal_loss_backward(Tensor grad, Tensor keys, Tensor queries, Tensor slope, *,"
    " bool need_keys=True, bool need_queries=True)"
    " -> (Tensor grad_keys, Tensor grad_queries)",
)

HOW_TO_BUILD = (
    "surprise_hf runs in reference mode (plain torch: same answers, slower). For the compiled op install a C++17"
    " compiler and run: pip install -U setuptools ninja && pip install --no-build-isolation --no-cache-dir"
    " --force-reinstall --no-deps FROM, the folder or address that surprise_hf was installed from"
)

CAPABILITY = (8, 0)  # of the oldest GPU with the asynchronous copies and bfloat16 products that the kernels are made of

_definitions: torch.library.Library | None = None
_info: dict[str, str | None] = {}
_cuda_pending = False


def _library_path(name: str) -> Path | None:
    """The shared library beside this package, whatever suffix the build gave it; never another install's."""
    paths = (Path(__file__).parents[1] / (name + suffix) for suffix in importlib.machinery.EXTENSION_SUFFIXES)
    return next((path for path in paths if path.is_file()), None)


def _load(name: str) -> tuple[str | None, str | None]:
    """(path, None) when loaded, (None, reason) when not."""
    path = _library_path(name)
    if path is None:
        return None, f"{name} was not built"
    try:
        torch.ops.load_library(str(path))
    except (OSError, ImportError, RuntimeError) as error:
        return None, f"{path.name} does not load: {str(error).splitlines()[0]}"
    return str(path), None


def _too_old() -> str | None:
    """Why the kernels can't run on the GPUs of this process; None where they can."""
    if not torch.cuda.is_available():
        return "torch sees no GPU"
    for device in range(torch.cuda.device_count()):
        capability = torch.cuda.get_device_capability(device)
        if capability < CAPABILITY:
            name, have, need = torch.cuda.get_device_name(device), *(f"{a}.{b}" for a, b in (capability, CAPABILITY))
            return f"{name} has compute capability {have} and the kernels need {need}"
    return None


def _load_cuda() -> bool:
    """Load `_C_cuda` where every GPU can run it; True where this call did.

    Not done on import: a process that has asked a GPU anything can't be forked.
    """
    global _cuda_pending
    if not _cuda_pending:
        return False
    _cuda_pending = False
    reason = _too_old()
    _info["cuda_library"], _info["cuda_reason"] = (None, reason) if reason else _load("_C_cuda")
    return _info["cuda_library"] is not None


def _answer(name: str) -> Callable[..., Any]:
    """The reference of an op, but the kernel from the first CUDA tensor on."""
    reference = getattr(ref, name)

    @functools.wraps(reference)
    def answer(first: torch.Tensor, *args: Any, **options: Any) -> Any:
        if first.is_cuda and _load_cuda():
            return getattr(OPS, name)(first, *args, **options)  # comes back here where there is no kernel
        return reference(first, *args, **options)

    return answer


def load() -> None:
    """Load `_C` (schemas and CPU), register reference, fakes and gradients. Once."""
    global _definitions, _cuda_pending
    if _info:
        return
    path: str | None = None
    reason: str | None = "SURPRISE_HF_REFERENCE is set"
    if os.environ.get("SURPRISE_HF_REFERENCE", "0") in ("", "0"):
        path, reason = _load("_C")
        if path is None:
            warnings.warn(f"{reason}. {HOW_TO_BUILD}", RuntimeWarning, stacklevel=3)
    _cuda_pending = path is not None and torch.version.cuda is not None
    _definitions = torch.library.Library(OPS.name, "FRAGMENT")
    for schema in SCHEMAS:
        if path is None:
            _definitions.define(schema)
        name = schema.split("(")[0]
        _definitions.impl(name, _answer(name), "CompositeExplicitAutograd")
    _autograd.register(OPS.name)
    _info.update(
        implementation="compiled" if path else "reference",
        cpu_library=path,
        cpu_reason=reason,
        cuda_library=None,
        cuda_reason="_C is not loaded" if path is None else "this torch has no CUDA",
        torch=torch.__version__,
    )


def build_info() -> dict[str, str | None]:
    """Which implementation answers and why.

    Returns:
        dict with `implementation` ("compiled" or "reference"), `cpu_library` and `cuda_library` (paths or None),
        `cpu_reason` and `cuda_reason` (why a library is absent, None when it is loaded), `cpu_features` (the
        instruction set the CPU kernels chose, "reference" without them), and `torch` (version).
    """
    _load_cuda()
    features = OPS.cpu_features() if _info["cpu_library"] else "reference"
    return {**_info, "cpu_features": features}
