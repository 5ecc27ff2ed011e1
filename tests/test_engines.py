"""Engines: the row store, FAISS, and exported vectors in a real vector database."""

from __future__ import annotations

import copy
import math
import pickle
import sys
import warnings
from collections.abc import Callable

import numpy as np
import pytest
import torch

from surprise_hf import SurpriseIndex
from surprise_hf.engines import ENGINES, FaissEngine, Form, Rows, make_engine
from surprise_hf.ops import _reference
from tests.index_data import clouds, ids_of, ranker_of, unit, z_matrix

FAISS = [name for name in ENGINES if name != "exact"]


@pytest.mark.parametrize("documents", [1, 31, 700, 1000, 3000])
@pytest.mark.parametrize("k", [1, 9, 40])
@pytest.mark.parametrize("queries", [1, 3, 200])
@pytest.mark.parametrize("engine", ["exact", "uncompiled", "faiss-flat"])
def test_no_row_that_is_left_out_exceeds_the_last_bound(
    engine: str, documents: int, k: int, queries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Few and many products, groups that fit and groups with a rest, one block and three; rows of length 0 too."""
    rows, x, scale = clouds(documents), clouds(queries, seed=1), torch.rand(documents) + 0.5
    rows[::7] = 0
    products = (x.double() @ rows.double().T) * scale
    allowed = torch.arange(documents) % 3 != 1
    k = min(k, documents)
    if engine == "uncompiled":
        monkeypatch.setattr("surprise_hf.engines.OPS", _reference)
    for block in (10_000, 1100):
        monkeypatch.setattr("surprise_hf.engines.BLOCK_BYTES", 4 * 16 * block)
        store = Rows(16)
        store.append(rows)
        searched = make_engine(engine if engine in ENGINES else "exact", {})
        searched.build(store, Form(scale))
        for wanted, options in (
            (products, {}),
            (products.masked_fill(~allowed, -math.inf), {"allowed": allowed}),
            (products.masked_fill(products > 3, -math.inf), {"upper": 3.0}),
        ):
            for fine in (False, True):
                bounds, index = searched.search(x, k, fine=fine, **options)
                there = bounds > -math.inf
                assert (bounds[:, :-1] >= bounds[:, 1:]).all()
                assert (products.gather(1, index) <= bounds)[there].all()
                left = wanted.clone()
                for i, found in enumerate(there):
                    assert len(index[i, found].unique()) == found.sum()
                    left[i, index[i, found]] = -math.inf
                assert (left.amax(dim=1) <= bounds[:, -1]).all()
                # two numbers rounded, once for the margin and once for what it stands for
                far = (bounds - products.gather(1, index))[there].clamp(min=0).max() if there.any() else 0
                assert far <= (4e-6 if fine else 2**-6) * x.norm(dim=1).max() * store.longest * 1.5


@pytest.mark.parametrize("engine", FAISS)
def test_faiss_finds_what_the_exact_engine_finds(engine: str) -> None:
    documents, queries = clouds(5000), clouds(50, seed=1)
    exact = SurpriseIndex(weight=1).add(documents).search(queries, k=10)
    found = SurpriseIndex(engine=engine, weight=1).add(documents).search(queries, k=10)
    if engine == "faiss-flat":
        assert found == exact
    recall = np.mean([len(set(ids_of(a)) & set(ids_of(b))) / 10 for a, b in zip(found, exact, strict=True)])
    assert recall > 0.9


@pytest.mark.parametrize("engine", FAISS)
@pytest.mark.parametrize("copied", [copy.deepcopy, lambda index: pickle.loads(pickle.dumps(index))])
def test_a_copy_with_faiss_finds_the_same_and_grows_by_itself(copied: Callable, engine: str) -> None:
    queries = clouds(5, seed=1)
    index = SurpriseIndex(ensemble=clouds(4000, seed=2), engine=engine).add(clouds(1000))
    found = index.search(queries)
    again = copied(index)
    assert again.search(queries) == found
    again.add(queries)
    assert sorted(ids_of(again.search(queries[0], k=1005))) == list(range(1005))
    assert index.search(queries) == found


@pytest.mark.parametrize("known", [0, 1000])
@pytest.mark.parametrize("engine", FAISS)
def test_faiss_that_was_interrupted_while_it_took_rows(
    engine: str, known: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No row twice, none left out."""
    documents, queries = clouds(6000), clouds(5, seed=1)
    whole = SurpriseIndex(ensemble=clouds(4000, seed=2), engine=engine).add(documents).search(queries, k=6000)
    index = SurpriseIndex(ensemble=clouds(4000, seed=2), engine=engine)
    if known:
        index.add(documents[:known]).search(queries)
    index.add(documents[known:])
    add = FaissEngine._add

    def interrupted(self: FaissEngine, vectors: torch.Tensor) -> None:
        add(self, vectors)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(FaissEngine, "_add", interrupted)
        with pytest.raises(KeyboardInterrupt):
            index.search(queries)
    found = index.search(queries, k=6000)
    assert [sorted(ids_of(hits)) for hits in found] == [list(range(6000))] * 5
    assert [ids_of(hits) for hits in found] == [ids_of(hits) for hits in whole]
    assert ranker_of(index).engine._index.ntotal == 6000


@pytest.mark.parametrize("engine", FAISS)
def test_faiss_grows_under_a_fixed_ensemble(engine: str) -> None:
    documents, query = clouds(1500), clouds(1, seed=1)[0]
    index = SurpriseIndex(ensemble=clouds(4000, seed=2), engine=engine).add(documents[:1000])
    index.search(query)
    index.add(documents[1000:])
    whole = SurpriseIndex(ensemble=clouds(4000, seed=2)).add(documents).search(query, k=3)
    assert ids_of(index.search(query, k=3)) == ids_of(whole)


def test_a_graph_finds_crowded_vectors() -> None:
    """Cosines between 0.9 and 1, as E5 has them: on d^/sigma_d itself, HNSW finds a tenth of the neighbours."""
    documents, queries = clouds(3000, offset=6), clouds(50, seed=1, offset=6)
    exact = SurpriseIndex(weight=1).add(documents).search(queries)
    found = SurpriseIndex(weight=1, engine="faiss-hnsw").add(documents).search(queries)
    recall = np.mean([len(set(ids_of(a)) & set(ids_of(b))) / 10 for a, b in zip(found, exact, strict=True)])
    assert recall > 0.9


def test_unit_vectors_have_the_same_products() -> None:
    documents, queries = clouds(800, offset=2), clouds(9, seed=1, offset=2)
    documents[:, 5] = 0  # a direction without variance
    index = SurpriseIndex(weight=1).add(documents)
    plain, unit_length = index.export_vectors(), index.export_vectors(unit=True)
    np.testing.assert_allclose(unit_length.vectors.norm(dim=1), 1, atol=1e-5)
    z = z_matrix(queries, documents, documents)
    np.testing.assert_allclose(plain.queries(queries) @ plain.vectors.T, z, atol=1e-4)
    queries[:, 5] = 0
    z = z_matrix(queries, documents, documents)
    np.testing.assert_allclose(unit_length.queries(queries) @ unit_length.vectors.T, z, atol=1e-4)


def test_faiss_options() -> None:
    with pytest.raises(ValueError, match="knows the options"):
        SurpriseIndex(engine="faiss-flat", engine_options={"probes": 3})
    documents, queries = clouds(3000), clouds(20, seed=1)
    index = SurpriseIndex(engine="faiss-ivf", weight=1, engine_options={"lists": 30, "probes": 30}).add(documents)
    assert index.search(queries) == SurpriseIndex(weight=1).add(documents).search(queries)


def test_options_reach_faiss() -> None:
    store = Rows(16)
    store.append(clouds(2000))
    graph = make_engine("faiss-hnsw", {"links": 5, "ef_construction": 9, "ef_search": 70})
    lists = make_engine("faiss-ivf", {"lists": 11, "probes": 3})
    for engine in (graph, lists):
        engine.build(store, Form())
    hnsw = graph._index.hnsw
    assert (hnsw.nb_neighbors(1), hnsw.efConstruction, graph._options(4, None).efSearch) == (5, 9, 70)
    assert (lists._index.nlist, lists._options(4, None).nprobe) == (11, 3)


@pytest.mark.parametrize(
    ("engine", "options", "message"),
    [
        ("faiss-hnsw", {"links": 0}, "links must be a positive integer, got 0"),
        ("faiss-hnsw", {"links": 1}, "links must be from 2 to .*, got 1"),
        ("faiss-hnsw", {"links": "32"}, "links must be a positive integer, got '32'"),
        ("faiss-hnsw", {"links": 32, "ef_search": -3}, "ef_search must be a positive integer, got -3"),
        ("faiss-hnsw", {"ef_construction": True}, "ef_construction must be a positive integer, got True"),
        ("faiss-hnsw", {"ef_search": 1 << 31}, "ef_search must be from 1 to .*, got 2147483648"),
        ("faiss-ivf", {"probes": 0}, "probes must be a positive integer, got 0"),
        ("faiss-ivf", {"probes": None}, "probes must be a positive integer, got None"),
        ("faiss-ivf", {"lists": 2.5}, "lists must be a positive integer, got 2.5"),
        ("faiss-ivf", {"lists": np.int64(-5)}, "lists must be a positive integer, got -5"),
        ("faiss-ivf", {"links": 32}, "knows the options .'lists', 'probes'., not .'links'"),
        ("exact", {"probes": 3}, "knows the options .., not .'probes'"),
    ],
)
def test_options_are_refused_before_faiss_sees_them(engine: str, options: dict, message: str) -> None:
    """Some end the process, others are errors of C++ at the first search."""
    with pytest.raises(ValueError, match=message):
        SurpriseIndex(engine=engine, engine_options=options)


@pytest.mark.parametrize("options", [{"links": 2}, {"ef_search": (1 << 31) - 1}, {"ef_construction": 1}])
def test_the_ends_of_what_options_may_be(options: dict) -> None:
    index = SurpriseIndex(engine="faiss-hnsw", weight=1, engine_options=options).add(clouds(300))
    assert len(index.search(clouds(1)[0], k=5)) == 5


@pytest.mark.parametrize("limit", [0.2, 0.5, 0.9])
@pytest.mark.parametrize("direction", ["documents", "questions"])
@pytest.mark.parametrize("engine", FAISS)
def test_an_upper_limit_costs_no_recall(engine: str, direction: str, limit: float) -> None:
    """What lies near the query is what the limit leaves out: lists and links that lead there hold nothing else."""
    documents, queries, ensemble = clouds(5000), clouds(20, seed=1), clouds(800, seed=2)
    options: dict = {"ensemble": ensemble, "direction": direction, "weight": 1}
    found = SurpriseIndex(engine=engine, **options).add(documents).search(queries, max_score=limit)
    z = z_matrix(queries, documents, ensemble)
    if direction == "questions":
        z = z_matrix(documents, queries, ensemble).T
    below = z.masked_fill(torch.special.ndtr(z) > limit, -math.inf)
    order = below if direction == "documents" else (below > -math.inf) * (unit(queries) @ unit(documents).T + 2)
    assert [ids_of(hits) for hits in found] == order.topk(10).indices.tolist()


def test_without_faiss_the_error_names_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(ImportError, match="pip install faiss-cpu"):
        SurpriseIndex(engine="faiss-flat")


@pytest.mark.parametrize("unit_length", [False, True])
def test_qdrant_gives_the_same_order(unit_length: bool) -> None:
    from qdrant_client import QdrantClient, models

    documents, queries = clouds(700, dim=24), clouds(6, dim=24, seed=1)
    index = SurpriseIndex(weight=1).add(documents, ids=range(100, 800))
    exported = index.export_vectors(unit=unit_length)
    client = QdrantClient(":memory:")
    client.create_collection("docs", models.VectorParams(size=24, distance=models.Distance.DOT))
    points = zip(exported.ids, exported.vectors.tolist(), strict=True)
    client.upsert("docs", [models.PointStruct(id=i, vector=v) for i, v in points])
    searched = exported.queries(queries)
    for query, hits in zip(searched, index.search(queries, k=25), strict=True):
        answer = client.query_points("docs", query=query.tolist(), limit=25).points
        assert [point.id for point in answer] == ids_of(hits)
        np.testing.assert_allclose([point.score for point in answer], [hit.z for hit in hits], rtol=1e-4)
    client.close()


@pytest.mark.parametrize("unit_length", [False, True])
def test_exported_queries_are_what_a_search_takes(unit_length: bool) -> None:
    index = SurpriseIndex(weight=1).add(clouds(300))
    exported, queries = index.export_vectors(unit_length), clouds(4, seed=1)
    wanted = exported.queries(queries)
    read_only = queries.numpy().copy()
    read_only.flags.writeable = False
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for given in (queries.numpy(), queries.double(), queries.double().numpy() * 1e200, read_only):
            torch.testing.assert_close(exported.queries(given), wanted)
            torch.testing.assert_close(exported.queries(given[2]), wanted[2])
    for given, error in ((clouds(2, dim=5), ValueError), (queries * math.nan, ValueError), (queries.int(), TypeError)):
        with pytest.raises(error, match="embeddings"):
            exported.queries(given)


def test_exported_questions_order_as_the_index() -> None:
    documents, queries = clouds(300), clouds(4, seed=1)
    index = SurpriseIndex(direction="questions", weight=1).add(documents)
    exported = index.export_vectors()
    order = (exported.queries(queries) @ exported.vectors.T).argsort(dim=1, descending=True)[:, :10]
    assert [ids_of(hits) for hits in index.search(queries, k=10)] == order.tolist()


def test_rows_grow_and_shrink_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("surprise_hf.engines.BLOCK_BYTES", 4 * 3 * 10)
    x = torch.randn(57, 3)
    x[7] = torch.tensor([0.0, -0.0, 1e-40])
    x[8] = torch.tensor([3e38, -1.00390625, 1.01171875])  # the last two stand halfway between two bfloat16 numbers
    rows = Rows(3)
    for part in x.split([1, 9, 0, 25, 22]):
        rows.append(part)
    assert torch.equal(rows.whole(), x)
    assert [len(block) for _, block in rows.blocks()] == [10, 10, 10, 10, 10, 7]
    near = torch.cat([block for _, block in rows.rounded()])
    assert near.dtype == torch.bfloat16
    assert ((near.double() - x.double()).abs() <= x.double().abs() / 256 + 1e-40).all()
    assert rows.lost >= (near.double() - x.double()).norm(dim=1).max() * (1 - 1e-6)
    assert np.allclose(rows.lengths, x.double().norm(dim=1), rtol=1e-12)
    assert rows.longest == rows.lengths.max()
    pick = np.array([56, 0, 10, 9, 9, 33])
    for chosen in (pick, pick[1:2], pick[:0]):
        assert torch.equal(rows.take(chosen), x[chosen])
    keys = np.eye(3)[:2]  # two queries, each with rows of several blocks
    products, lengths = rows.products(pick.reshape(2, 3), keys)
    assert np.array_equal(products, [x[[56, 0, 10], 0].double(), x[[9, 9, 33], 1].double()])
    assert lengths == pytest.approx(x[pick].double().norm(dim=1).view(2, 3).numpy(), rel=1e-12)
    for mask in (torch.arange(57) % 3 != 0, torch.arange(57) != 33, torch.arange(57) != 56, torch.arange(57) < 20):
        left = rows.kept(mask)
        assert torch.equal(left.whole(), x[mask])
        assert len(left.lengths) == len(left) == int(mask.sum())
        lost = torch.cat([block for _, block in left.rounded()]).double() - x[mask].double()
        assert left.lost >= lost.norm(dim=1).max() * (1 - 1e-6)
        assert left.longest >= left.lengths.max()
        one = left.products(np.array([[19]]), keys[:1])
        want = x[mask][19].double()
        assert [float(part[0, 0]) for part in one] == pytest.approx([float(want[0]), float(want.norm())])
        left.append(x[:25])
        assert torch.equal(left.whole(), torch.cat((x[mask], x[:25])))
        assert torch.equal(rows.whole(), x)  # as it was, whatever they share
    assert rows.kept(torch.zeros(57, dtype=torch.bool)).whole().shape == (0, 3)
