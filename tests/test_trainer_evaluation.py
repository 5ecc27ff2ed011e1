"""What a SurpriseTrainer says of its labels, and how they come about: evaluation, prediction, refinement."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from datasets import ClassLabel, Dataset, Features, Value
from sklearn.metrics import accuracy_score, f1_score
from transformers import pipeline

from surprise_hf import SurpriseModel, SurpriseTrainer, SurpriseZeroShotPipeline, WeightedFocalLoss, pseudo_label
from surprise_hf.few_shot import part_labels
from surprise_hf.ops import unit_rows
from surprise_hf.targets import accuracy_and_f1
from tests.trainer_data import LABELS, TARGETS, TEXTS, as_class_label, assert_same, load, make, rows, weights


def test_metrics_by_scikit_learn(st_path, tmp_path):
    trainer = make(st_path, tmp_path, evaluate=rows(), surprise_weight=1.0)
    metrics = trainer.evaluate()
    pipe = pipeline("surprise-zero-shot", model=trainer.model, device="cpu")
    for way, weight in (("cosine", 0), ("surprise", 1)):
        decided = [r["labels"][0] for r in pipe(TEXTS, candidate_labels=LABELS, surprise_weight=weight)]
        assert metrics[f"eval_{way}_accuracy"] == pytest.approx(accuracy_score(TARGETS, decided))
        assert metrics[f"eval_{way}_f1"] == pytest.approx(f1_score(TARGETS, decided, average="macro"))


def test_metrics_of_several_labels():
    positive = torch.tensor([[1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 0]], dtype=torch.bool)
    best = torch.tensor([[0, 2], [2, 3], [3, 1]])  # the first finds 1 of 2, the second its one, the third counts not
    metrics = accuracy_and_f1(best, positive)
    assert metrics["accuracy"] == pytest.approx(0.75)
    given = np.array([[1, 0, 1, 0], [0, 0, 1, 0]])
    expected = f1_score(positive[:2].numpy(), given, average=None, zero_division=0)[:3].mean()  # label 3 never occurs
    assert metrics["f1"] == pytest.approx(expected)


def test_predict_with_and_without_labels(st_path, tmp_path):
    trainer = make(
        st_path, tmp_path, trainer={"compute_metrics": lambda p: {"mean": float(p.predictions[p.label_ids].mean())}}
    )
    output = trainer.predict(rows())
    assert output.predictions.shape == output.label_ids.shape == (24, 3)
    assert output.metrics["test_mean"] == pytest.approx(output.predictions[output.label_ids].mean(), rel=1e-6)
    assert 0 <= output.metrics["test_surprise_accuracy"] <= 1
    bare = trainer.predict(Dataset.from_dict({"text": TEXTS}))
    np.testing.assert_allclose(bare.predictions, output.predictions, atol=1e-6)
    assert bare.label_ids is None  # as in transformers, and nothing is measured by labels that are not there
    assert not [name for name in bare.metrics if name in ("test_mean", "test_loss", "test_surprise_accuracy")]


def test_documents_without_a_label_count_in_the_loss_even_alone(st_path, tmp_path):
    """A run that keeps its best checkpoint by the loss broke off after its first epoch."""
    foreign = Dataset.from_dict(
        {"text": TEXTS, "label": [[]] * len(TEXTS)}, Features(text=Value("string"), label=[Value("string")])
    )
    trainer = make(
        st_path, tmp_path, evaluate=foreign, eval_strategy="epoch", save_strategy="epoch", load_best_model_at_end=True
    )
    trainer.train()
    keys, names = (
        trainer.loss.document_rows(trainer.model.encode(TEXTS, convert_to_tensor=True)),
        trainer._name_vectors(),
    )
    expected, _ = trainer.loss.focal(keys, trainer.loss.label_rows(names), torch.zeros(len(TEXTS), 3, dtype=torch.bool))
    assert trainer.evaluate()["eval_loss"] == pytest.approx(float(expected), rel=1e-5)


def test_evaluation_against_a_corpus(st_path, tmp_path):
    """With a corpus, a document's scores do not depend on what is evaluated beside it."""
    trainer = make(st_path, tmp_path, trainer={"ensemble": TEXTS}, surprise_weight=1.0)
    whole = trainer.predict(rows()).predictions
    np.testing.assert_allclose(trainer.predict(rows().select([3])).predictions, whole[[3]], atol=1e-6)
    assert trainer.model.fit_options["refine"] == "auto"


