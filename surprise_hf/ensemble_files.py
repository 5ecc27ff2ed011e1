"""The file of an Ensemble: safetensors, with what it is in the metadata. Replaces whole or not, and no pickle."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from .formats import check_version

__all__ = ["FORMAT", "VERSION", "read", "write"]

FORMAT, VERSION = "surprise_hf.ensemble", 1


def write(path: str | os.PathLike, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write tensors and what they are; what was there stays where that fails.

    Raises:
        OSError: it can't be written, or there is something else than a file.
    """
    from safetensors.torch import save

    if Path(path).exists() and not Path(path).is_file():
        raise FileExistsError(f"{path} is a folder or a device, which no file replaces")
    metadata = {"format": FORMAT, "version": str(VERSION), **metadata}
    data = save({name: x.cpu().contiguous() for name, x in tensors.items()}, metadata=metadata)
    partial = Path(f"{os.fspath(path)}.partial")
    try:
        partial.write_bytes(_in_order(data))
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def _in_order(data: bytes) -> bytes:
    """A safetensors file with its metadata sorted: else its bytes differ each time, and the Hub takes it for new."""
    length = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:length])
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + data[length:]


def read(path: Path, device: str) -> tuple[dict[str, str], dict[str, Tensor]]:
    """Metadata and tensors of a file of a format this version knows.

    Raises:
        FileNotFoundError: no such file.
        ValueError: damaged, of something else, or of a newer format.
    """
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        raise FileNotFoundError(f"no ensemble file at {path}")
    try:
        with safe_open(path, framework="pt", device=device) as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    except SafetensorError as error:
        raise ValueError(f"{path} is not a safetensors file, or it is damaged: {error}") from error
    if metadata.get("format") != FORMAT:
        raise ValueError(f"{path} is a safetensors file, but not an ensemble saved by surprise_hf")
    try:
        check_version(metadata.get("version"), VERSION)
    except ValueError as error:
        raise ValueError(f"{path} can't be read: {error}") from error
    return metadata, tensors
