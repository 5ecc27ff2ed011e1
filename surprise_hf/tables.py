"""Tables of documents for the command line: read whole, written chunk by chunk.

`datasets` does the reading, into a temporary Arrow file, so a table may be larger than memory.
"""

from __future__ import annotations

import ast
import csv
import hashlib
import io
import json
import math
import re
import shutil
import sys
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa
    from datasets import Dataset

FORMATS = ("csv", "tsv", "jsonl", "parquet")
SUFFIXES = {".csv": "csv", ".tsv": "tsv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet"}
DELIMITERS = {"csv": ",", "tsv": "\t"}
TYPED = ("jsonl", "parquet")  # these tell numbers from text
STDIN = "-"
READ_BYTES = 1 << 23  # of JSON lines, as many whole ones as it takes
INTEGER = re.compile(r"0|-?[1-9][0-9]{0,18}")
REAL = re.compile(r"-?(0|[1-9][0-9]{0,14})(\.[0-9]+)?([eE][+-]?[0-9]{1,3})?")  # a longer integer might lose its end
ONE_KIND = "a column needs values of one kind: put all of them in quotes, as text, or leave the column out"
SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")  # half of a character, or of what would be one, in JSON


def format_of(path: str) -> str | None:
    """One of FORMATS by the end of the name, or None."""
    return SUFFIXES.get(Path(path).suffix.lower())


# --- reading -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Source:
    """A table that was read: its rows, and the hash of the file they came from."""

    rows: Dataset
    digest: str


@contextmanager
def reading(path: str, fmt: str, column: str, exact: bool) -> Iterator[Source]:
    """Open a table.

    Args:
        path: of the file or pipe, or "-" for standard input.
        fmt: one of FORMATS.
        column: that must be there and hold text.
        exact: take every cell of a CSV or TSV as the text it is, for writing it out as text again; otherwise a column
            of numbers alone becomes one, where it loses nothing (007 stays 007).

    Cells of a CSV or TSV may be in quotation marks, with those inside doubled, and hold ends of lines then. In a TSV,
    where many write marks as text, such cells draw a warning.

    Raises:
        OSError: no such file, or a folder.
        ValueError: the table is empty or damaged, or has no such column of text.
    """
    name = "standard input" if path == STDIN else path
    with tempfile.TemporaryDirectory(prefix="surprise-hf-") as folder:
        file = Path(folder, "input")  # a name of our own: `datasets` takes brackets and stars for a pattern
        _bring(path, file)
        rows = _text_rows(_load(file, name, fmt, column, exact), name, column)
        if fmt == "tsv":
            _warn_of_quotes(rows, name)
        yield Source(rows, digest(file))


def _bring(path: str, file: Path) -> None:
    """Have a table under another name: a link to a file, and a copy of what can be read only once."""
    if path == STDIN:
        if sys.stdin is None:
            raise ValueError("standard input is closed: give the name of a file")
        with file.open("wb") as copy:
            shutil.copyfileobj(sys.stdin.buffer, copy)
    elif not Path(path).exists():
        raise FileNotFoundError(f"no such file: {path}")
    elif Path(path).is_dir():
        raise IsADirectoryError(f"{path} is a folder: give the name of a file")
    elif Path(path).is_file():
        file.symlink_to(Path(path).resolve())
    else:  # a pipe
        with Path(path).open("rb") as source, file.open("wb") as copy:
            shutil.copyfileobj(source, copy)


def _load(file: Path, name: str, fmt: str, column: str, exact: bool) -> Dataset:
    import datasets
    import pyarrow as pa
    from pandas.errors import ParserWarning

    datasets.disable_progress_bars()
    datasets.logging.set_verbosity(datasets.logging.CRITICAL)  # what goes wrong is said below, once
    if file.stat().st_size == 0:
        raise ValueError(f"{name} is empty")
    try:
        if fmt == "jsonl":
            return _json_rows(file)
        if fmt in DELIMITERS:
            rows = _csv_rows(file, DELIMITERS[fmt])
            return rows if exact else _with_numbers(rows, column)
        return datasets.load_dataset(
            fmt,
            data_files=str(file),
            split="train",
            cache_dir=str(file.parent / "cache"),
            **_parquet_options(file),
        )
    except (
        ValueError,
        StopIteration,
        csv.Error,
        pa.ArrowException,
        ParserWarning,
        datasets.exceptions.DatasetGenerationError,
    ) as error:
        reason: BaseException = error
        while reason.__cause__ is not None:
            reason = reason.__cause__
        # the latter is what `datasets` says of a parquet without rows
        if isinstance(reason, StopIteration) or "BatchSize must be greater than 0" in str(reason):
            raise ValueError(f"{name} has no rows") from error
        if isinstance(reason, UnicodeDecodeError):
            raise ValueError(f"{name} is not UTF-8 ({reason}); convert it, for example with iconv") from error
        if isinstance(reason, ParserWarning):
            raise ValueError(f"the rows of {name} have more fields than its header names") from error
        raise ValueError(f"{name} can't be read as {fmt}: {reason}") from error


