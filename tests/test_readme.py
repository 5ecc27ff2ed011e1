"""Every example of README.md runs, and prints what the README shows."""

from __future__ import annotations

import contextlib
import io
import os
import re
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"^```(python|bash)\n(.*?)^```\n(?:```text\n(.*?)^```\n)?", re.DOTALL | re.MULTILINE)
BLOCKS = [found.groups() for found in BLOCK.finditer(README)]
NUMBER = re.compile(r"-?\d+\.\d+")


def same(printed: str, shown: str) -> bool:
    """Equal text; numbers agree to one unit of the last digit shown, the op's rounding being the machine's."""
    if " ".join(NUMBER.sub("#", printed).split()) != " ".join(NUMBER.sub("#", shown).split()):
        return False
    pairs = zip(NUMBER.findall(printed), NUMBER.findall(shown), strict=True)
    return all(abs(float(a) - float(b)) <= 1.01 * 10.0 ** -len(b.split(".")[1]) for a, b in pairs)


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files that the README uses, and the programs it calls."""
    folder = tmp_path_factory.mktemp("readme")
    (folder / "examples").symlink_to(ROOT / "examples")
    (folder / "bin").mkdir()
    for name, args in {"python": "", "surprise-hf": "-m surprise_hf.cli "}.items():
        program = folder / "bin" / name
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" {args}"$@"\n')
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return folder


def test_comparison_can_fail():
    assert same("a 0.123 b\n", "a  0.124 b")
    assert not same("a 0.123 b", "a 0.125 b")
    assert not same("a 0.123 b", "a 0.123 c")
    assert not same("", "a")


def test_python_examples(workplace: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(workplace)
    names: dict[str, Any] = {}
    examples = [(code, shown) for kind, code, shown in BLOCKS if kind == "python"]
    assert len(examples) >= 3
    for code, shown in examples:
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(compile(code, "README.md", "exec"), names)
        assert shown is not None, f"an example without output:\n{code}"
        assert same(out.getvalue(), shown), f"{code}\nprinted\n{out.getvalue()}\nand README.md shows\n{shown}"
    from sentence_transformers import SentenceTransformer

    assert SentenceTransformer("support-model", device="cpu").get_embedding_dimension() == 384


def test_the_task_is_unknown_without_import():
    code = "import transformers\ntry: transformers.pipeline('surprise-zero-shot')\nexcept KeyError as e: print(e)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "Unknown task" in done.stdout, done.stderr


def test_shell_examples(workplace: Path):
    examples = [(code, shown) for kind, code, shown in BLOCKS if kind == "bash" and "surprise-hf" in code]
    assert examples
    path = os.pathsep.join([str(workplace / "bin"), os.environ["PATH"]])
    env = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
    for code, shown in examples:
        done = subprocess.run(
            ["bash", "-ec", code], cwd=workplace, env=env, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        assert shown is not None, f"an example without output:\n{code}"
        assert same(done.stdout, shown), f"{code}\nprinted\n{done.stdout}\nand README.md shows\n{shown}"


def test_make_targets_and_links():
    targets = re.findall(r"^([a-z]+):.*##", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert set(re.findall(r"^make (\w+)", README, re.MULTILINE)) <= set(targets)
    for link in re.findall(r"\]\(([^)#:]+)\)", README):
        assert (ROOT / link).exists(), link


def test_results_are_those_of_the_results_page():
    """Each row of the README's table is a row of docs/results.md."""
    results = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    known = [[cell.strip() for cell in line.split("|")[1:-1]] for line in results.splitlines() if line.startswith("|")]
    accuracy = {(row[0], row[1]): (row[4], row[5]) for row in known if len(row) == 8}
    names = {"DBpedia": "dbpedia", "CLINC150": "clinc150", "AG News": "ag_news", "SST-2": "sst2"}
    encoders = {"MiniLM": "minilm", "4-bit E5 small": "e5-small-4bit"}
    rows = re.findall(r"^\| ([^,|]+), \d+ labels, ([^|]+) \| ([^|]+) \| ([^|]+) \|$", README, re.MULTILINE)
    assert len(rows) == 4
    for name, encoder, cosine, surprise in rows:
        assert accuracy[encoders[encoder], names[name]] == (cosine.strip("* "), surprise.strip("* "))
