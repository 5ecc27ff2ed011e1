"""What is wrong is told in one line, before the work, with its exit status."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch
from pyarrow import parquet

from surprise_hf import arguments, tables
from surprise_hf.model import SurpriseModel
from tests.cli_data import Command, interrupt_after, write


@pytest.fixture
def command(capsysbinary: Any, st_path: Path) -> Command:
    return Command(capsysbinary, st_path)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("in.csv", b"id,body\n1,a\n", "no column 'text'; it has 'id', 'body'"),
        ("in.jsonl", b'{"id": 1, "body": "a"}\n', "no column 'text'; it has 'id', 'body'"),
        ("in.csv", b"", "in.csv is empty"),
        ("in.tsv", b"", "in.tsv is empty"),
        ("in.jsonl", b"", "in.jsonl is empty"),
        ("in.parquet", b"", "in.parquet is empty"),
        ("in.csv", b"id,text\n", "in.csv has no rows"),
        ("in.jsonl", b"\n", "in.jsonl has no rows"),
        ("in.csv", "text,id\ncafé,1\n".encode("latin-1"), "not UTF-8"),
        ("in.csv", b"id,text\n1,a,b\n2,c,d\n", "more fields than its header"),
        ("in.csv", b"id,text\nx,a,b\ny,c,d\n", "more fields than its header"),
        ("in.csv", b"id,text\n1,a\n2,c,d\n", "line 3"),
        ("in.csv", b'id,text\n1,"a\n', "can't be read as csv"),
        ("in.csv", b"text,text\na,b\n", "two columns are named 'text'"),
        ("in.jsonl", b'{"text": "a"}\n{"text": \n', "can't be read as jsonl"),
        ("in.jsonl", b'{"text": 1}\n', "does not hold text, but int64"),
        ("in.parquet", b"PAR1 no", "can't be read as parquet"),
    ],
)
def test_bad_input_is_one_line(command: Command, tmp_path: Path, name: str, content: bytes, message: str):
    source = tmp_path / name
    source.write_bytes(content)
    assert command.classify(source) == 1
    assert message in command.err
    assert command.err.startswith("surprise-hf: error: ")
    assert command.err.count("\n") == 1
    assert command.out == b""


def test_a_parquet_without_rows(command: Command, tmp_path: Path):
    parquet.write_table(pa.table({"text": pa.array([], pa.string())}), tmp_path / "in.parquet")
    assert command.classify(tmp_path / "in.parquet") == 1
    assert "has no rows" in command.err


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        ((), 2, "COMMAND"),
        (("sort",), 2, "invalid choice"),
        (("classify", "IN"), 2, "--text-column"),
        (("classify", "IN", "--text-column", "text", "--labels", "a", "--labels-file", "f"), 2, "not allowed with"),
        (("classify", "IN", "--text-column", "text", "--top-k", "0"), 2, "must be 1 or more"),
        (("classify", "IN", "--text-column", "text", "--threshold", "1.5"), 2, "between 0 and 1"),
        (("classify", "IN", "--text-column", "text", "--threshold", "nan"), 2, "between 0 and 1"),
        (("classify", "IN", "--text-column", "text", "--refine", "-1"), 2, "rounds or auto"),
        (("classify", "IN", "--text-column", "text", "--refine", "²"), 2, "rounds or auto"),
        (("cluster", "IN", "--text-column", "text", "--clusters", "²"), 2, "must be 1 or more, or auto"),
        (("train", "IN", "--text-column", "text", "--learning-rate", "0"), 2, "must be a number above 0"),
        (("train", "IN", "--text-column", "text", "--learning-rate", "inf"), 2, "must be a number above 0"),
        (("classify", "-", "--text-column", "text", "--labels", "a"), 2, "standard input is unknown: give --format"),
        (("classify", "IN", "--text-column", "text", "--labels", "a", "--out", "o.txt"), 2, "give --out-format"),
        (("classify", "IN", "--text-column", "text", "--labels", "a", "--resume"), 2, "--resume needs --out"),
        (("classify", "IN", "--text-column", "text", "--labels", "a", "--out", "IN"), 2, "the input file itself"),
        (("classify", "IN", "--text-column", "text", "--model", "TINY"), 2, "no labels: give --labels"),
        (("classify", "IN", "--text-column", "text", "--labels", "a", "--prefix", "x_"), 2, "column 'x_label' already"),
        (("classify", "IN", "--text-column", "text", "--labels", "a,b,a"), 2, "are both 'a'"),
        (("classify", "IN", "--text-column", "text", "--labels", ""), 2, "candidate_labels is empty"),
        (("cluster", "IN", "--text-column", "text", "--clusters", "1", "--names", ""), 2, "candidate_labels is empty"),
        (("compare", "IN", "--text-column", "text", "--label-column", "x_label", "--labels", ""), 2, "labels is empty"),
        (("train", "IN", "--text-column", "text", "--label-column", "x_label", "--out", "m", "--labels", ""), 2, "emp"),
        (("classify", "IN", "--text-column", "text", "--labels", "a", "--template", "x"), 2, "exactly once"),
        (("classify", "none.csv", "--text-column", "text", "--labels", "a"), 1, "no such file: none.csv"),
        (("classify", "IN", "--text-column", "text", "--labels-file", "none.txt"), 1, "none.txt"),
        (("classify", "IN", "--text-column", "text", "--labels", "a", "--out", "no/o.csv"), 1, "no such folder: no"),
        (("classify", "IN", "--text-column", "text", "--labels", "a", "--model", "no/model"), 1, "model no/model"),
        (("classify", "IN", "--text-column", "text", "--labels", "a", "--model", "./m"), 1, "no such folder: './m'"),
        (("classify", "IN", "--text-column", "text", "--labels", "a", "--model", "TINY", "--ensemble", "IN"), 1, "not"),
        (("fit-ensemble", "IN", "--text-column", "text", "--model", "TINY"), 2, "--out"),
        (("fit-ensemble", "IN", "--text-column", "text", "--model", "TINY", "--out", "IN"), 2, "--out is the input"),
        (("rank", "IN", "--text-column", "text", "--query", "x", "--out", "IN"), 2, "--out is the input file itself"),
        (("cluster", "IN", "--text-column", "text", "--clusters", "2", "--out", "./IN"), 2, "--out is the input file"),
        (("cluster", "IN", "--text-column", "text", "--clusters", "2", "--plot", "IN"), 2, "--plot is the input file"),
        (("compare", "IN", "--text-column", "text", "--label-column", "x_label", "--out", "IN"), 2, "--out is the"),
        (("compare", "IN", "--text-column", "text", "--label-column", "x_label", "--plot", "IN"), 2, "--plot is the"),
        (("fit-ensemble", "IN", "--text-column", "text", "--out", "-"), 2, "- is no file"),
        (("compare", "IN", "--text-column", "text", "--label-column", "x_label", "--out", "-"), 2, "- is no file"),
        (("train", "IN", "--text-column", "text", "--label-column", "x_label", "--out", "-"), 2, "- is no file"),
        (("classify", "IN", "--text-column", "text", "--labels", "a", "--out", "-", "--resume"), 2, "needs --out"),
        (("cluster", "IN", "--text-column", "text", "--clusters", "2", "--seed", "-1"), 2, "--seed: must be from 0 to"),
        (("compare", "IN", "--text-column", "text", "--label-column", "x_label", "--seed", "4294967296"), 2, "--seed"),
        (("train", "IN", "--text-column", "text", "--label-column", "x", "--out", "m", "--seed", "-1"), 2, "--seed: "),
        (("fit-ensemble", "IN", "--text-column", "body", "--model", "TINY", "--out", "e"), 1, "no column 'body'"),
        (("fit-ensemble", "IN", "--text-column", "text", "--out", "e", "--device", "x"), 2, "--device x can't be used"),
        (("fit-ensemble", "IN", "--text-column", "text", "--out", "e", "--device", "cuda:99"), 2, "--device cuda:99"),
        (("fit-ensemble", "IN", "--text-column", "text", "--model", "TINY", "--out", "no/e"), 1, "no such folder"),
    ],
)  # fmt: skip
def test_exit_status(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, args: tuple[str, ...], code: int, message: str
):
    monkeypatch.chdir(tmp_path)
    source = write(tmp_path / "in.csv", [{"text": "sport", "x_label": "y"}])
    names = {"IN": source.name, "./IN": f"./{source.name}", "TINY": command.model}
    assert command(*(names.get(arg, arg) for arg in args)) == code
    assert message in command.err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.csv"]


RUNS = {
    "classify": ("--labels", "a"),
    "rank": ("--query", "x"),
    "cluster": ("--clusters", 2),
    "fit-ensemble": (),
    "compare": ("--label-column", "x_label"),
    "train": ("--label-column", "x_label"),
}


@pytest.fixture
def no_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loading one is a defect: what is wrong should be said before."""

    def never(*_: object) -> None:
        raise AssertionError("the encoder was loaded")

    for name in ("cli", "cli_ranking", "cli_compare", "cli_training"):
        monkeypatch.setattr(f"surprise_hf.{name}.load_pipeline", never)


