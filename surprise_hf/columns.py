"""What goes with the documents of an index, one entry for each: ids, texts and metadata, checked."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from typing import Any, TypeAlias

from . import inputs

__all__ = ["Id", "column", "id_after", "new_ids"]

Id: TypeAlias = int | str


def column(name: str, values: Any, count: int) -> list[Any]:
    """`values` as a list of one for each document; of None, Nones.

    Raises:
        ValueError: another number of them, or what would give the letters of a string, the keys of a dict.
    """
    if values is None:
        return [None] * count
    unordered = isinstance(values, (str, bytes, dict, set, frozenset)) or hasattr(values, "columns")  # pandas, polars
    if unordered or not isinstance(values, Iterable):
        raise ValueError(f"{name} must be a list with one entry for each document, got {type(values).__name__}")
    found = list(inputs.plain(values))
    inputs.check_length(name, found, count)
    return found


def new_ids(given: Iterable[Id] | None, count: int, start: int, used: Container[Id], first: Sequence[Id]) -> list[Id]:
    """Ids of so many new documents.

    Args:
        given: as given; None for the numbers from `start` on.
        count: of documents.
        start: the first running number.
        used: ids that are in use.
        first: one of them, or none: of its kind all must be.

    Raises:
        ValueError: a wrong number or type of ids, or one that is in use.
    """
    new: list[Id] = list(range(start, start + count))
    if given is not None:
        new = inputs.plain_ids(column("ids", given, count))
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
