"""Self-training as a part of training: which documents join, when, and what it leaves as it was."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from datasets import Dataset
from transformers import TrainerCallback

from surprise_hf import SurpriseModel, SurpriseTrainer
from surprise_hf.few_shot import pseudo_label
from surprise_hf.fitted import FittedLabels
from surprise_hf.ops import unit_rows
from surprise_hf.self_training import GoingOn
from tests.trainer_data import LABELS, TARGETS, TEXTS, assert_same, make, weights

FEW, OF_FEW = TEXTS[::2], TARGETS[::2]
DOCUMENTS = [*TEXTS, *(f"{one} noon" for one in TEXTS), " "]


@pytest.fixture
def from_any_agreement(monkeypatch) -> None:
    """And with as few labels and examples as there are."""
    monkeypatch.setattr("surprise_hf.self_training.AGREED", 0.0)
    monkeypatch.setattr("surprise_hf.self_training.LABELS", 3)
    monkeypatch.setattr("surprise_hf.self_training.EXAMPLES", 4)


def few() -> Dataset:
    return Dataset.from_dict({"text": FEW, "label": OF_FEW})


def logged(trainer: SurpriseTrainer) -> list[dict[str, float]]:
    return [entry for entry in trainer.state.log_history if "self_training" in entry]


@pytest.mark.parametrize("per_label", [16, 5])
@pytest.mark.parametrize("numbers", [False, True])
def test_an_epoch_more_with_the_surest_documents(st_path, tmp_path, monkeypatch, numbers, per_label):
    """As by hand: `self_training_rows` into a second trainer for an epoch."""
    monkeypatch.setattr("surprise_hf.self_training.PER_LABEL", per_label)
    labels = [30, 10, 20] if numbers else LABELS
    data = Dataset.from_dict({"body": FEW, "kind": [labels[LABELS.index(one)] for one in OF_FEW], "worth": [0.5] * 12})
    named = {"text_column": "body", "label_column": "kind", "weight_column": "worth"}
    kind = {"labels": labels, "ensemble": DOCUMENTS, "hypothesis_template": "about {}"}
    first = make(st_path, tmp_path, data, trainer=kind, self_training=False, **named)
    first.train()
    before = first.model.embed(TEXTS)[0]
    rows = first.self_training_rows(per_label=per_label)
    plain = dataclasses.replace(first.args, num_train_epochs=1)
    SurpriseTrainer(first.model, plain, rows, labels=labels, hypothesis_template="about {}").train()
    trainer = make(st_path, tmp_path, data, trainer=kind, self_training=True, **named)
    trainer.train()
    assert [entry["self_training"] for entry in logged(trainer)] == [len(rows) - 12]
    assert len(rows) > 12
    model = trainer.model
    # not the weights: some, whose gradient is all rounding, go anywhere
    torch.testing.assert_close(model.embed(TEXTS)[0], first.model.embed(TEXTS)[0], rtol=1e-4, atol=1e-4)
    assert (model.embed(TEXTS)[0] - before).abs().max() > 0.01
    assert (model.candidate_labels, model.hypothesis_template) == (labels, "about {}")
    assert model.fit_options["refine"] == "auto"
    documents = unit_rows(model.embed(DOCUMENTS[:-1])[0]).double().mean(dim=0)
    torch.testing.assert_close(model.ensemble.mean, documents, rtol=1e-5, atol=1e-7)
    assert trainer.state.epoch == 2
    assert len(trainer.train_dataset) == 12


def test_it_goes_on_for_an_epoch_after_a_number_of_steps_too(st_path, tmp_path):
    trainer = make(st_path, tmp_path, few(), trainer={"ensemble": DOCUMENTS}, self_training=True, max_steps=1)
    trainer.train()
    (entry,) = logged(trainer)
    assert entry["self_training"] > trainer.args.per_device_train_batch_size
    assert trainer.loss.encoded["documents"] == 12 + 12 + entry["self_training"]


@pytest.mark.usefixtures("from_any_agreement")
def test_it_goes_on_where_examples_and_documents_agree(st_path, tmp_path, monkeypatch):
    """Labels that part the examples, by cosine, and refined on the documents."""
    before = make(st_path, tmp_path, few(), trainer={"ensemble": DOCUMENTS}, self_training=False)
    before.train()
    assert not logged(before)
    documents = before.model.embed(DOCUMENTS[:-1])[0]
    parted = before.model.label_vectors(LABELS, "this matter is {}")
    refined = FittedLabels.fit(parted, documents, weight=1, refine="auto").z(documents).argmax(dim=1)
    alike = (refined == (unit_rows(documents) @ unit_rows(parted).T).argmax(dim=1)).double().mean().item()
    for limit, goes_on in ((alike - 0.01, True), (alike + 0.01, False)):
        monkeypatch.setattr("surprise_hf.self_training.AGREED", limit)
        trainer = make(st_path, tmp_path, few(), trainer={"ensemble": DOCUMENTS})
        trainer.train()
        assert [entry["agreement"] for entry in logged(trainer)] == [pytest.approx(alike, abs=1e-4)] * goes_on
        same = [torch.equal(*pair) for pair in zip(weights(trainer.model), weights(before.model), strict=True)]
        assert all(same) != goes_on


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ({}, {}),
        ({"ensemble": FEW}, {}),
        ({"ensemble": DOCUMENTS}, {"refine": "3"}),
        ({"ensemble": DOCUMENTS}, {"max_steps": 2}),
        ({"ensemble": DOCUMENTS}, {"mix_examples": False}),
        ({"ensemble": DOCUMENTS}, {"self_training": False}),
    ],
    ids=["no documents", "not more than examples", "refine", "steps", "names", "off"],
)
@pytest.mark.usefixtures("from_any_agreement")
def test_where_it_stays_away(st_path, tmp_path, kind, options):
    trainer = make(st_path, tmp_path, few(), trainer=kind, **options)
    trainer.train()
    assert not logged(trainer)


@pytest.mark.usefixtures("from_any_agreement")
def test_it_takes_enough_labels_and_examples(st_path, tmp_path, monkeypatch):
    """Three with four each, on the average, are there: unless it is asked for."""
    for labels, examples, wanted, goes_on in (
        (3, 4, None, True),
        (4, 4, None, False),
        (3, 5, None, False),
        (4, 5, True, True),
    ):
        monkeypatch.setattr("surprise_hf.self_training.LABELS", labels)
        monkeypatch.setattr("surprise_hf.self_training.EXAMPLES", examples)
        trainer = make(st_path, tmp_path, few(), trainer={"ensemble": DOCUMENTS}, self_training=wanted)
        trainer.train()
        assert bool(logged(trainer)) == goes_on


@pytest.mark.usefixtures("from_any_agreement")
def test_not_with_several_labels_or_after_the_best_checkpoint(st_path, tmp_path):
    several = Dataset.from_dict({"text": FEW, "label": [[one] for one in OF_FEW[:-1]] + [["money", "weather"]]})
    best = {"load_best_model_at_end": True, "save_strategy": "epoch", "eval_strategy": "epoch"}
    for data, evaluate, options in ((several, None, {}), (few(), few(), best)):
        trainer = make(st_path, tmp_path, data, evaluate, trainer={"ensemble": DOCUMENTS}, **options)
        trainer.train()
        assert not logged(trainer)


def test_it_needs_documents(st_path, tmp_path):
    with pytest.raises(ValueError, match="needs unlabelled documents"):
        make(st_path, tmp_path, few(), self_training=True)


def test_resumed_it_gives_the_uninterrupted_result(st_path, tmp_path):
    """Checkpoints are of the training before it, after which it is done in full."""

    class Interrupt(TrainerCallback):
        def on_epoch_end(self, args, state, control, **_):  # noqa: ARG002
            if state.epoch >= 2:
                raise KeyboardInterrupt

    kind, options = {"ensemble": DOCUMENTS}, {"num_train_epochs": 3, "save_strategy": "epoch", "self_training": True}
    whole = make(st_path, tmp_path / "whole", few(), trainer=kind, **options)
    whole.train()
    assert len(list((tmp_path / "whole").glob("checkpoint-*"))) == 3
    part = make(st_path, tmp_path / "part", few(), trainer={**kind, "callbacks": [Interrupt()]}, **options)
    with pytest.raises(KeyboardInterrupt):
        part.train()
    resumed = make(st_path, tmp_path / "part", few(), trainer=kind, **options)
    resumed.train(resume_from_checkpoint=True)
    assert logged(resumed) == logged(whole) != []
    assert_same(weights(resumed.model), weights(whole.model), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(resumed.model.ensemble.mean, whole.model.ensemble.mean, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("mixed", [True, False])
@pytest.mark.parametrize(
    ("options", "refine", "weight"),
    [({}, "auto", None), ({"refine": 4, "surprise_weight": 0.6}, 4, 0.6), ({"refine": "0"}, 0, None)],
)
def test_labels_are_scored_as_without_it(st_path, tmp_path, mixed, options, refine, weight):
    found = []
    for wanted in (False, True):
        trainer = make(
            st_path,
            tmp_path,
            few(),
            trainer={"ensemble": DOCUMENTS},
            self_training=wanted,
            mix_examples=mixed,
            **options,
        )
        trainer.train()
        assert bool(logged(trainer)) == wanted
        found.append(trainer.model.fit_options)
    assert found == [{name: x for name, x in (("refine", refine), ("weight", weight)) if x is not None}] * 2


@pytest.mark.parametrize(
    "options",
    [
        {"eval_on_start": True, "eval_strategy": "epoch"},
        {"lr_scheduler_type": "reduce_lr_on_plateau", "eval_strategy": "epoch", "lr_scheduler_kwargs": {"factor": 0.5}},
        {"lr_scheduler_type": "cosine", "warmup_steps": 1},
    ],
    ids=["evaluated at the start", "plateau", "cosine"],
)
def test_it_goes_on_whatever_looks_at_evaluations(st_path, tmp_path, options):
    trainer = make(st_path, tmp_path, few(), few(), trainer={"ensemble": DOCUMENTS}, self_training=True, **options)
    trainer.train()
    assert [entry["self_training"] for entry in logged(trainer)] == [36]
    assert len(trainer.model.ensemble) == len(DOCUMENTS) - 1
    assert trainer.args.eval_on_start == options.get("eval_on_start", False)  # those given stay as they are


def test_what_it_encodes_is_counted(st_path, tmp_path):
    """Two epochs of 12 texts, then one of these and those that joined; three labels a step."""
    trainer = make(
        st_path, tmp_path, few(), trainer={"ensemble": DOCUMENTS}, self_training=True, per_device_train_batch_size=6
    )
    trainer.train()
    (joined,) = [entry["self_training"] for entry in logged(trainer)]
    steps = 2 * 2 + -(-(12 + joined) // 6)
    assert trainer.loss.encoded == {"documents": 2 * 12 + 12 + joined, "labels": 3 * steps}


def test_it_goes_on_with_the_optimizer_that_was_given(st_path, tmp_path, monkeypatch):
    made, real = [], GoingOn.create_optimizer

    def create(trainer, *args):
        made.append(real(trainer, *args))
        return made[-1]

    monkeypatch.setattr(GoingOn, "create_optimizer", create)
    kind = {"ensemble": DOCUMENTS, "optimizer_cls_and_kwargs": (torch.optim.SGD, {"lr": 0.01, "momentum": 0.5})}
    make(st_path, tmp_path, few(), trainer=kind, self_training=True).train()
    assert [(type(one), one.defaults["momentum"]) for one in made] == [(torch.optim.SGD, 0.5)]


@pytest.mark.usefixtures("from_any_agreement")
@pytest.mark.parametrize("own", [True, False])
def test_by_itself_it_takes_no_other_optimizer_than_that_given(st_path, tmp_path, own):
    """An optimizer is one training's; the epoch more would be one of AdamW."""
    trainer = make(st_path, tmp_path, few(), trainer={"ensemble": DOCUMENTS})
    if own:
        given = torch.optim.SGD(trainer.model.parameters(), lr=1e-3), None
        trainer = SurpriseTrainer(trainer.model, trainer.args, few(), ensemble=DOCUMENTS, optimizers=given)
    trainer.train()
    assert bool(logged(trainer)) == (not own)


