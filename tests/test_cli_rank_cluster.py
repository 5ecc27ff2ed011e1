"""`surprise-hf rank` and `surprise-hf cluster`, on the tiny encoder."""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from surprise_hf import SurpriseIndex, SurpriseKMeans, tables
from surprise_hf.cli_ranking import _summary
from surprise_hf.jobs import Job
from surprise_hf.model import SurpriseModel
from tests.cli_data import BLANK, ROWS, TEXTS, Command, interrupt_after, read, write

QUERIES = ["dog cat horse", "ball, team"]
KEPT = [i for i in range(len(TEXTS)) if i not in BLANK]


@pytest.fixture
def command(capsysbinary: Any, st_path: Path) -> Command:
    return Command(capsysbinary, st_path)


@pytest.fixture(scope="module")
def model(st_path: Path) -> SurpriseModel:
    return SurpriseModel.from_pretrained(st_path, device="cpu")


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return write(tmp_path / "in.csv")


def run(command: Command, name: str, table: Path, *args: object) -> int:
    rest = ("--text-column", "text", "--model", command.model, "--device", "cpu")
    return command(name, table, *rest, *args)


# --- rank --------------------------------------------------------------------------------------------------------


def expected(model: SurpriseModel, k: int, weight: float | None = 1, **options: Any) -> list[dict[str, Any]]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = SurpriseIndex(model, weight=weight).add(TEXTS).search(QUERIES, k, **options)
    return [
        {"query": query, "place": place, "score": hit.score, "z": hit.z, "cosine": hit.cosine, "row": hit.id}
        for query, hits in zip(QUERIES, found, strict=True)
        for place, hit in enumerate(hits, start=1)
    ]


def check(rows: list[dict[str, Any]], want: list[dict[str, Any]]) -> None:
    assert len(rows) == len(want)
    for row, answer in zip(rows, want, strict=True):
        assert row["query"] == answer["query"]
        assert int(row["place"]) == answer["place"]
        for name in ("score", "z", "cosine"):
            assert float(row[name]) == pytest.approx(answer[name], abs=2e-4)
        assert int(row["id"]) == answer["row"]
        assert row["text"] == TEXTS[answer["row"]]


@pytest.mark.parametrize("fmt", tables.FORMATS)
def test_rank_into_every_format(command: Command, model: SurpriseModel, tmp_path: Path, fmt: str) -> None:
    source, out = write(tmp_path / f"in.{fmt}"), tmp_path / f"out.{fmt}"
    queries = [word for query in QUERIES for word in ("--query", query)]
    assert run(command, "rank", source, *queries, "--k", 4, "--surprise-weight", 1, "--out", out) == 0, command.err
    rows = read(out.read_bytes(), fmt)
    assert list(rows[0]) == ["id", "text", "n", "query", "place", "score", "z", "cosine"]
    check(rows, expected(model, 4))
    assert "3 of 70 documents have no text" in command.err
    assert f"{out}: 8 rows" in command.err
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([source.name, out.name])


def test_rank_to_standard_output(command: Command, model: SurpriseModel, table: Path) -> None:
    assert run(command, "rank", table, "--query", QUERIES[0], "--query", QUERIES[1]) == 0
    check(read(command.out, "csv"), expected(model, 10, weight=None))
    assert "67 documents" in command.err
    assert run(command, "rank", table, "--query", QUERIES[0], "--k", 2, "--out-format", "table") == 0
    lines = command.out.decode().splitlines()
    assert lines[1:3] == ["dog cat horse", "  score       z  cosine  document"]
    assert len(lines) == 5
    assert run(command, "rank", table, "--query", "dog", "--min-score", 1, "--out-format", "table") == 0
    assert "nothing found" in command.out.decode()


