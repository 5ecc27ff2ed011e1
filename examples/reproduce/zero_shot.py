"""The paper's zero-shot table: accuracy and weighted F1 of SetFit, cosine and surprise.

    python examples/reproduce/zero_shot.py --data hub --out out/zero_shot
    python examples/reproduce/zero_shot.py --data DIR --model minilm=PATH --model e5=PATH,query:_

The documents are the keys and the ensemble, the label names in "this matter is {}" the queries. SetFit without
examples is, as in the paper, its logistic head alone, taught with the texts "This sentence is {}" of each label.
An interrupted run goes on where it stopped. Models: see common.py; sets: see sets.py.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
from common import (
    MODELS,
    TEMPLATE,
    Encoder,
    arguments,
    at_random,
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
from sets import PAPER as PAPER_SETS
from sets import LabelledSet, default_sets, load
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score, f1_score
from tqdm import tqdm

from surprise_hf.fitted import FittedLabels
from surprise_hf.plots import CURVE, INK, PALE, SECOND

METHODS = ("SetFit", "cosine", "surprise")
METRICS = ("accuracy", "f1")
PAPER = {  # model -> set -> accuracy and F1 of SetFit, cosine, surprise
    "sentence-t5-base": {
        "yahoo": ((54.3, 57.8, 59.7), (52.0, 57.2, 58.7)),
        "amazon": ((24.4, 24.0, 24.3), (23.2, 22.2, 23.8)),
        "ag_news": ((71.8, 71.8, 75.0), (69.7, 70.7, 74.9)),
        "dbpedia": ((71.1, 71.4, 77.5), (68.3, 69.2, 76.7)),
        "imdb": ((66.2, 63.9, 83.9), (62.0, 58.8, 83.9)),
    },
    "e5-large": {
        "yahoo": ((47.8, 53.1, 56.4), (46.4, 51.9, 55.3)),
        "amazon": ((21.9, 22.4, 23.1), (20.5, 20.7, 22.8)),
        "ag_news": ((63.5, 58.6, 64.7), (61.4, 50.5, 64.0)),
        "dbpedia": ((66.7, 75.5, 80.3), (66.5, 74.2, 79.6)),
        "imdb": ((74.5, 79.6, 79.9), (73.1, 79.6, 79.9)),
    },
    "gtr-t5-large": {
        "yahoo": ((47.0, 51.5, 53.9), (45.7, 49.8, 53.3)),
        "amazon": ((23.9, 25.2, 25.0), (22.7, 22.2, 24.2)),
        "ag_news": ((57.0, 68.1, 67.6), (56.0, 67.7, 67.4)),
        "dbpedia": ((60.5, 60.4, 67.7), (58.2, 55.7, 66.8)),
        "imdb": ((77.7, 78.8, 80.3), (77.2, 78.6, 80.3)),
    },
}


def predict(encoder: Encoder, data: LabelledSet) -> dict[str, np.ndarray]:
    """The label's number for each document (n,), by each method."""
    documents = encoder(data.texts)
    queries = encoder([TEMPLATE.format(name) for name in data.names])
    found = {
        side: FittedLabels.fit(queries, documents, weight=weight).decide(documents).numpy()
        for side, weight in (("cosine", 0.0), ("surprise", 1.0))
    }
    found["SetFit"] = np.zeros(len(documents), dtype=np.int64)
    if len(data.names) > 1:
        # two texts of each label, all the same, and 100 steps are SetFit's own defaults
        taught = encoder([f"This sentence is {name}" for name in data.names]).repeat(2, 1).numpy()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # whether they suffice or not
            head = LogisticRegression().fit(taught, np.tile(np.arange(len(data.names)), 2))
        found["SetFit"] = head.predict(documents.numpy())
    return {method: found[method] for method in METHODS}


def measure(encoder: Encoder, data: LabelledSet) -> dict[str, Any]:
    """One row of the table, in percent."""
    number = {name: i for i, name in enumerate(data.names)}
    truth = [number[label] for label in data.labels]
    scores = {
        method: {
            "accuracy": 100 * float(accuracy_score(truth, found)),
            "f1": 100 * float(f1_score(truth, found, average="weighted")),
        }
        for method, found in predict(encoder, data).items()
    }
    return {"model": encoder.name, "set": data.name, "n": len(data.texts), "labels": len(data.names), "scores": scores}


def average(rows: list[dict[str, Any]], method: str, metric: str) -> float:
    """Over the sets."""
    return float(np.mean([row["scores"][method][metric] for row in rows]))


