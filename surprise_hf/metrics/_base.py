"""What the metrics share: inputs of any container brought to one form and checked by name, before evaluate sees them.

evaluate writes predictions and references to an Arrow file as they arrive and reads them back to compute. Its own
checks come too late for that: it raises IndexError on nothing, turns the string "1" into an integer, and shows a
screenful of types where two columns differ in length.
"""

from __future__ import annotations

import numbers
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import datasets
import evaluate
import numpy as np
import torch
from torch import Tensor

from surprise_hf.contexts import as_context
from surprise_hf.ensemble import Ensemble, check_rows
from surprise_hf.inputs import plain
from surprise_hf.model_card import CITATION
from surprise_hf.scorer import SCORING

__all__ = ["CITATION", "SurpriseMetric"]

STRING = datasets.Value("string")
STRINGS = datasets.Sequence(datasets.Value("string"))
VECTOR = datasets.Sequence(datasets.Value("float32"))
INTEGERS = datasets.Sequence(datasets.Value("int64"))
NUMBERS = datasets.Sequence(datasets.Value("float64"))
OUTPUT = {"labels": STRINGS, "scores": NUMBERS}


class SurpriseMetric(evaluate.Metric):
    """An `evaluate.Metric` that reads its inputs by `read` and names what is wrong with them."""

    def read(self, predictions: list[Any], references: list[Any] | None) -> tuple[dict[str, list[Any]], dict[str, Any]]:
        """A batch in the form to be stored, and its features.

        Raises:
            ValueError: a row is of no kind that this metric takes; the message names the column and the row.
        """
        raise NotImplementedError

    def add_batch(self, *, predictions: Any = None, references: Any = None, **kwargs: Any) -> None:
        """Add rows. A batch must be of the same kind as those before it.

        Raises:
            ValueError: nothing given, columns of different length, rows of no known kind or of another than before.
        """
        if kwargs:
            raise ValueError(f"{self.name} takes predictions and references, not {', '.join(sorted(kwargs))}")
        rows = {"predictions": as_list("predictions", predictions)}
        if references is not None:
            rows["references"] = as_list("references", references)
        counts = {name: len(column) for name, column in rows.items()}
        if not all(counts.values()):
            raise ValueError(f"{self.name}: {' and '.join(n for n, c in counts.items() if not c)} is empty")
        if len(set(counts.values())) > 1:
            raise ValueError(
                f"{self.name}: there are {counts['predictions']} predictions but {counts['references']} references"
            )
        batch, features = self.read(rows["predictions"], rows.get("references"))
        wanted = datasets.Features(features)
        if self.writer is not None and self.selected_feature_format != wanted:
            raise ValueError(
                f"{self.name}: this batch is of another kind than those before it ({wanted} after"
                f" {self.selected_feature_format})"
            )
        self._wanted = wanted
        super().add_batch(**batch)

    def add(self, *, prediction: Any = None, reference: Any = None, **kwargs: Any) -> None:
        """Add one row; `predictions` and `references` mean one too, as in evaluate itself. Errors as `add_batch`."""
        row = {"predictions": prediction, "references": reference, **kwargs}
        self.add_batch(**{name: None if value is None else [value] for name, value in row.items()})

    def compute(self, *, predictions: Any = None, references: Any = None, **kwargs: Any) -> dict[str, Any] | None:
        """Compute from these rows, or from those added before.

        Raises:
            ValueError: as `add_batch`; no rows at all; an argument that does not fit.
        """
        if predictions is None and references is None and self.writer is None:
            raise ValueError(f"{self.name}: nothing to compute from: pass predictions, or add some first")
        return super().compute(predictions=predictions, references=references, **kwargs)

    def _infer_feature_from_batch(self, batch: Any) -> Any:  # noqa: ARG002 (evaluate guesses from the first row)
        return self._wanted


# --- columns -----------------------------------------------------------------------------------------------------


def as_list(name: str, column: Any) -> list[Any]:
    """The rows of a list, tuple, array, tensor, Series or dataset column.

    Raises:
        ValueError: no such container.
    """
    if column is None:
        raise ValueError(f"{name} are missing")
    if isinstance(column, Tensor):
        column = column.detach().cpu().to(torch.float64 if column.is_floating_point() else column.dtype).numpy()
    if isinstance(column, (str, bytes, Mapping, set, frozenset)) or not isinstance(column, Iterable):
        raise ValueError(f"{name} must be a list with one entry a document, got {type(column).__name__}")
    return list(column)


