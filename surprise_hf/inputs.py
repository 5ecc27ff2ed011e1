"""What a caller may pass as documents, labels and template, brought to one form. Imports torch and NumPy alone.

Everything ambiguous is refused with a message that names the row or the label; nothing is dropped or reordered.
"""

from __future__ import annotations

import math
import numbers
import unicodedata
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from itertools import islice
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

Label: TypeAlias = str | int
Template: TypeAlias = str | tuple[str, ...]

DEFAULT_TEMPLATE = "this matter is {}"
SLOT = "{}"
INVISIBLE = ("Cc", "Cf", "Zl", "Zp", "Zs")  # Unicode's control and format characters and separators
BATCH_SIZE = 32  # of the encoder, as SentenceTransformer.encode has it


class Described(str):
    """A label with another text to embed in its place."""

    __slots__ = ("text",)
    text: str

    def __new__(cls, label: str, text: str) -> Described:
        """The label as a string, and its text."""
        described = super().__new__(cls, label)
        described.text = text
        return described

    def __getnewargs__(self) -> tuple[str, str]:  # type: ignore[override]
        return str(self), self.text


def name_and_text(label: Label) -> tuple[str, str]:
    """What tells a label from others: its name, and the text that is embedded for it."""
    return str(label), str(getattr(label, "text", label))


def described_as(labels: Sequence[Label], known: Sequence[Label] | None) -> list[Label]:
    """Labels that data names, plain ones with the text to embed that a label of that name has in `known`."""
    texts = {str(label): label for label in known or () if isinstance(label, Described)}
    return [label if isinstance(label, (int, Described)) else texts.get(label, label) for label in labels]


def is_stream(documents: Any) -> bool:
    """True where results are handed out one by one as well, as in every transformers pipeline.

    Generators, iterators and datasets of unknown length, and torch Datasets such as KeyDataset.
    """
    return not isinstance(documents, Sized) or isinstance(documents, Dataset)


def is_array(x: Any) -> bool:
    """Embeddings rather than texts: a tensor, or an array of numbers."""
    kind = getattr(getattr(x, "dtype", None), "kind", None)  # a DataFrame has none
    return isinstance(x, Tensor) or (hasattr(x, "ndim") and kind in {"f", "i", "u", "b"})


def as_tensor(x: Any) -> Tensor:
    """What `is_array` as a tensor of the same memory; of a copy where an array is read-only, of which torch warns, or
    reversed or of the other byte order, which torch refuses.
    """
    if isinstance(x, np.ndarray) and not (x.flags.writeable and min(x.strides, default=0) >= 0 and x.dtype.isnative):
        x = x.astype(x.dtype.newbyteorder("="), order="C")
    return torch.as_tensor(x)


def embeddings(x: Any) -> Tensor:
    """What `is_array` as a tensor; anything else as it is, for the check that follows to name."""
    return as_tensor(x) if is_array(x) else x


def iterate(documents: Any) -> Iterator[Any]:
    """The rows of any container of documents, in order; a string is one document.

    Raises:
        ValueError: the container has no rows of text by itself (a table, a mapping, a set, one number).
    """
    if isinstance(documents, str):
        return iter((documents,))
    if isinstance(documents, (dict, set, frozenset)) or hasattr(documents, "columns"):  # pandas, polars
        raise ValueError(
            f"documents come as a {type(documents).__name__}, which is not a sequence of texts: pass a list of"
            ' strings or one column, such as table["text"]'
        )
    if getattr(documents, "ndim", 1) != 1:
        raise ValueError(f"documents must be one-dimensional, got an array of shape {tuple(documents.shape)}")
    if isinstance(documents, Dataset) and not hasattr(documents, "__iter__"):
        # a torch Dataset need not raise IndexError at its end, so plain iteration might never stop
        return (documents[i] for i in range(len(documents)))  # type: ignore[arg-type]
    if isinstance(documents, bytes) or not isinstance(documents, Iterable):
        raise ValueError(f"documents must be a string or an iterable of strings, got {type(documents).__name__}")
    return iter(documents)


