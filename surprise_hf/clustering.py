"""SurpriseKMeans: k-means whose elements are assigned by surprise (paper section 4).

k-means++ and Lloyd's iterations are scikit-learn's, on unit rows. Then the centroids are the queries, the elements the
keys and the ensemble, and an element goes to the centroid whose similarity to it is the greatest surprise.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, ClusterMixin, TransformerMixin
from sklearn.cluster import KMeans, MiniBatchKMeans
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import silhouette_score
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data
from threadpoolctl import threadpool_limits
from torch import Tensor

from . import inputs
from .encoders import as_model
from .ensemble import Ensemble
from .fitted import FittedLabels
from .inputs import Label
from .ops import compute_dtype, unit_rows

__all__ = ["SurpriseKMeans"]

ASSIGN = ("surprise", "cosine", "mixed")
SAMPLE = 10_000  # elements that "auto" clusters to find k
SILHOUETTE = 2_000  # elements that the silhouette is measured on: its cost is quadratic
BALANCE_ROUNDS = 100
BALANCED = 0.02  # of n / k: sizes this near to it are balanced


class SurpriseKMeans(ClassNamePrefixFeaturesOutMixin, TransformerMixin, ClusterMixin, BaseEstimator):
    """K-means on L2-normalised rows, then assignment by surprise. A scikit-learn estimator.

    Args:
        n_clusters: k, or "auto": the k of up to 12 between 2 and `max_clusters` with the largest mean silhouette (of
            cosines) of at most 2,000 elements.
        assign: "surprise" (largest z), "cosine", or "mixed": S_w with w = tanh(n / n_cross), as for labels.
        iterate: what Lloyd's iterations assign by: "cosine" (scikit-learn's, as in the paper), or "surprise", further
            rounds after it until no element moves (or a few go round in a circle).
        balanced: assign with a price on each cluster (of z, or of the cosine) such that the sizes are nearly equal
            (within 2 % of n / k where 100 rounds reach it). `predict` charges the same prices.
        init: as for `sklearn.cluster.KMeans`.
        n_init: runs of k-means with different seeds, the best by inertia kept; "auto" as in scikit-learn.
        max_iter, tol: of Lloyd's iterations, and max_iter of the rounds by surprise.
        batch_size: elements of a step of `MiniBatchKMeans`, for millions of them; None for Lloyd's algorithm.
        n_cross: of the crossover.
        max_clusters: of "auto".
        random_state: as in scikit-learn: an integer, a `numpy.random.RandomState` or None; no `numpy.random.Generator`.

    Attributes:
        labels_: (n,) int32, cluster of each element.
        cluster_centers_: (k, d), means of unit rows.
        n_clusters_: k.
        inertia_: of scikit-learn's k-means, before the assignment.
        n_iter_: iterations, those by surprise included.
        silhouettes_: dict of k to silhouette where n_clusters="auto", empty with fewer than three distinct rows.
        ensemble_: `Ensemble` of the elements.
        n_features_in_: d.

    Examples:
        >>> labels = SurpriseKMeans(n_clusters=50, random_state=0).fit_predict(embeddings)

    References: paper section 4 (table of v-measure and adjusted Rand score); design facts 1 and 2.
    """

    def __init__(
        self,
        n_clusters: int | str = 8,
        *,
        assign: str = "surprise",
        iterate: str = "cosine",
        balanced: bool = False,
        init: Any = "k-means++",
        n_init: int | str = "auto",
        max_iter: int = 300,
        tol: float = 1e-4,
        batch_size: int | None = None,
        n_cross: float = 1000,
        max_clusters: int = 50,
        random_state: Any = None,
    ) -> None:
        self.n_clusters = n_clusters
        self.assign = assign
        self.iterate = iterate
        self.balanced = balanced
        self.init = init
        self.n_init = n_init
        self.max_iter = max_iter
        self.tol = tol
        self.batch_size = batch_size
        self.n_cross = n_cross
        self.max_clusters = max_clusters
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None) -> SurpriseKMeans:  # noqa: ARG002 (scikit-learn's signature)
        """Cluster the rows of X.

        Args:
            X: (n, d) float32 or float64, array or CPU tensor; computed in that dtype.
            y: ignored.

        Raises:
            ValueError: n < n_clusters, NaN or infinity, or balanced=True with assign="mixed".
        """
        self._check_options()
        self.__dict__.pop("silhouettes_", None)  # of an earlier fit
        X = validate_data(self, _as_array(X), dtype=[np.float64, np.float32], order="C")
        unit = unit_rows(inputs.as_tensor(X))
        if self.n_clusters != "auto" and len(unit) < int(self.n_clusters):
            raise ValueError(f"n_samples={len(unit)} should be >= n_clusters={self.n_clusters}")
        random = check_random_state(self.random_state)
        self.ensemble_ = Ensemble.from_embeddings(unit)
        k = self._find_k(unit, random) if self.n_clusters == "auto" else int(self.n_clusters)
        means = self._kmeans(k, random, unit.numpy())
        self.n_clusters_, self.inertia_, self.n_iter_ = k, float(means.inertia_), int(means.n_iter_)
        centres = torch.from_numpy(means.cluster_centers_).to(unit.dtype)
        if self.iterate == "surprise":
            centres = self._iterate(unit, centres)
        self.cluster_centers_ = centres.numpy()
        self._labels, self._is_mixed = self._fit_labels(unit, centres), self.assign == "mixed"
        if self.balanced:
            self._labels = _with_prices(self._labels, unit)
        self.labels_ = self._decide(unit)
        return self

    def predict(self, X: Any) -> np.ndarray:
        """Cluster of each row (n,) int32, judged against the elements that were fitted."""
        return self._decide(self._rows(X))

    def transform(self, X: Any) -> np.ndarray:
        """What rows are assigned by, (n, k), larger is nearer: z, the cosine, or S_w with assign="mixed".

        With balanced=True z or the cosine is less the price of the cluster. Options that were set after `fit` count
        from the next one on.
        """
        return self._nearness(X).numpy()

    def score(self, X: Any, y: Any = None) -> float:  # noqa: ARG002 (scikit-learn's signature)
        """Mean over the rows of X of what each is assigned for, its largest entry in `transform`: larger is better.

        What the assignment maximises, so what `GridSearchCV` compares without `scoring`; as with the inertia, more
        clusters score higher on the rows they were fitted to, and values of one `assign` say nothing beside another's.
        A z without end (a centroid to which all similarities were equal) counts as 1e6.
        """
        return float(self._nearness(X).amax(dim=1).clamp(-1e6, 1e6).to(torch.float64).mean())

    def name_clusters(
        self, names: Any, embeddings: Any = None, *, model: Any = None, top: int = 1, distinct: bool = False
    ) -> list[list[Label]]:
        """Words or candidate labels for each cluster, by the surprise of the centroid for the word among the elements.

        Args:
            names: words or labels, in any form that the pipeline takes labels in.
            embeddings: theirs (m, d), by the encoder of the elements; or
            model: SurpriseModel, SentenceTransformer, folder or Hub id to embed them with.
            top: names for each cluster.
            distinct: each name for at most one cluster, the total z being the largest possible (needs top=1 and at
                least as many names as clusters).

        Returns:
            k lists of `top` names, best first.

        Raises:
            TypeError: something else as the model.
            ValueError: no embeddings, shapes that don't fit, too few names, or names that are no labels.
        """
        check_is_fitted(self)
        if (embeddings is None) == (model is None):
            raise ValueError("give the embeddings of the names, or a model to embed them")
        names, top = inputs.as_labels(names), inputs.positive_int("top", top)
        if embeddings is None:
            encoder, texts = as_model(model), inputs.hypotheses(names, inputs.SLOT)
            embeddings, cut = encoder.embed(texts)
            inputs.warn_cut(cut, len(texts), "names", encoder.max_seq_length)
        vectors = inputs.as_tensor(_as_array(embeddings))
        if len(vectors) != len(names):
            raise ValueError(f"{len(names)} names but {len(vectors)} embeddings")
        centres = torch.from_numpy(self.cluster_centers_)
        fitted = FittedLabels.fit(vectors.to(centres.dtype), self.ensemble_, weight=1)
        if not distinct:
            order = fitted.rank(centres, min(top, len(names)))[1]
        elif top != 1 or len(names) < len(centres):
            raise ValueError(f"distinct=True needs top=1 and at least {len(centres)} names, got {top}, {len(names)}")
        else:
            from scipy.optimize import linear_sum_assignment

            z = fitted.z(centres).clamp(-1e6, 1e6)  # finite where a name has no deviation
            order = torch.from_numpy(linear_sum_assignment(z.numpy(), maximize=True)[1]).unsqueeze(1)
        return [[names[i] for i in row] for row in order.tolist()]

    @property
    def _n_features_out(self) -> int:
        """Columns of `transform`, for `get_feature_names_out`: surprisekmeans0, surprisekmeans1, ..."""
        return self.n_clusters_

    # --- pieces --------------------------------------------------------------------------------------------------

    def _nearness(self, X: Any) -> Tensor:
        rows = self._rows(X)
        return self._labels.score(rows) if self._is_mixed else self._labels.z(rows)

    def _rows(self, X: Any) -> Tensor:
        check_is_fitted(self)
        X = validate_data(self, _as_array(X), dtype=[np.float64, np.float32], order="C", reset=False)
        return inputs.as_tensor(X)

    def _check_options(self) -> None:
        for name, allowed in (("assign", ASSIGN), ("iterate", ("cosine", "surprise"))):
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name} must be one of {allowed}, got {getattr(self, name)!r}")
        if inputs.flag("balanced", self.balanced) and self.assign == "mixed":
            raise ValueError('balanced=True needs a score that is linear: assign="surprise" or "cosine", not "mixed"')
        if self.n_clusters != "auto":
            inputs.positive_int("n_clusters", self.n_clusters)
        inputs.positive_int("max_clusters", self.max_clusters)

    def _kmeans(self, k: int, random: np.random.RandomState, rows: np.ndarray) -> KMeans | MiniBatchKMeans:
        """scikit-learn's k-means of unit rows (n, d), fitted.

        It has as many threads as torch. Its own wait for each other in a loop, so on processors that others use too
        they take twice as long as one does (100,000 x 384 into 50 beside a busy process on each: 19.4 s and 9.6 s).
        """
        options = {"n_clusters": k, "init": self.init, "n_init": self.n_init}
        options |= {"max_iter": self.max_iter, "tol": self.tol, "random_state": random}
        if self.batch_size is not None:
            options["batch_size"] = self.batch_size
        with threadpool_limits(torch.get_num_threads()):
            return (KMeans if self.batch_size is None else MiniBatchKMeans)(**options).fit(rows)

    def _find_k(self, unit: Tensor, random: np.random.RandomState) -> int:
        rows = unit.numpy()
        sample = rows[random.permutation(len(rows))[:SAMPLE]]
        top = min(self.max_clusters, len(np.unique(sample, axis=0)) - 1)
        self.silhouettes_: dict[int, float] = {}
        if top < 2:
            return 1
        for k in sorted({round(2 * (top / 2) ** (i / 11)) for i in range(12)}):
            labels = self._kmeans(k, random, sample).labels_
            part = slice(0, SILHOUETTE)
            if 1 < len(np.unique(labels[part])) < len(labels[part]):
                self.silhouettes_[k] = float(silhouette_score(sample[part], labels[part], metric="cosine"))
        return max(self.silhouettes_, key=self.silhouettes_.__getitem__) if self.silhouettes_ else 2

    def _fit_labels(self, unit: Tensor, centres: Tensor) -> FittedLabels:
        """The centroids as labels, the elements as their ensemble: moments by design fact 1, in k d^2."""
        if self.assign == "mixed":
            return FittedLabels.fit(centres, unit, n_cross=self.n_cross)
        labels = FittedLabels.fit(centres, self.ensemble_, weight=1)
        return labels if self.assign == "surprise" else _plain(labels)

    def _decide(self, rows: Tensor) -> np.ndarray:
        return self._labels.decide(rows).numpy().astype(np.int32)

    def _iterate(self, unit: Tensor, centres: Tensor) -> Tensor:
        """Lloyd's iterations with the assignment by surprise. A cluster that loses all its elements stays in place."""
        seen: set[int] = set()  # nothing falls from round to round, so the end may be a small circle
        for _ in range(self.max_iter):
            now = FittedLabels.fit(centres, self.ensemble_, weight=1).decide(unit)
            if (key := hash(now.numpy().tobytes())) in seen:
                return centres
            seen.add(key)
            self.n_iter_ += 1
            sums = torch.zeros_like(centres).index_add_(0, now, unit)
            counts = now.bincount(minlength=len(centres)).unsqueeze(1)
            centres = torch.where(counts > 0, sums / counts.clamp(min=1), centres)
        warnings.warn(
            f"the rounds by surprise were still moving elements after max_iter={self.max_iter}",
            ConvergenceWarning,
            stacklevel=3,
        )
        return centres


