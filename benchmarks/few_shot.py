"""Few-shot classification against SetFit, logistic regression and the paper's pair routine: F1, time and memory.

    python3 -m venv setfit && setfit/bin/pip install torch==2.13.0 setfit==1.2.0      # the peer's own environment
    OMP_NUM_THREADS=1 python benchmarks/few_shot.py --data DIR --peer setfit=setfit/bin/python --threads 1 \\
        --model minilm=PATH --model e5=PATH,query:_ --limit 1000 --runs 5 --out out/few_shot

Same encoder, splits and machine, one run after the other, the methods in turn on each split; each run is a process of
its own. A run that takes longer than --cut seconds is stopped, and the tables say so; a peer's run already when its
steps tell that it needs more than 1.25 times that (asked after a twentieth of it; --no-forecast: not at all). Every run
is a line of OUT/runs/*.jsonl as soon as it is done, and the same command goes on where it stopped. Seconds are CPU
seconds, which other work on the machine changes little, but those of --cut are wall seconds, which are in the lines
too. Importing and reading the model count nowhere.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import t as student

sys.path.insert(0, str(Path(__file__).parents[1] / "examples" / "reproduce"))

from common import ending, table, write_results
from few_shot import Method, curves, draw, few_shot_arguments, mean_and_spread, run, what_to_run

from surprise_hf.plots import BAR, CURVE, INK, SECOND

SETS = "ag_news,dbpedia,banking77,clinc150"
OWN = (  # decision of a method -> what it is called here
    ("frozen refined", "no example"),
    ("pseudo refined", "no example, pseudo labels"),
    ("frozen examples", "no training, no documents"),
    ("frozen mixed", "no training"),
    ("trained cosine", "trained, cosine"),
    ("trained surprise", "trained, surprise"),
    ("trained examples", "trained, no documents"),
    ("trained mixed", "trained"),
    ("documents mixed", "trained beside documents"),
)
PEERS = ("setfit", "logistic", "pairs cosine", "pairs surprise")
COLOURS = {"setfit": INK, "logistic": BAR, "no training": SECOND, "trained": CURVE}
Cells = dict[tuple[Any, ...], dict[str, dict[int, float]]]


def renamed(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows whose decisions of surprise_hf carry the names of OWN."""
    names = dict(OWN)
    found = []
    for row in rows:
        long = {name if name in PEERS else f"{row['method']} {name}": x for name, x in row["scores"].items()}
        found.append({**row, "scores": {names.get(name, name): x for name, x in long.items()}})
    return found


def by_seed(rows: list[dict[str, Any]]) -> Cells:
    """Cell -> decision -> F1 of each seed."""
    cells: Cells = {}
    for row in rows:
        cell = cells.setdefault((row["model"], row["set"], row["balanced"], row["k"]), {})
        for name, scores in row["scores"].items():
            cell.setdefault(name, {})[row["seed"]] = scores["f1"]
    return cells


def interval(values: list[float]) -> float:
    """Half the width of the 95 % interval of a mean; infinite for one value."""
    n = len(values)
    return float(student.ppf(0.975, n - 1) * np.std(values, ddof=1) / n**0.5) if n > 1 else float("inf")


def differences(cells: Cells, peer: str, names: list[str]) -> str:
    """Mean paired difference in F1 to a peer in every cell where it ran, with 95 % intervals, and over the cells."""
    lines, means = [], {name: [] for name in names}
    for (model, s, balanced, k), cell in cells.items():
        if peer not in cell:
            continue
        line = [model, s, _kind(balanced), str(k), str(len(cell[peer]))]
        for name in names:
            paired = [cell[name][seed] - cell[peer][seed] for seed in cell[peer] if seed in cell.get(name, {})]
            means[name] += [float(np.mean(paired))] if paired else []
            half = interval(paired)
            line.append("" if not paired else f"{np.mean(paired):+.1f}" + (f" ± {half:.1f}" if half < 99 else ""))
        lines.append(line)
    over = [f"**{np.mean(x):+.1f}** ± {interval(x):.1f}" if x else "" for x in means.values()]
    lines.append(["*mean of the cells*", "", "", "", "", *over])
    lines.append(["*cells above*", "", "", "", "", *(f"{sum(y > 0 for y in x)} of {len(x)}" for x in means.values())])
    head = ["encoder", "set", "training set", "k", "runs", *names]
    return f"### F1 minus that of {peer}, points\n\n" + table(head, lines, left=3)