def text_of(row: Any, index: int) -> str | None:
    """The text of one row; None for a missing value (None, NaN, pandas NA).

    A row with one named field, as a dataset of a single column gives it, stands for the text in that field.

    Raises:
        ValueError: any other type; the message names the row.
    """
    row = row.as_py() if hasattr(row, "as_py") else row  # of pyarrow
    if isinstance(row, dict) and len(row) == 1:
        (row,) = row.values()
    if isinstance(row, str):
        return own(row)
    if is_missing(row):
        return None
    hint = ""
    if isinstance(row, dict):
        hint = f'; the row has the fields {", ".join(map(repr, row))}: pass one column, such as dataset["text"]'
    elif isinstance(row, bytes):
        hint = "; decode bytes first"
    raise ValueError(f"document {index} must be a string, got {type(row).__name__}{hint}")


def is_missing(value: Any) -> bool:
    """None, NaN, or pandas NA."""
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return True
    return isinstance(value, numbers.Real) and value != value


def own(text: str) -> str:
    """A string of a subclass (numpy.str_, an Enum of strings) as a plain one; `str` would name the Enum's member."""
    return str.__str__(text)


def is_blank(text: str | None) -> bool:
    """A missing document, an empty one, or one of nothing but blanks and zero-width characters: nothing to score."""
    return text is None or all(unicodedata.category(character) in INVISIBLE for character in text)


def chunks(documents: Any, size: int) -> Iterator[tuple[list[int], list[str], int]]:
    """Documents with text, `size` rows read at a time: their row numbers, their texts, and how many rows were read."""
    rows = enumerate(iterate(documents))
    while block := list(islice(rows, size)):
        found = [(index, text) for index, row in block if not is_blank(text := text_of(row, index))]
        yield [index for index, _ in found], [text for _, text in found if text is not None], len(block)


def is_per_document(labels: Any) -> bool:
    """True where `labels` is one collection of labels for each document rather than one for all of them."""
    if isinstance(labels, (str, bytes, dict, set, frozenset)) or not isinstance(labels, Iterable):
        return False
    return any(not isinstance(label, (str, bytes)) and isinstance(label, Iterable) for label in labels)


def plain(x: Any) -> Any:
    """An array or tensor as Python's lists and numbers, anything else as it is."""
    return x.tolist() if hasattr(x, "tolist") else x


def as_labels(labels: Any) -> list[Label]:
    """Candidate labels as a list, surrounding blanks stripped.

    Args:
        labels: a list, tuple, array or Series (order kept), a set (sorted), a dict, a `datasets.ClassLabel` (its
            names), or one string with commas between labels. Items are strings, taken as they are (a comma or braces
            inside are part of the label), or integers, which come back as integers. Of a dict the keys; values that
            are strings describe them and are embedded in their place.

    Raises:
        ValueError: no label, an empty or wrong-typed label, or two labels with the same text. Labels that differ in
            case only are legal and draw a warning, since an uncased encoder can't tell them apart.
    """
    if hasattr(labels, "columns"):  # of a table
        raise ValueError(f'candidate_labels come as a {type(labels).__name__}: pass one column, such as table["label"]')
    labels = plain(labels)
    if type(labels).__name__ == "ClassLabel":  # by name: `datasets` need not be installed
        labels = labels.names
    elif isinstance(labels, str):
        labels = [label for label in labels.split(",") if label.strip()]
    elif isinstance(labels, (set, frozenset)):
        labels = sorted(labels, key=lambda label: own(label) if isinstance(label, str) else str(label))
    elif isinstance(labels, bytes) or not isinstance(labels, Iterable):
        raise ValueError(
            f"candidate_labels must be a list of labels or one comma-separated string, got {type(labels).__name__}"
        )
    found = [_as_label(label, index) for index, label in enumerate(labels)]
    if isinstance(labels, Mapping):
        found = [_described(*pair) for pair in zip(found, labels.values(), strict=True)]
    if not found:
        raise ValueError("candidate_labels is empty: give at least one label")
    first: dict[str, int] = {}
    for index, label in enumerate(found):
        same = first.setdefault(str(label), index)
        if same != index:
            raise ValueError(f"candidate_labels {same} and {index} are both {str(label)!r}: every label must differ")
    folded: dict[str, str] = {}
    twins = [(twin, text) for text in first if (twin := folded.setdefault(text.casefold(), text)) != text]
    if twins:
        one, other = twins[0]
        more = f" (and so do {len(twins) - 1:,} other pairs)" if twins[1:] else ""
        warnings.warn(
            f"the labels {one!r} and {other!r} differ in case only{more}: an uncased encoder can't tell them apart",
            stacklevel=2,
        )
    return found


