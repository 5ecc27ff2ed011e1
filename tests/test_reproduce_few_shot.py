"""examples/reproduce/few_shot.py: what is drawn, what each worker's method does, and the script from end to end."""

from __future__ import annotations

import importlib.util
import itertools
import json
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
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
    epochs = found["trained"]["encoded"]["documents"] // 24  # until the cross-entropy is small
    assert found["trained"]["encoded"] == {"documents": epochs * 24, "labels": epochs * 2 * 3}
    assert 1 <= epochs <= 4
    # what was learnt from is known afterwards
    assert right["trained cosine"] > right["frozen cosine"]
    assert right["pairs cosine"] > right["frozen cosine"]
    assert right["frozen examples"] > right["frozen cosine"]
    emb = SentenceTransformer(job["model"], device="cpu").encode(job["texts"])
    head = LogisticRegression(max_iter=1000).fit(emb, job["labels"])
    assert found["logistic"]["logistic"] == head.predict(emb).tolist()
    named = {**job, "names": ["money", "sport", "weather"], "options": {"num_train_epochs": 2}}
    assert methods["pseudo"](named)()()["refined"] == job["labels"]
    assert methods["documents"](named)()()["mixed"] == job["labels"]


def test_from_end_to_end(few_shot: Any, st_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, out = make_folder(tmp_path / "data"), tmp_path / "out"
    arguments = ("--data", data, "--model", f"tiny={st_path}", "--sets", "ag_news", "--k", "1", "--kinds", "balanced")
    arguments += ("--runs", 1, "--first-seed", 3, "--limit", 12, "--threads", 1, "--out", out)
    call(few_shot, monkeypatch, *arguments)
    (row,) = json.loads((out / "few_shot.json").read_text())["rows"]
    assert {"set": "ag_news", "k": 1, "seed": 3, "labels": 4}.items() <= row.items()
    assert set(row["scores"]) == {"cosine", "surprise", "refined", "examples", "mixed"}
    assert row["train"][1] > 0
    assert row["peak"] > 50
    page = (out / "few_shot.md").read_text()
    assert f"| tiny | ag_news | balanced | 1 | {row['scores']['cosine']['f1']:.1f} |" in page
    assert (out / "few_shot.png").read_bytes().startswith(b"\x89PNG")
    monkeypatch.setattr(few_shot, "ask", None)  # nothing runs again
    with pytest.raises(SystemExit, match="--kinds balancd: give balanced, unbalanced or both"):
        call(few_shot, monkeypatch, *arguments, "--kinds", "balancd")
    call(few_shot, monkeypatch, *arguments)
    assert (out / "few_shot.md").read_text() == page
    before = {path: path.read_bytes() for path in (out / "runs").iterdir()}
    for other in ("--limit", 11), ("--threads", 3):  # tables of what there is, alone
        with pytest.raises(SystemExit, match="holds no runs with these settings: leave out --no-measure"):
            call(few_shot, monkeypatch, *arguments, *other, "--no-measure")
        assert {path: path.read_bytes() for path in (out / "runs").iterdir()} == before
    call(few_shot, monkeypatch, *arguments, "--no-measure")
    assert (out / "few_shot.md").read_text() == page
    assert {path: path.read_bytes() for path in (out / "runs").iterdir()} == before


@pytest.mark.parametrize(("then", "answer"), [("echo '{}'", {}), ("exec sleep 60", {"cut": 1}), ("exit 3", None)])
def test_a_worker_leaves_no_files(
    few_shot: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, then: str, answer: dict[str, Any] | None
) -> None:
    """Trainers want a folder of their own; a worker that is killed removes nothing."""
    python, temporary = tmp_path / "python", tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(few_shot.tempfile, "tempdir", str(temporary))
    python.write_text(f"#!/bin/sh\ntouch $TMPDIR/left && echo $TMPDIR > {tmp_path}/was\n{then}\n")
    python.chmod(0o755)
    if answer is None:
        with pytest.raises(RuntimeError):
            few_shot.ask(str(python), {"method": "x"}, limit=1)
    else:
        assert few_shot.ask(str(python), {"method": "x"}, limit=1) == answer
    assert Path((tmp_path / "was").read_text().strip()).parent == temporary
    assert list(temporary.iterdir()) == []


def test_a_slow_run_is_cut_and_a_failed_one_told(few_shot: Any, job: dict[str, Any]) -> None:
    assert few_shot.ask(few_shot.sys.executable, {**job, "method": "surprise"}, limit=0.01) == {"cut": 0.01}
    with pytest.raises(RuntimeError, match=r"(?s)nothing failed in .*KeyError"):
        few_shot.ask(few_shot.sys.executable, {**job, "method": "nothing"})


def test_a_run_that_cannot_end_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A forecast counts what comes before the first step once, and waits for a twentieth of the limit."""
    worker = scripts(monkeypatch, "few_shot_worker")[0]
    times = iter([0, 500, 501, 502, 503])
    monkeypatch.setattr(worker, "_clocks", lambda: (now := float(next(times)), now / 2))
    forecast = worker.Forecast(3600)
    for step in (1, 2, 3):
        forecast(step, 4001)  # 500 + 4,000 * 1 s, no more than 1.25 hours
    with pytest.raises(worker.TooSlowError) as slow:
        forecast(4, 4003)
    assert slow.value.args[0] == {"cut": 503, "needs": [4502, 2251], "step": 4, "steps": 4003}
    times = iter([0, 60, 179, 180])
    forecast = worker.Forecast(3600)
    for step in (1, 2):
        forecast(step, 10**6)  # far too slow, but asked too early
    with pytest.raises(worker.TooSlowError):
        forecast(3, 10**6)


def test_slow_peers_stop_by_themselves(monkeypatch: pytest.MonkeyPatch, job: dict[str, Any]) -> None:
    """The pair routine may end with an epoch, so that this is what it is asked to reach; SetFit knows its steps."""
    worker = scripts(monkeypatch, "few_shot_worker")[0]
    ticks = itertools.count(0, 100)
    monkeypatch.setattr(worker, "_clocks", lambda: (now := float(next(ticks)), now))
    few = {**job, "texts": job["texts"][::4], "labels": job["labels"][::4], "limit": 400}  # 18 pairs, two steps
    slow = worker.answer({**few, "method": "pairs"})
    assert slow == {"cut": 500, "needs": [600, 600], "step": 5, "steps": 6}  # 100 s a step
    assert "found" in worker.answer({**few, "method": "pairs", "limit": None})

    class Trainer:
        def __init__(self, callbacks: list[Any], **_: Any) -> None:
            self.watch = callbacks[0]

        def train(self) -> None:
            for step in range(1, 11):
                self.watch.on_step_end(None, SimpleNamespace(global_step=step, max_steps=10), None)

    class Model(SimpleNamespace):
        @classmethod
        def from_pretrained(cls, *_: Any, **__: Any) -> Model:
            return cls(model_body=SimpleNamespace(), predict=lambda texts: [1] * len(texts))

    peer = SimpleNamespace(SetFitModel=Model, Trainer=Trainer, TrainingArguments=lambda **_: None)
    monkeypatch.setitem(sys.modules, "setfit", peer)
    monkeypatch.setattr(worker, "versions", lambda _: [])
    assert worker.answer({**few, "method": "setfit"}) == {"cut": 200, "needs": [1000, 1000], "step": 2, "steps": 10}
    assert worker.answer({**few, "method": "setfit", "limit": 800})["found"] == {"setfit": [1] * 24}


def test_rows_of_stopped_runs(few_shot: Any, monkeypatch: pytest.MonkeyPatch, st_path: Path, tmp_path: Path) -> None:
    """The benchmark's table tells what a run would need, and more examples of that set are not tried."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    path = Path(few_shot.__file__).parents[2] / "benchmarks" / "few_shot.py"
    spec = importlib.util.spec_from_file_location("benchmark", path)
    benchmark = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(benchmark)
    jobs = []

    def ask(python: str, _: dict[str, Any], **limits: Any) -> dict[str, Any]:
        jobs.append((python, limits))
        return {"cut": 181.2, "needs": [21900.0, 21000.4], "step": 95, "steps": 10850}

    monkeypatch.setattr(few_shot, "ask", ask)
    data, out = make_folder(tmp_path / "data", 60), tmp_path / "out"
    arguments = ("--data", data, "--model", f"tiny={st_path}", "--sets", "ag_news", "--k", "2,3", "--kinds", "balanced")
    arguments += ("--runs", 1, "--limit", 12, "--out", out, "--methods", "setfit", "--peer", "setfit=other")
    call(benchmark, monkeypatch, *arguments)
    assert jobs == [("other", {"threads": None, "limit": 3600, "forecast": True})]
    page = (out / "few_shot.md").read_text()
    assert "| 2 | cut: needs about 21,000 s (after 181 s, step 95 of 10,850) |" in page
    assert "| 3 | not tried |" in page
