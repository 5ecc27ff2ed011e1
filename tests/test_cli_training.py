"""`surprise-hf train`, in this process, on the tiny encoder."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from surprise_hf import SurpriseModel, cli

MORE = [f"{a} {b}" for a in ("red", "one", "cat", "dog") for b in ("vote", "gene")]
ROWS = [(f"{word} {more}", label) for word, label in (("bank", "money"), ("ball", "sport")) for more in MORE]


def write(path: Path, rows: list[tuple[str, ...]], header: tuple[str, ...] = ("body", "kind")) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([header, *rows])
    return path


def train(table: Path, model: Path, out: Path, *more: object) -> int:
    columns = ("--text-column", "body", "--label-column", "kind", "--device", "cpu")
    return cli.main([str(x) for x in ("train", table, *columns, "--model", model, "--out", out, *more)])


@pytest.mark.parametrize("epochs", [2, 0])
def test_train_then_classify(st_path, tmp_path, capsys, epochs):
    table = write(tmp_path / "few.csv", [*ROWS, ("rain snow", "")])
    archive = write(tmp_path / "archive.csv", [(text,) for text, _ in ROWS], ("body",))
    options = ("--epochs", epochs, "--learning-rate", 0.001, "--documents", archive, "--test", table, "--refine", 2)
    assert train(table, st_path, tmp_path / "out", "--template", "about {}", *options) == 0
    out, err = capsys.readouterr()
    assert "2 labels, an ensemble of 16 documents" in err
    assert out.splitlines()[-1].startswith("surprise")
    model = SurpriseModel.from_pretrained(tmp_path / "out", device="cpu")
    assert model.candidate_labels == ["money", "sport"]
    assert model.hypothesis_template == "about {}"
    assert model.fit_options["refine"] == 2
    start = SurpriseModel.from_pretrained(st_path, device="cpu")
    moved = any(not (a == b).all() for a, b in zip(start.parameters(), model.parameters(), strict=True))
    assert moved == (epochs > 0)
    picture = tmp_path / "out" / "training.png"
    assert picture.exists() == (epochs > 0)
    assert not epochs or picture.read_bytes().startswith(b"\x89PNG")
    labelled = tmp_path / "labelled.csv"
    classify = ("classify", archive, "--text-column", "body", "--model", tmp_path / "out", "--device", "cpu")
    assert cli.main([*map(str, classify), "--out", str(labelled)]) == 0
    with labelled.open(encoding="utf-8") as file:
        found = [row["label"] for row in csv.DictReader(file)]
    right = sum(label == target for label, (_, target) in zip(found, ROWS, strict=True)) / len(ROWS)
    assert out.splitlines()[-1].split()[2] == f"{right:.3f}"


def test_wrong_arguments(st_path, tmp_path, capsys):
    table = write(tmp_path / "few.csv", ROWS)
    for more, code, words in (
        (("--label-column", "none"), 1, "has no column 'none'"),
        (("--labels", "money,music"), 1, "row 8 has the label 'sport'"),
        (("--epochs", "-1"), 2, "--epochs must be 0 or more"),
        (("--test", tmp_path / "x.txt"), 2, "name it .csv"),
        (("--out", tmp_path / "no" / "where"), 1, "no such folder"),
        (("--out", table), 1, "is a file"),
    ):
        assert train(table, st_path, tmp_path / "out", *more) == code
        assert words in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
