"""The pipeline of a repository's own code: the scores of the package to 1e-5, on every kind of encoder and option."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
import transformers
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense, Normalize, Transformer
from sentence_transformers.sentence_transformer.modules import Pooling, StaticEmbedding
from transformers import AutoTokenizer, LlamaConfig, LlamaModel, T5Config, T5EncoderModel
from transformers.pipelines.pt_utils import KeyDataset

from surprise_hf import Ensemble, SurpriseModel, SurpriseZeroShotPipeline, hub, remote, surprise_remote
from surprise_hf.fitted import FittedLabels
from tests.hub_server import Hub
from tests.test_hub import client

DOCUMENTS = [f"{a} {b} {c}" for a in ("sport", "bank", "rain", "dog") for b in ("red", "one") for c in ("vote", "gene")]
LABELS, OTHERS = ["sport", "money", "animal"], ["music", "weather"]


def plain(bert: Path, folder: Path) -> None:
    shutil.copytree(bert, folder)  # no modules.json: mean pooling


def projected(bert: Path, folder: Path) -> None:
    torch.manual_seed(0)
    parts = [Transformer(str(bert)), Pooling(32), Dense(32, 12, activation_function=torch.nn.Tanh()), Normalize()]
    SentenceTransformer(modules=parts, device="cpu").save_pretrained(str(folder))


def pooled(mode: str) -> Callable[[Path, Path], None]:
    def make(bert: Path, folder: Path) -> None:
        SentenceTransformer(modules=[Transformer(str(bert)), Pooling(32, mode)], device="cpu").save(str(folder))

    return make


def prompted(bert: Path, folder: Path) -> None:
    prompts = {"query": "query: ", "passage": "passage: "}
    SentenceTransformer(str(bert), device="cpu", prompts=prompts, default_prompt_name="query").save(str(folder))


def unprompted(mode: str, side: str = "right") -> Callable[[Path, Path], None]:
    """With a prompt that the token vectors know and the pooling leaves out."""

    def make(bert: Path, folder: Path) -> None:
        tokenizer = AutoTokenizer.from_pretrained(bert, padding_side=side)
        base = folder.with_name("base")
        shutil.copytree(bert, base)
        tokenizer.save_pretrained(base)
        parts = [Transformer(str(base)), Pooling(32, mode, include_prompt=False)]
        prompts = {"task": "Label this red vote: "}
        encoder = SentenceTransformer(modules=parts, device="cpu", prompts=prompts, default_prompt_name="task")
        texts = ["dog cat bird", "a red vote of the dog"]
        kept = encoder.encode(texts)
        encoder.set_pooling_include_prompt(True)
        assert np.abs(encoder.encode(texts) - kept).max() > (1e-3 if mode != "lasttoken" else -1)
        encoder.set_pooling_include_prompt(False)
        encoder.save(str(folder))

    return make


def truncated(bert: Path, folder: Path) -> None:
    SentenceTransformer(str(bert), device="cpu", truncate_dim=16).save(str(folder))


def left_padded(bert: Path, folder: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(bert, padding_side="left")
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = LlamaConfig(vocab_size=len(tokenizer), max_position_embeddings=64, pad_token_id=0, **sizes)
    base = folder.with_name("llama")
    LlamaModel(config).save_pretrained(base)
    tokenizer.save_pretrained(base)
    parts = [Transformer(str(base)), Pooling(32, "lasttoken")]
    SentenceTransformer(modules=parts, device="cpu").save(str(folder))


def t5(bert: Path, folder: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(bert, model_max_length=int(1e30))  # as where it knows of no limit
    torch.manual_seed(0)
    config = T5Config(vocab_size=len(tokenizer), d_model=32, d_kv=16, d_ff=48, num_layers=2, num_heads=2)
    base = folder.with_name("t5")
    T5EncoderModel(config).save_pretrained(base)
    tokenizer.save_pretrained(base)
    dense = Dense(32, 24, bias=False, activation_function=torch.nn.Identity())
    parts = [Transformer(str(base)), Pooling(32), dense, Normalize()]
    SentenceTransformer(modules=parts, device="cpu").save(str(folder))


ENCODERS = {
    "plain": plain,
    "projected": projected,
    "cls": pooled("cls"),
    "max": pooled("max"),
    "prompted": prompted,
    **{f"prompt left out of {mode}": unprompted(mode) for mode in ("mean", "cls", "max", "lasttoken")},
    "prompt left out, left-padded": unprompted("mean", "left"),
    "truncated": truncated,
    "left-padded": left_padded,
    "t5": t5,
}
OPTIONS = [
    {},
    {"weight": 0.0},
    {"weight": 1.0},
    {"weight": 0.7, "estimator": "empirical"},
    {"weight": 1.0, "estimator": "quantile"},
    {"weight": 1.0, "refine": 3},
    {"n_cross": 20.0},
    {"weight": 0.5, "estimator": "gaussian", "refine": 0},
]


def both(model: SurpriseModel, folder: Path) -> tuple[transformers.Pipeline, transformers.Pipeline]:
    """The pipeline of the package, and that of the code in a folder."""
    remote.save(model, folder)
    there = transformers.pipeline("surprise-zero-shot", model=str(folder), trust_remote_code=True, device="cpu")
    assert type(there).__name__ == "SurpriseRemotePipeline"
    return SurpriseZeroShotPipeline(model), there


def same(one: list[dict], other: list[dict]) -> None:
    for ours, theirs in zip(one, other, strict=True):
        assert ours["sequence"] == theirs["sequence"]
        assert ours["labels"] == theirs["labels"]
        assert ours["scores"] == pytest.approx(theirs["scores"], abs=1e-5)


@pytest.mark.filterwarnings("ignore:the ensemble|1 of 18 documents")
@pytest.mark.parametrize("kind", ENCODERS)
def test_every_kind_of_encoder(kind, bert_path, tmp_path):
    ENCODERS[kind](bert_path, tmp_path / "encoder")
    model = SurpriseModel(str(tmp_path / "encoder"), device="cpu").fit_ensemble(DOCUMENTS).set_labels(LABELS)
    here, there = both(model, tmp_path / "remote")
    assert type(there.model) is type(model.transformers_model)
    torch.testing.assert_close(there.embed(DOCUMENTS), model.embed(DOCUMENTS)[0], atol=1e-5, rtol=1e-5)
    texts = [*DOCUMENTS, "dog " * 200, "", "Red DOG"]
    same(here(texts), there(texts))
    same(here(texts, OTHERS), there(texts, OTHERS))


@pytest.mark.filterwarnings("ignore:the ensemble")
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_every_option_that_labels_are_stored_with(options, st_path, tmp_path):
    model = SurpriseModel(str(st_path), device="cpu").fit_ensemble(DOCUMENTS).set_labels(LABELS, **options)
    here, there = both(model, tmp_path)
    same(here(DOCUMENTS), there(DOCUMENTS))
    same([here("dog cat")], [there("dog cat")])
    if options.get("estimator", "gaussian") == "gaussian" and not options.get("refine"):
        same(here(DOCUMENTS, OTHERS), there(DOCUMENTS, OTHERS))


SHARES = (None, 0.0, 0.0004, 0.5, 0.9995, 1.0)  # those next to 0 and 1 count as them


def rows(n: int, seed: int) -> torch.Tensor:
    return torch.randn(n, 5, generator=torch.Generator().manual_seed(seed)) + 0.5


@pytest.mark.parametrize("weight", SHARES)
@pytest.mark.parametrize("kind", ["even", "odd", "an even pair", "one document", "copies", "at one end", "stored"])
def test_scores_are_those_of_the_package(kind, weight, tmp_path):
    """Its own statistics of the documents, or of a stored ensemble, against `FittedLabels`."""
    queries, keys = rows(3, 0), rows(8, 1)
    scales = torch.tensor([[1.0], [3.0], [0.7], [9.1]])  # of one direction, but for rounding
    documents = {
        "odd": rows(7, 2),
        "an even pair": rows(2, 2),
        "one document": rows(1, 2),
        "copies": rows(1, 2) * scales,
    }
    documents["at one end"] = queries[:1] + 1e-4 * rows(4, 3)
    context = documents.get(kind, rows(8, 2))
    if kind == "at one end":
        queries = queries[:1]
    if kind == "stored":
        context = Ensemble.from_embeddings(context)
        context.save(tmp_path / "ensemble.safetensors")
        found = surprise_remote.fit(queries, load_file(tmp_path / "ensemble.safetensors"), keys, weight)
    else:
        found = surprise_remote.fit(queries, None, context, weight)
    expected = FittedLabels.fit(queries, context, weight=weight)
    assert found["weight"] == expected.weight
    for part in (keys, context.reservoir if kind == "stored" else context, 1e-3 * queries):
        same_ranks(found, expected, part)


@pytest.mark.parametrize("weight", SHARES)
@pytest.mark.parametrize("estimator", ["quantile", "empirical"])
def test_ranks_of_stored_labels_are_those_of_the_package(estimator, weight):
    """Copies of a document tie in the empirical estimate, and so do those beyond all others: z decides then."""
    keys = rows(8, 1)
    fitted = FittedLabels.fit(rows(12, 0), torch.cat((keys[:4], rows(6, 2))), weight=weight, estimator=estimator)
    same_ranks(fitted.state(), fitted, torch.cat((keys, 5 * fitted.queries, -fitted.queries)))


def same_ranks(state: dict[str, torch.Tensor], fitted: FittedLabels, keys: torch.Tensor) -> None:
    scores, order = fitted.rank(keys)
    for (there, places), here, at in zip(
        surprise_remote.rank(surprise_remote.unit(keys), state), scores, order, strict=True
    ):
        assert places == at.tolist()
        torch.testing.assert_close(torch.tensor(there)[at], here, atol=1e-5, rtol=0, check_dtype=False)


@pytest.fixture(scope="module")
def pair(st_path, tmp_path_factory) -> tuple[transformers.Pipeline, transformers.Pipeline]:
    model = SurpriseModel(str(st_path), device="cpu").fit_ensemble(DOCUMENTS).set_labels(LABELS, weight=1.0)
    return both(model, tmp_path_factory.mktemp("remote"))


TAKEN = {
    "labels by number": {"candidate_labels": {"music": 0, "weather": 1}},
    "described, with blanks": {"candidate_labels": {" music ": "songs and guitars ", "weather": "rain"}},
    "a set": {"candidate_labels": {"weather", "music"}},
    "numbers": {"candidate_labels": [1, 2]},
    "commas": {"candidate_labels": "music, weather,"},
    "a tuple of templates": {"candidate_labels": OTHERS, "hypothesis_template": ("about {}", "of {}")},
    "its own again": {"candidate_labels": LABELS, "hypothesis_template": "this matter is {}"},
    "missing documents": {"inputs": ["dog", None, float("nan"), " "]},
    "invisible documents": {"inputs": ["dog", "\u200b", "\ufeff \u2060", "\u200bcat", "\u00ad"]},
    "a tuple of documents": {"inputs": ("dog", "cat")},
    "a dataset's column by its key": {"inputs": KeyDataset([{"text": "dog"}, {"text": ""}, {"text": "cat"}], "text")},
    "chunks of arrow": {"inputs": pa.chunked_array([["dog", None], ["cat"]])},
    "no documents": {"inputs": []},
}
REFUSED = {
    "top_k=0": {"top_k": 0},
    "top_k=-1": {"top_k": -1},
    "top_k=True": {"top_k": True},
    "batch_size=0": {"batch_size": 0},
    "weight": {"candidate_labels": OTHERS, "surprise_weight": 1.5},
    "weight nan": {"candidate_labels": OTHERS, "surprise_weight": float("nan")},
    "blank label": {"candidate_labels": ["music", " "]},
    "label True": {"candidate_labels": ["music", True]},
    "labels twice": {"candidate_labels": ["music", "music "]},
    "no labels": {"candidate_labels": []},
    "no templates": {"candidate_labels": OTHERS, "hypothesis_template": []},
    "braces": {"candidate_labels": OTHERS, "hypothesis_template": "{x} {}"},
    "two slots": {"candidate_labels": OTHERS, "hypothesis_template": "{} {}"},
    "no document": {"inputs": None},
    "a dict": {"inputs": {"text": "dog"}},
    "numbers": {"inputs": ["dog", 3]},
}


@pytest.mark.parametrize("kind", TAKEN)
def test_it_takes_what_the_package_takes(kind, pair):
    call = {"inputs": DOCUMENTS, **TAKEN[kind]}
    here, there = (list(pipe(call["inputs"], **{k: v for k, v in call.items() if k != "inputs"})) for pipe in pair)
    same(here, there)


@pytest.mark.parametrize("kind", REFUSED)
def test_it_refuses_what_the_package_refuses(kind, pair):
    call = {"inputs": DOCUMENTS, **REFUSED[kind]}
    for pipe in pair:
        with pytest.raises(ValueError, match=r"must|no documents|not a sequence|is blank|both|empty"):
            pipe(call["inputs"], **{k: v for k, v in call.items() if k != "inputs"})


def test_labels_of_each_document_are_in_the_package_alone(pair):
    with pytest.raises(ValueError, match=r"got \['music'\]; that is in the package"):
        pair[1](["dog", "cat"], [["music"], ["weather"]])
    with pytest.raises(ValueError, match="n_cross must be a positive number, got 0"):
        pair[1]("dog", OTHERS, n_cross=0)


@pytest.mark.filterwarnings("ignore:the ensemble|one document")
@pytest.mark.parametrize("weight", [None, 0, 0.3, 1])
def test_labels_of_the_call(weight, st_path, tmp_path):
    here, there = both(SurpriseModel(str(st_path), device="cpu").fit_ensemble(DOCUMENTS), tmp_path)
    options = {} if weight is None else {"surprise_weight": weight}
    same(here(DOCUMENTS, OTHERS, **options), there(DOCUMENTS, OTHERS, **options))
    same(here(DOCUMENTS, OTHERS, n_cross=5, top_k=1), there(DOCUMENTS, OTHERS, n_cross=5, top_k=1))
    described = {"music": "songs and guitars", "weather": "rain and snow"}
    templates = ["this is {}", "about {}"]
    arguments = {"candidate_labels": described, "hypothesis_template": templates, **options}
    same(here(DOCUMENTS, **arguments), there(DOCUMENTS, **arguments))


@pytest.mark.filterwarnings("ignore:the ensemble|one document")
def test_stored_labels_without_an_ensemble(st_path, tmp_path):
    here, there = both(SurpriseModel(str(st_path), device="cpu").set_labels(LABELS), tmp_path)
    same(here(DOCUMENTS), there(DOCUMENTS))
    same([here("dog")], [there("dog")])
    same(here(DOCUMENTS, surprise_weight=1), there(DOCUMENTS, surprise_weight=1))


@pytest.mark.filterwarnings("ignore:the ensemble|one document")
@pytest.mark.parametrize("options", [{"weight": 1.0}, {"weight": 0.3}, {"n_cross": 5}], ids=str)
def test_options_stored_without_an_ensemble(options, st_path, tmp_path):
    here, there = both(SurpriseModel(str(st_path), device="cpu").set_labels(LABELS, **options), tmp_path)
    for labels in (None, LABELS, LABELS[::-1], OTHERS):
        same(here(DOCUMENTS, labels), there(DOCUMENTS, labels))
        same(here(DOCUMENTS, labels, surprise_weight=0.5), there(DOCUMENTS, labels, surprise_weight=0.5))


EXAMPLES = {"labels": [LABELS[i % 3] for i in range(12)], "candidate_labels": LABELS, "refine": 0}
ASKED = {
    "stored": None,
    "reversed": LABELS[::-1],
    "some": LABELS[1:],
    "others": OTHERS,
    "some of others": ["music", "animal"],
    "by their texts": {"a": "animal", "s": "sport"},
}


@pytest.mark.filterwarnings("ignore:the ensemble|some of these labels")
@pytest.mark.parametrize("templates", ["this is {}", ["this is {}", "{}!"]], ids=["one template", "two"])
@pytest.mark.parametrize("with_ensemble", [True, False])
def test_labels_from_examples(with_ensemble, templates, st_path, tmp_path):
    pipe = SurpriseZeroShotPipeline(SurpriseModel(str(st_path), device="cpu"))
    if with_ensemble:
        pipe.fit_ensemble(DOCUMENTS)
    pipe.fit_labels(DOCUMENTS[:12], hypothesis_template=templates, **EXAMPLES)
    here, there = both(pipe.model, tmp_path)
    for labels in ASKED.values():
        same(here(DOCUMENTS, labels), there(DOCUMENTS, labels))
        same(here(DOCUMENTS, labels, hypothesis_template="{}"), there(DOCUMENTS, labels, hypothesis_template="{}"))


DEFAULTS = {
    "labels": {"candidate_labels": OTHERS},
    "labels and template": {"candidate_labels": OTHERS, "hypothesis_template": "about {}"},
    "weight": {"surprise_weight": 0.5},
    "n_cross": {"n_cross": 20, "candidate_labels": OTHERS},
    "top_k": {"top_k": 1},
    "batch_size": {"batch_size": 3},
    "none": {"candidate_labels": None, "top_k": None},
}


@pytest.mark.filterwarnings("ignore:the ensemble")
@pytest.mark.parametrize("kind", DEFAULTS)
def test_defaults_of_the_pipeline_are_those_of_the_package(kind, st_path, tmp_path):
    model = SurpriseModel(str(st_path), device="cpu").fit_ensemble(DOCUMENTS).set_labels(LABELS)
    remote.save(model, tmp_path)
    here = SurpriseZeroShotPipeline(model, **DEFAULTS[kind])
    there = transformers.pipeline(
        "surprise-zero-shot", model=str(tmp_path), trust_remote_code=True, device="cpu", **DEFAULTS[kind]
    )
    same(here(DOCUMENTS), there(DOCUMENTS))
    call = {"candidate_labels": ["food", "rain", "dog"], "top_k": 2, "surprise_weight": 1}  # wins over them
    same(here(DOCUMENTS, **call), there(DOCUMENTS, **call))


def test_batches_are_as_large_as_the_pipeline_was_told(st_path, tmp_path, monkeypatch):
    remote.save(SurpriseModel(str(st_path), device="cpu").set_labels(LABELS, weight=1.0), tmp_path)
    there = transformers.pipeline(
        "surprise-zero-shot", model=str(tmp_path), trust_remote_code=True, device="cpu", batch_size=3
    )
    sizes = []
    embed = there.embed
    monkeypatch.setattr(there, "embed", lambda texts, size=32: sizes.append(size) or embed(texts, size))
    there(DOCUMENTS)
    there(DOCUMENTS, batch_size=5, num_workers=2)
    assert sizes[0::2] == [3, 5]


@pytest.mark.parametrize("unknown", [{"nonsense": 3}, {"threshold": 0.9}, {"estimator": "quantile"}], ids=str)
def test_unknown_defaults_are_refused(unknown, st_path, tmp_path):
    remote.save(SurpriseModel(str(st_path), device="cpu").set_labels(LABELS), tmp_path)
    with pytest.raises(TypeError, match=rf"unknown here: {next(iter(unknown))}; .*pip install surprise-hf"):
        transformers.pipeline(
            "surprise-zero-shot", model=str(tmp_path), trust_remote_code=True, device="cpu", **unknown
        )


def test_what_it_cannot_do_is_said(st_path, tmp_path):
    model = SurpriseModel(str(st_path), device="cpu").fit_ensemble(DOCUMENTS)
    _, there = both(model, tmp_path / "one")
    with pytest.raises(TypeError, match=r"unknown here: threshold.*pip install surprise-hf"):
        there("dog", LABELS, threshold=0.9)
    with pytest.raises(ValueError, match="no labels: pass candidate_labels"):
        there("dog")
    with pytest.raises(ValueError, match="document 1 must be a string, got int"):
        there(["dog", 3], LABELS)
    assert there(sequences=["dog"], candidate_labels=LABELS) == there(["dog"], LABELS)
    with pytest.raises(NotImplementedError, match="copy its repository"):
        there.save_pretrained(tmp_path / "copy")
    assert not (tmp_path / "copy").exists()
    _, there = both(model.set_labels(LABELS, weight=1.0, refine=2), tmp_path / "two")
    with pytest.raises(ValueError, match="can't be fitted with refine=2 here"):
        there("dog", OTHERS)


def test_what_is_not_saved_for_it(st_path, tmp_path):
    model = SurpriseModel(str(st_path), device="cpu")
    with pytest.raises(ValueError, match="a plain encoder needs no remote code"):
        remote.save(model, tmp_path)
    model.long_texts = "window"
    model.fit_ensemble(DOCUMENTS)
    with pytest.raises(ValueError, match="can't do long_texts='window'"):
        remote.save(model, tmp_path)
    model.set_ensemble(None)
    model.long_texts = "truncate"
    model.fit_ensemble([f"{one} {other}" for one in DOCUMENTS for other in DOCUMENTS])
    model.set_labels(LABELS, weight=1.0, estimator="tail")
    with pytest.raises(ValueError, match="can't do estimator='tail'"):
        remote.save(model, tmp_path)
    for options, message in (
        ({"refine": "auto"}, "can't fit labels with refine='auto'"),
        ({"refine": 2}, "can't fit labels with refine=2"),
        ({"estimator": "quantile"}, "can't fit labels with estimator='quantile'"),
        ({"estimator": "auto"}, "can't fit labels with estimator='auto'"),
    ):
        model.set_ensemble(None)
        model.set_labels(LABELS, **options)
        with pytest.raises(ValueError, match=message):
            remote.save(model, tmp_path)
        model.fit_ensemble(DOCUMENTS)
        remote.check(model)  # what is fitted needs no fit
    static = SentenceTransformer(modules=[StaticEmbedding(model.tokenizer, embedding_dim=8)], device="cpu")
    with pytest.raises(ValueError, match="needs an encoder of transformers"):
        remote.save(SurpriseModel.from_encoder(static).set_labels(LABELS), tmp_path)
    assert not list(tmp_path.iterdir())


PRIVATE = """
from surprise_hf import SurpriseModel
model = SurpriseModel(where, device="cpu").fit_ensemble(DOCUMENTS).set_labels(LABELS)
model.push_to_hub("me/secret", private=True, remote_code=True)
print(json.dumps(model.candidate_labels))
"""
BY_TOKEN = """
import sys
sys.modules["surprise_hf"] = None
import transformers
given = {"model": "me/secret", "revision": "remote-code", "trust_remote_code": True, "token": "hf_test"}
print(json.dumps({"kind": failure(lambda: print(scores(transformers.pipeline("surprise-zero-shot", **given))))}))
"""


def test_a_private_branch_says_how_a_token_reaches_it(st_path, tmp_path):
    """transformers gives what it loads the token of the call, and the pipeline's class none."""
    with Hub() as hub:
        client(PRIVATE, hub.environment(tmp_path / "author"), st_path)
        refused = client(BY_TOKEN, hub.environment(tmp_path / "stranger", token=None), "-")["kind"]
        told = client(BY_TOKEN, hub.environment(tmp_path / "friend"), "-")["kind"]
    assert "set HF_TOKEN, or `hf auth login`" in refused
    assert told == "no error"


