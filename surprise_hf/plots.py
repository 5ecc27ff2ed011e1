"""Pictures of an ensemble and its scores. Every function returns a matplotlib Figure and shows nothing.

matplotlib is optional: `pip install matplotlib`.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from . import estimators as est
from . import inputs
from .contexts import check_ensemble
from .diagnosis import diagnose
from .ensemble import Ensemble, check_rows
from .fitted import crossover_weight
from .inputs import plain, positive_int, short
from .ops import unit_rows
from .refinement import documents_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from .comparison import Comparison

INK, PALE, BAR, CURVE, SECOND = "#2b2d33", "#d9dbe1", "#a9c4de", "#b3402a", "#33658a"
STYLE: Any = {
    "font.size": 9,
    "text.color": INK,
    "axes.edgecolor": PALE,
    "axes.labelcolor": INK,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "xtick.minor.size": 0,
    "ytick.minor.size": 0,
    "grid.color": PALE,
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "figure.dpi": 120,
    "text.usetex": False,  # names are no LaTeX
}


def histogram(
    ensemble: Tensor | np.ndarray | Ensemble,
    queries: Tensor | np.ndarray,
    labels: Sequence[object] | None = None,
    *,
    bins: int = 48,
) -> Figure:
    """One histogram for each label: its similarities over the ensemble, with the gaussian that the score stands on.

    Args:
        ensemble: documents (e, d), or an `Ensemble`, whose reservoir is drawn.
        queries: (m, d) floating; more than 40 make an unreadable picture and are refused.
        labels: their names; None numbers them.
        bins: of each histogram.

    Raises:
        ImportError: no matplotlib.
        TypeError, ValueError: as `surprise_hf.diagnosis.diagnose`.
    """
    queries, ensemble = check_ensemble(queries, ensemble, "cosine")
    if not 1 <= len(queries) <= 40:
        raise ValueError(f"a figure shows 1 to 40 labels, got {len(queries)}; choose some")
    found = diagnose(ensemble, queries, labels)
    rows, queries = documents_of(ensemble, queries, "a histogram").detach(), queries.detach()
    across = min(len(queries), 4 if len(queries) > 4 else 2)
    down = -(-len(queries) // across)
    with _style() as pyplot:
        figure, grid = pyplot.subplots(
            down, across, figsize=(3.1 * across, 2.1 * down + 0.5), squeeze=False, layout="constrained"
        )
        for i, axes in enumerate(grid.flat):
            axes.set_yticks([])
            axes.spines["left"].set_visible(False)
            if i >= len(queries):
                axes.set_visible(False)
                continue
            psi = est.similarity(rows, queries[i : i + 1], "cosine")[:, 0].to(torch.float64).cpu().numpy()
            mean, std = float(found.mean[i]), float(found.std[i])
            same = float(psi.max() - psi.min()) < 1e-6  # but for rounding, which has no room for bins
            span = (mean - 0.01, mean + 0.01) if same else None
            axes.hist(psi, bins=bins, range=span, density=True, color=BAR, edgecolor="white", linewidth=0.3)
            if not same:
                low, high = axes.get_xlim()
                x = torch.linspace(low, high, 300, dtype=torch.float64)
                bell = torch.exp(-0.5 * ((x - mean) / std).square()) / (std * math.sqrt(2 * math.pi))
                axes.plot(x.numpy(), bell.numpy(), color=CURVE, linewidth=1.5)
            axes.set_title(_short(found.labels[i], 34), fontweight="bold")
            axes.text(
                0.98,
                0.95,
                f"skew {float(found.skewness[i]):+.2f}\nkurtosis {float(found.kurtosis[i]):+.2f}"
                f"\ndistance {float(found.distance[i]):.3f}",
                transform=axes.transAxes,
                ha="right",
                va="top",
                fontsize=7.5,
                linespacing=1.3,
            )
        what = "cosine similarity over the ensemble", "line: gaussian of the same mean and deviation"
        figure.supxlabel(("; " if across > 1 else "\n").join(what), fontsize=9)
    return figure


def calibration(
    ensemble: Tensor | np.ndarray | Ensemble, queries: Tensor | np.ndarray, labels: Sequence[object] | None = None
) -> Figure:
    """Held-out documents beyond a score, against what the score promises, on logarithmic scales.

    A score on the diagonal keeps its promise. The documents that belong to a label are among them, so that the curve
    of a label that has many lies above the diagonal at the left end by right.

    Arguments and errors as for `histogram`, with any number of labels.
    """
    found = diagnose(ensemble, queries, labels)
    if not found.labels:
        raise ValueError("there is no label to draw: queries are empty")
    levels, seen = found.levels.cpu().numpy(), found.seen.cpu()
    floor = 0.5 / max(found.sample, 1)
    with _style() as pyplot:
        figure, axes = pyplot.subplots(figsize=(4.8, 4.4), layout="constrained")
        lowest = float(min(levels[0], seen.clamp(min=floor).min()))
        axes.plot(
            [lowest, 1], [lowest, 1], color=INK, linewidth=0.9, linestyle=(0, (4, 3)), zorder=3, label="as promised"
        )
        few = len(found.labels) <= 8
        colours = pyplot.get_cmap("viridis")(torch.linspace(0.0, 0.88, len(found.labels)).numpy())
        for i, (name, colour) in enumerate(zip(found.labels, colours, strict=True)):
            axes.plot(
                levels,
                seen[:, i].clamp(min=floor).numpy(),
                color=colour if few else BAR,
                linewidth=1.2 if few else 0.6,
                alpha=0.9 if few else 0.5,
                label=_in_legend(name, 28) if few else ("one label" if i == 0 else None),
            )
        mean = seen.mean(dim=1).clamp(min=floor).numpy()
        axes.plot(
            levels, mean, color=CURVE, linewidth=2, marker="o", markersize=3.5, zorder=4, label="mean of the labels"
        )
        axes.set(xscale="log", yscale="log", xlim=(levels[0], 1), ylim=(lowest, 1.5), xlabel="promised: 1 - score")
        axes.set_ylabel("seen among held-out documents")
        axes.set_title(f"Calibration of the gaussian score, {found.documents:,} documents")
        axes.grid(True)
        axes.legend(loc="lower right", fontsize=8)
    return figure


def heat_map(scores: Tensor, labels: Sequence[object], documents: Sequence[object] | None = None) -> Figure:
    """Scores (n, m) in [0, 1] as a table of colours, documents downwards, the best of each document framed.

    Args:
        scores: (n, m), at most 60 documents and 40 labels.
        labels: (m,) names.
        documents: (n,) texts or names; None numbers them.

    Raises:
        ImportError: no matplotlib.
        ValueError: sizes that do not fit, or too many of them to read; a score that is not finite.
    """
    scores = torch.as_tensor(scores)
    if scores.dim() != 2 or scores.shape[1] != len(labels):
        raise ValueError(f"scores must have shape (documents, {len(labels)}), got {tuple(scores.shape)}")
    n, m = scores.shape
    names = [str(x) for x in (range(n) if documents is None else documents)]
    if len(names) != n:
        raise ValueError(f"there are {n} rows of scores but {len(names)} documents")
    if not (1 <= n <= 60 and 1 <= m <= 40):
        raise ValueError(f"a figure shows 1 to 60 documents and 1 to 40 labels, got {n} and {m}; choose some")
    values = scores.detach().to(torch.float64).cpu()
    if not values.isfinite().all():
        raise ValueError("scores hold NaN or infinity")
    with _style() as pyplot:
        from matplotlib.patches import Rectangle

        longest = max(len(_short(name, 60)) for name in names)
        figure, axes = pyplot.subplots(figsize=(0.075 * longest + 0.62 * m + 1.4, 0.3 * n + 1.3), layout="constrained")
        image = axes.imshow(values.numpy(), cmap="Blues", vmin=0, vmax=1, aspect="auto")
        axes.set_xticks(range(m), [_short(str(x), 28) for x in labels], rotation=35, ha="left", rotation_mode="anchor")
        axes.xaxis.tick_top()
        axes.set_yticks(range(n), [_short(name, 60) for name in names])
        axes.spines[:].set_visible(False)
        axes.set_xticks([i + 0.5 for i in range(m - 1)], minor=True)
        axes.set_yticks([i + 0.5 for i in range(n - 1)], minor=True)
        axes.grid(which="minor", color="white", linewidth=1.5)
        for row, column in enumerate(values.argmax(dim=1).tolist()):
            corner = (column - 0.47, row - 0.45)  # inside the white lines
            axes.add_patch(Rectangle(corner, 0.94, 0.9, fill=False, edgecolor=CURVE, linewidth=1.8, zorder=3))
        if m <= 15:
            for row in range(n):
                for column in range(m):
                    value = float(values[row, column])
                    dark = "white" if value > 0.6 else INK
                    axes.text(column, row, f"{value:.2f}", ha="center", va="center", fontsize=7, color=dark)
        bar = figure.colorbar(image, ax=axes, shrink=min(1.0, 3 / (0.3 * n)), pad=0.02)
        bar.outline.set_visible(False)
        bar.set_label("score")
    return figure


def ensemble_size(
    ensemble: Tensor | np.ndarray | Ensemble,
    queries: Tensor | np.ndarray,
    *,
    n_cross: float = 1000,
    sizes: Sequence[int] | None = None,
    repeats: int = 5,
) -> Figure:
    """How many documents a score needs: its error from a part of the ensemble, and the weight w it gets at that size.

    The error is the root mean square, over labels and repeated draws, of what mean and deviation of a part change in
    the z of a document two deviations up.

    Args:
        ensemble: documents (e, d), or an `Ensemble`, whose reservoir is drawn from.
        queries: (m, d) floating.
        n_cross: of the crossover.
        sizes: parts to try; None takes ten from 10 to a half of the documents.
        repeats: draws of each size, the same each time.

    Raises:
        ImportError: no matplotlib.
        ValueError: fewer than 20 documents, a size beyond them, no repeats, or no label whose similarity differs from
            document to document.
    """
    queries, ensemble = check_ensemble(queries, ensemble, "cosine")
    repeats = positive_int("repeats", repeats)
    rows, queries = documents_of(ensemble, queries, "a curve of sizes").detach(), queries.detach()
    if len(rows) < 20:
        raise ValueError(f"a curve of sizes needs 20 documents or more, got {len(rows)}")
    if sizes is None:
        steps = torch.logspace(1, math.log10(len(rows) // 2), 10, dtype=torch.float64)
        sizes = sorted({round(float(step)) for step in steps})
    sizes = [positive_int("sizes", size) for size in plain(sizes)]
    if not sizes or min(sizes) < 2 or max(sizes) > len(rows):
        raise ValueError(f"sizes must lie between 2 and the {len(rows)} documents, got {sizes}")
    mean, std = est.moments(rows, queries, "cosine")
    if not (std > 0).any():
        raise ValueError("no label has a similarity that differs from document to document: there is no z to err in")
    mean, std, queries = mean[std > 0], std[std > 0], queries[std > 0]  # the others' z is a step of any size
    errors = []
    for size in sizes:
        draws = [rows[est.shuffled(rows, seed)[:size]] for seed in range(repeats)]
        found = [est.moments(draw, queries, "cosine") for draw in draws]
        change = torch.stack([(mean + 2 * std - m) / torch.where(s > 0, s, 1.0) - 2 for m, s in found])
        errors.append(float(change.square().mean().sqrt()))
    with _style() as pyplot:
        figure, axes = pyplot.subplots(figsize=(5.6, 3.6), layout="constrained")
        axes.plot(sizes, errors, color=CURVE, marker="o", markersize=4, linewidth=1.6)
        axes.set(xscale="log", xlabel="documents in the ensemble, e")
        axes.set_ylim(bottom=0)
        axes.set_ylabel("error of z at z = 2", color=CURVE)
        other = axes.twinx()
        x = torch.logspace(math.log10(min(sizes)), math.log10(max(len(ensemble), *sizes)), 200, dtype=torch.float64)
        weights = [crossover_weight(int(e), None, n_cross) for e in x.tolist()]
        other.plot(x.numpy(), weights, color=SECOND, linewidth=1.6)
        other.set_ylim(0, 1.05)
        other.set_ylabel("weight w of the surprise score", color=SECOND)
        axes.axvline(len(ensemble), color=INK, linewidth=0.9, linestyle=(0, (4, 3)))
        axes.annotate(
            f"this ensemble: {len(ensemble):,} ",
            (len(ensemble), 0.5),
            xycoords=("data", "axes fraction"),
            ha="right",
            va="center",
            fontsize=8,
        )
        axes.set_title("Size of the ensemble")
        axes.grid(True, axis="x")
    return figure


def check_picture(path: str | os.PathLike, layout: str = "pca") -> None:
    """Refuse what no picture can be made of, before anybody works for one.

    Raises:
        ImportError: no matplotlib, or no umap-learn for layout="umap".
        ValueError: a name whose end is no format that matplotlib writes, or an unknown layout.
    """
    _check_layout(layout)
    with _style():
        from matplotlib.backend_bases import FigureCanvasBase

        known = FigureCanvasBase.get_supported_filetypes()
    kind = Path(path).suffix.removeprefix(".").lower()
    if kind not in known:
        raise ValueError(f"{os.fspath(path)} must end in one of {', '.join(sorted(known))}: they are what can be drawn")


def _check_layout(layout: str) -> None:
    if layout not in ("pca", "umap"):
        raise ValueError(f'layout must be "pca" or "umap", got {layout!r}')
    if layout == "umap":
        _umap()


def _umap() -> Any:
    try:
        from umap import UMAP  # type: ignore[import-not-found, unused-ignore]
    except ImportError as error:
        raise ImportError('layout="umap" needs umap-learn: pip install umap-learn') from error
    return UMAP


def cluster_map(
    embeddings: Tensor | np.ndarray,
    clusters: Sequence[int],
    names: Sequence[object],
    *,
    layout: str = "pca",
    seed: int = 0,
) -> Figure:
    """Documents as points in the plane, coloured by cluster, the name of each cluster at the median of its points.

    Args:
        embeddings: (n, d) floating, finite; at most 20,000 of them are drawn, a random sample.
        clusters: (n,) number of each document's cluster.
        names: of the clusters, by number. Where they would hide one another, the largest clusters are named.
        layout: "pca", the plane that holds most of the variance between the clusters (of the documents, for fewer
            than three clusters); or "umap", where umap-learn is installed. Both of unit rows.
        seed: of the sample and the layout.

    Raises:
        ImportError: no matplotlib, or no umap-learn.
        TypeError, ValueError: embeddings of another kind or shape, sizes that do not fit, no documents, an unknown
            layout.
    """
    embeddings = inputs.embeddings(embeddings)
    check_rows("embeddings", embeddings)
    rows, where = unit_rows(embeddings.detach().cpu()), torch.as_tensor(clusters).cpu().to(torch.int64)
    if not 0 < len(rows) == len(where) or not 0 <= int(where.min()) <= int(where.max()) < len(names):
        raise ValueError(f"{len(rows)} embeddings, {len(where)} clusters and {len(names)} names do not fit together")
    _check_layout(layout)
    keep = est.shuffled(rows, seed)[:20_000]
    rows, where = rows[keep], where[keep]
    if layout == "pca":
        if len(names) > 2:
            sums = torch.zeros(len(names), rows.shape[1], dtype=rows.dtype).index_add_(0, where, rows)
            sizes = where.bincount(minlength=len(names)).clamp(min=1).unsqueeze(1)
            basis = (sums / sizes - rows.mean(dim=0)) * sizes.sqrt()
        else:
            basis = rows[:4096] - rows[:4096].mean(dim=0)
        _, _, axes_of = torch.linalg.svd(basis, full_matrices=False)
        plane = torch.nn.functional.pad((rows - rows.mean(dim=0)) @ axes_of[:2].T, (0, max(0, 2 - len(axes_of))))
    else:
        # a seed allows one thread only: said, it is no warning
        layouter = _umap()(metric="cosine", random_state=seed, n_jobs=1)
        plane = torch.as_tensor(layouter.fit_transform(rows.numpy()))
    with _style() as pyplot:
        figure, axes = pyplot.subplots(figsize=(7, 6), layout="constrained")
        colours = pyplot.get_cmap("turbo")(torch.linspace(0.05, 0.95, len(names)).numpy())
        size = min(16.0, max(3.0, 20_000 / len(rows)))
        middles = {}
        for number, colour in enumerate(colours):
            points = plane[where == number]
            if len(points):
                axes.scatter(*points.T.numpy(), s=size, color=colour, alpha=0.6, linewidths=0)
                middles[number] = tuple(points.median(dim=0).values.tolist())
        axes.set(xticks=[], yticks=[], aspect="equal")
        axes.spines[:].set_visible(False)
        axes.margins(0.1, 0.05)
        title = f"{len(rows):,} documents in {len(middles)} clusters ({layout.upper()})"
        axes.set_title(title)
        order = sorted(middles, key=lambda number: -int((where == number).sum()))
        named = _name_places(figure, axes, [(_short(str(names[number]), 24), middles[number]) for number in order])
        if named < len(middles):
            axes.set_title(f"{title}, {named} of them named")
    return figure


def _name_places(figure: Figure, axes: Axes, places: Sequence[tuple[str, tuple[float, float]]]) -> int:
    """Write each name at its place, or just above or below where another stands; those without room are left out."""
    figure.draw_without_rendering()  # it settles where places are
    taken: list[Any] = []
    box = {"facecolor": "white", "alpha": 0.75, "edgecolor": "none", "pad": 1}
    for name, place in places:
        for rise in (0, 11, -11):
            text = axes.annotate(
                name, place, (0, rise), textcoords="offset points", fontsize=8, ha="center", va="center", bbox=box
            )
            extent = text.get_window_extent()
            if not extent.count_overlaps(taken):
                taken.append(extent)
                break
            text.remove()
    return len(taken)


def comparison(result: Comparison) -> Figure:
    """Accuracy of each method with its interval, and F1 of the labels that differ most between first and advised.

    Args:
        result: of `surprise_hf.comparison.compare`.

    Raises:
        ImportError: no matplotlib.
    """
    methods, advised = result.methods, result.methods.index(result.advised)
    other = advised or int(result.accuracy[:, 0].argmax()) or len(methods) - 1
    change = (result.label_f1[other] - result.label_f1[0]).nan_to_num()
    most = change.abs().argsort(descending=True, stable=True)[:16]
    shown = most[change[most].argsort(stable=True)].tolist()
    with _style() as pyplot:
        height = max(2.2, 0.5 * len(methods) + 1.2, 0.24 * len(shown) + 1.2)
        figure, (left, right) = pyplot.subplots(1, 2, figsize=(9, height), layout="constrained")
        for i in range(len(methods)):
            value, low, high = (100 * result.accuracy[i]).tolist()
            colour = CURVE if i == advised else SECOND
            left.errorbar(value, -i, xerr=[[value - low], [high - value]], fmt="o", color=colour, capsize=3)
            left.annotate(f"{value:.1f}", (value, -i), (0, 7), textcoords="offset points", ha="center", fontsize=8)
        left.set_yticks([-i for i in range(len(methods))], list(methods))
        left.set_ylim(-len(methods) + 0.4, 0.6)
        left.margins(x=0.12)
        left.set(xlabel="accuracy, percent, with 95 % interval")
        left.set_title(f"{result.documents:,} documents, {len(result.labels)} labels")
        left.grid(True, axis="x")
        for at, label in enumerate(shown):
            ends = 100 * result.label_f1[0, label], 100 * result.label_f1[other, label]
            right.plot([float(x) for x in ends], [at, at], color=PALE, linewidth=2.5, zorder=1)
        for i, colour in ((0, SECOND), (other, CURVE)):
            values = (100 * result.label_f1[i, shown]).tolist()
            right.scatter(values, range(len(shown)), color=colour, s=22, label=methods[i], zorder=2)
        right.set_yticks(range(len(shown)), [_short(result.labels[i], 26) for i in shown])
        right.set(xlabel="F1 of the label, percent", ylim=(-0.6, len(shown) - 0.4))
        few = len(shown) == len(result.labels)
        right.set_title("Each label" if few else "Labels that change most")
        right.grid(True, axis="x")
        right.legend(loc="best", fontsize=8)
    return figure


def training(history: Sequence[Mapping[str, Any]], threshold: float | None = None) -> Figure:
    """A run of the trainer: loss and mean cross-entropy of each epoch, and accuracy where it was evaluated.

    Args:
        history: `trainer.state.log_history`.
        threshold: the cross-entropy at which training stops (`args.stop_cross_entropy`).

    Raises:
        ImportError: no matplotlib.
        ValueError: no epoch was logged.
    """
    curves: dict[str, list[tuple[float, float]]] = {}
    for entry in history:
        for name, value in entry.items():
            if "epoch" in entry and (name in ("loss", "cross_entropy") or name.endswith("_accuracy")):
                curves.setdefault(name, []).append((entry["epoch"], value))
    if "cross_entropy" not in curves:
        raise ValueError("the history has no epoch's cross_entropy: plot it after trainer.train()")
    measures = [name for name in curves if name.endswith("_accuracy")]
    with _style() as pyplot:
        across = 2 if measures else 1
        figure, panels = pyplot.subplots(1, across, figsize=(4.4 * across, 3.4), layout="constrained", squeeze=False)
        left, right = panels[0, 0], panels[0, -1]
        for name, colour in (("cross_entropy", CURVE), ("loss", SECOND)):
            if name in curves:
                label = name.replace("_", "-")
                left.plot(*zip(*curves[name], strict=True), "o-", color=colour, markersize=4, label=label)
        if threshold is not None:
            left.axhline(threshold, color=INK, linewidth=0.9, linestyle=(0, (4, 3)), label="training stops below")
        left.set_title("Mean of the epoch")
        colours = (SECOND, CURVE, BAR, INK)  # cosine, surprise; of another evaluation set
        for at, name in enumerate(measures):
            points = [(epoch, 100 * value) for epoch, value in curves[name]]
            label = _in_legend(name.removesuffix("_accuracy").replace("_", " "), 40)
            right.plot(*zip(*points, strict=True), "o-", color=colours[at % 4], markersize=4, label=label)
        if measures:
            right.set_title("Accuracy, percent")
        last = max(epoch for curve in curves.values() for epoch, _ in curve)
        for axes in panels[0]:
            axes.set(xlabel="epoch", xlim=(0, 1.05 * last))
            axes.xaxis.get_major_locator().set_params(integer=True)
            axes.grid(True, axis="y")
            axes.legend(loc="best", fontsize=8)
        left.set_ylim(bottom=0)
    return figure


@contextmanager
def _style() -> Iterator[Any]:
    """pyplot in this module's style, for one figure; what the user has set comes back afterwards."""
    try:
        from matplotlib import pyplot as plt
    except ImportError as error:
        raise ImportError("plots need matplotlib: pip install matplotlib") from error
    with plt.rc_context(STYLE):
        yield plt


def _short(text: str, most: int) -> str:
    """A name as it is: matplotlib takes what stands between two dollars for a formula."""
    return short(text, most).replace("$", r"\$")


def _in_legend(text: str, most: int) -> str:
    """`_short` for a legend, which leaves out what begins with an underscore."""
    text = _short(text, most)
    return f" {text}" if text.startswith("_") else text
