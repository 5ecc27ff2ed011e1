"""Labels from examples, and examples from documents."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import yaml
from datasets import ClassLabel, Dataset, DatasetInfo, Features, Value
from scipy.optimize import minimize
from scipy.special import log_softmax
from transformers import pipeline

from surprise_hf import SurpriseModel, inputs, pseudo_label, surprise
from surprise_hf.few_shot import aim_labels, fit_labels, mix_labels, part_labels, surest
from surprise_hf.fitted import FittedLabels
from surprise_hf.ops import unit_rows
from surprise_hf.targets import read_targets
from tests.model_data import load

GROUPS = ("sport ball game", "bank money market", "rain snow wind")
DOCUMENTS = [f"{words} {more}" for words in GROUPS for more in ("one", "two", "red")]
LABELS = ["sport", "money", "weather"]


# --- labels from examples --------------------------------------------------------------------------------------------


def test_mixing_by_hand():
    """Two examples weigh as much as the name, whose length it has; as many that have no label put c, the mean, at 0."""
    vectors = torch.tensor([[2.0, 0.0], [0.0, 5.0]], dtype=torch.float64)
    examples = torch.tensor([[0.0, 3.0], [0.0, -2.0], [0.0, 1.0], [0.0, -1.0]], dtype=torch.float64)
    positive = torch.tensor([[True, False], [False, False]] * 2)
    mixed = mix_labels(vectors, examples, positive)
    torch.testing.assert_close(mixed[0], torch.tensor([0.5, 0.5], dtype=torch.float64).sqrt())
    torch.testing.assert_close(mixed[1], torch.tensor([0.0, 1.0], dtype=torch.float64))  # without example: its name
    once = mix_labels(vectors, examples[:2], positive[:2])
    torch.testing.assert_close(once[0], unit_rows(torch.tensor([[2.0, 1.0]], dtype=torch.float64))[0])


@pytest.mark.parametrize("weighted", [False, True])
def test_mixing_around_a_centre(weighted):
    """The formula in NumPy; a label turns around the centre and stays as far from it as its name.

    Weights may add up to less than one example.
    """
    draw = np.random.default_rng(0)
    q, k = (draw.normal(size=(n, 5)) + 1 for n in (2, 7))
    weight = draw.uniform(0.1, 0.3, size=7) if weighted else np.ones(7)

    def u(x):
        return x / np.linalg.norm(x, axis=-1, keepdims=True)

    c = np.average(u(k), axis=0, weights=weight)
    positive = np.arange(7)[:, None] % 2 == np.arange(2)  # four examples and three
    turned = []
    for name, own in zip(u(q), positive.T, strict=True):
        mean = np.average(u(k)[own], axis=0, weights=weight[own])
        turned.append(2 * u(name - c) + weight[own].sum() * u(mean - c))
    expected = c + np.linalg.norm(u(q) - c, axis=1, keepdims=True) * u(np.stack(turned))
    given = torch.from_numpy(weight) if weighted else None
    found = mix_labels(*map(torch.from_numpy, (q, k, positive)), weight=given)
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_many_examples_outweigh_the_name():
    torch.manual_seed(0)
    centre, group = torch.randn(2, 16, dtype=torch.float64)
    has = torch.arange(1000)[:, None] % 2 == 0  # the others have no label
    examples = unit_rows(centre + torch.where(has, group, -group) + 0.1 * torch.randn(1000, 16, dtype=torch.float64))
    middle = examples.mean(dim=0)
    mixed = mix_labels(torch.randn(1, 16, dtype=torch.float64), examples, has)
    towards = unit_rows(examples[::2].mean(dim=0)[None] - middle)
    assert float(unit_rows(mixed - middle)[0] @ towards[0]) > 0.999


@pytest.mark.parametrize("function", [mix_labels, part_labels])
def test_a_weight_is_as_many_times_the_example(function):
    draw = torch.Generator().manual_seed(0)
    names, examples = (torch.randn(n, 6, dtype=torch.float64, generator=draw) for n in (3, 7))
    positive = torch.arange(7)[:, None] % 3 == torch.arange(3)
    positive[5] = True
    times = torch.tensor([1, 3, 0, 2, 1, 2, 0])
    expected = function(names, examples.repeat_interleave(times, 0), positive.repeat_interleave(times, 0))
    found = function(names, examples, positive, weight=times.double())
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-8)
    assert not torch.allclose(found, function(names, examples, positive), atol=1e-3)
    torch.testing.assert_close(
        function(names, examples, positive, weight=torch.ones(7)), function(names, examples, positive)
    )
    torch.testing.assert_close(function(names, examples, positive, weight=torch.zeros(7)), unit_rows(names))


def test_aims_without_what_has_no_weight():
    draw = torch.Generator().manual_seed(1)
    names, examples = (torch.randn(n, 6, dtype=torch.float64, generator=draw) + 1 for n in (2, 8))
    positive = torch.arange(8)[:, None] % 2 == torch.arange(2)
    kept = torch.tensor([1, 1, 0, 1, 1, 0, 1, 1], dtype=torch.bool)
    expected = aim_labels(names, examples[kept], positive[kept])
    for found, want in zip(aim_labels(names, examples, positive, kept.double()), expected, strict=True):
        torch.testing.assert_close(found, want)


def test_no_examples_leave_the_names():
    names = torch.randn(3, 4)
    torch.testing.assert_close(
        mix_labels(names, torch.empty(0, 4), torch.empty(0, 3, dtype=torch.bool)), unit_rows(names)
    )


def test_aims_pair_by_pair():
    """The formula in NumPy, over pairs of examples that share a label; of three labels, one without example."""
    draw = np.random.default_rng(3)
    q, k = (draw.normal(size=(n, 5)) + 1 for n in (3, 6))
    group = np.array([0, 0, 0, 1, 1, 1])
    k += 2 * draw.normal(size=(2, 5))[group]
    positive = group[:, None] == np.arange(3)

    def u(x):
        return x / np.linalg.norm(x, axis=-1, keepdims=True)

    seen = u(u(k) - u(k).mean(axis=0))
    pairs = [(i, j) for i in range(6) for j in range(6) if i != j and group[i] == group[j]]
    r = np.mean([seen[i] @ seen[j] for i, j in pairs])
    assert 0.2 < r < 0.9
    mixed = mix_labels(*map(torch.from_numpy, (q, k, positive))).numpy()
    offset, centre = aim_labels(*map(torch.from_numpy, (q, k, positive)))
    np.testing.assert_allclose(offset, 3 * r / (1 + 2 * r) * (mixed - u(q)), rtol=1e-10, atol=1e-14)
    assert not offset[2].any()
    example, name = u(k).mean(axis=0), u(q).mean(axis=0)
    np.testing.assert_allclose(centre, (example @ name) * (example + name) / 2, rtol=1e-12)


@pytest.mark.parametrize("why", ["one example each", "one each, opposite to a name", "opposite examples", "none"])
def test_names_are_aimed_at_where_examples_have_nothing_to_say(why):
    """And from where they are, unless names and examples crowd."""
    names, row = torch.eye(4)[:2], torch.tensor([[0.0, 0.0, 1.0, 0.2]])
    examples = {
        "one example each": torch.cat((row, names[:1])),
        "one each, opposite to a name": torch.cat((row, -names[:1])),
        "none": row[:0],
    }.get(why, torch.cat((row, -row)))
    positive = torch.eye(2, dtype=torch.bool)[: len(examples)]
    if why == "opposite examples":
        positive = torch.tensor([[True, False], [True, False]])
    offset, centre = aim_labels(names, examples, positive)
    assert not offset.any()
    assert bool(centre.any()) == (why == "one example each")


def test_copies_of_an_example_leave_a_label_without_any_at_its_name():
    """They are as alike as can be, r = 1, with which n r / (1 + (n - 1) r) is 0 / 0 for n = 0."""
    names, row = torch.eye(3, dtype=torch.float64), torch.tensor([[0.0, 1.0, 0.0]], dtype=torch.float64)
    positive = torch.tensor([[True, False, False], [False, True, False]]).repeat_interleave(2, dim=0)
    offset, _ = aim_labels(names, torch.cat((row, row, -row, -row)), positive)
    mixed = mix_labels(names, torch.cat((row, row, -row, -row)), positive)
    torch.testing.assert_close(offset, mixed - names)
    assert not offset[2].any()


@pytest.mark.parametrize("centred", [True, False])
def test_parted_labels_are_the_best_of_their_formula(centred):
    """Against SciPy's minimum; of examples with two labels, one label or none, and a label without examples."""
    whole = None if centred else torch.full((6,), 0.1, dtype=torch.float64)
    draw = torch.Generator().manual_seed(0)
    names, examples = (torch.randn(n, 6, dtype=torch.float64, generator=draw) + 1 for n in (4, 12))
    positive = torch.zeros(12, 4, dtype=torch.bool)
    positive[range(12), [0, 1, 2] * 4] = True
    positive[3, 1], positive[11] = True, False
    with torch.no_grad():  # as in an evaluation
        found = part_labels(names, examples, positive, whole)
    q, k = (unit_rows(x).numpy() for x in (names, examples))
    c, target = k.mean(axis=0) if whole is None else whole.numpy(), positive.double().numpy()[:11]
    target /= target.sum(axis=1, keepdims=True)
    start = 10 * (q - c) / np.linalg.norm(q - c, axis=1, keepdims=True)

    def loss(w):
        w = w.reshape(start.shape)
        return -(target * log_softmax((k[:11] - c) @ w.T, axis=1)).sum() / 11 + 0.015 * ((w - start) ** 2).sum() / 11

    best = minimize(loss, start.ravel(), tol=1e-12).x.reshape(start.shape)
    expected = c + np.linalg.norm(q - c, axis=1, keepdims=True) * best / np.linalg.norm(best, axis=1, keepdims=True)
    np.testing.assert_allclose(found[:3], expected[:3], atol=1e-3)
    assert not np.allclose(expected, q, atol=0.1)
    np.testing.assert_allclose(found[3], q[3])
    assert found.dtype == torch.float64
    assert part_labels(names.float(), examples.float(), positive).dtype == torch.float32
    assert torch.equal(part_labels(names, examples[11:], positive[11:]), unit_rows(names))
    assert torch.equal(part_labels(names, examples[:0], positive[:0]), unit_rows(names))


