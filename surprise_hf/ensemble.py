"""Ensemble: the documents that give a similarity its context, as one mean vector and one d x d matrix.

For the cosine the moments of any query follow from the mean m and covariance C of the unit rows (design fact 1):

    mu_q = m . q^        sigma_q^2 = q^' C q^

so an ensemble of any size is updated in batches, merged across workers exactly and saved in d x d floats. What two
moments cannot give (medians, quantiles, ranks) comes from a uniform sample of its rows, the reservoir.
"""

from __future__ import annotations

import copy
import os
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from . import ensemble_files, ops
from .inputs import embeddings, flag, positive_int
from .ops import compute_dtype, floored, unit_rows
from .reservoir import check_seed, smallest_priorities
from .same_encoder import same_name, same_probe

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

    from .diagnosis import Diagnosis

__all__ = ["Ensemble"]

PRECISIONS = ("fast", "exact")


# --- rows --------------------------------------------------------------------------------------------------------


def _check_shape(name: str, rows: Tensor, dim: int | None) -> None:
    """Refuse what is not a floating (rows, dim) tensor; raises as check_rows does."""
    ops.check_floating(name, rows)
    if rows.dim() != 2 or (dim is not None and rows.shape[1] != dim):
        raise ValueError(f"{name} must have shape (rows, {dim or 'dim'}), got {tuple(rows.shape)}")


def check_rows(name: str, rows: Tensor, dim: int | None = None) -> None:
    """Refuse what is not a finite floating (rows, dim) tensor, naming the argument and the first bad rows.

    Raises:
        TypeError: not a tensor, or not floating.
        ValueError: another shape, or a row with NaN or infinity.
    """
    _check_shape(name, rows, dim)
    # one read and no mask: a sum is finite unless a term is not, or it overflows, which the second look sorts out
    if not torch.isfinite(rows.detach().sum(dtype=compute_dtype(rows.dtype))):
        bad = (~torch.isfinite(rows).all(dim=1)).nonzero().flatten().tolist()
        if bad:
            more = f" and {len(bad) - 5} more" if len(bad) > 5 else ""
            raise ValueError(f"{name}: row {', '.join(map(str, bad[:5]))}{more} holds NaN or infinity; drop or fix it")


