"""SurpriseKMeans: scikit-learn's contract, and the assignment against the definition."""

from __future__ import annotations

import logging
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.cluster import KMeans
from sklearn.datasets import make_blobs
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.metrics import adjusted_rand_score
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler
from sklearn.utils.estimator_checks import check_estimator
from threadpoolctl import threadpool_info, threadpool_limits
from transformers.utils import logging as transformers_logging

import surprise_hf
from surprise_hf import Ensemble, SurpriseKMeans, SurpriseModel
from surprise_hf.scoring import surprise

OPTIONS = [
    {},
    {"assign": "cosine"},
    {"assign": "mixed"},
    {"iterate": "surprise"},
    {"balanced": True},
    {"batch_size": 64},
    {"n_clusters": "auto"},
]


def documents(n: int = 900, dim: int = 24, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Six loose groups of different width that all lean one way, and the group of each row."""
    x, y = make_blobs(n, dim, centers=6, cluster_std=[1, 2, 3, 4, 5, 6], center_box=(-6, 6), random_state=seed)
    return x + 8 * np.eye(dim)[0], y


def unit(x: np.ndarray) -> np.ndarray:
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def z_by_definition(x: np.ndarray, centres: np.ndarray) -> np.ndarray:
    psi = unit(x) @ unit(centres).T
    return (psi - psi.mean(axis=0)) / psi.std(axis=0)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_scikit_learns_contract(options: dict) -> None:
    results = check_estimator(SurpriseKMeans(**options), on_fail=None, on_skip=None)
    assert len(results) > 40
    assert [r["check_name"] for r in results if r["status"] not in ("passed", "skipped")] == []
    # what scikit-learn skips is array API input, where SCIPY_ARRAY_API is not set
    assert {r["check_name"] for r in results if r["status"] == "skipped"} <= {"check_array_api_input"}


def test_k_means_has_as_many_threads_as_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    seen, fit = [], KMeans.fit

    def spy(self: KMeans, *args: object) -> KMeans:
        seen.append({pool["num_threads"] for pool in threadpool_info()})
        return fit(self, *args)

    monkeypatch.setattr(KMeans, "fit", spy)
    before, threads = threadpool_info(), torch.get_num_threads()
    try:
        with threadpool_limits(2):
            torch.set_num_threads(1)
            for clusters in (3, "auto"):
                SurpriseKMeans(clusters, max_clusters=4, random_state=0).fit(documents(60)[0])
    finally:
        torch.set_num_threads(threads)
    assert len(seen) > 3
    assert all(pools == {1} for pools in seen)
    assert threadpool_info() == before


# --- assignment --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_elements_go_where_they_surprise_most(dtype: type) -> None:
    x, _ = documents()
    model = SurpriseKMeans(6, random_state=0).fit(x.astype(dtype))
    kmeans = KMeans(6, random_state=np.random.RandomState(0), n_init="auto").fit(unit(x).astype(dtype))
    np.testing.assert_allclose(model.cluster_centers_, kmeans.cluster_centers_, rtol=1e-4, atol=1e-6)
    z = z_by_definition(x, model.cluster_centers_)
    assert model.labels_.tolist() == z.argmax(axis=1).tolist()
    np.testing.assert_allclose(model.transform(x.astype(dtype)), z, rtol=1e-4, atol=1e-4)
    cosine = SurpriseKMeans(6, assign="cosine", random_state=0).fit(x)
    assert cosine.labels_.tolist() == (unit(x) @ unit(cosine.cluster_centers_).T).argmax(axis=1).tolist()
    assert (cosine.labels_ != model.labels_).any()


@pytest.mark.parametrize(
    "options",
    [
        {"max_iter": 1},
        {"tol": 0.9},
        {"init": "random", "n_init": 1},
        {"init": "random"},
        {"init": documents(6, seed=2)[0]},
    ],
    ids=str,
)
def test_options_of_k_means_are_scikit_learns(options: dict) -> None:
    x = documents()[0]
    model = SurpriseKMeans(6, random_state=0, **options).fit(x)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        kmeans = KMeans(6, random_state=np.random.RandomState(0), **options).fit(unit(x))
    np.testing.assert_allclose(model.cluster_centers_, kmeans.cluster_centers_, rtol=1e-6, atol=1e-9)
    assert (model.n_iter_, model.inertia_) == (kmeans.n_iter_, pytest.approx(kmeans.inertia_))


@pytest.mark.parametrize("n_cross", [1, 1000, 1e6])
def test_mixed_is_the_score_with_its_crossover(n_cross: float) -> None:
    x, _ = documents()
    model = SurpriseKMeans(6, assign="mixed", n_cross=n_cross, random_state=0).fit(x)
    rows, centres = torch.from_numpy(x), torch.from_numpy(model.cluster_centers_)
    score = surprise(rows, centres, n_cross=n_cross)
    np.testing.assert_allclose(model.transform(x), score, atol=1e-9)
    ends = {1: "surprise", 1e6: "cosine"}
    if n_cross in ends:
        other = SurpriseKMeans(6, assign=ends[n_cross], random_state=0).fit(x)
        assert model.labels_.tolist() == other.labels_.tolist()
    else:
        assert model.labels_.tolist() == score.argmax(dim=1).tolist()


@pytest.mark.parametrize("iterate", ["cosine", "surprise"])
@pytest.mark.parametrize(
    ("assign", "balanced"),
    [("surprise", False), ("surprise", True), ("cosine", False), ("cosine", True), ("mixed", False)],
)
def test_transform_is_what_rows_are_assigned_by(assign: str, balanced: bool, iterate: str) -> None:
    x, new = documents()[0], documents(seed=3)[0]
    model = SurpriseKMeans(6, assign=assign, balanced=balanced, iterate=iterate, random_state=0).fit(x)
    assert model.transform(x).argmax(axis=1).tolist() == model.labels_.tolist()
    assert model.transform(new).argmax(axis=1).tolist() == model.predict(new).tolist()
    if assign == "mixed":
        return
    psi, context = (unit(rows) @ unit(model.cluster_centers_).T for rows in (new, x))
    z = psi if assign == "cosine" else (psi - context.mean(axis=0)) / context.std(axis=0)
    price = z - model.transform(new)  # one for each cluster, whatever the row
    np.testing.assert_allclose(price, np.broadcast_to(price[0], price.shape), atol=1e-9)
    assert (np.abs(price[0]).max() > 1e-3) == balanced


@pytest.mark.parametrize("assign", ["surprise", "cosine", "mixed"])
def test_the_score_is_the_mean_of_what_is_maximised(assign: str) -> None:
    x, new = documents()[0], documents(seed=3)[0]
    model = SurpriseKMeans(6, assign=assign, random_state=0).fit(x)
    psi, context = (unit(rows) @ unit(model.cluster_centers_).T for rows in (new, x))
    z = (psi - context.mean(axis=0)) / context.std(axis=0)
    if assign == "mixed":
        z = surprise(torch.from_numpy(new), torch.from_numpy(model.cluster_centers_), torch.from_numpy(x)).numpy()
    wanted = psi if assign == "cosine" else z
    assert model.score(new) == pytest.approx(wanted.max(axis=1).mean())
    assert model.set_output(transform="pandas").score(new) == pytest.approx(wanted.max(axis=1).mean())
    same = SurpriseKMeans(1, assign=assign).fit(np.ones((3, 4)))
    assert np.isfinite([same.score(np.ones((2, 4))), same.score(np.eye(4))]).all()


def test_options_set_after_the_fit_wait_for_the_next() -> None:
    x = documents()[0]
    for before, after in (("surprise", "mixed"), ("mixed", "surprise"), ("cosine", "mixed")):
        model = SurpriseKMeans(6, assign=before, random_state=0).fit(x)
        transformed, predicted, score = model.transform(x), model.predict(x), model.score(x)
        model.set_params(assign=after)
        np.testing.assert_array_equal(model.transform(x), transformed)
        np.testing.assert_array_equal(model.predict(x), predicted)
        assert model.score(x) == score


def test_new_rows_are_judged_against_the_fitted_ones() -> None:
    x, _ = documents()
    model = SurpriseKMeans(6, random_state=0).fit(x)
    assert model.predict(x).tolist() == model.labels_.tolist()
    new = documents(seed=3)[0]
    psi, context = unit(new) @ unit(model.cluster_centers_).T, unit(x) @ unit(model.cluster_centers_).T
    z = (psi - context.mean(axis=0)) / context.std(axis=0)
    assert model.predict(new).tolist() == z.argmax(axis=1).tolist()
    assert model.predict(new[7:8]).tolist() == [z[7].argmax()]


def test_rounds_by_surprise_end_where_nothing_moves() -> None:
    x, _ = documents()
    with warnings.catch_warnings():
        warnings.simplefilter("error", ConvergenceWarning)  # of max_iter
        model = SurpriseKMeans(6, iterate="surprise", random_state=0).fit(x)
    once = SurpriseKMeans(6, random_state=0).fit(x)
    assert model.n_iter_ > once.n_iter_
    means = np.stack([unit(x)[model.labels_ == j].mean(axis=0) for j in range(6)])
    np.testing.assert_allclose(model.cluster_centers_, means, atol=1e-12)
    assert model.labels_.tolist() == z_by_definition(x, means).argmax(axis=1).tolist()
    with pytest.warns(ConvergenceWarning, match="max_iter=1"):
        SurpriseKMeans(6, iterate="surprise", max_iter=1, random_state=0).fit(x)


@pytest.mark.parametrize("assign", ["surprise", "cosine"])
def test_balanced_clusters(assign: str) -> None:
    x, y = documents(1200)
    keep = np.concatenate([np.flatnonzero(y == group)[: 200 if group < 4 else 40] for group in range(6)])
    x = x[keep]  # two groups a fifth as large as the others
    plain = np.bincount(SurpriseKMeans(6, assign=assign, random_state=0).fit(x).labels_, minlength=6)
    model = SurpriseKMeans(6, assign=assign, balanced=True, random_state=0).fit(x)
    sizes = np.bincount(model.labels_, minlength=6)
    assert plain.max() > 1.2 * len(x) / 6
    assert sizes.max() <= 1.05 * len(x) / 6
    assert model.predict(x).tolist() == model.labels_.tolist()


def test_a_cluster_that_loses_all_its_elements_stays_in_place() -> None:
    x = torch.from_numpy(unit(documents()[0]))
    model = SurpriseKMeans(3, max_iter=1)
    model.ensemble_, model.n_iter_ = Ensemble.from_embeddings(x), 0
    centres = torch.stack((x[0], x[0], x.mean(dim=0)))  # of two alike, all go to the first
    with pytest.warns(ConvergenceWarning):
        moved = model._iterate(x, centres)
    assert torch.equal(moved[1], centres[1])
    assert torch.isfinite(moved).all()
    assert not torch.equal(moved[0], centres[0])


@pytest.mark.parametrize("copies", range(4, 10))
def test_what_can_not_be_balanced_is_left_no_worse(copies: int) -> None:
    """All copies of a row are in one cluster whatever it costs; the other keeps what it has."""
    x = np.eye(3)[[0] * copies + [1]]
    sizes = np.bincount(SurpriseKMeans(2, balanced=True, random_state=0).fit(x).labels_, minlength=2)
    assert sorted(sizes) == [1, copies]


def test_balancing_moves_no_more_than_it_must() -> None:
    """Where sizes are equal already, prices stay at nothing."""
    x, _ = make_blobs(600, 16, centers=4, center_box=(-9, 9), random_state=1)
    plain = SurpriseKMeans(4, random_state=0).fit(x)
    assert SurpriseKMeans(4, balanced=True, random_state=0).fit(x).labels_.tolist() == plain.labels_.tolist()


def test_mini_batches_find_the_same_groups() -> None:
    x, y = make_blobs(3000, 16, centers=5, center_box=(-9, 9), random_state=1)
    model = SurpriseKMeans(5, batch_size=256, n_init=5, random_state=0).fit(x)
    assert adjusted_rand_score(y, model.labels_) > 0.99


@pytest.mark.parametrize("groups", [3, 7])
def test_k_is_found(groups: int) -> None:
    x, y = make_blobs(700, 16, centers=groups, center_box=(-9, 9), random_state=1)
    model = SurpriseKMeans("auto", max_clusters=12, n_init=5, random_state=0).fit(x)
    assert model.n_clusters_ == groups == len(model.cluster_centers_)
    assert model.silhouettes_[groups] == max(model.silhouettes_.values())
    assert adjusted_rand_score(y, model.labels_) > 0.99


# --- names -------------------------------------------------------------------------------------------------------


def test_names_by_surprise() -> None:
    x, _ = documents()
    model = SurpriseKMeans(6, random_state=0).fit(x)
    words = np.concatenate((unit(model.cluster_centers_)[::-1], documents(40, seed=5)[0]))
    names = [f"centre {5 - i}" for i in range(6)] + [f"word {i}" for i in range(40)]
    psi, context = unit(model.cluster_centers_) @ unit(words).T, unit(x) @ unit(words).T
    z = (psi - context.mean(axis=0)) / context.std(axis=0)
    expected = [[names[i] for i in np.argsort(-row)[:3]] for row in z]
    assert model.name_clusters(names, words, top=3) == expected
    assert model.name_clusters(names, torch.from_numpy(words), top=3) == expected
    assert [len(found) for found in model.name_clusters(names[:5], words[:5], top=9)] == [5] * 6


def test_distinct_names() -> None:
    x, _ = documents()
    model = SurpriseKMeans(6, random_state=0).fit(x)
    words = np.concatenate((unit(model.cluster_centers_), unit(model.cluster_centers_[:1]) + 1e-3))
    names = [f"centre {i}" for i in range(6)] + ["near centre 0"]
    found = model.name_clusters(names, words, distinct=True)
    assert len({name for (name,) in found}) == 6
    assert [name for (name,) in found][1:] == names[1:6]
    for options, message in (
        ({"embeddings": words[:3]}, "7 names but 3"),
        ({}, "give the embeddings"),
        ({"embeddings": words, "model": object()}, "give the embeddings"),
        ({"embeddings": words, "top": 2, "distinct": True}, "distinct=True needs"),
    ):
        with pytest.raises(ValueError, match=message):
            model.name_clusters(names, **options)
    with pytest.raises(ValueError, match="at least 6 names"):
        model.name_clusters(names[:5], words[:5], distinct=True)


def test_distinct_names_of_which_one_is_as_near_to_all_elements() -> None:
    """It deviates by nothing, and means of elements are nearer to it than any of them: z is infinite."""
    x, _ = documents()
    x = np.concatenate((np.full((len(x), 1), 0.6), 0.8 * unit(x)), axis=1).astype(np.float32)
    model = SurpriseKMeans(6, random_state=0).fit(x)
    words = np.concatenate((np.eye(25)[:1], unit(model.cluster_centers_)))
    found = model.name_clusters([str(i) for i in range(7)], words, distinct=True)
    assert len({name for (name,) in found}) == 6
    assert ["0"] in found


def test_names_by_a_model(st_path: Path) -> None:
    from sentence_transformers import SentenceTransformer

    encoder = SentenceTransformer(str(st_path), device="cpu")
    texts = ["sport ball game", "team win goal", "bread soup cheese", "cook taste food"] * 5
    model = SurpriseKMeans(2, random_state=0).fit(encoder.encode(texts))
    names = ["sport", "food", "music"]
    expected = model.name_clusters(names, encoder.encode(names), top=3)
    assert {name for found in expected for name in found} == set(names)
    for given in (encoder, SurpriseModel.from_encoder(encoder), st_path, str(st_path)):
        for form in (names, tuple(names), iter(names), np.array(names), "sport,food , music", dict.fromkeys(names, 0)):
            assert model.name_clusters(form, model=given, top=3) == expected
    described = {"a": "sport", "b": "food", "c": "music"}
    plain = dict(zip(names, described, strict=True))
    assert model.name_clusters(described, model=encoder, top=3) == [[plain[i] for i in found] for found in expected]
    with pytest.raises(TypeError, match="model must be a SurpriseModel, SentenceTransformer or name, got int"):
        model.name_clusters(names, model=3)


@pytest.mark.parametrize("terminal", [True, False])
def test_embedding_names_shows_progress_as_every_call_does(
    st_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture, terminal: bool
) -> None:
    """On a terminal alone, whatever the level of the log; SentenceTransformer.encode goes by the level alone."""
    transformers_logging.enable_progress_bar()  # whatever the command line's tests left
    monkeypatch.setattr("sys.stderr.isatty", lambda: terminal, raising=False)
    monkeypatch.setattr(logging.getLogger("sentence_transformers"), "level", logging.INFO)
    encoder = SurpriseModel(str(st_path), device="cpu")
    model = SurpriseKMeans(2, random_state=0).fit(encoder.encode(["sport", "ball", "food", "soup"]))
    capsys.readouterr()
    model.name_clusters([f"word {i}" for i in range(40)], model=encoder)
    assert ("Batches" in capsys.readouterr().err) == terminal


# --- input -------------------------------------------------------------------------------------------------------


def test_every_kind_of_array() -> None:
    import pandas as pd

    x = documents(200)[0]
    expected = SurpriseKMeans(4, random_state=0).fit_predict(x).tolist()
    for given in (
        torch.from_numpy(x),
        pd.DataFrame(x),
        x.tolist(),
        np.asfortranarray(x),
        torch.from_numpy(x.T.copy()).T,
    ):
        assert SurpriseKMeans(4, random_state=0).fit_predict(given).tolist() == expected


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_computed_in_float32(dtype: torch.dtype) -> None:
    half = torch.from_numpy(documents(200)[0]).to(dtype).requires_grad_()
    wide = half.detach().float()
    model, expected = (SurpriseKMeans(4, random_state=0).fit(x) for x in (half, wide))
    assert model.cluster_centers_.dtype == np.float32
    assert model.labels_.tolist() == expected.labels_.tolist() == model.predict(half).tolist()
    np.testing.assert_array_equal(model.transform(half), expected.transform(wide))
    names = [f"word {i}" for i in range(200)]
    assert model.name_clusters(names, half, top=3) == expected.name_clusters(names, wide, top=3)


def test_silhouettes_are_of_the_last_fit() -> None:
    x = documents(200)[0]
    model = SurpriseKMeans("auto", max_clusters=5, random_state=0).fit(x)
    assert list(model.silhouettes_) == [2, 3, 4, 5]
    assert model.fit(np.ones((10, x.shape[1]))).silhouettes_ == {}
    assert SurpriseKMeans("auto").fit(np.ones((10, 4))).silhouettes_ == {}
    model.fit(x).set_params(n_clusters=3).fit(x)
    assert not hasattr(model, "silhouettes_")


def test_degenerate_rows() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # scikit-learn: fewer distinct rows than clusters
        for x in (np.ones((10, 4)), np.zeros((5, 4)), np.eye(4)):
            for options in OPTIONS:
                model = SurpriseKMeans(**{"n_clusters": 2, **options}).fit(x)
                assert not np.isnan(model.transform(x)).any()
                assert model.labels_.max() < model.n_clusters_
    assert SurpriseKMeans("auto").fit(np.ones((10, 4))).n_clusters_ == 1


def test_options_are_checked() -> None:
    x = documents(50)[0]
    for options, message in (
        ({"n_clusters": 0}, "n_clusters must be a positive integer"),
        ({"n_clusters": 51}, "n_samples=50 should be >= n_clusters=51"),
        ({"assign": "dot"}, "assign must be one of"),
        ({"iterate": "mixed"}, "iterate must be one of"),
        ({"assign": "mixed", "balanced": True}, "balanced=True needs"),
        ({"max_clusters": 0}, "max_clusters must be"),
    ):
        with pytest.raises(ValueError, match=message):
            SurpriseKMeans(**options).fit(x)


def test_in_scikit_learns_company() -> None:
    x, y = make_blobs(300, 16, centers=4, center_box=(-9, 9), random_state=1)
    pipe = make_pipeline(FunctionTransformer(), SurpriseKMeans(4, random_state=0))
    assert adjusted_rand_score(y, pipe.fit_predict(x)) > 0.99
    search = GridSearchCV(SurpriseKMeans(random_state=0), {"n_clusters": [2, 4]}, scoring="adjusted_rand_score", cv=2)
    assert search.fit(x, y).best_params_ == {"n_clusters": 4}
    search = GridSearchCV(SurpriseKMeans(random_state=0), {"n_clusters": [2, 4]}, cv=2)  # by its own score
    assert search.fit(x).best_params_ == {"n_clusters": 4}
    assert clone(SurpriseKMeans(3, assign="cosine")).get_params()["assign"] == "cosine"


@pytest.mark.parametrize("options", [{"n_clusters": 5}, {"n_clusters": "auto", "max_clusters": 6, "assign": "mixed"}])
def test_columns_are_named_as_scikit_learn_names_them(options: dict) -> None:
    x = pd.DataFrame(documents()[0]).add_prefix("x")
    pipe = make_pipeline(StandardScaler(), SurpriseKMeans(**options, random_state=0)).set_output(transform="pandas")
    frame = pipe.fit_transform(x)
    kmeans = pipe[-1]
    names = [f"surprisekmeans{i}" for i in range(len(kmeans.cluster_centers_))]
    assert frame.columns.tolist() == pipe.get_feature_names_out().tolist() == names
    assert frame.index.equals(x.index)
    scaled = pipe[0].transform(x)
    plain = SurpriseKMeans(**options, random_state=0).fit_transform(scaled.to_numpy())
    np.testing.assert_array_equal(frame.to_numpy(), plain)
    np.testing.assert_array_equal(frame.to_numpy().argmax(axis=1), kmeans.predict(scaled))
    with pytest.raises(NotFittedError):
        SurpriseKMeans().get_feature_names_out()


def test_public_name_is_lazy() -> None:
    assert surprise_hf.SurpriseKMeans is SurpriseKMeans


def test_a_string_is_no_truth_value():
    """ "False" is true."""
    with pytest.raises(ValueError, match="balanced must be True or False, got 'False'"):
        SurpriseKMeans(2, balanced="False").fit(np.eye(4, dtype=np.float32))