def test_parting_in_blocks_changes_nothing(monkeypatch):
    """Many examples of many labels are gone through in blocks."""
    torch.manual_seed(0)
    names, examples = torch.randn(7, 12, dtype=torch.float64), torch.randn(50, 12, dtype=torch.float64)
    positive = torch.eye(7, dtype=torch.bool)[torch.arange(50) % 7]
    whole = part_labels(names, examples, positive)
    monkeypatch.setattr("surprise_hf.estimators.BLOCK", 21)
    torch.testing.assert_close(part_labels(names, examples, positive), whole, rtol=1e-9, atol=1e-9)


def test_pipeline_with_examples(minilm_path, tmp_path):
    """Names that say nothing: the examples alone tell the groups apart, also after save and reload."""
    names, examples, group = ["alpha", "beta", "gamma"], DOCUMENTS[::3], ["beta", "gamma", "alpha"]
    truth = [label for label in group for _ in range(3)]
    pipe = pipeline("surprise-zero-shot", model=str(minilm_path), device="cpu", surprise_weight=1)
    before = [result["labels"][0] for result in pipe(DOCUMENTS, candidate_labels=names)]
    assert before != truth
    assert pipe.fit_labels(examples, group, documents=DOCUMENTS, surprise_weight=1) is pipe
    results = pipe(DOCUMENTS)
    assert [result["labels"][0] for result in results] == truth
    assert pipe.model.fit_options["refine"] == "auto"
    pipe.save_pretrained(tmp_path)
    again = pipeline("surprise-zero-shot", model=str(tmp_path), device="cpu")
    assert again(DOCUMENTS) == results
    assert again(DOCUMENTS[4])["labels"] == results[4]["labels"]
    # the vectors outlive another ensemble, but not other labels or another template
    refitted = again.fit_ensemble(DOCUMENTS[:-1])(DOCUMENTS)
    assert [result["labels"][0] for result in refitted] == truth
    assert [r["labels"][0] for r in again(DOCUMENTS, candidate_labels=names, hypothesis_template="{}")] != truth
    again.set_labels(names, surprise_weight=1)
    assert [result["labels"][0] for result in again(DOCUMENTS)] != truth


