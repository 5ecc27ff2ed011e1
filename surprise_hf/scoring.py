"""surprise(): the score of every key for every query in one call (paper section 2, design section 1)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from . import estimators as est
from . import inputs, ops
from .contexts import check_ensemble
from .ensemble import Ensemble, check_rows
from .fitted import FittedLabels, check_options, crossover_weight, freeze
from .refinement import documents_of, refine_labels

__all__ = ["FittedLabels", "crossover_weight", "refine_labels", "surprise"]


def surprise(
    keys: Tensor | np.ndarray,
    queries: Tensor | np.ndarray,
    ensemble: Tensor | np.ndarray | Ensemble | None = None,
    *,
    weight: float | None = None,
    n_cross: float = 1000,
    estimator: str = "gaussian",
    similarity: str = "cosine",
    anchor: int = -1,
    refine: int | str = 0,
    impl: str = "auto",
) -> Tensor:
    """Surprise of every key for every query, S_w = (1 - w) psi^ + w S.

    Tensors, or arrays as `SentenceTransformer.encode` gives them.

    Args:
        keys: (n, d) floating: the documents.
        queries: (m, d) floating: the labels.
        ensemble: what a similarity is compared with: documents (e, d), an `Ensemble`, or None for the keys.
        weight: w between 0 (psi^ alone) and 1 (S alone); None gives tanh(e / n_cross) for e documents.
        n_cross: of the crossover.
        estimator: of S: "gaussian" (mean and sigma), "quantile" (median and p84.13) or "empirical" (the definition:
            the fraction of the ensemble below, values within rounding counting as ties); "tail" (z by the law of
            documents foreign to a label, `surprise_hf.tails`: what a threshold should stand on); "auto" takes the
            tail where the gaussian does not keep its promise, from 200 documents on.
        similarity: "cosine", "dot", "euclidean" or "manhattan" (negated distances).
        anchor: the cosine that psi^ maps to 0: -1, or 0 as in the paper (which can leave [0, 1]).
        refine: rounds of `refine_labels` first (cosine only), 0 for none; "auto" decides from the ensemble.
        impl: as for the ops.

    Returns:
        (n, m) float32 (float64 for float64 input). With w = 1, the gaussian estimate and the keys as ensemble this is
        one `ops.cosine_surprise`, with its gradient; everything else carries none.

    Raises:
        TypeError: an argument is not a floating tensor or array.
        ValueError: shapes or options do not fit, a row is not finite, the ensemble is empty, or an `Ensemble` without
            reservoir is asked for what moments cannot give.

    References: paper sections 2 and 2.1, equations of S and S_w; design section 1.
    """
    own = ensemble is None or ensemble is keys
    keys, queries = inputs.embeddings(keys), inputs.embeddings(queries)
    check_rows("keys", keys)
    check_rows("queries", queries)
    if keys.shape[1] != queries.shape[1]:
        raise ValueError(f"keys have {keys.shape[1]} dimensions but queries have {queries.shape[1]}")
    check_options(estimator, similarity, anchor, refine)
    context = keys if own else inputs.embeddings(ensemble)
    w = crossover_weight(len(context), weight, n_cross)
    if own and len(keys) == 0:
        return keys.new_empty((0, len(queries)), dtype=est.score_dtype(keys, queries))
    if own and w == 1 and estimator == "gaussian" and est.is_product(similarity) and not refine:
        return ops.cosine_surprise(keys, queries, normalize=similarity == "cosine", impl=impl)[0]
    check_ensemble(queries, context, similarity)
    with torch.no_grad():
        labels = freeze(queries, context, w, estimator, similarity, anchor, refine, impl)
        if estimator != "empirical":
            return labels.score(keys, impl)
        out = keys.new_empty((len(keys), len(labels)), dtype=est.score_dtype(keys, queries))
        rows = documents_of(context, labels.queries, "estimator='empirical'")
        for part, columns in est.sorted_columns(rows, labels.queries, similarity, impl):
            out[:, part] = replace(labels.select(part), columns=columns).score(keys, impl)
        return out