@pytest.mark.parametrize("refine", ["0", "3"])
def test_rows_of_self_training_are_refined_as_the_labels_are(st_path, tmp_path, refine):
    trainer = make(st_path, tmp_path, few(), trainer={"ensemble": DOCUMENTS}, self_training=False, refine=refine)
    trainer.train()
    rows = trainer.self_training_rows(per_label=4)
    kept = []
    for rounds in (int(refine), "auto"):
        found = pseudo_label(trainer.model, DOCUMENTS, per_label=4, refine=rounds)
        kept.append({row["text"]: [row["label"]] for row in found if row["text"] not in FEW})
    assert dict(zip(rows["text"][12:], rows["label"][12:], strict=True)) == kept[0]
    assert kept[0] != kept[1]


def test_documents_that_can_be_read_once(st_path, tmp_path):
    kind = {"ensemble": (one for one in DOCUMENTS)}
    trainer = make(st_path, tmp_path, few(), trainer=kind, self_training=True)
    trainer.train()
    assert [entry["self_training"] for entry in logged(trainer)] == [36]
    assert len(trainer.self_training_rows()) == 12 + 36


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
@pytest.mark.parametrize("failing", ["training_step", "get_train_dataloader", "create_optimizer", "_aim"])
def test_what_fails_leaves_a_model_that_is_whole(st_path, tmp_path, monkeypatch, failing, error):
    """With the ensemble and labels of its weights as they are."""

    def stopped(*_, **__):
        raise error

    monkeypatch.setattr(GoingOn, failing, stopped)
    trainer = make(st_path, tmp_path, few(), trainer={"ensemble": DOCUMENTS}, self_training=True)
    with pytest.raises(error):
        trainer.train()
    model = trainer.model
    documents = unit_rows(model.embed(DOCUMENTS[:-1])[0]).double().mean(dim=0)
    torch.testing.assert_close(model.ensemble.mean, documents, rtol=1e-5, atol=1e-7)
    assert (model.candidate_labels, model.fitted is None) == (LABELS, False)
    assert model.fit_options["refine"] == "auto"
    assert all(p.requires_grad for p in model.parameters())


