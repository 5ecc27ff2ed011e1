"""SurpriseTrainer: what Trainer users rely on, on tiny random encoders."""

from __future__ import annotations

import logging

import datasets
import numpy as np
import pytest
import torch
from datasets import Dataset
from peft import LoraConfig, get_peft_model
from sentence_transformers import SentenceTransformer
from transformers import EarlyStoppingCallback, HfArgumentParser, TrainerCallback, pipeline
from transformers.utils import logging as transformers_logging

from surprise_hf import Ensemble, SurpriseModel, SurpriseTrainer, SurpriseTrainingArguments
from surprise_hf.few_shot import aim_labels
from surprise_hf.losses import weighted_focal_loss
from surprise_hf.ops import unit_rows
from surprise_hf.resuming import ResumableTrainer
from tests.trainer_data import LABELS, TARGETS, TEXTS, assert_same, load, make, rows, weights


def test_bars_that_are_off_stay_off(st_path, tmp_path, capfd, caplog):
    """Of sentence-transformers too, which draws texts for a card of its own with a bar that nothing turns off.

    It has its own idea of when to show one: where its log tells of more than warnings.
    """
    caplog.set_level(logging.INFO, logger="sentence_transformers")
    on = transformers_logging.is_progress_bar_enabled(), datasets.are_progress_bars_disabled()
    transformers_logging.disable_progress_bar()
    datasets.disable_progress_bars()
    try:
        trainer = make(st_path, tmp_path, None, rows(4), num_train_epochs=1)
        trainer.train()
        trainer.evaluate()
        trainer.save_model(str(tmp_path / "saved"))
    finally:
        if on[0]:
            transformers_logging.enable_progress_bar()
        if not on[1]:
            datasets.enable_progress_bars()
    assert not capfd.readouterr().err
    assert trainer.model.model_card_data.widget == []
    assert "generated_from_trainer" in trainer.model.model_card_data.tags


def test_examples_for_a_card_that_someone_gave_stay(st_path, tmp_path):
    model = load(st_path)
    model.model_card_data.widget = [{"source_sentence": "mine"}]
    trainer = SurpriseTrainer(model, SurpriseTrainingArguments(str(tmp_path), use_cpu=True, report_to="none"), rows())
    assert trainer.model.model_card_data.widget == [{"source_sentence": "mine"}]


# --- steps -----------------------------------------------------------------------------------------------------------


def test_defaults_of_the_paper(tmp_path):
    args = SurpriseTrainingArguments(output_dir=str(tmp_path))
    assert (args.learning_rate, args.weight_decay, args.stop_cross_entropy) == (1e-4, 0.01, 0.3)
    assert (args.gamma, args.epsilon, args.delta) == (1.0, 0.05, 1e-10)


@pytest.mark.parametrize(("words", "mixed"), [(False, True), (True, True), (False, False)])
def test_a_step_is_one_update_of_the_matrix_loss(st_path, tmp_path, words, mixed):
    """Against the formula written out: SGD on all documents and all labels, word embeddings only if wanted.

    Documents are drawn to where `aim_labels` says, or to the names.
    """
    texts = [" ".join([text.split()[0]] * 3 + text.split()) for text in TEXTS]  # those of a label are alike
    trainer = make(
        st_path, tmp_path, Dataset.from_dict({"text": texts, "label": TARGETS}),
        per_device_train_batch_size=24, num_train_epochs=1, optim="sgd", weight_decay=0.0,
        max_grad_norm=0.0, learning_rate=0.1, train_word_embeddings=words, mix_examples=mixed,
    )  # fmt: skip
    trainer.train()
    assert all(p.requires_grad for p in trainer.model.parameters())
    model = load(st_path)
    templated = [f"this matter is {label}" for label in LABELS]
    keys, queries = (model(model.preprocess(texts))["sentence_embedding"] for texts in (texts, templated))
    positive = torch.tensor([[label == target for label in LABELS] for target in TARGETS])
    if mixed:
        offset, centre = aim_labels(queries.detach(), keys.detach(), positive)
        assert min(float(offset.norm()), float(centre.norm())) > 0.1
        keys, queries = unit_rows(keys) - centre, unit_rows(queries) - centre + offset
    loss, _ = weighted_focal_loss(keys, queries, positive, impl="reference")
    loss.backward()
    still = None if words else model[0].auto_model.get_input_embeddings().weight
    expected = [p.detach() - 0.1 * (0 if p.grad is None or p is still else p.grad) for p in model.parameters()]
    assert_same(weights(trainer.model), expected, rtol=1e-4, atol=1e-6)


