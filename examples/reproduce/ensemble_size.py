"""The paper's figure of ensemble sizes: zero-shot F1 of surprise from 3 to 2,187 documents, against the cosine's.

    python examples/reproduce/ensemble_size.py --data hub --out out/ensemble_size
    python examples/reproduce/ensemble_size.py --data DIR --model minilm=PATH --limit 7600

Every document of a set is classified; the ensemble is a random part of them, drawn anew for each of the runs, and the
weight is 1. Panel (a) is the paper's ratio, the cosine's F1 over the mean F1 of surprise: below 1 surprise is better.
Sizes beyond the documents of a set are left out. An interrupted run goes on where it stopped.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import (
    PAPER_MODEL,
    TEMPLATE,
    Encoder,
    arguments,
    conditions,
    encoders,
    ending,
    figure,
    listed,
    resumed,
    settings,
    table,
    write_results,
)
from sets import PAPER, LabelledSet, default_sets, load
from sklearn.metrics import f1_score
from torch import Tensor
from tqdm import tqdm

from surprise_hf.fitted import FittedLabels
from surprise_hf.plots import INK

SIZES = (3, 9, 27, 81, 243, 729, 2187)
PAPER_CROSSOVER = 100  # "roughly universal"; on IMDB surprise is ahead from the first size
HIGHEST = 1.5  # ratio that panel (a) shows; the first sizes lie far above it where there are many labels
COLOURS = ("#33658a", "#b3402a", "#4f8f5b", "#c98a1b", "#6f4f94", "#3b9ea5", "#8a6d5a")


def draw_ensemble(documents: int, size: int, run: int) -> Tensor:
    """Positions (size,) of the ensemble of one run."""
    return torch.randperm(documents, generator=torch.Generator().manual_seed(1000 * size + run))[:size]


class Task:
    """A set as one encoder sees it."""

    def __init__(self, encoder: Encoder, data: LabelledSet) -> None:
        number = {name: i for i, name in enumerate(data.names)}
        self.truth = [number[label] for label in data.labels]
        self.documents = encoder(data.texts)
        self.queries = encoder([TEMPLATE.format(name) for name in data.names])

    def f1(self, weight: float, ensemble: Tensor | None = None) -> float:
        """Weighted F1 of all documents in percent, labels fitted to those at the positions `ensemble`, or to all."""
        rows = self.documents if ensemble is None else self.documents[ensemble]
        found = FittedLabels.fit(self.queries, rows, weight=weight).decide(self.documents)
        return 100 * float(f1_score(self.truth, found.numpy(), average="weighted"))


def summarise(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Of one model and set: F1 of the cosine, of surprise with all documents and at each size, the ratio, crossover."""
    cosine = next(row["f1"] for row in rows if row["method"] == "cosine")
    runs: dict[int, list[float]] = {}
    for row in rows:
        if row["method"] == "surprise":
            runs.setdefault(row["size"], []).append(row["f1"])
    sizes = sorted(runs)
    f1 = [np.array(runs[size]) for size in sizes]
    if any(not x.all() for x in f1):
        raise ValueError("no document of so few is labelled rightly, so there is no ratio: take a larger --limit")
    ratio = [cosine / x.mean() for x in f1]
    return {
        "cosine": cosine,
        "surprise_whole": next(row["f1"] for row in rows if row["method"] == "whole"),
        "sizes": sizes,
        "f1": [float(x.mean()) for x in f1],
        "f1_std": [float(x.std()) for x in f1],
        "ratio": [float(x) for x in ratio],
        "ratio_std": [float((cosine / x).std()) for x in f1],
        "crossover": crossover(sizes, ratio),
    }


def crossover(sizes: list[int], ratio: list[float]) -> float | None:
    """The size from which on the ratio stays below 1, between two sizes on the logarithmic scale.

    The smallest size if surprise is ahead everywhere; None if it is not ahead at the largest.
    """
    last = max((i for i, value in enumerate(ratio) if value >= 1), default=-1)
    if last == len(ratio) - 1:
        return None
    if last < 0:
        return float(sizes[0])
    part = (ratio[last] - 1) / (ratio[last] - ratio[last + 1])
    return math.exp(math.log(sizes[last]) * (1 - part) + math.log(sizes[last + 1]) * part)


def markdown(results: dict[str, dict[str, Any]]) -> str:
    """F1 at each size, and the crossovers."""
    lines, crossings = [], []
    for model, of_sets in results.items():
        for name, found in of_sets.items():
            at = {
                size: f"{m:.1f} ± {s:.1f}"
                for size, m, s in zip(found["sizes"], found["f1"], found["f1_std"], strict=True)
            }
            cells = [at.get(size, "") for size in SIZES]
            lines.append([model, name, f"{found['cosine']:.1f}", *cells, f"{found['surprise_whole']:.1f}"])
            ratio = dict(zip(found["sizes"], found["ratio"], strict=True))
            crossings.append(
                [model, name, _place(found), *(f"{ratio[size]:.3f}" if size in ratio else "" for size in SIZES)]
            )
    head = ["model", "set", "cosine", *(f"e = {size:,}" for size in SIZES), "all"]
    out = "Weighted F1 in percent, mean and deviation over the runs:\n\n" + table(head, lines, left=2)
    head = ["model", "set", "crossover", *(f"e = {size:,}" for size in SIZES)]
    out += "Ratio of F1, cosine / surprise, and the size from which on surprise is ahead"
    return out + f" (the paper: about {PAPER_CROSSOVER}):\n\n" + table(head, crossings, left=2)


