"""examples/reproduce: the zero-shot table and the curve of ensemble sizes, against float64 and by hand."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from scipy.special import ndtr
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import f1_score

from tests.reproduce_data import call, make_folder, scripts


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> list[ModuleType]:
    return scripts(monkeypatch, "common", "sets", "zero_shot", "ensemble_size")


def expected(encoder, data, ensemble=None) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """The right labels and those of each method, from the definitions in float64."""
    unit = torch.nn.functional.normalize
    documents = unit(encoder(data.texts).double(), dim=1)
    queries = unit(encoder([f"this matter is {name}" for name in data.names]).double(), dim=1)
    psi = (documents @ queries.T).numpy()
    rows = psi if ensemble is None else psi[ensemble]
    surprise = ndtr((psi - rows.mean(axis=0)) / rows.std(axis=0))
    head = LogisticRegression().fit(
        encoder([f"This sentence is {name}" for name in data.names for _ in range(2)]).numpy(),
        [i for i in range(len(data.names)) for _ in range(2)],
    )
    found = {
        "SetFit": head.predict(encoder(data.texts).numpy()),
        "cosine": psi.argmax(axis=1),
        "surprise": surprise.argmax(axis=1),
    }
    return np.array([data.names.index(label) for label in data.labels]), found


@pytest.mark.parametrize("name", ["ag_news", "dbpedia", "imdb"])
def test_a_row_of_the_table(modules: list[ModuleType], st_path: Path, tmp_path: Path, name: str) -> None:
    common, sets, zero_shot, _ = modules
    data = sets.load(name, make_folder(tmp_path / "data", rows=60))
    encoder = common.Encoder(f"tiny={st_path}", tmp_path)
    row = zero_shot.measure(encoder, data)
    truth, found = expected(encoder, data)
    assert (row["n"], row["labels"], list(row["scores"])) == (60, len(data.names), ["SetFit", "cosine", "surprise"])
    for method, labels in found.items():
        assert row["scores"][method]["accuracy"] == pytest.approx(100 * (labels == truth).mean(), abs=1e-9)
        expect = 100 * f1_score(truth, labels, average="weighted")
        assert row["scores"][method]["f1"] == pytest.approx(expect, abs=1e-9)
    assert len({tuple(labels) for labels in found.values()}) == 3  # three methods, three answers


def test_the_table_and_again(
    modules: list[ModuleType], st_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    zero_shot = modules[2]
    data, calls = make_folder(tmp_path / "data"), []
    monkeypatch.setattr(zero_shot, "measure", lambda *a, real=zero_shot.measure: calls.append(a[1].name) or real(*a))

    def run(names: str) -> list[dict]:
        models = [f"tiny={st_path}", f"other={st_path},query:_"]
        call(
            zero_shot, monkeypatch, "--data", data, "--model", models[0], "--model", models[1], "--sets", names,
            "--limit", 20, "--out", tmp_path / "out",
        )  # fmt: skip
        return json.loads((tmp_path / "out" / "zero_shot.json").read_text())["rows"]

    first = run("imdb,ag_news")
    assert calls == ["imdb", "ag_news"] * 2
    assert [row["n"] for row in first] == [20] * 4
    again = run("ag_news,dbpedia,imdb")
    assert calls[4:] == ["dbpedia"] * 2
    assert [row for row in again if row["set"] != "dbpedia"] == [first[i] for i in (1, 0, 3, 2)]
    text = (tmp_path / "out" / "zero_shot.md").read_text()
    assert "| sentence-t5-base | imdb | 66.2 | 63.9 | **83.9** |" in text  # the paper's
    assert "| gtr-t5-large | *average* | 53.2 | 56.8 | **58.9** |" in text
    mean = np.mean([row["scores"]["cosine"]["f1"] for row in again[:3]])
    line = next(line for line in text.split("### Weighted F1")[1].splitlines() if line.startswith("| tiny | *average*"))
    assert line.split("|")[6].strip().strip("*") == f"{mean:.1f}"
    assert "![zero_shot](zero_shot.png)" in text
    assert (tmp_path / "out" / "zero_shot.png").stat().st_size > 10_000


def test_f1_at_an_ensemble_size(modules: list[ModuleType], st_path: Path, tmp_path: Path) -> None:
    common, sets, _, ensemble_size = modules
    data = sets.load("ag_news", make_folder(tmp_path / "data", rows=60))
    encoder = common.Encoder(f"tiny={st_path}", tmp_path)
    task = ensemble_size.Task(encoder, data)
    for run in range(3):
        part = ensemble_size.draw_ensemble(60, 9, run)
        assert len(set(part.tolist())) == 9
        truth, found = expected(encoder, data, part.numpy())
        surprise = 100 * f1_score(truth, found["surprise"], average="weighted")
        cosine = 100 * f1_score(truth, found["cosine"], average="weighted")
        assert task.f1(1.0, part) == pytest.approx(surprise, abs=1e-9)
        assert task.f1(0.0) == pytest.approx(cosine, abs=1e-9)
    assert not torch.equal(*(ensemble_size.draw_ensemble(60, 9, run) for run in (0, 1)))
    assert task.f1(1.0) == pytest.approx(
        100 * f1_score(truth, expected(encoder, data)[1]["surprise"], average="weighted")
    )


def test_the_curve_by_hand(modules: list[ModuleType]) -> None:
    ensemble_size = modules[3]
    rows = [
        {"method": "cosine", "size": 0, "run": 0, "f1": 60.0},
        {"method": "whole", "size": 0, "run": 0, "f1": 66.0},
        *({"method": "surprise", "size": 3, "run": i, "f1": f1} for i, f1 in enumerate((40.0, 60.0))),
        *({"method": "surprise", "size": 9, "run": i, "f1": f1} for i, f1 in enumerate((72.0, 78.0))),
    ]
    found = ensemble_size.summarise(rows)
    assert (found["sizes"], found["f1"], found["f1_std"]) == ([3, 9], [50.0, 75.0], [10.0, 3.0])
    assert found["ratio"] == pytest.approx([1.2, 0.8])
    assert found["ratio_std"] == pytest.approx([0.25, (60 / 72 - 60 / 78) / 2])
    assert found["crossover"] == pytest.approx(27**0.5)  # half way, on the logarithmic scale
    assert (found["cosine"], found["surprise_whole"]) == (60.0, 66.0)
    assert ensemble_size.crossover([3, 9, 27], [0.9, 1.0, 0.8]) == pytest.approx(9)
    assert ensemble_size.crossover([3, 9, 27], [0.9, 0.9, 0.8]) == 3
    assert ensemble_size.crossover([3, 9, 27], [0.9, 0.9, 1.1]) is None


def test_the_curve_and_again(
    modules: list[ModuleType], st_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ensemble_size = modules[3]
    data, calls = make_folder(tmp_path / "data", rows=100), []
    real = ensemble_size.Task.f1
    monkeypatch.setattr(ensemble_size.Task, "f1", lambda *a: calls.append(a[1]) or real(*a))

    def run(runs: int) -> dict:
        call(
            ensemble_size, monkeypatch, "--data", data, "--model", f"tiny={st_path}", "--sets", "ag_news,imdb",
            "--runs", runs, "--out", tmp_path / "out",
        )  # fmt: skip
        return json.loads((tmp_path / "out" / "ensemble_size.json").read_text())["results"]["tiny"]

    first = run(2)
    assert first["imdb"]["sizes"] == [3, 9, 27, 81]  # 243 and more are beyond the documents
    assert len(calls) == 2 * (2 + 4 * 2)
    log = tmp_path / "out" / "tiny.rows.jsonl"
    log.write_text(log.read_text()[:-9])
    assert run(2) == first
    assert len(calls) == 21
    more = run(3)
    assert len(calls) == 21 + 2 * 4
    assert more["imdb"]["cosine"] == first["imdb"]["cosine"]
    text = (tmp_path / "out" / "ensemble_size.md").read_text()
    assert "![ensemble_size_tiny](ensemble_size_tiny.png)" in text
    assert (tmp_path / "out" / "ensemble_size_tiny.png").stat().st_size > 10_000
