"""Label columns as people write them."""

from __future__ import annotations

import warnings
from enum import Enum

import numpy as np
import pandas as pd
import pytest
import torch
from datasets import ClassLabel, List, Value

from surprise_hf.targets import read_targets


class Topic(str, Enum):
    """Of which `str` gives the member's name."""

    SPORT = "y"
    MONEY = "x "


@pytest.mark.parametrize(
    ("column", "labels", "names", "rows"),
    [
        (["b", " a", "b "], None, ["a", "b"], [[1], [0], [1]]),
        (["b", "a"], ["c", "b", "a"], ["c", "b", "a"], [[1], [2]]),  # a class absent from the rows
        ([1, 0], ["x", "y"], ["x", "y"], [[1], [0]]),
        ([20, 10], None, [10, 20], [[1], [0]]),
        ([20, 10], [10, 20, 30], [10, 20, 30], [[1], [0]]),  # numbers that are the labels themselves
        ([np.int64(1), np.str_("x")], ["x", "y"], ["x", "y"], [[1], [0]]),
        ([["y", "x"], [], ["x", "x"]], ["x", "y"], ["x", "y"], [[0, 1], [], [0]]),
        ([[1, 0], None, ("y",)], ["x", "y"], ["x", "y"], [[0, 1], [], [1]]),
        (["x", None, "", -1, float("nan"), [None]], ["x"], ["x"], [[0], [], [], [], [], []]),
        ([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]], ["x", "y"], ["x", "y"], [[0], [1], []]),
        (pd.Series(["b", "a"]), None, ["a", "b"], [[1], [0]]),
        (np.array([1, 0]), {"x": "described", "y": "too"}, ["x", "y"], [[1], [0]]),
        ([1.0, 0.0], ["x", "y"], ["x", "y"], [[1], [0]]),  # pandas makes floats of integers with gaps
        (list(Topic), None, ["x", "y"], [[1], [0]]),
        # marks
        ([[False, True, False], [True, False, True]], ["x", "y", "z"], ["x", "y", "z"], [[1], [0, 2]]),
        ([[False, True], [True, True]], ["x", "y"], ["x", "y"], [[1], [0, 1]]),
        (np.array([[0, 1], [1, 1]], dtype=bool), ["x", "y"], ["x", "y"], [[1], [0, 1]]),
        ([np.array([False, True]), [np.True_, np.True_]], ["x", "y"], ["x", "y"], [[1], [0, 1]]),
        (torch.tensor([[0.0, 1.0], [1.0, 1.0]]), ["x", "y"], ["x", "y"], [[1], [0, 1]]),
        ([torch.tensor([False, True]), torch.tensor([1.0, 1.0])], ["x", "y"], ["x", "y"], [[1], [0, 1]]),
        # positions
        (torch.tensor([1, 0]), ["x", "y"], ["x", "y"], [[1], [0]]),
        ([torch.tensor(1), torch.tensor([1, 0]), [torch.tensor(0)]], ["x", "y"], ["x", "y"], [[1], [0, 1], [0]]),
        ([np.array([2, 0]), np.array(1)], ["x", "y", "z"], ["x", "y", "z"], [[0, 2], [1]]),
        # a number that is a name is that name
        ([0, 1], ["1", "0"], ["1", "0"], [[1], [0]]),
        ([1, 2.0], ["1", "2"], ["1", "2"], [[0], [1]]),
        ([[5, 1], "3"], ["1", "3", "5"], ["1", "3", "5"], [[0, 2], [1]]),
        ([2, 1], ["none", "1", "2"], ["none", "1", "2"], [[2], [1]]),
        ([-3, 3], ["3", "-3"], ["3", "-3"], [[1], [0]]),
        ([1, 2], ["01", "02"], ["01", "02"], [[0], [1]]),  # as pandas reads them
        ([1, "01"], ["01", "1"], ["01", "1"], [[1], [0]]),
        ([1, 0], {"1": "bad", "0": "good"}, ["1", "0"], [[0], [1]]),
        (["2", "1"], [1, 2], ["1", "2"], [[1], [0]]),  # of a table of text
        # -1 is no label, unless it is one
        ([-1, 0, 1], [-1, 0, 1], ["-1", "0", "1"], [[0], [1], [2]]),
        ([-1.0, 1], ["-1", "0", "1"], ["-1", "0", "1"], [[0], [2]]),
        ([-1, "x"], ["x"], ["x"], [[], [0]]),
        ([[-1.0, 1.0]], ["x", "y"], ["x", "y"], [[1]]),
        # single bools
        ([True, False, None], None, ["False", "True"], [[1], [0], []]),
        (np.array([True]), None, ["False", "True"], [[1]]),
        ([True, False], ["ham", "spam"], ["ham", "spam"], [[1], [0]]),
        ([True, False], ["True", "False"], ["True", "False"], [[0], [1]]),
        ([[1.0, 0.0], [0.0, 1.0]], ["x", "y"], ["x", "y"], [[0], [1]]),
    ],
)
def test_label_columns(column, labels, names, rows):
    found, targets = read_targets(column, labels)
    assert [str(name) for name in found] == [str(name) for name in names]
    assert targets == rows


