"""The comparison of methods against scikit-learn, hand-made cases and the binomial interval."""

from __future__ import annotations

import dataclasses
import math
import sys
import types
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score, f1_score

from surprise_hf import SurpriseModel, SurpriseZeroShotPipeline, comparison, plots
from surprise_hf.comparison import HOW, METHODS, compare, predictions, split
from surprise_hf.few_shot import fit_labels
from surprise_hf.scoring import surprise
from surprise_hf.targets import as_matrix

LABELS = ["a", "b", "c", "d"]


def guesses(truth: torch.Tensor, right: float, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    other = torch.randint(4, truth.shape, generator=generator)
    return torch.where(torch.rand(len(truth), generator=generator) < right, truth, other).unsqueeze(1)


def test_accuracy_and_f1_are_those_of_scikit_learn():
    truth = torch.randint(4, (300,), generator=torch.Generator().manual_seed(0))
    found = [("cosine", guesses(truth, 0.2, 1), 0.5), ("surprise", guesses(truth, 0.7, 2), 0.25)]
    result = compare(found, LABELS, as_matrix(truth.unsqueeze(1).tolist(), 4))
    for i, (_, best, _) in enumerate(found):
        assert float(result.accuracy[i, 0]) == pytest.approx(accuracy_score(truth, best[:, 0]), abs=1e-12)
        assert float(result.f1[i, 0]) == pytest.approx(f1_score(truth, best[:, 0], average="macro"), abs=1e-12)
        each = f1_score(truth, best[:, 0], average=None)
        assert result.label_f1[i].tolist() == pytest.approx(each.tolist(), abs=1e-12)
    gain = result.accuracy[1, 0] - result.accuracy[0, 0]
    assert result.gain[:, 0].tolist() == pytest.approx([0.0, float(gain)], abs=1e-12)
    assert result.seconds == (0.5, 0.25)


def test_what_is_known_so_far_after_each_method_computed_once(monkeypatch: pytest.MonkeyPatch):
    truth = torch.randint(4, (50,), generator=torch.Generator().manual_seed(0))
    found = [
        (name, guesses(truth, right, i + 1), 0.0)
        for i, (name, right) in enumerate((("a", 0.2), ("b", 0.2), ("c", 0.9)))
    ]
    positive = as_matrix(truth.unsqueeze(1).tolist(), 4)
    wanted = [compare(found[:i], LABELS, positive) for i in (1, 2, 3)]
    seen, sampled = [], comparison._sampled
    monkeypatch.setattr(comparison, "_sampled", lambda *given: seen.append(0) or sampled(*given))
    for i, so_far in enumerate(comparison.comparisons(iter(found), LABELS, positive)):
        assert len(seen) == i + 1
        assert so_far.rows() == wanted[i].rows()
        assert (so_far.advised, so_far.advice) == (wanted[i].advised, wanted[i].advice)
    assert [one.advised for one in wanted] == ["a", "a", "c"]
    assert wanted[0].advice == "No advice: a (a) was tried alone, on 50 documents."  # it beat nothing


def test_labels_are_integers_of_any_width():
    truth = torch.randint(4, (50,), generator=torch.Generator().manual_seed(0))
    best, positive = guesses(truth, 0.5, 1), as_matrix(truth.unsqueeze(1).tolist(), 4)
    wanted = compare([("a", best, 0.0)], LABELS, positive).rows()
    for dtype in (torch.uint8, torch.int32):
        assert compare([("a", best.to(dtype), 0.0)], LABELS, positive).rows() == wanted


def test_the_interval_is_that_of_a_share():
    """Of n documents with share p right, the bootstrap's ends are p -+ 1.96 sqrt(p (1 - p) / n)."""
    n, right = 2000, 1400
    truth = torch.zeros(n, dtype=torch.int64)
    best = torch.zeros(n, 1, dtype=torch.int64)
    best[right:] = 1
    result = compare([("cosine", best, 0.0)], LABELS, as_matrix(truth.unsqueeze(1).tolist(), 4))
    half = 1.96 * math.sqrt(0.7 * 0.3 / n)
    assert result.accuracy[0].tolist() == pytest.approx([0.7, 0.7 - half, 0.7 + half], abs=2e-3)


def test_the_interval_of_a_gain_is_paired():
    """Right on the same documents but for 20 of 400: the gain varies by these alone, not as two shares would."""
    n, truth = 400, torch.zeros(400, dtype=torch.int64)
    one, other = (torch.ones(n, 1, dtype=torch.int64) for _ in range(2))
    one[:200], other[:220] = 0, 0
    found = [("cosine", one, 0.0), ("surprise", other, 0.0)]
    result = compare(found, LABELS, as_matrix(truth.unsqueeze(1).tolist(), 4))
    half = 1.96 * math.sqrt(0.05 * 0.95 / n)
    assert result.gain[1].tolist() == pytest.approx([0.05, 0.05 - half, 0.05 + half], abs=3e-3)
    assert result.gain[0].tolist() == [0.0, 0.0, 0.0]


def test_a_label_that_never_occurs_does_not_count():
    truth = [[0], [1], [1]]
    result = compare([("cosine", torch.tensor([[0], [1], [0]]), 0.0)], LABELS, as_matrix(truth, 4))
    assert result.label_f1[0, :2].tolist() == pytest.approx([2 / 3, 2 / 3])
    assert result.label_f1[0, 2:].isnan().all()
    assert float(result.f1[0, 0]) == pytest.approx(2 / 3)


def test_documents_with_several_labels_or_none():
    positive = as_matrix([[0, 1], [2], []], 4)
    best = torch.tensor([[0, 2], [2, 0], [3, 1]])  # one of two found, the only one found, left out
    result = compare([("cosine", best, 0.0)], LABELS, positive)
    assert result.documents == 2
    assert float(result.accuracy[0, 0]) == 0.75
    # label 0: 1 of 1 found; 1: 0 of 1; 2: found once rightly, once wrongly
    assert result.label_f1[0, :3].tolist() == pytest.approx([1.0, 0.0, 2 / 3])
    with pytest.raises(ValueError, match="no document has a label"):
        compare([("cosine", best[:1], 0.0)], LABELS, torch.zeros(1, 4, dtype=torch.bool))


@pytest.mark.parametrize(
    ("rights", "advised", "words"),
    [
        ((0.3, 0.8, 0.82), "surprise", "refined is 2.0 points ahead of it"),  # by chance only
        ((0.3, 0.5, 0.9), "refined", 'refine="auto"'),
        ((0.6, 0.62, 0.61), "cosine", "chance"),
        ((0.9, 0.3, 0.3), "cosine", "nothing else did better"),
    ],
)
def test_the_simplest_that_no_other_beats_is_advised(rights: tuple[float, ...], advised: str, words: str):
    n = 400
    truth = torch.zeros(n, dtype=torch.int64)
    found = []
    for name, right in zip(METHODS, rights, strict=True):
        best = torch.ones(n, 1, dtype=torch.int64)
        best[: round(right * n)] = 0
        found.append((name, best, 0.0))
    found[1] = (found[1][0], found[1][1].roll(37, 0), 0.0)  # not right on the same documents
    found[2] = (found[2][0], found[2][1].roll(91, 0), 0.0)
    result = compare(found, LABELS, as_matrix(truth.unsqueeze(1).tolist(), 4))
    assert result.advised == advised
    assert words in result.advice


def test_split_gives_away_so_many_of_each_label():
    truth = torch.arange(4).repeat(10)
    positive = as_matrix(truth.unsqueeze(1).tolist(), 4)
    given, tested = split(positive, 3, seed=1)
    assert truth[given].bincount().tolist() == [3, 3, 3, 3]
    assert sorted([*given.tolist(), *tested.tolist()]) == list(range(40))
    assert not torch.equal(given, split(positive, 3, seed=2)[0])
    assert split(positive, 0, 0)[1].tolist() == list(range(40))
    absent = torch.nn.functional.pad(positive, (0, 1))  # a label that no document has takes none
    assert torch.equal(split(absent, 3, seed=1)[0], given)
    assert len(split(positive, 8, 0)[1]) == 8
    with pytest.raises(ValueError, match="shots=9 leave too few documents to test: the rarest label has 10 in all"):
        split(positive, 9, 0)
    with pytest.raises(ValueError, match="one label each"):
        split(as_matrix([[0, 1], [0], [1]], 2), 1, 0)


@pytest.mark.parametrize("template", [None, "{} ball game"])
def test_predictions_are_the_decisions_of_surprise(st_path, monkeypatch, template):
    model = SurpriseModel.from_pretrained(st_path, device="cpu")
    texts = [f"{verb} the {thing}" for thing in ("match", "election", "bank") for verb in ("win", "vote", "taste")]
    labels = ["sport", "politics", "money"]
    positive = as_matrix([[i // 3] for i in range(9)], 3)
    found = {name: best for name, best, _ in predictions(model, texts, labels, positive, template=template)}
    assert list(found) == list(METHODS)
    emb, vectors = model.embed(texts)[0], model.label_vectors(labels, template or model.hypothesis_template)
    cosine = torch.nn.functional.cosine_similarity(emb.unsqueeze(1), vectors, dim=2)
    assert torch.equal(found["cosine"][:, 0], cosine.argmax(dim=1))
    assert torch.equal(found["surprise"][:, 0], surprise(emb, vectors, weight=1).argmax(dim=1))
    monkeypatch.setitem(sys.modules, "setfit", None)  # it is not there; should it be, it takes minutes
    with_shots = {name: best for name, best, _ in predictions(model, texts, labels, positive, shots=1)}
    assert list(with_shots) == [*METHODS, "examples"]
    assert {len(best) for best in with_shots.values()} == {6}


@pytest.mark.parametrize("shots", [0, 1])
def test_names_are_judged_whatever_examples_the_model_knows(shots, st_path, monkeypatch):
    """ "cosine" and all the others start from the labels' names; they were those that examples had moved."""
    monkeypatch.setitem(sys.modules, "setfit", None)
    plain, taught = (SurpriseModel.from_pretrained(st_path, device="cpu") for _ in range(2))
    texts = [f"{verb} the {thing}" for thing in ("match", "election", "bank") for verb in ("win", "vote", "taste")]
    labels, positive = ["sport", "politics", "money"], as_matrix([[i // 3] for i in range(9)], 3)
    fit_labels(taught, texts, [labels[i % 3] for i in range(9)], candidate_labels=labels)
    want, found = (list(predictions(model, texts, labels, positive, shots=shots)) for model in (plain, taught))
    assert [name for name, _, _ in found] == [*METHODS, *(["examples"] if shots else [])]
    for (_, one, _), (_, other, _) in zip(found, want, strict=True):
        assert torch.equal(one, other)


def test_examples_move_labels_away_from_the_middle_of_what_is_tested(st_path, monkeypatch):
    """The middle of unit rows; and they are refined as far as examples beside so many documents should be."""
    monkeypatch.setitem(sys.modules, "setfit", None)
    seen = []
    monkeypatch.setattr(comparison, "part_labels", lambda *given: seen.append(given) or given[0])
    monkeypatch.setattr(comparison, "refinement_beside", lambda *given: seen.append(given) or 0)
    model = SurpriseModel.from_pretrained(st_path, device="cpu")
    texts = [f"{verb} the {thing}" for thing in ("match", "election", "bank") for verb in ("win", "vote", "taste")]
    positive = as_matrix([[i // 3] for i in range(9)], 3)
    list(predictions(model, texts, ["sport", "politics", "money"], positive, shots=1))
    (_, documents, right, centre), sizes = seen
    given, tested = split(positive, 1, 0)
    emb = model.embed(texts)[0]
    torch.testing.assert_close(documents, emb[given])
    assert torch.equal(right, positive[given])
    torch.testing.assert_close(centre, torch.nn.functional.normalize(emb[tested]).mean(dim=0))
    assert sizes == (3, 6)


def test_each_advice_is_the_call_that_was_measured(st_path, monkeypatch):
    """That for examples left the documents and the weight out, and decided otherwise."""
    monkeypatch.setitem(sys.modules, "setfit", None)
    things = {"sport": ("match", "goal", "coach"), "politics": ("election", "vote", "law"), "money": ("bank", "stock")}
    verbs = ("win", "taste", "trade", "sun and", "red", "the one", "old dog in a")
    rows = [(f"{verb} the {thing}", label) for label, all_of in things.items() for thing in all_of for verb in verbs]
    texts, truth, names = [text for text, _ in rows], [label for _, label in rows], list(things)
    positive = as_matrix([[names.index(label)] for label in truth], 3)
    model = SurpriseModel.from_pretrained(st_path, device="cpu")
    for shots in (0, 2):
        given, tested = (rows.tolist() for rows in split(positive, shots, 0))
        documents = [texts[i] for i in tested]
        for name, best, _ in predictions(model, texts, names, positive, shots=shots):
            pipe = SurpriseZeroShotPipeline(SurpriseModel.from_pretrained(st_path, device="cpu"))
            known = {"pipe": pipe, "documents": documents}
            if name == "examples":
                eval(HOW[name], known | {"texts": [texts[i] for i in given], "labels": [truth[i] for i in given]})
                found = pipe(documents)
            else:
                found = pipe(documents, names, **eval(f"dict({HOW[name].replace(' and ', ', ')})"))
            assert [one["labels"][0] for one in found] == [names[at] for at in best[:, 0].tolist()], name


class FakeSetFit(types.ModuleType):
    """SetFit's interface as `predictions` uses it; its answer is the number that ends a text."""

    class SetFitModel:
        def __init__(self, model_body, model_head):
            self.model_body, self.model_head = model_body, model_head

        def predict(self, texts, as_numpy):
            assert as_numpy
            return np.array([int(text[-1]) for text in texts])

    class TrainingArguments:
        def __init__(self, output_dir, seed, report_to, save_strategy):
            assert Path(output_dir).is_dir()
            self.given = seed, report_to, save_strategy

    class Trainer:
        def __init__(self, model, args, train_dataset):
            FakeSetFit.seen = model, train_dataset, args.given

        def train(self):
            pass


def test_setfit_learns_from_the_shots_and_is_asked_for_the_rest(st_path, monkeypatch):
    module = FakeSetFit("setfit")
    monkeypatch.setitem(sys.modules, "setfit", module)
    model = SurpriseModel.from_pretrained(st_path, device="cpu")
    texts = [f"ball {i} {label}" for label in range(2) for i in range(5)]
    positive = as_matrix([[i // 5] for i in range(10)], 2)
    found = {name: best for name, best, _ in predictions(model, texts, ["a", "b"], positive, shots=2)}
    learner, train, given = FakeSetFit.seen
    assert given == (0, "none", "no")
    assert sorted(train["label"]) == [0, 0, 1, 1]
    assert all(text.endswith(str(label)) for text, label in zip(train["text"], train["label"], strict=True))
    assert learner.model_body is not model  # SetFit trains it
    assert found["SetFit"].tolist() == [[0]] * 3 + [[1]] * 3
    assert set(train["text"]).isdisjoint(texts[i] for i in split(positive, 2, 0)[1].tolist())


def test_picture():
    truth = torch.randint(4, (60,), generator=torch.Generator().manual_seed(0))
    found = [("cosine", guesses(truth, 0.1, 1), 0.0), ("surprise", guesses(truth, 0.9, 2), 0.0)]
    result = compare(found, LABELS, as_matrix(truth.unsqueeze(1).tolist(), 4))
    accuracy = torch.tensor([[0.3, 0.2, 0.6], [0.9, 0.7, 0.95]])  # intervals that are longer on one side
    result = dataclasses.replace(result, accuracy=accuracy)
    left, right = plots.comparison(result).axes
    for i, (bars,) in enumerate(line.lines[2] for line in left.containers):
        ends = [float(x) for x, _ in bars.get_segments()[0]]
        assert ends == pytest.approx((100 * result.accuracy[i, 1:]).tolist())
    assert [tick.get_text() for tick in left.get_yticklabels()] == ["cosine", "surprise"]
    drawn = {text.get_text() for text in left.texts}
    assert drawn == {f"{100 * float(value):.1f}" for value in result.accuracy[:, 0]}
    assert sorted(tick.get_text() for tick in right.get_yticklabels()) == LABELS


def test_what_does_not_fit_is_named() -> None:
    positive = torch.nn.functional.one_hot(torch.arange(20) % 2).bool()
    best = torch.zeros(20, 1, dtype=torch.int64)
    for shots in (-1, 2.5, True):
        with pytest.raises(ValueError, match="shots must be a positive integer, got"):
            split(positive, shots, 0)
    for found, labels, message in (
        ([], ["a", "b"], "no method to compare"),
        ([("cosine", best, 0.0)], ["a"], r"positive must have shape \(documents, 1\), got \(20, 2\)"),
        ([("cosine", best[1:], 0.0)], ["a", "b"], "cosine gives labels for 19 documents, but there are 20"),
        (
            [("x", best[:, 0], 0.0)],
            ["a", "b"],
            r"x must give labels .* shape \(documents, k\).*int64 of shape \(20,\)",
        ),
        ([("x", best[..., None], 0.0)], ["a", "b"], r"int64 of shape \(20, 1, 1\)"),
        ([("x", best[:, :0], 0.0)], ["a", "b"], r"int64 of shape \(20, 0\)"),
        ([("x", best.float(), 0.0)], ["a", "b"], r"float32 of shape \(20, 1\)"),
        ([("x", best + 2, 0.0)], ["a", "b"], "x gives labels from 2 to 2, but there are 2, numbered from 0"),
        ([("x", best - 1, 0.0)], ["a", "b"], "x gives labels from -1 to -1, but there are 2, numbered from 0"),
    ):
        with pytest.raises(ValueError, match=message):
            compare(found, labels, positive)
