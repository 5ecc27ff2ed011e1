"""The file of an ensemble: bit for bit what it was, or an error that says what is wrong."""

from __future__ import annotations

import math
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from surprise_hf.ensemble import Ensemble
from surprise_hf.ensemble_files import FORMAT, VERSION
from tests.ensemble_data import bits, rows


def test_save_and_load_bit_for_bit_and_goes_on_as_if_never_saved(tmp_path: Path) -> None:
    path = tmp_path / "a folder" / "ens.safetensors"
    path.parent.mkdir()
    ens = Ensemble.from_embeddings(rows(300), reservoir=64, encoder="some/model", seed=7)
    ens.save(path)
    back = Ensemble.load(path, dim=12, encoder="some/model")
    assert repr(back) == repr(ens)
    for twin in (back, ens):
        twin.update(rows(200, seed=1))
    assert all(torch.equal(x, bits(ens)[name]) for name, x in bits(back).items())
    for ours, theirs in zip(back.moments(rows(3)), ens.moments(rows(3)), strict=True):
        assert torch.equal(ours, theirs)
    assert [file.name for file in path.parent.iterdir()] == ["ens.safetensors"]


def test_an_empty_dot_ensemble_survives(tmp_path: Path) -> None:
    Ensemble(3, reservoir=0, normalize=False).save(tmp_path / "e")
    back = Ensemble.load(tmp_path / "e")
    assert (len(back), back.normalize, back.encoder, back.reservoir_size) == (0, False, None, 0)


def test_load_checks_the_dimension_and_the_encoder(tmp_path: Path) -> None:
    Ensemble(12, encoder="a/b").save(tmp_path / "e")
    with pytest.raises(ValueError, match="of dimension 12, but the embeddings have 384"):
        Ensemble.load(tmp_path / "e", dim=384)
    with pytest.raises(ValueError, match="encoder 'a/b', not of 'c'"):
        Ensemble.load(tmp_path / "e", encoder="c")
    Ensemble(12).save(tmp_path / "unnamed")
    assert Ensemble.load(tmp_path / "unnamed", encoder="c").encoder is None


DAMAGED = ("count", "mean", "scatter", "reservoir", "probe")  # all that is a float


def rewrite(
    path: Path, *, drop: str | None = None, damage: str | None = None, tensors: dict | None = None, **metadata: str
) -> None:
    ens = Ensemble.from_embeddings(rows(20))
    ens.probe = torch.ones(12)
    ens.save(path)
    stored = {**load_file(path), **(tensors or {})}
    stored.pop(drop, None)
    if damage:
        stored[damage].view(-1)[-1] = math.inf if damage == "scatter" else math.nan
    values = {"format": FORMAT, "version": str(VERSION), "dim": "12", "normalize": "true", "reservoir": "4096"}
    save_file(stored, path, metadata={**values, "seed": "0", "eps": "0.0", **metadata})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": str(VERSION + 1)}, "newer than the 1 known here: upgrade surprise_hf"),
        ({"version": "x"}, "its format version is 'x', which is no version"),
        ({"format": "other"}, "not an ensemble saved by surprise_hf"),
        ({"drop": "scatter"}, "damaged ensemble file: 'scatter'"),
        ({"dim": "11"}, "damaged"),
        ({"dim": "eleven"}, "damaged"),
        ({"tensors": {"mean": torch.zeros(12)}}, "damaged ensemble file: mean is torch.float32"),
        ({"tensors": {"reservoir": torch.zeros(3, 12)}}, "damaged ensemble file: reservoir"),
        *(({"damage": name}, f"damaged ensemble file: {name} is not finite") for name in DAMAGED),
        ({"tensors": {"count": torch.tensor(19.0, dtype=torch.float64)}}, "19.0 documents, 20 of them kept"),
        ({"eps": "nan"}, "eps nan"),
        ({"eps": "-0.1"}, "eps -0.1"),
    ],
)
def test_a_file_that_does_not_fit_is_refused(tmp_path: Path, change: dict, message: str) -> None:
    rewrite(tmp_path / "e")
    Ensemble.load(tmp_path / "e")  # untouched, the rewritten file is fine
    rewrite(tmp_path / "e", **change)
    with pytest.raises(ValueError, match=message):
        Ensemble.load(tmp_path / "e")


def test_an_older_format_loads(tmp_path: Path) -> None:
    rewrite(tmp_path / "e", version="0")
    assert len(Ensemble.load(tmp_path / "e")) == 20


def test_foreign_truncated_and_missing_files(tmp_path: Path) -> None:
    good = tmp_path / "good"
    Ensemble.from_embeddings(rows(20)).save(good)
    for content in (b"", b"not a model", good.read_bytes()[:-100], b"\x80\x04" + bytes(50)):
        (tmp_path / "bad").write_bytes(content)
        with pytest.raises(ValueError, match="bad is not a safetensors file, or it is damaged"):
            Ensemble.load(tmp_path / "bad")
    for path in (tmp_path / "nowhere", tmp_path):
        with pytest.raises(FileNotFoundError, match="no ensemble file at"):
            Ensemble.load(path)


def test_a_failed_save_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "e"
    Ensemble.from_embeddings(rows(20)).save(path)

    write = Path.write_bytes

    def fail(target, data) -> None:
        write(target, data[:9])
        raise OSError("disk full")

    monkeypatch.setattr(Path, "write_bytes", fail)
    with pytest.raises(OSError, match="disk full"):
        Ensemble.from_embeddings(rows(30)).save(path)
    assert len(Ensemble.load(path)) == 20
    monkeypatch.undo()
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for name in ("folder", "pipe"):
        with pytest.raises(FileExistsError, match=f"{name} is a folder or a device, which no file replaces"):
            Ensemble.from_embeddings(rows(30)).save(tmp_path / name)
    assert {found.name for found in tmp_path.iterdir()} == {"e", "folder", "pipe"}
    assert (tmp_path / "pipe").is_fifo()


def test_the_same_ensemble_is_the_same_bytes(tmp_path: Path) -> None:
    """safetensors writes metadata in an order of its own each time; the Hub would take the file for a new one."""
    ensemble = Ensemble.from_embeddings(rows(20), encoder="me/encoder")
    for i in range(8):
        ensemble.save(tmp_path / str(i))
    assert len({path.read_bytes() for path in tmp_path.iterdir()}) == 1


def test_without_the_reservoir_moments_stay(tmp_path: Path) -> None:
    ensemble = Ensemble.from_embeddings(rows(20), encoder="me/encoder")
    bare = ensemble.without_reservoir()
    assert len(ensemble.reservoir) == 20
    assert len(bare.reservoir) == 0
    assert bare.encoder == "me/encoder"
    for ours, theirs in zip(bare.moments(rows(3)), ensemble.moments(rows(3)), strict=True):
        assert torch.equal(ours, theirs)
    bare.save(tmp_path / "bare")
    ensemble.save(tmp_path / "whole")
    assert (tmp_path / "bare").stat().st_size < (tmp_path / "whole").stat().st_size
    bare.update(rows(5))
    assert (len(bare), len(ensemble), len(bare.reservoir)) == (25, 20, 0)
