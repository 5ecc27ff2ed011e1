"""Where embeddings are taken, they may be arrays, as `SentenceTransformer.encode` gives them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

from surprise_hf import Ensemble, SurpriseIndex, SurpriseKMeans, plots, surprise
from surprise_hf.diagnosis import diagnose
from surprise_hf.fitted import FittedLabels
from surprise_hf.refinement import refine_labels

from .model_data import LABELS as NAMES
from .model_data import load

DRAW = np.random.default_rng(0)
DOCUMENTS, LABELS = DRAW.standard_normal((300, 32), np.float32), DRAW.standard_normal((5, 32), np.float32)
FITTED = FittedLabels.fit(torch.from_numpy(LABELS), torch.from_numpy(DOCUMENTS))
CLUSTERS = [row % 3 for row in range(len(DOCUMENTS))]

TAKES = {
    "surprise": surprise,
    "surprise, op": lambda x, q: surprise(x, q, weight=1),
    "surprise, other ensemble": lambda x, q: surprise(q, q, x, estimator="empirical"),
    "the ensemble it is": lambda x, q: surprise(x, q, x, weight=1),
    "ensemble": lambda x, q: Ensemble.from_embeddings(x).moments(q),
    "more": lambda x, q: Ensemble(32).update(x).update(q).covariance,
    "diagnose": lambda x, q: diagnose(x, q).seen,
    "diagnose an ensemble": lambda x, q: Ensemble.from_embeddings(x).diagnose(q).seen,
    "refine": lambda x, q: refine_labels(q, x),
    "fit": lambda x, q: FittedLabels.fit(q, x, estimator="tail", refine="auto").score(x),
    "add": lambda x, q: FITTED.extended(q, x).z(x),
    "rank": lambda x, _: FITTED.rank(x, 2),
    "accept": lambda x, _: FITTED.accept(x),
    "decide": lambda x, _: FITTED.decide(x),
    "index": lambda x, q: [
        [hit.score for hit in hits] for hits in SurpriseIndex(ensemble=x, weight=1).add(x).search(q)
    ],
    "k-means": lambda x, _: torch.as_tensor(SurpriseKMeans(3, random_state=0).fit(x).labels_),
    "histogram": plots.histogram,
    "calibration": plots.calibration,
    "sizes": lambda x, q: plots.ensemble_size(x, q, repeats=1),
    "map": lambda x, _: plots.cluster_map(x, CLUSTERS, list("abc")),
}


def drawn(found: Any) -> Any:
    """A picture by its points, which are comparable."""
    if not isinstance(found, Figure):
        return found
    lines = [line.get_xydata() for axes in found.axes for line in axes.lines]
    points = [np.asarray(dots.get_offsets()) for axes in found.axes for dots in axes.collections]
    assert lines or points
    return [torch.from_numpy(place) for place in lines + points]


@pytest.mark.parametrize("take", TAKES.values(), ids=TAKES)
@pytest.mark.parametrize("kind", [np.asarray, np.flipud], ids=["as it is", "reversed"])
def test_arrays_give_what_tensors_give(take: Callable[[Any, Any], Any], kind: Callable[[Any], Any]) -> None:
    documents, labels = kind(DOCUMENTS), kind(LABELS)
    tensors = [torch.from_numpy(np.ascontiguousarray(x)) for x in (documents, labels)]
    torch.testing.assert_close(drawn(take(documents, labels)), drawn(take(*tensors)), rtol=0, atol=0)


def test_a_model_takes_the_vectors_of_its_labels_as_an_array(st_path: Path) -> None:
    model = load(st_path)
    vectors = model.encode(NAMES[::-1])
    assert isinstance(vectors, np.ndarray)
    model.set_labels(NAMES, vectors=vectors)
    assert torch.equal(model.label_vectors(NAMES, model.hypothesis_template).cpu(), torch.from_numpy(vectors))
