"""Tables for the command line, without a model."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import math
import os
import sys
import threading
import warnings
from contextlib import nullcontext
from datetime import date
from pathlib import Path

import pyarrow as pa
import pytest
from datasets import Dataset
from pyarrow import parquet

from surprise_hf import tables

NOTHING = {
    "csv": b"id,text\n1,\n2,\n",
    "tsv": b"id\ttext\n1\t\n2\t\n",
    "jsonl": b'{"id": 1, "text": null}\n{"id": 2}\n',
}


@pytest.mark.parametrize(
    ("name", "fmt"),
    [("a.csv", "csv"), ("A.CSV", "csv"), ("a.b.Tsv", "tsv"), ("a.ndjson", "jsonl"), ("a.JSONL", "jsonl"), ("x/a", None),
     ("a.parquet", "parquet"), ("csv", None), ("a.csv.gz", None)],
)  # fmt: skip
def test_a_format_by_the_end_of_the_name(name: str, fmt: str | None):
    assert tables.format_of(name) == fmt


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("fmt", tables.FORMATS)
def test_a_column_without_any_text_is_one_of_blank_documents(tmp_path: Path, fmt: str, exact: bool):
    """pandas and parquet take it for numbers."""
    if fmt == "parquet":
        parquet.write_table(pa.table({"id": [1, 2], "text": pa.array([None, None], pa.float64())}), tmp_path / "in")
    else:
        (tmp_path / "in").write_bytes(NOTHING[fmt])
    with tables.reading(str(tmp_path / "in"), fmt, "text", exact) as source:
        assert list(source.rows["text"]) == [None, None]
        assert [str(value) for value in source.rows["id"]] == ["1", "2"]


def test_a_column_of_numbers_is_none_of_text(tmp_path: Path):
    parquet.write_table(pa.table({"text": [1.5, None]}), tmp_path / "in")
    with (
        pytest.raises(ValueError, match=r"column 'text' .* does not hold text, but float64"),
        tables.reading(str(tmp_path / "in"), "parquet", "text", exact=True),
    ):
        pass


def read(path: Path, data: bytes, fmt: str = "csv", exact: bool = True) -> dict:
    path.write_bytes(data)
    with tables.reading(str(path), fmt, "text", exact) as source:
        return source.rows[:]


@pytest.mark.parametrize("blank", [b"", b"\n\n"])
def test_a_column_without_a_name_keeps_it_and_its_cells(tmp_path: Path, blank: bytes):
    """As pandas writes its row names; exact cells stay the text they are."""
    found = read(tmp_path / "in.csv", blank + b",text\n007,x\n010,y\n")
    assert found == {"": ["007", "010"], "text": ["x", "y"]}
    found = read(tmp_path / "in.csv", blank + b",text\n7,x\n", exact=False)
    assert found == {"": [7], "text": ["x"]}


LATE = [  # a column's cells in the first 10,000 rows (pandas and `datasets` read so many at once), the last, all of it
    ("", "x7", [None, "x7"]),
    ("", "7", [None, 7]),
    ("1", "1.5", [1.0, 1.5]),
    ("1", "x7", ["1", "x7"]),
    ("1", "", [1, None]),
    ("1.5", "True", ["1.5", "True"]),
    ("True", "", [True, None]),
    ("", "", [None, None]),
]


@pytest.mark.parametrize(("first", "last", "inferred"), LATE)
@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("fmt", ["csv", "tsv"])
def test_a_column_has_one_type_whatever_its_first_rows_hold(
    tmp_path: Path, fmt: str, exact: bool, first: str, last: str, inferred: list
):
    """That of the documents too, which is text in any case."""
    mark = tables.DELIMITERS[fmt]
    lines = [mark.join(("text", "note")), *[mark.join((first, first))] * 10_001, mark.join((last, last))]
    found = read(tmp_path / "in", "\n".join([*lines, ""]).encode(), fmt, exact)
    as_text = [first or None, last or None]
    assert [found["text"][0], found["text"][-1]] == as_text
    ends = [found["note"][0], found["note"][-1]]
    wanted = as_text if exact else inferred
    assert ends == wanted
    assert list(map(type, ends)) == list(map(type, wanted))
    assert len(found["note"]) == 10_002


@pytest.mark.parametrize(
    ("cells", "inferred"),
    [
        (["12345678901234567", "", "12345678901234568"], [12345678901234567, None, 12345678901234568]),
        (["9223372036854775807", "-9223372036854775808"], [2**63 - 1, -(2**63)]),
        (["9223372036854775808", "1"], None),  # more than 64 bits
        (["100000000000000000000"], None),
        (["00123", "7"], None),
        (["+7"], None),
        (["007.5"], None),
        (["-0.5", "0", "1e5", "2.50", "-12"], [-0.5, 0.0, 1e5, 2.5, -12.0]),
        (["0.30000000000000004", "3.141592653589793"], [0.1 + 0.2, math.pi]),
        (["0.1000000000000000055"], None),  # the digits beyond a float64's
        (["1.5", "12345678901234567"], None),  # it would end in 8
        (["1e400"], None),
        (["1e-400"], None),
        (["nan", "1.5"], None),
        (["Infinity"], None),
        (["1_000", " 1"], None),
        (["\u0661"], None),  # a digit, in Arabic
        (["0x10"], None),
        (["true", "FALSE", ""], [True, False, None]),
        (["True", "1"], None),
        (["2024-05-06"], None),
    ],
    ids=str,
)
def test_cells_become_numbers_where_nothing_is_lost(tmp_path: Path, cells: list[str], inferred: list | None):
    data = "text,n\n" + "".join(f"x,{cell}\n" for cell in cells)
    found = read(tmp_path / "in", data.encode(), exact=False)["n"]
    wanted = cells if inferred is None else inferred
    assert found == wanted
    assert list(map(type, found)) == list(map(type, wanted))


def test_blank_lines_before_the_header(tmp_path: Path):
    assert read(tmp_path / "in.csv", b"\n\ntext\nx\n\ny\n") == {"text": ["x", None, "y"]}
    assert read(tmp_path / "in.csv", b"\n\ntext,b\nx,1\n\ny,2\n") == {"text": ["x", "y"], "b": ["1", "2"]}


@pytest.mark.parametrize(("cell", "swallowed"), [(b'"It is', True), (b'say "it"', False), (b'"a ""b"""', False)])
@pytest.mark.parametrize("exact", [True, False])
def test_marks_in_a_tsv(tmp_path: Path, cell: bytes, swallowed: bool, exact: bool):
    """Where nothing is quoted, a mark at the beginning of a cell takes everything up to the next one: told of."""
    data = b"id\ttext\n1\t" + cell + b'\n2\tplain\n3\t"quoted"\n4\tlast\n'
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        found = read(tmp_path / "in.tsv", data, "tsv", exact)
    told = [str(one.message) for one in told if "quotation" in str(one.message)]
    if swallowed:
        assert len(found["text"]) < 4
        assert found["text"][0] == 'It is\n2\tplain\n3\tquoted"'
        assert [text[:44] for text in told] == [f"1 cells of {tmp_path / 'in.tsv'} hold"[:44]]
    else:
        assert len(found["text"]) == 4
        assert told == []


