"""Long texts in windows: pieces that the encoder reads whole, and the mean of what it makes of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

LONG_TEXTS = ("truncate", "window")


def check_long_texts(value: str) -> str:
    """`value` if it names a way to treat long texts.

    Raises:
        ValueError: it does not.
    """
    if value not in LONG_TEXTS:
        raise ValueError(f"long_texts must be one of {LONG_TEXTS}, got {value!r}")
    return value


def split(tokenizer: Any, text: str, limit: int, prompt: str = "") -> list[tuple[str, int]]:
    """Consecutive pieces of a text, each at most `limit` tokens with the prompt and the special tokens.

    Args:
        tokenizer: a fast tokenizer (it says which characters a token stands for).
        text: any length.
        limit: tokens that the encoder reads.
        prompt: put in front of every piece by the encoder, and counted here.

    Returns:
        (piece, its tokens), the text itself where it fits. Pieces end between words unless one word fills a window.

    Raises:
        ValueError: the prompt leaves no room, or the tokenizer is not a fast one.
    """
    if not tokenizer.is_fast:
        raise ValueError("long_texts='window' needs a fast tokenizer, which knows the characters of each token")
    taken = tokenizer.num_special_tokens_to_add() + len(tokenizer(prompt, add_special_tokens=False)["input_ids"])
    room = limit - taken
    if room < 1:
        raise ValueError(f"the prompt {prompt!r} fills all {limit} tokens that this encoder reads")
    coded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
    offsets, words = coded["offset_mapping"], coded.word_ids()

    def tokens(piece: str) -> int:
        return len(tokenizer(piece, add_special_tokens=False, verbose=False)["input_ids"])

    pieces = []
    first, count = 0, len(offsets)
    while first < count:
        end = min(first + room, count)
        cut = end
        while cut < count and cut > first and words[cut] is not None and words[cut] == words[cut - 1]:
            cut -= 1  # not inside a word
        end = cut if cut > first else end
        # alone a piece may have more tokens than within the text: at a cut inside a word, or for want of a blank before
        while end - first > 1 and tokens(text[offsets[first][0] : offsets[end - 1][1]]) > room:
            end -= 1
        pieces.append((text[offsets[first][0] : offsets[end - 1][1]], end - first))
        first = end
    return pieces if len(pieces) > 1 else [(text, count)]


def mean_of_pieces(emb: Tensor, owner: Sequence[int], tokens: Sequence[int], count: int) -> Tensor:
    """Embeddings (pieces, d) -> (count, d): the mean over each text's pieces, weighted by their tokens."""
    index = torch.tensor(owner, device=emb.device)
    weight = torch.tensor(tokens, device=emb.device, dtype=emb.dtype).clamp(min=1)
    total = emb.new_zeros(count, emb.shape[1]).index_add_(0, index, emb * weight[:, None])
    return total / emb.new_zeros(count).index_add_(0, index, weight)[:, None]
