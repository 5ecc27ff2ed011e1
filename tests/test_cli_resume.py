"""`classify` interrupted and gone on with: every finished chunk is kept, the bytes are those of one run."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from surprise_hf import SurpriseZeroShotPipeline, arguments, cli, jobs, tables
from surprise_hf.model import SurpriseModel
from tests.cli_data import ROWS, Command, in_a_process, interrupt_after, interrupt_clean_up, read, write


@pytest.fixture
def command(capsysbinary: Any, st_path: Path) -> Command:
    return Command(capsysbinary, st_path)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, st_path: Path) -> Callable[..., bytes]:
    """What an uninterrupted run writes; each case is run once."""
    made: dict[tuple[str, ...], bytes] = {}

    def make(suffix: str, *options: str) -> bytes:
        key = (suffix, *options)
        if key not in made:
            folder = tmp_path_factory.mktemp("whole")
            args = ["--text-column", "text", "--model", str(st_path), "--device", "cpu", "--batch-size", "1"]
            source, out = write(folder / "in.csv"), folder / f"out{suffix}"
            assert (
                cli.main(["classify", str(source), *args, "--labels", "sport,food", "--out", str(out), *options]) == 0
            )
            made[key] = out.read_bytes()
        return made[key]

    return make


@pytest.fixture(scope="module")
def ensemble_file(tmp_path_factory: pytest.TempPathFactory, st_path: Path) -> Path:
    folder = tmp_path_factory.mktemp("ensemble")
    args = ["--text-column", "text", "--model", str(st_path), "--device", "cpu", "--out", str(folder / "e")]
    assert cli.main(["fit-ensemble", str(write(folder / "in.csv")), *args]) == 0
    return folder / "e"


ARGS = ("--labels", "sport,food")


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
@pytest.mark.parametrize("where", ["embedding 0", "embedding 3", "writing 0", "writing 2", "finishing"])
def test_interrupted_then_resumed(
    command: Command,
    whole: Callable[..., bytes],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    suffix: str,
    where: str,
):
    source, out, expected = write(tmp_path / "in.csv"), tmp_path / f"out{suffix}", whole(suffix)
    out.write_bytes(b"of an earlier day\n" * 1000)
    what, _, calls = where.partition(" ")
    owner, name = {
        "embedding": (SurpriseModel, "embed"),
        "writing": (tables, "encode"),
        "finishing": (jobs.Job, "finish"),
    }[what]
    with monkeypatch.context() as patch:
        interrupt_after(patch, owner, name, int(calls or 0), KeyboardInterrupt)
        assert command.classify(source, *ARGS, "--out", out) == 130
    assert "interrupted; what is finished is kept; go on with: surprise-hf classify" in command.err
    again = shlex.split(command.err.split("go on with: surprise-hf ")[1])
    embedded = interrupt_after(monkeypatch, SurpriseModel, "embed", -1, OSError)
    written = interrupt_after(monkeypatch, tables, "encode", -1, OSError)
    assert command(*again) == 0
    assert out.read_bytes() == expected
    # nothing finished is done again: 5 chunks embedded (and the labels), 5 written
    done = {"embedding 0": (0, 0), "embedding 3": (3, 0), "writing 0": (5, 0), "writing 2": (5, 2)}.get(where, (5, 5))
    assert embedded() == 5 - done[0] + (done[1] < 5)
    assert written() == 5 - done[1]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.csv", out.name]
    assert command(*again) == 0  # once more: nothing to do
    assert "complete" in command.err
    assert out.read_bytes() == expected


def test_with_an_ensemble_rows_are_written_as_they_come(
    command: Command, whole: Callable[..., bytes], ensemble_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    source, out, options = write(tmp_path / "in.csv"), tmp_path / "out.csv", ("--ensemble", str(ensemble_file))
    expected = whole(".csv", *options)
    with monkeypatch.context() as patch:
        interrupt_after(patch, SurpriseModel, "embed", 4, OSError)  # chunk, labels, chunk, chunk, and out
        assert command.classify(source, *ARGS, "--out", out, *options) == 1
    assert "error: disk full" in command.err
    assert "--resume" in command.err
    assert expected.startswith(out.read_bytes())
    assert len(read(out.read_bytes(), "csv")) == 48
    with out.open("ab") as file:  # as a kill in the middle of a chunk leaves it
        file.write(b"048,half a ro")
    with (tmp_path / "out.csv.partial" / "rows.ends").open("a") as file:
        file.write("99")
    assert command.classify(source, *ARGS, "--out", out, *options, "--resume") == 0
    assert out.read_bytes() == expected


def test_a_shortened_output_is_written_again_from_there(
    command: Command, whole: Callable[..., bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    source, out = write(tmp_path / "in.csv"), tmp_path / "out.csv"
    with monkeypatch.context() as patch:
        interrupt_after(patch, tables, "encode", 3, KeyboardInterrupt)
        assert command.classify(source, *ARGS, "--out", out) == 130
    out.write_bytes(out.read_bytes()[:-5])
    assert command.classify(source, *ARGS, "--out", out, "--resume") == 0
    assert out.read_bytes() == whole(".csv")


def test_resume_refuses_another_run(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    source, out = write(tmp_path / "in.csv"), tmp_path / "out.csv"
    with monkeypatch.context() as patch:
        interrupt_after(patch, tables, "encode", 2, KeyboardInterrupt)
        assert command.classify(source, *ARGS, "--out", out) == 130
    before = out.read_bytes()
    assert command.classify(source, *ARGS, "--out", out) == 1
    assert "go on with it by --resume, or remove that folder" in command.err
    assert command.classify(source, "--labels", "sport,bread", "--out", out, "--resume") == 1
    assert "another candidate labels:" in command.err
    assert command.classify(source, *ARGS, "--out", out, "--resume", "--template", "on {}") == 1
    assert "another hypothesis template:" in command.err
    assert command.classify(write(tmp_path / "other.csv", ROWS[1:]), *ARGS, "--out", out, "--resume") == 1
    assert "another input:" in command.err
    for option, value, name in (
        ("--prompt", "query: ", "prompt"),
        ("--batch-size", 2, "batch size"),
        ("--text-column", "n", "text column"),
        ("--out-format", "tsv", "format"),
        ("--prefix", "my_", "columns"),
        ("--top-k", 2, "columns, top k"),
        ("--estimator", "quantile", "estimator"),
        ("--surprise-weight", 0.5, "surprise weight"),
        ("--refine", 1, "refine"),
    ):
        assert command.classify(source, *ARGS, "--out", out, "--resume", option, value) == 1
        assert f"another {name}:" in command.err
    assert out.read_bytes() == before


def test_resume_refuses_another_ensemble_in_the_same_file(
    command: Command, ensemble_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """And takes the same one from elsewhere."""
    source, out, ensemble = write(tmp_path / "in.csv"), tmp_path / "out.csv", tmp_path / "e"
    shutil.copy(ensemble_file, ensemble)
    with monkeypatch.context() as patch:
        interrupt_after(patch, tables, "encode", 2, KeyboardInterrupt)
        assert command.classify(source, *ARGS, "--out", out, "--ensemble", ensemble) == 130
    half = write(tmp_path / "half.csv", ROWS[:35])
    rest = ("--text-column", "text", "--model", command.model, "--device", "cpu")
    assert command("fit-ensemble", half, *rest, "--out", ensemble) == 0
    assert command.classify(source, *ARGS, "--out", out, "--resume", "--ensemble", ensemble) == 1
    assert "another ensemble:" in command.err
    assert command.classify(source, *ARGS, "--out", out, "--resume", "--ensemble", ensemble_file) == 0


def test_resume_refuses_another_model_in_the_same_folder(
    command: Command, st_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    pipe = SurpriseZeroShotPipeline(SurpriseModel.from_pretrained(st_path, device="cpu"), device="cpu")
    for name, labels in (("one", ["sport", "music"]), ("other", ["money", "stock"])):
        pipe.set_labels(labels, surprise_weight=1).save_pretrained(tmp_path / name)
    shutil.copytree(tmp_path / "one", tmp_path / "model")
    source, out = write(tmp_path / "in.csv"), tmp_path / "model" / "out.csv"  # what the run writes is no part of it
    run = ("classify", source, "--text-column", "text", "--model", tmp_path / "model", "--device", "cpu")
    run = (*run, "--batch-size", "1", "--out")
    assert command(*run, tmp_path / "whole.csv") == 0
    with monkeypatch.context() as patch:
        interrupt_after(patch, tables, "encode", 2, KeyboardInterrupt)
        assert command(*run, out) == 130
    before = out.read_bytes()
    shutil.copytree(tmp_path / "other", tmp_path / "model", dirs_exist_ok=True)
    assert command(*run, out, "--resume") == 1
    assert "out.csv.partial holds a run with another model: repeat that command" in command.err
    assert out.read_bytes() == before
    shutil.copytree(tmp_path / "one", tmp_path / "model", dirs_exist_ok=True)
    assert command(*run, out, "--resume") == 0
    assert out.read_bytes() == (tmp_path / "whole.csv").read_bytes()


@pytest.mark.parametrize("limit", [1 << 20, 0], ids=["read", "told by size and time"])
def test_what_makes_a_folder_another_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int):
    monkeypatch.setattr(arguments, "SMALL_FILE", limit)
    folder, out = tmp_path / "model", str(tmp_path / "model" / "out.csv")
    file = folder / "0_Part" / "weights"
    file.parent.mkdir(parents=True)
    file.write_text("abc")
    at = file.stat()
    first = arguments.model_identity(str(folder), out)
    for name in ("out.csv", "out.csv.partial/rows", ".git/index", "0_Part/.cache/x"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("x")
    assert arguments.model_identity(str(folder), out) == first
    file.write_text("abd")
    os.utime(file, ns=(at.st_atime_ns, at.st_mtime_ns + (limit == 0)))
    assert arguments.model_identity(str(folder), out) != first
    file.write_text("abc")
    os.utime(file, ns=(at.st_atime_ns, at.st_mtime_ns))
    assert arguments.model_identity(str(folder), out) == first
    (folder / "more").write_text("")
    assert arguments.model_identity(str(folder), out) != first
    file.rename(folder / "0_Part" / "moved")
    (folder / "more").unlink()
    assert arguments.model_identity(str(folder), out) != first
    assert arguments.model_identity("some/model", out) == "some/model"


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_a_complete_output_is_left_as_it_is(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str
):
    """Where nothing can be written, too."""
    source, out = write(tmp_path / "in.csv"), tmp_path / f"out{suffix}"
    assert command.classify(source, *ARGS, "--out", out) == 0
    before = out.read_bytes()
    monkeypatch.setattr(arguments.tempfile, "TemporaryFile", None)
    assert command.classify(source, "--labels", "money,stock", "--out", out, "--resume") == 0
    assert command.err == (
        f"surprise-hf: {out} is complete, and left as it is whatever the arguments: remove it for a new one\n"
    )
    assert out.read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.csv", out.name]


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
@pytest.mark.parametrize("when", ["before", "in the middle"])
def test_an_interrupted_clean_up_leaves_the_folder_whole_or_gone(
    command: Command,
    whole: Callable[..., bytes],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    when: str,
    suffix: str,
):
    """OUT is complete then, and half a folder was one of someone else to --resume."""
    source, out = write(tmp_path / "in.csv"), tmp_path / f"out{suffix}"
    with monkeypatch.context() as patch:
        if when == "before":
            interrupt_after(patch, jobs, "remove", 0, KeyboardInterrupt)
        else:
            interrupt_clean_up(patch)
        assert command.classify(source, *ARGS, "--out", out) == 130
    assert out.read_bytes() == whole(suffix)
    assert Path(f"{out}.partial").exists() == (when == "before")
    again = shlex.split(command.err.split("go on with: surprise-hf ")[1])
    interrupt_after(monkeypatch, SurpriseModel, "embed", int(when == "before"), OSError)  # the labels, to be compared
    assert command(*again) == 0
    assert out.read_bytes() == whole(suffix)
    assert not Path(f"{out}.partial").exists()


def test_an_interrupted_start_is_none(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Of a run that wrote nothing there is nothing to keep, however far the next one came in removing it."""
    source, out = write(tmp_path / "in.csv"), tmp_path / "out.csv"
    with monkeypatch.context() as patch:
        interrupt_after(patch, SurpriseModel, "embed", 0, KeyboardInterrupt)
        assert command.classify(source, *ARGS, "--out", out) == 130
    assert sorted(path.name for path in Path(f"{out}.partial").iterdir()) == [
        "embeddings.ends",
        "job.json",
        "rows.ends",
    ]
    with monkeypatch.context() as patch:
        interrupt_clean_up(patch)
        assert command.classify(source, *ARGS, "--out", out) == 130
    assert command.classify(source, *ARGS, "--out", out) == 0