def costs(rows: list[dict[str, Any]]) -> str:
    """CPU seconds of training and labelling, and the peak of memory."""
    methods = list(dict.fromkeys(row["method"] for row in rows))
    cells: dict[tuple[Any, ...], dict[str, list[dict[str, Any]]]] = {}
    for row in rows:
        key = (row["model"], row["set"], row["balanced"], row["k"])
        cells.setdefault(key, {}).setdefault(row["method"], []).append(row)
    lines = []
    for (model, s, balanced, k), of_cell in cells.items():
        line = [model, s, _kind(balanced), str(k)]
        for method in methods:
            done = [row for row in of_cell.get(method, []) if "cut" not in row]
            cut = [row for row in of_cell.get(method, []) if "cut" in row]
            if done:
                train, label = (np.mean([row[part][1] for row in done]) for part in ("train", "label"))
                line.append(f"{train:.1f} + {label:.0f} s, {max(row['peak'] for row in done):,.0f} MiB")
            else:
                line.append(cut_text(cut[0]) if cut else "")
        lines.append(line)
    head = ["encoder", "set", "training set", "k", *methods]
    return "### CPU seconds of training + labelling, and memory\n\n" + table(head, lines, left=3)


def cut_text(row: dict[str, Any]) -> str:
    """Of a run that was stopped."""
    if "needs" in row:
        done = f"after {row['cut']:,.0f} s, step {row['step']:,} of {row['steps']:,}"
        return f"cut: needs about {row['needs'][1]:,.0f} s ({done})"
    return f"cut at {row['cut']:,.0f} s" if row["cut"] else "not tried"


def scores(rows: list[dict[str, Any]], names: list[str]) -> str:
    """Weighted F1 of every cell."""
    lines = []
    for (model, s, balanced, k), cell in curves(rows).items():
        most = max(np.mean(values).round(1) for values in cell.values()) if cell else 0
        line = [model, s, _kind(balanced), str(k)]
        for name in names:
            text = mean_and_spread(cell[name]) if name in cell else ""
            line.append(f"**{text}**" if text and np.mean(cell[name]).round(1) == most else text)
        lines.append(line)
    head = ["encoder", "set", "training set", "k", *names]
    return "### Weighted F1, percent, mean ± deviation\n\n" + table(head, lines, left=3)


def _kind(balanced: bool) -> str:
    return "balanced" if balanced else "unbalanced"


def methods_of(options: argparse.Namespace, peers: dict[str, str]) -> list[Method]:
    """Those asked for, in the order they run."""
    known = {
        "frozen": Method("frozen", "surprise"),
        "trained": Method("trained", "surprise", {}),
        "documents": Method("documents", "documents", {}),
        "pseudo": Method("pseudo", "pseudo"),
        "logistic": Method("logistic", "logistic"),
        "pairs": Method("pairs", "pairs"),
        "setfit": Method("setfit", "setfit", None, peers.get("setfit", "")),
    }
    names = options.methods.split(",")
    if "setfit" in names and "setfit" not in peers and options.measure:
        raise SystemExit("--peer setfit=PYTHON is missing (or leave setfit out of --methods)")
    return [known[name] for name in names]


def main() -> None:
    """Run everything, write JSON, markdown and a figure."""
    parser = few_shot_arguments(__doc__, "out/few_shot_benchmark", 5, (3, 9, 21))
    parser.set_defaults(sets=SETS)
    parser.add_argument("--methods", default="frozen,trained,logistic,pairs,setfit", help="default: %(default)s")
    parser.add_argument("--cut", type=float, default=3600, help="seconds after which a run is stopped (3600)")
    parser.add_argument("--no-forecast", dest="forecast", action="store_false", help="a peer may use all of --cut")
    options = parser.parse_args()
    sets, ks, kinds, peers = what_to_run(options)
    rows = run(options, methods_of(options, peers), sets, ks, kinds, limit=options.cut, forecast=options.forecast)
    named = renamed(rows)
    cells = by_seed(named)
    there = {name for cell in cells.values() for name in cell}
    own = [name for _, name in OWN if name in there]
    text = scores(named, [*(name for name in PEERS if name in there), *own])
    text += "".join(differences(cells, peer, own) for peer in PEERS if peer in there) + costs(rows)
    picture = draw(named, options.out / "few_shot.png", COLOURS)
    write_results(options.out, "few_shot", text, [picture], rows=rows)


if __name__ == "__main__":
    ending(main)
