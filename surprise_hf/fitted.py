"""FittedLabels: everything about a set of labels that depends on the ensemble, frozen.

So a document alone scores as it does in the crowd. This is the one implementation of the score, its crossover to the
plain similarity and the decision (paper section 2, design section 1); `surprise` fits labels and scores the keys.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from numbers import Integral
from typing import Any

import numpy as np
import torch
from torch import Tensor

from . import estimators as est
from . import inputs, ops
from .contexts import check_ensemble
from .ensemble import Ensemble, check_rows
from .estimators import ESTIMATORS, SIMILARITIES, Rescale
from .ops import compute_dtype, normal_cdf, sigma_floor, standardize, unit_rows
from .refinement import SAMPLE, Judgement, check_rounds, documents_of, judge, refine_labels
from .tails import Tails

SMALL_WEIGHT = 0.9  # below it (fewer than 1.5 n_cross documents) the scores lean on the plain similarity: worth a word
LISTED = 64  # labels that the op lists, by insertion into the list of a document; more are sorted
PIECE = 1 << 16  # elements of psi that are blended and ranked at once: half a MiB in float64


def crossover_weight(documents: int, weight: float | None = None, n_cross: float = 1000) -> float:
    """w = tanh(e / n_cross) for e documents, or the given weight; within 1e-3 of 0 or 1 it is 0 or 1.

    Raises:
        ValueError: a weight outside [0, 1], or n_cross <= 0.

    References: paper section 2.1 (dynamic crossover).
    """
    if weight is None:
        if not inputs.as_number(n_cross) > 0:
            raise ValueError(
                f"n_cross must be a positive number, got {n_cross!r}; for the surprise score alone set its weight to 1"
            )
        weight = math.tanh(documents / n_cross)
    if not 0 <= inputs.as_number(weight) <= 1:
        raise ValueError(f"weight must be between 0 (similarity) and 1 (surprise), got {weight!r}")
    return 0.0 if weight < 1e-3 else 1.0 if 1 - weight < 1e-3 else float(weight)


@dataclass(frozen=True)
class FittedLabels:
    """Labels and what the ensemble says about them. Build with `fit`.

    Attributes:
        queries: (m, d) label vectors in the compute dtype (moved ones after refinement), not necessarily unit rows.
        mean, std: (m,) float64, of the estimator: moments, or median and p84.13 - median.
        rescale: the map to psi^; None where weight = 1.
        columns: (m, e) ascending similarities of the ensemble, for the empirical estimator; else None.
        tails: what scores promise, for the tail estimator and where "auto" has looked at it; else None.
        weight: w, snapped to 0 and 1.
        estimator, similarity, anchor: as in `surprise`.
    """

    queries: Tensor
    mean: Tensor
    std: Tensor
    rescale: Rescale | None = None
    columns: Tensor | None = None
    weight: float = 1.0
    estimator: str = "gaussian"
    similarity: str = "cosine"
    anchor: int = -1
    tails: Tails | None = None

    # --- fitting -------------------------------------------------------------------------------------------------

    @classmethod
    def fit(
        cls,
        queries: Tensor,
        ensemble: Tensor | Ensemble,
        *,
        weight: float | None = None,
        n_cross: float = 1000,
        estimator: str = "gaussian",
        similarity: str = "cosine",
        anchor: int = -1,
        refine: int | str = 0,
        impl: str = "auto",
    ) -> FittedLabels:
        """Freeze labels against an ensemble. Arguments and errors as in `surprise`; the result carries no gradient.

        A tensor ensemble is used whole for every statistic, in blocks. An `Ensemble` gives cosine and dot moments
        from all its documents and everything else (ranks, quantiles, psi^, distances) from its reservoir.
        """
        check_options(estimator, similarity, anchor, refine)
        queries, ensemble = check_ensemble(queries, ensemble, similarity)
        w = crossover_weight(len(ensemble), weight, n_cross)
        with torch.no_grad():
            labels = freeze(queries, ensemble, w, estimator, similarity, anchor, refine, impl)
            if estimator == "empirical":
                rows = documents_of(ensemble, labels.queries, "estimator='empirical'")
                blocks = est.sorted_columns(rows, labels.queries, similarity, impl)
                labels = replace(labels, columns=torch.cat([column for _, column in blocks]))
        return labels

    def select(self, index: Tensor | slice | list[int]) -> FittedLabels:
        """Some of the labels, each with the scores it had among all."""
        columns = None if self.columns is None else self.columns[index]
        tails = None if self.tails is None else self.tails.select(index)
        some = {name: getattr(self, name)[index] for name in ("queries", "mean", "std")}
        return replace(self, **some, columns=columns, tails=tails)

    @torch.no_grad()
    def extended(
        self, queries: Tensor, ensemble: Tensor | Ensemble, *, refine: int | str = 0, impl: str = "auto"
    ) -> FittedLabels:
        """These labels and new ones after them; the scores of the old stay as they are.

        Args:
            queries: (k, d) floating, the new labels.
            ensemble: what the old were fitted to.
            refine: of the new labels, beside the old ones, which stay where they are.
            impl: as for the ops.

        The map to psi^ and the law of a label's tail stay those of the old labels; what `accept` knows is learnt anew,
        from all of them. Refined labels have drawn the new ones' documents to themselves: where the old scores may
        change, `fit` of all labels decides better (docs/guide.md). Errors as for `fit`.
        """
        check_options(self.estimator, self.similarity, self.anchor, refine)
        queries, ensemble = check_ensemble(queries, ensemble, self.similarity)
        moved = queries
        if refine:
            documents_of(ensemble, queries, "refine")
            both = torch.cat((self.queries, unit_rows(queries).to(self.queries)))
            moved = refine_labels(both, ensemble, refine, held=len(self), impl=impl)[len(self) :]
        new = FittedLabels.fit(
            moved,
            ensemble,
            weight=1,  # no map to psi^
            estimator="gaussian" if self.estimator == "tail" else self.estimator,
            similarity=self.similarity,
            impl=impl,
        )
        columns = None
        if self.columns is not None and new.columns is not None:
            columns = torch.cat((self.columns, new.columns))
        tails = self.tails
        if tails is not None:
            given = torch.cat((unit_rows(tails.kinship.names), unit_rows(queries).to(torch.float64))).to(self.queries)
            all_of_them = _fit_tails(ensemble, given, judge(given, ensemble, impl=impl), False, impl)
            tails = replace(all_of_them, label=tails.label)
        return replace(
            self,
            queries=torch.cat((self.queries, new.queries)),
            mean=torch.cat((self.mean, new.mean)),
            std=torch.cat((self.std, new.std)),
            columns=columns,
            tails=tails,
        )

    def to(self, device: torch.device | str) -> FittedLabels:
        """The same labels on another device."""
        parts: dict[str, Any] = {
            name: part.to(device) for name, part in vars(self).items() if isinstance(part, (Tensor, Tails))
        }
        return replace(self, **parts)

    def __len__(self) -> int:
        return len(self.queries)

    # --- scoring -------------------------------------------------------------------------------------------------

    def psi(self, keys: Tensor, impl: str = "auto") -> Tensor:
        """The similarity itself, (n, m), in the compute dtype; distances are negated."""
        return est.similarity(keys, self.queries, self.similarity, impl)

    def z(self, keys: Tensor | np.ndarray, impl: str = "auto") -> Tensor:
        """(psi - mean) / std, (n, m), in the compute dtype; where std = 0: -inf, 0 or +inf, never NaN."""
        keys = self._check_keys(keys)
        if est.is_product(self.similarity):
            return self._op(keys, "z", impl)
        psi = self.psi(keys, impl)
        return standardize(psi, self.mean, self.std).to(psi.dtype)

    def score(self, keys: Tensor | np.ndarray, impl: str = "auto") -> Tensor:
        """S_w of every document for every label.

        Args:
            keys: (n, d) floating.
            impl: as for the ops.

        Returns:
            (n, m) in [0, 1] (but for anchor=0), float32 (float64 for float64 input).

        Raises:
            TypeError, ValueError: `keys` is no finite floating (n, d) tensor.
        """
        keys = self._check_keys(keys)
        if self._is_one_op:
            return self._op(keys, "score", impl)
        out = keys.new_empty((len(keys), len(self)), dtype=est.score_dtype(keys, self.queries))
        for part in est.row_slices(len(keys), len(self)):
            out[part] = self._blend(self.psi(keys[part], impl))[0].to(out.dtype)
        return out

    def rank(self, keys: Tensor | np.ndarray, k: int | None = None, impl: str = "auto") -> tuple[Tensor, Tensor]:
        """The k best labels of each document, best first, by the decision rule; never an (n, m) matrix.

        w = 1 orders by z, w = 0 by psi, between by the complement (1 - w)(1 - psi^) + w (1 - S), which keeps the
        order where scores have rounded to 1. Ties (the empirical estimate has many) are broken by z, then by the
        lower index.

        Args:
            keys: (n, d) floating.
            k: 1 <= k <= m; None gives all.
            impl: as for the ops.

        Returns:
            scores (n, k) as `score` gives them, and label indices (n, k) int64.

        Raises:
            ValueError: k does not fit, or no labels.
        """
        keys = self._check_keys(keys)
        k = len(self) if k is None else k
        if not 1 <= k <= len(self):
            raise ValueError(f"k must be between 1 and the {len(self)} labels, got {k}")
        if self._is_one_op and k <= LISTED:
            normalize = self.similarity == "cosine"
            return ops.surprise_topk(keys, self.queries, self.mean, self.std, k, normalize=normalize, impl=impl)
        scores = keys.new_empty((len(keys), k), dtype=est.score_dtype(keys, self.queries))
        indices = torch.empty((len(keys), k), dtype=torch.int64, device=keys.device)
        for part in est.row_slices(len(keys), len(self)):
            if self._is_one_op:
                indices[part] = est.best(self._op(keys[part], "z", impl), k)
                scores[part] = self._op(keys[part], "score", impl).gather(1, indices[part])
                continue
            psi = self.psi(keys[part], impl)
            # the blend has a dozen temporaries in float64 beside psi, whose product wants many rows at once
            for piece in est.row_slices(len(psi), len(self), PIECE):
                blend, complement = self._blend(psi[piece])
                order = self._order(psi[piece], complement, k)
                place = slice(part.start + piece.start, part.start + piece.stop)
                scores[place], indices[place] = blend.gather(1, order).to(scores.dtype), order
        return scores, indices

    def accept(self, keys: Tensor | np.ndarray, impl: str = "auto") -> Tensor:
        """How sure it is that a document belongs to any of the labels: 1 - how often one of none gets as far.

        (n,) float64 in [0, 1]. By `Tails.accept` where there are tails, which knows that the best of m scores is large
        by chance, what the groups of documents look like, and how strange the document is; else the best score.
        """
        if self.tails is None:
            return self.rank(keys, 1, impl)[0][:, 0].to(torch.float64)
        keys = self._check_keys(keys)
        return self.tails.accept(keys)

    def decide(self, keys: Tensor | np.ndarray, impl: str = "auto") -> Tensor:
        """The label of each document, (n,) int64, by the rule of `rank`."""
        return self.rank(keys, 1, impl)[1][:, 0]

    def _order(self, psi: Tensor, complement: Tensor, k: int) -> Tensor:
        """The best k labels (n, k): by psi, by z, or by the complement and then z; of equal ones the first."""
        if self.weight == 0:
            return est.best(psi, k)
        z = standardize(psi, self.mean, self.std)
        return est.best(z, k) if self.weight == 1 and self.estimator != "empirical" else est.best(-complement, k, z)

    def _blend(self, psi: Tensor) -> tuple[Tensor, Tensor]:
        """S_w and 1 - S_w, both accurate where they are small: (n, m) float64."""
        score = complement = torch.zeros((), dtype=torch.float64, device=psi.device)
        if self.weight > 0:
            if self.columns is not None:
                below = est.fraction_below(psi, self.columns, self.similarity)
                score, complement = below, 1 - below
            else:
                z = standardize(psi, self.mean, self.std)
                z = self.tails.label(z) if self.tails is not None and self.estimator == "tail" else z
                score, complement = normal_cdf(z), normal_cdf(-z)
        if self.rescale is not None:
            w = self.weight
            hat, gap = self.rescale(psi, bounded=self.anchor != 0)
            score, complement = (1 - w) * hat + w * score, (1 - w) * gap + w * complement
        return score, complement

    @property
    def _is_one_op(self) -> bool:
        return self.weight == 1 and self.estimator not in ("empirical", "tail") and est.is_product(self.similarity)

    def _op(self, keys: Tensor, output: str, impl: str) -> Tensor:
        normalize = self.similarity == "cosine"
        return ops.surprise_from_moments(
            keys, self.queries, self.mean, self.std, output=output, normalize=normalize, impl=impl
        )

    def _check_keys(self, keys: Tensor | np.ndarray) -> Tensor:
        keys = inputs.embeddings(keys)
        check_rows("keys", keys, self.queries.shape[1])
        return keys

    # --- elsewhere -----------------------------------------------------------------------------------------------

    def to_linear(self) -> tuple[Tensor, Tensor]:
        """W (m, d) and b (m,) with z = k^ W^T + b (k as it is for dot): the weights of a `torch.nn.Linear`.

        A label with std = 0 gets the steepest slope that rounding allows in place of a step. z alone decides where
        w = 1 and the estimator is not empirical.

        Raises:
            ValueError: a distance, which is not linear.

        References: design fact 2.
        """
        if not est.is_product(self.similarity):
            raise ValueError(f"the {self.similarity} similarity is not linear in the document; use cosine or dot")
        std = self.std.maximum(sigma_floor(self.mean, torch.finfo(self.queries.dtype).eps))
        q = self.queries.to(torch.float64)
        q = unit_rows(q) if self.similarity == "cosine" else q
        return (q / std.unsqueeze(1)).to(self.queries.dtype), (-self.mean / std).to(self.queries.dtype)

    def state(self) -> dict[str, Tensor | float | int | str]:
        """Everything as a flat dict of tensors and scalars; parts that are None are left out."""
        state: dict[str, Tensor | float | int | str] = {
            "queries": self.queries,
            "mean": self.mean,
            "std": self.std,
            "weight": self.weight,
            "estimator": self.estimator,
            "similarity": self.similarity,
            "anchor": self.anchor,
        }
        if self.rescale is not None:
            state["rescale"] = torch.tensor(self.rescale, dtype=torch.float64)
        if self.columns is not None:
            state["columns"] = self.columns
        if self.tails is not None:
            state |= self.tails.state()
        return state

    @classmethod
    def from_state(cls, state: Mapping[str, object]) -> FittedLabels:
        """From what `state` gave; scalars may have become strings on the way.

        Raises:
            ValueError: a part is missing or does not fit the others.
        """
        try:
            queries, mean, std = (state[name] for name in ("queries", "mean", "std"))
            rescale, columns = state.get("rescale"), state.get("columns")
            weight, anchor = float(str(state["weight"])), int(str(state["anchor"]))
            estimator, similarity = str(state["estimator"]), str(state["similarity"])
        except (KeyError, ValueError) as error:
            raise ValueError(f"these are no fitted labels: {error}") from error
        check_options(estimator, similarity, anchor, 0)
        if not (isinstance(queries, Tensor) and isinstance(mean, Tensor) and isinstance(std, Tensor)):
            raise ValueError("fitted labels: `queries`, `mean` and `std` must be tensors")
        m = len(queries)
        if queries.dim() != 2 or mean.shape != (m,) or std.shape != (m,):
            raise ValueError(f"fitted labels do not fit together: {queries.shape}, {mean.shape}, {std.shape}")
        if (weight < 1) != isinstance(rescale, Tensor) or (estimator == "empirical") != isinstance(columns, Tensor):
            raise ValueError("fitted labels lack a part: `rescale` belongs to weight < 1, `columns` to the empirical")
        for name, part in state.items():
            if isinstance(part, Tensor) and not torch.isfinite(part).all():
                raise ValueError(f"fitted labels: `{name}` holds NaN or infinity")
        if (std < 0).any() or not 0 <= weight <= 1:
            raise ValueError(f"fitted labels: a std is below 0, or the weight {weight} is not between 0 and 1")
        return cls(
            queries,
            mean,
            std,
            Rescale(*rescale.tolist()) if isinstance(rescale, Tensor) else None,
            columns if isinstance(columns, Tensor) else None,
            weight,
            estimator,
            similarity,
            anchor,
            Tails.from_state(state) if estimator == "tail" or "tails_centre" in state else None,
        )


# --- fitting, piece by piece -------------------------------------------------------------------------------------


def freeze(
    queries: Tensor,
    ensemble: Tensor | Ensemble,
    weight: float,
    estimator: str,
    similarity: str,
    anchor: int,
    refine: int | str,
    impl: str,
) -> FittedLabels:
    """All of `FittedLabels` but the columns, which are as large as the score matrix."""
    verdict, given = None, queries
    if estimator == "tail" or (estimator == "auto" and similarity == "cosine" and _enough(ensemble)):
        documents_of(ensemble, queries, "estimator='tail'")
        verdict = judge(queries, ensemble, refine or "auto", impl=impl)
    if refine:
        documents_of(ensemble, queries, "refine")
        queries = verdict.queries if verdict else refine_labels(queries, ensemble, refine, impl=impl)
    queries = queries.to(compute_dtype(queries.dtype))
    if estimator == "quantile":
        rows = documents_of(ensemble, queries, "estimator='quantile'")
        mean, std = est.quantile_moments(rows, queries, similarity, impl)
    elif isinstance(ensemble, Ensemble) and est.is_product(similarity):
        mean, std = ensemble.moments(queries)
    else:
        mean, std = est.moments(
            documents_of(ensemble, queries, f"similarity={similarity!r}"), queries, similarity, impl
        )
    # labels that "auto" leaves where they are have no groups of their own
    tails = None if verdict is None else _fit_tails(ensemble, given, verdict, bool(refine and verdict.rounds), impl)
    if estimator == "auto":
        fits = tails is None or SAME < tails.promise() < 1 / SAME
        estimator = "gaussian" if fits else "tail"
    rescale = None
    if weight < 1:
        rows = documents_of(ensemble, queries, f"a surprise weight of {weight:.3f}, below 1,")
        anchors = (float(anchor), 1.0) if similarity == "cosine" else None
        dtype = est.score_dtype(rows, queries)
        blocks = est.similarity_blocks(rows, queries, similarity, impl)
        rescale = Rescale.fit(blocks, len(rows) * len(queries), dtype, anchors)
    return FittedLabels(queries, mean, std, rescale, None, weight, estimator, similarity, anchor, tails)


SAME = 0.8  # a gaussian that promises 1 % and keeps it within this factor serves estimator="auto"
ENOUGH = 200  # documents for a tail


def _enough(ensemble: Tensor | Ensemble) -> bool:
    return len(ensemble.reservoir if isinstance(ensemble, Ensemble) else ensemble) >= ENOUGH


def _fit_tails(ensemble: Tensor | Ensemble, given: Tensor, verdict: Judgement, refined: bool, impl: str) -> Tails:
    """The laws of labels (m, d) as given, or of refined ones if these are in use, on a sample of the ensemble."""
    given = given.to(compute_dtype(given.dtype))
    most = max(1024, min(SAMPLE, (1 << 22) // max(len(given), 1)))
    halves = verdict.apart or ((documents_of(ensemble, given, "estimator='tail'"), verdict.queries),)
    halves = tuple((rows[: most // len(halves)], labels.to(given.dtype)) for rows, labels in halves)
    rows = torch.cat([rows for rows, _ in halves])
    context = ensemble if isinstance(ensemble, Ensemble) else Ensemble.from_embeddings(ensemble, reservoir=0)

    def z(rows: Tensor, labels: Tensor) -> Tensor:
        return ops.surprise_from_moments(rows, labels, *context.moments(labels), output="z", impl=impl)

    apart = torch.cat([z(*half) for half in halves])
    linear = FittedLabels(given, *context.moments(given)).to_linear()
    scored = apart if refined else z(rows, given)
    return Tails.fit(rows, context, scored, apart, verdict, linear, refined=refined)


def check_options(estimator: str, similarity: str, anchor: int, refine: int | str) -> None:
    """Refuse options that are unknown or do not go together."""
    for name, value, allowed in (
        ("estimator", estimator, ESTIMATORS),
        ("similarity", similarity, SIMILARITIES),
        ("anchor", anchor, (-1, 0)),
    ):
        if value not in allowed:
            raise ValueError(f"{name} must be one of {allowed}, got {value!r}")
    if anchor == 0 and similarity != "cosine":
        raise ValueError(f"anchor=0 is the paper's form for the cosine; {similarity} is anchored at its extremes")
    check_rounds("refine", refine)
    for name in [name for name, asked in (("refine", refine), ("estimator='tail'", estimator == "tail")) if asked]:
        if similarity != "cosine":
            raise ValueError(f"{name} works on the cosine, not on {similarity}")


OPTIONS = ("weight", "n_cross", "estimator", "refine")  # of `fit`, that a model stores with its labels


def plain_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """Options (`OPTIONS`) checked before there are labels to fit, as plain Python, which JSON holds; without None.

    Raises:
        TypeError: an option of another name.
        ValueError: a value that does not fit.
    """
    unknown = sorted(set(given) - set(OPTIONS))
    if unknown:
        raise TypeError(f"unknown option {', '.join(unknown)}; known are {', '.join(OPTIONS)}")
    found = {name: value for name, value in given.items() if value is not None}
    check_options(found.get("estimator", "gaussian"), "cosine", -1, found.get("refine", 0))
    crossover_weight(1, found.get("weight"))
    crossover_weight(1, None, found.get("n_cross", 1000))
    return {name: _plain(value) for name, value in found.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, str):
        return str(value)
    return int(value) if isinstance(value, Integral) else float(value)
