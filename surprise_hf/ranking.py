"""Ranker: unit rows, their ensemble and an engine, searched by surprise. Numbers alone; texts and ids live above it.

With w = 1 the order is an inner-product search (design fact 2) and the ensemble a mean and one d x d matrix (fact 1):
no more than the vectors and d x d floats are held, and one pass over the vectors answers a query.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

from .engines import SLICE, Engine, Form, Rows
from .ensemble import Ensemble
from .estimators import shuffled
from .fitted import FittedLabels, crossover_weight
from .locks import SharedLock
from .ops import sigma_floor, unit_rows
from .refinement import documents_of

DIRECTIONS = ("documents", "questions")
SLACK, SHARE = 12, 2  # k + SLACK + k / SHARE rows are fetched: what follows is seldom as near as rounding to the k-th
COARSE = 1024  # more rows are told apart by float32
MANY = 4096  # rows fetched beyond k where as many are that near; which of still more equal rows come is left open
TIE = 10  # decimals of z and cosine, computed in float64, that tell documents apart
FLAT = 1e-9  # of the largest variance: less counts as none
SHORT = 1e-30  # of a length: a zero vector's
PAIRED = 1024  # rows and documents of the ensemble, drawn at random, whose cosines psi^ is fitted to
ROUNDING = 1e-9  # of z and scores in float64, well above: a cutoff that is itself a document finds itself

FLOOR = float(sigma_floor(torch.ones(()), torch.finfo(torch.float32).eps))  # the least sigma that is not rounding

_erfc = np.frompyfunc(math.erfc, 1, 1)

Array: TypeAlias = np.ndarray
Found: TypeAlias = tuple[list[Any], ...]  # rows, cosine, z, score of the hits of one query
Judged: TypeAlias = tuple[Array, Array, Array, Array, Array | None]  # see Ranker._settled


class Limits(NamedTuple):
    """What may be found: at most k rows (None: any number), scores within limits, rows `allowed` (n,) bool."""

    k: int | None = None
    min_score: float = 0.0
    max_score: float = 1.0
    allowed: Tensor | None = None

    def fetch(self, documents: int) -> int:
        """Rows to ask the engine for."""
        return documents if self.k is None else min(self.k + SLACK + self.k // SHARE, documents)

    def cut(self, rows: Array, cosine: Array, z: Array, score: Array, passes: Array) -> list[Found]:
        """The hits of each query that pass, at most k; all (b, f), best first."""
        if self.min_score > 0 or self.max_score < 1:
            passes = passes & (score >= self.min_score) & (score <= self.max_score)
        columns = rows, cosine, z, score
        if passes.all():
            return list(zip(*(column[:, : self.k].tolist() for column in columns), strict=True))
        return [tuple(column[i, ok][: self.k].tolist() for column in columns) for i, ok in enumerate(passes)]


@dataclass
class Ranker:
    """Rows, ranked for any query. Several threads may search at once; a change must be alone.

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
    _moments: Array | None = field(default=None, init=False)  # mu and sigma of each row, (2, n) float64
    _fitted: FittedLabels | None = field(default=None, init=False)  # see `_as_labels`
    _built: int | None = field(default=None, init=False)  # rows that the engine has seen
    _building: SharedLock = field(default_factory=SharedLock, init=False)  # the first search builds, others wait

    # --- changes -------------------------------------------------------------------------------------------------

    def add(self, parts: list[Tensor]) -> None:
        """Add embeddings, each part (b, d), which is let go once it is in. After an error `reset` is to follow."""
        self._fitted = None
        if self.own and self.ensemble is not None:  # every sigma moves
            self._built = self._moments = None
            self.ensemble = self.ensemble.without_reservoir()  # a copy: `reset` may take the other back
        while parts:
            for part in parts.pop(0).detach().split(SLICE):
                self._add(part)

    def reset(self, count: int, ensemble: Ensemble | None) -> None:
        """Back to the first `count` rows and the ensemble of then, whatever an addition has come to."""
        self.rows.cut(count)
        self.ensemble = ensemble

    def _add(self, emb: Tensor) -> None:
        wide = emb.to(self.rows.device, torch.float64)
        length = torch.linalg.vector_norm(wide, dim=1, keepdim=True)
        # beyond float32 squares may leave float64's range, which `unit_rows` sees to and takes twice the time for
        unit = unit_rows(wide) if emb.dtype == torch.float64 else wide.div_(length.masked_fill_(length == 0, 1))
        unit = unit.to(torch.float32)
        self.rows.append(unit)
        if self.own and self.ensemble is not None:
            self.ensemble.update(unit, precision="exact")

    def kept(self, mask: Tensor, engine: Engine) -> Ranker:
        """Another ranker, of the rows whose `mask` (n,) is True, their own ensemble being left with them too."""
        ensemble = self.ensemble
        if self.own and ensemble is not None:
            # whichever part is smaller is passed over, so rounding grows by no more than a factor of two
            few = mask if 2 * mask.sum() < len(mask) else ~mask
            part = Ensemble(self.rows.dim, reservoir=0, encoder=ensemble.encoder, device=self.rows.device)
            for start, rows in self.rows.parts():
                chosen = few[start : start + len(rows)]
                if chosen.any():
                    part.update(rows[chosen.to(rows.device)], precision="exact")
            ensemble = part if few is mask else _without(ensemble, part)
        return replace(self, rows=self.rows.kept(mask), engine=engine, ensemble=ensemble)

    def _refresh(self) -> None:
        """Bring scales and engine up to date."""
        if self._built != len(self.rows):
            with self._building.alone():
                if self._built != len(self.rows):
                    self._build()

    def _build(self) -> None:
        known = self._built or 0
        if self.direction == "documents":
            moments = np.empty((2, len(self.rows)))  # at once: kept pieces would cut the memory between them to pieces
            if self._moments is not None:
                moments[:, :known] = self._moments[:, :known]  # more, where this was interrupted before
            for start, rows in self.rows.parts(known):
                moments[:, start : start + len(rows)] = _numpy(torch.stack(self._context.moments(rows)))
            self._moments = moments
        form = self._form(self.engine.wants_unit)
        if known:
            self.engine.extend(self.rows, form, known)
        else:
            self.engine.build(self.rows, form)
        self._built = len(self.rows)

    def _form(self, unit: bool) -> Form:
        """What makes the engine's products z. sigma = 0 gets the steepest slope that rounding allows, a zero row 0."""
        if self._moments is None:
            return Form()
        inverse = np.where(self.rows.lengths > SHORT, 1 / np.maximum(self._moments[1], FLOOR), 0)
        scale = torch.from_numpy(inverse).to(self.rows.device, torch.float32)
        if not unit:
            return Form(scale)
        values, vectors = torch.linalg.eigh(self._context.covariance)
        # a direction without variance says nothing of sigma but may tell keys apart: it keeps a little weight
        spread = values.clamp(min=max(float(values[-1]) * FLAT, FLAT)).sqrt()
        root, undone = vectors * spread @ vectors.T, vectors / spread @ vectors.T
        return Form(scale, root.to(torch.float32), undone.to(torch.float32))

    @property
    def _context(self) -> Ensemble:
        assert self.ensemble is not None
        return self.ensemble

    # --- searching -----------------------------------------------------------------------------------------------

    def context_size(self, questions: int) -> int:
        """Documents in the ensemble of a call with so many questions."""
        return questions if self.ensemble is None else len(self.ensemble)

    def search(self, keys: Array, cutoff: Array | None, limits: Limits) -> list[Found]:
        """Rows for each query, best first.

        Only the engine works on the device: around it a search handles some 16 rows a query, for which a call of
        NumPy costs a third of one of torch.

        Args:
            keys: (b, d) unit rows, float64; b >= 1. There is at least one row.
            cutoff: (1, d) row: rows that surprise less than it would are left out.
            limits: what may be found.
        """
        if cutoff is not None:  # rounded as the rows are, so that one of them finds itself
            rounded = torch.from_numpy(cutoff.astype(np.float32).astype(np.float64))
            cutoff = _numpy(unit_rows(rounded))
        if self.direction == "questions":
            return self._by_questions(keys, cutoff, limits)
        if crossover_weight(len(self._context), self.weight, self.n_cross) < 1:
            return self._blended(keys, cutoff, limits)
        return self._by_documents(keys, cutoff, limits)

    def _by_documents(self, keys: Array, cutoff: Array | None, limits: Limits) -> list[Found]:
        """Documents are q and w = 1: an inner-product search, settled in float64."""
        self._refresh()
        assert self._moments is not None
        moments, least = self._moments, None
        if cutoff is not None:
            mean, std = map(_numpy, self._context.moments(self._tensor(cutoff)))
            least = _standardize(keys @ cutoff.T, mean, std)
            least -= ROUNDING * np.where(np.isfinite(least), np.maximum(np.abs(least), 1.0), 0)

        def judge(which: Array | slice, rows: Array, cosine: Array) -> Judged:
            mean, std = moments.take(rows, axis=1)
            z = _standardize(cosine, mean, std)
            product = z if std.min() > FLOOR else (cosine - mean) / np.maximum(std, FLOOR)
            return z, product, z, _cdf(z), None if least is None else z >= least[which]

        return self._settled(keys, keys - _numpy(self._context.mean), limits, _z_of(limits.max_score), judge)

    def _by_questions(self, keys: Array, cutoff: Array | None, limits: Limits) -> list[Found]:
        """Questions are q: the order is the cosine's for any w, the scores are those of each question."""
        self._refresh()
        queries = self._tensor(keys)
        if self.ensemble is None:
            fitted = FittedLabels.fit(queries, queries, weight=self.weight, n_cross=self.n_cross)
        else:
            mean, std = self.ensemble.moments(queries)
            fitted = replace(self._as_labels(), queries=queries, mean=mean, std=std)
        means, stds = _numpy(fitted.mean)[:, None], _numpy(fitted.std)[:, None]
        least = None if cutoff is None else keys @ cutoff.T - ROUNDING

        def judge(which: Array | slice, rows: Array, cosine: Array) -> Judged:  # noqa: ARG001 (as the other one)
            z = _standardize(cosine, means[which], stds[which])
            score = _cdf(z)
            if fitted.rescale is not None:
                rescaled = _numpy(fitted.rescale(torch.from_numpy(cosine))[0])
                score = (1 - fitted.weight) * rescaled + fitted.weight * score
            return cosine, cosine, z, score, None if least is None else cosine >= least[which]

        whole = limits.max_score < 1  # which cosine has that score differs from question to question
        return self._settled(keys, keys, limits, math.inf, judge, whole)

    def _settled(
        self,
        keys: Array,
        queries: Array,
        limits: Limits,
        upper: float,
        judge: Callable[[Array | slice, Array, Array], Judged],
        whole: bool = False,
    ) -> list[Found]:
        """The rows with the largest products for each query, in the order that float64 gives them.

        More are fetched for queries whose k-th row is not beyond all that the engine's last bound leaves open.

        Args:
            keys: (b, d) float64.
            queries: (b, d) float64, what the engine searches with.
            limits: what may be found.
            upper: rows with larger products are not wanted.
            judge: of some queries, their rows and cosines (f, r): what to order by, the engine's product, z, score and
                whether they pass (None: all), each (f, r).
            whole: fetch every row.
        """
        total = len(self.rows)
        most = total if limits.k is None else min(limits.k + MANY, total)
        fetch = total if whole else limits.fetch(total)
        found: list[Found] = []
        which: Array | slice = slice(None)  # all queries at first, then those that are not settled yet
        fine = False
        while True:
            searched = self._tensor(queries[which], np.float32)
            bounds, index = map(_numpy, self.engine.search(searched, fetch, limits.allowed, upper, fine))
            cosine = self._cosines(keys[which], index)
            by, product, z, score, passes = judge(which, index, cosine)
            there = bounds > -math.inf
            order = np.arange(len(by))[:, None], _descending(by, index)
            passes = (there if passes is None else there & passes)[order]
            hits = limits.cut(index[order], cosine[order], z[order], score[order], passes)
            if isinstance(which, slice):
                found, which = hits, np.arange(len(hits))
            else:
                for i, better in zip(which.tolist(), hits, strict=True):
                    found[i] = better
            if limits.k is None or fetch >= most:
                return found
            wanted = np.where(there & (score <= limits.max_score), product, -math.inf)
            last = bounds[:, -1]
            which = which[(last > -math.inf) & (np.partition(wanted, -limits.k)[:, -limits.k] <= last)]
            if not len(which):
                return found
            fetch = min(4 * fetch, most)
            fine = fetch > COARSE

    def _blended(self, keys: Array, cutoff: Array | None, limits: Limits) -> list[Found]:
        """Documents are q and w < 1: the decision rule of labels, with the documents as the labels."""
        self._refresh()
        texts = self._tensor(keys)
        assert self._moments is not None
        fitted, among = self._as_labels(), torch.arange(len(self.rows), device=self.rows.device)
        if limits.allowed is not None:
            among = among[limits.allowed]
            fitted = fitted.select(among)
        bounded = cutoff is not None or limits.max_score < 1
        score, place = fitted.rank(texts, None if bounded else min(limits.fetch(len(self.rows)), len(among)))
        passes = torch.ones_like(place, dtype=torch.bool)
        if cutoff is not None:
            one = self._tensor(cutoff)
            mean, std = self._context.moments(one)
            passes = score >= replace(fitted, queries=one, mean=mean, std=std).score(texts) - ROUNDING
        index = _numpy(among[place])
        cosine = self._cosines(keys, index)
        z = _standardize(cosine, *self._moments.take(index, axis=1))
        return limits.cut(index, cosine, z, _numpy(score), _numpy(passes))

    def _as_labels(self) -> FittedLabels:
        """The rows as labels, until the corpus changes. With direction="questions" the map to psi^ is all that counts.

        That would take all pairs after each change, and gets a part.
        """
        with self._building.alone():
            if self._fitted is None:
                w = crossover_weight(len(self._context), self.weight, self.n_cross)
                order = shuffled(torch.empty(len(self.rows))).numpy()
                some = self.rows.take(order[:PAIRED])
                context: Tensor | Ensemble = self._context
                if w < 1:
                    context = (
                        some if self.own else documents_of(context, some, f"a weight of {w:.3f}, below 1,")[:PAIRED]
                    )
                fitted = FittedLabels.fit(some, context, weight=w)
                if self._moments is not None:
                    mean, std = torch.from_numpy(self._moments).to(self.rows.device)
                    fitted = replace(fitted, queries=self.rows.whole(), mean=mean, std=std)
                self._fitted = fitted
        return self._fitted

    def _cosines(self, keys: Array, rows: Array) -> Array:
        """Cosine (b, f) float64 of each key (b, d) with its own rows (b, f)."""
        products, lengths = self.rows.products(rows, keys)
        return products / np.maximum(lengths, SHORT)

    def _tensor(self, rows: Array, dtype: Any = np.float64) -> Tensor:
        return torch.from_numpy(rows.astype(dtype, copy=False)).to(self.rows.device)

    def export(self, unit: bool) -> tuple[Tensor, Tensor, Tensor | None]:
        """Vectors (n, d), centre (d,) and matrix (d, d), float32: vectors . (k^ - centre) @ matrix order the rows."""
        self._refresh()
        form = self._form(unit)
        vectors = torch.cat([form.rows(rows, start) for start, rows in self.rows.parts()])
        if self._moments is None:
            return vectors, vectors.new_zeros(self.rows.dim), None
        return vectors, self._context.mean.to(torch.float32), form.inverse


