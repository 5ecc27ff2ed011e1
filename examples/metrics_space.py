"""Push the metrics to Spaces of yours, where others load them by name, and load them back.

    python examples/metrics_space.py owner [surprise_clustering ...] [--private]

Each folder in surprise_hf/metrics is a complete Space: the module, its card, a page to try it on and what that needs.
Log in before (`hf auth login`, or HF_TOKEN).
"""

from __future__ import annotations

import argparse

import evaluate

from surprise_hf import hub, metrics
from surprise_hf.metrics.space import EXAMPLES


def main() -> None:
    """Push each metric, load it by name, and compute its example."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("owner", help="user or organisation that the Spaces go to")
    parser.add_argument(
        "names", nargs="*", default=metrics.NAMES, metavar="name", help=f"of {', '.join(metrics.NAMES)}"
    )
    parser.add_argument("--private", action="store_true", help="make new Spaces private")
    args = parser.parse_args()

    for name in args.names:
        repo = f"{args.owner}/{name}"
        hub.upload(metrics.path(name), repo, repo_type="space", space_sdk="gradio", private=args.private)
        metric = evaluate.load(repo)
        example = dict(EXAMPLES[name])
        results = metric.compute(**example.pop("arguments"), **example)
        shown = {key: round(value, 3) for key, value in results.items() if isinstance(value, float)}
        print(f"{repo}: {shown}")


if __name__ == "__main__":
    main()
