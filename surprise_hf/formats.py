"""Which files this version reads: those of its own format version, and every older one.

A field that came later has, in a file without it, the value that everything had before it came. Such a field does not
raise the version; what an older reader would misread does. A newer version is refused.
"""

from __future__ import annotations

import re
from typing import Any

__all__ = ["check_version"]


def check_version(found: Any, known: int) -> None:
    """Refuse the format of a later version.

    Args:
        found: in a file, a whole number or its digits.
        known: the newest that the caller reads.

    Raises:
        ValueError: it is newer, or no version.
    """
    if isinstance(found, bool) or not re.fullmatch(r"\d{1,9}", str(found)):
        raise ValueError(f"its format version is {found!r}, which is no version")
    if int(found) > known:
        raise ValueError(f"it has format {found}, newer than the {known} known here: upgrade surprise_hf")
