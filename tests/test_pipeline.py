"""The pipeline "surprise-zero-shot": right scores, options, ensembles, and state that is kept."""

from __future__ import annotations

import json
import logging
import math
import os
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
import transformers
from sentence_transformers import SentenceTransformer

import surprise_hf
from surprise_hf import Ensemble, SurpriseModel, SurpriseZeroShotPipeline, encoding

from .pipeline_data import DOCUMENTS, LABELS, TEMPLATE, assert_results, cosines, expected_scores, make

# --- scores ----------------------------------------------------------------------------------------------------------


def test_scores_are_the_definition(pipe, encode):
    results = pipe(DOCUMENTS, LABELS)
    assert_results(results, DOCUMENTS, LABELS, *expected_scores(encode, DOCUMENTS, LABELS))
    assert {type(score) for r in results for score in r["scores"]} == {float}


def test_a_real_encoder_labels_real_texts(minilm_path):
    texts = {
        "The striker scored twice and the team won the cup final.": "sports",
        "Parliament passed the bill after the opposition walked out.": "politics",
        "The central bank raised interest rates and shares fell.": "economy",
        "Astronomers found a planet orbiting a distant star.": "science",
        "The goalkeeper signed a new contract with the club.": "sports",
        "The prime minister called an early election.": "politics",
    }
    results = make(minilm_path, surprise_weight=1)(list(texts), "sports, politics, economy, science")
    assert [r["labels"][0] for r in results] == list(texts.values())


def test_weight_zero_orders_by_cosine_and_rescales_to_a_mean_of_one_half(pipe, encode):
    results = pipe(DOCUMENTS, LABELS, surprise_weight=0)
    psi = cosines(encode(DOCUMENTS), encode([TEMPLATE.replace("{}", x) for x in LABELS]))
    assert [r["labels"] for r in results] == [[LABELS[i] for i in row] for row in (-psi).argsort(axis=1)]
    assert np.mean([r["scores"] for r in results]) == pytest.approx(0.5, abs=1e-6)


def test_default_weight_is_the_crossover(st_path):
    pipe = make(st_path)
    w = math.tanh(len(DOCUMENTS) / 50)
    with pytest.warns(UserWarning, match="e = 30"):
        mixed = pipe(DOCUMENTS, LABELS, n_cross=50)
    low, high = (pipe(DOCUMENTS, LABELS, surprise_weight=x) for x in (0, 1))
    mixed, low, high = ([dict(zip(r["labels"], r["scores"], strict=True)) for r in x] for x in (mixed, low, high))
    for scores, hat, s in zip(mixed, low, high, strict=True):
        for label, score in scores.items():
            assert score == pytest.approx((1 - w) * hat[label] + w * s[label], abs=1e-5)


def test_order_holds_where_scores_have_rounded_to_one(pipe):
    """Two labels, both far beyond float32's 1.0: the one with the larger z comes first."""
    ensemble = torch.nn.functional.normalize(torch.randn(500, 32, generator=torch.Generator().manual_seed(0)), dim=1)
    vectors, _ = pipe.model.embed(["this matter is sport", "this matter is rain"])
    axes = torch.nn.functional.normalize(vectors, dim=1)
    ensemble = ensemble - ensemble @ torch.linalg.pinv(axes) @ axes * 0.999  # hardly any spread along the labels
    for first, second in (("sport", "rain"), ("rain", "sport")):
        result = pipe(f"this matter is {first}", ["rain", "sport"], ensemble=ensemble)
        assert result["scores"] == [1.0, 1.0]
        assert result["labels"] == [first, second]


def test_estimators_and_refinement_reach_the_score(pipe):
    plain = pipe(DOCUMENTS, LABELS)
    for options in ({"estimator": "quantile"}, {"estimator": "empirical"}, {"refine": 3}):
        assert pipe(DOCUMENTS, LABELS, **options) != plain
    ranks = [score * len(DOCUMENTS) for r in pipe(DOCUMENTS, LABELS, estimator="empirical") for score in r["scores"]]
    assert ranks == pytest.approx([round(rank) for rank in ranks], abs=1e-4)


# --- what is listed --------------------------------------------------------------------------------------------------


def test_top_k(pipe):
    full = pipe(DOCUMENTS, LABELS)
    for k in (1, 2, 3, 9):
        for best, result in zip(pipe(DOCUMENTS, LABELS, top_k=k), full, strict=True):
            assert best["labels"] == result["labels"][:k]
            assert best["scores"] == result["scores"][:k]


