"""Code blocks of a page, run as its reader would run them, and compared with the output that the page shows.

    for block, printed in snippets.run_python(snippets.blocks(text, "python"), folder, environment):
        snippets.check(block, printed)

A block that is followed by a block of kind `text` prints that.
"""

from __future__ import annotations

import json
import os
import re
import stat
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
NUMBER = re.compile(r"-?\d+\.\d+")
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```\n(?:\n?```text\n(.*?)^```\n)?", re.DOTALL | re.MULTILINE)
END = "--- end of a block ---"
RUNNER = f"""
import json, sys
names = {{"__name__": "__main__"}}
for code in json.load(sys.stdin):
    exec(compile(code, "<block>", "exec"), names)
    print({END!r}, flush=True)
"""


class Block(NamedTuple):
    """A block of code, and the output that the page shows for it, if any."""

    code: str
    shown: str | None


def blocks(text: str, kind: str) -> list[Block]:
    """All blocks of a kind, in order."""
    return [Block(code, shown) for found, code, shown in (m.groups() for m in BLOCK.finditer(text)) if found == kind]


def sections(text: str) -> dict[str, str]:
    """The text below each heading of the second level."""
    parts = re.split(r"^## (.+)\n", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def workplace(folder: Path) -> dict[str, str]:
    """Makes a folder with the files that pages use and the programs they call; the environment to use them in."""
    (folder / "examples").symlink_to(ROOT / "examples")
    (folder / "bin").mkdir()
    for name, args in {"python": "", "surprise-hf": "-m surprise_hf.cli "}.items():
        program = folder / "bin" / name
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" {args}"$@"\n')
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
    path = os.pathsep.join([str(folder / "bin"), os.environ["PATH"]])
    return {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}


def run_python(found: Sequence[Block], cwd: Path, env: dict[str, str]) -> list[tuple[Block, str]]:
    """Blocks and what they print, one after the other in one fresh process."""
    codes = json.dumps([block.code for block in found])
    command = [sys.executable, "-c", RUNNER]
    done = subprocess.run(command, input=codes, cwd=cwd, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr[-4000:]}"
    return list(zip(found, done.stdout.split(f"{END}\n")[:-1], strict=True))


def run_bash(block: Block, cwd: Path, env: dict[str, str]) -> str:
    """What a block of shell commands prints."""
    done = subprocess.run(["bash", "-ec", block.code], cwd=cwd, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{block.code}\n{done.stderr[-4000:]}"
    return done.stdout


def same(printed: str, shown: str) -> bool:
    """Equal text; numbers agree to one unit of the last digit shown, the op's rounding being the machine's."""
    if " ".join(NUMBER.sub("#", printed).split()) != " ".join(NUMBER.sub("#", shown).split()):
        return False
    pairs = zip(NUMBER.findall(printed), NUMBER.findall(shown), strict=True)
    return all(abs(float(a) - float(b)) <= 1.01 * 10.0 ** -len(b.split(".")[1]) for a, b in pairs)


def check(block: Block, printed: str) -> None:
    """The block printed what the page shows; nothing, where it shows nothing."""
    assert same(printed, block.shown or ""), f"{block.code}\nprinted\n{printed}\nand the page shows\n{block.shown}"
