"""What a SurpriseTrainer refuses before it trains, and what is left where training or fitting stops."""

from __future__ import annotations

import json
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from datasets import Dataset, DatasetDict
from transformers.trainer_utils import HPSearchBackend

from surprise_hf import Ensemble, SurpriseModel, SurpriseTrainingArguments, inputs
from surprise_hf.trainer import SurpriseTrainer
from tests.trainer_data import LABELS, TARGETS, TEXTS, assert_same, load, make, rows, weights

# --- before it trains ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("refine", "kept"),
    [(None, None), ("auto", "auto"), ("3", 3), (3, 3), (np.int64(3), 3), ("0", 0), (np.int64(0), 0)],
)
def test_rounds_of_refinement(st_path, tmp_path, refine, kept):
    """Kept as a plain number, which the card and JSON hold."""
    trainer = make(st_path, tmp_path, refine=refine)
    assert trainer.model.fit_options.get("refine") == trainer.args.refine == kept
    assert type(trainer.args.refine) is type(kept)
    trainer.save_model()
    assert load(tmp_path).fit_options.get("refine") == kept


@pytest.mark.parametrize("refine", ["atuo", "ten", "-1", -1, 2.0, True, "²", ""])
def test_unknown_refinement_is_refused(tmp_path, refine):
    with pytest.raises(ValueError, match="refine must be 'auto' or a number of rounds, 0 or more"):
        SurpriseTrainingArguments(output_dir=str(tmp_path), refine=refine)


@pytest.mark.parametrize("weight", [5, -0.1, "0.5", float("nan"), True])
def test_a_weight_of_the_surprise_score_that_is_none_is_refused(tmp_path, weight):
    with pytest.raises(ValueError, match=r"weight must be between 0 .* and 1"):
        SurpriseTrainingArguments(output_dir=str(tmp_path), surprise_weight=weight)
    for fine in (np.float32(0.5), 1, 0):
        args = SurpriseTrainingArguments(output_dir=str(tmp_path), surprise_weight=fine)
        assert args.surprise_weight == fine
        assert type(args.surprise_weight) is float


@pytest.mark.parametrize(
    ("ensemble", "words"),
    [
        ([], "no document with any text"),
        ([" ", None], "no document with any text"),
        ("documents.txt", "a list of texts, not one string: 'documents.txt'"),
        (iter([]), "no document with any text"),
        (["rain", 3], "document 1 must be a string, got int"),
        ((one for one in ["rain", "wind", b"x"]), "document 2 must be a string, got bytes"),
        (Dataset.from_dict({"text": ["a"], "row": [1]}), "pass one column"),
        ({"text": ["a"]}, "documents come as a dict"),
        (Ensemble.from_embeddings(torch.eye(32)), r"of embeddings \(Ensemble\), .* give the documents as texts"),
        (torch.eye(32), r"of embeddings \(Tensor\), .* give the documents as texts"),
    ],
)
def test_an_ensemble_that_is_no_documents_is_refused(st_path, tmp_path, ensemble, words):
    with pytest.raises(ValueError, match=words):
        make(st_path, tmp_path, trainer={"ensemble": ensemble})


@pytest.mark.parametrize("kind", ["generator", "iterator", "map"])
def test_documents_that_can_be_read_once_serve_every_fit(st_path, tmp_path, kind):
    documents = {"generator": (one for one in TEXTS), "iterator": iter(TEXTS), "map": map(str, TEXTS)}[kind]
    trainer = make(
        st_path, tmp_path, evaluate=rows(4), trainer={"ensemble": documents}, save_strategy="epoch",
        eval_strategy="epoch",
    )  # fmt: skip
    trainer.train()
    assert trainer.state.global_step == 4
    for saved in (tmp_path / "checkpoint-2", tmp_path / "checkpoint-4"):
        assert len(load(saved).ensemble) == len(TEXTS)
    assert len(trainer.model.ensemble) == len(TEXTS)


def test_descriptions_of_labels_are_trained_on(st_path, tmp_path):
    """They come with the rows for a second trainer."""
    described = {"money": "a bank", "sport": "a ball game", "weather": "rain or snow"}
    trainer = make(st_path, tmp_path, trainer={"labels": described, "ensemble": TEXTS})
    trainer.train()
    again = SurpriseTrainer(load(st_path), trainer.args, trainer.self_training_rows())
    texts = [f"this matter is {text}" for text in described.values()]
    assert trainer.loss.texts == again.loss.texts == texts