def is_number(value: Any) -> bool:
    """A real number that is no truth value."""
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def is_label(value: Any) -> bool:
    """A string or an integer."""
    return isinstance(value, (str, numbers.Integral))


def is_marks(value: Any) -> bool:
    """A row of truth values, at least one."""
    is_row = isinstance(value, (list, tuple, np.ndarray, Tensor)) and getattr(value, "ndim", 1) == 1
    return is_row and len(value) > 0 and all(isinstance(plain(one), bool) for one in value)


def is_vector(value: Any) -> bool:
    """A row of numbers, at least one."""
    if isinstance(value, (np.ndarray, Tensor)):
        return value.ndim == 1 and len(value) > 0
    if not isinstance(value, (list, tuple)) or not value:
        return False
    return set(map(type, value)) <= {int, float} or all(map(is_number, value))  # the former in a twentieth of the time


def as_vectors(name: str, column: Sequence[Any]) -> list[list[float]]:
    """Rows of one length.

    Raises:
        ValueError: a row is no vector, or of another length than the first, or holds NaN or infinity.
    """
    for row, value in enumerate(column):
        if not is_vector(value):
            like = f", as {name}[0] is" if row else " (or all are texts)"
            raise ValueError(f"{name}[{row}] must be a vector of numbers{like}, got {shown(value)}")
        if len(value) != len(column[0]):
            raise ValueError(f"{name}[{row}] has {len(value)} dimensions, but {name}[0] has {len(column[0])}")
        if not np.isfinite(np.asarray(value, dtype=np.float64)).all():
            raise ValueError(f"{name}[{row}] holds NaN or infinity")
    return [list(map(float, value)) for value in column]


def as_matrix(name: str, rows: Any) -> Tensor:
    """Embeddings (n, d) float32 from a tensor, an array or lists.

    Raises:
        ValueError: another shape, not finite, or rows of different length.
    """
    if not (isinstance(rows, Tensor) and rows.is_floating_point()):
        rows = torch.tensor(as_vectors(name, as_list(name, rows)))
    check_rows(name, rows)
    return rows.detach().cpu().to(torch.float32)


def as_pair(predictions: Any, queries: Any) -> tuple[Tensor, Tensor]:
    """Embeddings of documents (n, d) and of labels (m, d).

    Raises:
        ValueError: as `as_matrix`, or the two differ in d.
    """
    keys, labels = as_matrix("predictions", predictions), as_matrix("queries", queries)
    if keys.shape[1] != labels.shape[1]:
        raise ValueError(f"predictions have {keys.shape[1]} dimensions, but queries have {labels.shape[1]}")
    return keys, labels


def scoring_options(given: dict[str, Any]) -> dict[str, Any]:
    """Arguments named as in the pipeline, as `FittedLabels.fit` calls them; the weight is 1 unless given.

    Raises:
        ValueError: an argument of another name.
    """
    unknown = sorted(set(given) - set(SCORING))
    if unknown:
        raise ValueError(f"unknown argument {', '.join(unknown)}; scoring takes {', '.join(SCORING)}")
    return {"weight": 1.0} | {SCORING[name]: value for name, value in given.items()}


def as_ensemble(given: Any, dim: int, model: Any = None) -> Tensor | Ensemble:
    """An ensemble for embeddings of `dim` dimensions: vectors, an `Ensemble` or the path of one; texts with a model.

    Raises:
        FileNotFoundError: no file at the path.
        ValueError: as `contexts.as_context`.
    """
    if not isinstance(given, (str, os.PathLike, Ensemble)):
        rows = as_list("ensemble", given)
        is_text = rows and all(isinstance(row, str) for row in rows)
        given = rows if is_text else as_matrix("ensemble", given if isinstance(given, Tensor) else rows)
    found = as_context(given, model, dim=dim, dim_of="predictions have")
    return found.cpu() if isinstance(found, Tensor) else found


def shown(value: Any) -> str:
    """A value and its type, short enough for a message."""
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= 60 else text[:57] + '...'}"
