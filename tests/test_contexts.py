"""An ensemble in every form, wherever one is taken: the same checks, and the same numbers."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import evaluate
import numpy as np
import pytest
import torch

from surprise_hf import Ensemble, SurpriseIndex, SurpriseModel, SurpriseZeroShotPipeline, encoding, metrics
from surprise_hf.contexts import as_context

TEXTS = [f"{a} {b} {c}" for a in ("sport", "bank", "rain", "dog") for b in ("red", "one") for c in ("vote", "gene")]
LABELS = ["sport", "money", "animal"]


@pytest.fixture
def model(st_path: Path) -> SurpriseModel:
    found = SurpriseModel(str(st_path), device="cpu")
    found.encoder_name = "me/encoder"
    return found


def taken_by(place: str, model: SurpriseModel, ensemble: Any) -> list[float]:
    """Scores of the first texts against an ensemble, by something that takes one."""
    if place == "model":
        model.set_ensemble(ensemble if isinstance(ensemble, Ensemble) else Ensemble.load(ensemble))
    if place == "pipeline":
        found = SurpriseZeroShotPipeline(model)(TEXTS[:4], LABELS, ensemble=ensemble, surprise_weight=1)
        return [dict(zip(one["labels"], one["scores"], strict=True))["money"] for one in found]
    if place == "index":
        index = SurpriseIndex(model, ensemble, weight=1, direction="questions").add(TEXTS)
        return [hit.score for hit in index.search("money", k=4)]
    if place == "classification":
        metric = evaluate.load(metrics.path("surprise_classification"))
        keys, queries = model.embed(TEXTS)[0], model.embed(LABELS)[0]
        found = metric.compute(predictions=keys, references=[0] * 16, queries=queries, ensemble=ensemble)
        return [found["accuracy"], found["cosine_accuracy"]]
    metric = evaluate.load(metrics.path("surprise_similarity"))
    given = {"predictions": TEXTS[:4], "references": TEXTS[4:8], "model": model}
    return metric.compute(**given, ensemble=ensemble)["surprise_similarity_scores"]


PLACES = ("pipeline", "index", "classification", "similarity")


@pytest.mark.parametrize("place", PLACES)
def test_every_form_gives_the_same(place: str, model: SurpriseModel, tmp_path: Path) -> None:
    emb, _ = model.embed(TEXTS)
    whole = Ensemble.from_embeddings(emb, encoder="me/encoder")
    whole.save(tmp_path / "e.safetensors")
    forms = [emb, emb.numpy(), emb.double(), whole, str(tmp_path / "e.safetensors"), tmp_path / "e.safetensors"]
    if place != "classification":  # which has no encoder
        forms += [TEXTS, tuple(TEXTS), np.array(TEXTS)]
    want = taken_by(place, model, emb)
    for form in forms:
        assert taken_by(place, model, form) == pytest.approx(want, abs=1e-4)


def of(dim: int = 32, **options: Any) -> Ensemble:
    rows = torch.randn(9, dim, generator=torch.Generator().manual_seed(0))
    return Ensemble.from_embeddings(rows, **options)


REFUSED = {
    "another dimension": (of(7), "7 dimensions"),
    "another encoder": (of(encoder="me/other"), "'me/other', not of 'me/encoder'"),
    "dot products": (of(normalize=False), "normalize=False"),
    "nothing in it": (Ensemble(32), "holds no documents"),
}


@pytest.mark.parametrize("is_file", [False, True], ids=["object", "file"])
@pytest.mark.parametrize("place", [*PLACES, "model"])
@pytest.mark.parametrize("kind", REFUSED)
def test_what_does_not_fit_is_refused(
    kind: str, place: str, is_file: bool, model: SurpriseModel, tmp_path: Path
) -> None:
    ensemble, message = REFUSED[kind]
    if is_file:
        ensemble.save(tmp_path / "e.safetensors")
    given = tmp_path / "e.safetensors" if is_file else ensemble
    if place == "classification" and kind == "another encoder":
        assert taken_by(place, model, given)  # embeddings don't tell whose they are
        return
    with pytest.raises(ValueError, match=f"{message}|of dimension 7" if is_file else message):
        taken_by(place, model, given)
    assert model.ensemble is None


@pytest.mark.parametrize("is_file", [False, True], ids=["object", "file"])
@pytest.mark.parametrize("place", ["pipeline", "index", "similarity"])
def test_what_the_encoder_made_before_training_is_refused(
    place: str, is_file: bool, model: SurpriseModel, tmp_path: Path
) -> None:
    """It has the same name; what it makes of one text tells."""
    before = model.fit_ensemble(TEXTS).ensemble
    assert before is not None
    model.set_ensemble(None)
    assert taken_by(place, model, before)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.3 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(0)))
    given: Any = before
    if is_file:
        given = tmp_path / "e.safetensors"
        before.save(given)
    with pytest.raises(ValueError, match=r"the ensemble.* belongs to another encoder, or to this one before"):
        taken_by(place, model, given)
    after = model.fit_ensemble(TEXTS).ensemble
    assert after is not None
    with pytest.raises(ValueError, match="from one before and after it was trained"):
        after.merge(before)
    assert len(after) == 16


def test_an_encoder_that_knows_no_word_of_the_probe(model: SurpriseModel) -> None:
    """Its embedding is zeros, which says nothing of whose it is."""
    encode = model._encode
    model._encode = lambda texts, **options: encode(texts, **options) * (texts != [encoding.PROBE])  # type: ignore[method-assign]
    given = model.fit_ensemble(TEXTS).ensemble
    assert given is not None
    assert not given.probe.any()
    assert taken_by("pipeline", model, given)
    assert len(model.fit_ensemble(TEXTS, update=True).ensemble or ()) == 32


def test_embeddings_of_no_ensemble() -> None:
    for given, error, message in (
        (torch.zeros(0, 4), ValueError, "holds no documents"),
        (torch.ones(2, 4, dtype=torch.int64), TypeError, "floating dtype"),
        (np.ones((2, 3)), ValueError, "the ensemble has 3 dimensions, but queries have 4"),
        (["a text"], ValueError, "no model to embed them"),
    ):
        with pytest.raises(error, match=message):
            as_context(given, dim=4, dim_of="queries have")
    with pytest.raises(TypeError, match="must be an Ensemble or None, got str"):
        SurpriseModel.set_ensemble(None, "path")  # type: ignore[arg-type]


def test_an_index_keeps_the_ensemble_as_it_was(model: SurpriseModel) -> None:
    """The caller's own is neither moved nor followed: a later update left half of the numbers as they were."""
    emb, _ = model.embed(TEXTS)
    given = Ensemble.from_embeddings(emb)
    index = SurpriseIndex(model, given, weight=1).add(TEXTS)
    want = [(hit.id, hit.score) for hit in index.search("dog", k=5)]
    given.update(torch.randn(50, 32, generator=torch.Generator().manual_seed(1)))
    index.add(["dog cat horse"]).remove(16)
    assert [(hit.id, pytest.approx(hit.score, abs=1e-6)) for hit in index.search("dog", k=5)] == want
    assert len(index.ensemble or ()) == 16
    assert given.device.type == "cpu"
    SurpriseIndex(None, given, device="meta")
    assert given.device.type == "cpu"