def test_accumulation_makes_the_same_update(st_path, tmp_path):
    results = []
    for batch, steps in ((12, 1), (3, 4)):
        trainer = make(
            st_path, tmp_path / str(batch), per_device_train_batch_size=batch, gradient_accumulation_steps=steps,
            optim="sgd", learning_rate=0.05, max_grad_norm=0.0,  # which would make one of two lengths
        )  # fmt: skip
        trainer.train()
        assert trainer.state.global_step == 4
        results.append(weights(trainer.model))
    assert_same(*results, rtol=1e-4, atol=1e-6)


def test_texts_per_step(st_path, tmp_path):
    trainer = make(st_path, tmp_path, per_device_train_batch_size=8, num_train_epochs=1)
    trainer.train()
    assert trainer.loss.encoded == {"documents": 24, "labels": 3 * 3}


def test_many_labels_do_not_dominate_a_step(st_path, tmp_path):
    labels = [*LABELS, *(f"label {i}" for i in range(147))]
    for options, per_step in (({}, 4 * 4), ({"labels_per_step": 10}, 10), ({"labels_per_step": 150}, 150)):
        trainer = make(
            st_path, tmp_path, trainer={"labels": labels}, per_device_train_batch_size=4, num_train_epochs=1, **options
        )
        trainer.train()
        first = 150 if per_step < 150 else 0  # all of them once, without gradient
        assert trainer.loss.encoded == {"documents": 24, "labels": first + 6 * per_step}


def test_fewer_examples_than_a_batch(st_path, tmp_path):
    trainer = make(st_path, tmp_path, rows(8), per_device_train_batch_size=8)
    before = weights(trainer.model)
    trainer.train()
    assert trainer.state.global_step == 2
    assert any(not torch.equal(a, b) for a, b in zip(before, weights(trainer.model), strict=True))


def test_stops_by_the_mean_cross_entropy_of_an_epoch(st_path, tmp_path):
    history = make(st_path, tmp_path, num_train_epochs=8)
    history.train()
    seen = [entry["cross_entropy"] for entry in history.state.log_history if "cross_entropy" in entry]
    assert len(seen) == 8
    threshold = seen[3] + 1e-3
    first = next(epoch for epoch, value in enumerate(seen) if value < threshold)
    trainer = make(st_path, tmp_path, num_train_epochs=8, stop_cross_entropy=threshold)
    trainer.train()
    assert trainer.state.epoch == first + 1 < 8


def test_the_logged_means(st_path, tmp_path):
    """With learning rate 0, the mean over the epoch's batches is that of the whole; without one broken off before."""
    trainer = make(st_path, tmp_path, num_train_epochs=1, learning_rate=0.0, per_device_train_batch_size=8)
    trainer.loss.total += 100
    trainer.train()
    metrics = trainer.evaluate(rows())
    for name in ("cross_entropy", "loss"):
        (logged,) = [entry[name] for entry in trainer.state.log_history if name in entry]
        assert logged == pytest.approx(metrics[f"eval_{name}"], abs=1e-4)


@pytest.mark.parametrize("checkpointing", [False, True])
def test_dropout_only_where_wanted(st_path, tmp_path, checkpointing):
    """Without, a step of all texts is a function of them and the weights: the seed makes no difference.

    Either way activations are computed again, in the backward pass, where that is asked for.
    """
    found, again = {}, set()
    for dropout in (False, True):
        for seed in (1, 2):
            trainer = make(
                st_path, tmp_path, num_train_epochs=1, per_device_train_batch_size=24, dropout=dropout, seed=seed,
                optim="sgd", learning_rate=0.1, gradient_checkpointing=checkpointing,
            )  # fmt: skip
            layer = trainer.model[0].auto_model.encoder.layer[0].attention
            layer.register_forward_hook(lambda *_: again.add(torch._C._current_graph_task_id() >= 0))
            trainer.train()
            assert (True in again) == checkpointing
            again.clear()
            found[dropout, seed] = torch.cat([p.flatten() for p in weights(trainer.model)])
    torch.testing.assert_close(found[False, 1], found[False, 2])
    assert not torch.allclose(found[True, 1], found[True, 2])


