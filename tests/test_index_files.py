"""Files of an index: saved, opened, damaged, pushed."""

from __future__ import annotations

import json
import math
import pickle
import shutil
from datetime import date
from enum import Enum, IntEnum
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from safetensors.torch import save

from surprise_hf import SurpriseIndex, SurpriseModel
from surprise_hf.engines import Rows
from tests.hub_server import Hub
from tests.index_data import TEXTS, clouds
from tests.test_hub import client


@pytest.fixture(scope="module")
def model(st_path: Path) -> SurpriseModel:
    return SurpriseModel(str(st_path), device="cpu")


def filled(model: SurpriseModel | None = None, **options: object) -> SurpriseIndex:
    metadata = [{"n": i, "name": "Ä"} if i % 2 else None for i in range(300)]
    return SurpriseIndex(model, weight=1, **options).add(  # type: ignore[arg-type]
        clouds(300, 32), ids=[f"d{i}" for i in range(300)], metadata=metadata, texts=[f"text {i}" for i in range(300)]
    )


def broken(*_: object, **__: object) -> None:
    raise OSError("no space left on device")


@pytest.mark.parametrize("options", [{}, {"ensemble": clouds(50, 32)}, {"direction": "questions"}])
def test_saved_and_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict) -> None:
    monkeypatch.setattr("surprise_hf.engines.BLOCK_BYTES", 4 * 32 * 128)
    index = filled(**options)
    folder = tmp_path / "a folder"
    index.save_pretrained(folder)
    assert {path.suffix for path in folder.iterdir()} == {".safetensors", ".parquet", ".json", ".md"}
    again = SurpriseIndex.from_pretrained(folder)
    query = clouds(3, 32, seed=1)
    assert again.search(query) == index.search(query)
    assert (again.ids, again.texts, again.metadata) == (index.ids, index.texts, index.metadata)
    assert again.version == index.version
    again.add(clouds(9, 32, seed=8), ids=[f"new {i}" for i in range(9)]).remove("d3")
    index.add(clouds(9, 32, seed=8), ids=[f"new {i}" for i in range(9)]).remove("d3")
    assert again.search(query) == index.search(query)
    again.remove(again.ids[5:])
    again.save_pretrained(folder)  # over the larger one
    assert SurpriseIndex.from_pretrained(folder).search(query) == again.search(query)


def test_running_ids_go_on_after_loading(tmp_path: Path) -> None:
    index = SurpriseIndex(weight=1).add(clouds(5)).remove(4)
    index.save_pretrained(tmp_path)
    assert SurpriseIndex.from_pretrained(tmp_path).add(clouds(1)).ids == [0, 1, 2, 3, 5]


def test_running_ids_are_above_those_of_an_older_file(tmp_path: Path) -> None:
    """Ids that were given did not count before."""
    SurpriseIndex(weight=1).add(clouds(2), ids=[4, 0]).save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "next_id": 0}))
    assert SurpriseIndex.from_pretrained(tmp_path).add(clouds(1)).ids == [4, 0, 5]


def test_an_empty_index_is_saved(tmp_path: Path) -> None:
    SurpriseIndex().save_pretrained(tmp_path)
    assert len(SurpriseIndex.from_pretrained(tmp_path).add(clouds(3))) == 3


def test_opened_with_another_engine(tmp_path: Path) -> None:
    index = SurpriseIndex(weight=1, engine="faiss-ivf", engine_options={"probes": 3}).add(clouds(300))
    index.save_pretrained(tmp_path)
    assert SurpriseIndex.from_pretrained(tmp_path).engine_options == {"probes": 3}
    again = SurpriseIndex.from_pretrained(tmp_path, engine="exact")
    assert again.search(clouds(2)) == SurpriseIndex(weight=1).add(clouds(300)).search(clouds(2))


