"""What the scripts of this folder share: their arguments, and results as JSON and markdown."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

import surprise_hf


def arguments(description: str | None, out: str) -> argparse.ArgumentParser:
    """A parser with --model and --out."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--model", action="append", required=True, help="name=path or name=path,prompt (see zero_shot.py); repeatable"
    )
    parser.add_argument("--out", type=Path, default=Path(out), help=f"folder for results and embeddings ({out})")
    return parser


def write_results(out: Path, name: str, markdown: str, **data: Any) -> None:
    """Print the markdown, and write it and the data, with the versions that made them, to `out`."""
    about = {"surprise_hf": surprise_hf.__version__, "torch": torch.__version__}
    out.mkdir(parents=True, exist_ok=True)
    (out / f"{name}.json").write_text(json.dumps({**about, **data}, indent=1) + "\n", encoding="utf-8")
    (out / f"{name}.md").write_text(markdown, encoding="utf-8")
    print(markdown)


@contextmanager
def resumed(path: Path, settings: dict[str, Any]) -> Iterator[tuple[list[dict[str, Any]], Any]]:
    """Rows of an interrupted run with the same settings, and a function that adds one, kept as JSON lines.

    A line that was cut off is dropped; a file with other settings is started anew.
    """
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True) if path.exists() else []
    rows: list[dict[str, Any]] = [json.loads(line) for line in lines if line.endswith("\n")]
    path.parent.mkdir(parents=True, exist_ok=True)
    if not rows or rows.pop(0) != settings:
        rows = []
    with path.open("w", encoding="utf-8") as file:

        def keep(row: dict[str, Any]) -> None:
            file.write(json.dumps(row) + "\n")
            file.flush()

        for row in (settings, *rows):
            keep(row)

        def add(row: dict[str, Any]) -> None:
            rows.append(row)
            keep(row)

        yield rows, add
