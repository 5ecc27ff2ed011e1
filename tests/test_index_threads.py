"""An index under several threads. They meet where they must not, or wait in vain: no outcome hangs on who is faster."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Barrier, BrokenBarrierError, Event
from time import sleep
from typing import Any

import pytest

from surprise_hf import SurpriseIndex
from surprise_hf.engines import ENGINES, Rows
from tests.index_data import clouds, ids_of, ranker_of, unit

IN_VAIN = 0.2  # seconds for a thread to come where the lock should keep it out
QUERIES = clouds(3, seed=1)
OPTIONS: list[dict] = [{"engine": engine, "weight": 1} for engine in ENGINES]
OPTIONS += [{"weight": 0.5}, {"weight": 1, "direction": "questions"}]


def at_once(*calls: Callable[[], Any]) -> list[Any]:
    with ThreadPoolExecutor(len(calls)) as pool:
        return [future.result(timeout=60) for future in [pool.submit(call) for call in calls]]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_the_first_searches_build_once(options: dict, monkeypatch: pytest.MonkeyPatch) -> None:
    """FAISS aborts the process where two add to it at once."""
    index = SurpriseIndex(**options).add(clouds(3000))
    engine = ranker_of(index).engine
    build, gate, built = engine.build, Barrier(2), []

    def meeting(*args: Any) -> None:
        try:
            gate.wait(IN_VAIN)
        except BrokenBarrierError:
            built.append(build(*args))
        else:
            raise AssertionError("two threads build at once")

    monkeypatch.setattr(engine, "build", meeting)
    found = at_once(*[partial(index.search, QUERIES)] * 4)
    assert len(built) == 1
    assert found == [index.search(QUERIES)] * 4
    if options.get("engine") not in ("faiss-hnsw", "faiss-ivf"):
        assert found[0] == SurpriseIndex(**options).add(clouds(3000)).search(QUERIES)


@pytest.mark.parametrize("change", ["add", "remove"])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_a_search_sees_the_corpus_before_a_change_or_after_it(
    options: dict, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("surprise_hf.ranking.SLICE", 128)  # an addition has a middle
    index = SurpriseIndex(**options).add(clouds(1000))
    apply = partial(index.add, clouds(300, seed=5)) if change == "add" else partial(index.remove, range(0, 600, 2))
    before = index.search(QUERIES, k=None)
    inside, other_is_done = Event(), Event()

    def halt(call: Callable, *args: Any, **kwargs: Any) -> Any:
        """The other thread may start, and has its time to come in between."""
        result = call(*args, **kwargs)
        inside.set()
        other_is_done.wait(IN_VAIN)
        return result

    def after(call: Callable) -> Any:
        assert inside.wait(60)
        try:
            return call()
        finally:
            other_is_done.set()

    search = partial(index.search, QUERIES, k=None)
    with monkeypatch.context() as patched:  # the change comes while the search has rows and no ids for them yet
        ranker = ranker_of(index)
        patched.setattr(ranker, "search", partial(halt, ranker.search))
        assert at_once(search, partial(after, apply))[0] == before
    index.remove([i for i in index.ids if i >= 1000])
    if change == "remove":
        index.add(clouds(1000)[:600:2], ids=range(0, 600, 2))
    for event in (inside, other_is_done):
        event.clear()
    with monkeypatch.context() as patched:  # the search comes while rows are changed and ids are not
        method = {"add": "append", "remove": "kept"}[change]
        original = getattr(Rows, method)
        patched.setattr(Rows, method, lambda *args: halt(original, *args))
        found = at_once(apply, partial(after, search))[1]
    assert found == search()
    assert {hit.id for hit in found[0]} == set(index.ids)


@pytest.mark.parametrize("engine", ["exact", "faiss-flat"])
def test_searches_additions_and_removals_at_once(engine: str) -> None:
    documents = clouds(4000)
    cosine = unit(QUERIES) @ unit(documents).T
    index = SurpriseIndex(engine=engine, weight=1).add(documents[:2000])

    def search() -> None:
        for _ in range(30):
            for row, hits in enumerate(index.search(QUERIES)):
                assert len(hits) == 10
                assert [hit.cosine for hit in hits] == pytest.approx(cosine[row, ids_of(hits)].tolist())

    def add() -> None:
        for start in range(2000, 4000, 100):
            index.add(documents[start : start + 100], ids=range(start, start + 100))

    def remove() -> None:
        for start in range(0, 1000, 50):
            index.remove(range(start, start + 50))

    at_once(search, search, add, remove)
    anew = SurpriseIndex(weight=1).add(documents[1000:], ids=range(1000, 4000))
    for found, expected in zip(index.search(QUERIES), anew.search(QUERIES), strict=True):
        assert ids_of(found) == ids_of(expected)
        assert [hit.z for hit in found] == pytest.approx([hit.z for hit in expected])


def test_searches_run_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    index = SurpriseIndex(weight=1).add(clouds(1000))
    engine = ranker_of(index).engine
    expected, search, gate = index.search(QUERIES), engine.search, Barrier(3)

    def meeting(*args: Any) -> Any:
        gate.wait(60)
        return search(*args)

    monkeypatch.setattr(engine, "search", meeting)
    assert at_once(*[partial(index.search, QUERIES)] * 3) == [expected] * 3


def test_a_filter_may_search_and_not_change() -> None:
    index = SurpriseIndex(weight=1).add(clouds(1000), metadata=range(1000))
    best, second = ids_of(index.search(QUERIES[0], k=2))
    searching = Event()

    def remove() -> None:
        assert searching.wait(60)
        index.remove(best)

    def nested(data: int) -> bool:
        searching.set()
        while data == 999 and not index._lock._door.locked():  # the removal waits by now
            sleep(0.001)
        return data == second or ids_of(index.search(QUERIES[0], k=1)) == [data]

    found = at_once(partial(index.search, QUERIES[0], filter=nested), remove)[0]
    assert ids_of(found) == [best, second]
    assert ids_of(index.search(QUERIES[0], k=1)) == [second]
    for change in (lambda _: index.remove(second), lambda _: index.add(clouds(1))):
        with pytest.raises(RuntimeError, match="from within its own search"):
            index.search(QUERIES[0], filter=change)
    assert len(index.remove(second)) == 998


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda index: pickle.loads(pickle.dumps(index))])
def test_a_copy_has_a_lock_of_its_own(copied: Callable) -> None:
    index = SurpriseIndex(weight=1).add(clouds(1000), metadata=range(1000))
    copies = []
    index.search(QUERIES, filter=lambda data: data > 0 or not copies.append(copied(index)))
    (again,) = copies
    assert again.search(QUERIES) == index.search(QUERIES)
    at_once(partial(index.remove, range(500)), partial(again.remove, range(500, 1000)))
    assert (index.ids, again.ids) == (list(range(500, 1000)), list(range(500)))