def test_thresholds(pipe):
    full = pipe(DOCUMENTS, LABELS)
    threshold = sorted(r["scores"][0] for r in full)[10]  # met exactly by one document, missed by ten
    single = pipe(DOCUMENTS, LABELS, threshold=threshold)
    assert [r if r["scores"][0] >= threshold else {**r, "labels": [], "scores": []} for r in full] == single
    assert sum(not r["labels"] for r in single) == 10
    multi = pipe(DOCUMENTS, LABELS, threshold=threshold, multi_label=True)
    for result, some in zip(full, multi, strict=True):
        pairs = list(zip(result["labels"], result["scores"], strict=True))
        assert list(zip(some["labels"], some["scores"], strict=True)) == [p for p in pairs if p[1] >= threshold]
    assert {len(r["labels"]) for r in multi} >= {0, 1, 2}
    assert pipe(DOCUMENTS, LABELS, multi_label=True) == full


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"top_k": 0}, "top_k must be a positive integer"),
        ({"batch_size": 0}, "batch_size must be a positive integer"),
        ({"threshold": 1.5}, "threshold must be between 0 and 1"),
        ({"threshold": "high"}, "threshold must be between 0 and 1"),
        ({"estimator": "magic"}, "estimator must be one of"),
        ({"surprise_weight": 2}, "surprise_weight must be between 0"),
        ({"surprise_weight": "1"}, "surprise_weight must be between 0"),
        ({"refine": -1}, "refine must be"),
        ({"multi_label": "False"}, "multi_label must be True or False, got 'False'"),
        ({"multi_label": 0}, "multi_label must be True or False, got 0"),
    ],
)
def test_refused_options(pipe, options, message):
    with pytest.raises(ValueError, match=message):
        pipe(DOCUMENTS, LABELS, **options)


def test_an_unknown_option_is_refused(pipe, st_path):
    with pytest.raises(TypeError, match="hypothesis"):
        pipe(DOCUMENTS, LABELS, hypothesis="x {}")
    with pytest.raises(TypeError, match=r"unknown argument treshold; known are .*threshold"):
        make(st_path, treshold=0.5)


def test_defaults_given_at_construction(st_path):
    pipe = make(st_path, candidate_labels=LABELS, top_k=1, surprise_weight=1, batch_size=7, num_workers=0)
    assert [len(r["labels"]) for r in pipe(DOCUMENTS)] == [1] * len(DOCUMENTS)
    assert len(pipe(DOCUMENTS, top_k=2)[0]["labels"]) == 2
    assert pipe(DOCUMENTS, num_workers=2, batch_size=3) == pipe(DOCUMENTS)


# --- ensembles -------------------------------------------------------------------------------------------------------


def test_defaults_are_read_and_embedded_once(st_path, monkeypatch):
    texts = [*DOCUMENTS, "a red dog"]
    given = {"candidate_labels": iter(LABELS), "ensemble": (text for text in texts), "surprise_weight": 1.0}
    pipe = transformers.pipeline("surprise-zero-shot", model=str(st_path), device="cpu", **given)
    seen = []
    embed = type(pipe.model).embed_documents
    monkeypatch.setattr(type(pipe.model), "embed_documents", lambda *args: seen.append(args) or embed(*args))
    expected = transformers.pipeline("surprise-zero-shot", model=str(st_path), device="cpu")(
        DOCUMENTS[:2], LABELS, ensemble=texts, surprise_weight=1.0
    )
    assert len(seen) == 1
    for _ in range(3):
        assert pipe(DOCUMENTS[:2]) == expected
    assert len(seen) == 2
    with torch.no_grad():  # another encoder: embedded anew
        next(pipe.model.parameters()).add_(0.1)
    assert pipe(DOCUMENTS[:2]) != expected
    assert len(seen) == 3


def test_local_files_only_reaches_the_loading_alone(st_path):
    pipe = transformers.pipeline("surprise-zero-shot", model=str(st_path), device="cpu", local_files_only=True)
    assert pipe("dog", LABELS)["labels"]


def test_every_form_of_ensemble(pipe, encode, tmp_path):
    other = DOCUMENTS[::2]
    results = pipe(DOCUMENTS[1::2], LABELS, ensemble=other)
    assert_results(results, DOCUMENTS[1::2], LABELS, *expected_scores(encode, DOCUMENTS[1::2], LABELS, other))
    emb = encode(other)
    saved = Ensemble.from_embeddings(torch.from_numpy(emb))
    saved.save(tmp_path / "ensemble.safetensors")
    forms = [tuple(other), pd.Series([*other, None, ""]), (d for d in other), emb, emb.astype(np.float64)]
    forms += [torch.from_numpy(emb), saved, tmp_path / "ensemble.safetensors", str(tmp_path / "ensemble.safetensors")]
    for form in forms:
        for ours, theirs in zip(pipe(DOCUMENTS[1::2], LABELS, ensemble=form), results, strict=True):
            assert ours["labels"] == theirs["labels"]
            assert ours["scores"] == pytest.approx(theirs["scores"], abs=1e-4)


