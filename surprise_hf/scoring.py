"""surprise(): the score of every key for every query in one call (paper section 2, design section 1)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from . import estimators as est
from . import ops
from .ensemble import Ensemble, check_rows
from .fitted import FittedLabels, check_ensemble, check_options, crossover_weight, documents_of, freeze
from .refinement import refine_labels

__all__ = ["FittedLabels", "crossover_weight", "decide", "refine_labels", "surprise"]


def decide(keys: Tensor, queries: Tensor, ensemble: Tensor | Ensemble | None = None, **options: Any) -> Tensor:
    """The query each key belongs to, (n,) int64, by the rule of `FittedLabels.rank`.

    Arguments and errors as in `surprise`. With the empirical estimator the (m, e) similarities are held at once.
    """
    check_rows("keys", keys)
    labels = FittedLabels.fit(queries, keys if ensemble is None else ensemble, **options)
    return labels.decide(keys, options.get("impl", "auto"))