@pytest.mark.usefixtures("no_model")
@pytest.mark.parametrize("option", ["--out", "--plot"])
@pytest.mark.parametrize("run", RUNS)
def test_a_folder_where_nothing_can_be_written_is_told_before_the_work(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: str, option: str
):
    if option == "--plot" and run not in ("cluster", "compare"):
        option = "--out"

    def refuses(dir: Path) -> None:  # noqa: A002 (tempfile's word); to root most folders are writable
        raise PermissionError(13, "Permission denied", str(dir / "tmpx"))

    monkeypatch.setattr(arguments.tempfile, "TemporaryFile", refuses)
    source, out = write(tmp_path / "in.csv", [{"text": "sport", "x_label": "y"}]), tmp_path / "out.csv"
    assert command(run, source, "--text-column", "text", *RUNS[run], option, out) == 1
    assert f"{option} {out}: nothing can be written in {tmp_path.resolve()} (Permission denied)" in command.err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.csv"]


@pytest.mark.usefixtures("no_model")
@pytest.mark.parametrize("kind", ["a link into it", "it itself"])
def test_such_a_folder_elsewhere(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str):
    """It is the folder of the file that counts, not that of its name; of a folder that is there, that one."""
    elsewhere = (tmp_path / "elsewhere").resolve()
    elsewhere.mkdir()
    run, out = ("train", elsewhere) if kind == "it itself" else ("classify", tmp_path / "out.csv")
    if run == "classify":
        out.symlink_to(elsewhere / "out.csv")
    real = arguments.tempfile.TemporaryFile

    def refuses(dir: Path) -> Any:  # noqa: A002
        if Path(dir) == elsewhere:
            raise PermissionError(13, "Permission denied", str(dir))
        return real(dir=dir)

    monkeypatch.setattr(arguments.tempfile, "TemporaryFile", refuses)
    source = write(tmp_path / "in.csv", [{"text": "sport", "x_label": "y"}])
    assert command(run, source, "--text-column", "text", *RUNS[run], "--out", out) == 1
    assert f"--out {out}: nothing can be written in {elsewhere} (Permission denied)" in command.err