def test_texts_cut_off_are_counted(model: SurpriseModel) -> None:
    with pytest.warns(UserWarning, match="1 of 16 documents of the ensemble are longer than the 64 tokens"):
        SurpriseZeroShotPipeline(model)(TEXTS[:2], LABELS, ensemble=[*TEXTS[1:], "dog " * 99, " "], surprise_weight=1)


@pytest.mark.parametrize("into", ["context", "index"])
def test_texts_cut_off_are_counted_in_all_batches(
    model: SurpriseModel, monkeypatch: pytest.MonkeyPatch, into: str
) -> None:
    monkeypatch.setattr(encoding, "CHUNK", 1)
    texts = ["dog " * 99, *TEXTS[:5], "cat " * 99, TEXTS[5]]
    take = SurpriseIndex(model).add if into == "index" else partial(as_context, model=model)
    with pytest.warns(UserWarning, match="2 of 8 documents.* are longer than the 64 tokens"):
        take(texts, batch_size=2)


@pytest.mark.parametrize("person", [True, False])
@pytest.mark.parametrize("into", ["ensemble", "context", "index"])
def test_documents_of_more_than_one_batch_have_one_bar(
    model: SurpriseModel, monkeypatch: pytest.MonkeyPatch, person: bool, into: str
) -> None:
    """Whatever takes documents as texts shows one bar over all of them, and none for a batch or for no person."""
    import tqdm.auto

    bars = []

    class Bar(tqdm.auto.tqdm):  # type: ignore[type-arg]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            bars.append((kwargs["desc"], kwargs["total"], kwargs["disable"]))
            super().__init__(*args, **{**kwargs, "disable": True})

    monkeypatch.setattr(tqdm.auto, "tqdm", Bar)
    monkeypatch.setattr(encoding, "CHUNK", 1)
    monkeypatch.setattr(encoding, "progress_wanted", lambda: person)
    take = {
        "ensemble": lambda documents: model.fit_ensemble(documents, batch_size=4),
        "context": lambda documents: as_context(documents, model, batch_size=4),
        "index": lambda documents: SurpriseIndex(model).add(documents, batch_size=4),
    }[into]
    take([f"text {i}" for i in range(9)])
    take([f"text {i}" for i in range(4)])
    take(f"text {i}" for i in range(9))
    assert bars == [("Documents", 9, not person), ("Documents", 4, True), ("Documents", None, not person)]


