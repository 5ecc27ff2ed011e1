"""The paper's two word tables: seven words ranked for "dog" by cosine and by surprise, among 25,474 English words.

    python examples/reproduce/words.py --data hub --out out/words
    python examples/reproduce/words.py --data DIR --model minilm=PATH --model e5=PATH,query:_

The words are the ensemble and the queries, "dog" is the key. They come from the folder's
english_words_1.1.0/english_words_alpha_set_sorted.txt or, with --data hub, from the package english-words 1.1.0.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from common import PAPER_MODEL, Encoder, arguments, conditions, encoders, ending, figure, table, write_results
from sets import chosen, load_words
from torch import Tensor

from surprise_hf import Ensemble
from surprise_hf.ops import surprise_from_moments
from surprise_hf.plots import CURVE, INK, SECOND

KEY = "dog"
PAPER = {  # sentence-t5-base, x 100: cosine, mean, standard deviation, surprise
    "dog": (100.0, 78.5, 2.3, 100.0),
    "Alsatian": (84.9, 77.0, 2.2, 100.0),
    "furry": (83.3, 78.0, 2.1, 99.5),
    "puppyish": (83.0, 78.0, 2.2, 98.8),
    "potato": (85.0, 80.5, 2.0, 98.7),
    "the": (85.2, 81.1, 2.0, 98.0),
    "my": (85.0, 80.9, 2.1, 97.4),
}
NUMBERS = ("cosine", "mean", "std", "surprise")


def choose(words: list[str], limit: int | None) -> list[str]:
    """The paper's words and others at random, `limit` of all, in the order of the list.

    Raises:
        SystemExit: the list lacks one of the paper's words.
    """
    if missing := [word for word in PAPER if word not in words]:
        raise SystemExit(f"this word list lacks {', '.join(missing)}")
    if limit is None:
        return words
    others = [word for word in words if word not in PAPER]
    return sorted([*PAPER, *(others[i] for i in chosen(len(others), max(0, limit - len(PAPER))))])


def score(key: Tensor, words: Tensor) -> dict[str, Tensor]:
    """cosine, mean, std, surprise and z of every word (n, d) for the key (d,), all (n,); the words are the ensemble."""
    key, words = key.double(), words.double()  # where cosines crowd, float32's rounding is 1e-5 of a surprise
    mean, std = Ensemble.from_embeddings(words, precision="exact").moments(words)
    outputs = {"cosine": "cosine", "surprise": "score", "z": "z"}
    found = {
        name: surprise_from_moments(key.unsqueeze(0), words, mean, std, output=output)[0]
        for name, output in outputs.items()
    }
    return {**found, "mean": mean, "std": std}


def run(encoder: Encoder, words: list[str]) -> dict[str, Any]:
    """Both tables for one encoder: the paper's words with their places among all, and the ten best of all words."""
    emb = encoder(words)
    started = time.perf_counter()
    found = score(emb[words.index(KEY)], emb)
    seconds = time.perf_counter() - started
    rows = []
    for word in PAPER:
        i = words.index(word)
        row: dict[str, Any] = {"word": word, "z": float(found["z"][i])}
        row |= {name: 100 * float(found[name][i]) for name in NUMBERS}
        row |= {f"place_by_{by}": 1 + int((found[by] > found[by][i]).sum()) for by in ("cosine", "z")}
        rows.append(row)
    near = {by: [words[i] for i in found[by].topk(11).indices.tolist()] for by in ("cosine", "z")}
    best = {by: [word for word in listed if word != KEY][:10] for by, listed in near.items()}
    return {"model": encoder.name, "prompt": encoder.prompt, "seconds": seconds, "rows": rows, "best": best}


def markdown(result: dict[str, Any]) -> str:
    """Both tables, measured and the paper's numbers side by side; then the words nearest to the key."""
    by_cosine = sorted(result["rows"], key=lambda row: -row["cosine"])
    theirs = sorted(PAPER, key=lambda word: -PAPER[word][0])
    lines = [
        [row["word"], f"{row['cosine']:.1f}", f"{row['place_by_cosine']:,}", word, f"{PAPER[word][0]:.1f}"]
        for row, word in zip(by_cosine, theirs, strict=True)
    ]
    out = f"### {result['model']}\n\nBy cosine:\n\n"
    out += table(["word", "cosine", "place among all", "paper: word", "cosine"], lines)
    lines = []
    for row in sorted(result["rows"], key=lambda row: -row["z"]):
        ours = [f"{row[name]:.1f}" for name in (*NUMBERS, "z")]
        lines.append([row["word"], *ours, f"{row['place_by_z']:,}", *(f"{x:.1f}" for x in PAPER[row["word"]])])
    head = ["word", *NUMBERS, "z", "place among all", *(f"paper: {name}" for name in NUMBERS)]
    out += "By surprise:\n\n" + table(head, lines)
    out += f'Nearest to "{KEY}" by cosine: {", ".join(result["best"]["cosine"])}.\n\n'
    out += f"By surprise: {', '.join(result['best']['z'])}.\n\nScored in {result['seconds']:.2f} s.\n\n"
    return out


def draw(results: list[dict[str, Any]], path: Path) -> Path:
    """For each word how similar all words are to it, and how similar the key is: far from the bar is a surprise."""
    size = (0.9 + 3.1 * len(results), 3.2)
    with figure(path, len(results), figsize=size, sharey=False) as (made, axes):
        for panel, result in zip(axes[0], results, strict=True):
            rows = sorted((row for row in result["rows"] if row["word"] != KEY), key=lambda row: row["z"])
            places = range(len(rows))
            means, errors = [row["mean"] for row in rows], [2 * row["std"] for row in rows]
            options = {"fmt": "|", "color": SECOND, "capsize": 3, "linewidth": 1.3, "markersize": 9}
            bars = panel.errorbar(means, places, xerr=errors, label="all words: mean, two deviations", **options)
            dots = panel.scatter(
                [row["cosine"] for row in rows], places, color=CURVE, s=28, zorder=3, label=f'cosine with "{KEY}"'
            )
            for at, row in zip(places, rows, strict=True):
                panel.annotate(
                    f"{row['surprise']:.1f}",
                    (1.02, at),
                    xycoords=("axes fraction", "data"),
                    va="center",
                    fontsize=8,
                    color=INK,
                )
            panel.annotate("surprise", (1.02, 1.02), xycoords="axes fraction", va="bottom", fontsize=8, color=INK)
            panel.set_yticks(places, [row["word"] for row in rows])
            panel.set_ylim(-0.6, len(rows) - 0.4)
            panel.set_xlabel("cosine x 100")
            panel.set_title(result["model"], fontweight="bold")
            panel.grid(True, axis="x")
        made.legend(handles=[bars, dots], loc="outside upper center", ncols=min(2, len(results)))
    return path


def main() -> None:
    """Tables of every encoder."""
    parser = arguments(__doc__, "out/words")
    options = parser.parse_args()
    words = choose(load_words(options.data), options.limit)
    results = [run(encoder, words) for encoder in encoders(options, most=1)]
    beside = {"encoder": (", ".join(result["model"] for result in results), PAPER_MODEL), "words": (len(words), 25474)}
    head = f'Similarity x 100 to "{KEY}".\n\n{conditions(options, beside)}'
    picture = draw(results, options.out / "words.png")
    text = head + "".join(map(markdown, results))
    write_results(options.out, "words", text, [picture], words=len(words), results=results)


if __name__ == "__main__":
    ending(main)
