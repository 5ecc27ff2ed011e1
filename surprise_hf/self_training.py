"""Which documents a trained model may learn from as if its labels of them were true, and whether that pays.

Measured in docs/training.md, "Self-training". `SurpriseTrainer` does the training.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from torch import Tensor

from .ensemble import Ensemble, reservoir_order
from .few_shot import surest

AGREED = 0.965  # from this agreement on it pays
LABELS = 10  # so many at least: of two or four, examples and documents agree on what is wrong, too
EXAMPLES = 8  # of a label, on the average: with fewer it costs several times the training before it
PER_LABEL = 32  # documents of a label that join


def agreement(z: Tensor, documents: Tensor, parted: Tensor) -> float:
    """Share of the documents on which two views decide alike.

    Args:
        z: (n, m) floating, of labels refined on the documents.
        documents: (n, d) floating, unit rows.
        parted: (m, d) floating, unit rows: the same labels as the examples part them.
    """
    return float((z.argmax(dim=1) == (documents @ parted.T).argmax(dim=1)).double().mean())


def joining(
    z: Tensor, ensemble: Ensemble, texts: Sequence[str], examples: Collection[str]
) -> dict[str, tuple[int, int]]:
    """The documents that join the examples: text -> (row of the ensemble's reservoir, label), none of them an example.

    Args:
        z: (n, m) floating, of the reservoir's documents.
        ensemble: of all the documents, in the order of `texts`.
        texts: of the documents.
        examples: their texts.
    """
    order = reservoir_order(len(texts), ensemble.reservoir_size, ensemble.seed).tolist()
    known = set(examples)
    return {text: (at, label) for at, label in surest(z, PER_LABEL) if (text := texts[order[at]]) not in known}