@pytest.mark.parametrize(
    ("documents", "asked", "refine"),
    [(9, None, "auto"), (8, None, 0), (4, None, 0), (4, 3, 3), (9, 0, 0), (None, None, "auto")],
)
def test_no_more_documents_than_examples_leave_labels_where_these_are(st_path, documents, asked, refine):
    """Ten rows, of which a blank one and one without a label are no examples: eight.

    Without an ensemble each call brings its own documents.
    """
    model = load(st_path)
    texts = [*DOCUMENTS[:8], " ", "wind"]
    given = None if documents is None else DOCUMENTS[:documents]
    fit_labels(model, texts, [*LABELS * 3, None], documents=given, refine=asked)
    assert model.fit_options["refine"] == refine


def test_without_documents_the_call_refines(st_path):
    model = load(st_path)
    pipe = pipeline("surprise-zero-shot", model=model, device="cpu")
    pipe.fit_labels(DOCUMENTS[::3], LABELS, candidate_labels=LABELS, surprise_weight=1, refine=5)
    plain = pipeline("surprise-zero-shot", model=model, device="cpu")
    emb, _ = model.embed(DOCUMENTS)
    vectors = model.label_vectors(LABELS, model.hypothesis_template)
    expected = surprise(emb, vectors, weight=1, refine=5).max(dim=1).values.tolist()
    assert [result["scores"][0] for result in plain(DOCUMENTS)] == pytest.approx(expected, abs=1e-6)


