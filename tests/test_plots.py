"""What the pictures show: the numbers drawn, not the pixels."""

from __future__ import annotations

import math
import sys
import types
from collections.abc import Callable

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
import scipy.stats
import torch
from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator
from torch import Tensor

from surprise_hf import plots
from surprise_hf.comparison import compare
from surprise_hf.diagnosis import diagnose
from surprise_hf.ensemble import Ensemble

mpl.use("Agg")


@pytest.fixture(autouse=True)
def _close():
    yield
    plt.close("all")


def rows(n: int, dim: int = 16, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, dim, generator=generator) + 0.3


@pytest.mark.parametrize("labels", [1, 3, 9])
def test_histogram_draws_every_label_and_its_gaussian(labels: int) -> None:
    documents, queries = rows(500), rows(labels, seed=1)
    figure = plots.histogram(documents, queries, [f"label {i}" for i in range(labels)])
    figure.savefig("/dev/null", format="png")
    axes = [a for a in figure.axes if a.get_visible()]
    found = diagnose(documents, queries)
    assert [a.get_title(loc="left") for a in axes] == [f"label {i}" for i in range(labels)]
    for i, a in enumerate(axes):
        area = sum(bar.get_width() * bar.get_height() for bar in a.patches)
        assert area == pytest.approx(1)
        x, y = a.lines[0].get_data()
        np.testing.assert_allclose(y, scipy.stats.norm.pdf(x, float(found.mean[i]), float(found.std[i])), rtol=1e-6)
        assert f"skew {float(found.skewness[i]):+.2f}" in a.texts[0].get_text()


@pytest.mark.parametrize("labels", [3, 12])
def test_calibration_draws_what_was_seen(labels: int) -> None:
    ensemble, queries = Ensemble.from_embeddings(rows(800)), rows(labels, seed=1)
    figure = plots.calibration(ensemble, queries)
    figure.savefig("/dev/null", format="png")
    found = diagnose(ensemble, queries)
    lines = figure.axes[0].lines
    assert len(lines) == labels + 2
    np.testing.assert_allclose(lines[-1].get_xdata(), found.levels.numpy())
    want = found.seen.mean(dim=1).clamp(min=0.5 / 800).numpy()
    np.testing.assert_allclose(lines[-1].get_ydata(), want, rtol=1e-2)
    x, y = lines[0].get_data()
    np.testing.assert_array_equal(x, y)


def test_heat_map_shows_scores_and_frames_the_best() -> None:
    scores = torch.tensor([[0.1, 0.9, 0.3], [0.8, 0.2, 0.0]])
    figure = plots.heat_map(scores, ["a", "b", "c"], ["first", "second " * 30])
    figure.savefig("/dev/null", format="png")
    axes = figure.axes[0]
    np.testing.assert_allclose(axes.images[0].get_array(), scores.numpy())
    assert [round(p.get_x() + p.get_width() / 2) for p in axes.patches] == [1, 0]
    assert [t.get_text() for t in axes.get_xticklabels()] == ["a", "b", "c"]
    assert axes.get_yticklabels()[1].get_text().endswith("…")
    assert sorted(t.get_text() for t in axes.texts) == sorted(["0.10", "0.90", "0.30", "0.80", "0.20", "0.00"])


def test_ensemble_size_errors_fall_as_the_root_of_the_size() -> None:
    figure = plots.ensemble_size(rows(4000), rows(6, seed=1), sizes=[20, 80, 320], repeats=20)
    figure.savefig("/dev/null", format="png")
    error = figure.axes[0].lines[0].get_ydata()
    assert 1.6 < error[0] / error[1] < 2.6
    assert 1.6 < error[1] / error[2] < 2.6
    x, w = figure.axes[1].lines[0].get_data()
    np.testing.assert_allclose(w[x < 3000], np.tanh(x[x < 3000].astype(int) / 1000), atol=1.5e-3)
    again = plots.ensemble_size(rows(4000), rows(6, seed=1), sizes=[20, 80, 320], repeats=20)
    np.testing.assert_array_equal(error, again.axes[0].lines[0].get_ydata())
    assert plots.ensemble_size(Ensemble.from_embeddings(rows(60)), rows(2, seed=1)).axes


