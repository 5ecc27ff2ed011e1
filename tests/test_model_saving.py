"""A SurpriseModel is saved and loaded bit for bit; what does not fit is an error that says so."""

from __future__ import annotations

import json
import shutil
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer

from surprise_hf import Ensemble, SurpriseModel, model_files
from tests.model_data import DOCUMENTS, LABELS, fitted, load, plain

OPTIONS = [
    {"weight": 1.0},
    {"n_cross": 100.0},
    {"weight": 0.0},
    {"weight": 1.0, "estimator": "quantile"},
    {"weight": 0.7, "estimator": "empirical"},
    {"weight": 1.0, "refine": 3},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_save_and_load_bit_for_bit(st_path, tmp_path, options):
    model = fitted(st_path, **options)
    folder = tmp_path / "a folder with spaces"
    model.save_pretrained(folder)
    again = load(folder)
    assert (again.candidate_labels, again.hypothesis_template) == (LABELS, "this matter is {}")
    assert again.fit_options == options
    emb, _ = again.embed(DOCUMENTS[:1])
    assert torch.equal(again.fitted.score(emb), model.fitted.score(model.embed(DOCUMENTS[:1])[0]))
    assert torch.equal(again.ensemble.scatter, model.ensemble.scatter)
    assert torch.equal(again.ensemble.reservoir, model.ensemble.reservoir)


@pytest.mark.parametrize("refine", [0, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_given_vectors_are_saved_whether_or_not_labels_share_their_memory(st_path, tmp_path, refine, dtype):
    vectors = torch.randn(3, 32, generator=torch.Generator().manual_seed(0), dtype=dtype)
    model = load(st_path).fit_ensemble(DOCUMENTS).set_labels(LABELS, vectors=vectors, weight=1.0, refine=refine)
    model.save_pretrained(tmp_path)
    again = load(tmp_path)
    emb, _ = model.embed(DOCUMENTS)
    assert torch.equal(again.fitted.score(emb), model.fitted.score(emb))
    assert torch.equal(again.label_vectors(LABELS, again.hypothesis_template), vectors.float())


def test_the_saved_folder_is_a_plain_sentence_transformer(st_path, tmp_path):
    model = fitted(st_path)
    model.save_pretrained(tmp_path)
    assert {path.name for path in (tmp_path / "surprise").iterdir()} == {
        "config.json",
        "ensemble.safetensors",
        "labels.safetensors",
    }
    assert "surprise" not in (tmp_path / "modules.json").read_text()
    assert (
        json.loads((tmp_path / "config_sentence_transformers.json").read_text())["model_type"] == "SentenceTransformer"
    )
    suffixes = {path.suffix for path in tmp_path.rglob("*") if path.is_file()}
    assert suffixes <= {".json", ".safetensors", ".txt", ".md"}  # no pickle
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = plain(tmp_path)
    np.testing.assert_array_equal(again.encode(DOCUMENTS), plain(st_path).encode(DOCUMENTS))


@pytest.mark.parametrize("state", ["labels", "ensemble"])
def test_half_of_the_state_is_kept_too(st_path, tmp_path, state):
    model = load(st_path)
    model = model.set_labels([1, 2], "{}") if state == "labels" else model.fit_ensemble(DOCUMENTS)
    model.save_pretrained(tmp_path)
    again = load(tmp_path)
    assert again.candidate_labels == ([1, 2] if state == "labels" else None)
    assert (again.ensemble is None) is (state == "labels")
    assert again.fitted is None


def test_saving_over_another_model_leaves_none_of_its_state(st_path, tmp_path):
    fitted(st_path).save_pretrained(tmp_path)
    load(st_path).save_pretrained(tmp_path)
    assert load(tmp_path).ensemble is None
    assert not list((tmp_path / "surprise").iterdir())


def edit_config(folder: Path, **changes) -> None:
    path = folder / "config.json"
    config = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({name: value for name, value in config.items() if value != "drop"}))


def drop_probe(folder: Path) -> None:
    tensors = load_file(folder / "labels.safetensors")
    del tensors["probe"]
    save_file(tensors, folder / "labels.safetensors")


DAMAGE = {
    "no json": (lambda f: (f / "config.json").write_text("{"), "Expecting"),
    "a list": (lambda f: (f / "config.json").write_text("[]"), "not written by surprise_hf"),
    "foreign json": (lambda f: (f / "config.json").write_text('{"a": 1}'), "not written by surprise_hf"),
    "newer": (lambda f: edit_config(f, version=99), "newer than the 1 known here"),
    "other dimension": (
        lambda f: edit_config(f, dim=9, encoder="me/other"),
        r"9 dimensions \(me/other\), and this one gives 32",
    ),
    "field missing": (lambda f: edit_config(f, candidate_labels="drop"), "'candidate_labels' is missing"),
    "one label less": (lambda f: edit_config(f, candidate_labels=LABELS[:2]), "don't fit together"),
    "bad template": (lambda f: edit_config(f, hypothesis_template="x"), "exactly once"),
    "cut tensors": (lambda f: (f / "labels.safetensors").write_bytes(b"\x08\0\0"), "labels.safetensors is damaged"),
    "no tensors": (lambda f: (f / "labels.safetensors").unlink(), "labels.safetensors is missing"),
    "no probe": (drop_probe, "'probe' is missing"),
    "no ensemble": (lambda f: (f / "ensemble.safetensors").unlink(), "ensemble.safetensors is missing"),
    "cut ensemble": (lambda f: (f / "ensemble.safetensors").write_bytes(b"123456789"), "damaged"),
    "other ensemble": (
        lambda f: Ensemble.from_embeddings(torch.ones(2, 32)).save(f / "ensemble.safetensors"),
        "holds 2 documents, not 24",
    ),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_or_foreign_file_is_a_clear_error(st_path, tmp_path, damage):
    fitted(st_path).save_pretrained(tmp_path)
    change, message = DAMAGE[damage]
    change(tmp_path / "surprise")
    with pytest.raises(ValueError, match=rf"surprise can't be used: .*{message}"):
        load(tmp_path)


def test_state_of_another_encoder_is_refused(st_path, other_bert_path, tmp_path):
    fitted(st_path).save_pretrained(tmp_path / "one")
    load(other_bert_path).save_pretrained(tmp_path / "other")
    shutil.copytree(tmp_path / "one" / "surprise", tmp_path / "other" / "surprise")
    with pytest.raises(ValueError, match="belongs to another encoder"):
        load(tmp_path / "other")


def test_another_dtype_is_the_same_encoder(st_path, tmp_path):
    model = fitted(st_path, weight=1.0)
    model.save_pretrained(tmp_path)
    half = load(tmp_path, dtype=torch.bfloat16)
    near = half.fitted.score(half.embed(DOCUMENTS)[0]) - model.fitted.score(model.embed(DOCUMENTS)[0])
    assert near.abs().max() < 0.1


def test_the_state_survives_deepcopy_and_moves(st_path):
    import copy

    model = copy.deepcopy(fitted(st_path))
    assert model.candidate_labels == LABELS
    assert torch.equal(model.to("cpu").fitted.mean, fitted(st_path).fitted.mean)


def test_files_beside_the_encoder_come_from_the_same_revision(monkeypatch):
    asked = []
    monkeypatch.setattr(model_files.hub, "find", lambda *args, **kwargs: asked.append((args, kwargs)))
    monkeypatch.setattr(SentenceTransformer, "__init__", lambda self, *_, **__: torch.nn.Module.__init__(self))
    monkeypatch.setattr(SurpriseModel, "_model_card_text", None, raising=False)
    hub = {"revision": "v1", "token": "secret", "local_files_only": True}
    model = SurpriseModel.from_pretrained("me/x", cache_dir="cache", **hub)
    (args, kwargs), *more = asked
    assert args == ("me/x", "surprise/config.json")
    assert kwargs == {"expected": False, "cache_dir": "cache", **hub}
    assert more == []  # no ensemble there, so nothing else is asked for
    assert model.encoder_name == "me/x"
    SurpriseModel.from_pretrained("all-MiniLM-L6-v2")
    assert len(asked) == 1  # official repositories carry none
