"""examples/reproduce/few_shot.py: what is drawn, what each worker's method does, and the script from end to end."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from sentence_transformers import SentenceTransformer
from sklearn.linear_model import LogisticRegression

from tests.reproduce_data import call, make_folder, scripts

MORE = [f"{a} {b}" for a in ("red", "one", "cat", "dog") for b in ("vote", "gene")]


@pytest.fixture
def few_shot(monkeypatch: pytest.MonkeyPatch) -> Any:
    return scripts(monkeypatch, "few_shot")[0]


@pytest.fixture
def job(minilm_path: Path) -> dict[str, Any]:
    """24 texts to learn from, which are the documents too."""
    names = ["circle", "square", "triangle"]  # which the texts say nothing about
    texts = [f"{word} {more}" for word in ("bank", "ball", "rain") for more in MORE]
    return {
        "model": str(minilm_path),
        "revision": None,
        "max_length": None,
        "prompt": "",
        "template": "{}",
        "names": names,
        "texts": list(texts),
        "labels": [0] * 8 + [1] * 8 + [2] * 8,
        "documents": list(texts),
        "seed": 0,
        "options": None,
    }


def test_splits(few_shot: Any, tmp_path: Path) -> None:
    data = make_folder(tmp_path, 60)
    one, two, other = (few_shot.split("ag_news", data, k, seed, True, 10) for k, seed in ((2, 0), (5, 0), (5, 1)))
    assert one.names == ["Business", "Sci/Tech", "Sports", "World"]
    assert Counter(one.labels) == dict.fromkeys(range(4), 2)
    assert set(zip(one.texts, one.labels, strict=True)) < set(zip(two.texts, two.labels, strict=True))
    assert set(two.texts) != set(other.texts)
    assert not set(two.texts) & set(two.documents)
    assert len(one.documents) == len(one.targets) == 10
    unbalanced = few_shot.split("ag_news", data, 5, 0, False)
    assert len(unbalanced.texts) == 20
    assert len(set(Counter(unbalanced.labels).values())) > 1
    assert len(unbalanced.documents) == 60
    # a training text that is a test text too is not learnt from
    assert few_shot.split("clinc150", data, 5, 0, True).texts == []


def test_worker_methods(monkeypatch: pytest.MonkeyPatch, job: dict[str, Any]) -> None:
    worker = scripts(monkeypatch, "few_shot_worker")[0]
    monkeypatch.setattr(worker, "EPOCHS", 3)
    methods = worker.METHODS
    found = {"frozen": methods["surprise"](job)()()}
    found["trained"] = methods["surprise"]({**job, "options": {"num_train_epochs": 4}})()()
    found["pairs"], found["logistic"] = methods["pairs"](job)()(), methods["logistic"](job)()()
    right = {
        f"{name} {decision}": sum(a == b for a, b in zip(chosen, job["labels"], strict=True))
        for name, of_method in found.items()
        for decision, chosen in of_method.items()
        if decision != "encoded"
    }
    own = ["cosine", "surprise", "refined", "examples", "mixed"]
    assert [f"{name} {x}" for name in ("frozen", "trained") for x in own] == list(right)[:10]
    assert found["frozen"]["encoded"] is None
    assert found["trained"]["encoded"] == {"documents": 4 * 24, "labels": 4 * 2 * 3}
    # what was learnt from is known afterwards
    assert right["trained cosine"] > right["frozen cosine"]
    assert right["pairs cosine"] > right["frozen cosine"]
    assert right["frozen examples"] > right["frozen cosine"]
    emb = SentenceTransformer(job["model"], device="cpu").encode(job["texts"])
    head = LogisticRegression(max_iter=1000).fit(emb, job["labels"])
    assert found["logistic"]["logistic"] == head.predict(emb).tolist()
    named = {**job, "names": ["money", "sport", "weather"], "options": {"num_train_epochs": 2}}
    assert methods["pseudo"](named)()()["refined"] == job["labels"]


def test_from_end_to_end(few_shot: Any, st_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, out = make_folder(tmp_path / "data"), tmp_path / "out"
    arguments = ("--data", data, "--model", f"tiny={st_path}", "--sets", "ag_news", "--k", "1", "--kinds", "balanced")
    arguments += ("--runs", 1, "--limit", 12, "--threads", 1, "--out", out)
    call(few_shot, monkeypatch, *arguments)
    (row,) = json.loads((out / "few_shot.json").read_text())["rows"]
    assert {"set": "ag_news", "k": 1, "seed": 0, "labels": 4}.items() <= row.items()
    assert set(row["scores"]) == {"cosine", "surprise", "refined", "examples", "mixed"}
    assert row["train"][1] > 0
    assert row["peak"] > 50
    page = (out / "few_shot.md").read_text()
    assert f"| tiny | ag_news | balanced | 1 | {row['scores']['cosine']['f1']:.1f} |" in page
    assert (out / "few_shot.png").read_bytes().startswith(b"\x89PNG")
    monkeypatch.setattr(few_shot, "ask", None)  # nothing runs again
    call(few_shot, monkeypatch, *arguments)
    assert (out / "few_shot.md").read_text() == page


def test_a_slow_run_is_cut_and_a_failed_one_told(few_shot: Any, job: dict[str, Any]) -> None:
    assert few_shot.ask(few_shot.sys.executable, {**job, "method": "surprise"}, limit=0.01) == {"cut": 0.01}
    with pytest.raises(RuntimeError, match=r"(?s)nothing failed in .*KeyError"):
        few_shot.ask(few_shot.sys.executable, {**job, "method": "nothing"})