@pytest.mark.parametrize(("fmt", "mark"), [("csv", ","), ("tsv", "\t")])
def test_what_is_written_is_read_again(tmp_path: Path, fmt: str, mark: str):
    """Marks, ends of lines and separators in cells of the text formats."""
    texts = ['"It is', 'say "it"', f"two{mark}cells", "two\nlines", "two\rlines", "\r", "a\r\nb", '"', "'", "plain"]
    rows = Dataset.from_dict({"id": [str(i) for i in range(len(texts))], "text": texts})
    data = tables.encode(rows, 0, len(texts), {}, fmt)
    with pytest.warns(UserWarning, match="5 cells of .* hold tabs") if fmt == "tsv" else nullcontext():
        assert read(tmp_path / "in", data, fmt) == rows[:]


@pytest.mark.parametrize(("fmt", "mark"), [("csv", ","), ("tsv", "\t")])
def test_a_carriage_return_is_in_quotation_marks_and_nothing_else_changes(fmt: str, mark: str):
    cells = ["plain", "", "naïve", "two\nlines", 'say "it"', "a\rb", "\r", "a\r\n"]
    rows = Dataset.from_dict({"na\rme": cells, "n": [0.5] * len(cells)})
    written = ["plain", "", "naïve", '"two\nlines"', '"say ""it"""', '"a\rb"', '"\r"', '"a\r\n"']
    more = {"label": pa.array(["x\ry"] * len(cells))}
    data = tables.encode(rows, 0, len(cells), more, fmt).decode()
    assert data == f'"na\rme"{mark}n{mark}label\n' + "".join(f'{cell}{mark}0.5{mark}"x\ry"\n' for cell in written)
    found = list(csv.reader(io.StringIO(data, newline=""), delimiter=mark))
    assert found == [["na\rme", "n", "label"], *([cell, "0.5", "x\ry"] for cell in cells)]