@pytest.mark.parametrize(("able", "wanted"), [(True, None), (False, None), (True, False), (False, True)])
def test_products_in_bfloat16_where_the_cpu_has_units_for_them(st_path, tmp_path, monkeypatch, able, wanted):
    """Products alone: embeddings, loss and weights stay float32, and so does attention."""
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"amx_bf16": True} if able else {}, raising=False)
    found = {}
    for narrow in (wanted, False):
        trainer, dtypes = make(st_path, tmp_path, bf16_on_cpu=narrow), {"product": set(), "loss": set()}
        linear = trainer.model[0].auto_model.encoder.layer[0].attention.self.query
        linear.register_forward_hook(
            lambda _, __, out, seen=dtypes: seen["product"].add((torch.is_grad_enabled(), out.dtype))
        )
        trainer.loss.focal.register_forward_pre_hook(lambda _, inputs, seen=dtypes: seen["loss"].add(inputs[0].dtype))
        trainer.train()
        assert dtypes["loss"] == {torch.float32}
        assert {p.dtype for p in trainer.model.parameters()} == {torch.float32}
        found[narrow] = dtypes["product"], torch.cat([p.flatten() for p in weights(trainer.model)])
    on = able if wanted is None else wanted
    fine = (False, torch.float32)  # what is saved is encoded without
    assert found[wanted][0] == {(True, torch.bfloat16 if on else torch.float32), fine}
    assert found[False][0] == {(True, torch.float32), fine}
    assert torch.equal(found[wanted][1], found[False][1]) != on
    torch.testing.assert_close(found[wanted][1], found[False][1], rtol=0, atol=8e-3)  # four steps of 1e-3 each way


OTHER_WAYS = [{"bf16": True}, {"fp16": True}, {"activation_checkpointing": True}, {"class_weight": "balanced"}]
OTHER_WAYS += [{**way, "bf16_on_cpu": True} for way in OTHER_WAYS]


@pytest.mark.parametrize("options", OTHER_WAYS)
def test_other_ways_to_train(st_path, tmp_path, options):
    trainer = make(st_path, tmp_path, num_train_epochs=1, **options)
    before = weights(trainer.model)
    assert np.isfinite(trainer.train().training_loss)
    assert any(not torch.equal(a, b) for a, b in zip(before, weights(trainer.model), strict=True))
    assert all(torch.isfinite(p).all() for p in trainer.model.parameters())


def test_what_is_saved_is_of_the_weights_and_not_of_autocast(st_path, tmp_path):
    """Every embedding after training, and of an evaluation within it, is that of the folder opened again."""
    seen: list[torch.Tensor] = []

    class Look(TrainerCallback):
        def on_evaluate(self, *_, **__):
            seen.append(trainer.model.embed(TEXTS)[0])

    trainer = make(st_path, tmp_path, evaluate=rows(3), eval_strategy="epoch", bf16=True)
    trainer.add_callback(Look)
    trainer.train()
    trainer.save_model()
    again = load(tmp_path)
    emb, _ = again.embed(TEXTS)
    assert len(seen) == 2
    for found in (seen[-1], trainer.model.embed(TEXTS)[0]):
        torch.testing.assert_close(found, emb, rtol=0, atol=1e-6)
    want = Ensemble.from_embeddings(emb)
    torch.testing.assert_close(again.ensemble.mean, want.mean, rtol=0, atol=1e-6)
    torch.testing.assert_close(trainer.model.fitted.score(emb), again.fitted.score(emb), rtol=0, atol=1e-6)
    features = again.preprocess(TEXTS)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        rough = again(features)["sentence_embedding"].float()
    assert (rough - emb).abs().max() > 1e-4  # so that it would be seen


def test_lora(st_path, tmp_path):
    """Only the adapter learns; merged, the saved folder is a model as any other."""
    trainer = make(st_path, tmp_path, learning_rate=1e-2)
    backbone = trainer.model[0].auto_model
    adapted = get_peft_model(backbone, LoraConfig(r=4, target_modules=["query", "value"]))
    trainer.model[0].auto_model = adapted
    before = {name: p.detach().clone() for name, p in trainer.model.named_parameters()}
    trainer.train()
    moved = {name for name, p in trainer.model.named_parameters() if not torch.equal(p, before[name])}
    assert moved == {name for name in before if "lora_" in name}
    trained = trainer.model.embed(TEXTS)[0]
    with pytest.raises(ValueError, match="merge the adapter before saving"):
        trainer.save_model()
    for options in ({"save_strategy": "epoch"}, {"load_best_model_at_end": True, "metric_for_best_model": "loss"}):
        if "load_best_model_at_end" in options:
            options |= {"save_strategy": "epoch", "eval_strategy": "epoch"}
        keeps = make(st_path, tmp_path / "keeps", evaluate=rows(4), **options)
        keeps.model[0].auto_model = adapted
        with pytest.raises(ValueError, match=r"merge the adapter.*save_strategy='no'"):
            keeps.train()
        assert not list((tmp_path / "keeps").glob("checkpoint-*"))
    trainer.model[0].auto_model = adapted.merge_and_unload()
    trainer.save_model()
    torch.testing.assert_close(SurpriseModel.from_pretrained(tmp_path, device="cpu").embed(TEXTS)[0], trained)
    assert not torch.allclose(load(st_path).embed(TEXTS)[0], trained, atol=1e-3)