def test_interrupted_it_can_be_saved(st_path, tmp_path, monkeypatch):
    """Ensemble and labels are then those of the weights as they are."""

    def changed_and_stopped(self):
        with torch.no_grad():
            next(iter(self.model.parameters())).mul_(1.5)
        raise KeyboardInterrupt

    monkeypatch.setattr(GoingOn, "train", changed_and_stopped)
    trainer = make(st_path, tmp_path, few(), trainer={"ensemble": DOCUMENTS}, self_training=True)
    with pytest.raises(KeyboardInterrupt):
        trainer.train()
    trainer.save_model()
    saved = SurpriseModel.from_pretrained(tmp_path, device="cpu")
    documents = unit_rows(saved.embed(DOCUMENTS[:-1])[0]).double().mean(dim=0)
    torch.testing.assert_close(saved.ensemble.mean, documents, rtol=1e-5, atol=1e-7)
    assert saved.candidate_labels == LABELS


@pytest.mark.parametrize("bars", [False, True])
def test_nothing_is_said_and_the_card_tells_of_the_training(st_path, tmp_path, capsys, bars):
    """By the epoch more: the first training has its log, in a line or written above its bar."""
    trainer = make(st_path, tmp_path, few(), trainer={"ensemble": DOCUMENTS}, self_training=True, learning_rate=2e-3)
    if bars:
        trainer.args.disable_tqdm = False
    trainer.train()
    assert "train_runtime" in capsys.readouterr().out.splitlines()[-2]  # of the first; then the documents that joined
    trainer.save_model()
    saved = SurpriseModel.from_pretrained(tmp_path, device="cpu")
    assert saved.report["training"]["num_train_epochs"] == 2
    assert saved.report["training"]["learning_rate"] == 2e-3
