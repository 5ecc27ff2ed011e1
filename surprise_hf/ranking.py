"""Ranker: unit rows, their ensemble and an engine, searched by surprise. Numbers alone; texts and ids live above it.

With w = 1 the order is an inner-product search (design fact 2) and the ensemble a mean and one d x d matrix (fact 1):
no more than the vectors and d x d floats are held, and one pass over the vectors answers a query.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from . import estimators as est
from .engines import Engine, Form, Rows
from .ensemble import Ensemble
from .fitted import FittedLabels, crossover_weight
from .ops import sigma_floor, unit_rows

DIRECTIONS = ("documents", "questions")
SLACK = 16  # rows fetched beyond k: the engine's float32 order is settled in float64
SLICE = 4096  # rows in float64 at once
TIE = 10  # decimals of z and cosine, computed in float64, that tell documents apart
FLAT = 1e-9  # of the largest variance: less counts as none
ROUNDING = 1e-9  # of z and scores in float64, well above: a cutoff that is itself a document finds itself

Found: TypeAlias = tuple[Tensor, Tensor, Tensor, Tensor]  # rows, cosine, z, score of the hits of one query


class Limits(NamedTuple):
    """What may be found: at most k rows (None: any number), scores within limits, rows `allowed` (n,) bool."""

    k: int | None = None
    min_score: float = 0.0
    max_score: float = 1.0
    allowed: Tensor | None = None

    def fetch(self, documents: int) -> int:
        """Rows to ask the engine for."""
        return documents if self.k is None else min(self.k + SLACK, documents)

    def cut(self, rows: Tensor, cosine: Tensor, z: Tensor, score: Tensor, passes: Tensor) -> list[Found]:
        """The hits of each query that pass, at most k; all (b, f), best first."""
        passes = passes & (score >= self.min_score) & (score <= self.max_score)
        return [
            (row[ok][: self.k], c[ok][: self.k], at[ok][: self.k], value[ok][: self.k])
            for row, c, at, value, ok in zip(rows, cosine, z, score, passes, strict=True)
        ]


@dataclass
class Ranker:
    """Rows, ranked for any query.

    Attributes:
        rows: unit rows (n, d) float32.
        engine: searches them; told of changes when the next search needs it.
        direction, weight, n_cross: as for `SurpriseIndex`.
        ensemble: what gives a similarity its context; None with direction="questions" stands for those of each call.
        own: the ensemble is the rows themselves and follows `add` and `remove`.
    """

    rows: Rows
    engine: Engine
    direction: str
    weight: float | None
    n_cross: float
    ensemble: Ensemble | None
    own: bool
    _std: Tensor | None = field(default=None, init=False)  # sigma of each row, (n,) float64
    _fitted: FittedLabels | None = field(default=None, init=False)  # the rows as labels, for weights below 1
    _built: int | None = field(default=None, init=False)  # rows that the engine has seen

    # --- changes -------------------------------------------------------------------------------------------------

    def add(self, emb: Tensor) -> None:
        """Add embeddings (b, d)."""
        for part in emb.detach().split(SLICE):
            unit = unit_rows(part.to(self.rows.device, torch.float64)).to(torch.float32)
            self.rows.append(unit)
            if self.own and self.ensemble is not None:
                self.ensemble.update(unit, precision="exact")
        self._fitted = None
        if self.own:  # every sigma has moved
            self._std = self._built = None

    def keep(self, mask: Tensor) -> None:
        """Drop the rows whose `mask` (n,) is False, from their own ensemble too."""
        if self.own and self.ensemble is not None:
            # whichever part is smaller is passed over, so rounding grows by no more than a factor of two
            few = mask if 2 * mask.sum() < len(mask) else ~mask
            part = Ensemble(self.rows.dim, reservoir=0, encoder=self.ensemble.encoder, device=self.rows.device)
            for start, block in self.rows.blocks():
                part.update(block[few[start : start + len(block)].to(block.device)], precision="exact")
            self.ensemble = part if few is mask else _without(self.ensemble, part)
        self.rows.keep(mask)
        self._std = self._built = self._fitted = None

    def _refresh(self) -> None:
        """Bring scales and engine up to date."""
        known = self._built or 0
        if self._built == len(self.rows):
            return
        if self.direction == "documents":
            self._std = self._deviations(known)
        form = self._form(self.engine.wants_unit)
        if known:
            self.engine.extend(self.rows, form, known)
        else:
            self.engine.build(self.rows, form)
        self._built = len(self.rows)

    def _deviations(self, known: int) -> Tensor:
        """sigma of every row, (n,) float64."""
        parts = [] if self._std is None else [self._std]
        for start, block in self.rows.blocks():
            parts += [self._context.moments(piece)[1] for piece in block[max(0, known - start) :].split(SLICE)]
        return torch.cat(parts)

    def _form(self, unit: bool) -> Form:
        """What makes the engine's products z. sigma = 0 gets the steepest slope that rounding allows."""
        if self._std is None:
            return Form()
        steepest = float(sigma_floor(torch.ones(()), torch.finfo(torch.float32).eps))
        scale = self._std.clamp(min=steepest).reciprocal().to(torch.float32)
        if not unit:
            return Form(scale)
        values, vectors = torch.linalg.eigh(self._context.covariance)
        # a direction without variance says nothing of sigma but may tell keys apart: it keeps a little weight
        spread = values.clamp(min=max(float(values[-1]) * FLAT, FLAT)).sqrt()
        root, inverse = vectors * spread @ vectors.T, vectors / spread @ vectors.T
        return Form(scale, root.to(torch.float32), inverse.to(torch.float32))

    @property
    def _context(self) -> Ensemble:
        assert self.ensemble is not None
        return self.ensemble

    # --- searching -----------------------------------------------------------------------------------------------

    def context_size(self, questions: int) -> int:
        """Documents in the ensemble of a call with so many questions."""
        return questions if self.ensemble is None else len(self.ensemble)

    def search(self, keys: Tensor, cutoff: Tensor | None, limits: Limits) -> list[Found]:
        """Rows for each query, best first.

        Args:
            keys: (b, d) unit rows, float64; b >= 1. There is at least one row.
            cutoff: (1, d) row: rows that surprise less than it would are left out.
            limits: what may be found.
        """
        if cutoff is not None:  # rounded as the rows are, so that one of them finds itself
            cutoff = unit_rows(unit_rows(cutoff).to(torch.float32).to(torch.float64))
        if self.direction == "questions":
            return self._by_questions(keys, cutoff, limits)
        if crossover_weight(len(self._context), self.weight, self.n_cross) < 1:
            return self._blended(keys, cutoff, limits)
        return self._by_documents(keys, cutoff, limits)

    def _by_documents(self, keys: Tensor, cutoff: Tensor | None, limits: Limits) -> list[Found]:
        """Documents are q and w = 1: an inner-product search, settled in float64."""
        self._refresh()
        centred = (keys - self._context.mean).to(torch.float32)
        upper = _z_of(limits.max_score)
        values, rows = self.engine.search(centred, limits.fetch(len(self.rows)), limits.allowed, upper)
        cosine = self._cosines(keys, rows)
        z = self._z(cosine, rows)
        passes = values > -math.inf
        if cutoff is not None:
            least = est.standardize(keys @ cutoff.T, *self._context.moments(cutoff))
            passes &= z >= least - ROUNDING * least.abs().clamp(min=1.0)
        order = _descending(z, rows)
        return limits.cut(*(x.gather(1, order) for x in (rows, cosine, z, est.normal_cdf(z), passes)))

    def _blended(self, keys: Tensor, cutoff: Tensor | None, limits: Limits) -> list[Found]:
        """Documents are q and w < 1: the decision rule of labels, with the documents as the labels."""
        self._refresh()
        context = self.rows.whole() if self.own else self._context
        if self._fitted is None:
            self._fitted = FittedLabels.fit(self.rows.whole(), context, weight=self.weight, n_cross=self.n_cross)
        fitted, among = self._fitted, torch.arange(len(self.rows), device=keys.device)
        if limits.allowed is not None:
            among = among[limits.allowed]
            fitted = fitted.select(among)
        bounded = cutoff is not None or limits.max_score < 1
        score, index = fitted.rank(keys, None if bounded else min(limits.fetch(len(self.rows)), len(among)))
        rows, passes = among[index], torch.ones_like(index, dtype=torch.bool)
        if cutoff is not None:
            one = FittedLabels.fit(cutoff, context, weight=self.weight, n_cross=self.n_cross)
            passes = score >= replace(one, rescale=fitted.rescale).score(keys) - ROUNDING
        cosine = self._cosines(keys, rows)
        return limits.cut(rows, cosine, self._z(cosine, rows), score, passes)

    def _by_questions(self, keys: Tensor, cutoff: Tensor | None, limits: Limits) -> list[Found]:
        """Questions are q: the order is the cosine's for any w, the scores are those of each question."""
        self._refresh()
        context = keys if self.ensemble is None else self.ensemble
        fitted = FittedLabels.fit(keys, context, weight=self.weight, n_cross=self.n_cross)
        fetch = len(self.rows) if limits.max_score < 1 else limits.fetch(len(self.rows))
        values, rows = self.engine.search(keys.to(torch.float32), fetch, limits.allowed)
        cosine, passes = self._cosines(keys, rows), values > -math.inf
        if cutoff is not None:
            passes &= cosine >= keys @ cutoff.T - ROUNDING
        z = est.standardize(cosine.T, fitted.mean, fitted.std).T
        score = est.normal_cdf(z)
        if fitted.rescale is not None:
            score = (1 - fitted.weight) * fitted.rescale(cosine)[0] + fitted.weight * score
        order = _descending(cosine, rows)
        return limits.cut(*(x.gather(1, order) for x in (rows, cosine, z, score, passes)))

    def _cosines(self, keys: Tensor, rows: Tensor) -> Tensor:
        """Cosine (b, f) float64 of each key (b, d) with its own rows (b, f)."""
        pairs = rows.flatten()
        out = torch.empty(len(pairs), dtype=torch.float64, device=keys.device)
        for start in range(0, len(pairs), SLICE):
            part = slice(start, min(start + SLICE, len(pairs)))
            key = torch.arange(part.start, part.stop, device=keys.device) // rows.shape[1]
            out[part] = (unit_rows(self.rows.take(pairs[part]).to(torch.float64)) * keys[key]).sum(dim=1)
        return out.reshape(rows.shape)

    def _z(self, cosine: Tensor, rows: Tensor) -> Tensor:
        """z (b, f) float64 of rows (b, f), by definition: each with the moments of its document."""
        assert self._std is not None
        mean = self._cosines(self._context.mean.expand(len(rows), -1), rows)
        return est.standardize(cosine, mean, self._std[rows])

    def export(self, unit: bool) -> tuple[Tensor, Tensor, Tensor | None]:
        """Vectors (n, d), centre (d,) and matrix (d, d), float32: vectors . (k^ - centre) @ matrix order the rows."""
        self._refresh()
        form = self._form(unit)
        vectors = torch.cat([form.rows(block, start) for start, block in self.rows.blocks()])
        if self._std is None:
            return vectors.clone(), vectors.new_zeros(self.rows.dim), None
        return vectors, self._context.mean.to(torch.float32), form.inverse


def _descending(values: Tensor, rows: Tensor) -> Tensor:
    """Order (b, f) of each query's hits: by value, the earlier row first among equals."""
    by_row = rows.argsort(dim=1)
    values = values.round(decimals=TIE)  # a matrix product rounds equal rows differently by their place
    return by_row.gather(1, values.gather(1, by_row).argsort(dim=1, descending=True, stable=True))


def _z_of(score: float) -> float:
    """z of a score, and a little more: the engine's products are float32, the limit itself is kept in float64."""
    return float(torch.special.ndtri(torch.tensor(score, dtype=torch.float64))) + 1e-4


def _without(whole: Ensemble, part: Ensemble) -> Ensemble:
    """The ensemble less documents that are in it: Chan, Golub and LeVeque's merge solved for the other part."""
    left = Ensemble(whole.dim, reservoir=0, encoder=whole.encoder, device=whole.device)
    left.count = whole.count - part.count
    if left.count > 0:
        left.mean = whole.mean + (whole.mean - part.mean) * (part.count / left.count)
        gap = left.mean - part.mean
        left.scatter = whole.scatter - part.scatter - torch.outer(gap, gap) * (left.count * part.count / whole.count)
    return left