def test_refused_ensembles(pipe, tmp_path):
    for form, error, message in (
        (torch.ones(4, 9), ValueError, "9 dimensions, but this encoder gives 32"),
        (torch.ones(4, 9, 32), ValueError, r"shape \(rows, dim\)"),
        (torch.ones(4, 32, dtype=torch.int64), TypeError, "floating dtype"),
        (Ensemble(9), ValueError, "9 dimensions"),
        ([], ValueError, "no document"),
        (["", None], ValueError, "no document"),
        (torch.empty(0, 32), ValueError, "no documents"),
        ([1, 2], ValueError, "the ensemble, as texts: document 0 must be a string"),
        (3, ValueError, "the ensemble, as texts: .* got int"),
        ([[0.5] * 32], ValueError, "the ensemble, as texts: document 0 must be a string, got list"),
        (torch.full((2, 32), torch.nan), ValueError, "row 0, 1 holds NaN"),
        (tmp_path / "none.safetensors", FileNotFoundError, "no ensemble file"),
    ):
        with pytest.raises(error, match=message):
            pipe(DOCUMENTS, LABELS, ensemble=form)


@pytest.mark.parametrize("size", [0, -1, 2.5, "4", True])
def test_a_batch_size_that_is_none_is_refused_everywhere(pipe, size):
    for call in (
        lambda: pipe(DOCUMENTS, LABELS, batch_size=size),
        lambda: pipe.scorer(candidate_labels=LABELS, batch_size=size),
        lambda: pipe.fit_ensemble(DOCUMENTS, batch_size=size),
        lambda: pipe.fit_labels(DOCUMENTS[:2], LABELS[:2], batch_size=size),
    ):
        with pytest.raises(ValueError, match="batch_size must be a positive integer"):
            call()
    assert pipe.model.ensemble is None


def test_a_fitted_ensemble_wins_over_the_call(pipe, encode):
    assert pipe.fit_ensemble(DOCUMENTS, batch_size=4) is pipe
    for document in DOCUMENTS[:5]:  # alone as in the crowd
        scores, z = (x[DOCUMENTS.index(document)][None] for x in expected_scores(encode, DOCUMENTS, LABELS))
        assert_results([pipe(document, LABELS)], [document], LABELS, scores, z)
    assert pipe(DOCUMENTS[:5], LABELS, ensemble=DOCUMENTS[:5]) != pipe(DOCUMENTS[:5], LABELS)


@pytest.mark.parametrize("weight", [0, 0.4, 1])
def test_alone_as_in_the_crowd_for_every_weight(pipe, weight):
    pipe.fit_ensemble(DOCUMENTS).set_labels(LABELS, surprise_weight=weight)
    together = pipe(DOCUMENTS)
    for result in together:
        alone = pipe(result["sequence"])
        assert alone["labels"] == result["labels"]
        assert alone["scores"] == pytest.approx(result["scores"], abs=1e-5)


def test_options_of_the_call_win_over_the_stored_fit(st_path):
    pipe = make(st_path).fit_ensemble(DOCUMENTS).set_labels(LABELS, surprise_weight=0)
    stored = pipe(DOCUMENTS)
    assert stored == pipe(DOCUMENTS, LABELS, surprise_weight=0)
    assert stored != pipe(DOCUMENTS, surprise_weight=1)
    assert pipe(DOCUMENTS, surprise_weight=1) == pipe(DOCUMENTS, ensemble=pipe.model.ensemble, surprise_weight=1)


def test_small_ensembles_draw_one_warning(st_path):
    pipe = make(st_path)
    with pytest.warns(UserWarning, match=r"own documents: e = 30, .* w = 0\.030") as caught:
        pipe([*DOCUMENTS, ""], LABELS)
    assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pipe(DOCUMENTS, LABELS)
    with pytest.warns(UserWarning, match="the ensemble is small: e = 10,"):
        make(st_path)(DOCUMENTS, LABELS, ensemble=DOCUMENTS[:10])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make(st_path)(DOCUMENTS, LABELS, surprise_weight=0.5)
        make(st_path)(DOCUMENTS, LABELS, n_cross=20)  # w = 0.905