def _place(found: dict[str, Any]) -> str:
    if found["crossover"] is None:
        return "none"
    first = found["crossover"] <= found["sizes"][0]
    return f"{'≤ ' if first else ''}{found['crossover']:.0f}"


def draw(model: str, results: dict[str, Any], path: Path) -> Path:
    """Both panels of one model."""
    with figure(path, 2, figsize=(9.4, 4.1)) as (made, axes):
        (left, right), lines = axes[0], []
        left.axhline(1, color=INK, linewidth=0.9, zorder=1)
        for colour, (name, found) in zip(COLOURS, results.items(), strict=False):
            options = {"color": colour, "marker": "o", "markersize": 3.5, "linewidth": 1.3, "capsize": 2.5}
            left.errorbar(found["sizes"], found["ratio"], found["ratio_std"], **options)
            lines.append(right.errorbar(found["sizes"], found["f1"], found["f1_std"], label=name, **options))
            right.axhline(found["cosine"], color=colour, linewidth=1.1, linestyle=(0, (4, 3)))
            if found["crossover"] is not None:
                left.plot(found["crossover"], _ratio_at(found), "D", color=colour, mec="white", ms=7, zorder=4)
        left.set_ylim(
            top=min(HIGHEST, left.get_ylim()[1]), bottom=min(0.9 * x for f in results.values() for x in f["ratio"])
        )
        crossed = left.plot([], [], "D", color=INK, mec="white", ms=7, linestyle="none", label="crossover")[0]
        flat = right.plot([], [], color=INK, linewidth=1.1, linestyle=(0, (4, 3)), label="cosine")[0]
        sizes = sorted({size for found in results.values() for size in found["sizes"]})
        for axes_of, letter, label in (
            (left, "a", "F1 ratio, cosine / surprise"),
            (right, "b", "weighted F1, percent"),
        ):
            axes_of.set(xscale="log", xlabel="documents in the ensemble")
            axes_of.set_xticks(sizes, [f"{size:,}" for size in sizes])
            axes_of.minorticks_off()
            axes_of.grid(True)
            axes_of.set_title(f"({letter}) {label}", fontweight="bold")
        made.legend(handles=[*lines, flat, crossed], loc="outside right center", title=model)
    return path


def _ratio_at(found: dict[str, Any]) -> float:
    """1, or the first ratio where all are below."""
    return found["ratio"][0] if found["crossover"] <= found["sizes"][0] else 1.0


def main() -> None:
    """Run every model on every set and size, write JSON, markdown and a figure for each model."""
    parser = arguments(__doc__, "out/ensemble_size", runs=10)
    parser.add_argument("--seed", type=int, default=0, help="of the choice that --limit makes (0)")
    parser.add_argument("--sets", help=f"comma list of at most {len(COLOURS)} (default: the paper's, where there)")
    options = parser.parse_args()
    names = listed(options.sets) if options.sets else default_sets(options.data)
    if len(names) > len(COLOURS):
        parser.error(f"a figure shows at most {len(COLOURS)} sets, got {len(names)}")
    data = {name: load(name, options.data, options.limit, options.seed) for name in names}
    results: dict[str, Any] = {}
    pictures = []
    for encoder in encoders(options, most=1):
        about = settings(options, encoder, template=TEMPLATE, candidates="of the whole set")
        results[encoder.name] = {}
        with resumed(options.out / f"{encoder.name}.rows.jsonl", about) as (done, add):
            for name in tqdm(names, desc=encoder.name, disable=None):
                sizes = [size for size in SIZES if size <= len(data[name].texts)]
                jobs = [("cosine", 0, 0), ("whole", 0, 0)]
                jobs += [("surprise", size, run) for size in sizes for run in range(options.runs)]
                finished = {(row["method"], row["size"], row["run"]) for row in done if row["set"] == name}
                left = [job for job in jobs if job not in finished]
                task = Task(encoder, data[name]) if left else None
                for method, size, run in left:
                    ensemble = draw_ensemble(len(task.documents), size, run) if method == "surprise" else None
                    f1 = task.f1(float(method != "cosine"), ensemble)
                    add({"set": name, "method": method, "size": size, "run": run, "f1": f1})
                wanted = [
                    row for row in done if row["set"] == name and (row["method"], row["size"], row["run"]) in jobs
                ]
                results[encoder.name][name] = summarise(wanted)
        pictures.append(draw(encoder.name, results[encoder.name], options.out / f"ensemble_size_{encoder.name}.png"))
    documents = {name: len(part.texts) for name, part in data.items()}
    reached = [size for size in SIZES if size <= max(documents.values())]
    beside = {
        "encoder": (", ".join(results), PAPER_MODEL),
        "documents": (", ".join(f"{name} {n:,}" for name, n in documents.items()), f"all of {', '.join(PAPER)}"),
        "sizes": (" to ".join(f"{size:,}" for size in (reached[0], reached[-1])), f"{SIZES[0]} to {SIZES[-1]:,}"),
        "draws of each size": (options.runs, 10),
    }
    write_results(
        options.out,
        "ensemble_size",
        conditions(options, beside) + markdown(results),
        pictures,
        template=TEMPLATE,
        runs=options.runs,
        documents=documents,
        results=results,
    )


if __name__ == "__main__":
    ending(main)
