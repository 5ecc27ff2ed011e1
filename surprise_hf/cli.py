"""The command `surprise-hf`. A subcommand is one function that adds its parser and one that runs it.

Everything heavy is imported where a command needs it: `surprise-hf --help` imports neither torch nor transformers.
"""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import __version__, tables
from .arguments import (
    PROGRAM,
    UsageError,
    add_command,
    add_ensemble,
    add_input,
    add_model,
    add_output,
    add_refine,
    add_template,
    check_free,
    check_output,
    input_format,
    labels_or_none,
    load_pipeline,
    model_identity,
    opened,
    output_format,
    positive,
    say,
    share,
)
from .cli_compare import add_compare
from .cli_ranking import add_cluster, add_rank
from .cli_training import add_train
from .tables import FORMATS

if TYPE_CHECKING:
    from torch import Tensor

    from .jobs import ChunkFile, Job
    from .pipeline import SurpriseZeroShotPipeline

CHUNK = 16  # batches: what an interruption loses at most; sorting by length needs some to choose from

EPILOG = """\
examples:
  surprise-hf classify mail.csv --text-column body --labels billing,delivery,praise --out labelled.csv
  surprise-hf rank words.csv --text-column word --query dog
  surprise-hf cluster mail.csv --text-column body --clusters auto --out grouped.csv --plot groups.png
  surprise-hf train few.csv --text-column body --label-column kind --out mail-model
  surprise-hf compare checked.csv --text-column body --label-column kind --plot compare.png
  surprise-hf fit-ensemble archive.parquet --text-column body --out mail.safetensors
  surprise-hf classify today.jsonl --text-column body --labels-file labels.txt --ensemble mail.safetensors

exit status: 0 done, 1 a problem with the input or the model, 2 wrong arguments, 130 interrupted,
141 standard output was closed, 143 terminated.
"""

CLASSIFY = """\
Give each document of a table the label that fits it best, without training.

The output has the columns of the input, and `label` and `score` (0 to 1) after them; with --top-k also `label_2`,
`score_2` and so on. A document without text keeps its row and gets no label.

A score tells how far a document stands out from an ensemble of documents. Without --ensemble (and without one stored
in the model), these are the documents of IN: all of them are embedded first, and scored when the last one is. With an
ensemble each row is scored as it comes, and gets the same score whatever stands beside it.
"""

RESUME = """\
interrupted runs:
  Every finished chunk (16 batches) is kept: in OUT (the first one replaces what was there), or for parquet in
  OUT.partial until the end. The folder OUT.partial also holds the embeddings where the documents of IN are the
  ensemble, since no score is known before the last document is embedded. The same command with --resume goes on after
  the last finished chunk and, on the same machine, ends with the same bytes as a run without interruption. It refuses
  to go on with other arguments, another input or another model. An OUT without OUT.partial is complete: --resume leaves
  it as it is, whatever the arguments.

examples:
  surprise-hf classify mail.csv --text-column body --labels billing,delivery,praise --out labelled.csv
  surprise-hf classify mail.csv --text-column body --labels-file labels.txt --model intfloat/multilingual-e5-small \\
      --prompt "query: " --top-k 3 --out labelled.parquet
  zcat mail.jsonl.gz | surprise-hf classify - --format jsonl --text-column body --labels spam,ham | head
"""

FIT_ENSEMBLE = """\
Read documents of the usual kind once and keep what `classify --ensemble` needs to know of them (some MB, whatever
their number). Labels are not needed yet. Use the same model and prompt in both.
"""


# --- classify ----------------------------------------------------------------------------------------------------