def test_labels_that_the_rows_name_have_the_descriptions_of_the_model(st_path, tmp_path):
    """Names in the rows took them away; a label set that is given counts as it is given."""
    described = {"weather": "rain or snow", "money": "a bank", "other": "a cat"}  # in another order
    load(st_path).set_labels(described).save_pretrained(tmp_path / "described")
    for given, texts in ((None, ["a bank", "sport", "rain or snow"]), (LABELS, LABELS)):
        trainer = make(tmp_path / "described", tmp_path, trainer={"labels": given})
        assert trainer.loss.texts == [f"this matter is {text}" for text in texts]
        trainer.train()
        assert [inputs.name_and_text(label)[1] for label in trainer.model.candidate_labels] == texts


# --- where it stops --------------------------------------------------------------------------------------------------


def failing(real, error: type[BaseException], at: int):
    """The function as it is, but for one call."""
    calls = iter(range(10**6))

    def sometimes(*args, **kwargs):
        if next(calls) == at:
            raise error
        return real(*args, **kwargs)

    return sometimes


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
@pytest.mark.parametrize(("refine", "expected"), [("3", 3), (None, "auto"), ("0", 0)])
@pytest.mark.parametrize("name", ["fit_ensemble", "set_labels", "embed"])
def test_a_fit_that_failed_is_made_up_for_with_the_same_options(
    st_path, tmp_path, monkeypatch, error, refine, expected, name
):
    """When saving: labels refined as asked for, scored with the weight asked for."""
    documents = [*TEXTS, *(f"{one} noon" for one in TEXTS)]
    kind = {"ensemble": documents}
    trainer = make(
        st_path, tmp_path, trainer=kind, refine=refine, surprise_weight=0.7, self_training=False, max_steps=1
    )
    with monkeypatch.context() as patch:
        at = {"fit_ensemble": 0, "set_labels": 1, "embed": 4}[
            name
        ]  # of embed: names and examples twice, then documents
        patch.setattr(SurpriseModel, name, failing(getattr(SurpriseModel, name), error, at))
        with pytest.raises(error):
            trainer.train()
    assert trainer.state.global_step == 1
    trainer.save_model()
    for model in (trainer.model, load(tmp_path)):
        assert model.fit_options == {"refine": expected, "weight": 0.7}
        assert model.fitted.weight == 0.7
        assert model.candidate_labels == LABELS
        assert len(model.ensemble) == len(documents)


@pytest.mark.parametrize("checkpoint", [True, "nowhere"])
def test_a_training_that_is_refused_leaves_the_ensemble(st_path, tmp_path, checkpoint):
    trainer = make(st_path, tmp_path / "out")
    trainer.model.fit_ensemble(["bank", "ball", "rain"])
    before = trainer.model.ensemble, trainer.model.fitted
    checkpoint = checkpoint if checkpoint is True else str(tmp_path / checkpoint)
    with pytest.raises((ValueError, OSError)):
        trainer.train(resume_from_checkpoint=checkpoint)
    assert trainer.model.ensemble is before[0]
    assert trainer.model.fitted is before[1]
    trainer.train()
    assert len(trainer.model.ensemble) == len(TARGETS)


@pytest.mark.parametrize("kind", ["labels", "template"])
def test_a_checkpoint_of_another_training_is_refused_before_it_changes_anything(st_path, tmp_path, kind):
    make(st_path, tmp_path / "other", num_train_epochs=1, save_strategy="epoch").train()
    (checkpoint,) = (tmp_path / "other").glob("checkpoint-*")
    if kind == "labels":
        others = [{"text": text, "label": label.upper()} for text, label in zip(TEXTS, TARGETS, strict=True)]
        trainer, said = make(st_path, tmp_path, others), r"for other labels: \['money', 'sport', 'weather'\], not"
    else:
        trainer = make(st_path, tmp_path, trainer={"hypothesis_template": "about {}"}, mix_examples=False)
        said = "for another template: 'this matter is {}', not 'about {}'"
    before = weights(trainer.model)
    with pytest.raises(ValueError, match=said):
        trainer.train(resume_from_checkpoint=str(checkpoint))
    assert_same(weights(trainer.model), before)


@pytest.mark.parametrize(
    ("options", "instead"),
    [
        ({"label_smoothing_factor": 0.1}, "epsilon is the target of a wrong label"),
        ({"data_seed": 3}, "documents are drawn by seed"),
        ({"neftune_noise_alpha": 5.0}, "dropout=True is the noise that there is"),
        ({"bf16_full_eval": True}, "what is evaluated is what will be saved"),
        ({"fp16_full_eval": True}, "what is evaluated is what will be saved"),
        ({"batch_eval_metrics": True}, "compute_metrics is given the scores and targets of all"),
        ({"include_for_metrics": ["inputs"]}, "compute_metrics is given the scores and targets of all"),
        ({"train_sampling_strategy": "group_by_length"}, "documents are drawn by batch_sampler"),
    ],
    ids=str,
)
def test_arguments_without_effect_are_refused(tmp_path, options, instead):
    with pytest.raises(ValueError, match=f"{next(iter(options))} has no effect here: {instead}"):
        SurpriseTrainingArguments(str(tmp_path), use_cpu=True, report_to="none", **options)


