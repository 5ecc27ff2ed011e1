"""The paper's few-shot figure: F1 of SetFit, cosine and surprise by the number of training texts of a label.

    python examples/reproduce/few_shot.py --data hub --peer setfit=PYTHON --out out/few_shot
    python examples/reproduce/few_shot.py --data DIR --k 3,9,21 --runs 3 --limit 1000 --threads 1

Balanced: k texts of each label, at random. Unbalanced: k times the number of labels, whatever their labels. The model
is trained by the paper's loss (ReLU, every pair alike) on the matrix of texts and labels; the test texts are the
ensemble, and the weight of surprise is 1, as it is at the size of the paper's sets. Every run is a process of its own
(few_shot_worker.py), which PYTHON runs for SetFit, in an environment with `pip install setfit==1.2.0`; without --peer
SetFit is left out. An interrupted run goes on where it stopped.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from common import (
    PAPER_MODEL,
    TEMPLATE,
    Encoder,
    arguments,
    at_random,
    conditions,
    encoders,
    ending,
    figure,
    listed,
    recorded,
    resumed,
    settings,
    table,
    write_results,
)
from sets import PAPER, default_sets, load
from sklearn.metrics import accuracy_score, f1_score
from tqdm import tqdm

import surprise_hf
from surprise_hf.plots import CURVE, INK, SECOND

KS, RUNS = (3, 6, 9, 12, 15, 18, 21), 10  # the paper's
WORKER = Path(__file__).with_name("few_shot_worker.py")
PAPER_LOSS = {
    "probability": "relu",
    "balanced": False,
    "dropout": True,
    "train_word_embeddings": True,
    "bf16_on_cpu": False,
    "mix_examples": False,
}
COLOURS = {"setfit": INK, "cosine": SECOND, "surprise": CURVE}


class Split(NamedTuple):
    """Few texts to learn from and the documents to be labelled; labels are numbers of `names`."""

    names: list[str]
    texts: list[str]
    labels: list[int]
    documents: list[str]
    targets: list[int]


class Method(NamedTuple):
    """What a worker runs: its name here, the worker's method, options, and the interpreter."""

    name: str
    method: str
    options: Any = None
    python: str = sys.executable


# --- splits ------------------------------------------------------------------------------------------------------


@cache
def _parts(name: str, data: str | Path, limit: int | None) -> tuple[list[str], list[tuple[str, int]], Any]:
    """Label names, training rows whose text is not among all test texts, and the test rows in use."""
    every, test, pool = load(name, data), load(name, data, limit), load(name, data, split="train")
    number, seen = {label: i for i, label in enumerate(every.names)}, set(every.texts)
    rows = [(text, number[label]) for text, label in zip(pool.texts, pool.labels, strict=True) if text not in seen]
    return every.names, rows, (test.texts, [number[label] for label in test.labels])


def split(name: str, data: str | Path, k: int, seed: int, balanced: bool, limit: int | None = None) -> Split:
    """k training texts of each label, or k times the number of labels at random; a larger k adds to a smaller one."""
    names, rows, (documents, targets) = _parts(name, data, limit)
    order = random.Random(seed).sample(range(len(rows)), len(rows))
    if balanced:
        of_label: dict[int, list[int]] = {label: [] for label in range(len(names))}
        for at in order:
            of_label[rows[at][1]].append(at)
        order = [at for listed in of_label.values() for at in listed[:k]]
    few = [rows[at] for at in order[: k * len(names)]]
    return Split(names, [text for text, _ in few], [label for _, label in few], documents, targets)


# --- runs --------------------------------------------------------------------------------------------------------


