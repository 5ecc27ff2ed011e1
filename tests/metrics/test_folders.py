"""Each metric is a complete folder: an evaluate module, a card whose snippets run, and the page of a Space."""

from __future__ import annotations

import doctest
import os
import re
import subprocess
import sys
import types
from pathlib import Path

import evaluate
import pytest

import surprise_hf
from surprise_hf import metrics
from surprise_hf.metrics import space

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", metrics.NAMES)
def test_a_folder_is_a_complete_evaluate_module(name):
    folder = Path(metrics.path(name))
    names = {path.name for path in folder.iterdir() if path.is_file()}
    assert {f"{name}.py", "README.md", "app.py", "requirements.txt"} <= names
    card = (folder / "README.md").read_text()
    assert re.match(r"---\ntitle: .+\nsdk: gradio\napp_file: app.py\n", card)
    assert "surprise-hf" in (folder / "requirements.txt").read_text().split()
    module = evaluate.load(str(folder))
    assert module.name == name
    assert "2308.09765" in module.citation
    assert module.description
    for section in ("Args:", "Returns:", "Examples:"):
        assert section in module.inputs_description
        assert section in module.compute.__doc__


@pytest.mark.parametrize("name", metrics.NAMES)
def test_examples_in_the_docstring(name):
    text = evaluate.load(metrics.path(name)).inputs_description
    test = doctest.DocTestParser().get_doctest(text, {}, name, None, 0)
    assert len(test.examples) >= 4
    assert doctest.DocTestRunner().run(test).failed == 0


def test_example_of_the_package():
    assert doctest.testmod(metrics) == (0, 4)


@pytest.mark.parametrize("name", metrics.NAMES)
def test_the_card_runs_and_names_every_result(name, capsys):
    card = (Path(metrics.path(name)) / "README.md").read_text()
    scope: dict = {}
    for snippet in re.findall(r"```python\n(.*?)```", card, flags=re.DOTALL):
        exec(snippet, scope)
    printed = capsys.readouterr().out
    results = {key for line in printed.splitlines() for key in re.findall(r"'(\w+)': ", line)}
    assert len(results) >= 2
    table = card.split("## Results")[1].split("## Limits")[0]
    named = set(re.findall(r"`(\w+)`", table)) | ({"cosine_accuracy"} if "cosine_..." in table else set())
    assert {key for key in results if not key.startswith("cosine_")} <= named


def test_paths():
    assert surprise_hf.metrics.path("surprise_clustering").endswith("surprise_clustering")
    with pytest.raises(ValueError, match="no metric named 'accuracy'; there are surprise_calibration, "):
        metrics.path("accuracy")


def test_load_offline_with_an_empty_cache(tmp_path):
    """In a process of its own, from a working directory of its own, by folder and by file (cases.md 22)."""
    code = (
        "import socket\n"
        "def refuse(*a, **k): raise AssertionError('network')\n"
        "socket.socket.connect = refuse\n"
        "import evaluate, surprise_hf\n"
        "for name in surprise_hf.metrics.NAMES:\n"
        "    path = surprise_hf.metrics.path(name)\n"
        "    assert evaluate.load(path).name == evaluate.load(f'{path}/{name}.py').name == name\n"
        "print('loaded')"
    )
    env = {**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "a cache")}
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == "loaded", done.stderr


@pytest.mark.parametrize("name", metrics.NAMES)
def test_app(name, monkeypatch):
    """The page of the Space hands the metric what is in its boxes; gradio is a stand-in."""
    made = {}

    class Page:
        def launch(self):
            made["launched"] = True

    def interface(**kwargs):
        made.update(kwargs)
        return Page()

    error = type("Error", (Exception,), {})
    fake = types.SimpleNamespace(Interface=interface, Code=lambda **kwargs: kwargs, Error=error)
    monkeypatch.setitem(sys.modules, "gradio", fake)
    exec((Path(metrics.path(name)) / "app.py").read_text(), {})
    assert made["launched"]
    assert made["title"] == name
    assert made["article"].lstrip().startswith("# ")  # the card without its front matter
    result = made["fn"](*(box["value"] for box in made["inputs"]))
    assert re.search(r'"(ks|accuracy|v_measure|surprise_similarity)": \d', result)
    with pytest.raises(error, match="references is no JSON"):
        made["fn"]("[1]", "[1", "")
    with pytest.raises(error, match="predictions"):
        made["fn"]("[]", "[1]", "")
    with pytest.raises(error, match=r"arguments must be a JSON object, such as \{\}, got \[1\]"):
        made["fn"]("[1]", "[1]", "[1]")


def test_app_without_gradio(monkeypatch):
    monkeypatch.setitem(sys.modules, "gradio", None)
    with pytest.raises(ImportError, match="pip install gradio"):
        space.demo("surprise_clustering")
