"""Ids, texts and metadata of an index, read."""

from __future__ import annotations

from enum import Enum

import numpy as np
import pandas as pd
import pytest
import torch

from surprise_hf import SurpriseIndex
from surprise_hf.index_values import column, read_ids
from tests.index_data import clouds, ids_of


class Topic(str, Enum):
    MONEY = "y"


def test_ids_are_plain() -> None:
    found = read_ids([Topic.MONEY, np.str_("b"), np.int64(3), "c"])
    assert found == ["y", "b", 3, "c"]
    assert [type(one) for one in found] == [str, str, int, str]


def test_duplicates_keep_their_ids() -> None:
    one = clouds(200)
    index = SurpriseIndex(weight=1).add(torch.cat((one, one)), ids=[f"id {i}" for i in range(400)])
    hits = ids_of(index.search(one[17], k=None))
    assert all(int(b[3:]) == int(a[3:]) + 200 for a, b in zip(hits[::2], hits[1::2], strict=True))  # twins in order
    assert hits[:2] == ["id 17", "id 217"]
    index.remove("id 17")
    assert index.search(one[17], k=1)[0].id == "id 217"
    assert "id 17" not in index
    assert "id 217" in index


@pytest.mark.parametrize(
    "given",
    [
        [3, 5],
        (3, 5, 3),
        {3, 5},
        np.array([3, 5]),
        torch.tensor([3, 5]),
        pd.Series([3, 5]),
        pytest.param((i for i in (3, 5)), id="generator"),
        [np.int8(3), 5],
        {3: "", 5: ""}.keys(),
    ],
    ids=str,
)
def test_ids_to_remove_in_every_form(given: object) -> None:
    assert SurpriseIndex().add(clouds(7)).remove(given).ids == [0, 1, 2, 4, 6]


@pytest.mark.parametrize("given", [3, np.int64(3), torch.tensor(3), np.array(3)], ids=repr)
def test_one_id_to_remove(given: object) -> None:
    assert SurpriseIndex().add(clouds(5)).remove(given).ids == [0, 1, 2, 4]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (b"\x05", r"ids\[0\] must be an int or a str, got bytes"),
        (3.0, r"ids\[0\] must be an int or a str, got float"),
        (None, r"ids\[0\] must be an int or a str, got NoneType"),
        (True, r"ids\[0\] must be an int or a str, got bool"),
        ([1, 2.0], r"ids\[1\] must be an int or a str, got float"),
        (torch.tensor([1.0]), r"ids\[0\] must be an int or a str, got float"),
        (np.array([[1, 2]]), r"ids\[0\] must be an int or a str, got list"),
        ({1: "x"}, "ids must be a list .* got dict"),
        (pd.DataFrame({1: [2]}), "ids must be a list .* got DataFrame"),
        ("1", "no document has the id '1'"),
    ],
)
def test_what_is_no_id_removes_nothing(given: object, message: str) -> None:
    index = SurpriseIndex().add(clouds(7))
    with pytest.raises(ValueError, match=message):
        index.remove(given)
    assert index.ids == list(range(7))


@pytest.mark.parametrize(("given", "following"), [([0, 1], 2), ([7, -3], 8), (np.array([5, 2]), 6), ([-9, -8], 0)])
def test_running_numbers_are_above_the_ids_given(given: object, following: int) -> None:
    index = SurpriseIndex(weight=1).add(clouds(2), ids=given).add(clouds(2))
    assert index.ids == [*given, following, following + 1]
    assert index.remove(index.ids).add(clouds(1)).ids == [following + 2]
    assert index.add(clouds(1), ids=[1]).add(clouds(1)).ids == [following + 2, 1, following + 3]


def test_a_column_has_one_entry_for_each_document() -> None:
    assert column("texts", ["a", "b"], 2) == ["a", "b"]
    assert column("texts", None, 2) == [None, None]
    for entries in (1, 3):
        with pytest.raises(ValueError, match=f"texts must have one entry for each of the 2 documents, got {entries}"):
            column("texts", ["a"] * entries, 2)


@pytest.mark.parametrize("first", [None, [1, 2], ["a", "b"]], ids=str)
@pytest.mark.parametrize("given", [[7, "c"], ["c", 7], [7, 8], ["c", "d"], None], ids=str)
def test_ids_are_all_of_one_kind(first: list[int | str] | None, given: list[int | str] | None) -> None:
    """A file holds them as one column: numbers and names together, of one call or of two, are refused."""
    index = SurpriseIndex(weight=1)
    if first is not None:
        index.add(clouds(2), ids=first)
    kinds = {type(one) for one in (*(first or []), *([0] if given is None else given))}
    if len(kinds) == 1:
        assert len(index.add(clouds(2), ids=given)) == len(first or []) + 2
        return
    with pytest.raises(ValueError, match="ids must be all int or all str, those of the index included"):
        index.add(clouds(2), ids=given)
    assert index.ids == (first or [])


@pytest.mark.parametrize("name", ["ids", "texts", "metadata"])
@pytest.mark.parametrize(
    "given", ["abc", b"abc", {"a": 1, "b": 2, "c": 3}, {1, 2, 3}, 3, pd.DataFrame(index=[], columns=[1, 2, 3])]
)
def test_what_is_no_list_of_one_for_each_document_is_refused(name: str, given: object) -> None:
    """The letters of a string are no ids, nor are the keys of a dict."""
    index = SurpriseIndex(weight=1)
    with pytest.raises(ValueError, match=f"{name} must be a list with one entry for each document, got "):
        index.add(clouds(3), **{name: given})
    assert len(index) == 0
    index.add(clouds(3), **{name: (str(i) for i in range(3))})  # an iterator is as good as a list
    assert getattr(index, name) == ["0", "1", "2"]
