"""examples/reproduce: the word tables against the n x n definition, and both scripts from end to end on small data."""

from __future__ import annotations

import gzip
import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from scipy.stats import norm

from tests.conftest import WORDS

FOLDER = Path(__file__).parents[1] / "examples" / "reproduce"
NAMES = ("common", "words", "clustering", "zero_shot", "sets")


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, ModuleType]]:
    monkeypatch.syspath_prepend(str(FOLDER))
    for name in NAMES:
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield {name: importlib.import_module(name) for name in ("common", "words", "clustering")}
    for name in NAMES:
        sys.modules.pop(name, None)


def test_word_scores_are_those_of_the_whole_matrix(script: dict[str, ModuleType]) -> None:
    gen = torch.Generator().manual_seed(0)
    words = torch.randn(3000, 48, generator=gen) * torch.rand(48, generator=gen) + 0.6
    found = script["words"].score(words[11], words)
    unit = words.double() / words.double().norm(dim=1, keepdim=True)
    psi = unit @ unit.T
    mean, std = psi.mean(dim=0), psi.std(dim=0, correction=0)
    z = (psi[11] - mean) / std
    for name, expected, tolerance in (
        ("cosine", psi[11], 1e-6),
        ("mean", mean, 1e-6),
        ("std", std, 1e-6),
        ("surprise", norm.cdf(z), 1e-6),
        ("z", z, 1e-5),
    ):
        np.testing.assert_allclose(found[name], expected, rtol=0, atol=tolerance)


def test_words_from_end_to_end(
    script: dict[str, ModuleType],
    st_path: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> None:
    words = script["words"]
    data = tmp_path / "data"
    (data / words.FILE).parent.mkdir(parents=True)
    listed = sorted({*WORDS, *words.PAPER})
    (data / words.FILE).write_text("\n".join(listed) + "\n")
    arguments = ["--data", str(data), "--model", f"tiny={st_path}", "--out", str(tmp_path / "out")]
    monkeypatch.setattr(sys, "argv", ["words.py", *arguments])
    words.main()
    result = json.loads((tmp_path / "out" / "words.json").read_text())
    assert result["words"] == len(listed)
    rows = {row["word"]: row for row in result["results"][0]["rows"]}
    assert rows["dog"]["cosine"] == pytest.approx(100, abs=1e-3)
    assert rows["dog"]["place_by_cosine"] == 1
    assert "dog" not in result["results"][0]["best"]["z"]
    text = (tmp_path / "out" / "words.md").read_text()
    assert text in capsys.readouterr().out
    assert "| 84.9 | 77.0 | 2.2 | 100.0 |" in text  # the paper's Alsatian
    (data / words.FILE).write_text("dog\n")
    with pytest.raises(SystemExit, match="lacks Alsatian"):
        words.main()
    monkeypatch.setitem(sys.modules, "english_words", None)
    with pytest.raises(SystemExit, match=r"pip install english-words==1\.1\.0"):
        words.load_words(None)


def test_clustering_from_end_to_end_and_again(
    script: dict[str, ModuleType], st_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clustering = script["clustering"]
    data = tmp_path / "data"
    (data / "reddit_tweac").mkdir(parents=True)
    rng = np.random.default_rng(0)
    with gzip.open(data / "reddit_tweac" / "test.jsonl.gz", "wt") as file:
        for label in range(60):
            home = rng.choice(WORDS, 3)
            for _ in range(9):
                text = " ".join([*home, *rng.choice(WORDS, 2)])
                file.write(json.dumps({"label": f"r{label}", "text": text}) + "\n")
    out = tmp_path / "out"

    def run(runs: int, *more: str) -> dict:
        arguments = ["--data", str(data), "--model", f"tiny={st_path}", "--out", str(out), "--splits", "2"]
        arguments += ["--limit", "6", "--runs", str(runs), *more]
        monkeypatch.setattr(sys, "argv", ["clustering.py", *arguments])
        clustering.main()
        return json.loads((out / "clustering.json").read_text())["results"]["tiny"]

    first = run(2)
    assert set(first) == {"cosine", "surprise"}
    assert first["cosine"]["v_measure"]["gain"] == 0
    log = out / "tiny.runs.jsonl"
    assert len(log.read_text().splitlines()) == 1 + 4
    log.write_text(log.read_text()[:-30])  # as after a kill in the middle of a line
    monkeypatch.setattr(clustering, "measure", lambda *_, real=clustering.measure: calls.append(1) or real(*_))
    calls: list[int] = []
    assert run(2) == first
    assert len(calls) == 1
    run(3)
    assert len(calls) == 3
    more = run(1, "--variants", "mixed,iterated,balanced,dot,euclidean,manhattan")
    assert {"mixed", "iterated", "balanced", "dot surprise", "euclidean", "manhattan surprise"} <= set(more)
    assert len(calls) == 5
    monkeypatch.setattr(sys, "argv", [*sys.argv[:-1], "hamming"])
    with pytest.raises(SystemExit):
        clustering.main()


def test_titles_and_splits(script: dict[str, ModuleType], tmp_path: Path) -> None:
    clustering = script["clustering"]
    (tmp_path / "reddit_tweac").mkdir()
    rows = [{"label": f"r{i % 60}", "text": f"title {i // 2}"} for i in range(600)]
    with gzip.open(tmp_path / "reddit_tweac" / "test.jsonl.gz", "wt") as file:
        file.write("".join(json.dumps(row) + "\n" for row in rows))
    titles = clustering.load_titles(tmp_path, 4)
    every = [text for texts in titles.values() for text in texts]
    assert len(every) == len(set(every))  # a title belongs to the first subreddit that has it
    assert {len(texts) for texts in titles.values()} == {0, 4}
    assert clustering.load_titles(tmp_path, 4) == titles
    splits = clustering.draw_splits(list(titles), 25)
    assert splits == clustering.draw_splits(list(titles)[::-1], 25)
    assert all(10 <= len(split) == len(set(split)) <= 50 for split in splits)


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
