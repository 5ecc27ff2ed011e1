"""Documents, labels and templates in every form that people pass them in."""

from __future__ import annotations

from enum import Enum

import datasets
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from transformers.pipelines.pt_utils import KeyDataset

from surprise_hf import inputs

TEXTS = ["a", "b", "c"]


class Topic(str, Enum):
    """Of which `str` gives the member's name."""

    SPORT = " x "
    MONEY = "y"


class Endless(torch.utils.data.Dataset):
    """A map-style dataset that never raises IndexError, as many don't."""

    def __len__(self):
        return 3

    def __getitem__(self, i):
        return TEXTS[i % 3]


class Streaming(torch.utils.data.IterableDataset):
    def __iter__(self):
        return iter(TEXTS)


TABLE = datasets.Dataset.from_dict({"text": TEXTS, "label": [0, 1, 2]})

CONTAINERS = {
    "list": (TEXTS, False),
    "tuple": (tuple(TEXTS), False),
    "series": (pd.Series(TEXTS, index=[7, 3, 5]), False),
    "index": (pd.Index(TEXTS), False),
    "array of str": (np.array(TEXTS), False),
    "array of objects": (np.array(TEXTS, dtype=object), False),
    "enum": ([Enum("Text", {"A": "a"}, type=str).A, np.str_("b"), "c"], False),
    "dict values": ({1: "a", 2: "b", 3: "c"}.values(), False),
    "arrow": (pa.array(TEXTS), False),
    "chunks of arrow": (pa.chunked_array([TEXTS[:1], [], TEXTS[1:]]), False),
    "rows of arrow": (pa.array([{"text": text} for text in TEXTS]), False),
    "column": (TABLE["text"], False),
    "dataset of one column": (TABLE.select_columns("text"), False),
    "key dataset": (KeyDataset(TABLE, "text"), True),
    "torch dataset": (Endless(), True),
    "torch stream": (Streaming(), True),
    "generator": (lambda: (t for t in TEXTS), True),
    "iterator": (lambda: iter(TEXTS), True),
    "map": (lambda: map(str, TEXTS), True),
    "iterable dataset": (TABLE.select_columns("text").to_iterable_dataset(), True),
    "iterable column": (TABLE.to_iterable_dataset()["text"], True),
}


@pytest.mark.parametrize("kind", CONTAINERS)
def test_all_rows_in_order(kind):
    documents, is_stream = CONTAINERS[kind]
    documents = (
        documents() if callable(documents) and not isinstance(documents, torch.utils.data.Dataset) else documents
    )
    assert inputs.is_stream(documents) is is_stream
    found = [inputs.text_of(row, i) for i, row in enumerate(inputs.iterate(documents))]
    assert found == TEXTS
    assert {type(text) for text in found} == {str}


def test_a_string_is_one_document():
    assert list(inputs.iterate("abc")) == ["abc"]


@pytest.mark.parametrize(
    ("documents", "message"),
    [
        (pd.DataFrame({"text": TEXTS}), "DataFrame"),
        ({"text": TEXTS}, "dict"),
        ({"a", "b"}, "set"),
        (np.array([TEXTS]), r"\(1, 3\)"),
        (3, "got int"),
        (b"abc", "got bytes"),
    ],
)
def test_what_is_no_sequence_of_texts_is_refused(documents, message):
    with pytest.raises(ValueError, match=message):
        inputs.iterate(documents)


@pytest.mark.parametrize("missing", [None, float("nan"), np.nan, np.float32("nan"), pd.NA, pd.NaT, pa.scalar(None)])
def test_missing_values_are_blank(missing):
    assert inputs.text_of(missing, 0) is None
    assert inputs.is_blank(inputs.text_of(missing, 0))