@pytest.mark.parametrize("error", [OSError, ValueError, RuntimeError])
def test_a_model_that_cannot_be_loaded_is_named(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
):
    """The last where its weights have other shapes."""
    interrupt_after(monkeypatch, SurpriseModel, "from_pretrained", 0, error)
    assert command.classify(write(tmp_path / "in.csv", [{"text": "sport"}])) == 1
    assert command.err == f"surprise-hf: error: can't load the model {command.model}: disk full\n"


@pytest.mark.usefixtures("no_model")
@pytest.mark.parametrize("run", [name for name in RUNS if name != "train"])
def test_an_output_that_is_write_protected_is_told_before_the_work(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: str
):
    real, out = Path.open, tmp_path / "out.csv"
    out.write_text("of an earlier day")

    def refuses(path: Path, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        if path == out and mode[0] != "r":
            raise PermissionError(13, "Permission denied", str(path))
        return real(path, mode, *args, **kwargs)

    monkeypatch.setattr(Path, "open", refuses)
    source = write(tmp_path / "in.csv", [{"text": "sport", "x_label": "y"}])
    assert command(run, source, "--text-column", "text", *RUNS[run], "--out", out) == 1
    assert f"Permission denied: '{out}'" in command.err
    assert out.read_text() == "of an earlier day"


@pytest.mark.usefixtures("no_model")
@pytest.mark.parametrize("run", ["classify", "rank", "cluster"])
def test_a_closed_standard_output_is_told_before_the_work(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: str
):
    source = write(tmp_path / "in.csv", [{"text": "sport", "x_label": "y"}])
    monkeypatch.setattr(sys, "stdout", None)  # as Python has it where the caller closed it
    assert command(run, source, "--text-column", "text", *RUNS[run]) == 1
    assert "standard output is closed: give --out FILE" in command.err


@pytest.mark.usefixtures("no_model")
@pytest.mark.parametrize("how", ["name", "link"])
@pytest.mark.parametrize(
    ("run", "option", "what"),
    [
        ("classify", "--labels-file", "the file of labels"),
        ("classify", "--ensemble", "the ensemble"),
        ("rank", "--queries-file", "the file of queries"),
        ("rank", "--ensemble", "the ensemble"),
        ("cluster", "--names-file", "the file of labels"),
        ("compare", "--labels-file", "the file of labels"),
    ],
)
def test_no_file_that_is_read_is_written_over(
    command: Command, tmp_path: Path, run: str, option: str, what: str, how: str
):
    source, read_too = write(tmp_path / "in.csv", [{"text": "sport", "x_label": "y"}]), tmp_path / "words.csv"
    read_too.write_text("y\nz\n")
    out = read_too
    if how == "link":
        out = tmp_path / "link.csv"
        out.symlink_to(read_too)
    more = () if option in ("--labels-file", "--queries-file") and run != "compare" else RUNS[run]
    outputs = ("--out", "--plot") if run in ("cluster", "compare") else ("--out",)
    for output in outputs:
        assert command(run, source, "--text-column", "text", *more, option, read_too, output, out) == 2
        assert f"{output} is {what} itself, which would be lost" in command.err
    assert read_too.read_text() == "y\nz\n"


@pytest.mark.usefixtures("no_model")
@pytest.mark.parametrize("run", ["cluster", "compare"])
def test_one_file_is_not_written_twice(command: Command, tmp_path: Path, run: str):
    source = write(tmp_path / "in.csv", [{"text": "sport", "x_label": "y"}])
    more = ("--out-format", "csv") if run == "cluster" else ()
    both = ("--out", tmp_path / "x.png", "--plot", tmp_path / "." / "x.png")
    assert command(run, source, "--text-column", "text", *RUNS[run], *both, *more) == 2
    assert "--plot and --out are both" in command.err


@pytest.mark.usefixtures("no_model")
@pytest.mark.parametrize(
    ("run", "option"),
    [
        ("classify", "--labels-file"),
        ("rank", "--queries-file"),
        ("cluster", "--names-file"),
        ("compare", "--labels-file"),
    ],
)
def test_a_file_of_lines_that_is_not_utf_8_is_named(command: Command, tmp_path: Path, run: str, option: str):
    source, lines = write(tmp_path / "in.csv", [{"text": "sport", "x_label": "y"}]), tmp_path / "lines.txt"
    lines.write_bytes("café\n".encode("latin-1"))
    more = () if run in ("classify", "rank") else RUNS[run]
    assert command(run, source, "--text-column", "text", *more, option, lines) == 1
    assert f"{lines} is not UTF-8 (" in command.err
    assert "convert it, for example with iconv" in command.err


def test_debug_shows_where(command: Command, tmp_path: Path):
    source = write(tmp_path / "in.csv", [{"body": "a"}])
    with pytest.raises(ValueError, match="no column 'text'"):
        command.classify(source, "--debug")


def test_a_defect_is_told_from_a_problem(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    interrupt_after(monkeypatch, tables, "encode", 0, ZeroDivisionError)
    assert command.classify(write(tmp_path / "in.csv")) == 1
    assert "error: ZeroDivisionError: disk full (--debug shows where)" in command.err


def test_an_interrupted_fit_leaves_nothing(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    interrupt_after(monkeypatch, SurpriseModel, "embed", 0, KeyboardInterrupt)
    model = ("--model", command.model, "--device", "cpu", "--text-column", "text")
    assert command("fit-ensemble", write(tmp_path / "in.csv"), *model, "--out", tmp_path / "e") == 130
    assert command.err == "surprise-hf: interrupted; nothing was written\n"
    assert [path.name for path in tmp_path.iterdir()] == ["in.csv"]


def test_long_documents_are_counted_in_one_line(command: Command, tmp_path: Path):
    """Those of all chunks, here of 16 and 2."""
    source = write(tmp_path / "in.csv", [{"text": "food" if i % 17 else "sport ball " * 60} for i in range(18)])
    assert command.classify(source, "--surprise-weight", 1) == 0
    assert command.err.count("\n") == 1
    assert command.err.startswith("surprise-hf: warning: 2 of 18 documents are longer than the 64 tokens")


@pytest.mark.parametrize("run", ["classify", "rank", "cluster", "fit-ensemble"])
def test_a_document_whose_embedding_is_bad_is_named_by_its_row(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: str
):
    """Of the table, whatever the chunk and however many before it are blank."""
    real = SurpriseModel._encode

    def spoiled(model: SurpriseModel, texts: list[str], **kwargs: Any) -> torch.Tensor:
        emb = real(model, texts, **kwargs)
        emb[[text == "rain" for text in texts]] = torch.nan
        return emb

    monkeypatch.setattr(SurpriseModel, "_encode", spoiled)
    texts = ["sport ball", "", *["food"] * 15, "rain"]
    source = write(tmp_path / "in.csv", [{"id": i, "text": text} for i, text in enumerate(texts)])
    rest = ("--text-column", "text", "--model", command.model, "--device", "cpu", "--batch-size", 1)
    out = ("--out", tmp_path / "out.csv")
    assert command(run, source, *rest, *RUNS[run], *out) == 1
    assert "the embedding of document 17 ('rain') is not finite" in command.err
