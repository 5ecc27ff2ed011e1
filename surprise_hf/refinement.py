"""Refinement: the same score with labels moved towards the documents that they attract, without labelled data.

A label name says where its documents should lie; the documents say where such a group does lie. Each round asks which
documents each label attracts, and turns the label towards what sets these apart:

    q <- u( (1 - b_q) u(q_0^ - m) + b_q u(R u(M_q - m)) ),      u(x) = x / |x|

from the original label q_0, with m and C the mean and covariance of the unit documents and M_q their mean weighted by
s = softmax over labels of t z. Beyond design fact 5 (b_q = 1 - a, R = 1), measured in docs/accuracy.md:

- R = (C / c + r)^-1 with c the mean eigenvalue of C. Directions in which all documents differ much (length, tone,
  topic) say little about one label; undamped, they pull every label their way, which is what lost on sentiment.
- b_q = (1 - a) N_q / (N_q + f), N_q the sum of s^2: a label that is sure of few documents stays where it was.
"""

from __future__ import annotations

from typing import Any, NamedTuple, SupportsIndex

import torch
from torch import Tensor
from torch.nn.functional import embedding_bag

from . import inputs, ops
from .contexts import check_ensemble
from .ensemble import Ensemble
from .estimators import row_slices
from .ops import compute_dtype, full_precision, unit_rows
from .reservoir import reservoir_order

PULL, SHARPNESS = 0.4, 3.0  # a and t: 0.2 to 0.5 and 2 to 5 make no difference worth having
RIDGE, FEW = 4.0, 3.0  # r and f
ROUNDS, GENTLE = 10, 5
STABLE, UNRELATED = 0.8, 3.0  # limits of `judge`
SAMPLE, EACH = 16384, 128  # documents looked at: at most the larger of so many, and so many for each label
MANY, NEAREST = 256, 64  # above so many labels, only so many of each document are weighed


class Judgement(NamedTuple):
    """What `judge` found.

    Attributes:
        rounds: 10, 5 or 0, or those asked for.
        queries: (m, d) unit rows, moved by so many rounds.
        agreement: fraction of documents that get the same label from labels refined on either half of them.
        scatter: share of the documents' scatter that lies between the labels' groups, after refinement over before.
        apart: documents (n, d) and labels moved by so many rounds on other documents, the two halves; empty where
            there are fewer than two documents or labels.
    """

    rounds: int
    queries: Tensor
    agreement: float
    scatter: float
    apart: tuple[tuple[Tensor, Tensor], ...] = ()


def refine_labels(
    queries: Tensor, ensemble: Tensor | Ensemble, rounds: int | str = ROUNDS, *, held: int = 0, impl: str = "auto"
) -> Tensor:
    """Labels after some rounds of refinement, for the cosine. The same input gives the same labels.

    Args:
        queries: (m, d) floating.
        ensemble: documents (e, d), or an `Ensemble`, whose reservoir then stands for them (its mean and covariance
            remain those of all documents). Of a tensor with more than 16,384 rows, and more than 128 for each label,
            so many are drawn, those that an Ensemble with such a reservoir would keep. So the same documents give the
            same labels either way, to rounding, where the Ensemble keeps all of them (4,096, unless told otherwise).
        rounds: 0 returns the unit queries; "auto" lets `judge` decide.
        held: so many labels, the first ones, stay where they are, and their documents are not drawn to the others.
        impl: as for the ops.

    Returns:
        (m, d) unit rows in the compute dtype of the queries.

    Raises:
        TypeError: queries or documents are not floating.
        ValueError: as `contexts.check_context`; an `Ensemble` without a reservoir, unless rounds is 0; rounds that are
            no number from 0 on.

    References: design fact 5; docs/accuracy.md.
    """
    if rounds == "auto":
        return judge(queries, ensemble, held=held, impl=impl).queries
    queries, ensemble = _check(queries, ensemble, rounds)
    start = unit_rows(queries)
    if not rounds:
        return start
    return _Rounds(start, *_looked_at(ensemble, start), held, impl).run(start, int(rounds))


