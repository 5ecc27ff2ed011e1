"""Tables for the command line, without a model."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from surprise_hf import tables

NOTHING = {
    "csv": b"id,text\n1,\n2,\n",
    "tsv": b"id\ttext\n1\t\n2\t\n",
    "jsonl": b'{"id": 1, "text": null}\n{"id": 2}\n',
}


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
