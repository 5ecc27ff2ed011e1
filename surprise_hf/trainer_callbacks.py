"""What SurpriseTrainer does between the steps: stop by the cross-entropy, aim at the examples, show how far it is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from transformers import (
    PrinterCallback,
    ProgressCallback,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)

if TYPE_CHECKING:
    from .label_trainer import LabelTrainer


class StopOnCrossEntropy(TrainerCallback):
    """Stops training after the first epoch whose mean cross-entropy is below `args.stop_cross_entropy`, and logs it.

    The mean is over the epoch's batches (those after a resumed checkpoint), of all processes. SurpriseTrainer adds
    one by itself.

    References: paper section 3.2, "Convergence".
    """

    def __init__(self, trainer: LabelTrainer) -> None:
        self.trainer = trainer

    def on_epoch_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> TrainerControl:
        """Start counting."""
        del args, state
        self.trainer.loss.take_total()
        return control

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> TrainerControl:
        """Every process decides on the same sum."""
        del state
        threshold = getattr(args, "stop_cross_entropy", None)
        also = control.should_log  # of the loss: logging something else here would take it as done
        total, batches = self.trainer.accelerator.reduce(self.trainer.loss.take_total(), reduction="sum").tolist()
        if batches:
            mean = total / batches
            self.trainer.log({"cross_entropy": round(mean, 4)})
            control.should_log = also
            if threshold is not None and mean < threshold:
                control.should_training_stop = True
        return control


class AimAtExamples(TrainerCallback):
    """Before the first step, the trainer sees where its examples lie, and the model lets go of its ensemble and its
    labels' vectors. Before each step it lets go of what an evaluation of its weights has found.
    """

    def __init__(self, trainer: LabelTrainer) -> None:
        self.trainer = trainer

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        """Model and loss are those that will be trained, and nothing has been refused."""
        model = self.trainer.model
        model.set_ensemble(None)
        model.set_labels(model.candidate_labels, **self.trainer.scoring())
        self.trainer._aim()  # noqa: SLF001

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        """The results in the card, ensemble and labels' vectors are of the weights beside them."""
        model = self.trainer.model
        model.forget_results()
        if model.ensemble is not None:
            model.ensemble = model.fitted = model._given = None  # noqa: SLF001


class QuietProgress(ProgressCallback):
    """The progress bar without the logs, which that of transformers writes to standard output."""

    def on_log(self, *_: Any, **__: Any) -> None:
        """Nothing."""


def be_quiet(trainer: Trainer) -> None:
    """Leave standard output to others: no logs, and the progress bar, where there is one, without them."""
    trainer.remove_callback(PrinterCallback)
    if trainer.pop_callback(ProgressCallback) is not None:
        trainer.add_callback(QuietProgress)
