"""For the tests of the command line: a table, its formats, and the command run in this process or another."""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from surprise_hf import cli
from tests.conftest import WORDS

ROOT = Path(__file__).parents[1]
LABELS = ["sport", "politics", "food"]
# 70 rows: with --batch-size 1 a chunk is 16 rows, so five chunks, the last of 6; rows 5, 6 and 40 are blank
TEXTS: list[str | None] = [" ".join(WORDS[(7 * i + j * j) % len(WORDS)] for j in range(2 + i % 9)) for i in range(70)]
TEXTS[5:7], TEXTS[40], TEXTS[12] = ["", "  "], None, 'a "quoted", text\nin two lines: naïve'
ROWS = [{"id": f"{i:03d}", "text": text, "n": i * 0.5} for i, text in enumerate(TEXTS)]
BLANK = [5, 6, 40]


def write(path: Path, rows: list[dict[str, Any]] | None = None) -> Path:
    rows = ROWS if rows is None else rows
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    elif path.suffix == ".parquet":
        parquet.write_table(pa.Table.from_pylist(rows), path)
    else:
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(rows[0]), delimiter="\t" if path.suffix == ".tsv" else ",")
            writer.writeheader()
            writer.writerows(rows)
    return path


def read(data: bytes, fmt: str) -> list[dict[str, Any]]:
    if fmt == "parquet":
        return parquet.read_table(io.BytesIO(data)).to_pylist()
    text = data.decode()
    if fmt == "jsonl":
        return [json.loads(line) for line in text.splitlines()]
    return list(csv.DictReader(io.StringIO(text, newline=""), delimiter="\t" if fmt == "tsv" else ","))


class Command:
    """Runs `surprise-hf` here, on the tiny encoder."""

    def __init__(self, capture: Any, model: Path) -> None:
        self.capture, self.model, self.out, self.err = capture, str(model), b"", ""

    def __call__(self, *args: object) -> int:
        self.capture.readouterr()
        try:
            code = cli.main([str(arg) for arg in args])
        except SystemExit as exit_:
            code = int(exit_.code or 0)
        out, err = self.capture.readouterr()
        self.out, self.err = out, err.decode()
        assert "Traceback" not in self.err
        return code

    def classify(self, source: object, *args: object) -> int:
        labels = () if "--labels-file" in args or "--labels" in args else ("--labels", ",".join(LABELS))
        rest = ("--text-column", "text", "--model", self.model, "--device", "cpu", "--batch-size", 1)
        return self("classify", source, *rest, *labels, *args)


def interrupt_after(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, calls: int, error: type[BaseException]
) -> Callable[[], int]:
    """The function fails at call number `calls` (from 0); returns a counter of the calls that went through."""
    real, made = getattr(owner, name), [0]

    def stopping(*args: Any, **kwargs: Any) -> Any:
        if made[0] == calls:
            raise error("disk full")
        made[0] += 1
        return real(*args, **kwargs)

    monkeypatch.setattr(owner, name, stopping)
    return lambda: made[0]


def interrupt_clean_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """The deletion of a run's folder is interrupted when one of its files, the first by name, is gone."""
    real = shutil.rmtree

    def stopping(path: Any, *args: Any, **kwargs: Any) -> None:
        files = sorted(file for file in Path(path).glob("*.partial/**/*") if file.is_file())
        if not files:  # of another folder
            return real(path, *args, **kwargs)
        monkeypatch.setattr(shutil, "rmtree", real)
        files[0].unlink()
        raise KeyboardInterrupt

    monkeypatch.setattr(shutil, "rmtree", stopping)


def in_a_process(code: str, *args: str, **kwargs: Any) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
    code = f"import sys\nfrom surprise_hf import cli\n{code}\nsys.exit(cli.main())"
    return subprocess.run(
        [sys.executable, "-c", code, *args], env=env, stderr=subprocess.PIPE, text=True, check=False, **kwargs
    )