def judge(
    queries: Tensor, ensemble: Tensor | Ensemble, rounds: int | str = "auto", *, held: int = 0, impl: str = "auto"
) -> Judgement:
    """How far to refine, from the ensemble alone.

    10 rounds; 5 where labels refined on one half of the documents and on the other agree on fewer than 80 % of them
    (later rounds then follow chance); none where the groups set apart more than three times the scatter that they did
    before (they are then groups of something else than the labels, or of documents that no label is meant for).

    Arguments and errors as for `refine_labels`; a number of rounds is taken as it is, and the rest reported.

    References: docs/accuracy.md, where the limits were chosen on some sets and tried on others.
    """
    # the documents are looked at all the same where there are no rounds
    queries, ensemble = _check(queries, ensemble, "auto" if rounds == 0 else rounds)
    start = unit_rows(queries)
    asked, context = _looked_at(ensemble, start)
    whole = _Rounds(start, asked, context, held, impl)
    chosen = None if rounds == "auto" else int(rounds)
    if len(start) < 2 or len(asked) < 2:
        return Judgement(chosen or 0, whole.run(start, chosen) if chosen else start, 1.0, 1.0)
    halves = asked.chunk(2)  # their order is random
    contexts = [Ensemble.from_embeddings(half, reservoir=0) for half in halves]
    runs = [whole, *(_Rounds(start, *pair, held, impl) for pair in zip(halves, contexts, strict=True))]
    at = {0: [start] * 3}
    for stop, more in ((GENTLE, GENTLE), (ROUNDS, ROUNDS - GENTLE)):
        at[stop] = [run.run(labels, more) for run, labels in zip(runs, at[stop - more], strict=True)]
    one, other, before, after = (_winners(asked, labels, impl) for labels in (*at[ROUNDS][1:], start, at[ROUNDS][0]))
    agreement = float((one == other).double().mean())
    share_before = _between(asked, before, len(start))
    scatter = _between(asked, after, len(start)) / share_before if share_before > 0 else 1.0
    if chosen is None:
        chosen = 0 if scatter > UNRELATED else GENTLE if agreement < STABLE else ROUNDS
    if chosen not in at:
        at[chosen] = [run.run(start, chosen) for run in runs]
    moved, *crossed = at[chosen]
    apart = tuple(zip(halves, reversed(crossed), strict=True))
    return Judgement(chosen, moved, agreement, scatter, apart)


def documents_of(ensemble: Tensor | Ensemble, queries: Tensor, what: str) -> Tensor:
    """Documents to compute with: all of a tensor, the reservoir of an `Ensemble`."""
    if not isinstance(ensemble, Ensemble):
        return ensemble
    if not len(ensemble.reservoir):
        raise ValueError(
            f"{what} needs documents, and this Ensemble keeps none (reservoir=0): build it with reservoir=4096, or "
            "use weight=1, estimator='gaussian', similarity='cosine' and refine=0"
        )
    return ensemble.reservoir.to(queries.device)


def check_rounds(name: str, rounds: Any) -> None:
    """Refuse what is no number of rounds, nor "auto"."""
    if rounds != "auto" and not (inputs.as_number(rounds) >= 0 and isinstance(rounds, SupportsIndex)):
        raise ValueError(f"{name} must be 'auto' or a number of rounds, 0 or more, got {rounds!r}")


def _check(queries: Any, ensemble: Any, rounds: int | str) -> tuple[Tensor, Tensor | Ensemble]:
    queries, ensemble = check_ensemble(queries, ensemble)
    check_rounds("rounds", rounds)
    if rounds:
        documents_of(ensemble, queries, "refinement")
    return queries, ensemble


