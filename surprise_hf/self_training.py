"""Which documents a trained model may learn from as if its labels of them were true, and whether that pays.

Measured in docs/few_shot.md, "Self-training". `SurpriseTrainer` decides, and sends `GoingOn`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any, cast

import torch
from datasets import Dataset
from sentence_transformers import SentenceTransformer
from torch import Tensor

from .ensemble import Ensemble
from .few_shot import surest
from .label_trainer import LabelTrainer
from .model import SurpriseModel
from .reservoir import reservoir_order
from .trainer_callbacks import be_quiet
from .training_arguments import SurpriseTrainingArguments

AGREED = 0.965  # from this agreement on it pays
LABELS = 10  # so many at least: of two or four, examples and documents agree on what is wrong, too
EXAMPLES = 8  # of a label, on the average: with fewer it costs several times the training before it
PER_LABEL = 32  # documents of a label that join


def agreement(z: Tensor, documents: Tensor, parted: Tensor) -> float:
    """Share of the documents on which two views decide alike.

    Args:
        z: (n, m) floating, of labels refined on the documents.
        documents: (n, d) floating, unit rows.
        parted: (m, d) floating, unit rows: the same labels as the examples part them.
    """
    return float((z.argmax(dim=1) == (documents @ parted.T).argmax(dim=1)).double().mean())


def joining(
    z: Tensor, ensemble: Ensemble, texts: Sequence[str], examples: Collection[str]
) -> dict[str, tuple[int, int]]:
    """The documents that join the examples: text -> (row of the ensemble's reservoir, label), none of them an example.

    Args:
        z: (n, m) floating, of the reservoir's documents.
        ensemble: of all the documents, in the order of `texts`.
        texts: of the documents.
        examples: their texts.
    """
    order = reservoir_order(len(texts), ensemble.reservoir_size, ensemble.seed).tolist()
    known = set(examples)
    return {text: (at, label) for at, label in surest(z, PER_LABEL) if (text := texts[order[at]]) not in known}


def of_first_process(found: Any) -> Any:
    """What each process has found by itself, as the first one has: the rounding of one decides for all."""
    held = [found]
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.broadcast_object_list(held)
    return held[0]


class GoingOn(LabelTrainer):
    """Trains another's model for an epoch on more rows (n), whose embeddings (n, d) are known: no checkpoint, no
    evaluation, nothing said or fitted.
    """

    def __init__(
        self, model: SurpriseModel, args: SurpriseTrainingArguments, rows: Dataset, embedded: Tensor, **kwargs: Any
    ) -> None:
        self.embedded = embedded
        evaluates = args.lr_scheduler_type in ("reduce_lr_on_plateau", "greedy")
        args = replace(
            args,
            lr_scheduler_type="constant" if evaluates else args.lr_scheduler_type,
            lr_scheduler_kwargs=None if evaluates else args.lr_scheduler_kwargs,
            num_train_epochs=1,
            max_steps=-1,
            stop_cross_entropy=None,
            self_training=False,
            save_strategy="no",
            eval_strategy="no",
            eval_on_start=False,
            logging_strategy="no",
            load_best_model_at_end=False,
            push_to_hub=False,
            report_to="none",
        )
        super().__init__(model, args, rows, **kwargs)
        be_quiet(self)

    def _as_model(self, model: SentenceTransformer) -> SurpriseModel:
        """As the other one has made it."""
        return cast("SurpriseModel", model)

    def scoring(self) -> dict[str, Any]:
        """As the other one has fitted them."""
        return self.model.fit_options

    def add_model_card_callback(self, default_args_dict: dict[str, Any]) -> None:
        """The card tells of the training that the user started."""

    def _examples(self) -> tuple[Tensor, Tensor, Tensor]:
        return self._name_vectors(), self.embedded, self._positive()

    def _refit(self) -> None:
        """The other one does."""
