"""What the pictures show: the numbers drawn, not the pixels."""

from __future__ import annotations

import sys
import types

import matplotlib as mpl
import numpy as np
import pytest
import scipy.stats
import torch
from matplotlib import pyplot as plt
from torch import Tensor

from surprise_hf import plots
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


def test_the_users_style_stays() -> None:
    before = dict(mpl.rcParams)
    plots.heat_map(torch.zeros(1, 1), ["a"])
    assert dict(mpl.rcParams) == before


def test_without_matplotlib_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match=r'pip install "surprise-hf\[plots\]"'):
        plots.heat_map(torch.zeros(1, 1), ["a"])


def test_errors() -> None:
    for call, message in (
        (lambda: plots.histogram(rows(9), rows(41, seed=1)), "1 to 40 labels, got 41"),
        (lambda: plots.heat_map(torch.zeros(2, 3), ["a"]), r"shape \(documents, 1\), got \(2, 3\)"),
        (lambda: plots.heat_map(torch.zeros(2, 1), ["a"], ["x"]), "2 rows of scores but 1 documents"),
        (lambda: plots.heat_map(torch.zeros(61, 1), ["a"]), "got 61 and 1"),
        (lambda: plots.ensemble_size(rows(9), rows(1)), "20 documents or more, got 9"),
        (lambda: plots.ensemble_size(rows(30), rows(1), sizes=[31]), "between 2 and the 30 documents"),
    ):
        with pytest.raises(ValueError, match=message):
            call()


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
    with pytest.raises(ValueError, match="no epoch's cross_entropy"):
        plots.training(history[-1:])
