"""surprise_hf: rank labels for texts by how surprising their similarity is, on Hugging Face models.

Importing this package is light: torch, transformers and sentence-transformers are imported when a name that needs them
is first used. Afterwards `transformers.pipeline("surprise-zero-shot", ...)` works, whichever of the two packages was
imported first.

Paper: "Taken by surprise".
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from ._register import register_when_imported

if TYPE_CHECKING:
    from . import metrics
    from .clustering import SurpriseKMeans
    from .ensemble import Ensemble
    from .few_shot import pseudo_label
    from .losses import WeightedFocalLoss
    from .model import SurpriseModel
    from .pipeline import SurpriseZeroShotPipeline
    from .retrieval import SurpriseIndex
    from .scoring import surprise
    from .trainer import SurpriseTrainer
    from .trainer_callbacks import StopOnCrossEntropy
    from .training_arguments import SurpriseTrainingArguments

__version__ = "0.1.0"

# public name -> module that holds it; a lazy name is imported on first use
_LAZY = {
    "Ensemble": "ensemble",
    "StopOnCrossEntropy": "trainer_callbacks",
    "SurpriseIndex": "retrieval",
    "SurpriseKMeans": "clustering",
    "SurpriseModel": "model",
    "SurpriseTrainer": "trainer",
    "SurpriseTrainingArguments": "training_arguments",
    "SurpriseZeroShotPipeline": "pipeline",
    "WeightedFocalLoss": "losses",
    "pseudo_label": "few_shot",
    "surprise": "scoring",
}

__all__ = [
    "Ensemble",
    "StopOnCrossEntropy",
    "SurpriseIndex",
    "SurpriseKMeans",
    "SurpriseModel",
    "SurpriseTrainer",
    "SurpriseTrainingArguments",
    "SurpriseZeroShotPipeline",
    "WeightedFocalLoss",
    "__version__",
    "metrics",
    "pseudo_label",
    "surprise",
]


def __getattr__(name: str) -> Any:
    if name in ("metrics", "plots"):
        return importlib.import_module(f"{__name__}.{name}")
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_LAZY[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


register_when_imported()
