"""The command line, run in this process but where a signal or a closed pipe is what is tested."""

from __future__ import annotations

import csv
import io
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from datasets import ClassLabel, Dataset, Features, Value
from pyarrow import parquet

import surprise_hf
from surprise_hf import arguments, tables
from surprise_hf.model import SurpriseModel
from surprise_hf.pipeline import DEFAULT_MODEL, SurpriseZeroShotPipeline
from tests.cli_data import BLANK, LABELS, ROOT, ROWS, TEXTS, Command, in_a_process, read, write


@pytest.fixture
def command(capsysbinary: Any, st_path: Path) -> Command:
    return Command(capsysbinary, st_path)


@pytest.fixture(scope="module")
def pipe(st_path: Path) -> SurpriseZeroShotPipeline:
    return SurpriseZeroShotPipeline(SurpriseModel.from_pretrained(st_path, device="cpu"), device="cpu")


def check(rows: list[dict[str, Any]], want: list[dict[str, Any]], places: int = 1, prefix: str = "") -> None:
    """Every label and score is the pipeline's own answer."""
    assert len(rows) == len(want)
    for row, answer in zip(rows, want, strict=True):
        for place in range(places):
            tail = "" if place == 0 else f"_{place + 1}"
            label, score = row[f"{prefix}label{tail}"], row[f"{prefix}score{tail}"]
            if place < len(answer["labels"]):
                assert label == answer["labels"][place]
                assert float(score) == pytest.approx(answer["scores"][place], abs=2e-6)
            else:
                assert label in (None, "")
                assert score in (None, "")


@pytest.fixture(scope="module")
def want(pipe: SurpriseZeroShotPipeline) -> list[dict[str, Any]]:
    with pytest.warns(UserWarning, match="e = 67"):
        return pipe(TEXTS, LABELS)


# --- formats -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("into", tables.FORMATS)
@pytest.mark.parametrize("fmt", tables.FORMATS)
def test_every_format_in_and_out(command: Command, want: list[dict[str, Any]], tmp_path: Path, fmt: str, into: str):
    source, out = write(tmp_path / f"in [1] *.{fmt}"), tmp_path / f"out.{into}"
    assert command.classify(source, "--out", out) == 0, command.err
    rows = read(out.read_bytes(), into)
    assert list(rows[0]) == ["id", "text", "n", "label", "score"]
    check(rows, want)
    assert [row["text"] or "" for row in rows] == [text or "" for text in TEXTS]
    assert [i for i, row in enumerate(rows) if not row["label"]] == BLANK
    is_text = into in tables.DELIMITERS
    assert [row["n"] for row in rows] == [str(i * 0.5) if is_text else i * 0.5 for i in range(70)]
    assert [row["id"] for row in rows] == [f"{i:03d}" for i in range(70)]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([source.name, out.name])
    assert "67 documents" in command.err
    assert "0.067" in command.err  # tanh(67 / 1000)


