"""Labels stored in a model: their vectors, their options, and that they follow what they were fitted to."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from surprise_hf import SurpriseModel, SurpriseZeroShotPipeline
from surprise_hf.fitted import FittedLabels

TEXTS = [f"{a} {b} {c}" for a in ("sport", "bank", "rain", "dog") for b in ("red", "one") for c in ("vote", "gene")]
LABELS = ["sport", "money", "animal"]
DESCRIBED = {"a": "ball game", "b": "bank price", "c": "dog and cat"}
VECTORS = torch.randn(3, 32, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def model(st_path: Path) -> SurpriseModel:
    return SurpriseModel(str(st_path), device="cpu")


def by_label(results: list[dict[str, Any]]) -> list[dict[str, float]]:
    return [dict(zip(one["labels"], one["scores"], strict=True)) for one in results]


def close(found: list[dict[str, float]], want: list[dict[str, float]]) -> None:
    for one, other in zip(found, want, strict=True):
        assert one == pytest.approx({name: other[name] for name in one}, abs=1e-5)


# --- vectors from examples ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("templates", ["this is {}", ("this is {}", "{}!")])
@pytest.mark.parametrize("labels", [LABELS, DESCRIBED], ids=["names", "described"])
def test_vectors_go_with_their_labels(model, labels, templates):
    """In any order, of any number of them: by hand, the rows that were given."""
    model.set_labels(labels, templates, vectors=VECTORS)
    stored = model.candidate_labels
    for order in ([0, 1, 2], [2, 1, 0], [1], [2, 0]):
        found = model.label_vectors([stored[i] for i in order], templates)
        assert torch.equal(found, VECTORS[order])
    assert torch.equal(model.label_vectors(stored, "a {}"), model.name_vectors(stored, "a {}"))  # other texts


def test_two_labels_of_one_description_keep_their_own_vectors(model):
    model.set_labels({"a": "ball", "b": "ball"}, vectors=VECTORS[:2])
    first, second = model.candidate_labels
    assert torch.equal(model.label_vectors([second, first], model.hypothesis_template), VECTORS[[1, 0]])
    assert torch.equal(model.label_vectors(["ball"], model.hypothesis_template), VECTORS[:1])  # the text is the same


def test_labels_without_examples_are_known_by_name_and_said_so_once(model):
    model.set_labels(LABELS, vectors=VECTORS)
    template = model.hypothesis_template
    with pytest.warns(UserWarning, match="known by examples.*, but 'music' by name alone") as told:
        found, _ = (model.label_vectors(["animal", "music", "sport"], template) for _ in range(2))
    assert len(told) == 1
    assert torch.equal(found[[0, 2]], VECTORS[[2, 0]])
    torch.testing.assert_close(found[1:2], model.embed(["this matter is music"])[0])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(model.label_vectors(["music"], template), model.name_vectors(["music"], template))
    model.set_labels(LABELS[:2], vectors=VECTORS[:2])
    with pytest.warns(UserWarning, match="but 'music' by name alone"):
        model.label_vectors([LABELS[0], "music"], template)


@pytest.mark.parametrize("with_ensemble", [True, False])
@pytest.mark.parametrize("labels", ["reversed", "some", "of each document"])
def test_few_shot_labels_in_another_order_score_the_same(model, labels, with_ensemble):
    pipe = SurpriseZeroShotPipeline(model, surprise_weight=1, refine=0)
    if with_ensemble:
        pipe.fit_ensemble(TEXTS)
    pipe.fit_labels(TEXTS[:12], [LABELS[i % 3] for i in range(12)], candidate_labels=LABELS)
    want = by_label(pipe(TEXTS))
    by_name = by_label(pipe(TEXTS, LABELS, hypothesis_template="this matter  is {}"))  # another text of the same tokens
    assert max(abs(one[name] - other[name]) for one, other in zip(want, by_name, strict=True) for name in one) > 0.01
    asked = {"reversed": LABELS[::-1], "some": LABELS[1:], "of each document": [LABELS[1:], LABELS[:2]] * 8}[labels]
    close(by_label(pipe(TEXTS, asked)), want)


@pytest.mark.parametrize("weight", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("labels", [DESCRIBED, dict(reversed(DESCRIBED.items()))], ids=["as stored", "reversed"])
def test_described_labels_in_another_order_are_not_taken_for_the_stored(model, labels, weight):
    """Dicts are equal in any order; the fitted labels have one."""
    pipe = SurpriseZeroShotPipeline(model).fit_ensemble(TEXTS).set_labels(DESCRIBED, surprise_weight=weight)
    close(by_label(pipe(TEXTS, labels)), by_label(pipe(TEXTS)))


# --- options -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("with_ensemble", [True, False])
@pytest.mark.parametrize("options", [{"weight": 1.0}, {"n_cross": 10}, {"weight": 1.0, "refine": 3}], ids=str)
def test_stored_options_go_with_the_same_labels_given_again(model, options, with_ensemble):
    if with_ensemble:
        model.fit_ensemble(TEXTS)
    pipe = SurpriseZeroShotPipeline(model)
    asked = {f"surprise_{name}" if name == "weight" else name: value for name, value in options.items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        want = pipe(TEXTS, LABELS, **asked)
        assert want != pipe(TEXTS, LABELS)
        model.set_labels(LABELS, **options)
        assert pipe(TEXTS) == pipe(TEXTS, list(LABELS)) == want
        assert pipe(TEXTS, LABELS[:2], surprise_weight=0.5) != want


def test_a_threshold_takes_the_estimator_that_is_stored(model):
    pipe = SurpriseZeroShotPipeline(model.fit_ensemble(TEXTS))
    for stored, found in (({}, "auto"), ({"estimator": "quantile"}, "quantile")):
        model.set_labels(LABELS, **stored)
        assert pipe.scorer(threshold=0.9).all_options["estimator"] == found


WRONG = [
    ({"weight": 5}, ValueError, "weight must be between 0"),
    ({"weight": True}, ValueError, "weight must be between 0"),
    ({"n_cross": 0}, ValueError, "n_cross must be a positive number"),
    ({"weight": 1, "n_cross": -3}, ValueError, "n_cross must be a positive number"),
    ({"estimator": "foo"}, ValueError, "estimator must be one of"),
    ({"refine": "atuo"}, ValueError, "refine must be 'auto' or a number"),
    ({"refine": 2.0}, ValueError, "refine must be 'auto' or a number"),
    ({"refine": True}, ValueError, "refine must be 'auto' or a number"),
    ({"foo": 1}, TypeError, "unknown option foo; known are weight, n_cross, estimator, refine"),
]


@pytest.mark.parametrize(("options", "error", "message"), WRONG, ids=lambda x: str(x)[:20])
def test_options_are_checked_before_there_is_an_ensemble(model, options, error, message):
    with pytest.raises(error, match=message):
        model.set_labels(LABELS, **options)
    assert model.candidate_labels is None
    assert model.fit_options == {}


@pytest.mark.parametrize(
    "options", [{"estimator": "gausian"}, {"refine": "atuo"}, {"n_cross": 0}, {"surprise_weight": 5}], ids=str
)
def test_a_call_checks_its_options_before_it_reads_a_document(model, options):
    def never():
        raise AssertionError("a document was read")
        yield ""

    with pytest.raises(ValueError, match="must be"):
        SurpriseZeroShotPipeline(model)(never(), LABELS, **options)


@pytest.mark.parametrize(
    "options",
    [
        {"weight": np.float32(0.5), "refine": np.int64(2)},
        {"n_cross": np.int64(500)},
        {"n_cross": np.float64(0.5), "estimator": np.str_("quantile")},
    ],
    ids=str,
)
def test_numbers_of_numpy_are_numbers(model, options, tmp_path):
    plain = {name: value.item() for name, value in options.items()}
    model.fit_ensemble(TEXTS).set_labels(LABELS, **options)
    assert model.fit_options == plain
    assert {type(value) for value in model.fit_options.values()} <= {int, float, str}
    model.save_pretrained(tmp_path)
    again = SurpriseModel(str(tmp_path), device="cpu")
    assert again.fit_options == plain
    emb, _ = model.embed(TEXTS)
    want = FittedLabels.fit(model.name_vectors(LABELS, model.hypothesis_template), model.ensemble, **plain)
    torch.testing.assert_close(again.fitted.score(emb), want.score(emb), rtol=0, atol=1e-6)


# --- labels added later ------------------------------------------------------------------------------------------

MORE = {"vote": "vote and party", "gene": "gene and cell"}


@pytest.mark.parametrize(
    "options",
    [{"weight": 1.0}, {"weight": 0.5}, {"weight": 1.0, "refine": 4}, {"weight": 1.0, "estimator": "empirical"}],
    ids=str,
)
def test_labels_added_leave_the_scores_of_the_others(model, options, tmp_path):
    """The old by what they scored before, the new by their formula."""
    model.fit_ensemble(TEXTS).set_labels(LABELS, **options)
    emb, _ = model.embed(TEXTS)
    before, old = model.fitted.score(emb), model.fitted
    pipe = SurpriseZeroShotPipeline(model)
    assert pipe.add_labels(MORE) is pipe
    assert model.candidate_labels == [*LABELS, *MORE]
    assert torch.equal(model.fitted.score(emb)[:, :3], before)
    names, _ = model.embed(["this matter is vote and party", "this matter is gene and cell"])
    want = old.extended(names, model.ensemble, refine=options.get("refine", 0))
    torch.testing.assert_close(model.fitted.score(emb), want.score(emb), rtol=0, atol=1e-6)
    found = by_label(pipe(TEXTS))
    for one, row in zip(found, want.score(emb).tolist(), strict=True):
        assert one == pytest.approx(dict(zip([*LABELS, *MORE], row, strict=True)), abs=1e-6)
    model.save_pretrained(tmp_path)
    close(by_label(SurpriseZeroShotPipeline(SurpriseModel(str(tmp_path), device="cpu"))(TEXTS)), found)


@pytest.mark.parametrize("fit", ["no ensemble", "documents added later"])
def test_labels_added_are_one_set_where_all_are_fitted_anew(st_path, fit):
    models = [SurpriseModel(str(st_path), device="cpu") for _ in range(2)]
    for model in models:
        if fit != "no ensemble":
            model.fit_ensemble(TEXTS[:9])
        model.set_labels(LABELS if model is models[0] else [*LABELS, "vote"], weight=1.0, refine=3)
    models[0].add_labels("vote")
    if fit != "no ensemble":
        for model in models:
            model.fit_ensemble(TEXTS[9:], update=True)
    found, want = (by_label(SurpriseZeroShotPipeline(model)(TEXTS)) for model in models)
    close(found, want)


def test_a_label_added_to_labels_of_examples_is_known_by_name(model, tmp_path):
    model.set_labels(LABELS, vectors=VECTORS)
    with pytest.warns(UserWarning, match="known by examples.*, but 'music' by name alone"):
        model.add_labels(["music"])
    vectors = torch.cat((VECTORS, model.embed(["this matter is music"])[0]))
    assert torch.equal(model.label_vectors([*LABELS, "music"], model.hypothesis_template), vectors)
    model.save_pretrained(tmp_path)
    again = SurpriseModel(str(tmp_path), device="cpu")
    torch.testing.assert_close(again.label_vectors(again.candidate_labels, again.hypothesis_template), vectors)


@pytest.mark.parametrize(
    ("stored", "labels", "message"),
    [
        (None, ["music"], "no labels are stored that these could be added to"),
        (LABELS, ["music", "money"], "candidate_labels 1 and 4 are both 'money'"),
        (LABELS, [], "candidate_labels is empty"),
        (LABELS, 3, "candidate_labels must be a list of labels"),
    ],
)
def test_labels_that_can_not_be_added_change_nothing(model, stored, labels, message):
    model.fit_ensemble(TEXTS).set_labels(stored)
    before = model.fitted
    with pytest.raises(ValueError, match=message):
        model.add_labels(labels)
    assert (model.candidate_labels, model.fitted) == (stored, before)


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_a_stopped_addition_changes_nothing(model, error, monkeypatch):
    model.fit_ensemble(TEXTS).set_labels(LABELS, vectors=VECTORS, weight=1.0)
    before = model.fitted

    def stop(*_: object, **__: object) -> None:
        raise error("stopped")

    monkeypatch.setattr(FittedLabels, "extended", stop)
    with pytest.raises(error, match="stopped"), pytest.warns(UserWarning, match="by name alone"):
        model.add_labels(["music"])
    assert (model.candidate_labels, model.fitted) == (LABELS, before)
    assert torch.equal(model.label_vectors(LABELS, model.hypothesis_template), VECTORS)


# --- what they are fitted to -------------------------------------------------------------------------------------


@pytest.mark.parametrize("weight", [0.5, 1.0])
def test_stored_labels_follow_an_ensemble_updated_in_place(model, weight, tmp_path):
    model.fit_ensemble(TEXTS[:9]).set_labels(LABELS, weight=weight)
    emb, _ = model.embed(TEXTS)
    assert model.fitted is model.fitted
    model.ensemble.update(emb[9:])
    want = FittedLabels.fit(model.name_vectors(LABELS, model.hypothesis_template), model.ensemble, weight=weight)
    for found in (model.fitted, SurpriseZeroShotPipeline(model).scorer().fit(emb)):
        torch.testing.assert_close(found.score(emb), want.score(emb), rtol=0, atol=1e-6)
    model.ensemble.update(emb[:1])
    model.save_pretrained(tmp_path)
    again = SurpriseModel(str(tmp_path), device="cpu")
    want = FittedLabels.fit(model.name_vectors(LABELS, model.hypothesis_template), model.ensemble, weight=weight)
    torch.testing.assert_close(again.fitted.score(emb), want.score(emb), rtol=0, atol=1e-6)


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_a_stopped_setting_leaves_the_vectors(model, error, monkeypatch):
    model.fit_ensemble(TEXTS).set_labels(LABELS, vectors=VECTORS, weight=1.0)

    def stop(*_: object, **__: object) -> None:
        raise error("stopped")

    monkeypatch.setattr(FittedLabels, "fit", stop)
    with pytest.raises(error, match="stopped"):
        model.set_labels(["music", "food"])
    assert model.candidate_labels == LABELS
    assert torch.equal(model.label_vectors(LABELS, model.hypothesis_template), VECTORS)


def test_a_size_of_sample_that_an_update_can_not_have(model):
    model.fit_ensemble(TEXTS, reservoir=5)
    with pytest.raises(ValueError, match="a reservoir of 5 rows, and documents added to it can't change that to 100"):
        model.fit_ensemble(TEXTS, reservoir=100, update=True)
    assert len(model.ensemble) == 16
    model.fit_ensemble(TEXTS, reservoir=5, update=True)
    SurpriseZeroShotPipeline(model).fit_ensemble(TEXTS, update=True)
    assert (len(model.ensemble), len(model.ensemble.reservoir)) == (48, 5)
    assert len(SurpriseModel.fit_ensemble(model, TEXTS, update=False, reservoir=3).ensemble.reservoir) == 3


def test_two_threads_get_the_vectors_of_their_own_labels(model, monkeypatch):
    """Another thread's labels came between a look at what is kept and its use."""
    want, real = model.embed(LABELS)[0], SurpriseModel.__setattr__

    def overtaken(self: Any, name: str, value: Any) -> None:
        real(self, name, value)
        if name == "_label_vectors":
            real(self, name, ("another thread's", torch.zeros(2, 32)))

    monkeypatch.setattr(SurpriseModel, "__setattr__", overtaken)
    assert torch.equal(model.name_vectors(LABELS, "{}"), want)