def _as_label(label: Any, index: int) -> Label:
    if not isinstance(label, (bool, str)) and isinstance(label, numbers.Integral):
        return int(label)
    if not isinstance(label, str):
        raise ValueError(f"candidate_labels[{index}] must be a string or an integer, got {type(label).__name__}")
    if not label.strip():
        raise ValueError(f"candidate_labels[{index}] is blank")
    return label if isinstance(label, Described) else own(label).strip()


def _described(label: Label, text: Any) -> Label:
    if not isinstance(text, str):  # as in {"sports": 0}, which only numbers the labels
        return label
    if not isinstance(label, str):
        raise ValueError(f"label {label!r} has a description, so its name must be a string")
    if not text.strip():
        raise ValueError(f"the description of label {label!r} is blank")
    return Described(label, text.strip())


def as_json(labels: Sequence[Label]) -> list[Label] | dict[str, str]:
    """What `as_labels` reads again: a list, or a dict where there are descriptions."""
    if not any(isinstance(label, Described) for label in labels):
        return list(labels)
    return {str(label): getattr(label, "text", str(label)) for label in labels}


def check_template(template: Any) -> Template:
    """The template itself, if it has exactly one slot; of a list or tuple of templates, a tuple.

    Raises:
        ValueError: no `{}`, several, or any other brace (whose meaning str.format would have to guess); no template.
    """
    if isinstance(template, (list, tuple)):
        if not template:
            raise ValueError("hypothesis_template is an empty list: give at least one template")
        return tuple(str(check_template(one)) for one in template)
    if not isinstance(template, str):
        raise ValueError(f"hypothesis_template must be a string or a list of them, got {type(template).__name__}")
    slots = template.count(SLOT)
    if slots != 1 or any(brace in template.replace(SLOT, "") for brace in SLOT):
        raise ValueError(
            f"hypothesis_template must contain {SLOT} exactly once, where the label goes, and no other brace;"
            f" got {template!r}"
        )
    return template


def hypotheses(labels: Sequence[Label], template: Template) -> list[str]:
    """The text to embed for each label: the label, or its description, put into the slot as it is, braces and all.

    Of several templates, all labels in the first, then all in the second, and so on.
    """
    checked = check_template(template)
    found = []
    for one in (checked,) if isinstance(checked, str) else checked:
        before, after = one.split(SLOT)
        found += [f"{before}{getattr(label, 'text', label)}{after}" for label in labels]
    return found


def short(text: str, most: int) -> str:
    """A text in one line of at most so many characters, for a message or a picture."""
    text = " ".join(text.split())
    return text if len(text) <= most else text[: most - 1].rstrip() + "…"


def positive_int(name: str, value: Any) -> int:
    """`value` as int, or a ValueError that names the argument."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < 1:
        raise ValueError(f"{name} must be a positive integer, got {value!r}")
    return int(value)


def share(name: str, value: Any) -> float:
    """`value` as float, from 0 to 1, or a ValueError that names the argument."""
    if not 0 <= as_number(value) <= 1:
        raise ValueError(f"{name} must be between 0 and 1, got {value!r}")
    return float(value)


def check_whole(name: str, text: str, reader: str = "no tokenizer reads") -> None:
    """Refuse a text with half of a surrogate pair, which has no UTF-8, naming the text and whoever can't take it."""
    if text.isascii():
        return
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError(
            f"{name} ({text[:60]!r}) holds half of a surrogate pair, which {reader}; mend it, as by"
            " text.encode('utf-16', 'surrogatepass').decode('utf-16', 'replace')"
        ) from None


def flag(name: str, value: Any) -> bool:
    """`value` as bool, or a ValueError that names the argument: any string counts as true, "False" too."""
    if type(value).__name__ not in ("bool", "bool_"):  # the latter of NumPy 1
        raise ValueError(f"{name} must be True or False, got {value!r}")
    return bool(value)


def as_number(value: Any) -> float:
    """A number of any library as float; NaN, which no limit admits, for what is none."""
    return float(value) if not isinstance(value, bool) and isinstance(value, numbers.Real) else math.nan


def warn_cut(cut: int, total: int, what: str, limit: int | None) -> None:
    """One warning for all texts of a call that were longer than the encoder's window."""
    if cut:
        warnings.warn(
            f"{cut:,} of {total:,} {what} are longer than the {limit} tokens that this encoder reads; the rest of"
            " each was cut off",
            stacklevel=3,
        )