def test_rank_options(command: Command, model: SurpriseModel, table: Path, tmp_path: Path) -> None:
    (tmp_path / "q.txt").write_text("\n".join(["", *QUERIES, " "]), encoding="utf-8")
    file = ("--queries-file", tmp_path / "q.txt", "--surprise-weight", 1)
    limits = ("--min-score", 0.2, "--max-score", 0.9, "--at-least", "a the of")
    assert run(command, "rank", table, *file, "--k", 60, *limits, "--prefix", "p_") == 0
    rows = [{name.removeprefix("p_"): cell for name, cell in row.items()} for row in read(command.out, "csv")]
    want = expected(model, 60, min_score=0.2, max_score=0.9, at_least_as_similar_as="a the of")
    check(rows, want)
    assert 2 < len(want) < 120
    assert run(command, "rank", table, *file, "--engine", "faiss-flat") == 0
    check(read(command.out, "csv"), expected(model, 10))
    ensemble = tmp_path / "e.safetensors"
    assert run(command, "fit-ensemble", table, "--out", ensemble) == 0
    assert run(command, "rank", table, *file, "--ensemble", ensemble) == 0
    check(read(command.out, "csv"), expected(model, 10))
    assert run(command, "rank", table, *file, "--direction", "questions", "--ensemble", ensemble) == 0
    cosines = [float(row["cosine"]) for row in read(command.out, "csv")[:10]]
    assert cosines == sorted(cosines, reverse=True)


def test_one_question_alone_is_told_that_it_is_no_ensemble(command: Command, table: Path) -> None:
    options = ("--direction", "questions", "--surprise-weight", 1)
    assert run(command, "rank", table, "--query", QUERIES[0], *options) == 0
    assert {float(row["score"]) for row in read(command.out, "csv")} == {0.0}
    assert "the ensemble holds one text" in command.err
    assert "--ensemble FILE" in command.err
    assert run(command, "rank", table, "--query", QUERIES[0], "--query", QUERIES[1], *options) == 0
    assert "the ensemble holds" not in command.err


# --- cluster -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fmt", tables.FORMATS)
def test_cluster_into_every_format(command: Command, model: SurpriseModel, tmp_path: Path, fmt: str) -> None:
    source, out, plot = write(tmp_path / f"in.{fmt}"), tmp_path / f"out.{fmt}", tmp_path / "map.png"
    names = ["sport", "food", "politics", "music", "weather"]
    args = ("--clusters", 4, "--names", ",".join(names), "--out", out, "--plot", plot, "--seed", 3)
    assert run(command, "cluster", source, *args) == 0, command.err
    rows = read(out.read_bytes(), fmt)
    assert list(rows[0]) == ["id", "text", "n", "cluster", "cluster_score", "cluster_name"]
    assert len(rows) == len(ROWS)
    emb = model.embed([str(TEXTS[i]) for i in KEPT])[0]
    fitted = SurpriseKMeans(4, random_state=3).fit(emb)
    titles = [name for (name,) in fitted.name_clusters(names, model=model)]
    for i, label, scores in zip(KEPT, fitted.labels_.tolist(), fitted.transform(emb), strict=True):
        assert int(rows[i]["cluster"]) == label
        assert float(rows[i]["cluster_score"]) == pytest.approx(scores[label], abs=2e-4)
        assert rows[i]["cluster_name"] == titles[label]
    assert all(rows[i][name] in (None, "") for i in BLANK for name in ("cluster", "cluster_score", "cluster_name"))
    assert "4 clusters of 67 documents" in command.err
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_cluster_options(command: Command, table: Path, tmp_path: Path) -> None:
    assert run(command, "cluster", table, "--clusters", "auto", "--out-format", "table") == 0
    assert " clusters of 67 documents" in command.out.decode()
    assert run(command, "cluster", table, "--clusters", 5, "--balanced", "--mini-batch", 32, "--assign", "cosine") == 0
    rows = read(command.out, "csv")
    sizes = [[row["cluster"] for row in rows].count(str(label)) for label in range(5)]
    assert sum(sizes) == 67
    assert max(sizes) <= 20
    for extra in (("--assign", "mixed"), ("--iterate", "surprise")):
        assert run(command, "cluster", table, "--clusters", 3, *extra) == 0
    (tmp_path / "n.txt").write_text("a, b\nc\n")
    assert run(command, "cluster", table, "--clusters", 3, "--names-file", tmp_path / "n.txt") == 0
    assert {row["cluster_name"] for row in read(command.out, "csv")} <= {"a, b", "c", ""}


