"""What people write into a label column, as positions in a label set, and how decisions are measured by it."""

from __future__ import annotations

import numbers
import warnings
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from . import inputs
from .inputs import Label

__all__ = [
    "accuracy_and_f1",
    "as_class_label",
    "as_matrix",
    "class_label",
    "feature_of",
    "look_like_marks",
    "read_targets",
]


def read_targets(column: Iterable[Any], labels: Any = None, feature: Any = None) -> tuple[list[Label], list[list[int]]]:
    """The label set, and each row's labels as positions in it.

    Args:
        column: for each row a label name, a number, a list of these, or None, "", [] or -1 for no label (-1 is a label
            where the label set has it). A list of floats or bools of the label set's length marks the labels with 1.0
            or True; single bools are the labels "False" and "True", or the first two of `labels`. Arrays and tensors
            count as lists.
        labels: the label set, as for `inputs.as_labels`; numbers in the column are then positions in it (or the
            labels themselves, if one of these is a number or the text of one: 7 is the label "7"). None takes the
            names of `feature`, or the labels that occur, sorted.
        feature: of the column in a `datasets.Dataset`; a ClassLabel, or a list of them, names the numbers. Where
            `labels` has none of its names, or as many and those that it has in their places, it renames them one by
            one.

    Returns:
        m labels, some of which may occur in no row, and n ascending lists of positions.

    Raises:
        ValueError: a label that is not in the set, or of another type; the message names the row. A list of integers
            0 and 1 of which one repeats, or [0, 1] and [1, 0] for two labels: marks, most likely, though integers count
            the labels. One string.
    """
    if isinstance(column, (str, bytes)):
        raise ValueError(f"labels must be a list with one label (or list) for each text, got {column!r}")
    cells = [inputs.plain(value) for value in inputs.plain(column)]
    rows = [_as_list(value, row) for row, value in enumerate(cells)]
    given = class_label(feature)
    labels = given if labels is None else labels
    bools = all(isinstance(value, bool) or inputs.is_missing(value) for value in cells) and any(rows)
    if labels is None and bools:
        labels = list(BOOLS)  # as a file of text has them
    if labels is None:
        if any(isinstance(value, float) for values in rows for value in values):
            raise ValueError(
                "the labels are lists of floats or bools, which mark labels by position: pass the label set as"
                " labels=[...]"
            )
        found = {value for values in rows for value in values}
        if -1 in found and any(isinstance(value, int) and value != -1 for value in found):
            count = sum(-1 in values for values in rows)
            warnings.warn(
                f"-1 is read as no label, in {count:,} of {len(rows):,} rows: if it is one, pass the label set as"
                " labels=[-1, ...]",
                stacklevel=2,
            )
        found.discard(-1)
        if not found:
            raise ValueError("no row has a label: pass the label set as labels=[...] (--labels on the command line)")
        if any(isinstance(value, str) for value in found) and any(not isinstance(value, str) for value in found):
            raise ValueError("the label column mixes names and numbers; use one kind, or pass labels=[...]")
        labels = sorted(found)
    names = inputs.as_labels(labels)
    place: dict[Any, int] = {name: at for at, name in enumerate(names)}
    numerals = [name for name in names if isinstance(name, int) or (given is None and _is_numeral(name))]
    called = [] if given is None or _renames(names, given.names) else list(given.names)
    if called:
        place.update({at: place[name] for at, name in enumerate(called) if name in place})
    elif numerals:  # "1" rather than "01"
        place.update({int(name): place[name] for name in sorted(numerals, key=lambda one: -len(str(one)))})
    else:
        place.update({at: at for at in range(len(names))})
    if bools and set(BOOLS) <= set(names):
        rows = [[BOOLS[value] for value in values] for values in rows]
    for name in names:
        if isinstance(name, int):  # as a file of text has it
            place.setdefault(str(name), place[name])
    if -1 not in place:
        rows = [[value for value in values if isinstance(value, float) or value != -1] for values in rows]
    filled = [values for values in rows if values]
    marked = any(isinstance(value, float) for values in filled for value in values)
    if len(names) == 2 and not marked and {tuple(values) for values in filled} == {(0, 1), (1, 0)}:
        raise ValueError(MARKS.format(row=rows.index(filled[0]), values=filled[0], what="every row has both labels"))
    return names, [_positions(values, row, place, len(names), called) for row, values in enumerate(rows)]


BOOLS = ("False", "True")
MARKS = (
    "the label of row {row} is {values}: integers count the labels, and {what}; to mark the labels that it has, give"
    " floats or bools, such as [1.0, 0.0, 1.0]"
)


def _renames(names: list[Label], given: list[str]) -> bool:
    """Are these other names for the classes, rather than some of them, more of them, or in another order?"""
    shared = set(given).intersection(names)
    return not shared or (len(names) == len(given) and all(names[given.index(name)] == name for name in shared))