# --- arguments -------------------------------------------------------------------------------------------------------


def test_wrong_arguments_are_named(st_path, tmp_path):
    for words, change in (
        ("no labels", {"train": Dataset.from_dict({"text": TEXTS})}),
        ("row 8 has the label 'sport'", {"trainer": {"labels": ["money", "weather"]}}),
        ("one hypothesis_template", {"trainer": {"hypothesis_template": ["a {}", "b {}"]}}),
        ("share one prompt", {"prompts": {"text": "query: "}}),
        ("class_weight must be", {"class_weight": "equal"}),
        ("labels_per_step must be a positive integer", {"labels_per_step": 0}),
        ("no text to train on", {"train": [{"text": "", "label": "money"}]}),
    ):
        with pytest.raises(ValueError, match=words if words != "no labels" else "holds the labels"):
            make(st_path, tmp_path, **change)


def test_arguments_from_a_command_line(tmp_path):
    parser = HfArgumentParser(SurpriseTrainingArguments)
    (args,) = parser.parse_args_into_dataclasses(
        ["--output_dir", str(tmp_path), "--probability", "relu", "--labels_per_step", "7", "--refine", "auto"]
    )
    assert (args.probability, args.labels_per_step, args.refine, args.learning_rate) == ("relu", 7, "auto", 1e-4)


# --- what is saved ---------------------------------------------------------------------------------------------------


def test_the_saved_model_is_a_pipeline(st_path, tmp_path):
    corpus = [f"{text} six" for text in TEXTS]
    trainer = make(
        st_path, tmp_path, trainer={"hypothesis_template": "about {}", "ensemble": corpus}, surprise_weight=1.0,
        refine="3",
    )  # fmt: skip
    trainer.train()
    trainer.save_model()
    assert not list(tmp_path.rglob("*.bin"))
    assert not list(tmp_path.rglob("*.pkl"))
    results = pipeline("surprise-zero-shot", model=str(tmp_path), device="cpu")(TEXTS)
    reference = pipeline("surprise-zero-shot", model=trainer.model, device="cpu")
    expected = reference(
        TEXTS, candidate_labels=LABELS, hypothesis_template="about {}", ensemble=corpus, surprise_weight=1.0, refine=3
    )
    for one, other in zip(results, expected, strict=True):
        assert one["labels"] == other["labels"]
        assert one["scores"] == pytest.approx(other["scores"], abs=1e-5)
    plain = SentenceTransformer(str(tmp_path), device="cpu")
    np.testing.assert_allclose(plain.encode(TEXTS), trainer.model.encode(TEXTS), atol=1e-6)


