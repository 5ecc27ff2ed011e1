"""What torch's global modes may not change: inference mode, and a default dtype of float64."""

from __future__ import annotations

import copy
import itertools
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch

from surprise_hf import SurpriseIndex
from surprise_hf.engines import ENGINES
from tests.index_data import clouds

INDEXES = {
    **{engine: {"engine": engine} for engine in ENGINES},
    "blended": {"weight": 0.5},
    "blended, given ensemble": {"weight": 0.5, "ensemble": clouds(50, seed=5)},
    "questions": {"direction": "questions", "ensemble": clouds(50, seed=5)},
}


@pytest.mark.parametrize("kind", INDEXES)
def test_an_index_changes_and_is_searched_in_inference_mode_and_out_of_it(kind: str, tmp_path: Path) -> None:
    """In any order: tensors of that mode can be written in it alone."""
    options = {"weight": 1, **INDEXES[kind]}
    documents, more, queries = clouds(120), clouds(40, seed=1), clouds(3, seed=2)
    wanted = SurpriseIndex(**options).add(documents).add(more).remove([3, 130]).search(queries, k=5)
    for modes in itertools.product([False, True], repeat=4):
        made, added, changed, searched = (torch.inference_mode() if mode else nullcontext() for mode in modes)
        with made:
            index = SurpriseIndex(**options)
        with added:
            index.add(documents.clone())
            copies = [copy.deepcopy(index)]
            index.save_pretrained(tmp_path)
            copies.append(SurpriseIndex.from_pretrained(tmp_path))
        with searched:
            index.search(queries)
        for one in (index, *copies):
            with changed:
                one.add(more.clone()).remove([3, 130])
            with searched:
                found = one.search(queries, k=5)
            assert [[hit.id for hit in hits] for hits in found] == [[hit.id for hit in hits] for hits in wanted]
            for hits, right in zip(found, wanted, strict=True):
                assert [hit.score for hit in hits] == pytest.approx([hit.score for hit in right], abs=1e-6)