def test_blank_means_no_visible_character():
    for nothing in (
        "",
        "  ",
        "\n\t\u00a0",
        "\u200b",
        " \u200b\ufeff ",
        "\u200e\u2060",
        "\x00",
        "\u2028\u3000",
        "\u00ad",
    ):
        assert inputs.is_blank(nothing)
    # a letter, a mark, a private or half a character is something, with or without blanks
    for text in (".", " a ", "\u200ba", "\u4e2d", "\U0001f468\u200d\U0001f469", "\u0301", "\ue000", "\ud800"):
        assert not inputs.is_blank(text)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (5, "document 4 must be a string, got int"),
        (2.5, "document 4 must be a string, got float"),
        (b"x", "document 4 .* bytes; decode"),
        (["x"], "document 4 .* got list"),
        (pa.scalar(5), "document 4 must be a string, got int"),
        ({"text": "x", "label": 1}, r"document 4 .*'text', 'label': pass one column"),
    ],
)
def test_a_wrong_type_names_the_row(row, message):
    with pytest.raises(ValueError, match=message):
        inputs.text_of(row, 4)


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        (["x", " y "], ["x", "y"]),
        (("x", "y"), ["x", "y"]),
        ({"y", "x", "a"}, ["a", "x", "y"]),
        (frozenset({"y", "x"}), ["x", "y"]),
        ({"y": 1, "x": 2}, ["y", "x"]),
        ({"y": 1, "x": 2}.keys(), ["y", "x"]),
        ("x, y ,z,", ["x", "y", "z"]),
        ("x", ["x"]),
        ([3, 1], [3, 1]),
        (np.array([3, 1]), [3, 1]),
        (range(2), [0, 1]),
        (pd.Series(["x", "y"], index=[4, 2]), ["x", "y"]),
        (pd.Index(["x", "y"]), ["x", "y"]),
        (np.array(["x", "y"]), ["x", "y"]),
        (torch.tensor([3, 1]), [3, 1]),
        (np.array("x, y"), ["x", "y"]),
        (datasets.ClassLabel(names=["x", "y"]), ["x", "y"]),
        (list(Topic), ["x", "y"]),
        (set(Topic), ["x", "y"]),
        ({Topic.MONEY: 1}, ["y"]),
        (["a, b", "c"], ["a, b", "c"]),
        (["a {} b", "{0}", "}{"], ["a {} b", "{0}", "}{"]),
    ],
)
def test_labels(labels, expected):
    found = inputs.as_labels(labels)
    assert found == expected
    assert {type(label) for label in found} <= {str, int}


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([], "empty"),
        ("", "empty"),
        (" , ", "empty"),
        (["a", " "], r"\[1\] is blank"),
        (["a", None], r"\[1\] must be a string or an integer, got NoneType"),
        (["a", 1.5], r"\[1\] .* got float"),
        (["sports", "b", "sports "], "0 and 2 are both 'sports'"),
        (["1", 1], "0 and 1 are both '1'"),
        ("a,a", "0 and 1"),
        (["a", True], r"\[1\] .* got bool"),
        (np.array([True, False]), r"\[0\] .* got bool"),
        (["a", b"b"], r"\[1\] .* got bytes"),
        (b"a,b", "got bytes"),
        (7, "got int"),
        (torch.tensor(7), "got int"),
    ],
)
def test_ambiguous_labels_are_refused(labels, message):
    with pytest.raises(ValueError, match=message):
        inputs.as_labels(labels)


def test_labels_that_differ_in_case_only_stay_and_warn():
    with pytest.warns(UserWarning, match="'Sports' and 'sports' differ in case only"):
        assert inputs.as_labels(["Sports", "sports "]) == ["Sports", "sports"]
    with pytest.warns(UserWarning, match=r"'a' and 'A' differ in case only \(and so do 2 other pairs\)") as seen:
        inputs.as_labels(["a", "A", "b", "B", "c", "C", "d"])
    assert len(seen) == 1


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        ([["a"], ["b", "c"]], True),
        ((("a",), {"b"}), True),
        (["a", "b"], False),
        ("a,b", False),
        ({"a": 1}, False),
        ([1, 2], False),
        ([b"a"], False),
        (b"a", False),
        (datasets.ClassLabel(names=["x"]), False),
    ],
)
def test_labels_per_document_are_told_apart(labels, expected):
    assert inputs.is_per_document(labels) is expected