@pytest.mark.parametrize("saved", ["documents", "questions"])
@pytest.mark.parametrize("ensemble", [None, clouds(50)])
def test_what_the_scores_stand_on_is_not_for_opening_to_change(tmp_path: Path, saved: str, ensemble: object) -> None:
    index = SurpriseIndex(None, ensemble, direction=saved, weight=1).add(clouds(300))
    index.save_pretrained(tmp_path)
    for override in ({"direction": "questions"}, {"direction": "documents"}, {"ensemble": clouds(9)}, {"colour": 1}):
        with pytest.raises(TypeError, match=f"not .'{next(iter(override))}'.: make it anew"):
            SurpriseIndex.from_pretrained(tmp_path, **override)
    kept = SurpriseIndex.from_pretrained(
        tmp_path, engine="faiss-flat", engine_options={}, weight=np.float64(1), n_cross=7, device="cpu"
    )
    assert (kept.engine, kept.n_cross, kept.direction) == ("faiss-flat", 7, saved)
    assert kept.search(clouds(3, seed=1)) == index.search(clouds(3, seed=1))


class Colour(str, Enum):
    RED = "red"


class Size(IntEnum):
    BIG = 3


def test_what_is_added_comes_back_as_it_was_kept(tmp_path: Path) -> None:
    given = [
        {"n": np.int64(3), "share": np.float32(0.5), "ok": np.bool_(True), "name": np.str_("Ä")},
        [(1, 2.5), [None, {"deep": (np.uint8(7),)}]],
        {Colour.RED: Colour.RED, "size": Size.BIG, "large": 2**70},
        math.inf,
    ]
    kept = [
        {"n": 3, "share": 0.5, "ok": True, "name": "Ä"},
        [[1, 2.5], [None, {"deep": [7]}]],
        {"red": "red", "size": 3, "large": 2**70},
        math.inf,
    ]
    ids = [-(2**63), 2**63 - 1, 0, 1]
    index = SurpriseIndex().add(clouds(4), ids=ids, metadata=given, texts=["Ä", np.str_("b"), math.nan, None])
    index.save_pretrained(tmp_path)
    for one in (index, SurpriseIndex.from_pretrained(tmp_path)):
        assert (one.ids, one.texts) == (ids, ["Ä", "b", None, None])
        assert repr(one.metadata) == repr(kept)  # types, too


BAD: list[tuple[dict, type[Exception], str]] = [
    ({"ids": [2, 2**63]}, ValueError, r"ids\[1\] is 9223372036854775808.*64 bits: pass str\(id\)"),
    ({"ids": [-(2**63) - 1, 2]}, ValueError, r"ids\[0\] is -9223372036854775809"),
    ({"ids": np.array([2, 2**64 - 1], dtype=np.uint64)}, ValueError, r"ids\[1\] is 18446744073709551615"),
    ({"ids": ["a", "b\udc80"]}, ValueError, r"ids\[1\] .*surrogate"),
    ({"metadata": [{}, {"when": date(2020, 1, 1)}]}, TypeError, r"metadata\[1\]\['when'\] is a date.*a string for it"),
    ({"metadata": [{}, {"a": [1, {"b": {1, 2}}]}]}, TypeError, r"metadata\[1\]\['a'\]\[1\]\['b'\] is a set"),
    ({"metadata": [{}, b"x"]}, TypeError, r"metadata\[1\] is a bytes"),
    ({"metadata": [{}, {"v": np.ones(2)}]}, TypeError, r"metadata\[1\]\['v'\] is a ndarray"),
    ({"metadata": [{}, {"v": np.datetime64("2020", "ns")}]}, TypeError, r"metadata\[1\]\['v'\] is a datetime64"),
    ({"metadata": [{}, {"v": 1j}]}, TypeError, r"metadata\[1\]\['v'\] is a complex"),
    ({"metadata": [{}, {"v": pd.NA}]}, TypeError, r"metadata\[1\]\['v'\] is a NAType"),
    ({"metadata": [{}, {1: "x"}]}, TypeError, r"metadata\[1\] has the key 1, .*pass '1'"),
    ({"metadata": [{}, [{None: "x"}]]}, TypeError, r"metadata\[1\]\[0\] has the key None"),
    ({"metadata": [{}, {"v": "\ud83d"}]}, ValueError, r"metadata\[1\]\['v'\] .*surrogate"),
    ({"metadata": [{}, {"\ud83d": 1}]}, ValueError, r"metadata\[1\] .*surrogate"),
    ({"texts": ["a", 3]}, ValueError, "texts: document 1 must be a string, got int"),
    ({"texts": ["a", "\ud83d"]}, ValueError, r"texts\[1\] .*surrogate"),
]


