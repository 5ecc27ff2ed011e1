"""The paper's two word tables: seven words ranked for "dog" by cosine and by surprise, among 25,474 English words.

    python examples/reproduce/words.py --model minilm=PATH --model e5=PATH,query:_ --out out/words

The words are the ensemble and the queries, "dog" is the key. They come from the file
english_words_1.1.0/english_words_alpha_set_sorted.txt under --data, or from the package english-words 1.1.0.
"""

from __future__ import annotations

import time
from typing import Any

from common import Encoder, arguments, encoders, write_results
from sets import load_words
from torch import Tensor

from surprise_hf import Ensemble
from surprise_hf.ops import surprise_from_moments

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


def score(key: Tensor, words: Tensor) -> dict[str, Tensor]:
    """cosine, mean, std, surprise and z of every word (n, d) for the key (d,), all (n,); the words are the ensemble."""
    mean, std = Ensemble.from_embeddings(words).moments(words)
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


def table(result: dict[str, Any]) -> str:
    """Measured and the paper's numbers side by side, by surprise; then the words nearest to the key."""
    names = " | ".join(NUMBERS)
    lines = [
        f"### {result['model']}",
        "",
        f"| word | {names} | z | place by cosine | by surprise | {' | '.join(f'paper: {n}' for n in NUMBERS)} |",
        "|---|" + "---:|" * 11,
    ]
    for row in sorted(result["rows"], key=lambda row: -row["z"]):
        ours = " | ".join(f"{row[name]:.1f}" for name in (*NUMBERS, "z"))
        places = f"{row['place_by_cosine']:,} | {row['place_by_z']:,}"
        lines.append(f"| {row['word']} | {ours} | {places} | {' | '.join(f'{x:.1f}' for x in PAPER[row['word']])} |")
    lines += ["", f'Nearest to "{KEY}" by cosine: {", ".join(result["best"]["cosine"])}.', ""]
    lines += [f"By surprise: {', '.join(result['best']['z'])}.", "", f"Scored in {result['seconds']:.2f} s.", ""]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Tables of every encoder."""
    parser = arguments(__doc__, "out/words")
    options = parser.parse_args()
    words = load_words(options.data)
    if missing := [word for word in PAPER if word not in words]:
        raise SystemExit(f"this word list lacks {', '.join(missing)}")
    results = [run(encoder, words) for encoder in encoders(options)]
    markdown = f'Similarity x 100 to "{KEY}" among {len(words):,} words; the paper\'s encoder is sentence-t5-base.\n\n'
    write_results(options.out, "words", markdown + "".join(map(table, results)), words=len(words), results=results)


if __name__ == "__main__":
    main()
