"""What the files of an index can hold. It is refused when documents are added: at saving they are embedded already."""

from __future__ import annotations

from collections.abc import Iterable, Sized
from typing import Any

import numpy as np

from . import inputs
from .columns import Id, column

__all__ = ["check_running", "read_ids", "read_metadata", "read_texts"]

LOWEST, HIGHEST = -(2**63), 2**63 - 1  # an int64 column
PLAIN = {bool, int, float, type(None)}


def read_ids(ids: Any) -> list[Id] | None:
    """Ids as a list of int or str; None as it is.

    Raises:
        ValueError: no list, or an id that a file can't hold; the message names the row.
    """
    found = None if ids is None else inputs.plain_ids(_listed("ids", ids))
    for row, i in enumerate(found or ()):
        if isinstance(i, str):
            if not _is_plain(i):
                _text(i, f"ids[{row}]")
        elif not LOWEST <= i <= HIGHEST:
            raise ValueError(f"ids[{row}] is {i}, and an integer id must fit 64 bits: pass str(id), of every document")
    return found


def check_running(start: int, count: int) -> None:
    """Refuse running ids that would need more than 64 bits."""
    if start + count - 1 > HIGHEST:
        raise ValueError(f"{count:,} running ids above {start - 1} don't fit 64 bits: pass ids")


def read_texts(texts: Any) -> list[str | None] | None:
    """Texts as a list, missing values as None; None as it is.

    Raises:
        ValueError: no list, or what is no text; the message names the row.
    """
    if texts is None:
        return None
    listed = _listed("texts", texts)
    try:
        found = [inputs.text_of(text, row) for row, text in enumerate(listed)]
    except ValueError as error:
        raise ValueError(f"texts: {error}") from error
    return [text if text is None or _is_plain(text) else _text(text, f"texts[{row}]") for row, text in enumerate(found)]


def read_metadata(metadata: Any) -> list[Any] | None:
    """Metadata as a list, each as `as_json`; None as it is.

    Raises:
        TypeError, ValueError: no list, or what JSON can't hold; the message names the row and the key.
    """
    if metadata is None:
        return None
    rows = enumerate(_listed("metadata", metadata))
    return [data if _is_plain(data) else as_json(data, f"metadata[{row}]") for row, data in rows]


def as_json(value: Any, name: str) -> Any:
    """A copy that JSON gives back as it is: NumPy's numbers as Python's, tuples as lists.

    Raises:
        TypeError: another type, or a key that is no string.
        ValueError: a string that UTF-8 can't hold.
    """
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, str):
                raise TypeError(f"{name} has the key {key!r}, which JSON would make a string: pass {str(key)!r}")
        return {
            key if _is_plain(key) else _text(key, name): one if _is_plain(one) else as_json(one, f"{name}[{key!r}]")
            for key, one in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [one if _is_plain(one) else as_json(one, f"{name}[{place}]") for place, one in enumerate(value)]
    if isinstance(value, np.generic) and value.dtype.kind in "biuf":
        value = value.item()
    if isinstance(value, str):
        return _text(value, name)
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, (int, float)):  # an Enum of them
        return int(value) if isinstance(value, int) else float(value)
    raise TypeError(f"{name} is a {type(value).__name__}, which JSON can't hold: pass a number or a string for it")


def _is_plain(value: Any) -> bool:
    """It is as files hold it: known in no time, as nearly all are."""
    return type(value) in PLAIN or (type(value) is str and value.isascii())


def _listed(name: str, values: Any) -> list[Any]:
    values = inputs.plain(values)
    if isinstance(values, Iterable) and not isinstance(values, Sized):
        values = list(values)
    return column(name, values, len(values) if isinstance(values, Sized) else 0)


def _text(text: str, name: str) -> str:
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise ValueError(
                f"{name} ({text[:60]!r}) holds half of a surrogate pair, which no file can hold; mend it, as by"
                " text.encode('utf-16', 'surrogatepass').decode('utf-16', 'replace')"
            ) from None
    return inputs.own(text)
