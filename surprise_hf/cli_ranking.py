"""The commands `rank` and `cluster` of `surprise-hf`."""

# ruff: noqa: T201 (the command line talks)
from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import tables
from .arguments import (
    UsageError,
    add_command,
    add_ensemble,
    add_input,
    add_model,
    add_output,
    check_output,
    check_plot,
    engine,
    labels_or_none,
    lines_of,
    load_pipeline,
    opened,
    output_format,
    positive,
    save_picture,
    say,
    seed,
    share,
    some_text,
)
from .tables import FORMATS

if TYPE_CHECKING:
    from .retrieval import Hit

TABLE = "table"  # for people; the other formats are for programs
SHOWN, SHOWN_DEFAULT = (*FORMATS, TABLE), "a table on a terminal and csv elsewhere"
WIDTH = 72  # of texts in a table

RANK = """\
Rank the documents of a table for one or more texts, by how surprising their similarity is.

The output has one row for each document found, best first: the columns of the input, and after them `query` (the text
searched for), `place`, the surprise `score` (0 to 1), its `z` in standard deviations, and the plain `cosine`.

The ensemble is the documents themselves unless --ensemble gives another. A document without text is never found.
"""

RANK_EPILOG = """\
examples:
  surprise-hf rank words.csv --text-column word --query dog
  surprise-hf rank mail.parquet --text-column body --queries-file questions.txt --k 50 --out found.parquet
"""

CLUSTER = """\
Cluster the documents of a table: k-means on their embeddings, then each document to the centroid it is the greatest
surprise for.

The output has the columns of the input, and `cluster` (a number from 0), `cluster_score` (what the assignment went by,
larger is nearer) and, with candidate names, `cluster_name` after them. A document without text gets no cluster. A
summary of the clusters goes to standard error.
"""

CLUSTER_EPILOG = """\
examples:
  surprise-hf cluster mail.csv --text-column body --clusters auto --out grouped.csv --plot groups.png
  surprise-hf cluster mail.csv --text-column body --clusters 8 --names billing,delivery,praise --out grouped.csv
"""


# --- rank --------------------------------------------------------------------------------------------------------


def add_rank(commands: Any, common: argparse.ArgumentParser) -> None:
    """The parser of `rank`."""
    parser = add_command(commands, common, "rank", "rank the documents of a table for a text", RANK, RANK_EPILOG)
    add_input(parser)
    queries = parser.add_mutually_exclusive_group(required=True)
    queries.add_argument(
        "--query", type=some_text, action="append", metavar="TEXT", help="what to search for; repeatable"
    )
    queries.add_argument("--queries-file", metavar="FILE", help="a file with one text a line")
    add_model(parser)
    parser.add_argument("--k", type=positive, default=10, metavar="K", help="documents for each text (default 10)")
    add_ensemble(parser)
    parser.add_argument(
        "--direction", choices=("documents", "questions"), default="documents",
        help="documents (default): the paper's way. questions: the cosine's order, scored against --ensemble of"
        " questions or the texts of this call",
    )  # fmt: skip
    parser.add_argument(
        "--engine", type=engine, default="exact", help="exact (default), faiss-flat, faiss-hnsw or faiss-ivf"
    )
    parser.add_argument("--min-score", type=share, default=0.0, metavar="X", help="least score, 0 to 1")
    parser.add_argument("--max-score", type=share, default=1.0, metavar="X", help="largest score, 0 to 1")
    parser.add_argument(
        "--at-least", type=some_text, metavar="TEXT", help="leave out documents less similar than this text would be"
    )
    add_output(parser, SHOWN, SHOWN_DEFAULT)
    parser.set_defaults(run=rank)


