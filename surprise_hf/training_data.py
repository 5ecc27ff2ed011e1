"""What a SurpriseTrainer trains on: any kind of rows as texts with the positions of their labels, and their batches."""

from __future__ import annotations

import math
import numbers
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from datasets import Dataset, DatasetInfo, Features, List, Value
from sentence_transformers.sentence_transformer.data_collator import SentenceTransformerDataCollator

from . import inputs
from .ensemble import Ensemble
from .inputs import Label
from .targets import as_class_label, as_matrix, feature_of, read_targets

TEXT, LABEL, WEIGHT = "text", "label", "weight"  # columns of a prepared dataset
TEXT_COLUMNS, LABEL_COLUMNS = ("text", "sentence"), ("label", "labels")
PREPARED = "prepared by surprise_hf"  # the description of such a dataset, which its parts keep


@dataclass
class LabelCollator(SentenceTransformerDataCollator):
    """Tokenised documents, their labels as a boolean matrix, and their weights."""

    label_count: int = 0
    # no text, so that a batch without duplicates may have rows of the same weight
    valid_label_columns: list[str] = field(default_factory=lambda: [LABEL, WEIGHT])

    def __call__(self, features: list[dict[str, Any]]) -> dict[str, Any]:
        """A batch."""
        batch = super().__call__([{TEXT: row[TEXT]} for row in features])
        batch["label"] = as_matrix([row[LABEL] for row in features], self.label_count)
        if WEIGHT in features[0]:
            batch["sample_weight"] = torch.tensor([row[WEIGHT] for row in features])
        return batch


def prepare(
    dataset: Any,
    dataset_name: str | None,
    labels: list[Label] | None,
    text_column: str | None,
    label_column: str | None,
    weight_column: str | None,
) -> tuple[Dataset, list[Label] | None]:
    """The columns text, label (positions of its labels) and weight of any kind of rows; other columns are left out.

    Args:
        dataset: a `datasets.Dataset`, a DataFrame, dicts, or a dict of columns; or what `prepare` has given for these
            labels, or some rows of it, which comes back as it is.
        dataset_name: "train" (whose blank texts are left out), "eval", "test" (which needs no labels, and has no such
            column then), or None.
        labels: the label set; None takes that of the rows.
        text_column, label_column: None finds them by their names.
        weight_column: of the training set, the only one whose weights count; None: all rows count alike.

    Returns:
        the rows, and the label set (None where neither it nor a label column was given).

    Raises:
        ValueError: a column is not found, there is no row, a label is not in the label set, a weight is not a finite
            number from 0 on (the message names the row), or all weights are 0.
    """
    weighted = weight_column is not None and dataset_name == "train"
    if labels is not None and is_prepared(dataset, labels) and (WEIGHT in dataset.column_names or not weighted):
        prepared = dataset if weighted or WEIGHT not in dataset.column_names else dataset.remove_columns(WEIGHT)
    else:
        weight = weight_column if weighted else None
        prepared, labels = _read(dataset, dataset_name or "given", labels, text_column, label_column, weight)
    if dataset_name != "train":
        return prepared, labels
    kept = [row for row, text in enumerate(prepared[TEXT]) if not inputs.is_blank(text)]
    blank = len(prepared) - len(kept)
    if blank:
        warnings.warn(f"{blank} of the {len(prepared)} training texts are blank and left out", stacklevel=4)
        prepared = prepared.select(kept)
    if not kept:
        raise ValueError("the training set has no text to train on")
    return prepared, labels


