"""Files of older format versions open, with the values of then for what they lack; files of later ones don't.

The files of version 1 are built here by hand, field by field, as the first surprise_hf that wrote them did: no code of
the package has a part in them, nor in the scores that they should give.
"""

from __future__ import annotations

import json
import shutil
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from safetensors.numpy import save_file
from scipy import stats
from sentence_transformers import SentenceTransformer

from surprise_hf import Ensemble, SurpriseModel, SurpriseZeroShotPipeline, model_files, remote
from surprise_hf.formats import check_version

DOCUMENTS = [f"{a} {b} {c}" for a in ("sport", "bank", "rain", "dog") for b in ("red", "one") for c in ("vote", "gene")]
LABELS = ["sport", "money", "animal"]
TEMPLATE = "about {}"
PROBE = "The quick brown fox jumps over the lazy dog."


def unit(x: np.ndarray) -> np.ndarray:
    x = x.astype(np.float64)
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def ensemble_of_version_1(rows: np.ndarray, file: Path) -> None:
    """Mean and scatter of the unit rows in float64, and the rows themselves as the sample."""
    whole = unit(rows)
    mean = whole.mean(axis=0)
    tensors = {
        "count": np.array(float(len(rows))),
        "mean": mean,
        "scatter": (whole - mean).T @ (whole - mean),
        "reservoir": rows.astype(np.float32),
        "priority": np.arange(len(rows), dtype=np.int64),
    }
    metadata = {"format": "surprise_hf.ensemble", "version": "1", "dim": str(rows.shape[1]), "normalize": "true"}
    save_file(tensors, file, metadata={**metadata, "reservoir": "4096", "seed": "0", "eps": "1.1920928955078125e-07"})


@pytest.fixture(scope="module")
def version_1(st_path, tmp_path_factory) -> tuple[Path, np.ndarray]:
    """A model's folder, and the surprise of each document for each label."""
    folder = Path(shutil.copytree(st_path, tmp_path_factory.mktemp("version 1") / "model"))
    encoder = SentenceTransformer(str(st_path), device="cpu")
    documents, queries = encoder.encode(DOCUMENTS), encoder.encode([TEMPLATE.format(label) for label in LABELS])
    psi = unit(documents) @ unit(queries).T
    (folder / "surprise").mkdir()
    ensemble_of_version_1(documents, folder / "surprise" / "ensemble.safetensors")
    tensors = {"queries": queries, "mean": psi.mean(axis=0), "std": psi.std(axis=0), "probe": encoder.encode(PROBE)}
    save_file(tensors, folder / "surprise" / "labels.safetensors", metadata={"format": "surprise_hf.model"})
    config = {
        "format": "surprise_hf.model",
        "version": 1,
        "dim": 32,
        "encoder": "me/encoder",
        "hypothesis_template": TEMPLATE,
        "candidate_labels": LABELS,
        "fit_options": {"weight": 1.0},
        "fitted": {"weight": 1.0, "estimator": "gaussian", "similarity": "cosine", "anchor": -1},
        "ensemble": len(DOCUMENTS),
    }
    (folder / "surprise" / "config.json").write_text(json.dumps(config))
    return folder, stats.norm.cdf((psi - psi.mean(axis=0)) / psi.std(axis=0))


def scores(results: list[dict]) -> np.ndarray:
    return np.array([[dict(zip(r["labels"], r["scores"], strict=True))[label] for label in LABELS] for r in results])


def test_an_ensemble_of_version_1(tmp_path):
    rows = np.array([[2.0, 0.0], [0.0, 1.0], [3.0, 4.0]])  # unit rows (1, 0), (0, 1), (0.6, 0.8)
    ensemble_of_version_1(rows, tmp_path / "ensemble.safetensors")
    ensemble = Ensemble.load(tmp_path / "ensemble.safetensors")
    assert (len(ensemble), ensemble.dim, ensemble.encoder) == (3, 2, None)
    mean, std = ensemble.moments(torch.tensor([[5.0, 0.0], [0.0, 1.0]]))
    assert mean.tolist() == pytest.approx([1.6 / 3, 1.8 / 3])
    assert std.tolist() == pytest.approx([np.std([1, 0, 0.6]), np.std([0, 1, 0.8])])
    assert ensemble.reservoir.tolist() == pytest.approx(rows)
    assert Ensemble.from_pretrained(tmp_path).moments(torch.eye(2))[0].tolist() == mean.tolist()
    ensemble.update(torch.tensor([[1.0, 0.0]]))
    assert ensemble.mean.tolist() == pytest.approx([2.6 / 4, 1.8 / 4])


