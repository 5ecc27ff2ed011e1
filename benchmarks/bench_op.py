"""Times the op against what people would run instead: `make bench`, or python benchmarks/bench_op.py --quick.

One process, all sides interleaved round by round, median and the middle half of the rounds (25 % to 75 %). Each side is
called twice in a row and timed the second time, and the sides change places: after a side with large intermediates, as
the eager formula, the keys have left the cache, and whoever came next would pay for that. A row of the CSV is one side
on one shape, in milliseconds, with the machine it ran on; the ratios between sides are printed only. Look at the load
printed first: another busy process on the same cores ruins every number.
"""

from __future__ import annotations

import argparse
import csv
import math
import os
import platform
import re
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from checkout import head_commit
from tqdm import tqdm

from surprise_hf import Ensemble, ops


def eager(keys: torch.Tensor, queries: torch.Tensor) -> torch.Tensor:
    """The formula as written in plain torch."""
    k = torch.nn.functional.normalize(keys, dim=1)
    q = torch.nn.functional.normalize(queries, dim=1)
    psi = k @ q.T
    return 0.5 * (1 + torch.erf((psi - psi.mean(0)) / (psi.std(0, correction=0) * math.sqrt(2))))


def peer(keys: torch.Tensor, queries: torch.Tensor) -> torch.Tensor:
    """The same as its users write it: cosine matrix from sentence-transformers, then numpy and scipy."""
    import scipy.special
    from sentence_transformers import util

    psi = util.cos_sim(keys, queries).numpy()
    return torch.from_numpy(0.5 * (1 + scipy.special.erf((psi - psi.mean(0)) / (psi.std(0) * math.sqrt(2)))))


def sides_of(n: int, m: int, d: int, dtype: torch.dtype, heavy: bool) -> dict[str, Callable[[], object]]:
    """What is timed on one shape; `heavy` adds the slow comparisons."""
    from sentence_transformers import util

    generator = torch.Generator().manual_seed(0)
    keys = torch.randn(n, d, generator=generator).to(dtype)
    queries = torch.randn(m, d, generator=generator).to(dtype)
    mean, std = ops.cosine_moments(keys, queries)
    sides: dict[str, Callable[[], object]] = {
        "read": keys.sum,
        "product": lambda: keys @ queries.T,
        "cosine_surprise": lambda: ops.cosine_surprise(keys, queries),
        "cosine_moments": lambda: ops.cosine_moments(keys, queries),
        "from_moments": lambda: ops.surprise_from_moments(keys, queries, mean, std),
        "topk": lambda: ops.surprise_topk(keys, queries, mean, std, 1),
    }
    if dtype != torch.float32:
        wide_keys, wide_queries = keys.float(), queries.float()
        sides["float32"] = lambda: ops.cosine_surprise(wide_keys, wide_queries)
    if heavy:
        torch.compiler.reset()  # or after eight shapes it would run uncompiled
        compiled = torch.compile(eager, dynamic=False)
        compiled(keys, queries)
        sides |= {
            "eager": lambda: eager(keys, queries),
            "compile": lambda: compiled(keys, queries),
            "cos_sim": lambda: util.cos_sim(keys, queries),
        }
        if dtype == torch.float32:
            sides["peer"] = lambda: peer(keys, queries)
    return sides


def ensemble_sides(n: int, d: int) -> dict[str, Callable[[], object]]:
    batch = torch.randn(n, d, generator=torch.Generator().manual_seed(0))
    return {
        "product": lambda: batch.T @ batch,
        "update_fast": lambda: Ensemble(d, reservoir=0).update(batch),
        "update_exact": lambda: Ensemble(d, reservoir=0).update(batch, precision="exact"),
    }


def ranking_sides(n: int, d: int) -> dict[str, Callable[[], object]]:
    """sigma of n documents as queries against themselves: one matrix of d x d against the n x n way."""
    x = torch.randn(n, d, generator=torch.Generator().manual_seed(0))

    def by_matrix() -> object:
        ensemble = Ensemble(d, reservoir=0)
        ensemble.update(x)
        return ensemble.moments(x)

    def by_pairs() -> object:
        unit = torch.nn.functional.normalize(x, dim=1)
        moments = [(psi.mean(1), psi.std(1, correction=0)) for psi in (part @ unit.T for part in unit.split(1024))]
        return [torch.cat(part) for part in zip(*moments, strict=True)]

    return {"by_matrix": by_matrix, "by_pairs": by_pairs}


def overhead_sides() -> dict[str, Callable[[], object]]:
    keys, queries = torch.randn(4, 4), torch.randn(4, 4)
    leaf = keys.clone().requires_grad_()
    op = torch.ops.surprise_hf.cosine_surprise

    def repeat(call: Callable[[], object]) -> Callable[[], None]:
        def run() -> None:
            for _ in range(1000):  # so that milliseconds read as microseconds a call
                call()

        return run

    return {
        "op": repeat(lambda: op(keys, queries)),
        "public": repeat(lambda: ops.cosine_surprise(keys, queries)),
        "with_grad": repeat(lambda: ops.cosine_surprise(leaf, queries)),
    }