class Ensemble:
    """Running statistics of document embeddings, and a uniform sample of them. Wrong arguments are a ValueError.

    Args:
        dim: d, the length of an embedding.
        reservoir: rows kept as a uniform sample (at most; 0 keeps none, and the estimators that need rows say so).
        normalize: True for the cosine (statistics of unit rows); False for dot products and distances.
        encoder: name of the model that made the embeddings, saved with them and checked on load and merge.
        seed: of the sample. The same rows in the same order give the same sample in any batches. Workers that
            sample parts of one set should differ in it.
        device: where the statistics live; batches are moved there.

    Attributes:
        count: () float64; mean: (d,) float64; scatter: (d, d) float64, covariance times count.
        probe: (d,) or None: what the encoder makes of one text, saved too; a model refuses another encoder's.

    Examples:
        >>> ens = Ensemble.from_embeddings(torch.randn(1000, 8))
        >>> mean, std = ens.moments(torch.randn(3, 8))

    References: design facts 1 and 4; paper section 2 (mu and sigma over the ensemble).
    """

    def __init__(
        self,
        dim: int,
        reservoir: int = 4096,
        normalize: bool = True,
        encoder: str | None = None,
        seed: int = 0,
        device: torch.device | str | None = None,
    ) -> None:
        self.dim = dim = positive_int("dim", dim)
        self.reservoir_size = 0 if reservoir == 0 else positive_int("reservoir (0 for none)", reservoir)
        self.normalize, self.encoder, self.seed = flag("normalize", normalize), encoder, check_seed(seed)
        self.count = torch.zeros((), dtype=torch.float64, device=device)
        self.mean = torch.zeros(dim, dtype=torch.float64, device=device)
        self.scatter = torch.zeros(dim, dim, dtype=torch.float64, device=device)
        self._rows = torch.empty(0, dim, dtype=torch.float32, device=device)
        self._priority = torch.empty(0, dtype=torch.int64)  # of _rows, ascending
        self._eps = 0.0  # rounding of the coarsest embeddings seen
        self.probe: Tensor | None = None

    @classmethod
    def from_embeddings(cls, emb: Tensor | np.ndarray, *, precision: str = "fast", **kwargs: Any) -> Ensemble:
        """An ensemble of these rows (n, d), on their device; `kwargs` as for `Ensemble`."""
        emb = embeddings(emb)
        check_rows("emb", emb)
        return cls(emb.shape[1], **{"device": emb.device, **kwargs}).update(emb, precision=precision)

    def __len__(self) -> int:
        return int(self.count.item())

    def __bool__(self) -> bool:
        return True  # an empty ensemble is still an ensemble: `ensemble or default` must not drop it

    def __repr__(self) -> str:
        encoder = f", encoder={self.encoder!r}" if self.encoder else ""
        return (
            f"Ensemble({len(self):,} documents, dim={self.dim}, reservoir={len(self._rows):,}/{self.reservoir_size:,}"
            f", normalize={self.normalize}{encoder}, device={self.device})"
        )

    def __copy__(self) -> Ensemble:
        """As `copy.deepcopy`: an update changes the sums in place, which two ensembles must not share."""
        return copy.deepcopy(self)

    @property
    def device(self) -> torch.device:
        """Where the statistics live."""
        return self.mean.device

    @property
    def covariance(self) -> Tensor:
        """(d, d) float64, population form; zeros when empty."""
        return self.scatter / self.count.clamp(min=1.0)

    @property
    def reservoir(self) -> Tensor:
        """(r, d) float32, a uniform sample of the rows as they were given, r = min(documents, reservoir)."""
        return self._rows

    def to(self, device: torch.device | str) -> Ensemble:
        """Move the statistics, in place; returns self."""
        for name in ("count", "mean", "scatter", "_rows"):
            setattr(self, name, getattr(self, name).to(device))
        return self

    # --- growing -------------------------------------------------------------------------------------------------

    def update(self, emb: Tensor | np.ndarray, precision: str = "fast") -> Ensemble:
        """Add documents.

        Args:
            emb: (b, d) floating, a tensor on any device or an array; b = 0 changes nothing.
            precision: "fast" multiplies float32 tiles (standard deviations to 1e-6 relative), "exact" in float64
                (1e-12).

        Raises:
            TypeError: `emb` is not a floating tensor or array.
            ValueError: another shape, unknown precision, a row with NaN or infinity, or, with normalize=False, rows
                whose squares are beyond the precision's range. Nothing is added then.
        """
        emb = embeddings(emb)
        _check_shape("emb", emb, self.dim)
        if precision not in PRECISIONS:
            raise ValueError(f"precision must be one of {PRECISIONS}, got {precision!r}")
        emb = emb.detach().to(self.device)
        priority, index = smallest_priorities(self.seed, len(self), len(emb), self.reservoir_size)
        sums = self.count, self.mean, self.scatter
        # What is not finite shows in the mean: with many rows a copy of the sums costs less than to look at every row.
        # Squares of rows as they are may be infinite where the rows are not.
        before = [x.clone() for x in sums] if len(emb) > 8 * self.dim or not self.normalize else None
        if before is None:
            check_rows("emb", emb)
        ops.ensemble_update(*sums, emb, normalize=self.normalize, exact=precision == "exact")
        if before is not None and not torch.isfinite(self.mean.sum() + self.scatter.diagonal().sum()):
            for now, then in zip(sums, before, strict=True):
                now.copy_(then)
            check_rows("emb", emb)
            exact = "" if emb.dtype == torch.float64 else ', or pass precision="exact"'
            raise ValueError(
                f"emb: the squares of {float(emb.abs().max()):.0e} are out of range: scale the rows{exact}"
            )
        if len(emb):
            self._eps = max(self._eps, torch.finfo(compute_dtype(emb.dtype)).eps)
        self._sample(emb[self._worth(priority, index)], priority)
        return self

    def _worth(self, priority: Tensor, index: Tensor) -> Tensor:
        """Of ascending priorities, the indices that can enter the sample: a full one admits few, so few are copied."""
        if self.reservoir_size and len(self._rows) == self.reservoir_size:
            index = index[: int(torch.searchsorted(priority, self._priority[-1]))]
        return index.to(self.device)

    def _sample(self, rows: Tensor, priority: Tensor) -> None:
        """Let rows, in ascending order of their priorities, compete for the reservoir."""
        if self.normalize and rows.dtype == torch.float64 and len(rows):
            rows = unit_rows(rows)  # a float64 row may not fit float32 as it is
        merged, order = torch.cat((self._priority, priority[: len(rows)])).sort()
        keep = order[: self.reservoir_size]
        self._priority = merged[: self.reservoir_size]
        if len(rows) or len(keep) < len(self._rows):
            self._rows = torch.cat((self._rows, rows.to(torch.float32)))[keep.to(self.device)]

    def merge(self, other: Ensemble) -> Ensemble:
        """Add another ensemble's documents: exactly (Chan, Golub and LeVeque), the sample staying uniform.

        Where `other` kept fewer rows than this one would need, the reservoir shrinks to what stays uniform.

        Raises:
            TypeError: `other` is no Ensemble.
            ValueError: another dimension, `normalize`, encoder or probe.
        """
        if not isinstance(other, Ensemble):
            raise TypeError(f"merge takes an Ensemble, got {type(other).__name__}; embeddings go to `update`")
        self._check_same(other)
        ours, theirs = self.count.clone(), other.count.to(self.device)
        if theirs == 0:
            return self
        # Their sample is exchangeable: give it the smallest priorities their documents would have had here.
        priority, _ = smallest_priorities(self.seed, len(self), len(other), self.reservoir_size)
        if len(other._rows) < len(priority):
            self.reservoir_size = len(other._rows)
        self._sample(other._rows[: len(priority)].to(self.device), priority)
        total = ours + theirs
        delta = other.mean.to(self.device) - self.mean
        self.scatter = (
            self.scatter + other.scatter.to(self.device) + torch.outer(delta, delta) * (ours * theirs / total)
        )
        self.mean = self.mean + delta * (theirs / total)
        self.count = total
        self._eps = max(self._eps, other._eps)
        self.encoder = self.encoder or other.encoder
        self.probe = other.probe if self.probe is None else self.probe
        return self

    def _check_same(self, other: Ensemble) -> None:
        if self.dim != other.dim or self.normalize != other.normalize:
            raise ValueError(
                f"these ensembles do not fit together: dim {self.dim} and {other.dim}, "
                f"normalize {self.normalize} and {other.normalize}"
            )
        if not same_name(self.encoder, other.encoder):
            raise ValueError(
                f"these ensembles come from different encoders, {self.encoder!r} and {other.encoder!r}: their "
                "embeddings cannot be compared"
            )
        if not same_probe(self.probe, other.probe):
            raise ValueError(
                "these ensembles come from different encoders, or from one before and after it was trained: their"
                " embeddings cannot be compared"
            )

    def all_reduce(self, group: ProcessGroup | None = None) -> Ensemble:
        """Replace every rank's ensemble by the merge of all of them, in rank order: the same bits on every rank.

        Without an initialised `torch.distributed` this is a world of one and nothing changes. Call it once: a second
        call counts every document again.

        Raises:
            ValueError: the ranks' ensembles differ in dim, normalize, reservoir, encoder or probe (on every rank).
        """
        dist = torch.distributed
        if not dist.is_available() or not dist.is_initialized() or dist.get_world_size(group) == 1:
            return self
        wire = torch.device("cuda", torch.cuda.current_device()) if dist.get_backend(group) == "nccl" else "cpu"

        def gather(x: Tensor) -> list[Tensor]:
            mine = x.to(wire).contiguous()
            parts = [torch.empty_like(mine) for _ in range(dist.get_world_size(group))]
            dist.all_gather(parts, mine, group=group)
            return [part.to(self.device) for part in parts]

        probe = None if self.probe is None else self.probe.cpu()
        kind = self.dim, self.normalize, self.reservoir_size
        told: list[Any] = [None] * dist.get_world_size(group)
        dist.all_gather_object(told, (kind, len(self._rows), self.encoder, self._eps, probe, self.seed), group=group)
        kinds, kept, encoders, epsilons, probes, seeds = zip(*told, strict=True)
        if len(set(kinds)) > 1:
            raise ValueError(f"the ranks' ensembles differ in (dim, normalize, reservoir): {list(kinds)}")
        padded = torch.cat((self._rows, self._rows.new_zeros(max(1, *kept) - len(self._rows), self.dim)))
        sums = zip(*(gather(x) for x in (self.count, self.mean, self.scatter, padded)), strict=True)
        whole = Ensemble(self.dim, self.reservoir_size, self.normalize, seed=seeds[0], device=self.device)
        whole.encoder = next(filter(None, encoders), None)
        whole.probe = next((one for one in probes if one is not None), None)
        for number, (count, mean, scatter, rows) in enumerate(sums):
            part = Ensemble(self.dim, self.reservoir_size, self.normalize, encoders[number], device=self.device)
            part.count, part.mean, part.scatter, part._rows = count, mean, scatter, rows[: kept[number]]
            part._eps, part.probe = epsilons[number], probes[number]
            whole.merge(part)
        self.__dict__.update(whole.__dict__)
        return self

    # --- using ---------------------------------------------------------------------------------------------------

    def moments(self, queries: Tensor | np.ndarray) -> tuple[Tensor, Tensor]:
        """Mean and population standard deviation of each query's similarity to the documents (design facts 1 and 4).

        Args:
            queries: (m, d) floating, not necessarily normalised (with normalize=False: taken as they are).

        Returns:
            mean (m,) and std (m,), float64, on the queries' device. A std within rounding noise is 0. An empty
            ensemble gives zeros.

        Raises:
            TypeError, ValueError: as `update`.
        """
        queries = embeddings(queries)
        check_rows("queries", queries, self.dim)
        mean, var = ops.ensemble_moments(
            self.mean, self.covariance, queries.detach().to(self.device), normalize=self.normalize
        )
        std = floored(mean, var, max(self._eps, torch.finfo(compute_dtype(queries.dtype)).eps))
        return mean.to(queries.device), std.to(queries.device)

    def diagnose(
        self, queries: Tensor | np.ndarray, labels: Sequence[object] | None = None, **options: Any
    ) -> Diagnosis:
        """How well this ensemble serves some labels; arguments and errors as for `surprise_hf.diagnosis.diagnose`."""
        from .diagnosis import diagnose

        return diagnose(self, queries, labels, **options)

    def without_reservoir(self) -> Ensemble:
        """The same statistics without the sample, whose rows are embeddings of single documents."""
        bare = Ensemble(self.dim, 0, self.normalize, self.encoder, self.seed, self.device)
        bare.count, bare.mean, bare.scatter = self.count.clone(), self.mean.clone(), self.scatter.clone()
        bare._eps, bare.probe = self._eps, self.probe
        return bare

    # --- files ---------------------------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike) -> None:
        """Write one safetensors file: count, mean, scatter, the sample, and what they are. Replaces whole or not."""
        metadata = {
            "dim": str(self.dim),
            "normalize": str(self.normalize).lower(),
            "reservoir": str(self.reservoir_size),
            "seed": str(self.seed),
            "eps": repr(self._eps),
            **({"encoder": self.encoder} if self.encoder else {}),
        }
        tensors = {name: getattr(self, attribute) for name, attribute in _STORED.items()}
        tensors |= {} if self.probe is None else {"probe": self.probe}
        ensemble_files.write(path, tensors, metadata)

    @classmethod
    def load(
        cls,
        path: str | os.PathLike,
        dim: int | None = None,
        encoder: str | None = None,
        device: torch.device | str = "cpu",
    ) -> Ensemble:
        """Read what `save` wrote, bit for bit.

        Args:
            path: the file.
            dim, encoder: what the caller's embeddings are; checked where given (a file that names no encoder passes).
            device: where to put it.

        Raises:
            FileNotFoundError: no such file.
            ValueError: not an ensemble file, damaged, of a newer format, or of another dimension or encoder.
        """
        metadata, tensors = ensemble_files.read(Path(path), str(device))
        try:
            ens = cls(
                int(metadata["dim"]),
                int(metadata["reservoir"]),
                metadata["normalize"] == "true",
                metadata.get("encoder"),
                int(metadata["seed"]),
                device,
            )
            ens._eps = float(metadata["eps"])
            for name, attribute in _STORED.items():
                found, wanted = tensors[name], getattr(ens, attribute)
                rows = len(tensors["priority"])
                shape = (rows, *wanted.shape[1:]) if attribute.startswith("_") else wanted.shape
                if found.shape != shape or found.dtype != wanted.dtype:
                    raise ValueError(f"{name} is {found.dtype} {tuple(found.shape)}")
                setattr(ens, attribute, found)
            ens._priority = ens._priority.cpu()
            ens.probe = tensors.get("probe")
            if ens.probe is not None and ens.probe.shape != ens.mean.shape:
                raise ValueError(f"probe is {tuple(ens.probe.shape)}")
            for name, found in tensors.items():
                if not torch.isfinite(found).all():
                    raise ValueError(f"{name} is not finite")
            if not (ens.count >= len(ens._rows) and 0 <= ens._eps < 1):
                raise ValueError(f"{float(ens.count)} documents, {len(ens._rows)} of them kept, eps {ens._eps}")
        except (KeyError, ValueError) as error:
            raise ValueError(f"{path} is a damaged ensemble file: {error}") from error
        if dim is not None and dim != ens.dim:
            raise ValueError(f"{path} holds an ensemble of dimension {ens.dim}, but the embeddings have {dim}")
        if not same_name(encoder, ens.encoder):
            raise ValueError(
                f"{path} holds an ensemble of the encoder {ens.encoder!r}, not of {encoder!r}: build one with "
                f"{encoder!r}, or use {ens.encoder!r}"
            )
        return ens

    def push_to_hub(self, repo_id: str, *, reservoir: bool = False, **kwargs: Any) -> str:
        """Share the statistics as a repository of their own.

        Args:
            repo_id: owner/name.
            reservoir: send the sample too, which holds embeddings of single documents. Without it the estimators that
                need rows (weights below 1, quantiles, ranks, refinement) are not to be had from the copy.
            kwargs: of `hub.upload`: private, token, revision, commit_message, create_pr.

        Returns:
            The address of the commit. A card that someone edited stays as it is.
        """
        from .hub import upload
        from .model_card import ensemble_card

        ensemble = self if reservoir else self.without_reservoir()
        options = {"commit_message": "Add ensemble", "card": partial(ensemble_card, ensemble), **kwargs}
        with tempfile.TemporaryDirectory() as folder:
            ensemble.save(Path(folder, FILE))
            return upload(folder, repo_id, **options)

    @classmethod
    def from_pretrained(
        cls,
        name_or_path: str | os.PathLike,
        *,
        dim: int | None = None,
        encoder: str | None = None,
        device: torch.device | str = "cpu",
        **kwargs: Any,
    ) -> Ensemble:
        """Open what `push_to_hub` sent, or the ensemble of a SurpriseModel's repository or folder.

        Args:
            name_or_path: Hub id or folder.
            dim, encoder, device: as for `load`.
            kwargs: of `hub.download`: revision, token, cache_dir, local_files_only.

        Raises:
            OSError: no such repository, or it holds no ensemble.
            ValueError: as `load`.
        """
        from .hub import download

        return cls.load(download(name_or_path, (FILE, f"surprise/{FILE}"), **kwargs), dim, encoder, device)


FILE = "ensemble.safetensors"

_STORED = {
    "count": "count",
    "mean": "mean",
    "scatter": "scatter",
    "reservoir": "_rows",
    "priority": "_priority",
}
