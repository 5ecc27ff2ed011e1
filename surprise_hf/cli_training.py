"""`surprise-hf train`: a model from the labelled documents of a table."""

from __future__ import annotations

import argparse
import importlib.util
import sys
import time
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import __version__, tables
from .arguments import (
    UsageError,
    add_command,
    add_input,
    add_label_column,
    add_model,
    add_refine,
    add_template,
    check_parent,
    input_format,
    labels_or_none,
    load_pipeline,
    model_identity,
    positive,
    rate,
    save_picture,
    say,
    seed,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from datasets import Dataset

    from .inputs import Label
    from .model import SurpriseModel
    from .tables import Source
    from .trainer import SurpriseTrainer

TRAIN = """\
Make a model that labels documents of the kind of a table's, from those of them that have a label.

The encoder is trained for some epochs on a few documents for each label (3 to 50 serve), and the model is saved with
its labels and an ensemble: `classify --model OUT` needs nothing more. With --epochs 0 nothing is trained: each label
moves from its name to part its examples from the others', which takes seconds. Documents without a label take part as
foreign to all; one with several has a list, in a file of text ['one', 'two'] or ["one", "two"].

Interrupted after its first epoch, it saves the model as far as it was trained. A run of more than a minute keeps a
checkpoint in OUT.partial, from which the same command goes on after a kill, to the same result.
"""

NOTHING = "nothing was written"

EPILOG = """\
examples:
  surprise-hf train few.csv --text-column body --label-column kind --out mail-model
  surprise-hf train few.csv --text-column body --label-column kind --documents archive.csv --refine auto \\
      --test more.csv --out mail-model
  surprise-hf classify today.csv --text-column body --model mail-model --out labelled.csv
"""


def add_train(commands: Any, common: argparse.ArgumentParser) -> None:
    """The parser of `train`."""
    parser = add_command(commands, common, "train", "make a model from a few labelled documents", TRAIN, EPILOG)
    add_input(parser)
    add_label_column(parser)
    add_model(parser)
    add_template(parser)
    parser.add_argument("--documents", metavar="FILE", help="unlabelled documents for the ensemble (default: IN)")
    parser.add_argument("--test", metavar="FILE", help="labelled documents to try the saved model on")
    parser.add_argument("--epochs", type=int, default=20, metavar="N", help="at most so many (default 20)")
    parser.add_argument("--learning-rate", type=rate, default=1e-4, metavar="X", help="default 1e-4")
    parser.add_argument("--train-batch-size", type=positive, metavar="N", help="documents in a step")
    add_refine(parser)
    parser.add_argument("--seed", type=seed, default=42, metavar="N", help="of the order of the documents (default 42)")
    parser.add_argument("--out", required=True, metavar="OUT", help="the folder to write")
    parser.set_defaults(run=train)


def train(args: argparse.Namespace) -> None:
    """Train on a table and save the model."""
    fmt = input_format(args)
    args.hint = NOTHING
    if Path(args.out).is_file():
        raise FileExistsError(f"{args.out} is a file; --out is a folder")
    check_parent(args.out)
    if args.epochs < 0:
        raise UsageError("--epochs must be 0 or more")
    with ExitStack() as stack:
        source = _read(stack, args, args.input, fmt)
        test = None if args.test is None else _read(stack, args, args.test, tables.format_of(args.test)).rows
        more, documents = None, None
        if args.documents is not None:
            more = _read(stack, args, args.documents, tables.format_of(args.documents), False)
            documents = more.rows[args.text_column]
        labels, targets = _labels(args, source.rows, test)
        started = time.perf_counter()
        if args.epochs:
            digests = [table.digest for table in (source, more) if table is not None]
            model = _train(args, source.rows, labels, test, targets, documents, digests)
        else:
            model = _fit(args, source.rows, labels, test, targets, documents)
    assert model.ensemble is not None
    assert model.candidate_labels is not None
    say(
        f"{args.out}: {len(model.candidate_labels)} labels, an ensemble of {len(model.ensemble):,} documents,"
        f" {time.perf_counter() - started:.0f} s"
    )


def _read(stack: ExitStack, args: argparse.Namespace, path: str, fmt: str | None, labelled: bool = True) -> Source:
    if fmt is None:
        raise UsageError(f"the format of {path} is unknown: name it .csv, .tsv, .jsonl or .parquet")
    source = stack.enter_context(tables.reading(path, fmt, args.text_column, exact=True))
    if labelled:
        tables.check_column(source.rows, path, args.label_column)
        source = replace(source, rows=tables.with_lists(source.rows, args.label_column, fmt))
    return source


def _labels(args: argparse.Namespace, rows: Dataset, test: Dataset | None) -> tuple[list[Label], list[list[int]]]:
    """The label set, and which of them each row of the test set has (of the table, where there is none).

    Refuses labels that are not in it: in the test set, too, before anything is trained.
    """
    from .targets import read_targets

    labels = labels_or_none(args)
    targets: list[list[int]] = []
    for path, table in ((args.input, rows), (args.test, test)):
        if table is not None:
            try:
                labels, targets = read_targets(table[args.label_column], labels, table.features[args.label_column])
            except ValueError as error:
                raise ValueError(f"{path}: {error}") from error
    assert labels is not None
    return labels, targets


def _described(args: argparse.Namespace, labels: list[Label], model: SurpriseModel) -> list[Label]:
    """Labels that the table alone names have the descriptions that the model stores of them."""
    from .inputs import described_as

    return labels if args.labels or args.labels_file else described_as(labels, model.candidate_labels)


def _train(
    args: argparse.Namespace,
    rows: Dataset,
    labels: list[Label],
    test: Dataset | None,
    targets: list[list[int]],
    documents: Any,
    digests: list[str],
) -> SurpriseModel:
    from . import resuming
    from .jobs import remove
    from .trainer_callbacks import be_quiet
    from .training_arguments import SurpriseTrainingArguments

    folder = Path(f"{args.out}.partial")
    names = ("text_column", "label_column", "prompt", "template", "epochs", "learning_rate", "train_batch_size", "seed")
    identity = {"version": __version__, "input": digests, "labels": list(map(str, labels))}
    identity["model"] = model_identity(args.model, args.out)
    checkpoint = resuming.begin(folder, identity | {name.replace("_", " "): getattr(args, name) for name in names})
    try:
        pipe = load_pipeline(args)
        if (pipe.device.index or 0) > 0:
            raise UsageError(
                f"training is done on the first GPU: choose yours by CUDA_VISIBLE_DEVICES={pipe.device.index}"
            )
        options = SurpriseTrainingArguments(
            output_dir=str(folder), save_strategy="no", save_total_limit=1, report_to="none", seed=args.seed,
            num_train_epochs=args.epochs,
            learning_rate=args.learning_rate, disable_tqdm=not sys.stderr.isatty(), use_cpu=pipe.device.type == "cpu",
            per_device_eval_batch_size=args.batch_size, text_column=args.text_column, label_column=args.label_column,
            refine=None if args.refine is None else str(args.refine),
            **({"per_device_train_batch_size": args.train_batch_size} if args.train_batch_size else {}),
        )  # fmt: skip
        if options.n_gpu > 1:
            options._n_gpu = 1  # noqa: SLF001 (a step's documents would be so many times more)
        trainer = resuming.ResumableTrainer(
            pipe.model,
            options,
            rows,
            labels=_described(args, labels, pipe.model),
            hypothesis_template=args.template,
            ensemble=documents,
        )
        be_quiet(trainer)
        trainer.add_callback(resuming.SaveNowAndThen())
        if checkpoint is not None:
            say(f"going on from {checkpoint}")
        try:
            trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
            seen = [entry["cross_entropy"] for entry in trainer.state.log_history if "cross_entropy" in entry]
            say(f"{len(seen)} epochs, mean cross-entropy {' '.join(f'{value:.2f}' for value in seen)}")
            for entry in (entry for entry in trainer.state.log_history if "self_training" in entry):
                say(f"went on for an epoch with {entry['self_training']} of the documents (self-training)")
            if test is not None:
                _try(args, trainer.model, test, targets)
        except (KeyboardInterrupt, RuntimeError):  # the latter where memory is short
            if (trainer.state.epoch or 0) >= 1:
                say(f"stopped after {trainer.state.epoch:.1f} epochs: saving the model as it is")
                _save(trainer, args.out)
                args.hint = f"{args.out} holds the model as far as it was trained"
            raise
        _save(trainer, args.out)
    except BaseException:
        if resuming.last_checkpoint(folder) is None:
            remove(folder)
        else:
            args.hint = "" if args.hint == NOTHING else args.hint
            say(f"the same command goes on from what {folder} holds")
        raise
    args.hint = f"{args.out} holds the model"
    remove(folder)
    return trainer.model


def _save(trainer: SurpriseTrainer, out: str) -> None:
    with _told(out):
        trainer.save_model(out)
    _draw(trainer, Path(out, "training.png"))


@contextmanager
def _told(out: str) -> Iterator[None]:
    """A model that could not be written leaves some of its files, which the user is told."""
    try:
        yield
    except Exception:
        say(f"{out} could not be written: what is there is no whole model")
        raise


def _draw(trainer: SurpriseTrainer, path: Path) -> None:
    """The curve of the training beside the model; without matplotlib, none."""
    if importlib.util.find_spec("matplotlib") is None:
        return
    from . import plots

    save_picture(plots.training(trainer.state.log_history, trainer.args.stop_cross_entropy), path)


def _fit(
    args: argparse.Namespace,
    rows: Dataset,
    labels: list[Label],
    test: Dataset | None,
    targets: list[list[int]],
    documents: Any,
) -> SurpriseModel:
    from .few_shot import fit_labels

    model = load_pipeline(args).model
    texts = rows[args.text_column]
    fit_labels(
        model, texts, rows[args.label_column], candidate_labels=_described(args, labels, model),
        hypothesis_template=args.template, documents=texts if documents is None else documents,
        batch_size=args.batch_size, refine=args.refine,
    )  # fmt: skip
    if test is not None:
        _try(args, model, test, targets)
    with _told(args.out):
        model.save_pretrained(args.out)
    return model


def _try(args: argparse.Namespace, model: SurpriseModel, test: Dataset, targets: list[list[int]]) -> None:
    """How right the model is as it will be saved; its card tells it too."""
    from .few_shot import judge_decisions
    from .targets import as_matrix

    assert model.candidate_labels is not None
    assert model.fitted is not None
    if not any(targets):
        return
    positive = as_matrix(targets, len(model.candidate_labels))
    emb, _ = model.embed([text or "" for text in test[args.text_column]], batch_size=args.batch_size)
    vectors = model.label_vectors(model.candidate_labels, model.hypothesis_template).to(emb.device)
    results = judge_decisions(emb, vectors, model.fitted, positive)
    for way in ("cosine", "surprise"):
        accuracy, f1 = results[f"{way}_accuracy"], results[f"{way}_f1"]
        print(f"{way:<10}accuracy {accuracy:.3f}  macro F1 {f1:.3f}")  # noqa: T201 (what the command is for)
    model.record_results("the test set", results)