@pytest.mark.parametrize("options", [{}, {"commit_message": "Mine"}, {"revision": "there", "private": True}], ids=str)
def test_pushing_takes_what_upload_takes(options, st_path, monkeypatch):
    asked = []
    monkeypatch.setattr(remote, "upload", lambda *_, **kwargs: asked.append(kwargs) or "address")
    model = SurpriseModel(str(st_path), device="cpu").set_labels(LABELS)
    assert remote.push(model, "me/model", **options) == "address"
    usual = {"revision": "remote-code", "commit_message": "Add code for use without surprise_hf"}
    usual["delete_patterns"] = ["surprise/*"]
    assert asked == [{**usual, **options}]


def test_nothing_is_pushed_where_the_second_branch_would_be_refused(st_path, monkeypatch):
    pushed = []
    monkeypatch.setattr(hub, "create", lambda name, **_: pushed.append("made") or name)
    monkeypatch.setattr(hub, "upload", lambda *_, **asked: pushed.append(asked["revision"]) or "address")
    monkeypatch.setattr(remote, "upload", lambda *_, **asked: pushed.append(asked["revision"]))
    monkeypatch.setattr("surprise_hf.hub.has_free_card", lambda *_, **__: True)
    model = SurpriseModel(str(st_path), device="cpu").set_labels(LABELS, refine="auto")
    with pytest.raises(ValueError, match="remote code can't fit labels with refine='auto'"):
        model.push_to_hub("me/model", remote_code=True)
    with pytest.raises(ValueError, match="no pull request holds"):
        model.set_labels(LABELS, refine=0).push_to_hub("me/model", create_pr=True, remote_code=True)
    assert pushed == []
    assert model.push_to_hub("me/model") == "address"
    model.push_to_hub("me/model", remote_code=True)
    for revision in ("main", "v2"):
        model.push_to_hub("me/model", "token", revision=revision, remote_code=True)
    expected = [
        "made",
        None,
        "made",
        None,
        "remote-code",
        "made",
        "main",
        "remote-code",
        "made",
        "v2",
        "v2-remote-code",
    ]
    assert pushed == expected