def test_examples_are_matched_with_their_labels(st_path):
    model = load(st_path)
    columns = {"text": ["sport", " ", "money", "rain"], "label": [0, 2, 1, 2]}
    rows = Dataset.from_dict(columns, Features({"text": Value("string"), "label": ClassLabel(names=LABELS)}))
    fit_labels(model, rows["text"], rows["label"])
    assert model.candidate_labels == LABELS
    blank_left_out = model.label_vectors(LABELS, model.hypothesis_template)
    fit_labels(model, ["sport", "money", "rain"], ["sport", "money", "weather"], candidate_labels=LABELS)
    torch.testing.assert_close(blank_left_out, model.label_vectors(LABELS, model.hypothesis_template))
    with pytest.raises(ValueError, match=r"document 2 .* half of a surrogate pair"):
        fit_labels(model, ["sport", " ", "half \ud800"], LABELS)
    with pytest.raises(ValueError, match="there are 2 texts but 3 labels"):
        fit_labels(model, ["sport", "money"], LABELS)
    with pytest.raises(ValueError, match="there are 1 vectors but 3 labels"):
        model.set_labels(LABELS, vectors=blank_left_out[:1])
    torch.testing.assert_close(blank_left_out, model.label_vectors(LABELS, model.hypothesis_template))


