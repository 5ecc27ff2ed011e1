"""What a SurpriseTrainer makes of the model and the arguments that it is given, and what the model's card tells."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainingArguments
from transformers import TrainerCallback

from surprise_hf import SurpriseTrainingArguments, WeightedFocalLoss
from surprise_hf.model_card import MARK
from surprise_hf.ops import unit_rows
from surprise_hf.trainer import SurpriseTrainer
from tests.trainer_data import LABELS, TARGETS, TEXTS, assert_same, load, make, rows, weights

# --- a model that was trained before ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trained(st_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with labels that examples have moved, and options of its own."""
    out = tmp_path_factory.mktemp("trained")
    trainer = make(st_path, out)
    trainer.train()
    model = trainer.model
    options = {"estimator": "empirical", "n_cross": 10.0}
    model.set_labels(LABELS, vectors=model.label_vectors(LABELS, model.hypothesis_template), **options)
    model.save_pretrained(out)
    return out


def test_a_trained_model_labels_as_before_until_it_is_trained_again(trained, tmp_path):
    before, texts = load(trained), TEXTS[::3]
    emb = before.embed(texts)[0]
    expected = before.fitted.score(emb)
    trainer = SurpriseTrainer(
        load(trained), SurpriseTrainingArguments(str(tmp_path), use_cpu=True, report_to="none"), eval_dataset=rows(3)
    )
    assert torch.equal(trainer.model.fitted.score(emb), expected)
    moved = unit_rows(before.label_vectors(LABELS, before.hypothesis_template))
    right = (unit_rows(emb) @ moved.T).argmax(dim=1) == torch.tensor([LABELS.index(one) for one in TARGETS[::3]])
    assert trainer.evaluate()["eval_cosine_accuracy"] == right.double().mean()
    trainer.save_model()
    again = load(tmp_path)
    assert torch.equal(again.fitted.score(emb), expected)
    assert again.fit_options == {"estimator": "empirical", "n_cross": 10.0}


def test_trained_again_its_labels_move_again(trained, tmp_path):
    trainer = make(trained, tmp_path, surprise_weight=0.5)
    assert trainer.model.fit_options == {"estimator": "empirical", "n_cross": 10.0, "weight": 0.5}
    names = trainer.model.name_vectors(LABELS, trainer.model.hypothesis_template)
    before = trainer.model.label_vectors(LABELS, trainer.model.hypothesis_template)
    assert not torch.allclose(before, names)
    trainer.train()
    after = trainer.model.label_vectors(LABELS, trainer.model.hypothesis_template)
    assert not torch.allclose(after, before)
    assert trainer.model.fit_options == {"estimator": "empirical", "n_cross": 10.0, "weight": 0.5}


def test_without_mixing_a_trained_models_labels_go_back_to_their_names(trained, tmp_path):
    trainer = make(trained, tmp_path, mix_examples=False)
    trainer.train()
    model = trainer.model
    found = model.label_vectors(LABELS, model.hypothesis_template)
    torch.testing.assert_close(found, model.name_vectors(LABELS, model.hypothesis_template))