def _descending(values: Array, rows: Array) -> Array:
    """Order (b, f) of each query's hits: by value, the earlier row first among equals."""
    # a matrix product rounds equal rows differently by their place
    return np.lexsort((rows, -values.round(TIE)))


def _standardize(cosine: Array, mean: Array, std: Array) -> Array:
    """z (float64); where std = 0: -inf below the mean, 0 at it, +inf above (design fact 4).

    At it is what float32 can't tell from it: rows are rounded to it, and embeddings of one text differ by as much.
    """
    if (std > 0).all():
        return (cosine - mean) / std
    cosine, mean, std = np.broadcast_arrays(cosine, mean, std)
    gap, dead = cosine - mean, std == 0
    step = np.where(np.abs(gap) <= FLOOR, 0.0, np.copysign(math.inf, gap))
    return np.where(dead, step, gap / np.where(dead, 1.0, std))


def _cdf(z: Array) -> Array:
    """`ops.normal_cdf` of few values: after a pass over the vectors torch takes 85 microseconds to wake up."""
    return 0.5 * np.asarray(_erfc(z * -math.sqrt(0.5)), dtype=np.float64)


def _z_of(score: float) -> float:
    """z of a score, and a little more: the engine's products are float32, the limit itself is kept in float64."""
    return math.inf if score == 1 else float(torch.special.ndtri(torch.tensor(score, dtype=torch.float64))) + 1e-4


def _numpy(x: Tensor) -> Array:
    return x.cpu().numpy()


def _without(whole: Ensemble, part: Ensemble) -> Ensemble:
    """The ensemble less documents that are in it: Chan, Golub and LeVeque's merge solved for the other part."""
    left = Ensemble(whole.dim, reservoir=0, encoder=whole.encoder, device=whole.device)
    left.count = whole.count - part.count
    if left.count > 0:
        left.mean = whole.mean + (whole.mean - part.mean) * (part.count / left.count)
        gap = left.mean - part.mean
        left.scatter = whole.scatter - part.scatter - torch.outer(gap, gap) * (left.count * part.count / whole.count)
    return left