def add_classify(commands: Any, common: argparse.ArgumentParser) -> None:
    """The parser of `classify`."""
    parser = add_command(commands, common, "classify", "label the documents of a table", CLASSIFY, RESUME)
    add_input(parser)
    labels = parser.add_mutually_exclusive_group()
    labels.add_argument("--labels", metavar="A,B,C", help="the labels, separated by commas")
    labels.add_argument("--labels-file", metavar="FILE", help="a file with one label a line (commas may be part of it)")
    add_model(parser)
    add_ensemble(parser)
    add_template(parser)
    parser.add_argument("--multi-label", action="store_true", help="judge each label by itself and list all of them")
    parser.add_argument(
        "--threshold",
        type=share,
        metavar="X",
        help="1 - the chance of a label for a document of none, 0 to 1; with --multi-label the least score listed",
    )
    parser.add_argument("--top-k", type=positive, metavar="K", help="labels to list (default 1; all for multi-label)")
    parser.add_argument(
        "--estimator", choices=("gaussian", "quantile", "empirical", "tail", "auto"),
        help="default: gaussian; auto with --threshold",
    )  # fmt: skip
    add_refine(parser)
    add_output(parser, FORMATS, "csv")
    parser.add_argument("--resume", action="store_true", help="go on with an interrupted run (see below)")
    parser.set_defaults(run=classify)


def classify(args: argparse.Namespace) -> None:
    """Label the documents of a table."""
    fmt, out_fmt = input_format(args), output_format(args)
    out = None if args.out is None else Path(args.out)
    if args.resume and out is None:
        raise UsageError("--resume needs --out")
    if out is not None and args.resume and out.is_file() and not Path(f"{out}.partial").exists():
        say(f"{out} is complete, and left as it is whatever the arguments: remove it for a new one")
        return
    check_output(args)
    labels = labels_or_none(args)
    scoring = {
        "candidate_labels": labels,
        "hypothesis_template": args.template,
        "multi_label": args.multi_label,
        "threshold": args.threshold,
        "top_k": args.top_k,
        "ensemble": args.ensemble,
        "surprise_weight": args.surprise_weight,
        "estimator": args.estimator,
        "refine": args.refine,
    }
    scoring = {name: value for name, value in scoring.items() if value is not None}
    with opened(args, out_fmt, tables.result_names(args.top_k or 1, args.prefix)) as source:
        run = _Classifier(load_pipeline(args), scoring, args, source.rows)
        from .jobs import Job

        identity = {
            "version": __version__,
            "input": source.digest,
            "format": [fmt, out_fmt],
            "text column": args.text_column,
            "model": model_identity(args.model, args.out),
            "prompt": args.prompt,
            **{name.replace("_", " "): value for name, value in scoring.items()},
            "ensemble": tables.digest(Path(args.ensemble)) if args.ensemble else None,
            "columns": run.names,
            "batch size": args.batch_size,
        }
        with Job(out, out_fmt, identity, args.resume) as job:
            args.hint = "what is finished is kept" if out else "a run with --out FILE can be resumed"
            args.resumable = out is not None
            run.write(job, out_fmt)
            job.finish()


