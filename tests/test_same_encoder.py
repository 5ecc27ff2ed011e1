"""Whether embeddings are of one encoder: by its name, and by what it makes of one text."""

from __future__ import annotations

import pytest
import torch

from surprise_hf.contexts import check_context
from surprise_hf.ensemble import Ensemble
from surprise_hf.same_encoder import same_probe


@pytest.mark.parametrize(
    ("cosine", "same"),
    [(0.999, True), (0.97, True), (0.9, False), (-1.0, False), (None, False)],  # None: one of them is zeros
)
def test_encoders_are_one_that_make_much_the_same_of_a_text(cosine: float | None, same: bool) -> None:
    one, other = torch.tensor([2.0, 0.0]), torch.zeros(2)
    if cosine is not None:
        other = 3 * torch.tensor([cosine, (1 - cosine**2) ** 0.5])
    assert same_probe(one, other) == same_probe(other, one.half()) == same
    assert same_probe(one, None)
    assert same_probe(torch.zeros(2), torch.zeros(2))  # which say nothing


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("all-MiniLM-L6-v2", "sentence-transformers/all-MiniLM-L6-v2", True),
        ("all-MiniLM-L6-v2", "all-mpnet-base-v2", False),
        ("all-MiniLM-L6-v2", "me/all-MiniLM-L6-v2", False),
        ("sentence-transformers/all-MiniLM-L6-v2", "me/all-MiniLM-L6-v2", False),
        (None, "me/x", True),
        ("", "me/x", True),
    ],
)
def test_encoders_are_one_with_and_without_the_owner_that_is_understood(tmp_path, one, other, same):
    rows = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    for a, b in ((one, other), (other, one)):
        ours, theirs = (Ensemble.from_embeddings(rows, encoder=name) for name in (a, b))
        theirs.save(tmp_path / "e.safetensors")
        for take in (
            lambda ours=ours, theirs=theirs: ours.merge(theirs),
            lambda a=a: Ensemble.load(tmp_path / "e.safetensors", encoder=a),
            lambda a=a, theirs=theirs: check_context(theirs, 3, a),
        ):
            if same:
                take()
            else:
                with pytest.raises(ValueError, match="encoder"):
                    take()