def measure(sides: dict[str, Callable[[], object]], rounds: int) -> dict[str, tuple[float, float, float]]:
    """Median, 25 % and 75 % in milliseconds of each side, rounds interleaved."""
    times: dict[str, list[float]] = {name: [] for name in sides}
    names = list(sides)
    for i in range(rounds):
        for name in names[i % len(names) :] + names[: i % len(names)]:
            sides[name]()
            start = time.perf_counter()
            sides[name]()
            times[name].append((time.perf_counter() - start) * 1e3)
    result = {}
    for name, values in times.items():
        quarter = statistics.quantiles(values, n=4)
        result[name] = (statistics.median(values), quarter[0], quarter[2])
    return result


RATIOS = {
    "surprise/product": ("cosine_surprise", "product"),
    "surprise/read": ("cosine_surprise", "read"),
    "topk/product": ("topk", "product"),
    "surprise/float32": ("cosine_surprise", "float32"),
    "eager/surprise": ("eager", "cosine_surprise"),
    "compile/surprise": ("compile", "cosine_surprise"),
    "peer/surprise": ("peer", "cosine_surprise"),
    "fast/product": ("update_fast", "product"),
    "exact/product": ("update_exact", "product"),
    "pairs/matrix": ("by_pairs", "by_matrix"),
}


def machine() -> dict[str, str]:
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [
            line.split(":")[1].strip() for line in cpuinfo.read_text().splitlines() if line.startswith("model name")
        ]
        model = names[0] if names else model
    return {
        "cpu": model,
        "features": ops.build_info()["cpu_features"] or "",
        "threads": str(torch.get_num_threads()),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "commit": head_commit(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9, help="timed rounds of each shape")
    parser.add_argument("--quick", action="store_true", help="three shapes and the small parts only")
    parser.add_argument("--only", default="", help="regular expression: shapes whose name it matches")
    parser.add_argument("--heavy", action="store_true", help="also eager, torch.compile, cos_sim and the numpy formula")
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16", "float16"])
    parser.add_argument("--threads", type=int, help="torch threads (default: torch's own)")
    parser.add_argument(
        "--out", type=Path, default=Path("out/bench_op.csv"), help="CSV, one row a side of each shape, appended"
    )
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    dtype = getattr(torch, options.dtype)
    where = machine()
    print("load", os.getloadavg(), where, file=sys.stderr)

    widths = (384, 768, 1024)
    shapes = [(60_000, m, d) for d in widths for m in (1, 4, 10, 14, 31, 77, 150, 1000)]
    shapes += [(8_000, 8_000, 768), (1_000_000, 10, 384)]
    if options.quick:
        shapes = [(60_000, 10, 384), (60_000, 31, 768), (60_000, 150, 768)]
    jobs: list[tuple[str, Callable[[], dict[str, Callable[[], object]]]]] = [
        (f"{n}x{d} by {m}", lambda n=n, m=m, d=d: sides_of(n, m, d, dtype, options.heavy))  # type: ignore[misc]
        for n, m, d in shapes
    ]
    jobs.append(("call 4x4", overhead_sides))
    for d in (384, 768):
        jobs.append((f"ensemble 60000x{d}", lambda d=d: ensemble_sides(60_000, d)))  # type: ignore[misc]
        jobs.append((f"ranking 25474x{d}", lambda d=d: ranking_sides(25_474, d)))  # type: ignore[misc]

    jobs = [(shape, make) for shape, make in jobs if re.search(options.only, shape)]

    options.out.parent.mkdir(parents=True, exist_ok=True)
    fields = [*where, "dtype", "shape", "side", "median_ms", "low_ms", "high_ms"]
    fresh = not options.out.exists()
    with options.out.open("a", newline="") as file:
        writer = csv.DictWriter(file, fields)
        if fresh:
            writer.writeheader()
        for shape, make in tqdm(jobs, disable=None):
            result = measure(make(), options.rounds if "ranking" not in shape else 3)
            for side, (median, low, high) in result.items():
                row = {"dtype": options.dtype, "shape": shape, "side": side}
                times = {"median_ms": f"{median:.3f}", "low_ms": f"{low:.3f}", "high_ms": f"{high:.3f}"}
                writer.writerow({**where, **row, **times})
            file.flush()
            text = ", ".join(
                f"{side} {low:.1f}-{median:.1f}-{high:.1f}" for side, (median, low, high) in result.items()
            )
            ratios = {
                name: result[a][0] / result[b][0] for name, (a, b) in RATIOS.items() if a in result and b in result
            }
            print(f"{shape}: {text} ms; " + ", ".join(f"{name} {value:.2f}" for name, value in ratios.items()))


if __name__ == "__main__":
    main()