def test_a_model_of_version_1(version_1):
    folder, expected = version_1
    model = SurpriseModel.from_pretrained(folder, device="cpu")
    pipe = SurpriseZeroShotPipeline(model)
    np.testing.assert_allclose(scores(pipe(DOCUMENTS)), expected, atol=1e-5)
    np.testing.assert_allclose(scores([pipe(DOCUMENTS[3])]), expected[3:4], atol=1e-5)
    assert (model.candidate_labels, model.hypothesis_template, model.encoder_name) == (LABELS, TEMPLATE, "me/encoder")
    assert len(model.ensemble) == len(model.ensemble.reservoir) == len(DOCUMENTS)
    assert (model.long_texts, model.report) == ("truncate", {})  # came later
    with_new_labels = pipe("dog cat", ["music"], surprise_weight=0.5)  # from the reservoir
    assert 0 < with_new_labels["scores"][0] < 1


def test_saved_again_it_is_of_this_version_and_scores_the_same(version_1, tmp_path):
    folder, _ = version_1
    model = SurpriseModel.from_pretrained(folder, device="cpu")
    model.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "surprise" / "config.json").read_text())
    assert config["version"] == model_files.VERSION
    assert set(model_files.LATER) <= set(config)
    again = SurpriseModel.from_pretrained(tmp_path, device="cpu")
    assert SurpriseZeroShotPipeline(again)(DOCUMENTS) == SurpriseZeroShotPipeline(model)(DOCUMENTS)


def test_remote_code_reads_version_1(version_1, tmp_path):
    folder, expected = version_1
    whole = Path(shutil.copytree(folder, tmp_path / "model"))
    shutil.copy(remote.CODE, whole)
    config = json.loads((whole / "config.json").read_text())
    config["custom_pipelines"] = {
        "surprise-zero-shot": {"impl": "surprise_remote.SurpriseRemotePipeline", "pt": ["AutoModel"], "type": "text"}
    }
    (whole / "config.json").write_text(json.dumps(config))
    pipe = transformers.pipeline("surprise-zero-shot", model=str(whole), trust_remote_code=True, device="cpu")
    assert type(pipe).__name__ == "SurpriseRemotePipeline"
    np.testing.assert_allclose(scores(pipe(DOCUMENTS)), expected, atol=1e-5)


LATER_VERSION = "has format 2, newer than the 1 known here: upgrade surprise_hf"


def test_later_versions_are_refused(version_1, tmp_path):
    whole = Path(shutil.copytree(version_1[0], tmp_path / "model"))
    file = whole / "surprise" / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "version": 2}))
    with pytest.raises(ValueError, match=rf"surprise can't be used: it {LATER_VERSION}"):
        SurpriseModel.from_pretrained(whole, device="cpu")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(ValueError, match=LATER_VERSION):
            transformers.pipeline("surprise-zero-shot", model=str(whole), device="cpu")


@pytest.mark.parametrize("found", [0, 1, "1", "0", 7, "7"])
def test_this_version_and_older_ones_are_read(found):
    check_version(found, 7)


@pytest.mark.parametrize("found", [None, True, "", "x", -1, 1.5, [1], "1.0", "²"])
def test_what_is_no_version(found):
    with pytest.raises(ValueError, match="which is no version"):
        check_version(found, 7)


def test_a_later_version():
    for found in (8, "8", 10**8):
        with pytest.raises(ValueError, match=f"it has format {found}, newer than the 7 known here"):
            check_version(found, 7)