def test_opened_with_code_and_saved_it_needs_none(st_path, tmp_path):
    remote.save(SurpriseModel(str(st_path), device="cpu").set_labels(LABELS), tmp_path / "code")
    SurpriseModel.from_pretrained(tmp_path / "code", device="cpu").save_pretrained(str(tmp_path / "plain"))
    assert "surprise-zero-shot" not in json.loads((tmp_path / "plain" / "config.json").read_text()).get(
        "custom_pipelines", {}
    )
    assert transformers.pipeline("surprise-zero-shot", model=str(tmp_path / "plain"), device="cpu")("dog")["labels"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 9}, "has format 9, newer than this file's 1"),
        ({"version": "x"}, "has format x, newer"),
        ({"format": "other"}, "there is no surprise/config.json that surprise_hf wrote"),
        (None, "there is no surprise/config.json that surprise_hf wrote"),
    ],
)
def test_files_of_others_are_refused(change, message, st_path, tmp_path):
    remote.save(SurpriseModel(str(st_path), device="cpu").set_labels(LABELS), tmp_path)
    file = tmp_path / "surprise" / "config.json"
    if change is None:
        file.unlink()
    else:
        file.write_text(json.dumps({**json.loads(file.read_text()), **change}))
    with pytest.raises(ValueError, match=message):
        transformers.pipeline("surprise-zero-shot", model=str(tmp_path), trust_remote_code=True, device="cpu")