def rank(args: argparse.Namespace) -> None:
    """Rank the documents of a table."""
    out_fmt = _shown_format(args)
    check_output(args)
    if args.min_score > args.max_score:
        raise UsageError(f"--min-score {args.min_score} is above --max-score {args.max_score}: no score lies between")
    queries = args.query or lines_of(args.queries_file, "text to search for")
    names = [args.prefix + name for name in ("query", "place", "score", "z", "cosine")]
    with opened(args, out_fmt, names) as source:
        from .ensemble import Ensemble
        from .retrieval import SurpriseIndex

        ensemble = None if args.ensemble is None else Ensemble.load(args.ensemble)
        model = load_pipeline(args).model
        index = SurpriseIndex(model, ensemble, args.engine, args.direction, weight=args.surprise_weight)
        index.add(source.rows[args.text_column], batch_size=args.batch_size)
        options = {"min_score": args.min_score, "max_score": args.max_score}
        found = index.search(queries, args.k, at_least_as_similar_as=args.at_least, **options)
        if out_fmt == TABLE:
            _print_hits(queries, found)
            return
        import pyarrow as pa

        hits = [(query, place, hit) for query, some in zip(queries, found, strict=True)
                for place, hit in enumerate(some, start=1)]  # fmt: skip
        columns = [pa.array([query for query, _, _ in hits], pa.string())]
        columns.append(pa.array([place for _, place, _ in hits], pa.int64()))
        columns += [pa.array([round(getattr(hit, name), 6) for _, _, hit in hits], pa.float64())
                    for name in ("score", "z", "cosine")]  # fmt: skip
        rows = source.rows.select([int(hit.id) for _, _, hit in hits])
        _write(args, out_fmt, rows, dict(zip(names, columns, strict=True)))


def _print_hits(queries: Sequence[str], found: Sequence[Sequence[Hit]]) -> None:
    from .inputs import short

    for query, hits in zip(queries, found, strict=True):
        print(f"\n{short(query, WIDTH)}\n  score       z  cosine  document")
        for hit in hits:
            print(f"{hit.score:7.4f} {hit.z:7.2f} {hit.cosine:7.3f}  {short(hit.text or '', WIDTH)}")
        if not hits:
            print("  nothing found")


# --- cluster -----------------------------------------------------------------------------------------------------