@pytest.mark.parametrize(
    ("options", "arguments"),
    [
        (("--seed", 1), {"random_state": 1}),
        (("--assign", "cosine"), {"assign": "cosine"}),
        (("--assign", "mixed"), {"assign": "mixed"}),
        (("--iterate", "surprise"), {"iterate": "surprise"}),
        (("--balanced",), {"balanced": True}),
        (("--mini-batch", 8), {"batch_size": 8}),
    ],
    ids=str,
)
def test_options_reach_the_clustering(
    command: Command, model: SurpriseModel, table: Path, options: tuple[object, ...], arguments: dict[str, Any]
) -> None:
    """Each makes a difference here."""
    emb = model.embed([str(TEXTS[i]) for i in KEPT])[0]
    found = []
    for more in ({}, arguments):
        fitted = SurpriseKMeans(5, **{"random_state": 0, **more}).fit(emb)
        scores = fitted.transform(emb)[range(len(emb)), fitted.labels_]
        found.append((fitted.labels_.tolist(), scores.round(3).tolist()))
    assert found[0] != found[1]
    assert run(command, "cluster", table, "--clusters", 5, "--prefix", "my_", *options) == 0
    rows = [row for i, row in enumerate(read(command.out, "csv")) if i not in BLANK]
    assert [int(row["my_cluster"]) for row in rows] == found[1][0]
    assert [float(row["my_cluster_score"]) for row in rows] == pytest.approx(found[1][1], abs=2e-3)


def test_the_summary_shows_large_clusters_first_and_their_most_central_texts() -> None:
    texts = ["a", "b", "c", "d", "e", "f"]
    found = _summary([1, 0, 1, 1, 0, 1], [0.1, 0.5, 0.4, 0.2, 0.9, 0.3], texts, ["zero", "one"])
    assert [line.strip() for line in found.splitlines()] == [
        "2 clusters of 6 documents", "", "1  4 documents: one", "c", "f", "d", "", "0  2 documents: zero", "e", "b",
    ]  # fmt: skip


# --- errors ------------------------------------------------------------------------------------------------------


def never(*_: object) -> None:
    raise AssertionError("the encoder was loaded")


