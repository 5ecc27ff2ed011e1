"""The pages of docs/: their examples run and print what is shown, their links lead somewhere, the site builds."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from types import FunctionType

import pytest

from tests import snippets
from tests.snippets import ROOT

PAGES = sorted((ROOT / "docs").glob("*.md"))


def test_guide_examples(tmp_path: Path):
    text = (ROOT / "docs" / "guide.md").read_text(encoding="utf-8")
    env = snippets.workplace(tmp_path)
    python, bash = (snippets.blocks(text, kind) for kind in ("python", "bash"))
    assert len(python) >= 8
    assert bash
    for block, printed in snippets.run_python(python, tmp_path, env):
        snippets.check(block, printed)
    for block in bash:
        snippets.check(block, snippets.run_bash(block, tmp_path, env))


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CONTRIBUTING.md"], ids=lambda page: page.stem)
def test_links(page: Path):
    """To files; those to headings are the site's to check."""
    for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
        assert (page.parent / link).exists(), link


def test_files_that_are_named_are_there():
    texts = [*PAGES, *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md"))]
    named = re.compile(r"\b(?:benchmarks|csrc|examples|surprise_hf|tests)/[\w/.-]*\.(?:py|sh|cpp|cuh?|h|inc)\b")
    found = {(text.name, name) for text in texts for name in named.findall(text.read_text(encoding="utf-8"))}
    assert len(found) > 20
    assert [one for one in sorted(found) if not (ROOT / one[1]).exists()] == []


def test_the_site_builds_and_knows_every_public_name(tmp_path: Path):
    import surprise_hf
    from surprise_hf import ops

    done = subprocess.run(
        # not --quiet: its warnings are no errors, strict or not
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "site" / "reference" / "index.html").read_text(encoding="utf-8")
    known = set(re.findall(r'id="surprise_hf\.([\w.]+)"', page))
    public = {name for name in surprise_hf.__all__ if not name.startswith("__") and name != "metrics"}
    for name in public | {f"ops.{name}" for name in ops.__all__}:
        assert any(one == name or one.endswith(f".{name}") for one in known), name
    for base in surprise_hf.SurpriseModel.__mro__:  # what it inherits of ours too
        if base.__module__.startswith("surprise_hf"):
            own = {
                name for name, one in vars(base).items() if isinstance(one, FunctionType | classmethod) and one.__doc__
            }
            for name in (name for name in own if not name.startswith("_")):
                assert any(one.endswith(f".{base.__name__}.{name}") for one in known), name
    assert (tmp_path / "site" / "guide" / "index.html").is_file()