def class_label(feature: Any) -> Any:
    """The ClassLabel of a feature that is one, or a list of them; else None."""
    while feature is not None and type(feature).__name__ != "ClassLabel":
        feature = feature[0] if isinstance(feature, list) else getattr(feature, "feature", None)
    return feature


def feature_of(column: Any) -> Any:
    """The feature of a `datasets` column (`ds["label"]`), which knows the names of its numbers."""
    features, name = getattr(getattr(column, "source", None), "features", None), getattr(column, "column_name", None)
    return features.get(name) if isinstance(features, dict) else None


def as_class_label(labels: Sequence[Label]) -> Any:
    """The ClassLabel of these labels, which in memory keeps their descriptions; files have the names alone."""
    import yaml
    from datasets import ClassLabel

    yaml.add_representer(inputs.Described, yaml.Dumper.represent_str)  # for the card of a dataset that is pushed
    return ClassLabel(names=[label if isinstance(label, str) else str(label) for label in labels])


def _is_numeral(name: str) -> bool:
    return name.removeprefix("-").isdecimal()


def look_like_marks(values: Sequence[Any]) -> bool:
    """Integers 0 and 1 of which one repeats: they mark labels by position, most likely, though integers count them."""
    return all(isinstance(one, numbers.Real) and one in (0, 1) for one in values) and len(set(values)) < len(values)


def _as_list(value: Any, row: int) -> list[Any]:
    """One cell as a list of stripped names and ints, or of floats, which are marks."""
    if inputs.is_missing(value):
        return []
    if isinstance(value, (str, numbers.Real)):
        values = [value]
    elif isinstance(value, Iterable) and not isinstance(value, (bytes, dict)):
        values = [inputs.plain(one) for one in value]
        for mark in (bool, float):
            if values and all(isinstance(one, mark) for one in values):
                return [float(one) for one in values]
        if look_like_marks(values):
            raise ValueError(MARKS.format(row=row, values=values, what="one is there twice"))
    else:
        raise ValueError(f"the label of row {row} must be a name, a number or a list of them, got {value!r}")
    return [_as_label(one, row) for one in values if not _is_none(one)]


def _as_label(value: Any, row: int) -> Label:
    if isinstance(value, str):
        return inputs.own(value).strip()
    if isinstance(value, numbers.Real) and float(value).is_integer():
        return int(float(value))
    raise ValueError(f"the label of row {row} must be a name, a number or a list of them, got {value!r}")


def _is_none(value: Any) -> bool:
    return inputs.is_missing(value) or (isinstance(value, str) and not value.strip())


def _positions(values: list[Any], row: int, place: dict[Any, int], m: int, called: Sequence[str]) -> list[int]:
    if values and isinstance(values[0], float):
        if len(values) != m:
            raise ValueError(f"row {row} marks {len(values)} labels, but there are {m}")
        return [at for at, mark in enumerate(values) if mark > 0.5]
    unknown = [value for value in values if value not in place]
    if unknown:
        name = f" ({called[unknown[0]]!r})" if isinstance(unknown[0], int) and unknown[0] < len(called) else ""
        raise ValueError(
            f"row {row} has the label {unknown[0]!r}{name}, which is none of the {m} labels of the set: give them all"
            " (labels=[...] of a trainer, candidate_labels=[...] of fit_labels, --labels on the command line)"
        )
    return sorted({place[value] for value in values})


def as_matrix(targets: Sequence[Sequence[int]], m: int) -> Tensor:
    """(n, m) bool from n lists of positions."""
    matrix = torch.zeros(len(targets), m, dtype=torch.bool)
    for row, at in enumerate(targets):
        matrix[row, list(at)] = True
    return matrix


def chosen(best: Tensor, positive: Tensor) -> Tensor:
    """Of documents with r labels, the r best: (n, m) bool.

    Args:
        best: (n, k) int64, label indices, best first, k at least the most labels of a document.
        positive: (n, m) bool.
    """
    wanted = torch.arange(best.shape[1]) < positive.sum(dim=1, keepdim=True)
    return torch.zeros_like(positive).scatter_(1, best, wanted)


def accuracy_and_f1(best: Tensor, positive: Tensor) -> dict[str, float]:
    """Of documents with r labels, the r best (r = 1: the usual measures); documents without are left out.

    Arguments as for `chosen`.

    Returns:
        accuracy: mean share of a document's labels that were found.
        f1: macro F1, the mean over the labels that occur or were given.
    """
    count, given = positive.sum(dim=1), chosen(best, positive)
    found = given & positive
    accuracy = (found.sum(dim=1) / count.clamp(min=1))[count > 0].double().mean()
    size = (given.sum(dim=0) + positive.sum(dim=0)).double()
    f1 = (2 * found.sum(dim=0) / size.clamp(min=1))[size > 0].mean()
    return {"accuracy": float(accuracy), "f1": float(f1)}
