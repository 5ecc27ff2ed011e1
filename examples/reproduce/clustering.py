"""The paper's clustering table: v-measure and adjusted Rand score of cosine and surprise on Reddit titles.

    python examples/reproduce/clustering.py --data hub --out out/clustering
    python examples/reproduce/clustering.py --data DIR --model minilm=PATH --titles 50

25 splits of 10 to 50 subreddits (from a folder: random ones), each clustered 40 times: k-means++ and Lloyd, then every
title to the centroid of the largest cosine or surprise. --limit takes so many titles of each split, --titles so many
of each subreddit. --variants adds other ways to assign: mixed, iterated, balanced, dot, euclidean, manhattan (the last
three with and without surprise). An interrupted run goes on where it stopped.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import (
    PAPER_MODEL,
    arguments,
    conditions,
    encoders,
    ending,
    figure,
    resumed,
    settings,
    table,
    write_results,
)
from sets import title_splits
from sklearn.metrics import adjusted_rand_score, v_measure_score
from torch import Tensor
from torch.nn.functional import normalize
from tqdm import tqdm

from surprise_hf import SurpriseKMeans
from surprise_hf.arguments import positive
from surprise_hf.fitted import FittedLabels
from surprise_hf.plots import CURVE, INK, SECOND

PAPER = {  # sentence-t5-base, the splits of MTEB: mean and deviation
    "cosine": {"v_measure": (54.2, 1.8), "adjusted_rand": (39.5, 1.8)},
    "surprise": {"v_measure": (54.4, 1.9), "adjusted_rand": (44.3, 1.9)},
}
METRICS = {"v_measure": v_measure_score, "adjusted_rand": adjusted_rand_score}
SIMILARITIES = ("dot", "euclidean", "manhattan")
REFITTED = {"iterated": {"iterate": "surprise"}, "balanced": {"balanced": True}}
VARIANTS = ("mixed", *REFITTED, *SIMILARITIES)


def assignments(emb: Tensor, k: int, seed: int, variants: list[str]) -> dict[str, Any]:
    """Clusters (n,) of the rows by every way to assign, from the same centroids."""
    fitted = SurpriseKMeans(k, random_state=seed, n_init=1).fit(emb)
    centres, unit = torch.from_numpy(fitted.cluster_centers_), normalize(emb)
    found = {
        "cosine": FittedLabels.fit(centres, unit, weight=0).decide(unit),
        "surprise": fitted.labels_,
    }
    for name in variants:
        if name == "mixed":
            found[name] = FittedLabels.fit(centres, unit).decide(unit)
        elif name in REFITTED:
            again = SurpriseKMeans(k, init=fitted.cluster_centers_, n_init=1, **REFITTED[name])
            found[name] = again.fit_predict(unit)
        else:
            for side, weight in (("", 0.0), (" surprise", 1.0)):
                found[name + side] = FittedLabels.fit(centres, unit, similarity=name, weight=weight).decide(unit)
    return found


def measure(emb: Tensor, truth: list[int], k: int, seed: int, variants: list[str]) -> dict[str, dict[str, float]]:
    """Both metrics, x 100, of each way to assign."""
    found = assignments(emb, k, seed, variants)
    return {
        way: {name: 100 * float(metric(truth, np.asarray(labels))) for name, metric in METRICS.items()}
        for way, labels in found.items()
    }


def summarise(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """For each way and metric: mean, deviation over the runs of a split, over the splits, and gain over the cosine."""
    by_split: dict[int, list[dict[str, Any]]] = {}
    for row in rows:
        by_split.setdefault(row["split"], []).append(row["scores"])
    out: dict[str, Any] = {}
    for way in rows[0]["scores"]:
        for name in METRICS:
            runs = [np.array([scores[way][name] for scores in split]) for split in by_split.values()]
            base = [np.array([scores["cosine"][name] for scores in split]) for split in by_split.values()]
            means = np.array([part.mean() for part in runs])
            gains = means - np.array([part.mean() for part in base])
            out.setdefault(way, {})[name] = {
                "mean": float(means.mean()),
                "std_runs": float(np.mean([part.std() for part in runs])),
                "std_splits": float(means.std()),
                "gain": float(gains.mean()),
                "splits_gained": int((gains > 0).sum()),
            }
    return out


def markdown(model: str, summary: dict[str, Any], splits: int) -> str:
    """One encoder's summary, and the paper's."""
    lines = []
    for way, found in summary.items():
        cells = []
        for name in METRICS:
            cells += [f"{found[name][key]:.1f}" for key in ("mean", "std_runs", "std_splits")]
            cells.append(f"{found[name]['gain']:+.1f}")
        gained = f"{found['adjusted_rand']['splits_gained']} of {splits}"
        paper = ["{:.1f} ± {:.1f}".format(*PAPER[way][name]) if way in PAPER else "" for name in METRICS]
        lines.append([way, *cells, gained, *paper])
    parts = ["± runs", "± splits", "gain"]
    head = [model, "v-measure", *parts, "adjusted Rand", *parts, "splits gained", "paper: v-measure", "adjusted Rand"]
    return table(head, lines)


def draw(rows: dict[str, list[dict[str, Any]]], path: Path) -> Path:
    """Every split: its mean by surprise against its mean by cosine, a colour for each encoder."""
    marks = [(SECOND, "o"), (CURVE, "^"), (INK, "s")]
    with figure(path, 2, figsize=(8.6, 4.2)) as (_, axes):
        for panel, (metric, title) in zip(
            axes[0], zip(METRICS, ("v-measure", "adjusted Rand"), strict=True), strict=True
        ):
            ends = []
            for i, (model, found) in enumerate(rows.items()):
                by_split: dict[int, list[list[float]]] = {}
                for row in found:
                    values = [row["scores"][way][metric] for way in ("cosine", "surprise")]
                    by_split.setdefault(row["split"], []).append(values)
                points = np.array([np.mean(values, axis=0) for values in by_split.values()])
                colour, marker = marks[i % len(marks)]
                panel.scatter(
                    points[:, 0],
                    points[:, 1],
                    color=colour,
                    marker=marker,
                    s=22,
                    alpha=0.85,
                    label=model,
                    lw=0,
                    zorder=3,
                )
                ends += [points.min(), points.max()]
            low, high = min(ends) - 1.5, max(ends) + 1.5
            panel.plot([low, high], [low, high], color=INK, linewidth=0.9, linestyle=(0, (4, 3)), zorder=1)
            panel.set(xlim=(low, high), ylim=(low, high), aspect="equal", xlabel="assigned by cosine")
            panel.set_ylabel("assigned by surprise")
            panel.set_title(f"{title} x 100, mean of each split", fontweight="bold")
            panel.grid(True)
        axes[0, 0].legend(loc="upper left")
    return path


def main() -> None:
    """Cluster every split as often as asked, with every encoder."""
    parser = arguments(__doc__, "out/clustering", runs=40)
    parser.add_argument("--splits", type=positive, default=25, help="clusterings of as many parts of the set (25)")
    parser.add_argument("--titles", type=positive, help="of each subreddit, from a folder (default: all)")
    parser.add_argument("--variants", default="", help=f"comma list of {', '.join(VARIANTS)}")
    options = parser.parse_args()
    variants = [name for name in options.variants.split(",") if name]
    if unknown := sorted(set(variants) - set(VARIANTS)):
        parser.error(f"unknown variants {unknown}; there are {', '.join(VARIANTS)}")
    splits = title_splits(options.data, options.splits, options.limit, options.titles)
    texts = list(dict.fromkeys(text for some, _ in splits for text in some))
    place = {text: i for i, text in enumerate(texts)}
    text, results, drawn = "", {}, {}
    for encoder in encoders(options, most=1):
        emb = encoder(texts)
        about = settings(options, encoder, per_label=options.titles, variants=variants)
        with resumed(options.out / f"{encoder.name}.runs.jsonl", about) as (rows, add):
            done = {(row["split"], row["run"]) for row in rows}
            jobs = [(s, r) for s in range(options.splits) for r in range(options.runs) if (s, r) not in done]
            for split, run in tqdm(jobs, desc=encoder.name, disable=None):
                some, labels = splits[split]
                names = {name: i for i, name in enumerate(dict.fromkeys(labels))}
                truth = [names[label] for label in labels]
                scores = measure(emb[[place[t] for t in some]], truth, len(names), 1000 * split + run, variants)
                add({"split": split, "run": run, "scores": scores})
            drawn[encoder.name] = [r for r in rows if r["split"] < options.splits and r["run"] < options.runs]
        results[encoder.name] = summarise(drawn[encoder.name])
        text += markdown(encoder.name, results[encoder.name], options.splits)
    sizes = [len(some) for some, _ in splits]
    beside = {
        "encoder": (", ".join(results), PAPER_MODEL),
        "splits": (f"{options.splits}{'' if options.data == 'hub' else ', of random subreddits'}", 25),
        "titles of a split": (f"{min(sizes):,} to {max(sizes):,}, {len(texts):,} in all", "all"),
        "runs of a split": (options.runs, 40),
    }
    head = conditions(options, beside)
    picture = draw(drawn, options.out / "clustering.png")
    write_results(options.out, "clustering", head + text, [picture], runs=options.runs, results=results)


if __name__ == "__main__":
    ending(main)
