"""docs/sharing.md and the examples that push: all of it runs, against a Hub of our own."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from safetensors.torch import load

from tests import snippets
from tests.hub_server import Hub

PAGE = (snippets.ROOT / "docs" / "sharing.md").read_text(encoding="utf-8")
SECTIONS = {name: text for name, text in snippets.sections(PAGE).items() if "```python" in text}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder to work in, its environment, and the Hub."""
    folder = tmp_path_factory.mktemp("sharing")
    with Hub() as hub:
        yield folder, snippets.workplace(folder), hub


@pytest.fixture(scope="module")
def read(place):
    """The page read from top to bottom: a section is a process and a cache of its own."""
    folder, env, hub = place
    for name, text in SECTIONS.items():
        mine = {**env, **hub.environment(folder / f"cache {name}")}
        for block, printed in snippets.run_python(snippets.blocks(text, "python"), folder, mine):
            snippets.check(block, printed)
    return hub


def test_the_page_runs_and_prints_what_it_shows(read):
    assert list(SECTIONS) == ["Push", "Open", "Metrics"]
    assert sum(block.shown is not None for block in snippets.blocks(PAGE, "python")) >= 4
    assert {name for kind, name in read.repos if kind == "model"} == {
        "owner/support",
        "owner/support-internal",
        "owner/support-bare",
        "owner/support-ensemble",
        "owner/support-embeddings",
    }


def test_the_table_names_every_file_of_a_pushed_model(read):
    named = set(re.findall(r"`([\w/.]+)`", PAGE.split("| file |")[1].split("An embedding is")[0]))
    files = read.repos["model", "owner/support"].files()
    ours = {path for path in files if path.startswith("surprise/")}
    assert ours == {name for name in named if name.startswith("surprise/")}
    assert {name for name in named if re.search(r"\.(json|md|safetensors)$", name)} <= set(files)


def test_what_the_files_hold(read):
    def ensemble(repo: str, path: str) -> dict:
        return load(read.repos["model", repo].files()[path].data)

    whole = ensemble("owner/support", "surprise/ensemble.safetensors")
    assert (whole["mean"].shape, whole["scatter"].shape) == ((384,), (384, 384))
    assert whole["reservoir"].shape == (200, 384)
    assert len(ensemble("owner/support-embeddings", "ensemble.safetensors")["reservoir"]) == 200
    for repo, path in (
        ("owner/support-bare", "surprise/ensemble.safetensors"),
        ("owner/support-ensemble", "ensemble.safetensors"),
    ):
        bare = ensemble(repo, path)
        assert bare["reservoir"].numel() == 0
        assert bare["scatter"].equal(whole["scatter"])
        assert len(read.repos["model", repo].files()[path].data) == pytest.approx(1.2e6, rel=0.02)
    private = {name for (_, name), repo in read.repos.items() if repo.private}
    assert private == {"owner/support-internal", "owner/support-embeddings"}


def example(place, name: str, *args: object) -> str:
    folder, env, hub = place
    command = [sys.executable, str(folder / "examples" / name), *map(str, args)]
    mine = {**env, **hub.environment(folder / f"cache {name}")}
    done = subprocess.run(command, cwd=folder, env=mine, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


def test_push_to_hub(place, st_path):
    arguments = ("--model", st_path, "--k", 2, "--epochs", 1, "--remote-code", "--private", "--ensemble", "me/texts")
    printed = example(place, "push_to_hub.py", "me/trained", *arguments)
    assert "loaded by name, the same scores to the last bit: True" in printed
    assert "it holds: Ensemble(200 documents, dim=32, reservoir=0/0" in printed
    accuracy = re.search(r"accuracy on (\d+) other messages: ([\d.]+)%", printed)
    assert accuracy[1] == "184"  # 200, less two of each of eight labels
    repo = place[2].repos["model", "me/trained"]
    assert repo.private
    assert set(repo.branches) == {"main", "remote-code"}
    card = repo.files()["README.md"].data.decode()
    shown = re.search(r"\| surprise_accuracy \| ([\d.]+) \|", card)
    assert 100 * float(shown[1]) == pytest.approx(float(accuracy[2]), abs=0.06)


def test_metrics_space(place):
    printed = example(place, "metrics_space.py", "me")
    assert printed.splitlines() == [
        "me/surprise_calibration: {'ks': 0.15, 'ks_worst_label': 0.15, 'calibration_error': 0.065}",
        "me/surprise_classification: {'accuracy': 1.0, 'f1_weighted': 1.0, 'f1_macro': 1.0, 'cosine_accuracy': 0.75,"
        " 'cosine_f1_weighted': 0.733, 'cosine_f1_macro': 0.733}",
        "me/surprise_clustering: {'v_measure': 0.344, 'homogeneity': 0.384, 'completeness': 0.311,"
        " 'adjusted_rand': 0.0}",
        "me/surprise_similarity: {'surprise_similarity': 0.694}",
    ]
    for name in ("calibration", "classification", "clustering", "similarity"):
        files = set(place[2].repos["space", f"me/surprise_{name}"].files())
        assert files == {"README.md", "__init__.py", "app.py", "requirements.txt", f"surprise_{name}.py"}