@pytest.mark.parametrize("fmt", tables.FORMATS)
def test_views_of_strings_are_text(tmp_path: Path, fmt: str):
    cells = [*(f"a text of more than twelve bytes {i}" for i in range(40)), "short", "", None]
    view = pa.array(cells).cast(pa.string_view())
    parquet.write_table(pa.table({"text": view, "other": view}), tmp_path / "in")
    with tables.reading(str(tmp_path / "in"), "parquet", "text", exact=True) as source:
        assert source.rows[:] == {"text": cells, "other": cells}
        assert str(source.rows.data.schema.field("text").type) == "string"
        chunks = [tables.encode(source.rows, at, min(at + 16, len(cells)), {}, fmt) for at in range(0, len(cells), 16)]
    (tmp_path / "out").write_bytes(b"".join(chunks))
    if fmt == "parquet":
        tables.to_parquet(tmp_path / "out", tmp_path / "whole")
        (tmp_path / "whole").replace(tmp_path / "out")
    found = read(tmp_path / "in", (tmp_path / "out").read_bytes(), fmt)
    for name in ("text", "other"):  # a CSV does not tell an empty cell from a missing one
        assert [cell or None for cell in found[name]] == [cell or None for cell in cells]


def test_large_strings_are_text(tmp_path: Path):
    parquet.write_table(pa.table({"text": pa.array(["a", None], pa.large_string())}), tmp_path / "in")
    with tables.reading(str(tmp_path / "in"), "parquet", "text", exact=True) as source:
        assert source.rows["text"][:] == ["a", None]


def test_json_has_no_word_for_nan_and_infinity():
    columns = {
        "x": [0.5, math.nan, math.inf],
        "inner": [{"a": [math.nan, 1.0]}, {"a": []}, None],
        "t": [date(2020, 1, 2)] * 3,
    }
    rows = Dataset.from_dict(columns)

    def refuse(word: str) -> None:
        raise AssertionError(word)

    lines = tables.encode(rows, 0, 3, {}, "jsonl").decode().splitlines()
    found = [json.loads(line, parse_constant=refuse) for line in lines]
    assert [row["x"] for row in found] == [0.5, None, None]
    assert [row["inner"] for row in found] == [{"a": [None, 1.0]}, {"a": []}, None]
    assert {row["t"] for row in found} == {"2020-01-02"}
    text = tables.encode(rows, 0, 3, {}, "csv").decode()
    assert next(csv.DictReader(io.StringIO(text)))["inner"] == '{"a": [null, 1.0]}'


@pytest.mark.parametrize("size", [1 << 23, 1])  # bytes of lines at once: all of them, and one line
def test_json_lines_come_back_as_they_are(tmp_path: Path, monkeypatch, size: int):
    """Strings that look like dates, large integers, keys and types that a later line brings."""
    lines = [
        {"text": "2024-01-01", "day": "2024-01-01", "n": None, "x": 1},
        {"text": "b", "day": "2024-01-02T00:00:00Z", "n": 2**63 - 1, "x": 2.5},
        {"text": None, "day": "10:30", "n": -(2**63), "x": 3, "late": {"a": [1, 2], "b": "2024-05-06"}},
    ]
    monkeypatch.setattr(tables, "READ_BYTES", size)
    (tmp_path / "in").write_text("\ufeff" + "\n\n".join(json.dumps(line) for line in lines), encoding="utf-8")
    with tables.reading(str(tmp_path / "in"), "jsonl", "text", exact=False) as source:
        out = tables.encode(source.rows, 0, 3, {}, "jsonl")
    want = [{**dict.fromkeys(lines[-1]), **line} for line in lines]
    assert [json.loads(line) for line in out.splitlines()] == want


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b'{"text": "a"}\n\n{"text": \n', r"line 3: Expecting value"),
        (b'{"text": "a"}\n["b"]\n', r"line 2 is no object in braces"),
        (
            b'{"text": "a", "n": 12345678901234567890123}\n',
            r"column 'n', in line 1 or after: an integer of more than 64",
        ),
        (b'{"text": "a", "n": 1}\n{"text": "b", "n": "x"}\n', r"column 'n', in line 1 or after: .*'x'"),
        (b'{"text": "a"}\n\n{"text": "b \\ud83d c"}', r"line 3: '\\ud83d' is half of a surrogate pair"),
        (rb'{"text": "a", "x": {"y": ["\uDE00"]}}', r"line 1: '\\ude00' is half"),
        (rb'{"text": "a", "\ude00\ud83d": 1}', r"line 1: '\\ude00' is half"),
    ],
)
def test_json_lines_that_no_table_holds(tmp_path: Path, data: bytes, message: str):
    with pytest.raises(ValueError, match=f"can't be read as jsonl: {message}"):
        read(tmp_path / "in", data, "jsonl")


