"""examples/reproduce: the word tables against the n x n definition, and both scripts from end to end on small data."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from scipy.stats import norm

from tests.reproduce_data import DICTIONARY, call, make_folder, scripts


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> dict[str, ModuleType]:
    names = ("words", "clustering", "sets")
    return dict(zip(names, scripts(monkeypatch, *names), strict=True))


@pytest.mark.parametrize("crowding", [0.6, 4])
def test_word_scores_are_those_of_the_whole_matrix(script: dict[str, ModuleType], crowding: float) -> None:
    gen = torch.Generator().manual_seed(0)
    words = torch.randn(3000, 48, generator=gen) * torch.rand(48, generator=gen) + crowding
    found = script["words"].score(words[11], words)
    unit = words.double() / words.double().norm(dim=1, keepdim=True)
    psi = unit @ unit.T
    mean, std = psi.mean(dim=0), psi.std(dim=0, correction=0)
    z = (psi[11] - mean) / std
    for name, expected in (("cosine", psi[11]), ("mean", mean), ("std", std), ("surprise", norm.cdf(z)), ("z", z)):
        np.testing.assert_allclose(found[name], expected, rtol=0, atol=1e-9)


def test_words_from_end_to_end(
    script: dict[str, ModuleType],
    st_path: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> None:
    words, data = script["words"], make_folder(tmp_path / "data")

    def run(*more: object) -> dict:
        call(words, monkeypatch, "--data", data, "--model", f"tiny={st_path}", "--out", tmp_path / "out", *more)
        return json.loads((tmp_path / "out" / "words.json").read_text())

    result = run()
    assert result["words"] == len(DICTIONARY)
    rows = {row["word"]: row for row in result["results"][0]["rows"]}
    assert rows["dog"]["cosine"] == pytest.approx(100, abs=1e-3)
    assert rows["dog"]["place_by_cosine"] == 1
    assert "dog" not in result["results"][0]["best"]["z"]
    text = (tmp_path / "out" / "words.md").read_text()
    assert text.partition("\n![")[0].rstrip() in capsys.readouterr().out
    assert "| 84.9 | 77.0 | 2.2 | 100.0 |" in text  # the paper's Alsatian
    assert f"| encoder | tiny | sentence-t5-base |\n| words | {len(DICTIONARY)} | 25,474 |" in text
    by_cosine = text.partition("By surprise:")[0].partition("By cosine:")[2].splitlines()
    shown = [line.split("|")[1:3] for line in by_cosine if line.startswith("| ")][2:]
    assert [word.strip() for word, _ in shown] == sorted(rows, key=lambda word: -rows[word]["cosine"])
    assert [line.split("|")[4].strip() for line in by_cosine if line.startswith("| ")][2:4] == ["dog", "the"]
    assert (tmp_path / "out" / "words.png").stat().st_size > 10_000
    assert run("--limit", 20)["words"] == 20

    (data / script["sets"].WORDS_FILE).write_text("dog\n")
    with pytest.raises(SystemExit, match="lacks Alsatian"):
        run()
    monkeypatch.setitem(sys.modules, "english_words", None)
    with pytest.raises(SystemExit, match=r"pip install english-words==1\.1\.0"):
        script["sets"].load_words("hub")


def test_clustering_from_end_to_end_and_again(
    script: dict[str, ModuleType], st_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clustering, data = script["clustering"], make_folder(tmp_path / "data")

    def run(runs: int, *more: object) -> dict:
        call(
            clustering, monkeypatch, "--data", data, "--model", f"tiny={st_path}", "--out", tmp_path / "out",
            "--splits", 2, "--titles", 6, "--runs", runs, *more,
        )  # fmt: skip
        return json.loads((tmp_path / "out" / "clustering.json").read_text())["results"]["tiny"]

    first = run(2)
    assert set(first) == {"cosine", "surprise"}
    assert first["cosine"]["v_measure"]["gain"] == 0
    assert (tmp_path / "out" / "clustering.png").stat().st_size > 10_000
    log = tmp_path / "out" / "tiny.runs.jsonl"
    assert len(log.read_text().splitlines()) == 1 + 4
    log.write_text(log.read_text()[:-30])  # as after a kill in the middle of a line
    calls: list[int] = []
    monkeypatch.setattr(clustering, "measure", lambda *_, real=clustering.measure: calls.append(len(_[0])) or real(*_))
    assert run(2) == first
    assert len(calls) == 1
    run(3)
    assert len(calls) == 3
    more = run(1, "--variants", "mixed,iterated,balanced,dot,euclidean,manhattan", "--limit", 60)
    assert {"mixed", "iterated", "balanced", "dot surprise", "euclidean", "manhattan surprise"} <= set(more)
    assert calls[3:] == [60, 60]
    with pytest.raises(SystemExit):
        run(1, "--variants", "hamming")


def test_the_summary_by_hand(script: dict[str, ModuleType]) -> None:
    def row(split: int, run: int, cosine: float, surprise: float) -> dict:
        scores = {"cosine": cosine, "surprise": surprise}
        return {
            "split": split,
            "run": run,
            "scores": {w: {"v_measure": x, "adjusted_rand": x} for w, x in scores.items()},
        }

    rows = [row(0, 0, 10, 12), row(0, 1, 14, 16), row(1, 0, 30, 29), row(1, 1, 30, 29)]
    found = script["clustering"].summarise(rows)["surprise"]["adjusted_rand"]
    assert found == {"mean": 21.5, "std_runs": 1.0, "std_splits": 7.5, "gain": 0.5, "splits_gained": 1}