def _read(
    dataset: Any,
    name: str,
    labels: list[Label] | None,
    text_column: str | None,
    label_column: str | None,
    weight_column: str | None,
) -> tuple[Dataset, list[Label] | None]:
    table = _as_table(dataset)
    if not table.rows:
        raise ValueError(f"the {name} dataset has no rows")
    text_at = _find(table, name, text_column, TEXT_COLUMNS, "text")
    label_at = _find(table, name, label_column, LABEL_COLUMNS, "label")
    weight_at = None if weight_column is None else _find(table, name, weight_column, (), "weight")
    assert text_at is not None
    texts = [inputs.text_of(text, row) or "" for row, text in enumerate(inputs.plain(table.columns[text_at]))]
    for row, text in enumerate(texts):
        inputs.check_whole(f"row {row} of the {name} dataset", text)
    columns: dict[str, list[Any]] = {TEXT: texts}
    features = {TEXT: Value("string")}
    if label_at is not None:
        try:
            found, columns[LABEL] = read_targets(table.columns[label_at], labels, table.features.get(label_at))
        except ValueError as error:
            raise ValueError(f"the {name} dataset: {error}") from error
        labels = found if labels is None else labels
        features[LABEL] = List(as_class_label(labels))
        if name == "train" and (missing := sum(map(inputs.is_missing, inputs.plain(table.columns[label_at])))):
            warnings.warn(
                f"{missing:,} of the {len(texts):,} training texts have no label (None or NaN): they are trained on as"
                " foreign to all labels. Where their label is only unknown, leave them out (and give their texts as"
                " ensemble=[...])",
                stacklevel=5,
            )
    if weight_at is not None:
        columns[WEIGHT], features[WEIGHT] = _weights(table.columns[weight_at], weight_at), Value("float32")
    info = DatasetInfo(description=PREPARED, features=Features(features))
    return Dataset.from_dict(columns, info=info), labels


def is_prepared(rows: Any, labels: Sequence[Label]) -> bool:
    """Is this what `prepare` has made for these labels, or some rows of it?"""
    if not isinstance(rows, Dataset) or rows.info.description != PREPARED or LABEL not in rows.features:
        return False
    return rows.features[LABEL] == List(as_class_label(labels))


def restore(prepared: Dataset, labels: Sequence[Label], text: str, label: str, weight: str | None) -> Dataset:
    """The reverse of `prepare`: its columns by these names, with labels for their positions.

    Label names come with the label set; for numbers `prepare` has to be given it.
    """
    feature = as_class_label(labels) if isinstance(labels[0], str) else Value("int64")
    columns = {text: prepared[TEXT], label: [[labels[at] for at in row] for row in prepared[LABEL]]}
    features = {text: Value("string"), label: List(feature)}
    if weight is not None:
        columns[weight], features[weight] = prepared[WEIGHT], Value("float32")
    return Dataset.from_dict(columns, Features(features))


class Table(NamedTuple):
    """Rows of any kind by columns: only those that are used are ever read."""

    columns: Mapping[str, Any]
    features: Mapping[str, Any]  # of `datasets`, where they are known
    rows: int


def _find(table: Table, name: str, given: str | None, usual: Sequence[str], what: str) -> str | None:
    have = list(table.columns)
    if given is not None and given in have:
        return given
    if given is not None and (what == "text" or name != "test"):
        raise ValueError(f"the {name} dataset has no column {given!r}; it has {', '.join(have)}")
    found = [] if given is not None else [column for column in usual if column in have]
    if found:
        return found[0]
    if what == "text":
        strings = [column for column in have if column not in LABEL_COLUMNS and _holds_strings(table, column)]
        if len(strings) != 1:
            raise ValueError(f"which column of the {name} dataset holds the texts ({', '.join(have)})? Set text_column")
        return strings[0]
    if name in ("train", "eval") and what == "label":
        raise ValueError(f"which column of the {name} dataset holds the labels ({', '.join(have)})? Set label_column")
    return None


def _holds_strings(table: Table, column: str) -> bool:
    if column in table.features:
        return getattr(table.features[column], "dtype", "") in ("string", "large_string")
    values = [value for value in inputs.plain(table.columns[column]) if not inputs.is_missing(value)]
    return bool(values) and all(isinstance(value, str) for value in values)


def _weights(column: Any, name: str) -> list[float]:
    weights = [inputs.plain(weight) for weight in inputs.plain(column)]
    for row, weight in enumerate(weights):
        if not isinstance(weight, numbers.Real) or not 0 <= float(weight) < math.inf:
            raise ValueError(
                f"the weight of row {row} (column {name!r}) must be a finite number from 0 on, got {weight!r}"
            )
    if not any(weights):
        raise ValueError(f"every weight is 0, so that no row counts ({name!r})")
    return [float(weight) for weight in weights]