def test_errors(command: Command, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Told before the encoder, which takes seconds, is loaded."""
    monkeypatch.setattr("surprise_hf.cli_ranking.load_pipeline", never)
    (tmp_path / "none.txt").write_text("\n \n")
    taken = write(tmp_path / "taken.csv", [{"text": "a", "score": 1, "cluster": 2}])
    blank = write(tmp_path / "blank.csv", [{"id": 1, "text": " "}])
    for code, message, name, source, args in (
        (2, "required: --clusters", "cluster", table, ()),
        (2, "must be 1 or more, or auto", "cluster", table, ("--clusters", "many")),
        (2, "one of the arguments --query --queries-file", "rank", table, ()),
        (
            2,
            "a table is for standard output",
            "rank",
            table,
            ("--query", "x", "--out", "x.csv", "--out-format", "table"),
        ),
        (2, "column 'score' already", "rank", taken, ("--query", "x")),
        (2, "column 'cluster' already", "cluster", taken, ("--clusters", 2)),
        (1, "holds no text to search for", "rank", table, ("--queries-file", tmp_path / "none.txt")),
        (1, "no such folder", "cluster", table, ("--clusters", 2, "--plot", tmp_path / "no" / "x.png")),
        (
            2,
            "--min-score 0.9 is above --max-score 0.1",
            "rank",
            table,
            ("--query", "x", "--min-score", 0.9, "--max-score", 0.1),
        ),
        (2, "must be one of exact, faiss-flat", "rank", table, ("--query", "x", "--engine", "annoy")),
        (1, "none of the documents has any text", "cluster", blank, ("--clusters", 2)),
        (2, "--clusters 68 is more than the 67 documents with text", "cluster", table, ("--clusters", 68)),
        (2, "argument --query: must be a text, and is blank", "rank", table, ("--query", "")),
        (2, "argument --query: must be a text, and is blank", "rank", table, ("--query", "x", "--query", " ")),
        (2, "argument --at-least: must be a text, and is blank", "rank", table, ("--query", "x", "--at-least", "")),
        (
            2,
            "--balanced goes with --assign surprise or cosine, not mixed",
            "cluster",
            table,
            ("--clusters", 2, "--balanced", "--assign", "mixed"),
        ),
    ):
        assert run(command, name, source, *args) == code, command.err
        assert message in command.err


def test_a_picture_that_cannot_be_is_refused_before_the_work(
    command: Command, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("surprise_hf.cli_ranking.load_pipeline", never)
    monkeypatch.setattr("surprise_hf.cli_compare.load_pipeline", never)
    picture = ("--clusters", 2, "--plot", tmp_path / "x.png")
    assert run(command, "cluster", table, "--clusters", 2, "--plot", tmp_path / "x.doc") == 2
    assert "x.doc must end in one of" in command.err
    assert run(command, "compare", table, "--label-column", "label", "--plot", tmp_path / "x") == 2
    assert "x must end in one of" in command.err
    monkeypatch.setitem(sys.modules, "umap", None)
    assert run(command, "cluster", table, *picture, "--layout", "umap") == 1
    assert "pip install umap-learn" in command.err
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert run(command, "cluster", table, *picture) == 1
    assert "pip install matplotlib" in command.err


def test_a_picture_of_the_clusters_as_asked_for(
    command: Command, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = Mock(side_effect=RuntimeError)
    monkeypatch.setattr("surprise_hf.plots.cluster_map", drawn)
    monkeypatch.setattr("surprise_hf.plots.check_picture", lambda *_: None)
    args = ("--clusters", 3, "--plot", tmp_path / "x.png", "--layout", "umap")
    for more in ((), ("--names", "sport,food,rain,vote")):
        assert run(command, "cluster", table, *args, *more) == 1
        rows = [row for i, row in enumerate(read(command.out, "csv")) if i not in BLANK]
        emb, labels, titles = drawn.call_args.args
        assert drawn.call_args.kwargs == {"layout": "umap"}
        assert (len(emb), labels) == (67, [int(row["cluster"]) for row in rows])
        assert len(titles) == 3
        assert [titles[label] for label in labels] == [row["cluster_name" if more else "cluster"] for row in rows]


def test_a_picture_that_fails_costs_no_table(
    command: Command, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise RuntimeError("no picture today")

    monkeypatch.setattr("surprise_hf.plots.cluster_map", fails)
    out = tmp_path / "out.csv"
    assert run(command, "cluster", table, "--clusters", 2, "--plot", tmp_path / "x.png", "--out", out) == 1
    assert "no picture today" in command.err
    assert len(read(out.read_bytes(), "csv")) == len(ROWS)


def test_pictures_are_not_kept_in_memory(command: Command, table: Path, tmp_path: Path) -> None:
    from matplotlib import pyplot as plt

    before = plt.get_fignums()
    assert run(command, "cluster", table, "--clusters", 2, "--plot", tmp_path / "x.png", "--out-format", "table") == 0
    assert (tmp_path / "x.png").stat().st_size
    assert plt.get_fignums() == before


# --- nothing is lost -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
@pytest.mark.parametrize("args", [("rank", "--query", "dog"), ("cluster", "--clusters", 2)], ids=str)
def test_a_run_that_stops_leaves_the_last_output_and_no_trace(
    command: Command, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, args: tuple[str, ...], suffix: str
) -> None:
    out = tmp_path / f"out{suffix}"
    assert run(command, args[0], table, *args[1:], "--out", out) == 0
    before = out.read_bytes()
    with monkeypatch.context() as patch:
        interrupt_after(patch, Job, "append", 0, KeyboardInterrupt)
        assert run(command, args[0], table, *args[1:], "--out", out) == 130
    assert out.read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.csv", out.name]
    assert run(command, args[0], table, *args[1:], "--out", out) == 0  # and the next one goes
    assert out.read_bytes() == before


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_a_link_as_the_output_stays_one(command: Command, table: Path, tmp_path: Path, suffix: str) -> None:
    real, link = tmp_path / "elsewhere" / "real", tmp_path / f"out{suffix}"
    real.parent.mkdir()
    link.symlink_to(real)
    assert run(command, "cluster", table, "--clusters", 2, "--out", link) == 0
    assert link.is_symlink()
    assert len(read(real.read_bytes(), suffix[1:])) == len(ROWS)
    assert [path.name for path in real.parent.iterdir()] == ["real"]


@pytest.mark.parametrize("args", [("rank", "--query", "dog"), ("cluster", "--clusters", 2), ("fit-ensemble",)], ids=str)
@pytest.mark.parametrize("kind", ["hard link", "pipe"])
def test_an_output_that_no_file_may_replace(
    command: Command, table: Path, tmp_path: Path, args: tuple[object, ...], kind: str
) -> None:
    """Another name of the input; a pipe, and so a device."""
    out, before = tmp_path / "out.csv", table.read_bytes()
    out.hardlink_to(table) if kind == "hard link" else os.mkfifo(out)
    assert run(command, args[0], table, *args[1:], "--out", out) == 2
    assert ("--out is the input file itself" if kind == "hard link" else "is a device or pipe") in command.err
    assert table.read_bytes() == before
    assert out.is_fifo() == (kind == "pipe")
