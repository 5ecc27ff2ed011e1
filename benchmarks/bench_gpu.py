"""Times the CUDA op against the eager formula, torch.compile and the bare product, interleaved in one process.

    python benchmarks/bench_gpu.py [--quick] [--out FILE.csv]

Each side of a shape is timed in turn, round after round, by CUDA events around a few calls; inputs rotate so that no
call finds its keys in the L2 cache. Printed per shape: median microseconds (and spread, p90/p10) of each side, the
share of the copy bandwidth that reading the keys reached, and the ratios. A row per side goes to the CSV.
"""

from __future__ import annotations

import argparse
import csv
import math
import time
from pathlib import Path

import torch
from checkout import head_commit

from surprise_hf import ops

# The ones that matter most come first: a run that is cut short has those of every dtype.
QUICK = [(60_000, m, 768) for m in (10, 31, 150, 1000)] + [(8_000, 8_000, 768)]
SHAPES = [
    *QUICK,
    *((60_000, m, 768) for m in (1, 4, 14, 77)),
    (60_000, 10, 384),
    (60_000, 10, 1024),
    (1_000_000, 10, 384),
]
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def eager(keys, queries):
    """The formula as people write it."""
    k = torch.nn.functional.normalize(keys, dim=1)
    q = torch.nn.functional.normalize(queries, dim=1)
    psi = k @ q.T
    z = (psi - psi.mean(0)) / psi.std(0, correction=0)
    return 0.5 * (1 + torch.erf(z / math.sqrt(2)))


def timed(calls, rounds, budget_ms):
    """Interleaved microseconds per call of each side: {name: sorted list}. Each side is f(i) on input set i."""
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    repeat = {}
    for name, f in calls.items():
        for i in range(3):
            f(i)
        start.record()
        f(0)
        end.record()
        end.synchronize()
        repeat[name] = max(1, min(20, int(budget_ms / max(start.elapsed_time(end), 0.02))))
    times = {name: [] for name in calls}
    for _ in range(rounds):
        for name, f in calls.items():
            torch.cuda._sleep(2_000_000)  # noqa: SLF001  about a millisecond: the queue fills while the GPU waits
            start.record()
            for i in range(repeat[name]):
                f(i)
            end.record()
            end.synchronize()
            times[name].append(start.elapsed_time(end) * 1e3 / repeat[name])
    return {name: sorted(x) for name, x in times.items()}


def median(x):
    return x[len(x) // 2]


def copy_bandwidth():
    """GB/s of a large device copy, bytes read plus bytes written."""
    a = torch.randn(1 << 28, device="cuda")
    b = torch.empty_like(a)
    return 2 * a.numel() * 4 / median(timed({"copy": lambda _: b.copy_(a)}, 10, 2)["copy"]) / 1e3


def make_sides(n, m, d, dtype, *, quick):
    """The calls to time, {name: f(i)} with i choosing the input set."""
    sets = max(1, min(4, (200 << 20) // (n * d * dtype.itemsize)))
    keys = [torch.randn(n, d, device="cuda").to(dtype) for _ in range(sets)]
    queries = torch.randn(m, d, device="cuda").to(dtype)
    _, mean, std = ops.cosine_surprise(keys[0], queries)
    sides = {
        "op": lambda i: ops.cosine_surprise(keys[i % sets], queries),
        "eager": lambda i: eager(keys[i % sets], queries),
        "product": lambda i: keys[i % sets] @ queries.T,
        "moments": lambda i: ops.cosine_moments(keys[i % sets], queries),
        "fitted": lambda i: ops.surprise_from_moments(keys[i % sets], queries, mean, std),
        "top1": lambda i: ops.surprise_topk(keys[i % sets], queries, mean, std, 1),
    }
    if quick and m > 32:  # compiling takes seconds, and the ratios to it are wanted for few labels
        return sides
    torch.compiler.reset()
    compiled = torch.compile(eager, dynamic=False)
    try:
        compiled(keys[0], queries)
    except Exception as error:  # noqa: BLE001  it needs Triton and a C compiler; the other sides do not
        print(f"# without torch.compile: {type(error).__name__}: {error}".splitlines()[0], flush=True)
        return sides
    return {**sides, "compile": lambda i: compiled(keys[i % sets], queries)}


def save(path, records):
    """The CSV so far: a run that is cut short leaves what it measured."""
    head = "gpu", "torch", "commit", "dtype", "n", "m", "d", "side", "median_us", "p10_us", "p90_us", "copy_gbps"
    with Path(path).open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([head, *records])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="five shapes; torch.compile for m <= 32 alone")
    parser.add_argument("--out", help="CSV file to write")
    parser.add_argument("--rounds", type=int, default=9)
    args = parser.parse_args()
    gpu, commit = torch.cuda.get_device_name(), head_commit()
    copy = copy_bandwidth()
    print(f"# {gpu}, torch {torch.__version__}, commit {commit}, copy {copy:.0f} GB/s")
    print("# us: median per call. keys/copy: bytes of the keys over time and copy bandwidth. product/X: rate of X over")
    print("# that of the bare product of the raw inputs in the same dtype")
    head = "dtype", "n", "m", "d", "op us", "spread", "keys/copy", "eager/op", "compile/op", "product us", "product/op"
    head += "product/moments", "product/fitted", "product/top1"
    print(" | ".join(head))
    records = []
    for n, m, d in QUICK if args.quick else SHAPES:
        for name, dtype in DTYPES.items():
            size = n * d * dtype.itemsize
            sides = make_sides(n, m, d, dtype, quick=args.quick)
            began = time.time()
            times = timed(sides, args.rounds, 2)
            mid = {side: median(x) for side, x in times.items()}
            spread = times["op"][-2] / times["op"][1]
            ratio = {side: mid[side] / mid["op"] for side in ("eager", "compile") if side in mid}
            shares = [mid["product"] / mid[side] for side in ("op", "moments", "fitted", "top1")]
            print(
                f"{name} | {n} | {m} | {d} | {mid['op']:.1f} | {spread:.2f} | {size / mid['op'] / 1e3 / copy:.2f} | "
                f"{ratio.get('eager', 0):.1f} | {ratio.get('compile', 0):.1f} | {mid['product']:.1f} | "
                + " | ".join(f"{x:.2f}" for x in shares)
                + f" [moments {mid['moments']:.1f} fitted {mid['fitted']:.1f} top1 {mid['top1']:.1f}"
                + f"; {time.time() - began:.0f} s]",
                flush=True,
            )
            for side, x in times.items():
                records.append((gpu, torch.__version__, commit, name, n, m, d, side, median(x), x[1], x[-2], copy))
            if args.out:
                save(args.out, records)


if __name__ == "__main__":
    main()
