"""The corpus of an index: changed whole or not at all, and an index of its own for each copy."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import surprise_hf
from surprise_hf import SurpriseIndex
from tests.index_data import clouds, stored

PACKAGE = str(Path(surprise_hf.__file__).parent)


class Stop(BaseException):
    """As KeyboardInterrupt is: no `except Exception` takes it."""


def interrupted(call: Callable[[], Any], step: int) -> bool:
    """Whether the call was cut short ahead of the `step`-th line of the package's own that it ran.

    Not within the lock: Python looks for interrupts where calls end, and never between a `with` and its block.
    """
    left = step

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal left
        name = frame.f_code.co_filename
        if not name.startswith(PACKAGE) or name.endswith("index_lock.py"):
            return None
        if event == "line":
            left -= 1
            if left == 0:
                raise Stop
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    except Stop:
        return True
    finally:
        sys.settrace(before)
    return False


def state(index: SurpriseIndex) -> tuple:
    found = tuple(map(tuple, index.search(clouds(2, seed=1), k=None)))
    places = {i: index.ids.index(i) for i in index.ids}
    assert index._corpus.positions == places
    assert len(stored(index)) == len(index)
    return tuple(index.ids), tuple(index.texts), tuple(index.metadata), index.version, index._corpus.next_id, found


CHANGES: dict[str, Callable[[SurpriseIndex], Any]] = {
    "add": lambda index: index.add(clouds(9, seed=2), texts=list("abcdefghi"), metadata=range(9)),
    "remove": lambda index: index.remove([0, 5, 7]),
}


@pytest.mark.parametrize("options", [{}, {"ensemble": clouds(30, seed=3)}, {"engine": "faiss-flat"}], ids=str)
@pytest.mark.parametrize("change", CHANGES)
def test_a_change_that_is_interrupted_anywhere_is_made_whole_or_not_at_all(
    change: str, options: dict, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("surprise_hf.ranking.SLICE", 4)
    monkeypatch.setattr("surprise_hf.engines.BLOCK_BYTES", 4 * 16 * 5)

    def fresh() -> SurpriseIndex:
        index = SurpriseIndex(weight=1, **options).add(clouds(12), metadata=range(12))
        index.search(clouds(1)[0])  # what that builds has to follow, too
        return index

    index, old, new = fresh(), state(fresh()), state(CHANGES[change](fresh()))
    step, seen = 1, set()
    while interrupted(partial(CHANGES[change], index), step):
        now = state(index)
        assert now in (old, new)
        seen.add(now == new)
        if now == new:
            index = fresh()
        step += 1
    assert seen == {False, True}
    assert step > 100


@pytest.mark.parametrize("engine", ["exact", "faiss-flat"])
@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy])
def test_a_copy_is_an_index_of_its_own(copied: Callable, engine: str) -> None:
    index = SurpriseIndex(weight=1, engine=engine).add(clouds(40), metadata=[{"n": i} for i in range(40)])
    before = index.search(clouds(2, seed=1), k=None)
    again = copied(index)
    again.remove(range(0, 40, 3)).search(clouds(1)[0])
    again.add(clouds(5, seed=2)).search(clouds(1)[0])
    again.metadata[0]["n"] = -1
    assert index.search(clouds(2, seed=1), k=None) == before
    assert (len(index), len(again), again.model) == (40, 31, index.model)
    index.remove(1)
    assert 1 in again


def test_a_shallow_copy_shares_the_model(st_path: Path) -> None:
    index = SurpriseIndex(str(st_path), weight=1).add(["dog", "cat"])
    assert copy.copy(index).model is index.model
    assert copy.copy(index).remove(0).search("dog", k=1)[0].text == "cat"
