"""Which files this version reads: those of its own format version, and every older one.

A field that came later has, in a file without it, the value that everything had before it came. Such a field does not
raise the version; what an older reader would misread does. A newer version is refused.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

__all__ = ["INDEX", "check_version", "format_of"]

INDEX = "surprise_hf.index"  # of the folders that a model must not be written to


def check_version(found: Any, known: int) -> None:
    """Refuse the format of a later version.

    Args:
        found: in a file, a whole number or its digits.
        known: the newest that the caller reads.

    Raises:
        ValueError: it is newer, or no version.
    """
    if not re.fullmatch(r"\d{1,9}", str(found)):
        raise ValueError(f"its format version is {found!r}, which is no version")
    if int(found) > known:
        raise ValueError(f"it has format {found}, newer than the {known} known here: upgrade surprise_hf")


def format_of(config: Path) -> str | None:
    """The format that a file of JSON names, "" where it names none; None where there is no such file."""
    if not config.is_file():
        return None
    try:
        return str(json.loads(config.read_text(encoding="utf-8"))["format"])
    except (ValueError, KeyError, TypeError):
        return ""