def test_each_kind_of_warning_is_drawn_once_for_an_ensemble(st_path):
    """The first one silenced all others."""
    pipe = make(st_path)
    for words, given, options in (
        ("own documents: e = 30", DOCUMENTS, {}),
        ("one document is its own ensemble", DOCUMENTS[:1], {"surprise_weight": 1}),
        ("a threshold takes 200", DOCUMENTS, {"surprise_weight": 1, "threshold": 0.9}),
        ("keeps its promise at surprise_weight=1 alone", DOCUMENTS, {"surprise_weight": 0.05, "threshold": 0.9}),
    ):
        with pytest.warns(UserWarning, match=words) as caught:
            pipe(given, LABELS, **options)
        assert len(caught) == 1
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            pipe(given, LABELS, **options)
    pipe.fit_ensemble(DOCUMENTS)
    with pytest.warns(UserWarning, match="the ensemble is small: e = 30"):
        pipe(DOCUMENTS, LABELS)


def test_the_tokenizer_is_the_encoders(st_path):
    pipe = transformers.pipeline("surprise-zero-shot", model=str(st_path), tokenizer=str(st_path), device="cpu")
    assert pipe.tokenizer is pipe.model.tokenizer


def test_a_stream_is_read_step_by_step_once_an_ensemble_is_known(pipe):
    read = []

    def source():
        for document in DOCUMENTS:
            read.append(document)
            yield document

    pipe.fit_ensemble(DOCUMENTS)
    results = pipe(source(), LABELS, batch_size=4)
    assert read == []
    assert next(results)["sequence"] == DOCUMENTS[0]
    assert len(read) == 4
    assert len(list(results)) == len(DOCUMENTS) - 1


def test_a_stream_without_an_ensemble_is_read_whole_first(pipe):
    source = iter(DOCUMENTS)
    results = pipe(source, LABELS, batch_size=4)
    first = next(results)
    assert next(source, None) is None
    assert [first, *results] == pipe(DOCUMENTS, LABELS)


def test_arguments_are_checked_before_a_stream_starts(pipe):
    with pytest.raises(ValueError, match="both 'a'"):
        pipe(iter(DOCUMENTS), ["a", "a"])


# --- the pipeline object ---------------------------------------------------------------------------------------------


def test_prompt_is_used_on_both_sides_and_saved(st_path, encode, tmp_path):
    pipe = make(st_path, prompt="query: ", surprise_weight=1)
    prefixed = ["query: " + d for d in DOCUMENTS]
    scores = expected_scores(encode, prefixed, LABELS, template="query: this matter is {}")
    assert_results(pipe(DOCUMENTS, LABELS), DOCUMENTS, LABELS, *scores)
    pipe.save_pretrained(tmp_path)
    again = SentenceTransformer(str(tmp_path), device="cpu")
    np.testing.assert_array_equal(again.encode(["dog"]), encode(["query: dog"]))
    assert make(tmp_path, surprise_weight=1)(DOCUMENTS, LABELS) == pipe(DOCUMENTS, LABELS)
    with pytest.raises(ValueError, match="no prompt named 'nope'"):
        make(st_path, prompt_name="nope")
    with pytest.raises(ValueError, match="not both"):
        make(st_path, prompt="a", prompt_name="b")


def test_plain_encoders_models_in_memory_and_wrong_models(bert_path, st_path):
    expected = make(st_path, surprise_weight=1)(DOCUMENTS, LABELS)
    encoder = SentenceTransformer(str(st_path), device="cpu")
    for model in (encoder, SurpriseModel(str(st_path), device="cpu")):
        pipe = transformers.pipeline("surprise-zero-shot", model=model, device="cpu", surprise_weight=1)
        assert pipe(DOCUMENTS, LABELS) == expected
        assert SurpriseZeroShotPipeline(model, device="cpu", surprise_weight=1)(DOCUMENTS, LABELS) == expected
    assert make(bert_path, surprise_weight=1)(DOCUMENTS, LABELS) == expected
    bert = transformers.AutoModel.from_pretrained(bert_path)
    with pytest.raises(TypeError, match=r"got BertModel; pass surprise_hf\.SurpriseModel"):
        SurpriseZeroShotPipeline(bert)


def test_a_damaged_folder_names_its_fault(st_path, tmp_path):
    """transformers swallows the error and goes on with a bare BertModel; the user must still see the cause."""
    make(st_path).fit_ensemble(DOCUMENTS).save_pretrained(tmp_path)
    (tmp_path / "surprise" / "ensemble.safetensors").write_bytes(b"not tensors")
    with pytest.raises(ValueError, match=r"surprise can't be used: .*ensemble\.safetensors"):
        make(tmp_path)