def test_labels_are_refined_by_default_where_there_are_documents_for_it(st_path, tmp_path):
    for given, refine, expected in ((None, None, None), (TEXTS, None, "auto"), (TEXTS, "0", 0), (None, "2", 2)):
        trainer = make(st_path, tmp_path, trainer={"ensemble": given}, refine=refine)
        assert trainer.model.fit_options.get("refine") == expected


def test_labels_are_refined_on_more_documents_than_there_are_examples(st_path, tmp_path):
    """Trained, labels stand on the examples; at the name (`mix_examples=False`) any documents help."""
    count = len(rows())
    for documents, more, expected in (
        ((TEXTS * 9)[:count], {}, 0),
        ([*TEXTS * 9, "one more"][-count - 1 :], {}, "auto"),
        (TEXTS[:4], {"refine": "auto"}, "auto"),
        (TEXTS[:4], {"mix_examples": False}, "auto"),
    ):
        trainer = make(st_path, tmp_path, trainer={"ensemble": documents}, max_steps=1, **more)
        trainer.train()
        assert trainer.model.fit_options["refine"] == expected


@pytest.mark.parametrize("columns", [("text", "label", None), ("body", "kind", "worth")])
@pytest.mark.parametrize("numbers", [False, True])
def test_rows_for_self_training(st_path, tmp_path, columns, numbers):
    """A second trainer goes on with them: the examples, and the documents that labels are surest of."""
    text, label, weight = columns
    labels = [30, 10, 20] if numbers else LABELS
    given = {text: TEXTS[::2], label: [labels[LABELS.index(target)] for target in TARGETS[::2]]}
    given |= {} if weight is None else {weight: [0.5] * 12}
    named = {"text_column": text, "label_column": label, "weight_column": weight} if weight else {}
    documents = [*TEXTS, *(f"{one} noon" for one in TEXTS)]
    examples = Dataset.from_dict(given)
    trainer = make(st_path, tmp_path, examples, trainer={"labels": labels, "ensemble": documents}, **named)
    trainer.train()
    rows = trainer.self_training_rows(per_label=4)
    surest = pseudo_label(trainer.model, documents, per_label=4)
    expected = [(one, [at]) for one, at in zip(surest["text"], surest["label"], strict=True) if one not in given[text]]
    assert set(rows.column_names) == set(filter(None, columns))
    assert rows[text][:12] == given[text]
    assert weight is None or rows[weight] == [0.5] * 12 + [1.0] * len(expected)
    more = {"labels": labels if numbers else None, "ensemble": documents}
    again = SurpriseTrainer(trainer.model, trainer.args, rows, **more)
    assert again.labels == labels
    prepared = again.train_dataset
    assert prepared["label"][:12] == trainer.train_dataset["label"][:]
    assert list(zip(prepared["text"][12:], prepared["label"][12:], strict=True)) == expected
    again.train()
    assert again.model.candidate_labels == labels


def test_self_training_needs_documents_and_a_trained_model(st_path, tmp_path):
    with pytest.raises(ValueError, match="needs unlabelled documents"):
        make(st_path, tmp_path).self_training_rows()
    with pytest.raises(ValueError, match="call train"):
        make(st_path, tmp_path, trainer={"ensemble": TEXTS}).self_training_rows()


