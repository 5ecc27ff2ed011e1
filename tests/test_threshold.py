"""Thresholds, label descriptions and several templates, through the pipeline with a real encoder."""

from __future__ import annotations

import copy
import json
import pickle
import re
from pathlib import Path

import pytest
import torch

from surprise_hf import Ensemble, inputs
from surprise_hf.fitted import FittedLabels
from surprise_hf.model import SurpriseModel
from surprise_hf.pipeline import SurpriseZeroShotPipeline

SUBJECTS = {
    "sports": ["striker", "goalkeeper", "sprinter", "tennis champion", "coach", "basketball team"],
    "cooking": ["chef", "baker", "soup recipe", "roast chicken", "chocolate cake", "pasta sauce"],
    "astronomy": ["telescope", "comet", "distant galaxy", "moon of Jupiter", "supernova", "black hole"],
}
ENDS = ["was praised last week", "surprised everybody", "is talked about again", "got a long article", "was the best",
        "is better than expected", "came up at dinner", "will be remembered", "has a new book about it",
        "was on television", "cost a lot", "made people smile"]  # fmt: skip
DOCUMENTS = [f"The {subject} {end}." for subjects in SUBJECTS.values() for subject in subjects for end in ENDS]
TRUTH = [label for label, subjects in SUBJECTS.items() for _ in subjects for _ in ENDS]
STRANGE = [
    "Please reset my password.",
    "01001 11010 ERROR 0x3f",
    "Lorem ipsum dolor sit amet",
    "How do I get a refund?",
]


@pytest.fixture(scope="module")
def model(minilm_path: Path) -> SurpriseModel:
    return SurpriseModel(str(minilm_path), device="cpu").fit_ensemble(DOCUMENTS)


@pytest.fixture(scope="module")
def pipe(model: SurpriseModel) -> SurpriseZeroShotPipeline:
    return SurpriseZeroShotPipeline(model, surprise_weight=1.0)


def test_single_label_threshold_is_the_law_of_the_best(pipe: SurpriseZeroShotPipeline, model: SurpriseModel) -> None:
    texts = DOCUMENTS[::7] + STRANGE
    results = pipe(texts, list(SUBJECTS), threshold=0.8)
    queries = model.label_vectors(list(SUBJECTS), "this matter is {}")
    fitted = FittedLabels.fit(queries, model.ensemble, estimator="auto", weight=1)
    emb = model.embed(texts)[0]
    want = (fitted.accept(emb) >= 0.8).tolist()
    assert [bool(result["labels"]) for result in results] == want
    assert True in want[: -len(STRANGE)]
    assert not any(want[-len(STRANGE) :])
    for result, scores in zip(results, fitted.rank(emb)[0].tolist(), strict=True):
        assert result["scores"] in ([], pytest.approx(scores, abs=1e-6))


def test_multi_label_threshold_is_the_law_of_a_label(pipe: SurpriseZeroShotPipeline, model: SurpriseModel) -> None:
    queries = model.label_vectors(list(SUBJECTS), "this matter is {}")
    results = pipe(DOCUMENTS, list(SUBJECTS), threshold=0.9, multi_label=True)
    fitted = FittedLabels.fit(queries, model.ensemble, estimator="auto", weight=1)
    score = fitted.score(model.embed(DOCUMENTS)[0])
    assert [len(result["labels"]) for result in results] == (score >= 0.9).sum(dim=1).tolist()
    foreign = sum(label != own for result, own in zip(results, TRUTH, strict=True) for label in result["labels"])
    assert foreign / (2 * len(DOCUMENTS)) < 0.2


@pytest.mark.parametrize(
    ("documents", "options", "words"),
    [
        (216, {"surprise_weight": 0.5, "multi_label": True}, "w = 0.500.*keeps its promise at surprise_weight=1 alone"),
        (216, {"multi_label": True}, "w = 0.213.*keeps its promise at surprise_weight=1 alone"),
        (100, {"surprise_weight": 1.0}, "has 100 documents, and a threshold takes 200"),
        (100, {}, "w = 0.100.*keeps its promise at surprise_weight=1 alone"),
        (216, {"surprise_weight": 1.0}, None),
        (216, {"surprise_weight": 1.0, "multi_label": True}, None),
        (100, {"surprise_weight": 1.0, "multi_label": True}, None),
        *(
            (count, {"surprise_weight": 1.0, "estimator": name}, f"estimator='{name}' looks at each label alone")
            for count in (100, 216)
            for name in ("gaussian", "quantile", "empirical")
        ),
        (216, {"surprise_weight": 1.0, "estimator": "tail"}, None),
        (216, {"surprise_weight": 1.0, "estimator": "gaussian", "multi_label": True}, None),
        (216, {"surprise_weight": 0.5, "estimator": "gaussian"}, "w = 0.500.*keeps its promise at surprise_weight=1"),
    ],
)
def test_a_threshold_that_cannot_keep_its_promise_says_so(model, recwarn, documents, options, words):
    pipe = SurpriseZeroShotPipeline(model)
    pipe(DOCUMENTS[:2], list(SUBJECTS), threshold=0.9, ensemble=model.embed(DOCUMENTS[:documents])[0], **options)
    found = [str(one.message) for one in recwarn]
    assert len(found) == (words is not None)
    assert words is None or re.search(words, found[0])


