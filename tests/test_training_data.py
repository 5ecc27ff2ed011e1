"""What the training set may look like: kinds of tables, labels and columns."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from datasets import Dataset, Features, Value
from transformers import pipeline

from tests.trainer_data import LABELS, TARGETS, TEXTS, as_class_label, assert_same, make, rows, weights


@pytest.mark.parametrize(
    ("data", "labels"),
    [
        (as_class_label(), None),
        (Dataset.from_dict({"text": TEXTS, "label": [LABELS.index(t) for t in TARGETS]}), LABELS),
        (Dataset.from_dict({"labels": [[t] for t in TARGETS], "sentence": TEXTS, "row": range(24)}), None),
        (pd.DataFrame({"text": TEXTS, "label": TARGETS, "row": range(24)}), None),
        ([{"label": t, "text": x} for x, t in zip(TEXTS, TARGETS, strict=True)], None),
        (as_class_label().to_iterable_dataset(), None),
        ({"text": TEXTS, "label": TARGETS}, None),
        ({"text": np.array(TEXTS), "label": pd.Series(TARGETS), "row": range(24)}, None),
        ({"text": tuple(TEXTS), "label": torch.eye(3).repeat_interleave(8, dim=0)}, LABELS),
        ({"text": TEXTS, "label": np.eye(3, dtype=bool).repeat(8, axis=0)}, LABELS),
    ],
)
def test_every_kind_of_label_trains_alike(st_path, tmp_path, data, labels):
    expected = make(st_path, tmp_path, num_train_epochs=1)
    expected.train()
    trainer = make(st_path, tmp_path, data, trainer={"labels": labels}, num_train_epochs=1)
    trainer.train()
    assert trainer.labels == LABELS
    assert_same(weights(trainer.model), weights(expected.model))


def test_columns_by_name(st_path, tmp_path):
    data = Dataset.from_dict({"title": ["x"] * 24, "body": TEXTS, "kind": TARGETS, "score": [0.5] * 24})
    trainer = make(st_path, tmp_path, data, text_column="body", label_column="kind", weight_column="score")
    assert trainer.train_dataset.column_names == ["text", "label", "weight"]
    plain = {"num_train_epochs": 1, "optim": "sgd", "max_grad_norm": 0.0, "weight_decay": 0.0}
    named = {"text_column": "body", "label_column": "kind", "weight_column": "score"}
    half = make(st_path, tmp_path, learning_rate=0.05, **plain)
    full = make(st_path, tmp_path, data, learning_rate=0.1, **named, **plain)
    half.train()
    full.train()
    assert_same(weights(half.model), weights(full.model), rtol=1e-4, atol=1e-6)  # half the weight, twice the rate
    for options, words in (
        ({}, r"which column of the train dataset holds the texts \(title, body, kind, score\)"),
        ({"text_column": "nothing"}, "no column 'nothing'"),
        ({"text_column": "body"}, "holds the labels"),
        ({"text_column": "body", "label_column": "knid"}, "no column 'knid'; it has title, body, kind, score"),
        ({**named, "weight_column": "scroe"}, "train dataset has no column 'scroe'; it has title, body, kind, score"),
    ):
        with pytest.raises(ValueError, match=words):
            make(st_path, tmp_path, data, **options)


def test_weights_are_of_the_training_set_alone(st_path, tmp_path):
    data = Dataset.from_dict({"text": TEXTS, "label": TARGETS, "worth": [0.5] * 24})
    trainer = make(st_path, tmp_path, data, rows(), weight_column="worth")
    assert trainer.train_dataset["weight"][:] == [0.5] * 24
    assert trainer.eval_dataset.column_names == ["text", "label"]
    same = make(st_path, tmp_path, data, rows().add_column("worth", [0.0] * 24), weight_column="worth")
    assert same.eval_dataset.column_names == ["text", "label"]
    assert trainer.predict(rows(4).remove_columns("label")).predictions.shape == (6, 3)


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -1.0, None, "2"])
def test_a_wrong_weight_is_named_by_its_row(st_path, tmp_path, wrong):
    data = [{"text": text, "label": label, "worth": 1.0} for text, label in zip(TEXTS, TARGETS, strict=True)]
    data = {name: [row[name] for row in data] for name in data[0]}
    data["worth"] = ["1"] * 24 if isinstance(wrong, str) else data["worth"]
    data["worth"][0 if isinstance(wrong, str) else 3] = wrong
    with pytest.raises(ValueError, match=r"weight of row [03] \(column 'worth'\) must be a finite number"):
        make(st_path, tmp_path, data, weight_column="worth")


def test_no_weight_at_all(st_path, tmp_path):
    data = {"text": TEXTS, "label": TARGETS, "worth": [0] * 24}
    with pytest.raises(ValueError, match=r"every weight is 0.*'worth'"):
        make(st_path, tmp_path, data, weight_column="worth")


def test_rows_without_weight_move_no_label(st_path, tmp_path):
    """Neither in a step nor in the labels that are saved."""
    wrong = {"text": [*TEXTS, *TEXTS], "label": [*TARGETS, *TARGETS[8:], *TARGETS[:8]], "worth": [1] * 24 + [0] * 24}
    options = {"max_steps": 1, "per_device_train_batch_size": 48, "optim": "sgd", "learning_rate": 0.0}
    right = make(st_path, tmp_path, **options)
    mixed = make(st_path, tmp_path, wrong, weight_column="worth", **options)
    for trainer in (right, mixed):
        trainer.train()
    vectors = [trainer.model.label_vectors(LABELS, trainer.template) for trainer in (right, mixed)]
    torch.testing.assert_close(*vectors, rtol=0, atol=2e-4)
    torch.testing.assert_close(*(trainer.loss.offset for trainer in (right, mixed)), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("empty", [[], (), {"text": [], "label": []}, Dataset.from_dict({"text": [], "label": []})])
def test_no_rows(st_path, tmp_path, empty):
    with pytest.raises(ValueError, match="the train dataset has no rows"):
        make(st_path, tmp_path, empty, trainer={"labels": LABELS})
    with pytest.raises(ValueError, match="the eval dataset has no rows"):
        make(st_path, tmp_path, None, empty)
    with pytest.raises(ValueError, match="the test dataset has no rows"):
        make(st_path, tmp_path).predict(empty)


@pytest.mark.parametrize("part", [rows(4), rows(4).to_list(), rows(4).to_dict(), rows(4).to_pandas()])
def test_several_evaluation_sets_of_any_kind(st_path, tmp_path, part):
    trainer = make(st_path, tmp_path, None, {"one": part, "two": rows(4)})
    assert trainer.eval_dataset["one"].to_dict() == trainer.eval_dataset["two"].to_dict()


@pytest.mark.parametrize("names", [("train", "test"), ("validation", "few")])
def test_parts_of_an_evaluation_are_read_alike_whatever_their_names(st_path, tmp_path, names):
    """Their blank rows and rows without a label stay, weights are not asked for, and a label column is."""
    part = [*rows(4).to_list(), {"text": " ", "label": "money"}, {"text": "ball", "label": None}]
    train = [{**row, "w": 1.0} for row in rows().to_list()]
    trainer = make(st_path, tmp_path, train, dict.fromkeys(names, part), weight_column="w")
    for name in names:
        assert trainer.eval_dataset[name]["text"] == [row["text"] or "" for row in part]
        assert trainer.eval_dataset[name].column_names == ["text", "label"]
    found = trainer.evaluate()
    assert found[f"eval_{names[0]}_loss"] == found[f"eval_{names[1]}_loss"]
    for name in names:
        with pytest.raises(ValueError, match="which column of the eval dataset holds the labels"):
            make(st_path, tmp_path, None, {name: [{"text": "ball", "kind": "sport"}]})


def test_a_named_label_column_that_is_not_there_is_told_with_its_name(st_path, tmp_path):
    train = [{"text": text, "kind": label} for text, label in zip(TEXTS, TARGETS, strict=True)]
    with pytest.raises(ValueError, match="the eval dataset has no column 'kind'; it has text, label"):
        make(st_path, tmp_path, train, rows(4), label_column="kind")
    trainer = make(st_path, tmp_path, train, label_column="kind")
    assert trainer.predict([{"text": "ball"}]).predictions.shape == (1, 3)


def test_several_labels_no_label_and_blank_texts(st_path, tmp_path):
    data = [
        {"text": "bank ball", "label": ["money", "sport"]},
        {"text": "dog", "label": []},
        {"text": " ", "label": ["money"]},
        {"text": "rain", "label": None},
    ]
    with pytest.warns(UserWarning, match="1 of the 4 training texts are blank"):
        trainer = make(st_path, tmp_path, data, trainer={"labels": LABELS})
    assert trainer.train_dataset["label"][:] == [[0, 1], [], []]
    trainer.train()
    assert len(trainer.model.ensemble) == 3


def test_a_class_without_examples(st_path, tmp_path):
    trainer = make(st_path, tmp_path, rows(), trainer={"labels": [*LABELS, "music"]}, class_weight="balanced")
    torch.testing.assert_close(trainer.loss.focal.class_weight, torch.ones(4))
    trainer.train()
    trainer.save_model()
    result = pipeline("surprise-zero-shot", model=str(tmp_path), device="cpu")("song guitar")
    assert set(result["labels"]) == {*LABELS, "music"}


def test_unbalanced_classes(st_path, tmp_path):
    data = Dataset.from_dict({"text": TEXTS[:9], "label": TARGETS[:9]})  # 8 to 1
    trainer = make(st_path, tmp_path, data, class_weight="balanced")
    torch.testing.assert_close(trainer.loss.focal.class_weight, torch.tensor([9 / 16, 9 / 2]))


ODD = {"meta": [1, "x"], "more": [[1], {"a": 2}]}  # no columns of Arrow


@pytest.mark.parametrize(
    "table",
    [
        pd.DataFrame({"text": ["bank", "ball"], "label": ["money", "sport"], **ODD}),
        {"text": ["bank", "ball"], "label": ["money", ["sport"]], **ODD},
        [
            {"text": "bank"},
            {"label": "sport", "text": "ball", "meta": 1},
            {"text": "bank", "label": ["money", "sport"]},
        ],
        Dataset.from_dict({"text": ["bank", "ball"], "label": ["money", "sport"]}).with_format("arrow"),
    ],
)
def test_only_the_columns_that_are_used_are_read(st_path, tmp_path, table):
    trainer = make(st_path, tmp_path, table)
    assert trainer.labels == ["money", "sport"]
    assert list(trainer.train_dataset["text"])[:2] == ["bank", "ball"]
    assert trainer.train_dataset["label"][-1] in ([1], [0, 1])


class Rows:
    """Ends as a list does, without a length."""

    def __getitem__(self, at: int) -> dict[str, str]:
        return {"text": ("bank", "ball")[at], "label": ("money", "sport")[at]}


PAIR = {"text": ["bank", "ball"], "label": ["money", "sport"]}


@pytest.mark.parametrize(
    "table",
    [
        {name: (one for one in column) for name, column in PAIR.items()},
        pa.table(PAIR),
        {name: pa.chunked_array([column]) for name, column in PAIR.items()},
        Rows(),
        {**PAIR, "w": [torch.tensor(1.0), np.float32(2)]},
    ],
)
def test_rows_of_other_kinds(st_path, tmp_path, table):
    named = {"weight_column": "w"} if isinstance(table, dict) and "w" in table else {}
    trainer = make(st_path, tmp_path, table, **named)
    assert list(trainer.train_dataset["text"]) == PAIR["text"]
    assert trainer.train_dataset["label"][:] == [[0], [1]]


def test_columns_of_one_name_are_refused(st_path, tmp_path):
    table = pd.DataFrame([["a", "b", "x"]], columns=["text", "text", "label"])
    with pytest.raises(ValueError, match="two columns of one name: text"):
        make(st_path, tmp_path, table)


def test_weights_of_another_trainers_rows_count_where_they_are_named(st_path, tmp_path):
    weighted = make(st_path, tmp_path, {"text": TEXTS, "label": TARGETS, "w": [2.0] * 24}, weight_column="w")
    for labels in (None, LABELS):
        plain = make(st_path, tmp_path, weighted.train_dataset, trainer={"labels": labels})
        assert plain.train_dataset.column_names == ["text", "label"]
    named = make(st_path, tmp_path, weighted.train_dataset, weight_column="weight")
    assert named.train_dataset.column_names == ["text", "label", "weight"]
    with pytest.raises(ValueError, match="no column 'weight'; it has text, label"):
        make(st_path, tmp_path, plain.train_dataset, trainer={"labels": LABELS}, weight_column="weight")


@pytest.mark.parametrize("kind", ["string", "large_string", None])
def test_the_only_column_of_strings_beside_the_labels_holds_the_texts(st_path, tmp_path, kind):
    data = {"place": [*range(24)], "body": TEXTS, "label": TARGETS}
    if kind is not None:
        strings = {name: Value(kind) for name in ("body", "label")}
        data = Dataset.from_dict(data, Features({"place": Value("int64"), **strings}))
    assert make(st_path, tmp_path, data).train_dataset["text"][:] == TEXTS


def test_blank_rows_of_what_was_evaluated_are_not_trained_on(st_path, tmp_path):
    held = make(st_path, tmp_path, evaluate={"text": [*TEXTS[:8], " "], "label": [*TARGETS[:8], "money"]})
    assert len(held.eval_dataset) == 9
    with pytest.warns(UserWarning, match="1 of the 9 training texts are blank"):
        assert len(make(st_path, tmp_path, held.eval_dataset, trainer={"labels": LABELS}).train_dataset) == 8


def test_columns_of_a_dataset_keep_the_names_of_their_numbers(st_path, tmp_path):
    given = as_class_label()
    trainer = make(st_path, tmp_path, {"text": given["text"], "label": given["label"]})
    assert trainer.labels == LABELS
    assert [LABELS[at] for (at,) in trainer.train_dataset["label"]] == TARGETS


class Endless(torch.utils.data.Dataset):
    """Never raises IndexError."""

    def __len__(self) -> int:
        return 2

    def __getitem__(self, at: int) -> dict[str, str]:
        return {"text": TEXTS[at * 8 % 24], "label": TARGETS[at * 8 % 24]}


def test_a_dataset_without_end_is_read_to_its_length(st_path, tmp_path):
    assert make(st_path, tmp_path, Endless()).train_dataset.num_rows == 2


def test_columns_of_one_length(st_path, tmp_path):
    with pytest.raises(ValueError, match=r"columns differ in length: {'text': 2, 'label': 1}"):
        make(st_path, tmp_path, {"text": ["a", "b"], "label": ["x"]})


@pytest.mark.parametrize("labels", [[3, 1, 2], LABELS])
def test_some_rows_of_what_a_trainer_holds_are_those_rows(st_path, tmp_path, labels):
    """Labels that are numbers were taken for positions, positions for labels."""
    given = {"body": TEXTS, "kind": [labels[LABELS.index(target)] for target in TARGETS]}
    named = {"text_column": "body", "label_column": "kind"}
    trainer = make(st_path, tmp_path, given, given, **named)
    few = {name: column[8:16] for name, column in given.items()}
    expected = trainer.evaluate(few)
    found = trainer.evaluate(trainer.eval_dataset.select(range(8, 16)))
    assert {k: v for k, v in found.items() if "per_second" not in k and "runtime" not in k} == {
        k: v for k, v in expected.items() if "per_second" not in k and "runtime" not in k
    }
    trainer.eval_dataset = few  # later, and raw
    assert trainer.evaluate()["eval_loss"] == expected["eval_loss"]
    trainer.train_dataset = few
    trainer.train()
    assert trainer.loss.encoded["documents"] == 16


def test_batches_without_duplicates_take_every_row(st_path, tmp_path):
    """Rows of the same weight were duplicates of each other."""
    given = {"text": TEXTS, "label": TARGETS, "w": [1.0, 2.0] * 12}
    for sampler in ("batch_sampler", "no_duplicates"):
        trainer = make(st_path, tmp_path, given, weight_column="w", batch_sampler=sampler, num_train_epochs=1)
        trainer.train()
        assert trainer.loss.encoded["documents"] == 24


def test_rows_whose_label_is_missing_are_told_of(st_path, tmp_path):
    given = {"text": [*TEXTS, "red dog", "one cat"], "label": [*TARGETS, None, float("nan")]}
    with pytest.warns(UserWarning, match="2 of the 26 training texts have no label"):
        make(st_path, tmp_path, given)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make(st_path, tmp_path, rows(), given)  # of an evaluation set nothing is learnt
        make(st_path, tmp_path, {"text": given["text"], "label": [*([at] for at in TARGETS), [], []]})


def test_an_error_of_a_label_names_the_data_set(st_path, tmp_path):
    wrong = {"text": ["red dog"], "label": ["music"]}
    with pytest.raises(ValueError, match="the eval dataset: row 0 has the label 'music'"):
        make(st_path, tmp_path, rows(), wrong)
    with pytest.raises(ValueError, match="the train dataset: row 0 has the label 'music'"):
        make(st_path, tmp_path, wrong, trainer={"labels": LABELS})