@pytest.mark.parametrize("mixed", [True, False])
def test_saved_labels_part_the_examples(st_path, tmp_path, mixed):
    """In what is saved and in what is evaluated, with the trained weights; before training the names stand alone."""
    trainer = make(st_path, tmp_path, evaluate=rows(3), mix_examples=mixed, eval_strategy="epoch")
    templated = [f"this matter is {label}" for label in LABELS]
    torch.testing.assert_close(
        trainer.model.label_vectors(LABELS, "this matter is {}"), load(st_path).embed(templated)[0]
    )
    trainer.train()
    model = trainer.model
    names, examples = model.embed(templated)[0], model.embed(TEXTS)[0]
    positive = torch.tensor([[label == target for label in LABELS] for target in TARGETS])
    expected = part_labels(names, examples, positive) if mixed else names
    torch.testing.assert_close(model.label_vectors(LABELS, "this matter is {}"), expected, rtol=1e-4, atol=1e-5)
    decided = (unit_rows(model.embed(TEXTS[::3])[0]) @ unit_rows(expected).T).argmax(dim=1)
    right = np.mean([LABELS[at] == target for at, target in zip(decided.tolist(), TARGETS[::3], strict=True)])
    assert trainer.state.log_history[-2]["eval_cosine_accuracy"] == pytest.approx(right)
    trainer.save_model()
    saved = SurpriseModel.from_pretrained(tmp_path, device="cpu")
    torch.testing.assert_close(saved.label_vectors(LABELS, "this matter is {}"), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("mixed", [True, False])
def test_an_interrupted_fit_is_made_up_for_when_saving(st_path, tmp_path, monkeypatch, mixed):
    trainer = make(st_path, tmp_path, mix_examples=mixed)
    with monkeypatch.context() as patch:
        patch.setattr(SurpriseModel, "set_ensemble", interrupted_with(SurpriseModel.set_ensemble, 1))
        with pytest.raises(KeyboardInterrupt):
            trainer.train()
    assert trainer.model.ensemble is None
    trainer.save_model()
    saved = SurpriseModel.from_pretrained(tmp_path, device="cpu")
    assert saved.candidate_labels == LABELS
    assert len(saved.ensemble) == len(TEXTS)


def interrupted_with(real, calls: int):
    """The function as it is for so many calls, then an interruption."""
    left = iter([True] * calls)

    def stopping(*args, **kwargs):
        if not next(left, False):
            raise KeyboardInterrupt
        return real(*args, **kwargs)

    return stopping


@pytest.mark.parametrize("mixed", [True, False])
def test_an_evaluation_embeds_each_text_once(st_path, tmp_path, monkeypatch, mixed):
    trainer = make(st_path, tmp_path, evaluate=rows(3), mix_examples=mixed)
    trainer.train()
    trainer.model.train()  # as a step does: names embedded before it are old
    seen = []
    real = SurpriseModel.embed
    monkeypatch.setattr(SurpriseModel, "embed", lambda self, texts, **k: seen.extend(texts) or real(self, texts, **k))
    trainer.evaluate()
    assert sorted(seen) == sorted([*TEXTS[::3], *(f"this matter is {label}" for label in LABELS)])


def test_an_evaluation_set_that_is_set_later_counts_whatever_loaders_are_kept(st_path, tmp_path):
    kept = {"dataloader_num_workers": 1, "dataloader_persistent_workers": True}
    trainer = make(st_path, tmp_path, evaluate=rows(), **kept)
    before = trainer.evaluate()
    trainer.eval_dataset = rows(5).to_list()
    after = trainer.evaluate()
    assert (
        after["eval_loss"] == make(st_path, tmp_path, evaluate=rows(5)).evaluate()["eval_loss"] != before["eval_loss"]
    )


def test_several_evaluation_sets_and_label_orders(st_path, tmp_path):
    turned = Features({"text": Value("string"), "label": ClassLabel(names=LABELS[::-1])})
    other = Dataset.from_dict({"text": TEXTS, "label": [2 - LABELS.index(t) for t in TARGETS]}, turned)
    trainer = make(st_path, tmp_path, as_class_label(), {"one": rows(), "two": other})
    metrics = trainer.evaluate()
    assert metrics["eval_one_loss"] == metrics["eval_two_loss"]


def test_loss_may_be_given(st_path, tmp_path):
    trainer = make(st_path, tmp_path, trainer={"loss": WeightedFocalLoss(gamma=2.0, probability="relu")})
    assert trainer.loss.focal.gamma == 2.0


def test_model_init(st_path, tmp_path):
    given = make(st_path, tmp_path, num_train_epochs=1)
    given.train()
    made = SurpriseTrainer(args=given.args, train_dataset=rows(), model_init=lambda: load(st_path))
    made.train()
    assert made.model.candidate_labels == LABELS
    assert_same(weights(made.model), weights(given.model))


@pytest.mark.parametrize("mixed", [True, False])
@pytest.mark.parametrize("documents", [None, TEXTS[::2]])
def test_what_is_evaluated_is_what_is_saved(st_path, tmp_path, mixed, documents):
    """One text by itself too, and a trainer of the saved model that has not trained."""
    more = {"trainer": {"ensemble": documents}, "surprise_weight": 1.0, "self_training": False}
    trainer = make(st_path, tmp_path, mix_examples=mixed, **more)
    trainer.train()
    trainer.save_model()
    pipe = SurpriseZeroShotPipeline(SurpriseModel.from_pretrained(tmp_path, device="cpu"))
    again = make(tmp_path, tmp_path / "again", surprise_weight=1.0)
    for one in (trainer, again):
        for given in (TEXTS[3:4], TEXTS[1::5]):
            scores = one.predict(Dataset.from_dict({"text": given})).predictions
            for text, row in zip(given, scores, strict=True):
                found = pipe(text)
                expected = dict(zip(found["labels"], found["scores"], strict=True))
                np.testing.assert_allclose(row, [expected[label] for label in LABELS], atol=1e-5)
