"""`surprise-hf compare`: which method suits the documents of a table, judged on those that have a label."""

# ruff: noqa: T201 (the command line talks)
from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import tables
from .arguments import (
    UsageError,
    add_command,
    add_input,
    add_label_column,
    add_model,
    add_template,
    check_output,
    check_plot,
    input_format,
    labels_or_none,
    load_pipeline,
    save_picture,
    seed,
)

if TYPE_CHECKING:
    from .comparison import Comparison

COMPARE = """\
Try plain cosine, surprise and refined labels on documents whose labels are known, and say which to use.

Accuracy and macro F1 come with 95 % intervals; `gain` is the accuracy over plain cosine on the same documents. The
ensemble is the documents of IN. With --shots K, K documents of each label are given away as examples to
`pipe.fit_labels`, and to SetFit where it is installed; the other documents are the test of every method.
"""

EPILOG = """\
examples:
  surprise-hf compare checked.csv --text-column body --label-column kind
  surprise-hf compare checked.csv --text-column body --label-column kind --shots 8 --plot compare.png --out compare.json
"""


def add_compare(commands: Any, common: argparse.ArgumentParser) -> None:
    """The parser of `compare`."""
    parser = add_command(commands, common, "compare", "find the method that suits your documents", COMPARE, EPILOG)
    add_input(parser)
    add_label_column(parser)
    add_model(parser)
    add_template(parser)
    parser.add_argument("--shots", type=int, default=0, metavar="K", help="documents of each label to learn from")
    parser.add_argument("--seed", type=seed, default=0, metavar="N", help="of their choice (default 0)")
    parser.add_argument("--out", metavar="OUT", help="a JSON file with the numbers")
    parser.add_argument("--plot", metavar="PNG", help="a picture of them")
    parser.set_defaults(run=compare)


def compare(args: argparse.Namespace) -> None:
    """Try the methods on the labelled documents of a table."""
    fmt = input_format(args)
    check_output(args)
    check_plot(args)
    if args.shots < 0:
        raise UsageError("--shots must be 0 or more")
    from .inputs import is_blank
    from .targets import as_matrix, read_targets

    with tables.reading(args.input, fmt, args.text_column, exact=True) as source:
        tables.check_column(source.rows, args.input, args.label_column)
        rows = tables.with_lists(source.rows, args.label_column, fmt)
        texts, column, feature = rows[args.text_column], rows[args.label_column], rows.features[args.label_column]
        kept = [i for i, text in enumerate(texts) if not is_blank(text)]
        texts, column = [texts[i] for i in kept], [column[i] for i in kept]
    labels, targets = read_targets(column, labels_or_none(args), feature)
    positive = as_matrix(targets, len(labels))
    from . import comparison

    _, tested = comparison.split(positive, args.shots, args.seed)
    if not bool(positive[tested].any()):
        raise ValueError("no document with text has a label: there is nothing to compare with")
    model = load_pipeline(args).model
    found = comparison.predictions(
        model, texts, labels, positive, template=args.template, shots=args.shots, seed=args.seed,
        batch_size=args.batch_size,
    )  # fmt: skip
    result = None
    try:
        for result in comparison.comparisons(found, labels, positive[tested]):
            _write(args, result)
    finally:
        if result is not None:  # SetFit takes minutes and may fail: what is known by then is kept and shown
            _show(result)


def _write(args: argparse.Namespace, result: Comparison) -> None:
    if args.out is not None:
        advised, advice = _advice(result)
        known = {"documents": result.documents, "labels": list(result.labels), "model": args.model}
        text = json.dumps({**known, "methods": result.rows(), "advised": advised, "advice": advice})
        Path(args.out).write_text(text + "\n", encoding="utf-8")
    if args.plot is not None:
        from . import plots

        save_picture(plots.comparison(result), args.plot)


def _show(result: Comparison) -> None:
    print(f"{result.documents:,} documents, {len(result.labels)} labels, in percent, 95 % intervals")
    print(f"{'':<10}{'accuracy':>24}{'macro F1':>24}{'gain':>27}{'seconds':>10}")
    for i, method in enumerate(result.methods):
        cells = [_cell(result.accuracy[i]), _cell(result.f1[i]), _cell(result.gain[i], "+") if i else ""]
        print(f"{method:<10}{cells[0]:>24}{cells[1]:>24}{cells[2]:>27}{result.seconds[i]:>10.1f}")
    print(_advice(result)[1])


def _advice(result: Comparison) -> tuple[str | None, str]:
    """The method to use and one sentence, once every zero-shot method was tried."""
    from .comparison import METHODS

    left = [method for method in METHODS if method not in result.methods]
    if left:
        return None, f"No advice: only {' and '.join(result.methods)} ran, {' and '.join(left)} did not."
    return result.advised, result.advice


def _cell(values: Any, sign: str = "") -> str:
    value, low, high = (100 * values).tolist()
    return f"{value:{sign}.1f} ({low:{sign}.1f} to {high:{sign}.1f})"