def _plain(labels: FittedLabels) -> FittedLabels:
    """Labels whose z is the plain cosine."""
    return replace(labels, mean=torch.zeros_like(labels.mean), std=torch.ones_like(labels.std))


def _with_prices(labels: FittedLabels, unit: Tensor) -> FittedLabels:
    """Labels with means raised by a price such that the clusters have nearly equal sizes.

    z less a price is (psi - (mean + price std)) / std: the op's own assignment, still without an (n, k) matrix. The
    price of a cluster rises with the logarithm of its size (a step of Sinkhorn's dual, with the temperature of the
    spread of z), and the prices with the smallest largest cluster are kept.
    """
    k, target = len(labels), len(unit) / len(labels)
    z = labels.z(unit[:: max(1, len(unit) // 4096)]).to(torch.float64)
    step = float(z[torch.isfinite(z)].std()) if torch.isfinite(z).sum() > 1 else 1.0
    price = torch.zeros(k, dtype=torch.float64)
    best, least = labels, math.inf
    for _ in range(BALANCE_ROUNDS):
        priced = replace(labels, mean=labels.mean + price * labels.std)
        sizes = priced.decide(unit).bincount(minlength=k).to(torch.float64)
        if float(sizes.max()) < least:
            best, least = priced, float(sizes.max())
        if (sizes - target).abs().max() <= max(BALANCED * target, 1):
            break
        price += step * (sizes.clamp(min=0.5) / target).log() / 2
        price -= price.mean()
        step *= 0.97
    return best


def _as_array(X: Any) -> Any:
    """A tensor as an array; of half precision, which NumPy has but in part, as float32."""
    if not isinstance(X, Tensor):
        return X
    return X.detach().to("cpu", compute_dtype(X.dtype) if X.is_floating_point() else X.dtype).numpy()