@pytest.mark.parametrize(("reservoir", "silent"), [(0, False), (100, False), (4096, True)])
@pytest.mark.parametrize("stored", [False, True])
def test_a_threshold_takes_embeddings_not_their_number(minilm_path, model, recwarn, reservoir, silent, stored):
    """Mean and covariance of 216 documents tell no more of the best of several labels than 100 documents do."""
    ensemble = Ensemble(model.dim, reservoir=reservoir).update(model.embed(DOCUMENTS)[0])
    own = SurpriseModel(str(minilm_path), device="cpu")
    own.set_ensemble(ensemble)
    given = {"candidate_labels": list(SUBJECTS), "surprise_weight": 1.0}
    if stored:
        own.set_labels(list(SUBJECTS), weight=1)
        given = {}
    SurpriseZeroShotPipeline(own)(DOCUMENTS[:2], threshold=0.9, **given)
    found = [str(one.message) for one in recwarn]
    assert len(found) == (not silent)
    words = f"has {reservoir} embeddings of its 216 documents, and a threshold takes 200"
    assert silent or words in found[0]


def test_one_label_has_no_best_of_several(model: SurpriseModel, recwarn: pytest.WarningsRecorder) -> None:
    pipe = SurpriseZeroShotPipeline(model)
    one = pipe(DOCUMENTS, ["sports"], threshold=0.9, surprise_weight=1.0, estimator="gaussian")
    each = pipe(DOCUMENTS, ["sports"], threshold=0.9, surprise_weight=1.0, estimator="gaussian", multi_label=True)
    assert one == each
    assert not recwarn.list


def test_an_estimator_that_is_asked_for_stays(pipe: SurpriseZeroShotPipeline) -> None:
    plain = pipe(DOCUMENTS[:9], list(SUBJECTS))
    asked = pipe(DOCUMENTS[:9], list(SUBJECTS), threshold=0.99, multi_label=True, estimator="gaussian")
    for one, other in zip(plain, asked, strict=True):
        assert other["scores"] == [score for score in one["scores"] if score >= 0.99]


def test_limits_of_the_pipeline_can_be_taken_back(model: SurpriseModel) -> None:
    limited = SurpriseZeroShotPipeline(model, surprise_weight=1.0, threshold=0.99, top_k=1)
    free = SurpriseZeroShotPipeline(model, surprise_weight=1.0)
    texts = DOCUMENTS[:9] + STRANGE
    assert not all(result["labels"] for result in limited(texts, list(SUBJECTS)))
    assert limited(texts, list(SUBJECTS), threshold=0, top_k=99) == free(texts, list(SUBJECTS))
    assert limited(texts, list(SUBJECTS), threshold=0) == free(texts, list(SUBJECTS), top_k=1)


def test_strangeness_is_looked_at_where_it_decides(pipe: SurpriseZeroShotPipeline, monkeypatch) -> None:
    """It costs d^2 for each document."""
    asked = []
    accept = FittedLabels.accept
    monkeypatch.setattr(FittedLabels, "accept", lambda *a, **k: asked.append(1) or accept(*a, **k))
    plain = pipe(DOCUMENTS[:5], list(SUBJECTS), estimator="tail")
    pipe(DOCUMENTS[:5], list(SUBJECTS), estimator="tail", threshold=0.5, multi_label=True)
    assert asked == []
    some = pipe(DOCUMENTS[:5], list(SUBJECTS), estimator="tail", threshold=0.5)
    assert asked == [1]
    assert [one for one in some if one["labels"]] == [a for a, b in zip(plain, some, strict=True) if b["labels"]]


def test_refine_auto_in_the_pipeline(pipe: SurpriseZeroShotPipeline) -> None:
    plain = [result["labels"][0] for result in pipe(DOCUMENTS, list(SUBJECTS))]
    refined = [result["labels"][0] for result in pipe(DOCUMENTS, list(SUBJECTS), refine="auto")]
    right = [sum(a == b for a, b in zip(found, TRUTH, strict=True)) for found in (plain, refined)]
    assert right[1] > right[0]
    with pytest.raises(ValueError, match="refine must be 'auto' or a number of rounds"):
        pipe(DOCUMENTS[:3], list(SUBJECTS), refine="much")


