"""Every example of README.md runs, and prints what the README shows."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import snippets
from tests.hub_server import Hub

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, dict[str, str]]]:
    """A folder with the files that the README uses, and the environment to use them in, with a Hub to push to."""
    folder = tmp_path_factory.mktemp("readme")
    with Hub() as hub:
        yield folder, {**snippets.workplace(folder), **hub.environment(folder / "cache")}


def test_comparison_can_fail():
    assert snippets.same("a 0.123 b\n", "a  0.124 b")
    assert not snippets.same("a 0.123 b", "a 0.125 b")
    assert not snippets.same("a 0.123 b", "a 0.123 c")
    assert not snippets.same("", "a")
    with pytest.raises(AssertionError, match="and the page shows"):
        snippets.check(snippets.Block("print(1)", None), "1\n")


def test_python_examples(workplace: tuple[Path, dict[str, str]]):
    examples = snippets.blocks(README, "python")
    assert len(examples) >= 3
    for block, printed in snippets.run_python(examples, *workplace):
        assert block.shown is not None, f"an example without output:\n{block.code}"
        snippets.check(block, printed)
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(workplace[0] / "support-model"), device="cpu")
    assert model.get_embedding_dimension() == 384


def test_the_task_is_unknown_without_import():
    code = "import transformers\ntry: transformers.pipeline('surprise-zero-shot')\nexcept KeyError as e: print(e)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "Unknown task" in done.stdout, done.stderr


def test_shell_examples(workplace: tuple[Path, dict[str, str]]):
    examples = [block for block in snippets.blocks(README, "bash") if "surprise-hf" in block.code]
    assert examples
    for block in examples:
        assert block.shown is not None, f"an example without output:\n{block.code}"
        snippets.check(block, snippets.run_bash(block, *workplace))


def test_make_targets_and_links():
    targets = re.findall(r"^([a-z]+):.*##", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert set(re.findall(r"^make (\w+)", README, re.MULTILINE)) <= set(targets)
    for link in re.findall(r"\]\(([^)#:]+)\)", README):
        assert (ROOT / link).exists(), link


def table_rows(text: str) -> list[list[str]]:
    """The cells of every line of its tables, without marks of what is best."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip("* ") for cell in line.split("|")[1:-1]] for line in lines]


def test_results_are_those_of_the_accuracy_page():
    """Each row of the README's table is a row of the accuracy table in docs/accuracy.md."""
    page = snippets.sections((ROOT / "docs" / "accuracy.md").read_text(encoding="utf-8"))["Accuracy, percent"]
    accuracy = {
        (row[0], row[1]): [row[at].split()[0] for at in (3, 4, 8)] for row in table_rows(page) if row[2][:1].isdigit()
    }
    names = {"DBpedia": "dbpedia", "CLINC150": "clinc150", "AG News": "ag_news", "SST-2": "sst2"}
    encoders = {"MiniLM": "minilm", "4-bit E5 small": "e5-small-4bit"}
    rows = [row for row in table_rows(README) if " labels, " in row[0] and len(row) == 4]
    assert len(rows) == 4
    for row in rows:
        name, _, encoder = row[0].split(", ")
        assert accuracy[names[name], encoders[encoder]] == row[1:]


def test_few_shot_results_are_those_of_the_few_shot_page():
    """Each row of the README's table against its F1 and its seconds in docs/few_shot.md."""
    page = table_rows((ROOT / "docs" / "few_shot.md").read_text(encoding="utf-8"))
    f1 = {row[0]: [row[at].split()[0] for at in (2, 5, 7)] for row in page if len(row) == 8 and row[1].isdigit()}
    seconds = {row[0]: [row[at].split(" s;")[0] for at in (1, 4)] for row in page if len(row) == 6 and " s; " in row[1]}
    rows = [row for row in table_rows(README) if " examples, " in row[0]]
    assert len(rows) == 4
    for row in rows:
        cell = row[0].replace("4-bit E5 small", "E5").replace(" examples", "")
        setfit, plain, trained = (x.replace("*", "").split(", ") for x in row[1:])
        assert [setfit[0], plain[0], trained[0]] == f1[cell]
        assert [setfit[1], trained[1]] == [f"{float(x):.0f} s" for x in seconds[cell]]
