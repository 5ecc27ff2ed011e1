"""Arguments that commands of `surprise-hf` share, and what is done with them. Imports nothing heavy."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import tables
from .tables import FORMATS, STDIN

if TYPE_CHECKING:
    from .pipeline import SurpriseZeroShotPipeline

PROGRAM = "surprise-hf"
DEFAULT_MODEL = "sentence-transformers/sentence-t5-base"  # of pipeline.DEFAULT_MODEL, which costs seconds to import
READ = {  # what a command reads, by the name of the argument
    "input": "the input file",
    "labels_file": "the file of labels",
    "queries_file": "the file of queries",
    "ensemble": "the ensemble",
}
SMALL_FILE = 1 << 20  # bytes: what is larger, as weights are, is told by its size and time rather than read


class UsageError(ValueError):
    """Arguments that do not go together."""


def add_command(
    commands: Any, common: argparse.ArgumentParser, name: str, summary: str, description: str, epilog: str = ""
) -> argparse.ArgumentParser:
    """The parser of one command; `summary` stands in the list of all, the rest is shown as it is wrapped."""
    return commands.add_parser(
        name, help=summary, description=description, epilog=epilog, parents=[common],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip


def add_input(parser: argparse.ArgumentParser) -> None:
    """IN and how to read it."""
    parser.add_argument("input", metavar="IN", help="a CSV, TSV, JSONL or parquet file, or - for standard input")
    parser.add_argument("--text-column", required=True, metavar="C", help="the column that holds the documents")
    parser.add_argument("--format", choices=FORMATS, help="of IN (default: by the end of its name)")


def add_label_column(parser: argparse.ArgumentParser) -> None:
    """Where the right labels of labelled documents are, and which there are."""
    parser.add_argument("--label-column", required=True, metavar="L", help="the column that holds the labels")
    labels = parser.add_mutually_exclusive_group()
    labels.add_argument("--labels", metavar="A,B,C", help="all labels (default: those that occur)")
    labels.add_argument("--labels-file", metavar="FILE", help="a file with one label a line")


def add_model(parser: argparse.ArgumentParser) -> None:
    """The encoder and how to run it."""
    parser.add_argument(
        "--model", default=DEFAULT_MODEL, metavar="M",
        help="Hub id or folder of an encoder or of a saved SurpriseModel (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument("--prompt", metavar="TEXT", help='put before every text; E5 models need "query: "')
    parser.add_argument("--device", metavar="D", help="such as cpu or cuda:0 (default: an accelerator if there is one)")
    parser.add_argument("--batch-size", type=positive, default=32, metavar="N", help="of the encoder (default 32)")


def add_template(parser: argparse.ArgumentParser) -> None:
    """How a label becomes a text."""
    parser.add_argument(
        "--template", type=template, metavar="TEXT", help='what to embed for a label (default: "this matter is {}")'
    )


def add_ensemble(parser: argparse.ArgumentParser) -> None:
    """What similarities are compared with, and how much that counts."""
    parser.add_argument("--ensemble", metavar="FILE", help="documents to compare with, made by fit-ensemble")
    parser.add_argument(
        "--surprise-weight", type=share, metavar="W",
        help="1: surprise alone, 0: similarity alone (default: tanh(e/1000) for an ensemble of e documents)",
    )  # fmt: skip


def add_refine(parser: argparse.ArgumentParser) -> None:
    """Whether labels move to their documents."""
    parser.add_argument("--refine", type=rounds, metavar="N", help="rounds of refinement of the labels, or auto")


def add_output(parser: argparse.ArgumentParser, formats: Sequence[str], default: str) -> None:
    """OUT, of one of these formats (`default` of standard output), and how its new columns are called."""
    parser.add_argument(
        "--out", type=out_file, metavar="OUT", help="the file to write (default, or -: standard output)"
    )
    parser.add_argument(
        "--out-format", choices=formats, help=f"default: by the end of OUT; for standard output {default}"
    )
    parser.add_argument("--prefix", default="", metavar="P", help="put before the names of the new columns")


def out_file(text: str) -> str | None:
    """The name of a file, or None for standard output."""
    return None if text == STDIN else text


def some_text(text: str) -> str:
    """A text with more than white space."""
    if not text.strip():
        raise argparse.ArgumentTypeError("must be a text, and is blank")
    return text


def seed(text: str) -> int:
    """What starts NumPy's random numbers."""
    value = int(text)
    if not 0 <= value < 2**32:
        raise argparse.ArgumentTypeError(f"must be from 0 to {2**32 - 1}, got {text}")
    return value