def _json_rows(file: Path) -> Dataset:
    """JSON lines with every string as it is: Arrow's own reader makes dates of some, and floats of large integers."""
    import pyarrow as pa
    from datasets import Dataset

    schema = pa.schema([])
    for first, rows in _json_parts(file):
        names = dict.fromkeys(name for row in rows for name in row)
        kinds = [(name, _json_column(name, rows, first).type) for name in names]
        try:
            schema = pa.unify_schemas([schema, pa.schema(kinds)], promote_options="permissive")
        except pa.ArrowException as error:  # it names the column
            raise ValueError(f"{error}; {ONE_KIND}") from None
    if not schema.names:
        raise StopIteration
    path = file.with_name("rows.arrow")
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, schema) as out:
        for first, rows in _json_parts(file):
            columns = [_json_column(field.name, rows, first, field.type) for field in schema]
            out.write_batch(pa.record_batch(columns, schema=schema))
    return Dataset.from_file(str(path))


def _json_parts(file: Path) -> Iterator[tuple[int, list[dict[str, Any]]]]:
    """Lines, READ_BYTES at a time and without blank ones, and the number of the first."""
    with file.open(encoding="utf-8-sig") as text:
        first = 1
        while lines := text.readlines(READ_BYTES):
            rows = []
            for number, line in enumerate(lines, first):
                if not line.strip():
                    continue
                try:
                    rows.append(json.loads(line))
                except ValueError as error:
                    raise ValueError(f"line {number}: {error}") from None
                if not isinstance(rows[-1], dict):
                    raise ValueError(f"line {number} is no object in braces")
                if SURROGATE.search(line):
                    _check_text(rows[-1], number)
            if rows:
                yield first, rows
            first += len(lines)