def test_another_encoders_ensemble_is_refused_without_a_name_too(st_path: Path, tmp_path: Path) -> None:
    """As that of the same folder before it was trained."""
    before, after = (SurpriseModel(str(st_path), device="cpu").fit_ensemble(TEXTS) for _ in range(2))
    with torch.no_grad():
        for weight in after.parameters():
            weight.add_(torch.randn(weight.shape, generator=torch.Generator().manual_seed(0)))
    assert before.encoder_name is None
    before.ensemble.save(tmp_path / "one")
    whole = Ensemble.load(tmp_path / "one")
    assert torch.equal(whole.probe, before.ensemble.probe)
    parts = [Ensemble(whole.dim).merge(whole), whole.without_reservoir()]
    whole.save(tmp_path / "two")
    assert (tmp_path / "two").read_bytes() == (tmp_path / "one").read_bytes()
    words = "belongs to another encoder, or to this one before it was trained"
    for ensemble in (whole, *parts):
        SurpriseModel(str(st_path), device="cpu").set_ensemble(ensemble)
        with pytest.raises(ValueError, match=f"the ensemble {words}"):
            after.set_ensemble(ensemble)
    assert len(as_context(tmp_path / "one", before)) == len(TEXTS)
    with pytest.raises(ValueError, match=f"the ensemble of .*one {words}"):
        as_context(tmp_path / "one", after)
    with pytest.raises(ValueError, match=words):
        after.fit_ensemble(TEXTS, update=True)
    after.fit_ensemble(TEXTS).fit_ensemble(TEXTS, update=True)
    made = Ensemble.from_embeddings(before.embed(TEXTS)[0])
    made.save(tmp_path / "by hand")
    assert len(as_context(tmp_path / "by hand", after)) == len(TEXTS)  # of which nothing tells the encoder
    whole.probe = torch.ones(3)
    whole.save(tmp_path / "one")
    with pytest.raises(ValueError, match=r"damaged ensemble file: probe is \(3,\)"):
        Ensemble.load(tmp_path / "one")