def add_cluster(commands: Any, common: argparse.ArgumentParser) -> None:
    """The parser of `cluster`."""
    parser = add_command(commands, common, "cluster", "cluster the documents of a table", CLUSTER, CLUSTER_EPILOG)
    add_input(parser)
    parser.add_argument(
        "--clusters", required=True, type=_count, metavar="K", help="how many, or auto: the best mean silhouette"
    )
    names = parser.add_mutually_exclusive_group()
    names.add_argument("--names", dest="labels", metavar="A,B,C", help="candidate names for the clusters")
    names.add_argument("--names-file", dest="labels_file", metavar="FILE", help="a file with one candidate name a line")
    add_model(parser)
    parser.add_argument(
        "--assign", choices=("surprise", "cosine", "mixed"), default="surprise",
        help="what a document's cluster goes by (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument("--iterate", choices=("cosine", "surprise"), default="cosine", help="in the rounds of k-means")
    parser.add_argument("--balanced", action="store_true", help="clusters of nearly equal size")
    parser.add_argument("--mini-batch", type=positive, metavar="N", help="mini-batch k-means, for millions")
    parser.add_argument("--seed", type=seed, default=0, metavar="N", help="default 0")
    parser.add_argument("--plot", metavar="FILE", help="a picture of the clusters (.png, .svg or .pdf)")
    parser.add_argument("--layout", choices=("pca", "umap"), default="pca", help="of the picture (default pca)")
    add_output(parser, SHOWN, SHOWN_DEFAULT)
    parser.set_defaults(run=cluster)


def cluster(args: argparse.Namespace) -> None:
    """Cluster the documents of a table."""
    out_fmt = _shown_format(args)
    check_output(args)
    check_plot(args, args.layout)
    if args.balanced and args.assign == "mixed":
        raise UsageError("--balanced goes with --assign surprise or cosine, not mixed")
    labels = labels_or_none(args, "--names")
    candidates = None if labels is None else [str(label) for label in labels]
    names = [args.prefix + name for name in ("cluster", "cluster_score", "cluster_name")[: 3 if candidates else 2]]
    with opened(args, out_fmt, names) as source:
        at, texts = _with_text(source.rows[args.text_column])
        if args.clusters != "auto" and args.clusters > len(texts):
            raise UsageError(f"--clusters {args.clusters} is more than the {len(texts):,} documents with text")
        from .clustering import SurpriseKMeans
        from .inputs import warn_cut

        model = load_pipeline(args).model
        emb, cut = model.embed(texts, batch_size=args.batch_size, rows=at)
        warn_cut(cut, len(texts), "documents", model.max_seq_length)
        emb = emb.cpu()
        fitted = SurpriseKMeans(
            args.clusters, assign=args.assign, iterate=args.iterate, balanced=args.balanced,
            batch_size=args.mini_batch, random_state=args.seed,
        ).fit(emb)  # fmt: skip
        scores = fitted.transform(emb)[range(len(emb)), fitted.labels_]
        titles = None
        if candidates:
            titles = [str(found[0]) for found in fitted.name_clusters(candidates, model=model)]
        summary = _summary(fitted.labels_.tolist(), scores.tolist(), texts, titles)
        if out_fmt == TABLE:
            print(summary)
        else:
            print(summary, file=sys.stderr)
            columns = _cluster_columns(names, len(source.rows), at, fitted.labels_, scores, titles)
            _write(args, out_fmt, source.rows, columns)
        if args.plot:  # last: a picture that fails costs no table
            from .plots import cluster_map

            shown = titles or [str(i) for i in range(fitted.n_clusters_)]
            save_picture(cluster_map(emb, fitted.labels_.tolist(), shown, layout=args.layout), args.plot)


def _with_text(documents: Any) -> tuple[list[int], list[str]]:
    """Row numbers and texts of the documents that have text."""
    from .inputs import is_blank

    rows = [(i, text) for i, text in enumerate(documents) if not is_blank(text)]
    if not rows:
        raise ValueError("none of the documents has any text")
    return [i for i, _ in rows], [text for _, text in rows]


def _cluster_columns(
    names: Sequence[str], count: int, at: Sequence[int], labels: Any, scores: Any, titles: Sequence[str] | None
) -> dict[str, Any]:
    import pyarrow as pa

    cells: list[tuple[Any, ...]] = [(None, None, None)] * count
    for i, label, score in zip(at, labels.tolist(), scores.tolist(), strict=True):
        cells[i] = (label, round(score, 6), titles[label] if titles else None)
    kinds = (pa.int64(), pa.float64(), pa.string())
    return {name: pa.array([cell[column] for cell in cells], kinds[column]) for column, name in enumerate(names)}


def _summary(labels: list[int], scores: list[float], texts: list[str], titles: Sequence[str] | None) -> str:
    """Clusters by size, each with its name and its three most central texts."""
    from .inputs import short

    members: dict[int, list[int]] = {}
    for i, label in enumerate(labels):
        members.setdefault(label, []).append(i)
    lines = [f"{len(members)} clusters of {len(labels):,} documents"]
    for label, rows in sorted(members.items(), key=lambda item: -len(item[1])):
        lines.append(f"\n{label:>4}  {len(rows):,} documents{f': {titles[label]}' if titles else ''}")
        central = sorted(rows, key=lambda i: -scores[i])[:3]
        lines += [f"      {short(texts[i], WIDTH)}" for i in central]
    return "\n".join(lines)


# --- shared ------------------------------------------------------------------------------------------------------


def _shown_format(args: argparse.Namespace) -> str:
    if args.out is None and args.out_format is None and sys.stdout is not None and sys.stdout.isatty():
        return TABLE
    if args.out is not None and args.out_format == TABLE:
        raise UsageError("a table is for standard output: leave out --out, or choose another --out-format")
    return output_format(args)


def _write(args: argparse.Namespace, fmt: str, rows: Any, more: dict[str, Any]) -> None:
    from .jobs import Job

    out = None if args.out is None else Path(args.out)
    with Job(out, fmt, {}, resume=None) as job:
        job.append(tables.encode(rows, 0, len(rows), more, fmt))
        job.finish()
    if out is not None:
        say(f"{out}: {len(rows):,} rows")


def _count(text: str) -> int | str:
    if text != "auto" and not (text.isdecimal() and int(text)):
        raise argparse.ArgumentTypeError(f"must be 1 or more, or auto, got {text}")
    return text if text == "auto" else int(text)
