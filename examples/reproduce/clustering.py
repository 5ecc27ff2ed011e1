"""The paper's clustering table: v-measure and adjusted Rand score of cosine and surprise on Reddit titles.

    python examples/reproduce/clustering.py --data DIR --model minilm=PATH --limit 50 --out out/clustering

25 splits of 10 to 50 random subreddits, each clustered 40 times: k-means++ and Lloyd, then every title to the centroid
of the largest cosine or surprise. --limit takes that many titles of each subreddit (all 512 mean encoding 128,000).
--variants adds other ways to assign: mixed, iterated, balanced, dot, euclidean, manhattan (the last three with and
without surprise). An interrupted run goes on where it stopped.
"""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import arguments, encoders, resumed, write_results
from sklearn.metrics import adjusted_rand_score, v_measure_score
from torch import Tensor
from torch.nn.functional import normalize
from tqdm import tqdm

from surprise_hf import SurpriseKMeans
from surprise_hf.fitted import FittedLabels

PAPER = {  # sentence-t5-base, the splits of MTEB: mean and deviation
    "cosine": {"v_measure": (54.2, 1.8), "adjusted_rand": (39.5, 1.8)},
    "surprise": {"v_measure": (54.4, 1.9), "adjusted_rand": (44.3, 1.9)},
}
METRICS = {"v_measure": v_measure_score, "adjusted_rand": adjusted_rand_score}
SIMILARITIES = ("dot", "euclidean", "manhattan")
REFITTED = {"iterated": {"iterate": "surprise"}, "balanced": {"balanced": True}}
VARIANTS = ("mixed", *REFITTED, *SIMILARITIES)


def load_titles(data: Path, limit: int | None) -> dict[str, list[str]]:
    """Distinct titles of each subreddit, `limit` of them at random."""
    titles: dict[str, list[str]] = {}
    with gzip.open(data / "reddit_tweac" / "test.jsonl.gz", "rt", encoding="utf8") as file:
        for line in file:
            row = json.loads(line)
            titles.setdefault(row["label"], []).append(row["text"])
    seen: set[str] = set()
    for label, texts in titles.items():
        fresh = [text for text in dict.fromkeys(texts) if text not in seen]
        seen.update(fresh)
        titles[label] = random.Random(label).sample(fresh, min(limit or len(fresh), len(fresh)))
    return titles


def draw_splits(labels: list[str], splits: int, seed: int = 0) -> list[list[str]]:
    """Random groups of 10 to 50 labels."""
    rng = random.Random(seed)
    return [rng.sample(sorted(labels), rng.randint(10, 50)) for _ in range(splits)]


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


def table(model: str, summary: dict[str, Any], splits: int) -> str:
    """One encoder's summary."""
    lines = [
        f"| {model} | v-measure | ± runs | ± splits | gain | adjusted Rand | ± runs | ± splits | gain | splits gained |"
        " paper: v-measure | adjusted Rand |",
        "|---|" + "---:|" * 11,
    ]
    for way, found in summary.items():
        cells = []
        for name in METRICS:
            cells += [f"{found[name][key]:.1f}" for key in ("mean", "std_runs", "std_splits")]
            cells.append(f"{found[name]['gain']:+.1f}")
        gained = f"{found['adjusted_rand']['splits_gained']} of {splits}"
        paper = ["{:.1f} ± {:.1f}".format(*PAPER[way][name]) if way in PAPER else "" for name in METRICS]
        lines.append(f"| {way} | {' | '.join([*cells, gained, *paper])} |")
    return "\n".join(lines) + "\n\n"


def main() -> None:
    """Cluster every split as often as asked, with every encoder."""
    parser = arguments(__doc__, "out/clustering")
    parser.add_argument("--splits", type=int, default=25)
    parser.add_argument("--runs", type=int, default=40)
    parser.add_argument("--variants", default="", help=f"comma list of {', '.join(VARIANTS)}")
    options = parser.parse_args()
    variants = [name for name in options.variants.split(",") if name]
    if unknown := sorted(set(variants) - set(VARIANTS)):
        parser.error(f"unknown variants {unknown}; there are {', '.join(VARIANTS)}")
    titles = load_titles(options.data, options.limit)
    splits = draw_splits(list(titles), options.splits)
    used = sorted({label for split in splits for label in split})
    texts = [text for label in used for text in titles[label]]
    rows_of: dict[str, list[int]] = {}
    for label in used:
        start = sum(map(len, rows_of.values()))
        rows_of[label] = list(range(start, start + len(titles[label])))
    settings = {"limit": options.limit, "variants": variants, "titles": len(texts)}
    markdown, results = "", {}
    for encoder in encoders(options):
        emb = encoder(texts)
        with resumed(options.out / f"{encoder.name}.runs.jsonl", {**settings, "model": encoder.spec}) as (rows, add):
            done = {(row["split"], row["run"]) for row in rows}
            jobs = [(s, r) for s in range(options.splits) for r in range(options.runs) if (s, r) not in done]
            for split, run in tqdm(jobs, desc=encoder.name, disable=None):
                names = splits[split]
                index = [row for label in names for row in rows_of[label]]
                truth = [i for i, label in enumerate(names) for _ in rows_of[label]]
                scores = measure(emb[index], truth, len(names), 1000 * split + run, variants)
                add({"split": split, "run": run, "scores": scores})
            wanted = [row for row in rows if row["split"] < options.splits and row["run"] < options.runs]
        results[encoder.name] = summarise(wanted)
        markdown += table(encoder.name, results[encoder.name], options.splits)
    head = (
        f"{options.splits} splits of 10 to 50 subreddits, {options.runs} runs each, {len(texts):,} titles"
        f" ({options.limit or 'all'} of each subreddit). The paper used sentence-t5-base and other splits.\n\n"
    )
    write_results(options.out, "clustering", head + markdown, settings=settings, results=results)


if __name__ == "__main__":
    main()