@pytest.mark.parametrize("kind", [tuple, np.array, torch.tensor, lambda sizes: pd.Series(sizes, index=[7, 8])])
def test_ensemble_sizes_come_as_any_sequence(kind: Callable) -> None:
    wanted = plots.ensemble_size(rows(60), rows(3, seed=1), sizes=[10, 20]).axes[0].lines[0].get_xydata()
    figure = plots.ensemble_size(rows(60), rows(3, seed=1), sizes=kind([10, 20]))
    np.testing.assert_array_equal(figure.axes[0].lines[0].get_xydata(), wanted)


def test_the_users_style_stays() -> None:
    before = dict(mpl.rcParams)
    plots.heat_map(torch.zeros(1, 1), ["a"])
    assert dict(mpl.rcParams) == before


def test_without_matplotlib_the_error_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match="pip install matplotlib"):
        plots.heat_map(torch.zeros(1, 1), ["a"])


def test_errors() -> None:
    for call, message in (
        (lambda: plots.histogram(rows(9), rows(41, seed=1)), "1 to 40 labels, got 41"),
        (lambda: plots.heat_map(torch.zeros(2, 3), ["a"]), r"shape \(documents, 1\), got \(2, 3\)"),
        (lambda: plots.heat_map(torch.zeros(2, 1), ["a"], ["x"]), "2 rows of scores but 1 documents"),
        (lambda: plots.heat_map(torch.zeros(61, 1), ["a"]), "got 61 and 1"),
        (lambda: plots.ensemble_size(rows(9), rows(1)), "20 documents or more, got 9"),
        (lambda: plots.ensemble_size(rows(30), rows(1), sizes=[31]), "between 2 and the 30 documents"),
        (lambda: plots.ensemble_size(rows(30), rows(1), sizes=[2.5]), "sizes must be a positive integer, got 2.5"),
        (lambda: plots.ensemble_size(rows(30), rows(1), sizes=np.array([])), "between 2 and the 30 documents"),
        (lambda: plots.ensemble_size(rows(30), rows(1), sizes=[]), "between 2 and the 30 documents"),
        (lambda: plots.ensemble_size(rows(30), rows(1), repeats=0), "repeats must be a positive integer"),
        (lambda: plots.ensemble_size(rows(30), rows(0)), "no label has a similarity that differs"),
        (lambda: plots.ensemble_size(torch.ones(30, 16), rows(1)), "no label has a similarity that differs"),
        (lambda: plots.histogram(rows(9), rows(0)), "1 to 40 labels, got 0"),
        (lambda: plots.calibration(rows(9), rows(0)), "no label to draw"),
        (lambda: plots.heat_map(torch.tensor([[0.5, math.nan]]), ["a", "b"]), "scores hold NaN"),
        (lambda: plots.cluster_map(torch.full((2, 3), math.nan), [0, 0], ["a"]), "embeddings: row 0, 1 holds NaN"),
        (lambda: plots.cluster_map(torch.zeros(3), [0, 0, 0], ["a"]), "embeddings must"),
    ):
        with pytest.raises(ValueError, match=message):
            call()


NAMES = ["$x^2$ for $5", r"$\frac$", "_hidden", "two\nlines", "Zürich & Ångström 100 %", "long " * 30]


def pictures() -> dict[str, Callable[[list[str]], Figure]]:
    def compared(names: list[str]) -> Figure:
        right = torch.eye(len(names), dtype=torch.bool).repeat(5, 1)
        best = right.int().argmax(dim=1, keepdim=True)
        return plots.comparison(compare([("cosine", best.roll(1), 1.0), ("surprise", best, 1.0)], names, right))

    return {
        "histogram": lambda names: plots.histogram(rows(90), rows(len(names), seed=1), names),
        "one histogram": lambda names: plots.histogram(rows(90), rows(1, seed=1), names[:1]),
        "calibration": lambda names: plots.calibration(rows(90), rows(len(names), seed=1), names),
        "heat map": lambda names: plots.heat_map(torch.rand(len(names), len(names)), names, names),
        "one cell": lambda names: plots.heat_map(torch.rand(1, 1), names[-1:], names[-1:]),
        "cluster map": lambda names: plots.cluster_map(rows(90), [i % len(names) for i in range(90)], names),
        "comparison": compared,
        "size": lambda _: plots.ensemble_size(rows(90), rows(2)),
        "training": lambda _: plots.training([{"epoch": 1.0, "cross_entropy": 1.0, "eval_a_accuracy": 1.0}], 0.3),
    }  # fmt: skip