class _Classifier:
    """Labels the rows of one table, a chunk at a time."""

    def __init__(
        self, pipe: SurpriseZeroShotPipeline, scoring: dict[str, Any], args: argparse.Namespace, rows: Any
    ) -> None:
        self.model, self.rows, self.column, self.batch_size = pipe.model, rows, args.text_column, args.batch_size
        if "candidate_labels" not in scoring and pipe.model.candidate_labels is None:
            raise UsageError("no labels: give --labels a,b,c or --labels-file FILE (the model has none stored)")
        self.scorer = pipe.scorer(batch_size=args.batch_size, **scoring)
        count = len(self.scorer.labels)
        self.scorer.top_k = min(args.top_k or (count if args.multi_label else 1), count)
        self.names = tables.result_names(self.scorer.top_k, args.prefix)
        check_free(self.names, rows)
        self._cut = self._embedded = 0

    def write(self, job: Job, fmt: str) -> None:
        """Everything that is not yet written."""
        from .inputs import warn_cut

        kept = job.chunk_file("embeddings") if self.scorer.context is None else None
        if kept is not None:
            for _, start, stop in self._chunks(len(kept.ends), "Embedding"):
                kept.append(self._embed(start, stop)[1].cpu().numpy().tobytes())
            self._use_own_documents(kept)
        elif self.scorer.context is not None and not self.scorer.is_stored:
            self._settle_weight(len(self.scorer.context))
        for index, start, stop in self._chunks(job.done, "Labelling"):
            if kept is None:
                at, emb = self._embed(start, stop)
            else:
                at, emb = [i for i, _ in self._texts(start, stop)], self._embeddings(kept, index, index + 1)
            found = dict(zip(at, self.scorer.score(emb), strict=True))
            more = tables.result_columns(found, stop - start, self.names)
            job.append(tables.encode(self.rows, start, stop, more, fmt))
        warn_cut(self._cut, self._embedded, "documents", self.model.max_seq_length)

    def _chunks(self, done: int, what: str) -> Iterator[tuple[int, int, int]]:
        """Number, first row and end of every chunk after those done, with a progress bar."""
        from tqdm import tqdm

        size, total = CHUNK * self.batch_size, len(self.rows)
        first = min(done * size, total)
        with tqdm(total=total, initial=first, desc=what, unit="doc", disable=not sys.stderr.isatty()) as bar:
            for start in range(first, total, size):
                stop = min(start + size, total)
                yield start // size, start, stop
                bar.update(stop - start)

    def _texts(self, start: int, stop: int) -> list[tuple[int, str]]:
        """The rows of a chunk that have text, numbered from its start."""
        from .inputs import is_blank

        return [(i, text) for i, text in enumerate(self.rows[self.column][start:stop]) if not is_blank(text)]

    def _embed(self, start: int, stop: int) -> tuple[list[int], Tensor]:
        found = self._texts(start, stop)
        emb, cut = self.model.embed(
            [text for _, text in found],
            batch_size=self.batch_size,
            show_progress_bar=False,
            rows=[start + i for i, _ in found],
        )
        self._cut, self._embedded = self._cut + cut, self._embedded + len(found)
        return [i for i, _ in found], emb

    def _embeddings(self, kept: ChunkFile, first: int, stop: int) -> Tensor:
        """Embeddings of chunks first ... stop - 1, (n, d) float32, mapped from the file rather than read."""
        import torch

        width, ends = self.model.dim, [0, *kept.ends]
        if not ends[-1]:
            return torch.empty(0, width, dtype=torch.float32)
        numbers = torch.from_file(str(kept.path), shared=False, size=ends[-1] // 4, dtype=torch.float32)
        everything = numbers.view(-1, width)
        return everything[ends[first] // 4 // width : ends[stop] // 4 // width]

    def _use_own_documents(self, kept: ChunkFile) -> None:
        """Make the documents of the table the ensemble, exactly as one call of the pipeline would."""
        self.scorer.context = self._embeddings(kept, 0, len(kept.ends))
        self._settle_weight(len(self.scorer.context))

    def _settle_weight(self, documents: int) -> None:
        """The default weight for so many documents, and a word where it is small: in the words of this command."""
        from .fitted import SMALL_WEIGHT, crossover_weight

        options = self.scorer.all_options
        if "weight" in options:
            return
        weight = self.scorer.options["weight"] = crossover_weight(documents, None, options.get("n_cross", 1000))
        if weight < SMALL_WEIGHT:
            say(
                f"note: the ensemble has {documents:,} documents, so surprise has the weight {weight:.3f} and plain"
                " similarity the rest; a larger --ensemble, or --surprise-weight 1, changes that"
            )


# --- fit-ensemble ------------------------------------------------------------------------------------------------


def add_fit_ensemble(commands: Any, common: argparse.ArgumentParser) -> None:
    """The parser of `fit-ensemble`."""
    summary = "make an ensemble of the documents of a table"
    parser = add_command(commands, common, "fit-ensemble", summary, FIT_ENSEMBLE)
    add_input(parser)
    add_model(parser)
    parser.add_argument("--out", required=True, metavar="E", help="the file to write, such as mail.safetensors")
    parser.set_defaults(run=fit_ensemble)


def fit_ensemble(args: argparse.Namespace) -> None:
    """Write the ensemble of a table's documents."""
    fmt = input_format(args)
    args.hint = "nothing was written"
    check_output(args)
    with tables.reading(args.input, fmt, args.text_column, exact=True) as source:
        model = load_pipeline(args).model
        model.fit_ensemble(source.rows[args.text_column], batch_size=args.batch_size)
    assert model.ensemble is not None
    model.ensemble.save(args.out)
    say(f"{args.out}: {len(model.ensemble):,} documents, {model.dim} dimensions")


# --- info --------------------------------------------------------------------------------------------------------


def add_info(commands: Any, common: argparse.ArgumentParser) -> None:
    """The parser of `info`."""
    summary = "show versions, the compiled op and the devices"
    add_command(commands, common, "info", summary, f"{summary.capitalize()}.").set_defaults(run=info)


def info(_: argparse.Namespace) -> None:
    """Print what is installed."""
    import platform
    from importlib.metadata import version

    import torch

    from .ops import build_info

    lines = {"surprise_hf": __version__, "python": f"{platform.python_version()} ({platform.machine()})"}
    lines |= {name: version(name) for name in ("torch", "transformers", "sentence-transformers", "datasets")}
    op = build_info()
    lines["op"] = str(op["implementation"])
    lines["op, CPU"] = op["cpu_library"] or f"absent: {op['cpu_reason']}"
    lines["op, CUDA"] = op["cuda_library"] or f"absent: {op['cuda_reason']}"
    lines["CPU features"] = str(op["cpu_features"])
    lines["threads"] = str(torch.get_num_threads())
    devices = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    lines["CUDA devices"] = ", ".join(devices) or "none"
    for name, value in lines.items():
        print(f"{name:<22}{value}")


# --- the command -------------------------------------------------------------------------------------------------

COMMANDS: tuple[Callable[[Any, argparse.ArgumentParser], None], ...] = (
    add_classify,
    add_rank,
    add_cluster,
    add_fit_ensemble,
    add_train,
    add_compare,
    add_info,
)


def build_parser() -> argparse.ArgumentParser:
    """The parser of everything."""
    parser = argparse.ArgumentParser(
        PROGRAM,
        description="Zero-shot labels, ranking and clusters by the surprise score of text embeddings.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"{PROGRAM} {__version__}")
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--debug", action="store_true", help="show where an error comes from")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for add in COMMANDS:
        add(commands, common)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        argv: arguments; those of the process by default.

    Returns:
        the exit status: 0 done, 1 a problem with the input, 2 arguments that do not go together, 130 interrupted,
        141 standard output was closed, 143 terminated. Arguments that can't be read raise SystemExit(2).
    """
    argv = sys.argv[1:] if argv is None else list(argv)
    args = build_parser().parse_args(argv)
    args.hint, args.resumable = "", False
    again = shlex.join([PROGRAM, *argv, *(() if "--resume" in argv else ("--resume",))])
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_, **__: say(f"warning: {message}")
        try:
            with _ending_when_terminated():
                args.run(args)
        except (KeyboardInterrupt, _Terminated) as stop:
            word, code = ("terminated", 143) if isinstance(stop, _Terminated) else ("interrupted", 130)
            say("; ".join(filter(None, (word, args.hint, args.resumable and f"go on with: {again}"))))
            return code
        except BrokenPipeError:  # the reader of standard output has seen enough, as `head` does
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 141
        except Exception as error:
            if args.debug:
                raise
            known = isinstance(error, (ValueError, OSError))
            say(f"error: {error}" if known else f"error: {type(error).__name__}: {error} (--debug shows where)")
            if args.resumable:
                say(f"{args.hint}; go on with: {again}")
            return 2 if isinstance(error, UsageError) else 1
    return 0


class _Terminated(SystemExit):
    """SIGTERM came."""


@contextmanager
def _ending_when_terminated() -> Iterator[None]:
    """SIGTERM as an exception, so that temporary folders are removed; a handler of the caller's stays."""

    def stop(*_: object) -> None:
        raise _Terminated(143)

    in_main = threading.current_thread() is threading.main_thread()
    if not in_main or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


if __name__ == "__main__":
    sys.exit(main())