# --- descriptions ------------------------------------------------------------------------------------------------

DESCRIBED = {"a": "sports, games and athletes", "b": "food and cooking", "c": "space, planets and stars"}


def test_descriptions_are_embedded_and_names_given_back(pipe: SurpriseZeroShotPipeline) -> None:
    by_text = pipe(DOCUMENTS[::5], list(DESCRIBED.values()))
    by_name = pipe(DOCUMENTS[::5], DESCRIBED)
    name = {text: label for label, text in DESCRIBED.items()}
    assert [r["scores"] for r in by_name] == [r["scores"] for r in by_text]
    assert [r["labels"] for r in by_name] == [[name[label] for label in r["labels"]] for r in by_text]
    assert {type(label) for r in by_name for label in r["labels"]} == {str}


def test_descriptions_and_templates_are_saved(minilm_path: Path, tmp_path: Path) -> None:
    model = SurpriseModel(str(minilm_path), device="cpu").fit_ensemble(DOCUMENTS)
    model.set_labels(DESCRIBED, ["this is {}", "{}"])
    pipe = SurpriseZeroShotPipeline(model, surprise_weight=1.0)
    want = pipe(DOCUMENTS[:5])
    pipe.save_pretrained(tmp_path / "saved")
    again = SurpriseModel.from_pretrained(str(tmp_path / "saved"), device="cpu")
    assert again.hypothesis_template == ("this is {}", "{}")
    assert [label.text for label in again.candidate_labels or []] == list(DESCRIBED.values())
    assert SurpriseZeroShotPipeline(again, surprise_weight=1.0)(DOCUMENTS[:5]) == want
    # the same names with other descriptions are other labels
    swapped = dict(zip(DESCRIBED, reversed(DESCRIBED.values()), strict=True))
    assert SurpriseZeroShotPipeline(again)(DOCUMENTS[0], swapped)["labels"][0] == "c"
    assert SurpriseZeroShotPipeline(again)(DOCUMENTS[0])["labels"][0] == "a"


def test_what_counts_as_a_description() -> None:
    assert inputs.hypotheses(inputs.as_labels({"x": " long text ", "y": None, "z": 3}), "<{}>") == [
        "<long text>", "<y>", "<z>",
    ]  # fmt: skip
    assert inputs.as_labels({"x": "long text", "y": 0}) == ["x", "y"]
    described = inputs.as_labels({"x": "long", "y": 0})
    assert inputs.as_json(described) == {"x": "long", "y": "y"}
    assert inputs.hypotheses(inputs.as_labels(json.loads(json.dumps(inputs.as_json(described)))), "{}") == ["long", "y"]
    assert inputs.as_json(inputs.as_labels(["x", 1])) == ["x", 1]
    for twin in (copy.deepcopy(described), pickle.loads(pickle.dumps(described)), inputs.as_labels(described)):
        assert inputs.hypotheses(twin, "{}") == ["long", "y"]
    with pytest.raises(ValueError, match="description of label 'x' is blank"):
        inputs.as_labels({"x": " "})
    with pytest.raises(ValueError, match="label 1 has a description, so its name must be a string"):
        inputs.as_labels({1: "one"})


# --- templates ---------------------------------------------------------------------------------------------------


def test_embeddings_of_several_templates_are_averaged(model: SurpriseModel) -> None:
    labels, templates = ["sports", "cooking"], ("this is {}", "{}!", "{}")
    each = [torch.nn.functional.normalize(model.label_vectors(labels, one)) for one in templates]
    torch.testing.assert_close(model.label_vectors(labels, templates), sum(each) / 3, rtol=0, atol=1e-6)
    pipe = SurpriseZeroShotPipeline(model, surprise_weight=1.0)
    one, same = (pipe(DOCUMENTS[:3], labels, hypothesis_template=t) for t in ("this is {}", ["this is {}"] * 2))
    for a, b in zip(one, same, strict=True):
        assert a["labels"] == b["labels"]
        assert a["scores"] == pytest.approx(b["scores"], abs=1e-5)


@pytest.mark.parametrize(
    ("template", "message"),
    [([], "empty list"), (["no slot"], "exactly once"), (["{}", 3], "must be a string or a list"), (7, "got int")],
)
def test_templates_are_checked(pipe: SurpriseZeroShotPipeline, template: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        pipe(DOCUMENTS[:3], ["a", "b"], hypothesis_template=template)