def positive(text: str) -> int:
    """An integer, 1 or more."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be 1 or more, got {text}")
    return value


def share(text: str) -> float:
    """A number from 0 to 1."""
    value = float(text)
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"must be between 0 and 1, got {text}")
    return value


def rate(text: str) -> float:
    """A number above 0."""
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"must be a number above 0, got {text}")
    return value


def template(text: str) -> str:
    """A text with one {}."""
    from .inputs import check_template

    try:
        check_template(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return text


def engine(text: str) -> str:
    """The name of an index's engine."""
    from .engines import ENGINES

    if text not in ENGINES:
        raise argparse.ArgumentTypeError(f"must be one of {', '.join(ENGINES)}, got {text}")
    return text


def rounds(text: str) -> int | str:
    """A number of rounds, or "auto"."""
    if text != "auto" and not text.isdecimal():
        raise argparse.ArgumentTypeError(f"must be a number of rounds or auto, got {text}")
    return text if text == "auto" else int(text)


def input_format(args: argparse.Namespace) -> str:
    """Format of IN, given or by its name."""
    fmt = args.format or tables.format_of(args.input)
    if fmt is None:
        what = "standard input" if args.input == STDIN else args.input
        raise UsageError(f"the format of {what} is unknown: give --format {'|'.join(FORMATS)}")
    return fmt


def output_format(args: argparse.Namespace) -> str:
    """Format of OUT, given or by its name; csv for standard output."""
    if args.out is None and sys.stdout is None:
        raise ValueError("standard output is closed: give --out FILE")
    fmt = args.out_format or ("csv" if args.out is None else tables.format_of(args.out))
    if fmt is None:
        raise UsageError(f"the format of {args.out} is unknown: give --out-format {'|'.join(FORMATS)}")
    return fmt


def check_parent(out: str, option: str = "--out") -> None:
    """Refuse an output in a folder that is not there, or where nothing can be written."""
    if out == STDIN:
        raise UsageError(f"{option} - is no file, and this is not for standard output: give a name")
    if not Path(out).absolute().parent.is_dir():
        raise FileNotFoundError(f"no such folder: {Path(out).parent}")
    target = Path(out).resolve()  # of a link
    folder = target if target.is_dir() else target.parent
    try:
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise OSError(f"{option} {out}: nothing can be written in {folder} ({error.strerror})") from error


def check_output(args: argparse.Namespace, name: str = "out") -> None:
    """Refuse an output file that could not be written, or whose writing would lose a file that is read."""
    out, option = getattr(args, name), f"--{name}"
    if out is None:
        return
    check_parent(out, option)
    if not Path(out).exists():
        return
    if Path(out).is_dir():
        raise IsADirectoryError(f"{out} is a folder")
    if not Path(out).is_file():
        raise UsageError(f"{option} {out} is a device or pipe, and what is there is replaced: give the name of a file")
    for source, what in READ.items():
        path = getattr(args, source, None)
        if path is not None and path != STDIN and Path(path).exists() and Path(out).samefile(path):
            raise UsageError(f"{option} is {what} itself, which would be lost")
    Path(out).open("ab").close()  # or it is write-protected, which is told


def check_plot(args: argparse.Namespace, layout: str = "pca") -> None:
    """Refuse a picture that could not be drawn or written."""
    check_output(args, "plot")
    if args.plot is not None:
        from .plots import check_picture

        if args.out is not None and Path(args.out).resolve() == Path(args.plot).resolve():
            raise UsageError(f"--plot and --out are both {args.plot}, of which one would be lost")
        try:
            check_picture(args.plot, layout)
        except ValueError as error:
            raise UsageError(f"--plot {error}") from error


