"""Times SurpriseIndex.search against the plain cosine search of the same vectors by the same engine (docs/ranking.md).

    OMP_NUM_THREADS=2 python benchmarks/bench_search.py --documents 25000,100000 --engine exact

Plain is what people write: one float32 matrix (or `faiss.IndexFlatIP`) of unit rows, the query normalised, the
product, `topk` (or FAISS's search), numbers as lists; "to hits" adds what a search returns, id, text and metadata of
each hit. The sides are interleaved and change places each round; each has its own vectors and finds them in the cache
as a search after another one does: it is run twice in a row, and the second run counts. A ratio is the median of the
rounds' own ratios, with their middle half.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from surprise_hf import SurpriseIndex

K = 10


def filled(documents: int, dim: int, engine: str) -> tuple[SurpriseIndex, Tensor]:
    """An index of random rows that all lean one way, and 64 queries of their kind."""
    generator = torch.Generator().manual_seed(0)
    lean = torch.randn(dim, generator=generator)
    index = SurpriseIndex(engine=engine, weight=1)
    for start in range(0, documents, 20_000):
        index.add(torch.randn(min(20_000, documents - start), dim, generator=generator) + lean)
    return index, torch.randn(64, dim, generator=generator) + lean


def plain(index: SurpriseIndex) -> Callable[[Tensor], Any]:
    """The cosine search over the same vectors in float32."""
    ranker = index._corpus.ranker  # noqa: SLF001 (the same vectors)
    assert ranker is not None
    vectors = ranker.rows.whole()
    if index.engine == "faiss-flat":
        import faiss

        held = faiss.IndexFlatIP(vectors.shape[1])
        held.add(vectors.numpy())
        return lambda queries: [x.tolist() for x in held.search(normalize(queries).numpy(), K)]
    return lambda queries: [x.tolist() for x in (normalize(queries) @ vectors.T).topk(K)]


def to_hits(index: SurpriseIndex, search: Callable[[Tensor], Any]) -> Callable[[Tensor], Any]:
    """The plain search, and its numbers as records."""

    def record(cosine: float, row: int) -> dict[str, Any]:
        return {"id": index.ids[row], "cosine": cosine, "text": index.texts[row], "metadata": index.metadata[row]}

    return lambda queries: [list(map(record, *found)) for found in zip(*search(queries), strict=True)]


def measure(sides: list[Callable[[Tensor], Any]], queries: Tensor, seconds: float) -> list[list[float]]:
    """Milliseconds of each side, round by round."""
    times: list[list[float]] = [[] for _ in sides]
    begun = time.perf_counter()
    while len(times[0]) < 7 or time.perf_counter() - begun < seconds:
        first = len(times[0])
        for side in (i % len(sides) for i in range(first, first + len(sides))):
            sides[side](queries)
            start = time.perf_counter()
            sides[side](queries)
            times[side].append(1e3 * (time.perf_counter() - start))
    return times


def main() -> None:
    """One line for each number of documents and of queries."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", default="25000,100000", help="comma list of sizes")
    parser.add_argument("--queries", default="1,8,64", help="comma list of numbers searched at once")
    parser.add_argument("--dim", type=int, default=384, help="of an embedding")
    parser.add_argument("--engine", default="exact", choices=("exact", "faiss-flat"))
    parser.add_argument("--seconds", type=float, default=1.0, help="about, for each line")
    options = parser.parse_args()
    print("| documents | engine | queries | surprise, ms | plain cosine, ms | ratio (middle half) | to hits | rounds |")
    print("|---:|---|---:|---:|---:|---|---:|---:|")
    for documents in map(int, options.documents.split(",")):
        index, everything = filled(documents, options.dim, options.engine)
        index.search(everything, K)  # engines are built by the first search
        bare = plain(index)
        sides: list[Callable[[Tensor], Any]] = [partial(index.search, k=K), bare, to_hits(index, bare)]
        for count in map(int, options.queries.split(",")):
            times = measure(sides, everything[:count], options.seconds)
            low, middle, high = statistics.quantiles([a / b for a, b, _ in zip(*times, strict=True)], n=4)
            same = statistics.median([a / c for a, _, c in zip(*times, strict=True)])
            ours, theirs, _ = map(statistics.median, times)
            cells = f"{ours:.2f} | {theirs:.2f} | {middle:.2f} ({low:.2f}-{high:.2f}) | {same:.2f} | {len(times[0])}"
            print(f"| {documents:,} | {options.engine} | {count} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