def ask(
    python: str, job: dict[str, Any], threads: int | None = None, limit: float | None = None, forecast: bool = False
) -> dict[str, Any]:
    """The worker's answer, or {"cut": seconds} where it took longer than the limit.

    With `forecast` a peer whose steps tell that it will take longer stops by itself, and tells what it needs.

    Raises:
        RuntimeError: the worker failed; the message ends with what it wrote.
    """
    environment = {**os.environ, "TOKENIZERS_PARALLELISM": "false"}
    if python == sys.executable:  # the surprise_hf that runs here
        here = [str(Path(surprise_hf.__file__).parents[1]), environment.get("PYTHONPATH", "")]
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, here))
    if threads is not None:
        environment["OMP_NUM_THREADS"] = str(threads)
    with tempfile.TemporaryDirectory(prefix="few-shot-") as folder:  # of what trainers leave, of killed ones too
        try:
            done = subprocess.run(
                [python, str(WORKER)],
                input=json.dumps({**job, "limit": limit if forecast else None}),
                capture_output=True,
                text=True,
                env={**environment, "TMPDIR": folder},
                timeout=limit,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return {"cut": limit}
    if done.returncode:
        raise RuntimeError(f"{job['method']} failed in {python}:\n{done.stderr[-3000:]}")
    return json.loads(done.stdout)


def measure(encoder: Encoder, part: Split, method: Method, seed: int, **limits: Any) -> dict[str, Any]:
    """Accuracy and weighted F1 in percent of each decision of a method, and what it cost."""
    job = {
        "method": method.method,
        "options": method.options,
        "seed": seed,
        "template": TEMPLATE,
        "model": encoder.path,
        "revision": encoder.revision,
        "max_length": encoder.max_length,
        "prompt": encoder.prompt,
        **part._asdict(),
    }
    answer = ask(method.python, job, **limits)
    scores = {
        name: {
            "accuracy": 100 * float(accuracy_score(part.targets, found)),
            "f1": 100 * float(f1_score(part.targets, found, average="weighted", zero_division=0)),
        }
        for name, found in answer.pop("found", {}).items()
    }
    return {"scores": scores, **answer}


def run(
    options: argparse.Namespace,
    methods: Sequence[Method],
    sets: Iterable[str],
    ks: Sequence[int],
    kinds: Sequence[bool],
    **limits: Any,
) -> list[dict[str, Any]]:
    """Rows of all runs, the methods in turn on each split; a method that was cut once runs no larger k of that set.

    `limits` are `limit` and `forecast` of `ask`.

    Raises:
        SystemExit: nothing is to be measured, and nothing was.
    """
    rows = []
    seeds = range(options.first_seed, options.first_seed + options.runs)
    wanted = [(s, kind, k, seed) for k in ks for s in sets for kind in kinds for seed in seeds]
    for encoder in encoders(options, 1):  # the paper has sentence-t5-base alone
        for s, kind, k, seed in tqdm(wanted, desc=encoder.name, disable=None):
            for method in methods:
                about = settings(options, encoder, template=TEMPLATE, arguments=method.options, threads=options.threads)
                path = options.out / "runs" / f"{encoder.name}.{method.name.replace(' ', '_')}.jsonl"
                key = {"set": s, "balanced": kind, "k": k, "seed": seed}
                if not options.measure:  # reads alone: what has other settings stays where it is
                    rows += _rows_of(recorded(path, about) or [], encoder, method, key)
                    continue
                with resumed(path, about) as (done, add):
                    cuts = [row for row in done if row["set"] == s and row["balanced"] == kind and "cut" in row]
                    if not any(key.items() <= row.items() for row in done):
                        if any(row["k"] < k or row["seed"] < seed for row in cuts):
                            add({**key, "cut": 0, "scores": {}})
                        else:
                            part = split(s, options.data, k, seed, kind, options.limit)
                            cost = measure(encoder, part, method, seed, threads=options.threads, **limits)
                            add({**key, **cost, "labels": len(part.names)})
                rows += _rows_of(done, encoder, method, key)
    if not rows and not options.measure:
        sys.exit(f"{options.out / 'runs'} holds no runs with these settings: leave out --no-measure")
    return rows


def _rows_of(
    done: Iterable[dict[str, Any]], encoder: Encoder, method: Method, key: dict[str, Any]
) -> list[dict[str, Any]]:
    return [{"model": encoder.name, "method": method.name, **row} for row in done if key.items() <= row.items()]


# --- tables and figures ------------------------------------------------------------------------------------------


def curves(rows: Iterable[dict[str, Any]], metric: str = "f1") -> dict[tuple[Any, ...], dict[str, list[float]]]:
    """(model, set, balanced, k) -> decision -> the metric of each run, in the order of the seeds."""
    found: dict[tuple[Any, ...], dict[str, list[float]]] = {}
    for row in rows:
        of_cell = found.setdefault((row["model"], row["set"], row["balanced"], row["k"]), {})
        for decision, scores in row["scores"].items():
            of_cell.setdefault(decision, []).append(scores[metric])
    return found


def mean_and_spread(values: Sequence[float]) -> str:
    """Mean and, of several, their standard deviation."""
    return f"{np.mean(values):.1f}" + (f" ± {_spread(values):.1f}" if len(values) > 1 else "")


def _spread(values: Sequence[float]) -> float:
    return float(np.std(values, ddof=1)) if len(values) > 1 else 0.0


def markdown(rows: list[dict[str, Any]], decisions: Sequence[str]) -> str:
    """Weighted F1 of every cell."""
    lines = [
        [model, s, "balanced" if kind else "unbalanced", str(k)]
        + [mean_and_spread(of_cell[x]) if x in of_cell else "" for x in decisions]
        for (model, s, kind, k), of_cell in curves(rows).items()
    ]
    return "### Weighted F1, percent\n\n" + table(["model", "set", "training set", "k", *decisions], lines, left=3)


def draw(rows: list[dict[str, Any]], path: Path, colours: dict[str, str]) -> Path:
    """A panel for each set, a row of them for each encoder and kind of training set: F1 by k, with one deviation."""
    found = curves(rows)
    sets = list(dict.fromkeys(key[1] for key in found))
    kinds = list(dict.fromkeys((key[0], key[2]) for key in found))
    with figure(path, len(sets), len(kinds), figsize=(2.9 * len(sets), 2.7 * len(kinds))) as (made, axes):
        for down, (model, kind) in enumerate(kinds):
            for across, s in enumerate(sets):
                panel = axes[down, across]
                for decision, colour in colours.items():
                    points = [
                        (key[3], np.mean(of_cell[decision]), _spread(of_cell[decision]))
                        for key, of_cell in sorted(found.items(), key=lambda item: item[0][3])
                        if key[:3] == (model, s, kind) and decision in of_cell
                    ]
                    if points:
                        k, middle, spread = map(np.array, zip(*points, strict=True))
                        panel.plot(k, middle, "o-", color=colour, markersize=4, label=decision)
                        panel.fill_between(k, middle - spread, middle + spread, color=colour, alpha=0.15, linewidth=0)
                panel.set_title(f"{s}, {model}" if len({m for m, _ in kinds}) > 1 else s)
                panel.set_xticks(sorted({key[3] for key in found if key[:3] == (model, s, kind)}))
                panel.set_xlabel("texts of each label, k" if kind else "texts, as a multiple of the labels")
                panel.grid(True, axis="y")
            title = f"({chr(ord('a') + down)}) {'balanced' if kind else 'unbalanced'}"
            axes[down, 0].set_ylabel(f"{title}\nweighted F1, percent")
        handles: dict[str, Any] = {}
        for panel in axes.flat:
            handles |= {name: line for line, name in zip(*panel.get_legend_handles_labels(), strict=True)}
        made.legend(
            handles.values(), handles.keys(), loc="outside upper center", ncols=min(len(handles), 2 * len(sets))
        )
    return path


def few_shot_arguments(description: str | None, out: str, runs: int, ks: Sequence[int]) -> argparse.ArgumentParser:
    """The parser of this script and of the benchmark."""
    parser = arguments(description, out, runs)
    parser.add_argument("--first-seed", type=int, default=0, help="seed of the first of --runs (%(default)s)")
    parser.add_argument("--sets", help="comma list (default: the paper's, where the data has them)")
    parser.add_argument("--k", default=",".join(map(str, ks)), help="comma list (default: %(default)s)")
    parser.add_argument("--kinds", default="balanced,unbalanced", help="comma list (default: %(default)s)")
    parser.add_argument("--peer", action="append", default=[], help="setfit=PYTHON, an interpreter that has it")
    parser.add_argument("--threads", type=int, help="of each run (default: torch's choice)")
    parser.add_argument("--no-measure", dest="measure", action="store_false", help="tables of what there is")
    return parser


def what_to_run(options: argparse.Namespace) -> tuple[list[str], list[int], list[bool], dict[str, str]]:
    """Sets, ks, kinds, and the interpreters of the peers."""
    sets = list(listed(options.sets) if options.sets else default_sets(options.data, ()))
    known = {"balanced": True, "unbalanced": False}
    if unknown := [kind for kind in listed(options.kinds) if kind not in known]:
        sys.exit(f"--kinds {','.join(unknown)}: give balanced, unbalanced or both, with a comma between them")
    kinds = [known[kind] for kind in listed(options.kinds)]
    return sets, [int(k) for k in options.k.split(",")], kinds, dict(peer.split("=", 1) for peer in options.peer)


def main() -> None:
    """Run everything, write JSON, markdown and the figure."""
    options = few_shot_arguments(__doc__, "out/few_shot", RUNS, KS).parse_args()
    sets, ks, kinds, peers = what_to_run(options)
    methods = [Method("trained", "surprise", PAPER_LOSS)]
    if "setfit" in peers:
        methods.insert(0, Method("setfit", "setfit", None, peers["setfit"]))
    rows = run(options, methods, sets, ks, kinds)
    picture = draw(rows, options.out / "few_shot.png", COLOURS)
    decisions = [name for name in COLOURS if any(name in row["scores"] for row in rows)]
    beside = {
        "encoder": (", ".join(dict.fromkeys(row["model"] for row in rows)), PAPER_MODEL),
        "sets": (", ".join(sets), ", ".join(PAPER)),
        "documents labelled": (at_random(options.limit), "all"),
        "k": (", ".join(map(str, ks)), ", ".join(map(str, KS))),
        "runs of each k": (options.runs, RUNS),
        "methods": (", ".join(decisions), ", ".join(COLOURS)),
    }
    text = conditions(options, beside) + markdown(rows, decisions)
    write_results(options.out, "few_shot", text, [picture], template=TEMPLATE, rows=rows)


if __name__ == "__main__":
    ending(main)