# --- examples from documents -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("texts", "labels", "options"),
    [
        (["rain"], ["x"], {"weight": 5}),
        (["rain"], ["x"], {"estimator": "quantil"}),
        (["rain", "half \ud800"], ["x", "y"], {}),
        (["rain"], ["x"], {"documents": ["wind", 5]}),
        (["rain"], ["x"], {"batch_size": 0}),
        (["a", "b", "c"], "abc", {}),
    ],
)
def test_what_is_refused_changes_nothing(st_path, texts, labels, options):
    model = load(st_path).fit_ensemble(DOCUMENTS)
    fit_labels(model, GROUPS, LABELS, weight=1)
    before = model.fitted, model.ensemble, model.fit_options
    labels_before = sorted(LABELS)
    given = model.label_vectors(labels_before, model.hypothesis_template)
    with pytest.raises(ValueError):  # noqa: PT011 (whatever it is)
        fit_labels(model, texts, labels, **{"documents": DOCUMENTS[:3], **options})
    assert model.candidate_labels == labels_before
    for was, now in zip(before, (model.fitted, model.ensemble, model.fit_options), strict=True):
        assert now is was
    assert torch.equal(model.label_vectors(labels_before, model.hypothesis_template), given)
    assert not torch.equal(model.name_vectors(labels_before, model.hypothesis_template), given)


@pytest.mark.parametrize("stop", [KeyboardInterrupt, SystemExit])
def test_an_interruption_changes_nothing(st_path, monkeypatch, stop):
    model = load(st_path).fit_ensemble(DOCUMENTS).set_labels(LABELS, weight=1)
    before = model.ensemble, model.fitted

    def stopped(*_):
        raise stop

    monkeypatch.setattr("surprise_hf.few_shot.part_labels", stopped)
    with pytest.raises(stop):
        fit_labels(model, GROUPS, LABELS, documents=DOCUMENTS[:3])
    assert model.ensemble is before[0]
    assert model.fitted is before[1]
    assert model.candidate_labels == LABELS


def test_pseudo_labels_are_the_surest(st_path):
    model = load(st_path)
    documents = [*DOCUMENTS, " ", None, DOCUMENTS[0]]
    rows = pseudo_label(model, documents, LABELS, per_label=2, refine=3)
    assert rows.features["label"].names == LABELS
    assert len(set(rows["text"])) == len(rows)
    emb, _ = model.embed(DOCUMENTS)
    z = FittedLabels.fit(model.label_vectors(LABELS, model.hypothesis_template), emb, weight=1, refine=3).z(emb)
    ordered = z.sort(dim=1, descending=True)
    gap, best = (ordered.values[:, 0] - ordered.values[:, 1]).tolist(), ordered.indices[:, 0].tolist()
    for label in range(3):
        mine = sorted((row for row in range(9) if best[row] == label), key=lambda row: -gap[row])[:2]
        assert [row["text"] for row in rows if row["label"] == label] == [DOCUMENTS[row] for row in mine]


def test_what_no_spread_tells_apart_is_the_least_sure():
    """Where sigma is 0, z is infinite: a gap of inf - inf is none, and one to a finite z is the largest."""
    z = torch.tensor([[math.inf, math.inf, 0.0], [3.0, 1.0, 2.0], [math.inf, 1.0, 0.0], [0.0, 5.0, 0.0]])
    assert surest(z, 3) == [(2, 0), (1, 0), (0, 0), (3, 1)]
    assert surest(z, 2) == [(2, 0), (1, 0), (3, 1)]


def test_pseudo_labels_keep_their_descriptions(st_path):
    """In memory, by whatever way the rows go; for a file the names are names."""
    described = {"sport": "a ball game", "money": "a bank", "weather": "rain or snow"}
    rows = pseudo_label(load(st_path), DOCUMENTS, described, per_label=2)
    for table in (rows, rows.shuffle(seed=0), rows.filter(lambda row: row["text"]), rows.train_test_split(0.5)["test"]):
        names, _ = read_targets(table["label"], None, table.features["label"])
        assert [(str(name), name.text) for name in names] == list(described.items())
    info = yaml.safe_load(yaml.dump(DatasetInfo(features=rows.features)._to_yaml_dict()))
    assert info["features"][1]["dtype"]["class_label"]["names"] == dict(zip("012", described, strict=True))


