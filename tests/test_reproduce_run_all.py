"""examples/reproduce/run_all.py: every part gets its arguments, a failing one costs nothing but itself."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from tests.reproduce_data import SCRIPTS, call, make_folder, scripts


@pytest.fixture
def run_all(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return scripts(monkeypatch, "run_all")[0]


def test_every_part_is_a_script_that_takes_its_arguments(
    run_all: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[list[str]] = []

    def started(command: list[str], check: bool) -> subprocess.CompletedProcess:
        assert not check
        seen.append(command)
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(run_all, "subprocess", SimpleNamespace(run=started))
    given = ["--data", tmp_path, "--model", "a=b", "--model", "c=d,query:_", "--limit", 7, "--runs", 3]
    assert call(run_all, monkeypatch, *given, "--out", tmp_path / "out", "--add", "clustering=--titles 5") == 0
    assert [Path(command[1]).stem for command in seen] == list(run_all.PARTS)
    monkeypatch.undo()
    parsed, parsers = {}, []
    for command in seen:
        name = Path(command[1]).stem
        assert command[0] == sys.executable
        with pytest.MonkeyPatch.context() as patch:
            (module,) = scripts(patch, name)
            patch.setattr("argparse.ArgumentParser.parse_args", lambda self: parsers.append(self) or sys.exit())
            with pytest.raises(SystemExit):
                module.main()
            patch.undo()
        parsed[name] = parsers[-1].parse_args(command[2:])
    for name, options in parsed.items():
        assert (options.data, options.model, options.limit) == (tmp_path, ["a=b", "c=d,query:_"], 7)
        assert (options.out, options.embeddings) == (tmp_path / "out" / name, tmp_path / "out" / "embeddings")
    assert {name: options.runs for name, options in parsed.items() if "runs" in options} == dict.fromkeys(
        run_all.REPEATED, 3
    )
    assert parsed["clustering"].titles == 5
    with pytest.raises(SystemExit):
        call(run_all, monkeypatch, "--data", tmp_path, "--only", "words,verbs")


def few_shot_call(run_all: ModuleType, monkeypatch: pytest.MonkeyPatch, *arguments: object) -> argparse.Namespace:
    """What few_shot.py makes of its call by run_all.py."""
    seen: list[list[str]] = []

    def started(command: list[str], check: bool) -> subprocess.CompletedProcess:
        assert not check
        seen.append(command[2:])
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(run_all, "subprocess", SimpleNamespace(run=started))
    call(run_all, monkeypatch, "--only", "few_shot", *arguments)
    (few_shot,) = scripts(monkeypatch, "few_shot")
    return few_shot.few_shot_arguments(None, "", few_shot.RUNS, few_shot.KS).parse_args(seen[0])


def test_a_limit_makes_a_trial(run_all: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def asked(*more: object) -> tuple[object, ...]:
        options = few_shot_call(run_all, monkeypatch, "--data", tmp_path, "--out", tmp_path / "out", *more)
        return options.k, options.runs, options.max_length, options.limit

    whole = "3,6,9,12,15,18,21"
    assert asked() == (whole, 10, None, None)
    assert asked("--limit", 500) == ("3,9,21", 3, 128, 500)
    assert asked("--limit", 500, "--runs", 2, "--max-length", 64) == ("3,9,21", 2, 64, 500)
    assert asked("--limit", 500, "--add", f"few_shot=--k {whole} --runs 10") == (whole, 10, 128, 500)
    assert run_all.TRIAL["few_shot"] in run_all.__doc__


def test_a_part_that_fails_leaves_the_others(st_path: Path, tmp_path: Path) -> None:
    data = make_folder(tmp_path / "data")
    command = [sys.executable, SCRIPTS / "run_all.py", "--data", data, "--model", f"tiny={st_path}", "--limit", "12"]
    command += ["--only", "words,zero_shot", "--out", tmp_path / "out", "--add", "words=--model none"]
    done = subprocess.run(
        list(map(str, command)),
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(SCRIPTS.parents[1])},
    )
    assert done.returncode == 1, done.stderr
    assert "FAILED (1)" in done.stdout
    assert "write name=PATH" in done.stderr
    assert "%|" not in done.stderr  # no progress bars where nobody looks
    page = (tmp_path / "out" / "index.md").read_text()
    assert "## Words like a dog\n\n**words.py failed with exit code 1**" in page
    assert "### Accuracy, percent" in page
    assert "![zero_shot](zero_shot/zero_shot.png)" in page
    assert (tmp_path / "out" / "zero_shot" / "zero_shot.png").exists()
    assert list((tmp_path / "out" / "embeddings").rglob("*.safetensors"))
