"""A SurpriseModel's folder stays one that opens, and what can't be kept there is refused before it is touched."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
import transformers

from surprise_hf import SurpriseModel, SurpriseZeroShotPipeline, model_files
from surprise_hf.pipeline import _as_model

TEXTS = [f"{a} {b} {c}" for a in ("sport", "bank", "rain", "dog") for b in ("red", "one") for c in ("vote", "gene")]
LABELS = ["sport", "money", "animal"]


def load(path: Path, **kwargs: Any) -> SurpriseModel:
    return SurpriseModel(str(path), device="cpu", **kwargs)


# --- texts read in another way ------------------------------------------------------------------------------------

CHANGES = {
    "prompt": {"prompt": "query: "},
    "no prompt": {"prompt": ""},
    "prompt_name": {"prompt_name": "passage"},
    "long_texts": {"long_texts": "window"},
}


def prompted(path: Path) -> SurpriseModel:
    prompts = {"bird": "bird ", "passage": "passage: ", "none": ""}
    return load(path, prompts=prompts, default_prompt_name="bird")


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("state", ["ensemble", "examples", "both"])
def test_what_was_embedded_in_another_way_is_not_compared_with(change, state, st_path, tmp_path):
    model = prompted(st_path)
    if state != "examples":
        model.fit_ensemble(TEXTS)
    if state != "ensemble":
        model.set_labels(LABELS, vectors=torch.eye(3, 32))
    prompts = dict(model.prompts)
    with pytest.raises(ValueError, match=r"fitted with .*leave .* as it is, or take them away .*and fit again"):
        SurpriseZeroShotPipeline(model, **CHANGES[change])
    assert (model.prompts, model.default_prompt_name, model.long_texts) == (prompts, "bird", "truncate")
    model.save_pretrained(tmp_path)
    load(tmp_path)
    model.set_ensemble(None)
    model.set_labels(None)
    pipe = SurpriseZeroShotPipeline(model, **CHANGES[change])
    pipe.fit_ensemble(TEXTS).set_labels(LABELS, surprise_weight=1).save_pretrained(tmp_path / "again")
    assert SurpriseZeroShotPipeline(load(tmp_path / "again"))(TEXTS) == pipe(TEXTS)


@pytest.mark.parametrize(
    "same", [{"prompt": "bird "}, {"prompt_name": "bird"}, {"long_texts": "truncate"}, {}], ids=lambda x: str(list(x))
)
def test_the_same_way_said_again_changes_nothing(same, st_path, tmp_path):
    model = prompted(st_path).fit_ensemble(TEXTS).set_labels(LABELS, weight=1.0)
    want = SurpriseZeroShotPipeline(model)(TEXTS)
    pipe = SurpriseZeroShotPipeline(model, **same)
    assert pipe(TEXTS) == want
    pipe.save_pretrained(tmp_path)
    assert SurpriseZeroShotPipeline(load(tmp_path))(TEXTS) == want


@pytest.mark.parametrize("change", CHANGES)
def test_labels_by_name_go_with_every_way(change, st_path, tmp_path):
    pipe = SurpriseZeroShotPipeline(prompted(st_path).set_labels(LABELS, weight=1.0), **CHANGES[change])
    want = pipe(TEXTS)
    pipe.save_pretrained(tmp_path)
    assert SurpriseZeroShotPipeline(load(tmp_path))(TEXTS) == want


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"prompt_name": "nope", "long_texts": "window"}, "no prompt named 'nope'"),
        ({"prompt": "a", "prompt_name": "bird"}, "not both"),
        ({"prompt": "a", "long_texts": "all"}, "long_texts must be one of"),
    ],
)
def test_a_refused_way_changes_nothing(wrong, message, st_path):
    model = prompted(st_path)
    prompts = dict(model.prompts)
    with pytest.raises(ValueError, match=message):
        SurpriseZeroShotPipeline(model, **wrong)
    assert (model.prompts, model.default_prompt_name, model.long_texts) == (prompts, "bird", "truncate")


# --- saving over a good folder ------------------------------------------------------------------------------------


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_what_json_does_not_hold_leaves_the_folder_as_it_was(st_path, tmp_path):
    load(st_path).fit_ensemble(TEXTS).set_labels(LABELS, weight=1.0).save_pretrained(tmp_path)
    before = contents(tmp_path)
    other = load(st_path).fit_ensemble(TEXTS[:5]).set_labels(["music"], weight=0.5)
    other.report["seen"] = np.float32(1)
    with pytest.raises(TypeError, match="float32"):
        other.save_pretrained(tmp_path)
    assert contents(tmp_path) == before


@pytest.mark.parametrize("interrupted", ["save_file", "Ensemble.save", "labels.safetensors", "ensemble.safetensors"])
def test_an_interrupted_save_mixes_no_two_models(interrupted, st_path, tmp_path, monkeypatch):
    model = load(st_path).fit_ensemble(TEXTS).set_labels(["sport", "bank"], weight=1)
    model.save_pretrained(tmp_path)
    before = SurpriseZeroShotPipeline(load(tmp_path))(TEXTS)
    model.set_labels(["dog", "rain"], weight=1)
    with monkeypatch.context() as patch:
        stop = Mock(side_effect=KeyboardInterrupt)
        if interrupted.endswith("safetensors"):
            replace = Path.replace
            patch.setattr(Path, "replace", lambda a, b: stop() if a.name == interrupted else replace(a, b))
        else:
            patch.setattr(f"surprise_hf.model_files.{interrupted}", stop)
        with pytest.raises(KeyboardInterrupt):
            model.save_pretrained(tmp_path)
    found = load(tmp_path)
    if found.candidate_labels is None:  # neither: an encoder alone
        assert found.ensemble is None
    else:
        assert SurpriseZeroShotPipeline(found)(TEXTS) == before
    assert not [path.name for path in (tmp_path / "surprise").iterdir() if path.name.startswith(".")]
    model.save_pretrained(tmp_path)
    assert load(tmp_path).candidate_labels == ["dog", "rain"]


def test_settings_of_an_encoder_alone_are_kept(st_path, tmp_path):
    model = load(st_path)
    model.save_pretrained(tmp_path)
    assert not (tmp_path / "surprise").exists()
    model.read_with(long_texts="window")
    model.set_labels(None, "about {}")
    model.record_results("a set", {"a": 1.0})
    model.save_pretrained(tmp_path)
    again = load(tmp_path)
    assert (again.long_texts, again.hypothesis_template) == ("window", "about {}")
    assert again.report == model.report
    assert again.ensemble is again.candidate_labels is again.fitted is None


def test_a_template_alone_is_kept(st_path, tmp_path):
    load(st_path).set_labels(None, "about {}").save_pretrained(str(tmp_path))
    assert load(tmp_path).hypothesis_template == "about {}"


def test_a_config_that_can_not_be_written_is_not_cut_short(st_path, tmp_path, monkeypatch):
    model = load(st_path).fit_ensemble(TEXTS).set_labels(LABELS, weight=1.0)
    model.save_pretrained(tmp_path)
    config = tmp_path / "surprise" / model_files.CONFIG
    before = config.read_bytes()
    write = Path.write_text

    def full(self: Path, text: str, **kwargs: Any) -> int:
        if config.parent in self.parents:
            write(self, text[:20], **kwargs)
            raise OSError("disk full")
        return write(self, text, **kwargs)

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(OSError, match="disk full"):
        model.save_pretrained(tmp_path)
    assert config.read_bytes() == before
    monkeypatch.undo()
    model.save_pretrained(tmp_path)
    assert sorted(path.name for path in config.parent.iterdir()) == sorted(
        [model_files.CONFIG, model_files.ENSEMBLE, model_files.LABELS]
    )


# --- a load that fails --------------------------------------------------------------------------------------------


def damaged(st_path: Path, folder: Path) -> Path:
    load(st_path).fit_ensemble(TEXTS).save_pretrained(folder)
    (folder / "surprise" / "ensemble.safetensors").write_bytes(b"not tensors")
    return folder


def test_a_failed_load_keeps_no_encoder(st_path, tmp_path, monkeypatch):
    folder, made = damaged(st_path, tmp_path), []
    real = SurpriseModel._load_surprise

    def noting(self: SurpriseModel, *args: Any) -> None:
        made.append(weakref.ref(self))
        real(self, *args)

    monkeypatch.setattr(SurpriseModel, "_load_surprise", noting)
    with pytest.raises(ValueError, match="surprise can't be used"):
        SurpriseModel.from_pretrained(folder, device="cpu")
    gc.collect()
    assert [ref() for ref in made] == [None]


def test_the_fault_of_a_load_is_told_for_that_load_alone(st_path, tmp_path):
    folder = damaged(st_path, tmp_path)
    with pytest.raises(ValueError, match=r"surprise can't be used: .*ensemble\.safetensors"):
        transformers.pipeline("surprise-zero-shot", model=str(folder), device="cpu")
    with pytest.raises(ValueError, match="surprise can't be used"):
        SurpriseModel.from_pretrained(folder, device="cpu")
    SurpriseZeroShotPipeline(load(st_path))  # something else came between
    bare = transformers.AutoModel.from_pretrained(folder)
    with pytest.raises(TypeError, match=r"got BertModel; pass surprise_hf\.SurpriseModel"):
        _as_model(bare)
