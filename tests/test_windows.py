"""Long texts in windows."""

from __future__ import annotations

import numpy as np
import pytest
from transformers import AutoTokenizer

from surprise_hf import windows
from tests.model_data import load, plain


def test_windows_are_the_token_weighted_mean_of_their_pieces(st_path):
    model = load(st_path)
    model.long_texts = "window"
    words = " ".join(["dog", "cat", "horse", "bird"] * 25)  # 100 tokens; a window holds 62
    short = "music and guitar"
    emb, cut = model.embed([words, short, ""])
    assert cut == 0
    encode = plain(st_path).encode
    parts = encode([" ".join(words.split()[:62]), " ".join(words.split()[62:])])
    np.testing.assert_allclose(emb[0].numpy(), (62 * parts[0] + 38 * parts[1]) / 100, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(emb[1:].numpy(), encode([short, ""]), rtol=1e-5, atol=1e-6)


def test_windows_end_between_words(st_path):
    tokenizer = plain(st_path).tokenizer
    text = "dog " * 60 + "zzzzz cat"  # zzzzz is five tokens: it does not fit behind sixty
    pieces = windows.split(tokenizer, text, 64)
    assert [piece for piece, _ in pieces] == [("dog " * 60).strip(), "zzzzz cat"]
    assert [tokens for _, tokens in pieces] == [60, 6]
    assert "".join(piece for piece, _ in windows.split(tokenizer, "z" * 90, 64)) == "z" * 90  # one word of 90
    assert windows.split(tokenizer, "", 64) == [("", 0)]
    with pytest.raises(ValueError, match="fills all 64 tokens"):
        windows.split(tokenizer, "dog", 64, prompt="cat " * 62)
    assert windows.split(tokenizer, "dog cat", 64, prompt="cat " * 61) == [("dog", 1), ("cat", 1)]  # room for one


@pytest.mark.parametrize("limit", [6, 8, 10, 13, 40])
def test_a_piece_alone_is_no_longer_than_the_window(minilm_path, limit):
    """A word that is cut has other tokens in its parts than as a whole."""
    tokenizer = AutoTokenizer.from_pretrained(minilm_path)
    words = "floccinaucinihilipilification dichlorodiphenyltrichloroethane and electroencephalographically"
    for text in (words, " ".join([words] * 3), words.replace(" ", "")):
        pieces = [piece for piece, _ in windows.split(tokenizer, text, limit)]
        assert "".join(pieces).replace(" ", "") == text.replace(" ", "")
        assert max(len(tokenizer(piece)["input_ids"]) for piece in pieces) <= limit


def test_windows_count_the_prompt_and_are_saved(st_path, tmp_path):
    model = load(st_path, prompts={"query": "query: "}, default_prompt_name="query")
    model.long_texts = "window"
    model.fit_ensemble(["dog " * 100, "cat", "bird music"])
    assert model.embed(["dog " * 100])[1] == 0
    model.save_pretrained(str(tmp_path / "m"))
    assert load(tmp_path / "m").long_texts == "window"
    with pytest.raises(ValueError, match="long_texts must be one of"):
        model.long_texts = "widnow"
    with pytest.raises(ValueError, match="fitted with long_texts='window'"):
        model.long_texts = "truncate"
    model.set_ensemble(None)
    model.long_texts = "truncate"
    assert model.embed(["dog " * 100])[1] == 1
