"""`surprise-hf compare`, in this process."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import pytest
import torch
from datasets import ClassLabel, Dataset, Features, Value

from surprise_hf import SurpriseModel, cli, cli_compare, comparison
from surprise_hf.scoring import surprise
from tests.cli_data import interrupt_after

MESSAGES = Path(__file__).parents[1] / "examples" / "data" / "support_messages.csv"


def compare(table: Path, model: Path, *more: object, label: str = "label") -> int:
    columns = ("--text-column", "text", "--label-column", label, "--device", "cpu")
    return cli.main([str(x) for x in ("compare", table, *columns, "--model", model, *more)])


def test_the_numbers_are_those_of_the_methods(minilm_path, tmp_path, capsys):
    out, png = tmp_path / "out.json", tmp_path / "out.png"
    assert compare(MESSAGES, minilm_path, "--out", out, "--plot", png) == 0
    shown = json.loads(out.read_text())
    rows = list(csv.DictReader(MESSAGES.open(encoding="utf-8")))
    labels = sorted({row["label"] for row in rows})
    model = SurpriseModel.from_pretrained(minilm_path, device="cpu")
    emb, vectors = model.embed([row["text"] for row in rows])[0], model.label_vectors(labels, "this matter is {}")
    for method, options in {"cosine": {"weight": 0}, "surprise": {"weight": 1}}.items():
        best = surprise(emb, vectors, **options).argmax(dim=1).tolist()
        right = sum(labels[at] == row["label"] for at, row in zip(best, rows, strict=True))
        seen = next(one for one in shown["methods"] if one["method"] == method)
        assert seen["accuracy"] == pytest.approx(right / len(rows), abs=1e-9)
    assert shown["labels"] == labels
    assert shown["advised"] == "refined"
    assert png.read_bytes().startswith(b"\x89PNG")
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].startswith("200 documents, 8 labels")
    assert [line.split()[0] for line in printed[2:5]] == ["cosine", "surprise", "refined"]
    assert printed[-1] == shown["advice"]


def test_labels_and_blank_documents(st_path, tmp_path, capsys):
    table = tmp_path / "few.csv"
    table.write_text("text,label\nball game,sport\n,money\nbank price,money\nrain,\nteam win,sport\n", encoding="utf-8")
    out = tmp_path / "out.json"
    assert compare(table, st_path, "--labels", "money,sport,weather", "--out", out) == 0
    shown = json.loads(out.read_text())
    assert shown["labels"] == ["money", "sport", "weather"]
    assert shown["documents"] == 3
    assert capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "more", "words"),
    [
        ("text,other\na,b\n", (), "no column 'label'"),
        ("text,label\na,\nb,\n", ("--labels", "x,y"), "no document with text has a label"),
        ("text,label\na,x\nb,y\nc,x\n", ("--shots", "2"), "too few documents"),
        ("text,label\na,x\nb,z\n", ("--labels", "x,y"), "'z'"),
        ("text,label\na,x\nb,y\n", ("--shots", "-1"), "--shots must be"),
    ],
)
def test_errors(st_path, tmp_path, capsys, text, more, words):
    table = tmp_path / "few.csv"
    table.write_text(text, encoding="utf-8")
    assert compare(table, st_path, *more) in {1, 2}
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(("error", "code"), [(KeyboardInterrupt, 130), (RuntimeError, 1)])
def test_what_is_known_is_shown_when_a_method_fails(minilm_path, tmp_path, capsys, monkeypatch, error, code):
    out = tmp_path / "out.json"
    interrupt_after(monkeypatch, comparison, "part_labels", 0, error)
    assert compare(MESSAGES, minilm_path, "--shots", 3, "--out", out) == code
    printed = capsys.readouterr()
    lines = printed.out.splitlines()
    assert [line.split()[0] for line in lines[2:-1]] == ["cosine", "surprise", "refined"]
    shown = json.loads(out.read_text())
    assert [row["method"] for row in shown["methods"]] == ["cosine", "surprise", "refined"]
    assert lines[-1] == shown["advice"]
    assert ("interrupted" if code == 130 else "RuntimeError") in printed.err


def test_options_reach_the_methods(st_path, tmp_path, monkeypatch):
    """And the documents kept for the test are those of the same choice."""
    table, seen, real = tmp_path / "few.csv", {}, comparison.split
    table.write_text(rows_of(4), encoding="utf-8")

    def predictions(model, texts, labels, _, **options):
        seen.update(options, prompt=model._default_prompt, labels=labels, texts=texts)
        raise ValueError

    def split(positive, shots, seed):
        seen["split"] = (shots, seed)
        return real(positive, shots, seed)

    monkeypatch.setattr(comparison, "predictions", predictions)
    monkeypatch.setattr(comparison, "split", split)
    options = ("--shots", 2, "--seed", 3, "--batch-size", 4, "--template", "on {}", "--prompt", "query: ")
    assert compare(table, st_path, *options) == 1
    assert seen == {
        "shots": 2, "seed": 3, "batch_size": 4, "template": "on {}", "split": (2, 3),
        "prompt": "query: ", "labels": ["money", "sport"], "texts": ["ball game", "bank price"] * 4,
    }  # fmt: skip


def rows_of(count: int) -> str:
    return "text,label\n" + "ball game,sport\nbank price,money\n" * count


@pytest.mark.parametrize("ran", [["cosine"], ["cosine", "surprise"]])
@pytest.mark.parametrize("how", ["interrupted", "not written"])
def test_no_advice_before_every_zero_shot_method_was_tried(st_path, tmp_path, capsys, monkeypatch, ran, how):
    """Nothing else did better where nothing else was tried: that was said, and was no reason to stay."""
    table, out = tmp_path / "few.csv", tmp_path / "out.json"
    table.write_text(rows_of(4), encoding="utf-8")
    if how == "interrupted":
        interrupt_after(monkeypatch, comparison, "_sampled", len(ran), KeyboardInterrupt)
    else:
        interrupt_after(monkeypatch, cli_compare.Path, "write_text", len(ran) - 1, OSError)
    assert compare(table, st_path, "--out", out) == (130 if how == "interrupted" else 1)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[2:-1]] == ran
    left = " and ".join(["surprise", "refined"][len(ran) - 1 :])
    assert lines[-1] == f"No advice: only {' and '.join(ran)} ran, {left} did not."
    if how == "interrupted":
        shown = json.loads(out.read_text())
        assert (shown["advised"], shown["advice"]) == (None, lines[-1])


def test_columns_stay_apart_where_everything_is_right(st_path, tmp_path, capsys, monkeypatch):
    table = tmp_path / "few.csv"
    table.write_text(rows_of(4), encoding="utf-8")
    wrong, right = torch.tensor([[0], [1]] * 4), torch.tensor([[1], [0]] * 4)  # labels in alphabetic order
    found = [(name, right if i else wrong, 0.0) for i, name in enumerate(comparison.METHODS)]
    monkeypatch.setattr(comparison, "predictions", lambda *_, **__: iter(found))
    assert compare(table, st_path) == 0
    lines = capsys.readouterr().out.splitlines()
    whole = "100.0 (100.0 to 100.0)"
    assert [cell.strip() for cell in re.split(" {2,}", lines[3])] == [
        "surprise", whole, whole, "+100.0 (+100.0 to +100.0)", "0.0",
    ]  # fmt: skip


def test_numbers_with_names(st_path, tmp_path, capsys):
    rows = {"text": ["ball game", "bank price", "team win"], "label": [1, 0, 1]}
    features = Features({"text": Value("string"), "label": ClassLabel(names=["money", "sport"])})
    Dataset.from_dict(rows, features).to_parquet(tmp_path / "few.parquet")
    assert compare(tmp_path / "few.parquet", st_path, "--out", tmp_path / "out.json") == 0
    assert json.loads((tmp_path / "out.json").read_text())["labels"] == ["money", "sport"]
    assert capsys.readouterr().out


def test_lists_in_a_file_of_text(st_path, tmp_path):
    """As `train` reads them: a list was a label of its own."""
    table = tmp_path / "few.csv"
    table.write_text("text,label\nball game,\"['sport', 'fun']\"\nbank price,money\nteam win,sport\n", encoding="utf-8")
    assert compare(table, st_path, "--out", tmp_path / "out.json") == 0
    assert json.loads((tmp_path / "out.json").read_text())["labels"] == ["fun", "money", "sport"]
