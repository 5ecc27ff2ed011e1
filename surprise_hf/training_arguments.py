"""SurpriseTrainingArguments: what a SurpriseTrainer takes beside data."""

from __future__ import annotations

import math
import numbers
from dataclasses import dataclass, field
from typing import Any

import torch
from sentence_transformers import SentenceTransformerTrainingArguments

from . import inputs
from .fitted import plain_options
from .ops import check_focal_options

__all__ = ["SurpriseTrainingArguments"]


NO_EFFECT = {  # of the arguments of transformers, and what to do instead
    "batch_eval_metrics": "compute_metrics is given the scores and targets of all documents at once",
    "include_for_metrics": "compute_metrics is given the scores and targets of all documents at once",
    "label_smoothing_factor": "epsilon is the target of a wrong label",
    "data_seed": "documents are drawn by seed",
    "neftune_noise_alpha": "dropout=True is the noise that there is",
    "bf16_full_eval": "what is evaluated is what will be saved; save a model of another dtype",
    "fp16_full_eval": "what is evaluated is what will be saved; save a model of another dtype",
}


def _option(default: Any, text: str) -> Any:
    return field(default=default, metadata={"help": text})


@dataclass
class SurpriseTrainingArguments(SentenceTransformerTrainingArguments):
    """TrainingArguments with learning rate, decay, focal constants and stop of the paper, and what its loss needs.

    Six other defaults were chosen by measurement; docs/training.md names those of the paper.

    Everything that transformers and sentence-transformers accept is accepted here. `num_train_epochs` is a cap:
    training ends with the first epoch whose mean cross-entropy is below `stop_cross_entropy`.

    Raises:
        ValueError: an option that does not fit; what labels are refined and scored with (`refine`, `surprise_weight`)
            too, though it is needed after training.

    References: paper section 3.2.
    """

    learning_rate: float = _option(1e-4, "The initial learning rate.")
    weight_decay: float = _option(0.01, "Weight decay of the optimizer.")
    lr_scheduler_type: str = _option("constant", "The paper has none; a schedule would depend on the cap on epochs.")
    num_train_epochs: float = _option(20, "Epochs at most.")
    per_device_train_batch_size: int = _option(16, "Documents in a step.")
    per_device_eval_batch_size: int = _option(32, "Texts encoded together when evaluating and fitting the ensemble.")
    logging_strategy: str = _option("epoch", "An epoch has few steps.")
    stop_cross_entropy: float | None = _option(0.3, "Stop after an epoch with a smaller mean; None: only at the cap.")
    gamma: float = _option(1.0, "Of the focal factor.")
    epsilon: float = _option(0.05, "Target of the pairs that don't belong together.")
    probability: str = _option("softplus", 'Of a cosine: "softplus", or "relu" as in the paper.')
    delta: float = _option(1e-10, 'Of "relu".')
    balanced: bool = _option(True, "Right and wrong labels count alike; False: every pair does, as in the paper.")
    class_weight: str | None = _option(None, '"balanced" weighs documents by the inverse of their label\'s count.')
    labels_per_step: int | None = _option(None, "Label texts encoded in a step; None: at most 4 for each document.")
    dropout: bool = _option(False, "Dropout while training, as the encoder has it; without, it needs fewer epochs.")
    train_word_embeddings: bool = _option(False, "Train them too; held still, a step of a large vocabulary is short.")
    bf16_on_cpu: bool | None = _option(
        None, "Train with products in bfloat16 where the device is a CPU; None: if it has matrix units for them (AMX)."
    )
    mix_examples: bool = _option(
        True, "Examples move labels from their names, while training and as saved; False: at the name, as in the paper."
    )
    self_training: bool | None = _option(
        None,
        "After training, go on for an epoch with the documents that the trained model is surest of; None: where there"
        " are 10 labels with 8 examples each, and these and the documents' own groups say the same of nearly all"
        " documents (docs/few_shot.md).",
    )
    text_column: str | None = _option(None, "None looks for text, sentence, or the only column of strings.")
    label_column: str | None = _option(None, "None looks for label or labels.")
    weight_column: str | None = _option(None, "Of weights of the training documents; None: all weigh alike.")
    refine: str | None = _option(
        None,
        'Rounds of refinement when labelling, or "auto"; None: "auto" where the trainer is given an ensemble of more'
        " documents than it has examples.",
    )
    surprise_weight: float | None = _option(None, "Of the surprise score when labelling; None: by the crossover.")

    def __post_init__(self) -> None:
        # sentence-transformers would set it in a distributed run, where uneven batches would make the ranks wait;
        # here they are filled up, so that 3 examples on two ranks are not dropped
        drop_last, self.dataloader_drop_last = self.dataloader_drop_last, True
        if self.greater_is_better is None and str(self.metric_for_best_model).endswith("cross_entropy"):
            self.greater_is_better = False  # as of a loss, which transformers knows by its name
        super().__post_init__()
        self.dataloader_drop_last = drop_last
        if getattr(self.batch_sampler, "value", self.batch_sampler) == "group_by_label":
            raise ValueError(
                "batch_sampler='group_by_label' wants one label of each document, and here they may be several"
            )
        if self.class_weight not in (None, "balanced"):
            raise ValueError(f"class_weight must be None or 'balanced', got {self.class_weight!r}")
        if self.bf16_on_cpu is None:  # an older torch, which can't tell, goes without
            capabilities: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
            self.bf16_on_cpu = bool(capabilities.get("amx_bf16"))
        for name in ("balanced", "dropout", "train_word_embeddings", "mix_examples", "bf16_on_cpu"):
            setattr(self, name, inputs.flag(name, getattr(self, name)))
        if self.self_training is not None:
            self.self_training = inputs.flag("self_training", self.self_training)
        if self.labels_per_step is not None:
            self.labels_per_step = inputs.positive_int("labels_per_step", self.labels_per_step)
        stop: Any = self.stop_cross_entropy
        if stop is not None and (not isinstance(stop, numbers.Real) or math.isnan(stop)):
            raise ValueError(f"stop_cross_entropy must be a number or None, got {stop!r}")
        self.stop_cross_entropy = None if stop is None else float(stop)  # numbers of Python's own, which JSON holds
        check_focal_options(self.gamma, self.epsilon, self.probability, self.delta)
        self.gamma, self.epsilon, self.delta = float(self.gamma), float(self.epsilon), float(self.delta)
        for name, instead in NO_EFFECT.items():
            if getattr(self, name, None):
                raise ValueError(f"{name} has no effect here: {instead}")
        if getattr(self, "train_sampling_strategy", "random") != "random":
            raise ValueError("train_sampling_strategy has no effect here: documents are drawn by batch_sampler")
        self.check_scoring()

    def check_scoring(self) -> None:
        """Before hours of training: what labels are fitted with after it, as plain numbers, which JSON holds."""
        refine: Any = int(self.refine) if self.refine is not None and str(self.refine).isdecimal() else self.refine
        self.refine = plain_options({"refine": refine, "weight": self.surprise_weight}).get("refine")
        if self.surprise_weight is not None:
            self.surprise_weight = float(self.surprise_weight)