def test_checkpoints_are_pipelines_with_their_own_ensemble(st_path, tmp_path):
    trainer = make(st_path, tmp_path, save_strategy="epoch", per_device_train_batch_size=24, learning_rate=0.05)
    trainer.train()
    means = []
    for step in (1, 2):
        folder = tmp_path / f"checkpoint-{step}"
        model = SurpriseModel.from_pretrained(folder, device="cpu")
        assert model.candidate_labels == LABELS
        emb, _ = model.embed(TEXTS)
        torch.testing.assert_close(
            model.ensemble.mean.float(), torch.nn.functional.normalize(emb).mean(dim=0), rtol=1e-4, atol=1e-5
        )
        assert set(pipeline("surprise-zero-shot", model=str(folder), device="cpu")(TEXTS[0])["labels"]) == set(LABELS)
        means.append(model.ensemble.mean)
    assert not torch.allclose(*means, atol=1e-4)
    torch.testing.assert_close(trainer.model.ensemble.mean, means[1], rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("more", [{}, {"labels_per_step": 2, "per_device_train_batch_size": 3}])
def test_resume_gives_the_uninterrupted_result(st_path, tmp_path, monkeypatch, more):
    """Of labels that are not all encoded in each step, what was known of the others comes back too."""
    whole = make(st_path, tmp_path / "whole", num_train_epochs=3, **more)
    whole.train()

    class Interrupt(TrainerCallback):
        def on_epoch_end(self, args, state, control, **_):  # noqa: ARG002
            control.should_training_stop = state.epoch >= 2

    options = {"num_train_epochs": 3, "save_strategy": "epoch", **more}
    make(st_path, tmp_path / "part", trainer={"callbacks": [Interrupt()]}, **options).train()
    assert len(list((tmp_path / "part").glob("checkpoint-*/loss.safetensors"))) == 2
    resumed = make(st_path, tmp_path / "part", **options)
    resumed.train(resume_from_checkpoint=True)
    assert resumed.state.epoch == 3
    resumed.save_model()
    assert not (tmp_path / "part" / "loss.safetensors").exists()
    assert_same(weights(resumed.model), weights(whole.model), rtol=1e-6, atol=1e-7)
    assert resumed.model.candidate_labels == LABELS
    torch.testing.assert_close(resumed.model.ensemble.mean, whole.model.ensemble.mean, rtol=1e-5, atol=1e-7)
    other = make(st_path, tmp_path / "part", trainer={"labels": [*LABELS, "music"]}, **options)
    with pytest.raises(ValueError, match="was trained for other labels"):
        other.train(resume_from_checkpoint=True)
    monkeypatch.setattr(resumed.loss, "remember", None)
    resumed.train()  # anew: from what the encoder is now, not from what it was in that checkpoint


@pytest.mark.parametrize("kind", [SurpriseTrainer, ResumableTrainer])
def test_one_process_writes(st_path, tmp_path, monkeypatch, kind):
    """Two that write one folder take each other's unfinished files."""
    args = SurpriseTrainingArguments(str(tmp_path / "out"), use_cpu=True, report_to="none", max_steps=1)
    trainer = kind(load(st_path), args, rows())
    trainer.train()
    monkeypatch.setattr(SurpriseTrainingArguments, "should_save", property(lambda _: False))
    for folder in (tmp_path / "elsewhere", tmp_path / "out" / "checkpoint-9"):
        trainer.save_model(str(folder))
        assert not folder.exists()


def test_best_model_comes_back_with_its_ensemble(st_path, tmp_path):
    """Training that gets worse on purpose, stopped early: the first checkpoint is the best one."""
    wrong = Dataset.from_dict({"text": TEXTS, "label": TARGETS[8:] + TARGETS[:8]})
    trainer = make(
        st_path, tmp_path, rows(), wrong, num_train_epochs=6, learning_rate=5e-3, save_strategy="epoch",
        eval_strategy="epoch", load_best_model_at_end=True, metric_for_best_model="loss",
        trainer={"callbacks": [EarlyStoppingCallback(1)]}, per_device_train_batch_size=4,
    )  # fmt: skip
    trainer.train()
    assert trainer.state.epoch < 6
    best = SurpriseModel.from_pretrained(trainer.state.best_model_checkpoint, device="cpu")
    assert best.candidate_labels == trainer.model.candidate_labels == LABELS
    assert_same(weights(trainer.model), weights(best))
    torch.testing.assert_close(trainer.model.ensemble.mean, best.ensemble.mean, rtol=1e-6, atol=1e-8)
    assert trainer.evaluate()["eval_loss"] == pytest.approx(trainer.state.best_metric, rel=1e-4)


def test_the_models_prompt_is_used_on_both_sides(st_path, tmp_path):
    trainer = make(st_path, tmp_path, prompts="query: ", num_train_epochs=1)
    prompted = SentenceTransformer(str(st_path), prompts={"q": "query: "}, default_prompt_name="q", device="cpu")
    same = SurpriseTrainer(SurpriseModel.from_encoder(prompted), trainer.args, rows())
    same.args.prompts = None
    (batch,) = list(trainer.get_train_dataloader())[:1]
    assert "query" in trainer.model.tokenizer.decode(batch["text_input_ids"][0])
    assert trainer.loss.prompt == same.loss.prompt == "query: "
    trainer.train()
    same.train()
    assert_same(weights(trainer.model), weights(same.model))
    trainer.save_model()
    assert SurpriseModel.from_pretrained(tmp_path, device="cpu").prompts["surprise"] == "query: "