def check_free(names: Sequence[str], rows: Any) -> None:
    """Refuse new columns whose names are taken."""
    taken = [name for name in names if name in rows.column_names]
    if taken:
        raise UsageError(f"the input has a column {taken[0]!r} already: rename the new ones, as by --prefix predicted_")


@contextmanager
def opened(args: argparse.Namespace, out_fmt: str, names: Sequence[str]) -> Iterator[tables.Source]:
    """IN, for a command that gives its columns back with new ones of these names.

    Refuses what needs no model to be refused: one takes seconds to load.
    """
    exact = out_fmt not in tables.TYPED
    with tables.reading(args.input, input_format(args), args.text_column, exact=exact) as source:
        check_free(names, source.rows)
        yield source


def lines_of(path: str, what: str) -> list[str]:
    """The lines of a file of text but for blank ones; each is a `what`.

    Raises:
        ValueError: it is not UTF-8, or has none.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 ({error}); convert it, for example with iconv") from error
    kept = [line for line in lines if line.strip()]
    if not kept:
        raise ValueError(f"{path} holds no {what}")
    return kept


def labels_or_none(args: argparse.Namespace, option: str = "--labels") -> list[Any] | None:
    """The labels as given, checked; None where none are given. `option` is what the command calls them."""
    from .inputs import as_labels

    if args.labels is None:
        return None if args.labels_file is None else as_labels(lines_of(args.labels_file, "label"))
    try:
        return as_labels(args.labels)
    except ValueError as error:
        raise UsageError(f"{option}: {error}") from error


def model_identity(model: str, out: str | None) -> Any:
    """What tells the model of a run that can be resumed: its name, and for a folder what is in it.

    `out`, what the run itself writes, does not count, nor do hidden files: caches, version control.
    """
    folder = Path(model).resolve()
    if out is None or not folder.is_dir():
        return model
    own = {Path(out).resolve(), Path(f"{out}.partial").resolve()}
    files: dict[str, Any] = {}
    for path in folder.rglob("*"):
        name = path.relative_to(folder)
        if path.is_file() and own.isdisjoint({path, *path.parents}) and not any(p.startswith(".") for p in name.parts):
            found = path.stat()
            is_small = found.st_size <= SMALL_FILE
            files[name.as_posix()] = tables.digest(path) if is_small else [found.st_size, found.st_mtime_ns]
    return [model, files]


def load_pipeline(args: argparse.Namespace) -> SurpriseZeroShotPipeline:
    """The model as a pipeline, with its prompt, progress bars as the terminal wants them."""
    from transformers.utils import logging

    if not sys.stderr.isatty():
        logging.disable_progress_bar()
    logging.set_verbosity_error()
    if args.device is not None:
        import torch

        try:
            torch.empty(0, device=args.device)
        except (RuntimeError, AssertionError) as error:  # the latter where torch was built without it
            raise UsageError(f"--device {args.device} can't be used: {str(error).splitlines()[0]}") from error
    from .model import SurpriseModel
    from .pipeline import SurpriseZeroShotPipeline

    try:
        model = SurpriseModel.from_pretrained(args.model, device=args.device)
    except (OSError, ValueError, RuntimeError) as error:
        message = str(error).removeprefix(f"{args.model}: ")
        raise ValueError(f"can't load the model {args.model}: {message}") from error
    # the pipeline would move it to the first accelerator
    return SurpriseZeroShotPipeline(model, device=model.device, prompt=args.prompt)


def save_picture(figure: Any, path: str | Path) -> None:
    """Write a figure, and free its memory, which pyplot keeps."""
    from matplotlib import pyplot as plt

    figure.savefig(path)
    plt.close(figure)


def say(message: str) -> None:
    """A message to standard error."""
    print(f"{PROGRAM}: {' '.join(message.split())}", file=sys.stderr)  # noqa: T201 (the command line talks)