@pytest.mark.parametrize("labels", [None, LABELS, LABELS[:2]], ids=["stored", "the same", "others"])
def test_a_threshold_fits_labels_once(model, labels, monkeypatch):
    pipe = SurpriseZeroShotPipeline(model).fit_ensemble(TEXTS).set_labels(LABELS, surprise_weight=1)
    fits, real = [], FittedLabels.fit
    monkeypatch.setattr(FittedLabels, "fit", lambda *a, **k: fits.append(k) or real(*a, **k))
    found = [pipe(text, labels, threshold=0.6) for text in TEXTS]
    assert len(fits) == 1
    for one, other in zip(found, pipe(TEXTS, labels, threshold=0.6), strict=True):
        assert one["labels"] == other["labels"]
        assert one["scores"] == pytest.approx(other["scores"], abs=1e-5)  # a batch rounds in another way than one text
    assert len(fits) == 1
    pipe(TEXTS, labels, threshold=0.6, surprise_weight=0.5)
    model.ensemble.update(model.embed(TEXTS[:2])[0])
    again = pipe(TEXTS, labels, threshold=0.6)
    assert len(fits) == 3
    fresh = SurpriseZeroShotPipeline(model)
    model._last_fit = None
    assert fresh(TEXTS, labels, threshold=0.6) == again