def test_class_label_features():
    names = ["x", "y", "z"]
    assert read_targets([2, -1], None, ClassLabel(names=names)) == (names, [[2], []])
    assert read_targets([[2, 0], []], None, List(ClassLabel(names=names))) == (names, [[0, 2], []])
    assert read_targets([0], None, Value("int64")) == ([0], [[0]])
    more = ["z", "q", "x", "y"]  # the same names in another order: by name
    assert read_targets([2, 0], more, ClassLabel(names=names)) == (more, [[0], [2]])
    other = ["eks", "why", "zed"]  # other names: one by one
    assert read_targets([2, 0], other, ClassLabel(names=names)) == (other, [[2], [0]])
    one = ["x", "why", "z"]  # one name changed, the others in their places
    assert read_targets([1, 0, 2], one, ClassLabel(names=names)) == (one, [[1], [0], [2]])
    some = ["z", "x"]  # fewer, or others beside them: by name
    assert read_targets([2, 0], some, ClassLabel(names=names)) == (some, [[0], [1]])
    assert read_targets([[2, 0]], ["q", "z", "x"], List(ClassLabel(names=names))) == (["q", "z", "x"], [[1, 2]])
    for labels in (["z", "x"], ["x", "z"], ["x", "z", "q"]):
        with pytest.raises(ValueError, match=r"row 1 has the label 1 \('y'\), which is none of the"):
            read_targets([0, 1], labels, ClassLabel(names=names))
    numerals = ["2", "1", "0"]  # the numbers of the column are those of its ClassLabel all the same
    assert read_targets([2, 0], numerals, ClassLabel(names=names)) == (numerals, [[2], [0]])
    assert read_targets([2, 0], None, ClassLabel(names=numerals)) == (numerals, [[2], [0]])


@pytest.mark.parametrize(
    ("column", "labels", "words"),
    [
        (["a", "q"], ["a"], "row 1 has the label 'q', which is none of the 1 labels"),
        ([0, 5], ["a", "b"], "row 1 has the label 5"),
        (["a", {"b": 1}], None, "label of row 1 must be a name"),
        ([1.5], ["a"], "label of row 0 must be a name"),
        (["a", 1], None, "mixes names and numbers"),
        ([None, ""], None, "no row has a label"),
        ([[1.0, 0.0]], ["a", "b", "c"], "row 0 marks 2 labels, but there are 3"),
        ([[1.0, 0.0]], None, "mark labels by position"),
        ([[True, False]], None, "mark labels by position"),
        ([["a"], [True, False]], ["a", "b", "c"], "row 1 marks 2 labels, but there are 3"),
        ([[2], [1, 0, 1]], ["a", "b", "c"], r"row 1 is \[1, 0, 1\].*give floats or bools"),
        ([[0, 0, 0]], ["a", "b", "c"], "give floats or bools"),
        ([[0, 1], [1, 1]], ["a", "b"], "row 1 .*give floats or bools"),
        (np.array([[0, 1, 0]]), None, "give floats or bools"),
        ([[1, 0], [], [0, 1]], ["a", "b"], r"row 0 is \[1, 0\]: .*every row has both labels.*give floats or bools"),
        (torch.tensor([[0, 1], [1, 0]]), None, "give floats or bools"),
        (torch.tensor([[0, 1, 0]]), [0, 1, 2], "give floats or bools"),
        ([0], ["1", "2"], "row 0 has the label 0"),
        ([1, 3], ["1", "x", "y", "z"], "row 1 has the label 3"),
    ],
)
def test_wrong_labels_are_named(column, labels, words):
    with pytest.raises(ValueError, match=words):
        read_targets(column, labels)


def test_a_label_that_may_be_none_is_told_of():
    with pytest.warns(UserWarning, match=r"-1 is read as no label, in 2 of 4 rows: .* labels=\[-1, ...\]"):
        assert read_targets([-1, 0, 1, -1]) == ([0, 1], [[], [0], [1], []])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert read_targets([-1, 0], None, ClassLabel(names=["x"])) == (["x"], [[], [0]])
        assert read_targets(["-1", "1"]) == (["-1", "1"], [[0], [1]])
