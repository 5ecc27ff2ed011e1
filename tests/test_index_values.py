"""Ids, texts and metadata, read."""

from __future__ import annotations

from enum import Enum

import numpy as np

from surprise_hf.index_values import read_ids


class Topic(str, Enum):
    MONEY = "y"


def test_ids_are_plain() -> None:
    found = read_ids([Topic.MONEY, np.str_("b"), np.int64(3), "c"])
    assert found == ["y", "b", 3, "c"]
    assert [type(one) for one in found] == [str, str, int, str]
