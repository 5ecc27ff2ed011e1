"""Times forward and backward of the weighted focal loss: the op against the formula as people write it.

    python benchmarks/bench_loss.py [--quick] [--calls N] [--threads N] [--out FILE.csv]

One process, all sides interleaved round by round, median and the middle half of the rounds in microseconds a call. With
`--calls 1` a timed call follows a single untimed one of its own, and that one of every other side, whose data fill the
caches; with 20 the calls of a side follow each other. `formula` gives both results of the op in plain torch under
autograd, nothing clamped that need not be; `plain` the loss alone, its mean over all pairs as in the paper;
`definition` is `impl="reference"`, exact at p = 0 and 1; `plain mean` the op without balancing; `products` are the
three bare matrix products alone.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import os
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from bench_op import machine, measure

from surprise_hf.ops import weighted_focal_loss


def probability(keys: torch.Tensor, queries: torch.Tensor) -> torch.Tensor:
    """p of every pair, by softplus."""
    cos = torch.nn.functional.normalize(keys, dim=1) @ torch.nn.functional.normalize(queries, dim=1).T
    return (torch.nn.functional.softplus(20 * cos) / 20).clamp(max=1 - 1e-6)


def plain(keys: torch.Tensor, queries: torch.Tensor, positive: torch.Tensor) -> torch.Tensor:
    """The formula as written: gamma = 1, epsilon = 0.05."""
    p = probability(keys, queries)
    i = torch.where(positive, 1.0, 0.05)
    return (-i * (1 - p) * p.log() - (1 - i) * p * torch.log1p(-p)).mean()


def formula(keys: torch.Tensor, queries: torch.Tensor, positive: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The same with what the op gives by default: right and wrong labels half of a row each, and the cross-entropy."""
    p = probability(keys, queries)
    i = torch.where(positive, 1.0, 0.05)
    right, wrong = -i * p.log(), -(1 - i) * torch.log1p(-p)
    count = positive.sum(dim=1, keepdim=True)
    share = torch.where(positive, 0.5 / count, 0.5 / (positive.shape[1] - count)) / len(positive)
    return (((1 - p) * right + p * wrong) * share).sum(), ((right + wrong).detach() * share).sum()


def sides_of(rows: int, m: int, d: int, calls: int) -> dict[str, Callable[[], object]]:
    draw = torch.Generator().manual_seed(0)
    keys, queries = (torch.randn(n, d, generator=draw).requires_grad_() for n in (rows, m))
    positive = torch.eye(m, dtype=torch.bool)[torch.randint(m, (rows,), generator=draw)]
    slope = torch.randn(rows, m, generator=draw)

    def step(loss: Callable[[], torch.Tensor]) -> Callable[[], None]:
        def run() -> None:
            keys.grad = queries.grad = None
            loss().backward()

        return run

    def repeat(call: Callable[[], object]) -> Callable[[], None]:
        def run() -> None:
            for _ in range(calls):
                call()

        return run

    sides: dict[str, Callable[[], object]] = {
        "formula": step(lambda: formula(keys, queries, positive)[0]),
        "plain": step(lambda: plain(keys, queries, positive)),
        "definition": step(lambda: weighted_focal_loss(keys, queries, positive, impl="reference")[0]),
        "op": step(lambda: weighted_focal_loss(keys, queries, positive)[0]),
        "plain mean": step(lambda: weighted_focal_loss(keys, queries, positive, balanced=False)[0]),
        "products": lambda: (
            keys.detach() @ queries.detach().T,
            slope @ queries.detach(),
            slope.T @ keys.detach(),
        ),
    }
    return {name: repeat(call) for name, call in sides.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=300, help="timed rounds of each shape")
    parser.add_argument("--calls", type=int, default=1, help="calls of a side in a row")
    parser.add_argument("--quick", action="store_true", help="one shape: 64 documents, 150 labels, 768 columns")
    parser.add_argument("--threads", type=int, help="torch threads (default: torch's own)")
    parser.add_argument("--out", type=Path, default=Path("out/bench_loss.csv"), help="CSV, one row a side, appended")
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    where = machine()
    print("load", os.getloadavg(), where, file=sys.stderr)
    shapes = [(64, 150, 768)] if options.quick else list(itertools.product((16, 64, 256), (4, 14, 150), (384, 768)))
    options.out.parent.mkdir(parents=True, exist_ok=True)
    fresh = not options.out.exists()
    with options.out.open("a", newline="") as file:
        writer = csv.DictWriter(file, [*where, "shape", "calls", "side", "median_us", "low_us", "high_us"])
        if fresh:
            writer.writeheader()
        for rows, m, d in shapes:
            shape = f"{rows} x {m}, d = {d}"
            result = measure(sides_of(rows, m, d, options.calls), options.rounds)
            micros = {side: [1e3 * x / options.calls for x in times] for side, times in result.items()}
            for side, (median, low, high) in micros.items():
                times = {"median_us": f"{median:.0f}", "low_us": f"{low:.0f}", "high_us": f"{high:.0f}"}
                writer.writerow({**where, "shape": shape, "calls": options.calls, "side": side, **times})
            text = ", ".join(
                f"{side} {median:.0f} ({low:.0f}-{high:.0f})" for side, (median, low, high) in micros.items()
            )
            by_op = {side: micros[side][0] / micros["op"][0] for side in ("formula", "plain", "definition")}
            print(f"{shape}: {text} us; " + ", ".join(f"{side}/op {ratio:.2f}" for side, ratio in by_op.items()))


if __name__ == "__main__":
    main()