def is_columns(rows: Any) -> bool:
    """A dict of columns, {"text": [...], "label": [...]}, rather than one of datasets."""
    return isinstance(rows, dict) and bool(rows) and not any(map(_is_table, rows.values()))


def _is_table(rows: Any) -> bool:
    first = next(iter(rows), None) if isinstance(rows, (list, tuple)) else None
    known = ("columns", "column_names")  # of DataFrames, of datasets
    return isinstance(rows, dict) or isinstance(first, dict) or any(hasattr(rows, name) for name in known)


def _as_table(rows: Any) -> Table:
    """Any kind of table."""
    if isinstance(rows, Dataset):
        as_it_is = rows.format["type"] in (None, "custom")  # the latter is a transform, which may make the texts
        rows = rows if as_it_is else rows.with_format(None)
        return Table({name: rows[name] for name in rows.column_names}, rows.features, len(rows))
    if hasattr(rows, "column_names") and hasattr(rows, "to_pylist"):  # Arrow
        return Table({name: rows[name].to_pylist() for name in rows.column_names}, {}, len(rows))
    if hasattr(rows, "columns") and hasattr(rows, "to_dict"):  # pandas, polars
        if twice := sorted({str(name) for name in rows.columns if list(rows.columns).count(name) > 1}):
            raise ValueError(f"the table has two columns of one name: {', '.join(twice)}")
        return Table({str(name): rows[name] for name in rows.columns}, {}, len(rows))
    if is_columns(rows):
        rows = {name: _as_column(column) for name, column in rows.items()}
        lengths = {name: len(column) for name, column in rows.items()}
        if len(set(lengths.values())) > 1:
            raise ValueError(f"the columns differ in length: {lengths}")
        features = {name: feature for name, column in rows.items() if (feature := feature_of(column)) is not None}
        return Table(rows, features, next(iter(lengths.values())))
    # a torch Dataset need not raise IndexError at its end, so plain iteration might never stop
    endless = not hasattr(rows, "__iter__") and hasattr(rows, "__len__")
    listed = [rows[i] for i in range(len(rows))] if endless else list(rows)
    if not all(isinstance(row, dict) for row in listed):
        raise ValueError(
            "a dataset must be a datasets.Dataset, a DataFrame, a dict of columns, or dicts with a text and a label"
            " each"
        )
    names = dict.fromkeys(name for row in listed for name in row)
    columns = {name: [row.get(name) for row in listed] for name in names}
    return Table(columns, getattr(rows, "features", None) or {}, len(listed))


def _as_column(column: Any) -> Any:
    """With a length, and as Python's own."""
    if hasattr(column, "to_pylist"):  # of Arrow
        return column.to_pylist()
    return column if hasattr(column, "__len__") else list(column)


def read_documents(documents: Any) -> Any:
    """Unlabelled documents as a trainer keeps them: checked before anything is trained, and to be read several times.

    Args:
        documents: any kind of input that the pipeline takes; an iterator is read into a list.

    Raises:
        ValueError: embeddings, no text, or a row of a wrong type; the message names the row.
    """
    if isinstance(documents, Ensemble) or inputs.is_array(documents):
        raise ValueError(
            f"ensemble is of embeddings ({type(documents).__name__}), which are no longer those of the encoder once it"
            " is trained: give the documents as texts"
        )
    if isinstance(documents, str):
        raise ValueError(f"ensemble must be a list of texts, not one string: {inputs.short(documents, 40)!r}")
    rows = inputs.iterate(documents)
    if rows is documents:
        documents = list(rows)
        rows = iter(documents)
    if not sum(not inputs.is_blank(inputs.text_of(row, at)) for at, row in enumerate(rows)):  # to the last row
        raise ValueError("ensemble has no document with any text: give some, or None to take the training texts")
    return documents
