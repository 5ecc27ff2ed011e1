"""For the tests of training: documents of three labels, and a trainer of a tiny random encoder on them."""

from __future__ import annotations

from pathlib import Path

import torch
from datasets import ClassLabel, Dataset, Features, Value

from surprise_hf import SurpriseModel, SurpriseTrainer, SurpriseTrainingArguments
from tests.model_data import load

LABELS = ["money", "sport", "weather"]
MORE = [f"{a} {b}" for a in ("red", "one", "cat", "dog") for b in ("vote", "gene")]
TEXTS = [f"{word} {more}" for word in ("bank", "ball", "rain") for more in MORE]
TARGETS = [label for label in LABELS for _ in range(8)]


def rows(every: int = 1) -> Dataset:
    return Dataset.from_dict({"text": TEXTS[::every], "label": TARGETS[::every]})


def as_class_label() -> Dataset:
    numbers = [LABELS.index(target) for target in TARGETS]
    return Dataset.from_dict(
        {"text": TEXTS, "label": numbers}, Features({"text": Value("string"), "label": ClassLabel(names=LABELS)})
    )


def make(path: Path, out: Path, train=None, evaluate=None, *, trainer=None, **options) -> SurpriseTrainer:
    defaults = {"num_train_epochs": 2, "stop_cross_entropy": None, "save_strategy": "no", "learning_rate": 1e-3}
    defaults["bf16_on_cpu"] = False  # the same numbers on every CPU
    args = SurpriseTrainingArguments(
        output_dir=str(out), use_cpu=True, disable_tqdm=True, report_to="none", **{**defaults, **options}
    )
    return SurpriseTrainer(load(path), args, rows() if train is None else train, evaluate, **(trainer or {}))


def weights(model: SurpriseModel) -> list[torch.Tensor]:
    return [p.detach().clone() for p in model.parameters()]


def assert_same(first: list[torch.Tensor], second: list[torch.Tensor], **tolerance) -> None:
    for one, other in zip(first, second, strict=True):
        torch.testing.assert_close(one, other, **(tolerance or {"rtol": 0, "atol": 0}))