def markdown(rows: list[dict[str, Any]]) -> str:
    """Both metrics of each model, and the paper's table."""
    out = ""
    for metric, title in zip(METRICS, ("Accuracy", "Weighted F1"), strict=True):
        lines = []
        for model in dict.fromkeys(row["model"] for row in rows):
            of_model = [row for row in rows if row["model"] == model]
            for row in of_model:
                values = [row["scores"][method][metric] for method in METHODS]
                lines.append([model, row["set"], f"{row['n']:,}", str(row["labels"]), *_marked(values)])
            values = [average(of_model, method, metric) for method in METHODS]
            lines.append([model, "*average*", "", "", *_marked(values)])
        out += f"### {title}, percent\n\n" + table(["model", "set", "n", "labels", *METHODS], lines, left=2)
        lines = []
        for model, of_sets in PAPER.items():
            several = {name: values[METRICS.index(metric)] for name, values in of_sets.items()}
            several["*average*"] = tuple(np.mean(list(several.values()), axis=0).tolist())
            lines += [[model, name, *_marked(list(values))] for name, values in several.items()]
        out += f"The paper's {title[0].lower()}{title[1:]}:\n\n" + table(["model", "set", *METHODS], lines, left=2)
    return out


def _marked(values: list[float]) -> list[str]:
    best = max(round(value, 1) for value in values)
    return [f"**{value:.1f}**" if round(value, 1) == best else f"{value:.1f}" for value in values]


def draw(rows: list[dict[str, Any]], path: Path) -> Path:
    """One row of panels for each metric, one panel for each model: the three methods on every set."""
    models = list(dict.fromkeys(row["model"] for row in rows))
    colours = dict(zip(METHODS, (INK, SECOND, CURVE), strict=True))
    most = max(sum(row["model"] == model for row in rows) for model in models)
    size = (0.6 + 2.9 * len(models), 2 * (0.9 + 0.34 * most))
    with figure(path, len(models), 2, figsize=size, sharey="row", sharex=True) as (made, axes):
        for down, (metric, title) in enumerate(zip(METRICS, ("accuracy", "weighted F1"), strict=True)):
            for across, model in enumerate(models):
                of_model = [row for row in rows if row["model"] == model]
                panel = axes[down, across]
                for at, row in enumerate(of_model):
                    values = [row["scores"][method][metric] for method in METHODS]
                    panel.plot([min(values), max(values)], [at, at], color=PALE, linewidth=2.5, zorder=1)
                for method, marker in zip(METHODS, "s^o", strict=True):
                    panel.scatter(
                        [row["scores"][method][metric] for row in of_model],
                        range(len(of_model)),
                        color=colours[method],
                        marker=marker,
                        s=26,
                        label=method,
                        zorder=2,
                    )
                panel.set_yticks(range(len(of_model)), [row["set"] for row in of_model])
                panel.set_ylim(len(of_model) - 0.5, -0.5)
                panel.grid(True, axis="x")
                if down == 0:
                    panel.set_title(model, fontweight="bold")
                panel.set_xlabel(f"{title}, percent")
                panel.tick_params(labelbottom=True)
        handles, names = axes[0, 0].get_legend_handles_labels()
        made.legend(handles, names, loc="outside upper center", ncols=3)
    return path


def main() -> None:
    """Run every model on every set, write JSON, markdown and a figure."""
    parser = arguments(__doc__, "out/zero_shot")
    parser.add_argument("--seed", type=int, default=0, help="of the choice that --limit makes (0)")
    parser.add_argument("--sets", help="comma list (default: the paper's, where the data has them)")
    options = parser.parse_args()
    names = listed(options.sets) if options.sets else default_sets(options.data)
    data = {name: load(name, options.data, options.limit, options.seed) for name in names}
    rows = []
    for encoder in encoders(options):
        about = settings(options, encoder, template=TEMPLATE, candidates="of the whole set")
        with resumed(options.out / f"{encoder.name}.rows.jsonl", about) as (done, add):
            finished = {row["set"] for row in done}
            for name in tqdm([name for name in names if name not in finished], desc=encoder.name, disable=None):
                add(measure(encoder, data[name]))
            of_set = {row["set"]: row for row in done}
            rows += [of_set[name] for name in names]
    beside = {
        "encoders": (", ".join(dict.fromkeys(row["model"] for row in rows)), ", ".join(MODELS)),
        "sets": (", ".join(names), ", ".join(PAPER_SETS)),
        "documents of a set": (at_random(options.limit), "all"),
    }
    picture = draw(rows, options.out / "zero_shot.png")
    text = conditions(options, beside) + markdown(rows)
    write_results(options.out, "zero_shot", text, [picture], template=TEMPLATE, rows=rows)


if __name__ == "__main__":
    ending(main)