@pytest.mark.parametrize("kind", pictures())
def test_every_text_is_whole_and_as_it_is(kind: str) -> None:
    """Inside the picture, no formula made of what stands between dollars, no name left out of a legend."""
    figure = pictures()[kind](NAMES)
    figure.canvas.draw()
    texts = [*figure.texts]
    for axes in [axes for axes in figure.axes if axes.get_visible()]:
        legend = axes.get_legend()
        texts += [axes.title, axes._left_title, axes.xaxis.label, axes.yaxis.label, *axes.texts]
        texts += legend.get_texts() if legend else ()
        if isinstance(axes.yaxis.get_major_locator(), FixedLocator):  # names; of numbers some lie outside
            texts += axes.get_yticklabels()
        if isinstance(axes.xaxis.get_major_locator(), FixedLocator):
            texts += axes.get_xticklabels()
    texts = [text for text in texts if text.get_text()]
    for text in texts:
        box = text.get_window_extent()
        assert -1 <= box.x0 <= box.x1 <= figure.bbox.x1 + 1, text
        assert -1 <= box.y0 <= box.y1 <= figure.bbox.y1 + 1, text
    if kind not in ("size", "training", "one histogram", "one cell"):
        shown = {text.get_text().replace(r"\$", "$").strip() for text in texts}
        assert {" ".join(name.split()) for name in NAMES[:-1]} <= shown


def test_names_of_clusters_do_not_hide_one_another() -> None:
    """The largest are named, and the title tells how many."""
    where = [i % 150 if i < 1200 else 7 for i in range(1300)]
    figure = plots.cluster_map(rows(1300), where, [f"the name of {i}" for i in range(150)])
    figure.canvas.draw()
    (axes,) = figure.axes
    boxes = [text.get_window_extent() for text in axes.texts]
    assert all(not box.count_overlaps(boxes[:i]) for i, box in enumerate(boxes))
    assert axes.texts[0].get_text() == "the name of 7"
    assert 10 < len(boxes) < 150
    assert axes.get_title(loc="left") == f"1,300 documents in 150 clusters (PCA), {len(boxes)} of them named"
    assert sum(len(points.get_offsets()) for points in axes.collections) == 1300


def test_the_name_of_a_cluster_is_at_the_median_of_its_points() -> None:
    documents = torch.cat((rows(40) + 5, rows(30, seed=1) - 5, -rows(1)))
    axes = plots.cluster_map(documents, [0] * 40 + [1] * 30 + [0], ["left", "right"]).axes[0]
    for points, text in zip(axes.collections, axes.texts, strict=True):
        middle = torch.from_numpy(np.asarray(points.get_offsets())).median(dim=0).values
        np.testing.assert_allclose(text.xy, middle, rtol=1e-5)


def test_the_plane_holds_most_of_the_variance_between_clusters_of_any_size() -> None:
    sizes = [60, 30, 8, 2]
    where = np.repeat(np.arange(4), sizes)
    documents = rows(100) + 2 * rows(4, seed=1)[where]
    axes = plots.cluster_map(documents, where, list("abcd")).axes[0]
    drawn = np.concatenate([points.get_offsets() for points in axes.collections])
    unit = (documents / documents.norm(dim=1, keepdim=True)).double().numpy()
    between = np.stack([unit[where == i].mean(axis=0) for i in range(4)])[where] - unit.mean(axis=0)
    plane = (unit - unit.mean(axis=0)) @ np.linalg.svd(between)[2][:2].T
    np.testing.assert_allclose(sorted(np.abs(drawn[:, 0])), sorted(np.abs(plane[:, 0])), atol=1e-4)
    np.testing.assert_allclose(sorted(np.abs(drawn[:, 1])), sorted(np.abs(plane[:, 1])), atol=1e-4)


def test_of_many_documents_a_random_sample_is_drawn() -> None:
    """In which the last are as well as the first."""
    figure = plots.cluster_map(rows(20_400, dim=3), [0] * 20_000 + [1] * 400, ["first", "last"])
    first, last = (len(points.get_offsets()) for points in figure.axes[0].collections)
    assert first + last == 20_000
    assert last == pytest.approx(400 * 20_000 / 20_400, abs=15)


