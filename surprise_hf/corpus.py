"""Corpus: what an index holds. A change of it is made whole or, after an error or an interrupt, not at all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from .engines import Engine
from .index_values import Id
from .ranking import Ranker

__all__ = ["Corpus"]


@dataclass
class Corpus:
    """Documents in the order they were added.

    Attributes:
        ids, texts, metadata: one of each for a document.
        next_id: the first running number that was never in use.
        version: counts the changes.
        ranker: holds and ranks their rows; None until the dimension is known.
        positions: row of each id.
    """

    ids: list[Id] = field(default_factory=list)
    texts: list[str | None] = field(default_factory=list)
    metadata: list[Any] = field(default_factory=list)
    next_id: int = 0
    version: int = 0
    ranker: Ranker | None = None
    positions: dict[Id, int] = field(init=False)

    def __post_init__(self) -> None:
        self.positions = {i: row for row, i in enumerate(self.ids)}

    def __len__(self) -> int:
        return len(self.ids)

    def add(
        self,
        ids: Sequence[Id],
        texts: Sequence[str | None],
        metadata: Sequence[Any],
        parts: list[Tensor],
        ranker: Ranker,
        next_id: int,
    ) -> None:
        """Add documents of new ids at the end, in place: what one costs does not grow with those that are there.

        Args:
            ids, texts, metadata: of the documents.
            parts: their embeddings, as for `Ranker.add`.
            ranker: this one's, or the first.
            next_id: from then on.
        """
        count, before = len(self), (self.ranker, self.next_id, self.version)
        ensemble = ranker.ensemble
        try:
            self.ids += ids
            self.texts += texts
            self.metadata += metadata
            self.positions.update(zip(ids, range(count, len(self)), strict=True))
            ranker.add(parts)
            self.ranker, self.next_id, self.version = ranker, next_id, self.version + 1
        except BaseException:
            ranker.reset(count, ensemble)
            self.ranker, self.next_id, self.version = before
            for values in (self.ids, self.texts, self.metadata):
                del values[count:]
            for i in ids:
                self.positions.pop(i, None)
            raise

    def kept(self, mask: Tensor, engine: Engine) -> Corpus:
        """The documents whose `mask` (n,) is True as another corpus, of the next version; this one stays as it is."""
        rows = mask.nonzero().flatten().tolist()
        ids, texts, metadata = ([held[row] for row in rows] for held in (self.ids, self.texts, self.metadata))
        ranker = None if self.ranker is None else self.ranker.kept(mask, engine)
        return replace(self, ids=ids, texts=texts, metadata=metadata, ranker=ranker, version=self.version + 1)
