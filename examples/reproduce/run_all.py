"""Every table and figure of the paper, one after the other, and a page that shows them all.

    python examples/reproduce/run_all.py --data hub --out out
    python examples/reproduce/run_all.py --data DIR --limit 500

Arguments go on to each script that takes them; its results lie in OUT/<script>, the page is OUT/index.md. A part that
fails is told on the page and doesn't keep the others from running; the exit code is then 1. The same command again
goes on where it stopped. --only words,zero_shot runs some of the parts; --add few_shot="--k 3,9" gives one part more
arguments.

--limit makes a trial of it all: few_shot.py, which would train 140 models of each set, is then called with
--k 3,9,21 --runs 3 --max-length 128, unless --runs, --max-length or --add says otherwise. Every part's page begins
with what was done here beside what the paper did.
"""

from __future__ import annotations

import argparse
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from common import arguments, origin, write_text

HERE = Path(__file__).parent
PARTS = {
    "words": "Words like a dog",
    "zero_shot": "Zero-shot classification",
    "ensemble_size": "Size of the ensemble",
    "few_shot": "Few-shot classification",
    "clustering": "Clustering",
}
REPEATED = ("ensemble_size", "few_shot", "clustering")  # the parts that take --runs
TRIAL = {"few_shot": "--k 3,9,21 --runs 3 --max-length 128"}  # what --limit makes of a part that no limit shortens


class Part(NamedTuple):
    """What became of one script."""

    name: str
    code: int
    seconds: float


def command(name: str, options: argparse.Namespace, more: Sequence[str] = ()) -> list[str]:
    """The call of one script; where an argument is there twice, the last one counts."""
    given = shlex.split(TRIAL.get(name, "")) if options.limit is not None else []
    given += ["--data", str(options.data), "--out", str(options.out / name)]
    given += ["--embeddings", str(options.embeddings or options.out / "embeddings")]
    for spec in options.model or []:
        given += ["--model", spec]
    numbers = {"--limit": options.limit, "--max-length": options.max_length}
    numbers |= {"--runs": options.runs} if name in REPEATED else {}
    for flag, value in numbers.items():
        given += [flag, str(value)] if value is not None else []
    return [sys.executable, str(HERE / f"{name}.py"), *given, *more]


def page(parts: list[Part], out: Path) -> str:
    """What made it, and the scripts' own pages under one heading each, their pictures with the right paths."""
    made_by = origin()
    text = f"# The paper's tables and figures\n\n```\n{made_by.pop('command')}\n```\n\n"
    text += ", ".join(f"{name} {version}" for name, version in made_by.items()) + "; "
    text += ", ".join(f"{name} {seconds:,.0f} s" for name, _, seconds in parts) + ".\n\n"
    for name, code, seconds in parts:
        text += f"## {PARTS[name]}\n\n"
        made = out / name / f"{name}.md"
        if code:
            text += f"**{name}.py failed with exit code {code}** after {seconds:.0f} s"
            text += "; what follows is of an earlier run.\n\n" if made.exists() else ".\n\n"
        if made.exists():
            pictures = rf"\1{name}/"
            text += re.sub(r"(!\[[^]]*\]\()", pictures, made.read_text(encoding="utf-8")).rstrip() + "\n\n"
    return text.rstrip() + "\n"


def main() -> int:
    """Run the parts; 1 if one of them failed."""
    parser = arguments(__doc__, "out")
    parser.add_argument("--runs", type=int, help="repetitions (default: the paper's, 10 and 40)")
    parser.add_argument("--only", help=f"comma list of {', '.join(PARTS)}")
    parser.add_argument("--add", action="append", default=[], help='PART="ARGUMENTS" for that part alone; repeatable')
    options = parser.parse_args()
    names = options.only.split(",") if options.only else list(PARTS)
    more = {part: shlex.split(text) for part, _, text in (one.partition("=") for one in options.add)}
    if unknown := sorted({*names, *more} - set(PARTS)):
        parser.error(f"unknown parts {unknown}; there are {', '.join(PARTS)}")
    parts: list[Part] = []
    for name in names:
        print(f"--- {name}", flush=True)
        started = time.perf_counter()
        code = subprocess.run(command(name, options, more.get(name, ())), check=False).returncode
        parts.append(Part(name, code, time.perf_counter() - started))
        write_text(options.out / "index.md", page(parts, options.out))
    for name, code, seconds in parts:
        print(f"{name:<14} {'done' if code == 0 else f'FAILED ({code})':<12} {seconds:8.1f} s")
    print(f"{options.out / 'index.md'} shows it all")
    return int(any(part.code for part in parts))


if __name__ == "__main__":
    sys.exit(main())