@pytest.mark.parametrize(("rights", "shown"), [((0.5, 0.52, 0.5), 1), ((0.5, 0.5, 0.5), 2)])
def test_without_advice_labels_of_the_best_method_are_shown(rights: tuple[float, ...], shown: int) -> None:
    """Or of the last where none is better. Labels that neither occur nor were given have no F1, and no place."""
    truth, names = torch.arange(100) % 2, [f"label {i}" for i in range(20)]
    best = [torch.where(torch.arange(100) < 100 * right, truth, 1 - truth).unsqueeze(1) for right in rights]
    positive = torch.nn.functional.one_hot(truth, 20).bool()
    result = compare([(f"method {i}", one, 1.0) for i, one in enumerate(best)], names, positive)
    assert result.advised == "method 0"
    axes = plots.comparison(result).axes[1]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["method 0", f"method {shown}"]
    labels = [text.get_text() for text in axes.get_yticklabels()]
    for i in range(2):
        values = [points.get_offsets()[labels.index(names[i]), 0] for points in axes.collections]
        assert values == pytest.approx((100 * result.label_f1[[0, shown], i]).tolist())


def test_names_of_two_clusters_at_one_place_are_both_there() -> None:
    figure = plots.cluster_map(torch.ones(10, 4), [0, 1] * 5, ["even", "odd"])
    figure.canvas.draw()
    one, other = (text.get_window_extent() for text in figure.axes[0].texts)
    assert not one.overlaps(other)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("draw", [plots.histogram, plots.calibration, plots.ensemble_size])
def test_documents_of_any_kind(draw: Callable[..., Figure], dtype: torch.dtype) -> None:
    """Rows that differ by rounding alone, and those that a training still has gradients of."""
    queries = rows(3, seed=1).to(dtype)
    if draw is not plots.ensemble_size:
        same = rows(1).to(dtype) * torch.linspace(1, 3, 30, dtype=dtype).unsqueeze(1)
        draw(same, queries).savefig("/dev/null", format="png")
    ours = rows(30).to(dtype).requires_grad_()
    draw(ours, queries.requires_grad_()).savefig("/dev/null", format="png")
    assert ours.grad is None


def test_a_label_that_all_documents_are_as_near_to_has_no_part_in_the_error() -> None:
    documents = rows(100)
    documents[:, 0] = 0
    queries = torch.cat((rows(2, seed=1), torch.eye(16)[:1]))
    one, other = (plots.ensemble_size(documents, q, sizes=[10, 30]) for q in (queries, queries[:2]))
    np.testing.assert_array_equal(one.axes[0].lines[0].get_ydata(), other.axes[0].lines[0].get_ydata())


def test_a_heat_map_of_lists_and_arrays() -> None:
    scores = [[0.1, 0.9], [0.8, 0.2]]
    for given in (scores, np.array(scores), torch.tensor(scores, requires_grad=True)):
        np.testing.assert_allclose(plots.heat_map(given, ["a", "b"]).axes[0].images[0].get_array(), scores)