def test_a_training_model_is_put_into_eval_mode(st_path):
    model = SurpriseModel(str(st_path), device="cpu").train()
    pipe = SurpriseZeroShotPipeline(model, device="cpu")
    assert not pipe.model.training


def test_repr_and_the_base_class_methods(pipe):
    assert repr(pipe).startswith("SurpriseZeroShotPipeline: {'model': 'SurpriseModel', 'dtype': 'float32'")
    pipe.set_labels(LABELS)
    expected = pipe(DOCUMENTS)
    assert pipe.predict(DOCUMENTS) == pipe.transform(DOCUMENTS) == expected
    assert pipe.postprocess(pipe.forward(pipe.preprocess(DOCUMENTS))) == expected


def test_device_and_dtype_are_respected(st_path):
    pipe = make(st_path, dtype="bfloat16")
    assert pipe.device == pipe.model.device == torch.device("cpu")
    assert pipe.model.dtype == torch.bfloat16
    assert len(pipe(DOCUMENTS, LABELS, surprise_weight=1)) == len(DOCUMENTS)
    assert SurpriseModel.from_pretrained(st_path, device="meta").device.type == "meta"


def test_progress_bar_only_for_a_person_and_more_than_one_batch(pipe, monkeypatch):
    shown = []
    real = SentenceTransformer.encode
    monkeypatch.setattr(
        SentenceTransformer,
        "encode",
        lambda self, texts, **kw: shown.append(kw.pop("show_progress_bar", None)) or real(self, texts, **kw),
    )
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    transformers.utils.logging.enable_progress_bar()  # whatever the command line's tests left
    for batch_size, expected in ((29, True), (30, False)):
        shown.clear()
        pipe(DOCUMENTS, LABELS, batch_size=batch_size)
        assert shown[0] is expected
    transformers.utils.logging.disable_progress_bar()
    try:
        assert not encoding.progress_wanted()
    finally:
        transformers.utils.logging.enable_progress_bar()
    assert encoding.progress_wanted()
    monkeypatch.setattr(sys.stderr, "isatty", lambda: False, raising=False)
    assert not encoding.progress_wanted()


# --- saving ----------------------------------------------------------------------------------------------------------


FRESH = """
import json, sys, torch
torch.set_num_threads(1)
import surprise_hf, transformers
pipe = transformers.pipeline("surprise-zero-shot", model=sys.argv[1], device="cpu")
documents = json.loads(sys.argv[2])
print(json.dumps([pipe(d) for d in documents] + [pipe(d, ["rain", "song"], surprise_weight=1) for d in documents]))
"""


def test_save_then_a_fresh_process_same_bits(st_path, tmp_path):
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        pipe = make(st_path).fit_ensemble(DOCUMENTS).set_labels([*LABELS, 7], "about {}", n_cross=30)
        pipe.save_pretrained(tmp_path / "a b")
        some = DOCUMENTS[:3]
        with pytest.warns(UserWarning, match="e = 30"):
            expected = [pipe(d) for d in some]
        expected += [pipe(d, ["rain", "song"], surprise_weight=1) for d in some]
    finally:
        torch.set_num_threads(threads)
    assert "custom_pipelines" not in (tmp_path / "a b" / "config.json").read_text()
    root = str(Path(surprise_hf.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", FRESH, str(tmp_path / "a b"), json.dumps(some)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == expected


def test_push_to_hub_reaches_the_model(pipe, monkeypatch, tmp_path):
    seen = {}
    monkeypatch.setattr(SurpriseModel, "push_to_hub", lambda _, repo, **kw: seen.update(repo=repo, **kw) or "url")
    told = {"private": True, "tags": ["news"], "commit_description": "why"}
    assert pipe.push_to_hub("me/x", max_shard_size="1GB", **told) == "url"
    assert seen == {"repo": "me/x", "exist_ok": True, **told}
    pipe.save_pretrained(tmp_path, max_shard_size="1GB", push_to_hub=True, repo_id="me/y", tags="news")
    assert (seen["repo"], seen["tags"]) == ("me/y", "news")


def test_nothing_is_logged_as_an_error(pipe, caplog):
    with caplog.at_level(logging.WARNING):
        pipe(DOCUMENTS, LABELS)
    assert [r for r in caplog.records if r.levelno >= logging.ERROR] == []


def test_a_pipeline_that_is_refused_leaves_the_model(st_path):
    model = SurpriseModel(str(st_path), device="cpu")
    before = model.embed(["red dog"])[0]
    with pytest.raises(TypeError, match="bogus"):
        SurpriseZeroShotPipeline(model, prompt="query: ", bogus=1)
    assert torch.equal(model.embed(["red dog"])[0], before)