def _check_text(row: dict[str, Any], number: int) -> None:
    try:
        json.dumps(row, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        half = ascii(error.object[error.start])
        raise ValueError(f"line {number}: {half} is half of a surrogate pair, which is no text") from None


def _json_column(name: str, rows: Sequence[dict[str, Any]], first: int, kind: pa.DataType | None = None) -> pa.Array:
    import pyarrow as pa

    where = f"column {name!r}, in line {first} or after"
    try:
        return pa.array([row.get(name) for row in rows], kind)
    except OverflowError:
        raise ValueError(f"{where}: an integer of more than 64 bits; in quotes it would be kept as text") from None
    except pa.ArrowException as error:
        raise ValueError(f"{where}: {error}; {ONE_KIND}") from None


def _csv_rows(file: Path, delimiter: str) -> Dataset:
    """Every cell as the text it is: `datasets` would take a type for a column from the first rows alone."""
    import pandas as pd
    import pyarrow as pa
    from datasets import Dataset

    with file.open(encoding="utf-8-sig", newline="") as text:
        blank, header = next(
            ((at, row) for at, row in enumerate(csv.reader(text, delimiter=delimiter)) if row), (0, [])
        )
    twice = sorted({repr(field) for field in header if header.count(field) > 1})
    if twice:
        raise ValueError(f"two columns are named {', '.join(twice)}")
    schema, path, found = pa.schema([(field, pa.string()) for field in header]), file.with_name("rows.arrow"), 0
    with (
        warnings.catch_warnings(),
        pa.OSFile(str(path), "wb") as sink,
        pa.ipc.new_stream(sink, schema) as out,
    ):
        warnings.simplefilter("error", pd.errors.ParserWarning)  # surplus fields, which pandas would drop
        parts = pd.read_csv(
            file,
            sep=delimiter,
            names=header,  # or pandas would call a column without a name otherwise
            header=0,
            skiprows=blank,
            dtype=object,  # the text of a cell
            keep_default_na=False,  # "NA" and "null" may be documents; only an empty cell is a missing value
            na_values=[""],
            index_col=False,  # or surplus fields would make the first column row names, and shift the others
            skip_blank_lines=len(header) > 1,  # the blank line of a single column is a blank document
            chunksize=10_000,
        )
        for part in parts:
            found += len(part)
            columns = [pa.array(part[field], pa.string(), from_pandas=True) for field in header]
            out.write_batch(pa.record_batch(columns, schema=schema))
    if not found:
        raise StopIteration
    return Dataset.from_file(str(path))


def _with_numbers(rows: Dataset, column: str) -> Dataset:
    """The rows of a CSV with numbers where a whole column holds nothing else, but for the column of documents.

    A column is one of numbers where none of its cells loses anything by that: 007 and +7 stay text, and so does what
    has more digits than the type keeps.
    """
    from datasets import Value

    for name in rows.column_names:
        cells = rows.data.column(name)
        if name == column or cells.null_count == len(cells):
            continue
        for kind, holds in KINDS.items():
            if all(cell is None or holds(cell) for chunk in cells.chunks for cell in chunk.to_pylist()):
                rows = rows.cast_column(name, Value(kind))
                break
    return rows


def _is_integer(cell: str) -> bool:
    return bool(INTEGER.fullmatch(cell)) and -(2**63) <= int(cell) < 2**63


def _is_real(cell: str) -> bool:
    return bool(REAL.fullmatch(cell)) and Decimal(repr(float(cell))) == Decimal(cell)


def _is_truth(cell: str) -> bool:
    return cell.lower() in ("true", "false")


KINDS = {"int64": _is_integer, "float64": _is_real, "bool": _is_truth}  # of a CSV's columns, the first that fits


def _parquet_options(file: Path) -> dict[str, Any]:
    """Views of strings as strings: `datasets` 4 has no word for views, and later ones a type of their own.

    Raises:
        ValueError: a column is of a type that `datasets` doesn't have, as a map is.
    """
    import pyarrow as pa
    from datasets import Features
    from pyarrow import parquet

    schema = parquet.read_schema(file)
    views = [at for at, kind in enumerate(schema.types) if pa.types.is_string_view(kind)]
    for at in views:
        schema = schema.set(at, schema.field(at).with_type(pa.string()))
    for field in schema:
        _check_kind(field)
    return {"features": Features.from_arrow_schema(schema)} if views else {}


def _check_kind(field: pa.Field) -> None:
    import pyarrow as pa
    from datasets import Features

    try:
        Features.from_arrow_schema(pa.schema([field]))
    except ValueError:
        raise ValueError(
            f"column {field.name!r} is of the type {field.type}, which `datasets` has no word for: leave the column"
            " out, or write it as text, such as JSON"
        ) from None


def _warn_of_quotes(rows: Dataset, name: str) -> None:
    """Tell of cells that hold what ends cells in a TSV.

    It is read as `csv` and `pandas` read it, and as it is written here: a cell that begins with a quotation mark goes
    on to the next one, over tabs and lines. Many other programs write no such marks, and then it is a mistake.
    """
    import pyarrow.compute as pc

    strings = (column for column in rows.data.columns if str(column.type) in ("string", "large_string"))
    count = sum(pc.sum(pc.match_substring_regex(column, r"[\t\n\r]")).as_py() or 0 for column in strings)
    if count:
        warnings.warn(
            f"{count:,} cells of {name} hold tabs or ends of lines, since they begin with a quotation mark and go on to"
            " the next one; where such marks are text, put these cells in quotation marks and double those inside",
            stacklevel=4,
        )


def check_column(rows: Dataset, name: str, column: str) -> None:
    """Refuse a table, called `name`, that lacks a column."""
    if column not in rows.column_names:
        raise ValueError(f"{name} has no column {column!r}; it has {', '.join(map(repr, rows.column_names))}")


def with_lists(rows: Dataset, column: str, fmt: str) -> Dataset:
    """The table of a file with lists in that column, where a file of text has some, as Python or JSON writes them.

    Any other cell is a list of its one name; but where one in brackets is no such list, all are names as they stand.
    """
    if fmt not in DELIMITERS:
        return rows
    cells = [(cell or "").strip() for cell in rows[column]]  # of such a file all are strings
    found = [_listed(cell) if _is_bracketed(cell) else [cell] if cell else [] for cell in cells]
    if None in found or not any(map(_is_bracketed, cells)):
        return rows
    from datasets import List, Value

    return rows.remove_columns(column).add_column(column, found, feature=List(Value("string")))


def _is_bracketed(cell: str) -> bool:
    return cell.startswith("[") and cell.endswith("]")


def _listed(cell: str) -> list[str] | None:
    """A list of strings from its text; None from any other text."""
    try:
        found = ast.literal_eval(cell)
    except (ValueError, SyntaxError):
        return None
    if not isinstance(found, list) or not all(isinstance(value, str) for value in found):
        return None
    written = repr(found), json.dumps(found), json.dumps(found, ensure_ascii=False)
    plain = cell.replace(" ", "")  # ['a' 'b'], as numpy writes two, would be read as one
    return found if plain in {text.replace(" ", "") for text in written} else None


def _text_rows(rows: Dataset, name: str, column: str) -> Dataset:
    """The table, if that column holds text or nothing at all (which pandas takes for numbers)."""
    check_column(rows, name, column)
    kind = getattr(rows.features[column], "dtype", None)
    if kind in ("string", "large_string", "null"):
        return rows
    if rows.data.column(column).null_count < len(rows):
        raise ValueError(f"column {column!r} of {name} does not hold text, but {kind or rows.features[column]}")
    from datasets import Value

    return rows.cast_column(column, Value("string"))


def digest(path: Path) -> str:
    """SHA-256 of a file."""
    found = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            found.update(block)
    return found.hexdigest()


# --- writing -----------------------------------------------------------------------------------------------------


def result_names(k: int, prefix: str = "") -> list[str]:
    """The columns that k labels a document take: label, score, label_2, score_2, ..."""
    places = ["" if place == 1 else f"_{place}" for place in range(1, k + 1)]
    return [f"{prefix}{what}{place}" for place in places for what in ("label", "score")]


def result_columns(
    found: Mapping[int, tuple[Sequence[Any], Sequence[float]]], count: int, names: Sequence[str]
) -> dict[str, pa.Array]:
    """Columns of `count` rows from the labels and scores of those rows that have some; elsewhere nulls.

    Scores are rounded to six decimals: a float32 has no more that mean something.
    """
    import pyarrow as pa

    columns = {}
    for place, (label, score) in enumerate(zip(names[::2], names[1::2], strict=True)):
        cells = [
            (str(labels[place]), round(scores[place], 6)) if place < len(labels) else (None, None)
            for labels, scores in (found.get(row, ((), ())) for row in range(count))
        ]
        columns[label] = pa.array([cell[0] for cell in cells], pa.string())
        columns[score] = pa.array([cell[1] for cell in cells], pa.float64())
    return columns


def encode(rows: Dataset, start: int, stop: int, more: dict[str, pa.Array], fmt: str) -> bytes:
    """Rows start ... stop - 1 with more columns, as the bytes to append to a file; the first ones bring the header.

    For parquet, which can't grow, these are the bytes of an Arrow stream: see `to_parquet`.
    """
    if fmt == "parquet":
        table = rows.with_format("arrow")[start:stop]
        table = table.replace_schema_metadata(rows.features.arrow_schema.metadata)  # nothing that differs between runs
        for name, values in more.items():
            table = table.append_column(name, values)
        messages = [] if start else [table.schema.serialize()]
        messages += [batch.serialize() for batch in table.combine_chunks().to_batches()]
        return b"".join(message.to_pybytes() for message in messages)
    columns = {**rows[start:stop], **{name: values.to_pylist() for name, values in more.items()}}
    lines = list(zip(*columns.values(), strict=True))
    if fmt == "jsonl":
        return "".join(_json(dict(zip(columns, line, strict=True))) + "\n" for line in lines).encode()
    text = _Lines()
    writer = csv.writer(text, delimiter=DELIMITERS[fmt], lineterminator="\r\n")
    if start == 0:
        writer.writerow(columns)
    writer.writerows([_json(cell) if isinstance(cell, (dict, list)) else cell for cell in line] for line in lines)
    return text.getvalue().encode()


class _Lines(io.StringIO):
    r"""Rows of a `csv.writer` whose ends are "\r\n", ended by "\n" alone.

    Before Python 3.13 a writer puts marks around a "\r", which ends rows for readers, only where its own ends hold one.
    """

    def write(self, row: str, /) -> int:
        return super().write(row.removesuffix("\r\n") + "\n")


def _json(value: Any) -> str:
    def plain(other: Any) -> Any:
        return other.isoformat() if hasattr(other, "isoformat") else str(other)

    try:
        return json.dumps(value, ensure_ascii=False, default=plain, allow_nan=False)
    except ValueError:
        return json.dumps(_finite(value), ensure_ascii=False, default=plain)


def _finite(value: Any) -> Any:
    """With null for NaN and infinity, which JSON has no word for."""
    if isinstance(value, dict):
        return {name: _finite(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def to_parquet(stream: Path, path: Path) -> None:
    """Turn what `encode` gave for parquet into a parquet file."""
    import pyarrow as pa
    from pyarrow import parquet

    with (
        pa.memory_map(str(stream)) as source,
        pa.ipc.open_stream(source) as reader,
        parquet.ParquetWriter(path, reader.schema) as out,
    ):
        group: list[pa.RecordBatch] = []
        for batch in reader:
            group.append(batch)
            if sum(len(part) for part in group) >= 1 << 16:
                out.write_table(pa.Table.from_batches(group))
                group = []
        if group:
            out.write_table(pa.Table.from_batches(group))
