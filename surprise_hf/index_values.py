"""Ids, texts and metadata of an index's documents, checked when they are added: at saving they are embedded already."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from numbers import Integral
from typing import Any, TypeAlias

import numpy as np

from . import inputs

__all__ = ["Id", "as_json", "check_running", "column", "id_after", "new_ids", "read_ids", "read_metadata", "read_texts"]

Id: TypeAlias = int | str

LOWEST, HIGHEST = -(2**63), 2**63 - 1  # an int64 column
PLAIN = {bool, int, float, type(None)}


def read_ids(ids: Any) -> list[Id]:
    """Ids as a list of int or str.

    Raises:
        ValueError: no list, or what is no id or one that a file can't hold; the message names the row.
    """
    found = _listed("ids", ids)
    if not set(map(type, found)) <= {int, str}:  # of a million in no time
        found = [_id(i, row) for row, i in enumerate(found)]
    for row, i in enumerate(found):
        if isinstance(i, str):
            if not _is_plain(i):
                _text(i, f"ids[{row}]")
        elif not LOWEST <= i <= HIGHEST:
            raise ValueError(f"ids[{row}] is {i}, and an integer id must fit 64 bits: pass str(id), of every document")
    return found


def new_ids(given: list[Id] | None, count: int, start: int, used: Container[Id], first: Sequence[Id]) -> list[Id]:
    """Ids of so many new documents.

    Args:
        given: of `read_ids`; None for the numbers from `start` on.
        count: of documents.
        start: the first running number.
        used: ids that are in use.
        first: one of them, or none: of its kind all must be.

    Raises:
        ValueError: a wrong number or mixed types of ids, or one that is in use.
    """
    new: list[Id] = list(range(start, start + count)) if given is None else column("ids", given, count)
    if len({type(i) for i in (*new, *first)}) > 1:
        raise ValueError("ids must be all int or all str, those of the index included")
    seen: set[Id] = set()
    for i in new:
        if i in used or i in seen:
            raise ValueError(f"the id {i!r} is in use: ids must differ; remove that document first to replace it")
        seen.add(i)
    return new


def id_after(start: int, ids: Iterable[Id]) -> int:
    """The first running number from `start` on that is above all of these ids, where they are numbers."""
    return max(start, max((i + 1 for i in ids if isinstance(i, int)), default=start))


def check_running(start: int, count: int) -> None:
    """Refuse running ids that would need more than 64 bits."""
    if start + count - 1 > HIGHEST:
        raise ValueError(f"{count:,} running ids above {start - 1} don't fit 64 bits: pass ids")


def column(name: str, values: list[Any] | None, count: int) -> list[Any]:
    """`values`, one for each of so many documents; of None, Nones.

    Raises:
        ValueError: another number of them.
    """
    if values is None:
        return [None] * count
    if len(values) != count:
        raise ValueError(f"{name} must have one entry for each of the {count:,} documents, got {len(values):,}")
    return values


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
    # the letters of a string and the keys of a dict, or of a table of pandas or polars, are no such list
    other = isinstance(values, (str, bytes, dict, set, frozenset)) or hasattr(values, "columns")
    if other or not isinstance(values, Iterable):
        raise ValueError(f"{name} must be a list with one entry for each document, got {type(values).__name__}")
    return list(values)


def _id(value: Any, row: int) -> Id:
    if isinstance(value, bool) or not isinstance(value, (str, Integral)):
        raise ValueError(f"ids[{row}] must be an int or a str, got {type(value).__name__}")
    return inputs.own(value) if isinstance(value, str) else int(value)


def _text(text: str, name: str) -> str:
    inputs.check_whole(name, text, "no file can hold")
    return inputs.own(text)