@pytest.mark.parametrize("fmt", tables.FORMATS)
def test_stdin_and_stdout(
    command: Command, want: list[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fmt: str
):
    data = write(tmp_path / f"in.{fmt}").read_bytes()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
    assert command.classify("-", "--format", fmt, "--out-format", fmt) == 0
    check(read(command.out, fmt), want)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
    assert command.classify("-", "--format", fmt) == 0  # csv unless told otherwise
    check(read(command.out, "csv"), want)


def test_a_dash_is_standard_output(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    source = write(tmp_path / "in.csv", ROWS[:3])
    assert command.classify(source, "--surprise-weight", 1) == 0
    expected = command.out
    for more in ((), ("--out-format", "csv")):
        assert command.classify(source, "--surprise-weight", 1, "--out", "-", *more) == 0
        assert command.out == expected
    run = ("--text-column", "text", "--model", command.model, "--device", "cpu")
    assert command("rank", source, *run, "--query", "dog", "--out", "-") == 0
    assert len(read(command.out, "csv")) == 3
    assert command("cluster", source, *run, "--clusters", 1, "--out", "-", "--out-format", "table") == 0
    assert command.out.startswith(b"1 clusters of 3")
    assert [path.name for path in tmp_path.iterdir()] == ["in.csv"]


def test_cells_of_text_formats_are_copied_as_they_are(command: Command, tmp_path: Path):
    cells = [["007", "NA", "1.50"], ["1e5", "null", ""], ["", "a, b", 'say "so"'], ["x", "one\ntwo", "True"]]
    source = tmp_path / "in.csv"
    with source.open("w", newline="", encoding="utf-8-sig") as file:
        csv.writer(file).writerows([["id", "text", "note"], *cells])
    for into in ("csv", "tsv"):
        out = tmp_path / f"out.{into}"
        assert command.classify(source, "--out", out) == 0
        assert [list(row.values())[:3] for row in read(out.read_bytes(), into)] == cells
    assert all(row["label"] for row in read(out.read_bytes(), "tsv"))  # "NA" and "null" are documents


def test_nested_values_and_dates(command: Command, tmp_path: Path):
    rows = [{"text": "sport", "tags": ["a", "b"], "at": "2024-05-06T07:08:09", "who": {"name": "é"}, "on": True}]
    source = write(tmp_path / "in.jsonl", rows)
    assert command.classify(source, "--out-format", "jsonl") == 0
    (row,) = read(command.out, "jsonl")
    assert {name: row[name] for name in rows[0]} == rows[0]
    assert command.classify(source) == 0
    (row,) = read(command.out, "csv")
    assert row["tags"] == '["a", "b"]'
    assert row["who"] == '{"name": "é"}'


def test_a_parquet_of_datasets_comes_back_as_one(command: Command, tmp_path: Path):
    """Which notes in the file what the numbers of labels stand for."""
    features = Features({"text": Value("string"), "kind": ClassLabel(names=["money", "sport"])})
    source, out = tmp_path / "in.parquet", tmp_path / "out.parquet"
    Dataset.from_dict({"text": ["ball", "bank"], "kind": [1, 0]}, features).to_parquet(source)
    assert command.classify(source, "--out", out) == 0
    rows = Dataset.from_parquet(str(out), cache_dir=str(tmp_path / "cache"))
    assert rows.features == {**features, "label": Value("string"), "score": Value("float64")}
    assert rows["kind"][:] == [1, 0]


def test_blank_lines_of_a_single_column(command: Command, tmp_path: Path):
    source = tmp_path / "in.csv"
    source.write_text('text\nsport ball\n\n""\nfood soup\n')
    assert command.classify(source) == 0
    assert [bool(row["label"]) for row in read(command.out, "csv")] == [True, False, False, True]


def test_only_blank_documents(command: Command, tmp_path: Path):
    source = write(tmp_path / "in.jsonl", [{"text": " "}, {"text": None}])
    assert command.classify(source) == 0
    assert [row["label"] for row in read(command.out, "csv")] == ["", ""]


def test_many_row_groups_in_parquet(tmp_path: Path):
    table = pa.table({"x": range(150_000)})
    stream = table.schema.serialize().to_pybytes()
    stream += b"".join(batch.serialize().to_pybytes() for batch in table.to_batches(max_chunksize=10_000))
    (tmp_path / "s").write_bytes(stream)
    tables.to_parquet(tmp_path / "s", tmp_path / "p")
    assert parquet.read_table(tmp_path / "p").equals(table)
    assert parquet.ParquetFile(tmp_path / "p").num_row_groups == 3


# --- what is scored ----------------------------------------------------------------------------------------------


def test_labels_from_a_file_may_hold_commas(command: Command, pipe: SurpriseZeroShotPipeline, tmp_path: Path):
    labels = tmp_path / "labels.txt"
    labels.write_text("\ufeffsport, ball\n\n  food\r\nmoney {}\n", encoding="utf-8")
    source = write(tmp_path / "in.csv")
    assert command.classify(source, "--labels-file", labels, "--surprise-weight", 1) == 0
    check(read(command.out, "csv"), pipe(TEXTS, ["sport, ball", "food", "money {}"], surprise_weight=1))


@pytest.mark.parametrize(
    ("options", "arguments", "places"),
    [
        (("--top-k", 2), {"top_k": 2}, 2),
        (("--top-k", 9), {}, 3),
        (("--multi-label", "--threshold", 0.5), {"multi_label": True, "threshold": 0.5}, 3),
        (("--threshold", 0.7), {"threshold": 0.7, "top_k": 1}, 1),
        (("--estimator", "quantile"), {"estimator": "quantile"}, 1),
        (("--estimator", "empirical", "--surprise-weight", 1), {"estimator": "empirical", "surprise_weight": 1}, 1),
        (("--surprise-weight", 0), {"surprise_weight": 0}, 1),  # 0 is a value
        (("--refine", 3, "--surprise-weight", 0.5), {"refine": 3, "surprise_weight": 0.5}, 1),
        (("--template", "a {} text", "--prefix", "my_"), {"hypothesis_template": "a {} text"}, 1),
    ],
)
def test_options_reach_the_pipeline(
    command: Command,
    pipe: SurpriseZeroShotPipeline,
    tmp_path: Path,
    options: tuple[object, ...],
    arguments: dict[str, Any],
    places: int,
):
    assert command.classify(write(tmp_path / "in.csv"), *options) == 0
    rows = read(command.out, "csv")
    prefix = "my_" if "--prefix" in options else ""
    assert len(rows[0]) == 3 + 2 * places
    check(rows, pipe(TEXTS, LABELS, **arguments), places, prefix)


def test_a_prompt_reaches_the_encoder(command: Command, st_path: Path, tmp_path: Path):
    prompted = SurpriseModel.from_pretrained(st_path, device="cpu")
    asked = SurpriseZeroShotPipeline(prompted, device="cpu", prompt="query bird: ")
    assert command.classify(write(tmp_path / "in.csv"), "--prompt", "query bird: ", "--surprise-weight", 1) == 0
    check(read(command.out, "csv"), asked(TEXTS, LABELS, surprise_weight=1))


def test_an_ensemble_file_is_used_again(command: Command, pipe: SurpriseZeroShotPipeline, tmp_path: Path):
    source, ensemble = write(tmp_path / "in.parquet"), tmp_path / "e.safetensors"
    model = ("--text-column", "text", "--model", command.model, "--device", "cpu")
    assert command("fit-ensemble", source, *model, "--out", ensemble) == 0
    assert "67 documents, 32 dimensions" in command.err
    assert command.classify(source, "--ensemble", ensemble, "--surprise-weight", 1) == 0
    crowd = read(command.out, "csv")
    check(crowd, pipe(TEXTS, LABELS, ensemble=ensemble, surprise_weight=1))
    alone = write(tmp_path / "one.csv", [ROWS[3]])
    assert command.classify(alone, "--ensemble", ensemble, "--surprise-weight", 1) == 0
    (row,) = read(command.out, "csv")
    assert row["label"] == crowd[3]["label"]
    assert float(row["score"]) == pytest.approx(float(crowd[3]["score"]), abs=2e-6)
    assert command.classify(alone, "--ensemble", ensemble) == 0
    assert "67 documents" in command.err  # a small one draws the note too


def test_labels_and_ensemble_stored_in_the_model(command: Command, st_path: Path, tmp_path: Path):
    stored = SurpriseZeroShotPipeline(SurpriseModel.from_pretrained(st_path, device="cpu"), device="cpu")
    stored.fit_ensemble(TEXTS).set_labels(LABELS, surprise_weight=1).save_pretrained(tmp_path / "model")
    rows = ROWS[:4]
    source = write(tmp_path / "in.csv", rows)
    assert command("classify", source, "--text-column", "text", "--model", tmp_path / "model", "--device", "cpu") == 0
    check(read(command.out, "csv"), stored([row["text"] for row in rows]))
    for option, code in (("--labels", 2), ("--labels-file", 1)):  # the stored ones were taken
        model = ("--text-column", "text", "--model", tmp_path / "model")
        assert command("classify", source, *model, option, "") == code
        assert command.out == b""


@pytest.mark.parametrize("options", [{"surprise_weight": 1.0}, {"n_cross": 20}, {"estimator": "quantile"}], ids=str)
@pytest.mark.parametrize("labels", [(), ("--labels", ",".join(LABELS))], ids=["stored", "given again"])
@pytest.mark.parametrize("where", ["in the model", "file", "its own"])
def test_scoring_options_stored_in_the_model(
    command: Command, st_path: Path, tmp_path: Path, where: str, labels: tuple[str, ...], options: dict[str, Any]
):
    """The pipeline's scores, whatever the ensemble; they were those of no options."""
    pipe = SurpriseZeroShotPipeline(SurpriseModel.from_pretrained(st_path, device="cpu"), device="cpu")
    pipe.fit_ensemble(TEXTS[:50])
    given, ensemble = (), None
    if where != "in the model":
        pipe.model.ensemble.save(tmp_path / "e.safetensors")
        pipe.model.set_ensemble(None)
    if where == "file":
        ensemble = tmp_path / "e.safetensors"
        given = ("--ensemble", ensemble)
    pipe.set_labels(LABELS, **options).save_pretrained(tmp_path / "model")
    source = write(tmp_path / "in.csv")
    model = ("--text-column", "text", "--model", tmp_path / "model", "--device", "cpu")
    assert command("classify", source, *model, *labels, *given) == 0
    rows = read(command.out, "csv")
    check(rows, pipe(TEXTS, ensemble=ensemble))
    assert command("classify", source, *model, *labels, *given, "--surprise-weight", 0.5) == 0
    check(read(command.out, "csv"), pipe(TEXTS, ensemble=ensemble, surprise_weight=0.5))
    assert rows != read(command.out, "csv")


def test_another_prompt_than_the_models_own(command: Command, st_path: Path, tmp_path: Path):
    pipe = SurpriseZeroShotPipeline(SurpriseModel.from_pretrained(st_path, device="cpu"), device="cpu", prompt="bird ")
    pipe.fit_ensemble(TEXTS).set_labels(LABELS, surprise_weight=1).save_pretrained(tmp_path / "model")
    source = write(tmp_path / "in.csv")
    model = ("classify", source, "--text-column", "text", "--model", tmp_path / "model", "--device", "cpu")
    assert command(*model, "--prompt", "query: ") == 1
    assert "fitted with prompt='bird ', and texts read with prompt='query: '" in command.err
    assert command(*model, "--prompt", "bird ") == 0
    check(read(command.out, "csv"), pipe(TEXTS))


# --- the rest ----------------------------------------------------------------------------------------------------


def test_help_and_version_are_light():
    check_light = "import atexit\natexit.register(lambda: print(sorted({'torch', 'transformers'} & set(sys.modules))))"
    done = in_a_process(check_light, "classify", "--help", stdout=subprocess.PIPE)
    assert done.returncode == 0
    told = " ".join(done.stdout.split())
    assert "--resume goes on after the last finished chunk" in told
    assert "refuses to go on with other arguments, another input or another model" in told
    assert "An OUT without OUT.partial is complete: --resume leaves it as it is, whatever the arguments." in told
    assert done.stdout.rstrip().endswith("[]")


def test_it_is_a_module_too():
    done = subprocess.run(
        [sys.executable, "-m", "surprise_hf", "--version"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout == f"surprise-hf {surprise_hf.__version__}\n"


def test_version_and_default_model(command: Command):
    assert command("--version") == 0
    assert command.out.decode() == f"surprise-hf {surprise_hf.__version__}\n"
    assert DEFAULT_MODEL[0] == arguments.DEFAULT_MODEL


def test_info(command: Command):
    import torch
    import transformers

    from surprise_hf.ops import build_info

    assert command("info") == 0
    told = dict(line.split(maxsplit=1) for line in command.out.decode().splitlines() if not line.startswith("op, "))
    assert told["torch"].split("+")[0] == torch.__version__.split("+")[0]  # the build's own suffix may be left out
    assert told["transformers"] == transformers.__version__
    assert told["op"] == build_info()["implementation"]
    lines = command.out.decode().splitlines()
    (cpu,) = (line for line in lines if line.startswith("op, CPU"))
    (cuda,) = (line for line in lines if line.startswith("op, CUDA"))
    assert cpu.endswith(build_info()["cpu_library"] or f"absent: {build_info()['cpu_reason']}")
    assert cuda.endswith(build_info()["cuda_library"] or f"absent: {build_info()['cuda_reason']}")
