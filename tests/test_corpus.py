"""The corpus of an index: changes as building anew, made whole or not at all, and a corpus of its own for each copy."""

from __future__ import annotations

import copy
import math
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
import torch

import surprise_hf
from surprise_hf import Ensemble, SurpriseIndex
from surprise_hf.engines import Rows
from tests.index_data import clouds, ids_of, stored, unit, z_matrix

# --- changes -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["exact", "faiss-flat"])
def test_adding_and_removing_is_as_building_anew(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("surprise_hf.engines.BLOCK_BYTES", 4 * 16 * 97)  # blocks of 97 rows: many, and a ragged one
    documents, queries = clouds(1000), clouds(4, seed=1)
    index = SurpriseIndex(engine=engine, weight=1)
    for start in range(0, 1000, 150):
        index.add(documents[start : start + 150])
        index.search(queries)  # what it has built must not outlive the next change
    gone = list(range(5, 1000, 7))
    index.remove(gone[:100]).search(queries)
    index.remove(gone[100:])
    index.add(documents[5:6], ids=[5])
    kept = [i for i in range(1000) if i not in gone] + [5]
    assert index.ids == kept
    rest = documents[kept]
    z = z_matrix(queries, rest, rest)
    for row, hits in enumerate(index.search(queries, k=30)):
        best = z[row].argsort(descending=True)[:30]
        assert ids_of(hits) == [kept[i] for i in best]
        np.testing.assert_allclose([hit.z for hit in hits], z[row, best], rtol=1e-6)


@pytest.mark.parametrize("removed", [1, 300, 499, 500, 700, 999])
def test_removal_leaves_the_ensemble_exact(removed: int) -> None:
    index = SurpriseIndex(weight=1).add(clouds(1000, dim=24))
    assert index.ensemble is not None
    index.ensemble.encoder = "me/encoder"
    index.remove(range(removed))
    left = unit(stored(index))
    assert index.ensemble.encoder == "me/encoder"
    assert len(index.ensemble) == 1000 - removed
    covariance = torch.cov(left.T, correction=0) if removed < 999 else torch.zeros(24, 24, dtype=torch.float64)
    torch.testing.assert_close(index.ensemble.mean, left.mean(dim=0), rtol=0, atol=1e-12)
    torch.testing.assert_close(index.ensemble.covariance, covariance, rtol=0, atol=1e-12)


def test_many_changes_do_not_wear_the_ensemble_out() -> None:
    documents = torch.nn.functional.normalize(clouds(400))
    index = SurpriseIndex(weight=1).add(documents)
    order = torch.randperm(400, generator=torch.Generator().manual_seed(0)).tolist()
    for i in range(200):
        one = order[i]
        index.remove(one).add(documents[one : one + 1], ids=[one])
    rows = stored(index)
    fresh = Ensemble.from_embeddings(rows, precision="exact")
    assert index.ensemble is not None
    std, expected = index.ensemble.moments(rows)[1], fresh.moments(rows)[1]
    torch.testing.assert_close(std, expected, rtol=1e-9, atol=0)


def test_removing_all_and_starting_again() -> None:
    index = SurpriseIndex(weight=1).add(clouds(50))
    index.remove(list(index.ids))
    assert len(index) == 0
    index.add(clouds(80, seed=4))
    assert index.ids == list(range(50, 130))  # ids are never used twice
    best = z_matrix(clouds(1, seed=1), clouds(80, seed=4), clouds(80, seed=4))[0].argmax()
    assert index.search(clouds(1, seed=1)[0], k=1)[0].id == 50 + int(best)


def test_the_version_tells_a_stale_export() -> None:
    index = SurpriseIndex(weight=1).add(clouds(20))
    exported = index.export_vectors()
    assert exported.version == index.version
    index.search(clouds(1)[0])
    assert exported.version == index.version
    index.add(clouds(1, seed=2))
    assert exported.version != index.version
    again = index.version
    index.remove(20)
    assert index.version not in (again, exported.version)


def test_an_error_changes_nothing() -> None:
    index = SurpriseIndex(weight=1).add(clouds(20), ids=range(20))
    bad = clouds(3)
    bad[1, 2] = math.nan
    for documents, options in (
        (bad, {}),
        (clouds(3, dim=5), {}),
        (clouds(3), {"ids": [1, 2, 3]}),
        (clouds(3), {"ids": [30, 30, 31]}),
        (clouds(3), {"ids": ["a", "b", "c"]}),
        (clouds(3), {"ids": [30, 31]}),
        (clouds(3), {"metadata": [{}]}),
        (clouds(3), {"texts": ["one"]}),
        (["text"], {}),
    ):
        with pytest.raises(ValueError, match=r"row 1|shape|in use|all int|one entry|no model"):
            index.add(documents, **options)
    with pytest.raises(ValueError, match="no document has the id 77"):
        index.remove([3, 77])
    assert index.ids == list(range(20))
    assert index.ensemble is not None
    assert len(index.ensemble) == 20
    assert index.version == 1


@pytest.mark.parametrize("where", [(Rows, "append"), (Ensemble, "update")])
@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
@pytest.mark.parametrize("options", [{}, {"engine": "faiss-flat"}, {"ensemble": clouds(30, seed=3)}])
@pytest.mark.parametrize("before", [0, 20])
def test_an_error_in_the_middle_leaves_nothing_behind(
    monkeypatch: pytest.MonkeyPatch, where: tuple, error: type[BaseException], options: dict, before: int
) -> None:
    """Rows go in slice by slice: the second one fails, before it is in or half way."""
    monkeypatch.setattr("surprise_hf.ranking.SLICE", 8)
    monkeypatch.setattr("surprise_hf.engines.BLOCK_BYTES", 4 * 16 * 11)
    if "ensemble" in options and where[0] is Ensemble:
        where = Rows, "_append"  # a given ensemble is not updated
    index, same = (SurpriseIndex(weight=1, **options) for _ in range(2))
    for one in (index, same):
        if before:
            one.add(clouds(before), metadata=list(range(before))).search(clouds(1)[0])
    whole = getattr(*where)
    calls = []

    def failing(*args: object, **kwargs: object) -> object:
        calls.append(0)
        if len(calls) == 2:
            raise error("no more")
        return whole(*args, **kwargs)

    with monkeypatch.context() as patched:
        patched.setattr(*where, failing)
        with pytest.raises(error, match="no more"):
            index.add(clouds(30, seed=1), metadata=list("x" * 30))
    assert (index.ids, index.texts, index.metadata, len(index), index.dim, index.version) == (
        same.ids, same.texts, same.metadata, before, same.dim, same.version
    )  # fmt: skip
    assert index.search(clouds(3, seed=2), k=None) == same.search(clouds(3, seed=2), k=None)
    for one in (index, same):
        one.add(clouds(9, seed=4)).remove(before + 1)
    assert index.search(clouds(3, seed=2), k=None) == same.search(clouds(3, seed=2), k=None)


def test_memory_is_the_vectors_and_a_block() -> None:
    """150 MiB of vectors arrive in parts, are searched and thinned out (two copies meet): in not much more."""
    code = """
import resource, torch, sys
from surprise_hf import Ensemble, SurpriseIndex
from surprise_hf.engines import Rows
import surprise_hf.engines
surprise_hf.engines.BLOCK_BYTES = 8 << 20
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
torch.manual_seed(0)
SurpriseIndex(weight=1).add(torch.randn(5000, 256)).search(torch.randn(2, 256))
before = peak()
index = SurpriseIndex(weight=1)
for _ in range(30):
    index.add(torch.randn(5000, 256))
index.search(torch.randn(40, 256))
index.remove(range(0, 150000, 3))
index.search(torch.randn(40, 256))
print(peak() - before)
"""
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300)
    vectors = 150_000 * 256 * 4 / 2**20
    assert float(out.stdout) < vectors * 5 / 3 + 130  # ids take 40 of it, and two thirds are copied before all go


# --- interrupts, copies ------------------------------------------------------------------------------------------


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
        if not name.startswith(PACKAGE) or name.endswith("locks.py"):
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