def test_a_card_tells_of_no_evaluation_before_the_training(st_path, tmp_path):
    """What was found of other weights is not what the saved ones do."""
    trainer = make(st_path, tmp_path, evaluate=rows(3))
    trainer.evaluate()
    assert trainer.model.report["results"]
    trainer.train()
    assert "results" not in trainer.model.report
    found = trainer.evaluate()
    (result,) = trainer.model.report["results"]
    assert result["metrics"]["cosine_accuracy"] == found["eval_cosine_accuracy"]


def test_the_best_cross_entropy_is_the_least(st_path, tmp_path):
    options = {"eval_strategy": "epoch", "save_strategy": "epoch", "load_best_model_at_end": True}
    for name in ("cross_entropy", "eval_cross_entropy"):
        trainer = make(st_path, tmp_path / name, evaluate=rows(3), metric_for_best_model=name, **options)
        trainer.train()
        seen = [log["eval_cross_entropy"] for log in trainer.state.log_history if "eval_cross_entropy" in log]
        assert trainer.state.best_metric == min(seen) < max(seen)
    assert make(st_path, tmp_path, metric_for_best_model="cross_entropy", greater_is_better=True).args.greater_is_better
    assert make(st_path, tmp_path, rows(), rows(), metric_for_best_model="cosine_f1").args.greater_is_better


def test_a_search_tries_this_packages_options(st_path, tmp_path, monkeypatch):
    """Each trial has a model of its own, and a loss, labels and an end by its own arguments."""
    args = SurpriseTrainingArguments(
        str(tmp_path), use_cpu=True, report_to="none", disable_tqdm=True, save_strategy="no", num_train_epochs=2
    )
    trainer = SurpriseTrainer(None, args, rows(), model_init=lambda: load(st_path))
    trainer.hp_search_backend, trainer.hp_space = HPSearchBackend.OPTUNA, lambda trial: trial.params
    monkeypatch.setattr("transformers.integrations.hp_params", lambda trial: trial.params)  # without Optuna
    for gamma, refine, stop, steps in ((0.0, "1", 1e-9, 4), (5.0, "2", 50.0, 2)):
        trial = {"gamma": gamma, "refine": refine, "stop_cross_entropy": stop, "labels_per_step": 2}
        trainer.train(trial=SimpleNamespace(params=trial, number=0))
        assert trainer.loss.focal.gamma == gamma
        assert trainer.loss.labels_per_step == 2
        assert trainer.state.global_step == steps
        assert trainer.model.fit_options["refine"] == int(refine)
        assert trainer.loss.model is trainer.model_wrapped or trainer.loss.model is trainer.model
        trainer.model = None  # as the search leaves it


@pytest.mark.parametrize("kind", [dict, DatasetDict])
def test_several_training_sets_are_refused(kind, st_path, tmp_path):
    with pytest.raises(ValueError, match=r"train_dataset holds several data sets \(a, b\): give one"):
        make(st_path, tmp_path, kind(a=rows(), b=rows(2)))


def test_batches_by_label_are_refused(st_path, tmp_path):
    with pytest.raises(ValueError, match="batch_sampler='group_by_label' wants one label"):
        make(st_path, tmp_path, batch_sampler="group_by_label")


@pytest.mark.parametrize("mix_examples", [True, False])
def test_a_truncated_model_trains_what_it_gives(mix_examples, st_path, tmp_path):
    """The first dimensions: nothing of the others comes into the loss."""
    found = []
    for scale in (1.0, 7.0):
        model = SurpriseModel.from_pretrained(st_path, device="cpu", truncate_dim=8)
        with torch.no_grad():
            last = model.transformers_model.encoder.layer[-1].output.LayerNorm
            last.weight[8:] *= scale
        args = SurpriseTrainingArguments(
            str(tmp_path), use_cpu=True, report_to="none", disable_tqdm=True, save_strategy="no", num_train_epochs=1,
            mix_examples=mix_examples, bf16_on_cpu=False,
        )  # fmt: skip
        trainer = SurpriseTrainer(model, args, rows())
        trainer.train()
        found.append(trainer.model.embed(TEXTS)[0])
        assert found[-1].shape == (24, 8)
        assert trainer.model.ensemble.dim == 8
    torch.testing.assert_close(*found, rtol=1e-5, atol=1e-6)


