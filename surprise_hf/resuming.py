"""A training that a kill does not undo: checkpoints of what resuming needs, one at a time, at most one a minute."""

from __future__ import annotations

import json
import time
import warnings
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from sentence_transformers import SentenceTransformer
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from .jobs import NOTE, check_same, remove, write_note
from .trainer import SurpriseTrainer

__all__ = ["ResumableTrainer", "SaveNowAndThen", "begin", "last_checkpoint"]

SECONDS = 60.0  # between two checkpoints: an epoch on few examples takes less than writing one
STATE = "trainer_state.json"  # the Trainer writes it last


class ResumableTrainer(SurpriseTrainer):
    """A SurpriseTrainer whose checkpoints are for resuming alone: weights, optimizer, random state.

    Those of the base class are pipelines, for which all documents are encoded each time.
    """

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        if output_dir is None or Path(output_dir).parent != Path(str(self.args.output_dir)):
            super()._save(output_dir, state_dict)
        elif self.args.should_save:
            SentenceTransformer.save(self.model, output_dir, create_model_card=False)
            self._save_memory(output_dir)

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        """As in every Trainer, but what can't be written stops no training."""
        try:
            super()._save_checkpoint(model, trial)
        except (OSError, RuntimeError, SafetensorError) as error:
            warnings.warn(f"no checkpoint was written ({error}); the training goes on without", stacklevel=2)


class SaveNowAndThen(TrainerCallback):
    """Asks for a checkpoint after an epoch, if the last one is SECONDS old and more epochs are to come.

    Added after StopOnCrossEntropy, which may end the training with that epoch.
    """

    def __init__(self) -> None:
        self._last = time.monotonic()

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> TrainerControl:
        """Save, or not yet."""
        del args
        more = not control.should_training_stop and (state.epoch or 0) < state.num_train_epochs
        if more and time.monotonic() - self._last >= SECONDS:
            control.should_save = True
            self._last = time.monotonic()
        return control


def last_checkpoint(folder: Path) -> Path | None:
    """The last checkpoint that was written to its end."""
    found = [path for path in folder.glob("checkpoint-*") if path.name.removeprefix("checkpoint-").isdecimal()]
    for path in sorted(found, key=lambda path: -int(path.name.removeprefix("checkpoint-"))):
        try:
            json.loads((path / STATE).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        return path
    return None


def begin(folder: Path, identity: dict[str, Any]) -> Path | None:
    """Make the folder for a run's checkpoints, or find the one to go on from.

    Args:
        folder: of checkpoints.
        identity: everything that the result depends on; only an equal run can go on.

    Raises:
        ValueError: there are checkpoints of another run, or files of someone else.
    """
    found = {path.name for path in folder.iterdir()} if folder.exists() else set()
    if found and (NOTE not in found or not all(name == NOTE or name.startswith("checkpoint-") for name in found)):
        raise ValueError(f"{folder} is where checkpoints go, and holds something else: move that elsewhere")
    checkpoint = last_checkpoint(folder)
    if checkpoint is not None:
        check_same(folder, identity)
        return checkpoint
    if folder.exists():
        remove(folder)
    write_note(folder, identity)
    return None