class _Rounds:
    """What stays the same from round to round."""

    def __init__(self, start: Tensor, documents: Tensor, context: Ensemble, held: int, impl: str) -> None:
        self.start, self.documents, self.context, self.held, self.impl = start, documents, context, held, impl
        width = len(start) if len(start) <= MANY else NEAREST
        if self.documents.dtype != start.dtype:
            width = max(width, start.shape[1])  # a block of documents is copied
        self.slices = list(row_slices(len(self.documents), width))
        self.scale = torch.cat([_inverse_norms(self.documents[part]) for part in self.slices])
        self.centre = self.context.mean.to(start.device)
        self.anchor = unit_rows(start.to(torch.float64) - self.centre)
        spread = self.context.covariance.to(start.device)
        spread = spread / (spread.trace() / len(spread)).clamp_min(torch.finfo(spread.dtype).tiny)
        self.damping = torch.linalg.inv(spread + RIDGE * torch.eye(len(spread), dtype=spread.dtype).to(spread.device))

    @full_precision
    def run(self, moved: Tensor, rounds: int) -> Tensor:
        """Labels after some more rounds."""
        for _ in range(rounds):
            weight, sure, total = self._attracted(moved)
            mean = total / torch.where(weight > 0, weight, 1.0).unsqueeze(1)
            towards = unit_rows(unit_rows(mean - self.centre) @ self.damping)
            far = ((1 - PULL) * sure / (sure + FEW)).unsqueeze(1)
            target = unit_rows((1 - far) * self.anchor + far * towards).to(moved.dtype)
            stays = (weight == 0) | (target == 0).all(dim=1)
            stays[: self.held] = True
            moved = torch.where(stays.unsqueeze(1), self.start, target)
        return moved

    def _attracted(self, moved: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Of each label: the sum of its shares s (m,), of s^2 (m,) and of s k^ (m, d), all float64."""
        mean, std = self.context.moments(moved)
        weight, sure, total = torch.zeros_like(mean), torch.zeros_like(mean), torch.zeros_like(self.anchor)
        pick = self._nearest if len(moved) > MANY else self._all
        for part in self.slices:
            documents, scale = self.documents[part], self.scale[part]
            more_weight, more_sure, more_total = pick(documents, scale, moved, mean, std)
            weight, sure, total = weight + more_weight, sure + more_sure, total + more_total
        return weight, sure, total

    def _all(self, documents: Tensor, scale: Tensor, moved: Tensor, mean: Tensor, std: Tensor) -> _Sums:
        z = ops.surprise_from_moments(documents, moved, mean, std, output="z", impl=self.impl)
        share = self._shares(z.T.contiguous())  # (m, n): for few labels several times faster along columns
        total = (share * scale.to(share.dtype)) @ documents.to(share.dtype)
        return share.sum(dim=1, dtype=torch.float64), share.square().sum(dim=1, dtype=torch.float64), total

    def _nearest(self, documents: Tensor, scale: Tensor, moved: Tensor, mean: Tensor, std: Tensor) -> _Sums:
        z, label = ops.surprise_topk(documents, moved, mean, std, NEAREST, output="z", impl=self.impl)
        share = self._shares(z.T).T
        order = label.flatten().argsort(stable=True)
        ends = torch.bincount(label.flatten(), minlength=len(moved)).cumsum(dim=0)
        total = embedding_bag(
            order // NEAREST,
            documents.to(share.dtype),
            ends.roll(1).index_fill(0, ends.new_zeros(1), 0),
            mode="sum",
            per_sample_weights=(share * scale.to(share.dtype).unsqueeze(1)).flatten()[order],
        )
        weight, sure = (
            torch.zeros_like(mean).scatter_add_(0, label.flatten(), x.flatten().to(torch.float64))
            for x in (share, share.square())
        )
        return weight, sure, total

    def _shares(self, z: Tensor) -> Tensor:
        """softmax over labels (rows) of t z; sigma = 0 gives infinite z."""
        return z.clamp(-1e6, 1e6).mul_(SHARPNESS).softmax(dim=0)


_Sums = tuple[Tensor, Tensor, Tensor]


# --- pieces ------------------------------------------------------------------------------------------------------


def _looked_at(ensemble: Tensor | Ensemble, start: Tensor) -> tuple[Tensor, Ensemble]:
    """Documents in random order, and their statistics; of an `Ensemble` and a tensor of the same rows the same."""
    if isinstance(ensemble, Ensemble):
        return ensemble.reservoir.to(start.device), ensemble
    order = reservoir_order(len(ensemble), max(SAMPLE, EACH * len(start))).to(ensemble.device)
    documents = ensemble[order]
    return documents, Ensemble.from_embeddings(ensemble if len(order) == len(ensemble) else documents, reservoir=0)


def _inverse_norms(rows: Tensor) -> Tensor:
    """(n,) 1 / |row|, 0 for a zero row; huge and tiny rows neither overflow nor vanish."""
    rows = rows.to(compute_dtype(rows.dtype))
    norm = torch.linalg.vector_norm(rows, dim=1)
    if len(rows) and not 1e-12 < float(norm.min()) <= float(norm.max()) < 1e12:
        largest = rows.abs().amax(dim=1, keepdim=True).clamp_min(torch.finfo(rows.dtype).tiny)
        norm = largest[:, 0] * torch.linalg.vector_norm(rows / largest, dim=1)
    return torch.where(norm > 0, (1 / norm).clamp_max(torch.finfo(norm.dtype).max), 0.0)


def _winners(documents: Tensor, labels: Tensor, impl: str) -> Tensor:
    """(n,) int64, the label of largest z of each document, in this crowd."""
    mean, std = ops.cosine_moments(documents, labels, impl=impl)
    return ops.surprise_topk(documents, labels, mean, std, 1, impl=impl)[1][:, 0]


def _between(documents: Tensor, group: Tensor, groups: int) -> float:
    """Share of the unit documents' scatter that lies between groups: sum n_g |mean_g - m|^2 / sum |k^ - m|^2."""
    count = torch.bincount(group, minlength=groups).to(torch.float64)
    total = torch.zeros(groups, documents.shape[1], dtype=torch.float64, device=documents.device)
    for part in row_slices(len(documents), documents.shape[1]):
        total.index_add_(0, group[part], unit_rows(documents[part]).to(torch.float64))
    centre = total.sum(dim=0) / len(documents)
    means = total / count.clamp_min(1).unsqueeze(1)
    scatter = len(documents) * (1 - float(centre.square().sum()))  # of unit rows
    between = float((count * (means - centre).square().sum(dim=1)).sum())
    return between / scatter if scatter > 0 else 0.0
