"""`pipe.scorer`: embeddings in, labels and scores out; the same as a call of the pipeline on their texts."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from surprise_hf.model import SurpriseModel
from surprise_hf.pipeline import SurpriseZeroShotPipeline

SUBJECTS = ("sport team win", "bank money price", "rain sun snow", "dog cat bird", "song piano band")
DOCUMENTS = [f"{a} {b} {c}" for a in SUBJECTS for b in ("red", "one") for c in ("vote", "gene", "bread")]
LABELS = ["sport", "money", "animal"]


@pytest.fixture(scope="module")
def pipe(st_path: Path) -> SurpriseZeroShotPipeline:
    return SurpriseZeroShotPipeline(SurpriseModel(str(st_path), device="cpu"), surprise_weight=1)


@pytest.fixture(scope="module")
def emb(pipe: SurpriseZeroShotPipeline) -> torch.Tensor:
    return pipe.model.embed(DOCUMENTS)[0]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"top_k": 2, "hypothesis_template": "a {}"},
        {"threshold": 0.9, "multi_label": True},
        {"threshold": 0.7},
        {"surprise_weight": 0.5, "estimator": "quantile"},
        {"ensemble": DOCUMENTS[3:20]},
    ],
)
def test_scores_are_those_of_a_call(pipe: SurpriseZeroShotPipeline, emb: torch.Tensor, options: dict) -> None:
    called = pipe(DOCUMENTS, LABELS, **options)
    found = pipe.scorer(candidate_labels=LABELS, **options).score(emb)
    assert [labels for labels, _ in found] == [result["labels"] for result in called]
    for (_, scores), result in zip(found, called, strict=True):
        assert scores == pytest.approx(result["scores"], abs=1e-5)
    assert any(labels for labels, _ in found)


def test_parts_are_scored_as_the_whole(pipe: SurpriseZeroShotPipeline, emb: torch.Tensor) -> None:
    whole = pipe.scorer(candidate_labels=LABELS).score(emb)
    scorer = pipe.scorer(candidate_labels=LABELS)
    scorer.context = emb
    for start in range(0, len(emb), 7):
        for (labels, scores), (same, close) in zip(scorer.score(emb[start : start + 7]), whole[start:], strict=False):
            assert labels == same
            assert scores == pytest.approx(close, abs=1e-6)


def test_labels_of_each_documents_own(pipe: SurpriseZeroShotPipeline, emb: torch.Tensor) -> None:
    own = [LABELS[:2] if i % 3 else LABELS[1:] for i in range(len(DOCUMENTS))]
    called = pipe(DOCUMENTS, own)
    scorer = pipe.scorer(candidate_labels=own)
    assert [labels for labels, _ in scorer.score(emb)] == [result["labels"] for result in called]
    some = [11, 2, 3]
    assert [labels for labels, _ in scorer.score(emb[some], some)] == [called[i]["labels"] for i in some]
    scorer.check_count(30)
    scorer.check_count(7, more=True)
    with pytest.raises(ValueError, match="30 lists of labels, but more documents"):
        scorer.check_count(31, more=True)
    with pytest.raises(ValueError, match="30 lists of labels, but 29 documents"):
        scorer.check_count(29)


def test_a_small_ensemble_is_told_once_for_a_pipeline(st_path: Path, emb: torch.Tensor) -> None:
    pipe = SurpriseZeroShotPipeline(SurpriseModel(str(st_path), device="cpu"))
    scorers = [pipe.scorer(candidate_labels=LABELS) for _ in range(2)]
    with pytest.warns(UserWarning, match=r"own documents: e = 30.*w = 0\.030") as told:
        assert [len(scorer.score(emb)) for scorer in scorers] == [30, 30]
    assert len(told) == 1


def test_nothing_and_nonsense(pipe: SurpriseZeroShotPipeline, emb: torch.Tensor) -> None:
    scorer = pipe.scorer(candidate_labels=LABELS)
    assert scorer.score(emb[:0]) == []
    assert scorer.context is None
    bad = emb.clone()
    bad[4, 1] = math.nan
    with pytest.raises(ValueError, match="embeddings: row 4 holds NaN"):
        scorer.score(bad)
    with pytest.raises(ValueError, match=r"embeddings must have shape \(rows, 32\)"):
        scorer.score(emb[:, :5])
    with pytest.raises(TypeError, match="floating"):
        scorer.score(emb.long())
    with pytest.raises(TypeError, match="unknown argument labels; known are candidate_labels"):
        pipe.scorer(labels=LABELS)
    with pytest.raises(ValueError, match="no labels"):
        pipe.scorer()


def test_importing_it_needs_no_transformers() -> None:
    code = "import sys, surprise_hf.scorer; assert not {'transformers', 'sentence_transformers'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[1])