def test_lines_are_counted_over_parts_and_blank_ones(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(tables, "READ_BYTES", 1)
    with pytest.raises(ValueError, match="line 4: Expecting value"):
        read(tmp_path / "in", b'{"text": "a"}\n\n{"text": "b"}\n{"text": \n', "jsonl")


def test_escapes_that_are_characters(tmp_path: Path):
    data = rb'{"text": "\ud83d\uDE00 \u00e9", "\ud83d\ude00": "\\ud83d"}'
    assert read(tmp_path / "in", data, "jsonl") == {"text": ["😀 é"], "😀": [r"\ud83d"]}


def test_json_types_that_change_between_parts(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(tables, "READ_BYTES", 1)
    with pytest.raises(ValueError, match=r"can't be read as jsonl: .*int64.*string"):
        read(tmp_path / "in", b'{"text": "a", "n": 1}\n{"text": "b", "n": "x"}\n', "jsonl")


@pytest.mark.parametrize("size", [1 << 23, 1])
def test_a_json_column_of_several_kinds_is_named_with_a_way_out(tmp_path: Path, monkeypatch, size: int):
    monkeypatch.setattr(tables, "READ_BYTES", size)
    for one, other in (("1", '"x"'), ('{"a": 1}', "[1]"), ("true", "1"), ('{"a": 1}', '{"a": "x"}')):
        data = f'{{"text": "a", "unused": {one}}}\n{{"text": "b", "unused": {other}}}\n'
        with pytest.raises(ValueError, match=r"unused.*values of one kind: put all of them in quotes, as text, or le"):
            read(tmp_path / "in", data.encode(), "jsonl")


@pytest.mark.parametrize("nested", [False, True])
def test_a_parquet_column_of_a_type_that_datasets_lacks_is_named_with_a_way_out(tmp_path: Path, nested: bool):
    kind = pa.map_(pa.string(), pa.int64())
    cells = pa.array([{"m": [("a", 1)]}], pa.struct([("m", kind)])) if nested else pa.array([[("a", 1)]], kind)
    parquet.write_table(pa.table({"text": ["a"], "unused": cells}), tmp_path / "in")
    with pytest.raises(
        ValueError, match=r"column 'unused' is of the type .*map<.*leave the column out, or write it as t"
    ):
        read(tmp_path / "in", (tmp_path / "in").read_bytes(), "parquet")


# --- where from --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fmt", tables.FORMATS)
def test_a_pipe_is_read_as_a_file_is(tmp_path: Path, fmt: str):
    """As `<(zcat mail.csv.gz)` gives one, which can be read once and from its beginning alone."""
    rows = Dataset.from_dict({"id": ["a", "b"], "text": ["x", "y"]})
    data = tables.encode(rows, 0, 2, {}, fmt)
    if fmt == "parquet":
        parquet.write_table(rows.data.table, tmp_path / "file")
        data = (tmp_path / "file").read_bytes()
    os.mkfifo(tmp_path / "pipe")
    writer = threading.Thread(target=(tmp_path / "pipe").write_bytes, args=(data,))
    writer.start()
    with tables.reading(str(tmp_path / "pipe"), fmt, "text", exact=True) as source:
        assert source.rows[:] == rows[:]
        assert source.digest == hashlib.sha256(data).hexdigest()
    writer.join()


def test_what_is_no_table_is_told_what_it_is(tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "stdin", None)  # as Python has it where the caller closed it
    for path, error, message in (
        (".", IsADirectoryError, r"^\. is a folder"),
        ("none.csv", FileNotFoundError, "no such file: none.csv"),
        ("-", ValueError, "standard input is closed"),
    ):
        with pytest.raises(error, match=message), tables.reading(path, "csv", "text", exact=True):
            pass