def stop(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("again", [True, False])
def test_a_training_that_takes_no_step_changes_no_label(trained, tmp_path, monkeypatch, again):
    """Interrupted before the first one: labels, ensemble and options are those that go with the weights."""
    trainer = make(trained, tmp_path)
    if again:
        trainer.train()
    model = trainer.model
    emb = model.embed(TEXTS)[0]
    expected, options = model.fitted.score(emb), model.fit_options
    monkeypatch.setattr(trainer, "training_step", stop)
    with pytest.raises(KeyboardInterrupt):
        trainer.train()
    trainer.save_model()
    for one in (model, load(tmp_path)):
        torch.testing.assert_close(one.fitted.score(emb), expected)
        assert one.fit_options == options
    monkeypatch.undo()
    trainer.train_dataset = {"text": ["a"], "label": ["unknown"]}
    with pytest.raises(ValueError, match="label 'unknown'"):
        trainer.train()
    torch.testing.assert_close(model.fitted.score(emb), expected)


def test_options_of_the_model_stay_but_for_its_refinement(st_path, tmp_path):
    """That goes with documents, and here there are none but the examples."""
    model = load(st_path).set_labels(LABELS, refine=3, n_cross=10.0)
    SurpriseTrainer(model, make(st_path, tmp_path, num_train_epochs=1).args, rows()).train()
    assert model.fit_options == {"n_cross": 10.0}


def test_an_argument_of_the_scoring_that_changes_later_counts(st_path, tmp_path):
    trainer = make(st_path, tmp_path)
    trainer.args.surprise_weight = 0.25
    trainer.train()
    assert trainer.model.fit_options == {"weight": 0.25}


def test_names_are_no_vectors_from_examples(trained, tmp_path):
    args = SurpriseTrainingArguments(str(tmp_path), use_cpu=True, report_to="none")
    trainer = SurpriseTrainer(load(trained), args, labels=["red", "green"])
    assert trainer.model._given is None
    trainer = SurpriseTrainer(load(trained), args, labels=["sport", "green"])
    names = trainer.model.name_vectors(["green"], trainer.model.hypothesis_template)
    found = trainer.model.label_vectors(["sport", "green"], trainer.model.hypothesis_template)
    torch.testing.assert_close(found[1:], names)
    assert not torch.allclose(found[0], trainer.model.name_vectors(["sport"], trainer.model.hypothesis_template)[0])


@pytest.mark.parametrize("fitted_at", [{}, {"eval_strategy": "steps", "eval_steps": 1}, {"save_steps": 1}], ids=str)
def test_a_training_broken_off_leaves_no_ensemble_of_other_weights(trained, tmp_path, fitted_at):
    """In the middle of its third step: what an evaluation or a checkpoint has fitted is of the second's weights."""

    class BreakOff(TrainerCallback):
        def on_pre_optimizer_step(self, _args, state, *_, **__):
            if state.global_step == 2:
                raise KeyboardInterrupt

    options = {"save_strategy": "steps" if "save_steps" in fitted_at else "no", **fitted_at}
    args = SurpriseTrainingArguments(
        str(tmp_path), use_cpu=True, report_to="none", stop_cross_entropy=None, per_device_train_batch_size=4, **options
    )
    trainer = SurpriseTrainer(load(trained), args, rows(), rows(3), callbacks=[BreakOff()])
    with pytest.raises(KeyboardInterrupt):
        trainer.train()
    assert trainer.state.global_step == 2
    assert trainer.model.ensemble is None
    assert trainer.model.fitted is None
    assert trainer.model.candidate_labels == LABELS
    names = trainer.model.name_vectors(LABELS, trainer.model.hypothesis_template)
    assert torch.equal(trainer.model.label_vectors(LABELS, trainer.model.hypothesis_template), names)


def test_another_prompt_lets_go_of_what_was_read_otherwise(trained, tmp_path):
    args = SurpriseTrainingArguments(str(tmp_path), use_cpu=True, report_to="none", prompts="news: ")
    trainer = SurpriseTrainer(load(trained), args, eval_dataset=rows(3), labels=LABELS)
    assert (trainer.model.ensemble, trainer.model._given) == (None, None)


@pytest.mark.parametrize("how", ["best", "resumed"])
def test_a_checkpoint_that_comes_back_keeps_the_card_ours(st_path, tmp_path, how):
    kind = {"eval_strategy": "epoch", "save_strategy": "epoch"}
    trainer = make(st_path, tmp_path, rows(), rows(3), load_best_model_at_end=how == "best", **kind)
    trainer.train(resume_from_checkpoint=None)
    if how == "resumed":
        trainer = make(st_path, tmp_path, rows(), rows(3), **{**kind, "num_train_epochs": 3})
        trainer.train(resume_from_checkpoint=True)
    trainer.save_model(str(tmp_path / "out"))
    assert MARK in (tmp_path / "out" / "README.md").read_text(encoding="utf-8")


def test_the_license_comes_with_a_plain_encoder(st_path, tmp_path):
    encoder = SentenceTransformer(str(st_path), device="cpu")
    encoder._model_card_text = "---\nlicense: apache-2.0\n---\n# An encoder"
    trainer = make(st_path, tmp_path)
    again = SurpriseTrainer(encoder, trainer.args, rows())
    again.save_model()
    assert "license: apache-2.0" in (tmp_path / "README.md").read_text(encoding="utf-8")


# --- arguments -------------------------------------------------------------------------------------------------------


def test_arguments_that_change_later_count(st_path, tmp_path):
    """As after a search, whose best values are set one by one."""
    options = {"gamma": 2.0, "epsilon": 0.1, "labels_per_step": 1, "class_weight": "balanced"}
    trainer, expected = (make(st_path, tmp_path, rows().select(range(4, 24)), **more) for more in ({}, options))
    focal = trainer.loss.focal
    for name, value in options.items():
        setattr(trainer.args, name, value)
    for one in (expected, trainer):
        one.train()
    assert (focal.gamma, focal.epsilon, trainer.loss.labels_per_step) == (2.0, 0.1, 1)
    assert trainer.loss.focal is focal
    for a, b in zip(weights(trainer.model), weights(expected.model), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize(
    "wrong",
    [
        {"gamma": -1}, {"gamma": float("nan")}, {"gamma": "1"}, {"epsilon": None},
        {"epsilon": 2}, {"probability": "sigmoid"}, {"delta": 0},
        {"stop_cross_entropy": "x"}, {"stop_cross_entropy": float("nan")}, {"batch_eval_metrics": True},
        {"include_for_metrics": ["inputs"]},
    ],
)  # fmt: skip
def test_options_that_do_not_fit_are_refused_at_once(tmp_path, wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        SurpriseTrainingArguments(output_dir=str(tmp_path), **wrong)


def test_the_focal_loss_checks_its_options():
    with pytest.raises(ValueError, match="probability must be one of"):
        WeightedFocalLoss(probability="sigmoid")


def test_wrong_types_are_named(st_path, tmp_path):
    plain = SentenceTransformerTrainingArguments(str(tmp_path), use_cpu=True)
    args = SurpriseTrainingArguments(str(tmp_path), use_cpu=True, class_weight="balanced")
    for given, words in (
        ((load(st_path), plain, rows()), "args must be a SurpriseTrainingArguments"),
        ((str(st_path), args, rows()), "model must be a SentenceTransformer, got '"),
        ((load(st_path), args), "no labels"),
    ):
        with pytest.raises(ValueError, match=words):
            SurpriseTrainer(*given)
    with pytest.raises(ValueError, match="counts the labels of a train_dataset, and there is none"):
        SurpriseTrainer(load(st_path), args, labels=LABELS)
    with pytest.raises(ValueError, match="loss must be a WeightedFocalLoss"):
        SurpriseTrainer(load(st_path), args, rows(), loss=torch.nn.MSELoss())
    with pytest.raises(ValueError, match=r"give WeightedFocalLoss\(class_weight"):
        SurpriseTrainer(load(st_path), args, rows(), loss=WeightedFocalLoss())


def test_the_card_tells_of_the_loss_that_was_given(st_path, tmp_path):
    args = make(st_path, tmp_path).args
    loss = WeightedFocalLoss(gamma=3.0, probability="relu")
    trainer = SurpriseTrainer(load(st_path), args, rows(), loss=loss)
    trainer.train()
    trainer.save_model()
    assert (args.gamma, args.probability) == (1.0, "softplus")  # the next trainer's
    found = load(tmp_path).report["training"]
    assert (found["gamma"], found["probability"]) == (3.0, "relu")


def test_frozen_weights_are_told_of(st_path, tmp_path):
    trainer = make(st_path, tmp_path)
    trainer.model.requires_grad_(False)
    with pytest.raises(ValueError, match="no weight of the encoder would be trained"):
        trainer.train()


def test_an_encoder_whose_word_embeddings_are_not_told(st_path, tmp_path, monkeypatch):
    """As CANINE's, which hashes characters."""
    trainer = make(st_path, tmp_path, num_train_epochs=1)

    def unknown(_: object) -> None:
        raise NotImplementedError

    monkeypatch.setattr(type(trainer.model[0].auto_model), "get_input_embeddings", unknown)
    trainer.train()
    assert trainer.state.global_step == 2


def test_a_fresh_model_starts_with_the_same_turn_of_labels(st_path, tmp_path):
    args = make(st_path, tmp_path, labels_per_step=1, per_device_train_batch_size=8).args
    trainer = SurpriseTrainer(None, args, rows(), model_init=lambda: load(st_path))
    assert trainer.train().training_loss == trainer.train().training_loss


def test_a_fresh_model_that_took_no_step_is_saved_as_it_is(st_path, tmp_path, monkeypatch):
    """Though one before it was trained to its end."""
    args = make(st_path, tmp_path).args
    trainer = SurpriseTrainer(None, args, rows(), model_init=lambda: load(st_path))
    trainer.train()
    with monkeypatch.context() as patch:
        patch.setattr(SurpriseTrainer, "training_step", None)
        with pytest.raises(TypeError):
            trainer.train()
    trainer.save_model()
    model = load(tmp_path)
    assert model.ensemble is None
    assert_same(weights(model), weights(load(st_path)))


@pytest.mark.parametrize("at_the_start", [False, True])
def test_no_epoch_moves_labels_to_the_examples_all_the_same(st_path, tmp_path, at_the_start):
    kind = {"eval_on_start": True, "eval_strategy": "epoch"} if at_the_start else {}
    trainer = make(st_path, tmp_path, rows(), rows(3), trainer={"ensemble": TEXTS}, num_train_epochs=0, **kind)
    trainer.train()
    model = trainer.model
    found = model.label_vectors(LABELS, model.hypothesis_template)
    assert not torch.allclose(found, model.name_vectors(LABELS, model.hypothesis_template))


def test_rows_without_a_label_are_no_examples(st_path, tmp_path):
    """They don't keep labels from being refined."""
    documents = [f"{one} {more}" for one in TEXTS for more in ("cat", "dog")]
    given = {"text": documents + TEXTS[::8], "label": [None] * 48 + TARGETS[::8]}
    trainer = make(st_path, tmp_path, given, trainer={"ensemble": documents}, num_train_epochs=1)
    trainer.train()
    assert trainer.model.fit_options["refine"] == "auto"


# --- evaluation ------------------------------------------------------------------------------------------------------


def test_metrics_of_ones_own_are_taken_as_transformers_takes_them(st_path, tmp_path):
    def metrics(found: object) -> dict[str, object]:
        assert found.predictions.shape == (8,)
        return {"acc": np.float32(0.5), "eval_x": torch.tensor(1.0)}

    kind = {"eval_strategy": "epoch", "save_strategy": "epoch", "metric_for_best_model": "eval_x"}
    best = {"compute_metrics": metrics, "preprocess_logits_for_metrics": lambda scores, _: scores.argmax(dim=1)}
    trainer = make(st_path, tmp_path, rows(), rows(3), trainer=best, load_best_model_at_end=True, **kind)
    trainer.train()
    (last,) = [entry for entry in trainer.state.log_history[-4:] if "eval_x" in entry]
    assert (last["eval_acc"], last["eval_x"]) == (0.5, 1.0)
    assert type(last["eval_acc"]) is float


def test_the_card_has_no_results_of_other_weights_or_other_rows(st_path, tmp_path):
    kind = {"eval_strategy": "steps", "eval_steps": 4, "per_device_train_batch_size": 4}
    evaluated = rows(3)
    trainer = make(st_path, tmp_path, rows(), evaluated, stop_cross_entropy=100.0, **kind)
    trainer.train()
    assert trainer.state.global_step == 6  # the first epoch's end
    assert "results" not in trainer.model.report
    trainer.evaluate(rows())
    assert "results" not in trainer.model.report
    trainer.evaluate()
    (found,) = trainer.model.report.pop("results")
    assert found["dataset"] == "the evaluation set"
    trainer.evaluate(evaluated)  # the same, as it was given
    assert trainer.model.report["results"] == [found]
    expected = trainer.evaluate()["eval_loss"]
    trainer.eval_dataset = rows(5)
    assert trainer.evaluate(evaluated)["eval_loss"] == expected != trainer.evaluate()["eval_loss"]


def test_only_checkpoints_hold_what_resuming_needs(st_path, tmp_path):
    trainer = make(st_path, tmp_path / "run", save_strategy="epoch")
    trainer.is_in_train = True  # as an interruption leaves it
    trainer.save_model(str(tmp_path / "out"))
    assert not (tmp_path / "out" / "loss.safetensors").exists()
    trainer.is_in_train = False
    trainer.train()
    assert (tmp_path / "run" / "checkpoint-2" / "loss.safetensors").exists()
