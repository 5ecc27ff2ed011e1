"""What torch's global modes may not change: inference mode, autocast, and a default dtype of float64."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch

from surprise_hf import (
    Ensemble,
    SurpriseIndex,
    SurpriseKMeans,
    SurpriseModel,
    SurpriseZeroShotPipeline,
    WeightedFocalLoss,
)
from surprise_hf import ops as surprise_ops
from surprise_hf.engines import ENGINES
from surprise_hf.few_shot import aim_labels, mix_labels, part_labels
from surprise_hf.fitted import FittedLabels
from surprise_hf.ops import _reference
from surprise_hf.scoring import surprise
from tests.index_data import clouds
from tests.pipeline_data import DOCUMENTS, LABELS

INDEXES = {
    **{engine: {"engine": engine} for engine in ENGINES},
    "blended": {"weight": 0.5},
    "blended, given ensemble": {"weight": 0.5, "ensemble": clouds(50, seed=5)},
    "questions": {"direction": "questions", "ensemble": clouds(50, seed=5)},
}


@pytest.mark.parametrize("kind", INDEXES)
def test_an_index_changes_and_is_searched_in_inference_mode_and_out_of_it(kind: str, tmp_path: Path) -> None:
    """In any order: tensors of that mode can be written in it alone."""
    options = {"weight": 1, **INDEXES[kind]}
    documents, more, queries = clouds(120), clouds(40, seed=1), clouds(3, seed=2)
    wanted = SurpriseIndex(**options).add(documents).add(more).remove([3, 130]).search(queries, k=5)
    for modes in itertools.product([False, True], repeat=4):
        made, added, changed, searched = (torch.inference_mode() if mode else nullcontext() for mode in modes)
        with made:
            index = SurpriseIndex(**options)
        with added:
            index.add(documents.clone())
            copies = [copy.deepcopy(index)]
            index.save_pretrained(tmp_path)
            copies.append(SurpriseIndex.from_pretrained(tmp_path))
        with searched:
            index.search(queries)
        for one in (index, *copies):
            with changed:
                one.add(more.clone()).remove([3, 130])
            with searched:
                found = one.search(queries, k=5)
            assert [[hit.id for hit in hits] for hits in found] == [[hit.id for hit in hits] for hits in wanted]
            for hits, right in zip(found, wanted, strict=True):
                assert [hit.score for hit in hits] == pytest.approx([hit.score for hit in right], abs=1e-6)


def index(tmp_path: Path, **options: Any) -> list:
    """Everything an index does, with rows enough for several blocks of FAISS."""
    index = SurpriseIndex(**options)
    emptied = SurpriseIndex(**options).add(ROWS[:3]).remove([0, 1, 2])
    emptied.save_pretrained(tmp_path)
    index.add(ROWS, metadata=range(300)).remove([3, 4])
    index.save_pretrained(tmp_path)
    opened = SurpriseIndex.from_pretrained(tmp_path)
    found = [
        one.search(QUERIES, k=4, **given)
        for one in (index, opened, emptied.add(ROWS))
        for given in ({}, {"filter": lambda data: data is None or data % 3 == 1}, {"max_score": 0.9})
    ]
    return [found, index.search(QUERIES[0], at_least_as_similar_as=ROWS[7]), [*index.export_vectors()[:2]]]


def ensemble(tmp_path: Path) -> list:
    found = Ensemble.from_embeddings(ROWS).merge(Ensemble(16).update(QUERIES))
    found.save(tmp_path / "e.safetensors")
    opened = Ensemble.load(tmp_path / "e.safetensors").update(ROWS[:5])
    return [found.moments(QUERIES), found.reservoir, opened.moments(QUERIES), opened.covariance]


def estimators(_: Path) -> list:
    names = ("gaussian", "quantile", "empirical", "tail", "auto")
    return [surprise(ROWS, QUERIES, estimator=name, refine=refine) for name in names for refine in (0, "auto")]


def clusters(_: Path) -> list:
    options = [{}, {"assign": "mixed"}, {"balanced": True, "iterate": "surprise"}, {"n_clusters": "auto"}]
    fitted = [SurpriseKMeans(**{"n_clusters": 3, **some}, random_state=0).fit(ROWS) for some in options]
    names = [one.name_clusters([f"word {i}" for i in range(300)], ROWS) for one in fitted]
    return [*((one.labels_, one.cluster_centers_, one.transform(QUERIES)) for one in fitted), names]


def loss(_: Path) -> list:
    keys, queries = (x.clone().requires_grad_() for x in (ROWS[:20], QUERIES))
    positive = torch.arange(20).unsqueeze(1) % 4 == torch.arange(4)
    found = WeightedFocalLoss()(keys, queries, positive, torch.tensor([0.5, 2.0] * 10))
    return [found, torch.autograd.grad(sum(x.sum() for x in found if x.requires_grad), (keys, queries))]


ROWS, QUERIES = clouds(300), clouds(4, seed=1)
TASKS: dict[str, Callable[[Path], list]] = {
    **{f"index {kind}": lambda path, kind=kind: index(path, **{"weight": 1, **INDEXES[kind]}) for kind in INDEXES},
    "ensemble": ensemble,
    "estimators": estimators,
    "clusters": clusters,
    "loss": loss,
}


def plain(x: Any) -> Any:
    """Tensors and arrays as their dtypes and numbers, in the containers that they come in."""
    if hasattr(x, "tolist"):
        return str(x.dtype), x.tolist()
    if isinstance(x, dict):
        return {name: plain(value) for name, value in x.items()}
    return [plain(value) for value in x] if isinstance(x, (list, tuple)) else x


def in_float64(task: Callable[[], Any]) -> Any:
    torch.set_default_dtype(torch.float64)
    try:
        return task()
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.filterwarnings("ignore:the ensemble")
@pytest.mark.parametrize("name", TASKS)
def test_embeddings_come_to_the_same_whatever_the_default_dtype(name: str, tmp_path: Path) -> None:
    expected = plain(TASKS[name](tmp_path))
    assert plain(in_float64(lambda: TASKS[name](tmp_path))) == expected


@pytest.mark.filterwarnings("ignore:the ensemble|.* have no text|refine")
def test_texts_come_to_the_same_whatever_the_default_dtype(st_path: Path) -> None:
    """Blank ones too, of which a batch may hold nothing else."""
    model = SurpriseModel(str(st_path), device="cpu")

    def task() -> list:
        pipe, texts = SurpriseZeroShotPipeline(model), [*DOCUMENTS, *[""] * 300]
        found = [pipe(texts, LABELS), pipe(texts[::-1], LABELS, multi_label=True, threshold=0.5, surprise_weight=1)]
        pipe.fit_ensemble(texts)
        pipe.fit_labels(DOCUMENTS[:6], [LABELS[i % 3] for i in range(6)], documents=texts)
        found.append(pipe(texts, batch_size=2))
        vectors = model.embed(texts[40:50])[0], torch.cat([part.emb for part in model.embed_documents(texts, 1)])
        searched = SurpriseIndex(model, weight=1).add(texts[10:60]).search(texts[:3], k=3)
        model.set_labels(None)
        model.ensemble = None
        return [found, vectors, searched]

    expected = plain(task())
    assert plain(in_float64(task)) == expected


# --- autocast --------------------------------------------------------------------------------------------------------

CROWD, NAMES = clouds(300), clouds(4, seed=1)
GROUPS = torch.eye(4, dtype=torch.bool)[torch.arange(300) % 4]


COARSE_BY_AUTOCAST: dict[str, Callable[[], Any]] = {
    "blended": lambda: surprise(CROWD, NAMES),
    "ranks": lambda: surprise(CROWD, NAMES, estimator="empirical", weight=1),
    "quantiles": lambda: surprise(CROWD, NAMES, estimator="quantile"),
    "refined": lambda: surprise(CROWD, NAMES, refine=3),
    "judged": lambda: surprise(CROWD, NAMES, refine="auto", estimator="tail"),
    "added": lambda: FittedLabels.fit(NAMES, CROWD).extended(CROWD[:2], CROWD, refine=2).z(CROWD),
    "accept": lambda: FittedLabels.fit(NAMES, CROWD, estimator="tail", weight=1).accept(CROWD),
    "ensemble": lambda: Ensemble.from_embeddings(CROWD).moments(NAMES),
    "k-means": lambda: torch.from_numpy(SurpriseKMeans(3, random_state=0).fit(CROWD).transform(CROWD)),
    "index": lambda: [[hit.score for hit in hits] for hits in SurpriseIndex(weight=1).add(CROWD).search(NAMES)],
    "vectors": lambda: SurpriseIndex(weight=1).add(CROWD).export_vectors().queries(NAMES),
    "mixed": lambda: mix_labels(NAMES, CROWD, GROUPS),
    "aimed": lambda: aim_labels(NAMES, CROWD, GROUPS),
    "parted": lambda: part_labels(NAMES, CROWD, GROUPS),
}


DIFFERENTIABLE: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "scores": lambda k, q: surprise_ops.cosine_surprise(k, q, output="z")[0],
    "own moments": lambda k, q: torch.stack(surprise_ops.cosine_moments(k, q)),
    "known moments": lambda k, q: surprise_ops.surprise_from_moments(k, q, q[:, 0], q[:, 1].exp()),
    "topk": lambda k, q: surprise_ops.surprise_topk(k, q, q[:, 0], q[:, 1].exp(), 2)[0],
    "statistics": lambda k, q: torch.stack(
        surprise_ops.ensemble_moments(k[0].double(), (k[:16, :, None] * k[:16, None]).sum(0).double(), q)
    ),
    "loss": lambda k, q: WeightedFocalLoss(class_weight=[7e4, 1.003, 2.005, 0.5])(k, q, GROUPS)[0],
}


@pytest.mark.filterwarnings("ignore:the ensemble holds")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("compiled", [True, False], ids=["op", "reference"])
@pytest.mark.parametrize("call", COARSE_BY_AUTOCAST.values(), ids=COARSE_BY_AUTOCAST)
def test_autocast_changes_no_score(
    call: Callable[[], Any], compiled: bool, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the op was not built, its products were torch's, of 8 bits under autocast."""
    if not compiled:
        monkeypatch.setattr(surprise_ops, "_backend", lambda name, _: getattr(_reference, name))
    wanted = call()
    with torch.autocast("cpu", dtype):
        found = call()
    torch.testing.assert_close(found, wanted, rtol=0, atol=0)


@pytest.mark.parametrize("compiled", [True, False], ids=["op", "reference"])
@pytest.mark.parametrize("call", DIFFERENTIABLE.values(), ids=DIFFERENTIABLE)
def test_autocast_changes_no_gradient(
    call: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That of an op within the mode as well; torch's own backward pass is to be taken outside, as its docs say."""
    if not compiled:
        monkeypatch.setattr(surprise_ops, "_backend", lambda name, _: getattr(_reference, name))
    given = CROWD.clone().requires_grad_(), NAMES.clone().requires_grad_()
    wanted = call(*given)
    with torch.autocast("cpu", torch.bfloat16):
        found = call(*given)
    torch.testing.assert_close(found, wanted, rtol=0, atol=0)
    if compiled:
        with torch.autocast("cpu", torch.bfloat16):
            gradients = torch.autograd.grad(found.sum(), given)
        torch.testing.assert_close(gradients, torch.autograd.grad(wanted.sum(), given), rtol=0, atol=0)