@pytest.mark.parametrize(("options", "error", "message"), BAD)
def test_what_no_file_can_hold_is_refused_before_it_is_embedded(
    tmp_path: Path, model: SurpriseModel, monkeypatch: pytest.MonkeyPatch, options: dict, error: type, message: str
) -> None:
    index = SurpriseIndex(model, weight=1)
    with monkeypatch.context() as patched:
        patched.setattr(SurpriseModel, "embed_documents", broken)
        for documents in [clouds(2, model.dim)] + [TEXTS[:2]] * ("texts" not in options):
            with pytest.raises(error, match=message):
                index.add(documents, **options)
    assert (len(index), index.ids, index.texts, index.metadata, index.version, index.dim) == (0, [], [], [], 0, None)
    index.add(TEXTS).save_pretrained(tmp_path)
    assert SurpriseIndex.from_pretrained(tmp_path).ids == index.ids == [0, 1, 2, 3, 4]


def test_running_ids_end_where_files_can_hold_no_more(
    tmp_path: Path, model: SurpriseModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    last = 2**63 - 1
    index = SurpriseIndex(model, weight=1).add(TEXTS[:1], ids=[last - 1])
    for documents in (TEXTS[:2], clouds(2, model.dim)):
        with pytest.raises(ValueError, match=f"2 running ids above {last - 1} don't fit 64 bits: pass ids"):
            index.add(documents)
    assert index.add(TEXTS[1:2]).ids == [last - 1, last]
    monkeypatch.setattr(SurpriseModel, "embed_documents", broken)
    with pytest.raises(ValueError, match=f"running ids above {last} don't fit"):
        index.add(TEXTS[2:])
    index.add(clouds(1, model.dim), ids=[5]).save_pretrained(tmp_path)
    again = SurpriseIndex.from_pretrained(tmp_path)
    assert again.ids == [last - 1, last, 5]
    with pytest.raises(ValueError, match="running ids above"):
        again.add(clouds(1, model.dim))


def test_metadata_changed_to_what_json_cannot_hold(tmp_path: Path) -> None:
    index = SurpriseIndex().add(clouds(1), metadata=[{}])
    index.metadata[0]["a"] = {1, 2}
    with pytest.raises(TypeError):
        index.save_pretrained(tmp_path / "x")
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("fails", ["metadata", "options", "vectors", "ensemble", "documents", "card"])
def test_an_index_that_cannot_be_written_leaves_the_one_that_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    filled().save_pretrained(tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    index = SurpriseIndex(weight=1).add(clouds(20, 32))
    if fails == "metadata":
        index.metadata[7] = {1, 2}
    if fails == "options":
        index.engine_options["lists"] = {1, 2}
    place = {
        "vectors": "safetensors.torch.save_file",
        "ensemble": "surprise_hf.ensemble.Ensemble.save",
        "documents": "pyarrow.parquet.write_table",
        "card": "surprise_hf.index_files.index_card",
    }
    if fails in place:
        monkeypatch.setattr(place[fails], broken)
    with pytest.raises((TypeError, OSError)):
        index.save_pretrained(tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize("number", [1, np.float32(1), np.float64(1), np.int64(1)])
def test_options_of_another_library_are_saved(tmp_path: Path, number: object) -> None:
    options = {"weight": number, "n_cross": number, "engine": "faiss-ivf", "engine_options": {"probes": np.int64(3)}}
    SurpriseIndex(**options).add(clouds(9)).save_pretrained(tmp_path)  # type: ignore[arg-type]
    again = SurpriseIndex.from_pretrained(tmp_path)
    assert (again.weight, again.n_cross, again.engine_options) == (1.0, 1.0, {"probes": 3})
    assert again.search(clouds(1)[0], k=3) == SurpriseIndex(weight=1).add(clouds(9)).search(clouds(1)[0], k=3)


def test_fewer_blocks_leave_no_old_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("surprise_hf.engines.BLOCK_BYTES", 4 * 16 * 5)
    (tmp_path / "notes.txt").write_text("mine")
    files = {"config.json", "README.md", "documents.parquet", "ensemble.safetensors", "notes.txt"}
    for rows, shards in ((12, 3), (7, 2)):
        SurpriseIndex(weight=1).add(clouds(rows)).save_pretrained(tmp_path)
        expected = files | {f"vectors-{shard:05d}.safetensors" for shard in range(shards)}
        assert {path.name for path in tmp_path.iterdir()} == expected
    SurpriseIndex(direction="questions").save_pretrained(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == files - {"ensemble.safetensors"}


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("text", ['{"architectures": ["BertModel"]}', '{"format": "other"}', "[]", "# mine", ""])
def test_what_is_no_index_is_not_replaced_by_one(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    (tmp_path / "README.md").write_text("mine")
    before = contents(tmp_path)
    with pytest.raises(ValueError, match=r"holds something else than an index.*Choose another folder"):
        filled().save_pretrained(tmp_path)
    assert contents(tmp_path) == before


def test_a_model_and_an_index_do_not_replace_each_other(tmp_path: Path, st_path: Path) -> None:
    model = SurpriseModel(str(st_path), device="cpu")
    model.save_pretrained(str(tmp_path / "model"))
    filled().save_pretrained(tmp_path / "index")
    before = contents(tmp_path)
    with pytest.raises(ValueError, match="holds something else"):
        filled().save_pretrained(tmp_path / "model")
    with pytest.raises(ValueError, match="holds a SurpriseIndex: choose another folder"):
        model.save_pretrained(str(tmp_path / "index"))
    assert contents(tmp_path) == before


@pytest.mark.parametrize("text", ["mine", "---\ntags: [surprise-index]\n---\nfound by an index\n"])
def test_a_card_that_someone_wrote_stays(tmp_path: Path, text: str) -> None:
    (tmp_path / "README.md").write_text(text)
    for rows in (9, 12):
        SurpriseIndex(weight=1).add(clouds(rows)).save_pretrained(tmp_path)
        assert (tmp_path / "README.md").read_text() == text
        assert len(SurpriseIndex.from_pretrained(tmp_path)) == rows
    (tmp_path / "README.md").unlink()
    for rows in (9, 12):  # and one of an index is replaced
        SurpriseIndex(weight=1).add(clouds(rows)).save_pretrained(tmp_path)
        assert f"{rows} documents" in (tmp_path / "README.md").read_text()


def test_damaged_files_are_named(tmp_path: Path) -> None:
    whole, fewer = tmp_path / "whole", tmp_path / "fewer"
    filled().save_pretrained(whole)
    SurpriseIndex().add(clouds(7, 5)).save_pretrained(fewer)

    def damage(name: str, data: bytes | None) -> Path:
        folder = tmp_path / "damaged"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(whole, folder)
        (folder / name).unlink() if data is None else (folder / name).write_bytes(data)
        return folder

    with pytest.raises(FileNotFoundError, match=r"no config\.json"):
        SurpriseIndex.from_pretrained(damage("config.json", None))
    config = json.loads((whole / "config.json").read_text())
    newer = json.dumps({**config, "version": 99}).encode()
    without = [
        (
            "config.json",
            json.dumps({key: config[key] for key in config if key != name}).encode(),
            f"'{name}' is missing",
        )
        for name in config
        if name not in ("ensemble", "encoder")  # which are looked up, and told
    ]
    wrong = [
        ("config.json", json.dumps({**config, name: value}).encode(), f"{name} must be a whole number.* not {value!r}")
        for name in ("dim", "shards", "documents", "next_id", "index_version")
        for value in ("x", -1, 1.5, True)
    ]
    for name, data, message in (
        *without,
        *wrong,
        ("config.json", json.dumps({**config, "dim": 0}).encode(), "dim must be a whole number above 0, not 0"),
        ("config.json", b"{}", "config.json.*can.t be used"),
        ("config.json", b"\x80\x04K\x01.", "config.json.*can.t be used"),
        ("config.json", newer, "newer"),
        ("documents.parquet", None, "documents.parquet"),
        ("documents.parquet", pickle.dumps([1]), "documents.parquet"),
        ("vectors-00000.safetensors", None, "vectors-00000"),
        ("vectors-00000.safetensors", pickle.dumps([1]), "vectors-00000"),
        ("vectors-00000.safetensors", save({"vectors": clouds(300, 5)}), r"vectors-00000.* not \(rows, 32\)"),
        ("vectors-00000.safetensors", save({"vectors": clouds(7, 32)}), "differ in their number of documents"),
        ("documents.parquet", (fewer / "documents.parquet").read_bytes(), "differ in their number of documents"),
        ("ensemble.safetensors", (fewer / "ensemble.safetensors").read_bytes(), "ensemble of dimension 5"),
        ("ensemble.safetensors", b"", "ensemble.safetensors"),
        ("ensemble.safetensors", None, "ensemble.safetensors"),
    ):
        with pytest.raises(ValueError, match=message):
            SurpriseIndex.from_pretrained(damage(name, data))


def test_another_encoder_is_refused(
    tmp_path: Path, model: SurpriseModel, bert_path: Path, other_bert_path: Path
) -> None:
    SurpriseIndex(model, weight=1).add(TEXTS).save_pretrained(tmp_path)
    assert SurpriseIndex.from_pretrained(tmp_path, bert_path).search("dog", k=1)[0].text is not None
    with pytest.raises(ValueError, match="another encoder"):
        SurpriseIndex.from_pretrained(tmp_path, other_bert_path)
    index = SurpriseIndex(model, weight=1).add(clouds(1, model.dim)).add(TEXTS)  # the first has no text to ask for
    index.save_pretrained(tmp_path)
    assert len(SurpriseIndex.from_pretrained(tmp_path, model)) == 6


def test_the_encoder_is_checked_wherever_the_vectors_live(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: SurpriseModel, other_bert_path: Path
) -> None:
    """A row of another device: nothing can be done with it but to bring it to the CPU."""
    SurpriseIndex(model, weight=1).add(TEXTS).save_pretrained(tmp_path)
    take = Rows.take
    monkeypatch.setattr(Rows, "take", lambda rows, index: SimpleNamespace(cpu=lambda: take(rows, index)))
    assert len(SurpriseIndex.from_pretrained(tmp_path, model)) == len(TEXTS)
    with pytest.raises(ValueError, match="another encoder"):
        SurpriseIndex.from_pretrained(tmp_path, other_bert_path)


AUTHOR = """
from surprise_hf import SurpriseIndex
index = SurpriseIndex(where, weight=1).add(DOCUMENTS, ids=[f"d{i}" for i in range(16)], metadata=list(range(16)))
index.push_to_hub("me/index", private=True)
index.push_to_hub("me/index", revision="v2")
index.remove(["d3"]).push_to_hub("me/index", commit_message="one less")
print(json.dumps([[hit.id, hit.score, hit.text, hit.metadata] for hit in index.search("dog cat", k=None)]))
import huggingface_hub
index.push_to_hub("edited")
mine = {"path_or_fileobj": b"# mine", "path_in_repo": "README.md", "repo_type": "dataset"}
huggingface_hub.HfApi().upload_file(repo_id="me/edited", **mine)
index.remove(["d4"]).push_to_hub("edited")
"""
READER = """
from surprise_hf import SurpriseIndex
assert len(SurpriseIndex.from_pretrained("me/index", revision="v2")) == 16
index = SurpriseIndex.from_pretrained("me/index", where)
print(json.dumps([[hit.id, hit.score, hit.text, hit.metadata] for hit in index.search("dog cat", k=None)]))
"""


def test_through_a_hub(st_path: Path, tmp_path: Path) -> None:
    with Hub() as hub:
        pushed = client(AUTHOR, hub.environment(tmp_path / "author"), st_path)
        found = client(READER, hub.environment(tmp_path / "reader"), st_path)
        repo = hub.repos["dataset", "me/index"]
        files, edited = repo.files(), hub.repos["dataset", "me/edited"].files()
    assert repo.private
    assert found == pushed
    assert len(found) == 15
    names = {"README.md", "config.json", "documents.parquet", "ensemble.safetensors", "vectors-00000.safetensors"}
    assert names <= set(files)
    assert b'from_pretrained("me/index"' in files["README.md"].data
    assert b"15 documents" in files["README.md"].data
    assert edited["README.md"].data == b"# mine"
    assert json.loads(edited["config.json"].data)["documents"] == 14