def test_cluster_map_draws_every_document_and_names_its_cluster() -> None:
    documents = torch.cat((rows(40) + 5, rows(30, seed=1) - 5))
    where = [0] * 40 + [2] * 30
    figure = plots.cluster_map(documents, [x // 2 for x in where], ["left", "right"])
    figure.savefig("/dev/null", format="png")
    axes = figure.axes[0]
    assert [len(points.get_offsets()) for points in axes.collections] == [40, 30]
    assert [text.get_text() for text in axes.texts] == ["left", "right"]
    unit = documents / documents.norm(dim=1, keepdim=True)
    centred = (unit - unit.mean(dim=0)).double().numpy()
    plane = centred @ np.linalg.svd(centred)[2][:2].T
    drawn = np.concatenate([points.get_offsets() for points in axes.collections])
    np.testing.assert_allclose(sorted(np.abs(drawn[:, 0])), sorted(np.abs(plane[:, 0])), atol=1e-4)
    np.testing.assert_allclose(sorted(np.abs(drawn[:, 1])), sorted(np.abs(plane[:, 1])), atol=1e-4)
    plots.cluster_map(rows(3, dim=1), [0, 0, 0], ["one"])
    # three clusters: the plane through their means, one of them empty
    three = plots.cluster_map(documents, where, ["left", "empty", "right"])
    assert [text.get_text() for text in three.axes[0].texts] == ["left", "right"]
    means = np.stack([unit[:40].mean(dim=0).numpy(), unit[40:].mean(dim=0).numpy()])
    apart = three.axes[0].collections[0].get_offsets().mean(axis=0) - three.axes[0].collections[1].get_offsets().mean(
        axis=0
    )
    np.testing.assert_allclose(np.linalg.norm(apart), np.linalg.norm(means[0] - means[1]), rtol=1e-3)
    for arguments, message in (
        ((documents, where, ["left"]), "do not fit"),
        ((documents, where[1:], ["a", "b", "c"]), "do not fit"),
        ((documents[:0], [], ["a"]), "do not fit"),
    ):
        with pytest.raises(ValueError, match=message):
            plots.cluster_map(*arguments)
    with pytest.raises(ValueError, match="layout must be"):
        plots.cluster_map(documents, where, ["a", "b", "c"], layout="tsne")


def test_a_umap_layout_is_what_umap_learn_makes_of_unit_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """umap-learn brings a compiler along, too much for a test: this stands for it. The real one was run by hand."""
    calls: list[tuple[dict, np.ndarray]] = []

    class UMAP:
        def __init__(self, **options: object) -> None:
            self.options = options

        def fit_transform(self, x: np.ndarray) -> np.ndarray:
            calls.append((self.options, x))
            return np.stack((x[:, 0] + 7, 2 * x[:, 1]), axis=1)

    monkeypatch.setitem(sys.modules, "umap", types.SimpleNamespace(UMAP=UMAP))
    documents, where = 3 * rows(50), [i % 2 for i in range(50)]
    axes = plots.cluster_map(documents, where, ["even", "odd"], layout="umap", seed=4).axes[0]
    ((options, given),) = calls
    assert options == {"metric": "cosine", "random_state": 4, "n_jobs": 1}
    np.testing.assert_allclose(np.linalg.norm(given, axis=1), 1, rtol=1e-6)
    drawn = np.concatenate([points.get_offsets() for points in axes.collections])
    unit = documents / documents.norm(dim=1, keepdim=True)
    np.testing.assert_allclose(sorted(drawn[:, 0]), sorted((unit[:, 0] + 7).tolist()), rtol=1e-5)
    np.testing.assert_allclose(sorted(drawn[:, 1]), sorted((2 * unit[:, 1]).tolist()), atol=1e-6)
    assert axes.get_title(loc="left").endswith("(UMAP)")


def test_training_draws_the_logged_numbers() -> None:
    history = [
        {"cross_entropy": 0.9, "epoch": 1.0, "step": 2},
        {"loss": 0.6, "epoch": 1.0, "step": 2},
        {"eval_surprise_accuracy": 0.5, "eval_cosine_accuracy": 0.25, "epoch": 1.0, "step": 2},
        {"cross_entropy": 0.2, "epoch": 2.0, "step": 4},
        {"loss": 0.1, "epoch": 2.0, "step": 4},
        {"eval_surprise_accuracy": 0.75, "eval_cosine_accuracy": 0.5, "epoch": 2.0, "step": 4},
        {"train_loss": 0.35, "epoch": 2.0, "step": 4},
    ]
    left, right = plots.training(history, 0.3).axes
    found = {line.get_label(): (list(line.get_xdata()), list(line.get_ydata())) for line in (*left.lines, *right.lines)}
    assert found == {
        "cross-entropy": ([1, 2], [0.9, 0.2]),
        "loss": ([1, 2], [0.6, 0.1]),
        "training stops below": ([0, 1], [0.3, 0.3]),
        "eval surprise": ([1, 2], [50, 75]),
        "eval cosine": ([1, 2], [25, 50]),
    }
    assert len(plots.training(history[:2]).axes) == 1
    assert plots.training([*history[:2], {"loss": 0.5}]).axes  # an entry of someone's own
    with pytest.raises(ValueError, match="no epoch's cross_entropy"):
        plots.training(history[-1:])