def test_hypotheses_take_labels_as_they_are():
    assert inputs.hypotheses(["{}", "a, b", 3, "{x}"], "it is {}!") == [
        "it is {}!",
        "it is a, b!",
        "it is 3!",
        "it is {x}!",
    ]
    assert inputs.hypotheses(["x"], "{}") == ["x"]


@pytest.mark.parametrize("template", ["no slot", "", "{} and {}", "{label}", "{0}", "{{}}", "{} {", "{} {x}"])
def test_a_template_without_exactly_one_slot_is_refused(template):
    with pytest.raises(ValueError, match="exactly once"):
        inputs.hypotheses(["x"], template)


def test_a_template_that_is_no_string_is_refused():
    with pytest.raises(ValueError, match="must be a string or a list of them, got dict"):
        inputs.check_template({"{}": 1})


@pytest.mark.parametrize("value", [0, 1, 0.25, np.float32(0.25), np.float64(0.25), np.int64(1)])
def test_share_takes_every_kind_of_number(value):
    found = inputs.share("threshold", value)
    assert found == value
    assert type(found) is float


@pytest.mark.parametrize("value", [-0.1, 1.1, float("nan"), "0.5", True, None, torch.tensor(0.5)])
def test_share_names_the_argument(value):
    with pytest.raises(ValueError, match="threshold must be between 0 and 1, got"):
        inputs.share("threshold", value)


@pytest.mark.parametrize("value", [True, False, np.True_, np.False_])
def test_flag_takes_truth_values(value):
    found = inputs.flag("multi_label", value)
    assert found == value
    assert type(found) is bool


@pytest.mark.parametrize("value", ["False", "true", "", 0, 1, None, [], torch.tensor(False)])
def test_flag_names_the_argument(value):
    with pytest.raises(ValueError, match="multi_label must be True or False, got"):
        inputs.flag("multi_label", value)


@pytest.mark.parametrize(
    ("text", "most", "found"),
    [("a  b\nc", 9, "a b c"), ("abcdef", 6, "abcdef"), ("abcdefg", 6, "abcde…"), ("abcd efg", 6, "abcd…"), ("", 3, "")],
)
def test_short(text, most, found):
    assert inputs.short(text, most) == found


@pytest.mark.parametrize("value", [0, -1, 1.5, True, "3"])
def test_positive_int_names_the_argument(value):
    with pytest.raises(ValueError, match="top_k must be a positive integer"):
        inputs.positive_int("top_k", value)


def test_a_table_is_neither_labels_nor_embeddings():
    """Its columns' names were taken for labels, and the whole for numbers."""
    table = pd.DataFrame({"label": ["a", "b"]})
    assert not inputs.is_array(table)
    assert inputs.is_array(table.assign(label=1)["label"])
    assert inputs.as_labels(table["label"]) == ["a", "b"]
    with pytest.raises(ValueError, match="candidate_labels come as a DataFrame: pass one column"):
        inputs.as_labels(table)


def test_a_tensor_shares_the_memory_of_an_array_that_may_be_written_to():
    """Torch has no tensors that are only read."""
    array = np.eye(2)
    assert inputs.as_tensor(array).data_ptr() == array.ctypes.data
    array.flags.writeable = False
    inputs.as_tensor(array).zero_()
    assert np.array_equal(array, np.eye(2))


@pytest.mark.parametrize("view", [lambda x: x[::-1], lambda x: x[:, ::-1], lambda x: x.astype(">f4"), lambda x: x.T])
def test_arrays_that_torch_refuses_are_copied(view):
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert inputs.as_tensor(view(array)).tolist() == view(array).tolist()