def test_a_card_says_what_was_off(st_path, tmp_path):
    off = {"balanced": False, "mix_examples": False, "stop_cross_entropy": None}
    trainer = make(st_path, tmp_path, num_train_epochs=1, dropout=True, train_word_embeddings=True, **off)
    trainer.train()
    trainer.save_model()
    card = (tmp_path / "README.md").read_text()
    for name, value in {**off, "dropout": True, "train_word_embeddings": True, "delta": 1e-10}.items():
        assert f"| `{name}` | `{value}` |" in card


def test_a_search_without_an_objective_goes_by_the_accuracy(st_path, tmp_path, monkeypatch):
    """Or by the loss; transformers would add up all metrics, the cross-entropy among them."""
    asked = Mock()
    monkeypatch.setattr("transformers.Trainer.hyperparameter_search", asked)
    trainer = make(st_path, tmp_path)
    metrics = {"eval_loss": 3.0, "eval_cross_entropy": 7.0, "eval_cosine_accuracy": 0.5, "eval_surprise_accuracy": 0.25}
    several = {"eval_a_loss": 1.0, "eval_a_surprise_accuracy": 0.5, "eval_b_loss": 2.0, "eval_b_surprise_accuracy": 1.0}
    for given, direction, found in ((None, "maximize", (0.25, 0.75)), ("minimize", "minimize", (3.0, 1.5))):
        trainer.hyperparameter_search(n_trials=2, direction=given, backend="optuna")
        _, objective, trials, used, backend, _ = asked.call_args.args
        assert (trials, used, backend) == (2, direction, "optuna")
        assert (objective(metrics), objective(several)) == found
        with pytest.raises(ValueError, match="needs an eval_dataset with labels"):
            objective({"eval_runtime": 1.0})
    own = sum
    trainer.hyperparameter_search(None, own, direction=["minimize", "maximize"])
    assert asked.call_args.args[1] is own
    assert asked.call_args.args[3] == ["minimize", "maximize"]
    trainer.hyperparameter_search(None, own)
    assert asked.call_args.args[3] == "minimize"  # as in transformers
    with pytest.raises(ValueError, match="needs a compute_objective"):
        trainer.hyperparameter_search(direction=["minimize", "maximize"])


def test_after_a_search_there_is_no_model_to_use(st_path, tmp_path):
    trainer = make(st_path, tmp_path, evaluate=rows(3))
    trainer.model = None
    for use in (trainer.save_model, trainer.evaluate, lambda: trainer.predict(rows(3))):
        with pytest.raises(ValueError, match=r"call train\(\) first"):
            use()


@pytest.mark.parametrize("labels", [["sports", 0], [0, "sports"]])
def test_labels_that_mix_names_and_numbers_are_refused(st_path, tmp_path, labels):
    train = {"text": ["red dog", "one cat"], "label": [[0], [1]]}
    with pytest.raises(ValueError, match=r"the labels mix names and numbers .*: use one kind"):
        make(st_path, tmp_path, train, trainer={"labels": labels})


@pytest.mark.parametrize(
    "name", ["balanced", "dropout", "train_word_embeddings", "mix_examples", "bf16_on_cpu", "self_training"]
)
def test_a_string_is_no_flag(tmp_path, name):
    """Any string counts as true."""
    with pytest.raises(ValueError, match=f"{name} must be True or False, got 'no'"):
        SurpriseTrainingArguments(output_dir=str(tmp_path), **{name: "no"})


def test_numbers_of_numpy_are_kept_as_json_has_them(tmp_path):
    given = {"labels_per_step": np.int64(3), "stop_cross_entropy": np.float32(0.5), "gamma": np.float32(2)}
    args = SurpriseTrainingArguments(output_dir=str(tmp_path), dropout=np.bool_(True), **given)
    kept = json.loads(args.to_json_string())
    assert {name: kept[name] for name in given} == {name: value.item() for name, value in given.items()}
    assert kept["dropout"] is True


@pytest.mark.parametrize("step", ["train", "predict"])
def test_half_of_a_surrogate_pair_is_named(st_path, tmp_path, step):
    broken = [{"text": TEXTS[0], "label": LABELS[0]}, {"text": "\ud800 bad", "label": LABELS[1]}]
    with pytest.raises(
        ValueError, match=r"row 1 of the (train|test) dataset \('\\ud800 bad'\) holds half of a surrogate"
    ):
        make(st_path, tmp_path, broken) if step == "train" else make(st_path, tmp_path).predict(broken)