def test_examples_of_described_labels_keep_their_descriptions(st_path):
    for given, texts in ((None, ["money", "a ball game"]), (["money", "sport"], ["money", "sport"])):
        model = load(st_path).set_labels({"sport": "a ball game", "weather": "rain or snow"})
        fit_labels(model, ["bank one", "ball red"], ["money", "sport"], candidate_labels=given)
        assert [inputs.name_and_text(label) for label in model.candidate_labels] == [
            ("money", texts[0]), ("sport", texts[1]),
        ]  # fmt: skip


def test_pseudo_label_errors(st_path):
    model = load(st_path)
    with pytest.raises(ValueError, match="no labels"):
        pseudo_label(model, DOCUMENTS)
    with pytest.raises(ValueError, match="at least two labels"):
        pseudo_label(model, DOCUMENTS, ["sport"])
    with pytest.raises(ValueError, match="none of the documents has any text"):
        pseudo_label(model, [" "], LABELS)
    with pytest.raises(ValueError, match="per_label must be a positive integer"):
        pseudo_label(model, DOCUMENTS, LABELS, per_label=0)
    assert set(pseudo_label(model.set_labels(LABELS), DOCUMENTS[:1])["text"]) == {DOCUMENTS[0]}


@pytest.mark.parametrize(("texts", "labels"), [([""], ["sport"]), (["red dog"], [None])])
def test_without_any_example_the_names_stand_and_that_is_told(st_path, texts, labels):
    model = SurpriseModel(str(st_path), device="cpu")
    with pytest.warns(UserWarning, match="no example has both a text and a label"):
        fit_labels(model, texts, labels, candidate_labels=["sport", "money"])
    plain = SurpriseModel(str(st_path), device="cpu").set_labels(["sport", "money"])
    same = [unit_rows(one.label_vectors(["sport", "money"], one.hypothesis_template)) for one in (model, plain)]
    torch.testing.assert_close(*same)


@pytest.mark.parametrize("function", [part_labels, aim_labels])
@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"examples": torch.ones(4, 5)}, ValueError, "examples have 5 dimensions|examples.*5"),
        ({"examples": torch.full((4, 6), math.nan)}, ValueError, "examples: row 0, 1, 2, 3 holds NaN"),
        ({"positive": torch.ones(3, 2, dtype=torch.bool)}, ValueError, r"positive must be bool of shape \(4, 2\)"),
        ({"positive": torch.ones(4, 2)}, ValueError, "positive must be bool"),
        ({"vectors": torch.ones(2, 6, dtype=torch.int64)}, TypeError, "vectors"),
    ],
)
def test_what_no_label_can_be_made_from_is_refused(function, change, error, message):
    given = {"vectors": torch.eye(2, 6), "examples": torch.eye(4, 6), "positive": torch.ones(4, 2, dtype=torch.bool)}
    with pytest.raises(error, match=message):
        function(**{**given, **change})


@pytest.mark.parametrize("how", [mix_labels, aim_labels, part_labels])
def test_names_and_examples_of_two_types_meet_in_the_wider(how):
    draw = torch.Generator().manual_seed(0)
    names, examples = torch.randn(3, 8, generator=draw), torch.randn(12, 8, generator=draw)
    positive = torch.eye(3, dtype=torch.bool)[torch.arange(12) % 3]
    wanted = how(names.double(), examples.double(), positive)
    for one, other in ((names.double(), examples), (names, examples.double())):
        found = how(one, other, positive)
        torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-6)