@pytest.mark.parametrize("resume", [(), ("--resume",)])
def test_a_folder_of_someone_else_is_left_alone(command: Command, tmp_path: Path, resume: tuple[str, ...]):
    source, out = write(tmp_path / "in.csv"), tmp_path / "out.csv"
    other = tmp_path / "out.csv.partial"
    other.mkdir()
    (other / "mine.txt").write_text("kept")
    assert command.classify(source, *ARGS, "--out", out, *resume) == 1
    assert "out.csv.partial is where a run keeps what is unfinished, and holds something else" in command.err
    assert (other / "mine.txt").read_text() == "kept"
    assert not out.exists()
    (other / "mine.txt").unlink()
    assert command.classify(source, *ARGS, "--out", out, *resume) == 0
    assert not other.exists()


def test_resume_without_a_run_starts_one(command: Command, whole: Callable[..., bytes], tmp_path: Path):
    out = tmp_path / "out.csv"
    assert command.classify(write(tmp_path / "in.csv"), *ARGS, "--out", out, "--resume") == 0
    assert out.read_bytes() == whole(".csv")


def test_embeddings_on_disk_are_float32_whatever_the_default(command: Command, whole: Callable[..., bytes], tmp_path):
    """`main` called by a program that has set another."""
    expected, out = whole(".csv"), tmp_path / "out.csv"
    torch.set_default_dtype(torch.float64)
    try:
        assert command.classify(write(tmp_path / "in.csv"), *ARGS, "--out", out) == 0
    finally:
        torch.set_default_dtype(torch.float32)
    assert out.read_bytes() == expected


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGKILL"])
def test_signals(
    command: Command, whole: Callable[..., bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
):
    source, out = write(tmp_path / "in.csv"), tmp_path / "out.csv"
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    args = ["--text-column", "text", "--model", command.model, "--device", "cpu", "--batch-size", "1", *ARGS]
    send = (
        # a test run in the background of a shell hands down an ignored SIGINT
        "import os, signal\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from surprise_hf.model import SurpriseModel\nreal, calls = SurpriseModel.embed, []\n"
        "def embed(*args, **kwargs):\n"
        "    calls.append(1)\n"
        f"    if len(calls) == 3: os.kill(os.getpid(), signal.{name})\n"
        "    return real(*args, **kwargs)\n"
        "SurpriseModel.embed = embed"
    )
    done = in_a_process(send, "classify", str(source), *args, "--out", str(out))
    if name != "SIGKILL":
        word, code = {"SIGINT": ("interrupted", 130), "SIGTERM": ("terminated", 143)}[name]
        assert done.returncode == code
        assert done.stderr.count("\n") == 1
        assert f"{word}; what is finished is kept; " in done.stderr
        assert list((tmp_path / "temporary").glob("surprise-hf-*")) == []
        assert f"go on with: surprise-hf classify {source}" in done.stderr
    else:
        assert done.returncode == -signal.SIGKILL
    assert command("classify", source, *args, "--out", out, "--resume") == 0
    assert out.read_bytes() == whole(".csv")


def test_a_handler_of_the_caller_stays(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    real, came = SurpriseModel.embed, []

    def embed(*args: Any, **kwargs: Any) -> Any:
        os.kill(os.getpid(), signal.SIGTERM)
        return real(*args, **kwargs)

    def own(number: int, _: object) -> None:
        came.append(number)

    monkeypatch.setattr(SurpriseModel, "embed", embed)
    before = signal.signal(signal.SIGTERM, own)
    try:
        assert command.classify(write(tmp_path / "in.csv"), *ARGS) == 0
        assert signal.getsignal(signal.SIGTERM) is own
    finally:
        signal.signal(signal.SIGTERM, before)
    assert set(came) == {signal.SIGTERM}


def test_no_handler_is_left_behind_and_threads_need_none(command: Command):
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        codes = [command("info")]
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
        thread = threading.Thread(target=lambda: codes.append(command("info")))
        thread.start()
        thread.join()
    finally:
        signal.signal(signal.SIGTERM, before)
    assert codes == [0, 0]


def test_a_reader_that_stops_reading(command: Command, tmp_path: Path):
    reader, writer = os.pipe()
    os.close(reader)
    args = ["--text-column", "text", "--model", command.model, "--device", "cpu", "--surprise-weight", "1", *ARGS]
    done = in_a_process("", "classify", str(write(tmp_path / "in.csv")), *args, stdout=writer)
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, "")
