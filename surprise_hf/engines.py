"""Where vectors are kept and searched by inner product: exactly, or by FAISS.

An engine knows nothing of the surprise. By design fact 2 the surprise of document d for a key k orders as the inner
product of k^ - m with d^/sigma_d, so rows and one scale for each are all that it is given.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from .ops import surprise_from_moments, unit_rows

ENGINES = ("exact", "faiss-flat", "faiss-hnsw", "faiss-ivf")

BLOCK_BYTES = 64 << 20  # of the row store: what growing and shrinking cost on top of the rows themselves
TILE = 1 << 22  # inner products held at once, or those of one block: 16 MiB stays near the cache

GROUP = 32  # inner products looked at by their maximum first
SMALL = 1 << 16  # so few are searched for the largest directly


class Rows:
    """(n, d) float32 vectors in blocks, all full but the last: growing copies nothing, removing one block at a time."""

    def __init__(self, dim: int, device: torch.device | str = "cpu") -> None:
        self.dim, self.device = dim, torch.device(device)
        self.step = max(1, BLOCK_BYTES // (4 * dim))
        self._blocks: list[Tensor] = []
        self._lengths: list[np.ndarray] = []  # float32 leaves unit rows 1e-7 from 1, which float64 settles
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def blocks(self) -> Iterator[tuple[int, Tensor]]:
        """(index of the first row, view of the rows) of each block."""
        for start, block in zip(range(0, self._count, self.step), self._blocks, strict=True):
            yield start, block[: self._count - start]

    def append(self, rows: Tensor) -> None:
        """Add rows (b, d) at the end."""
        while len(rows):
            used = self._count % self.step
            if not used:
                self._blocks.append(torch.empty(self.step, self.dim, device=self.device))
                self._lengths.append(np.empty(self.step))
            part = rows[: self.step - used]
            stored = self._blocks[-1][used : used + len(part)].copy_(part)
            length = torch.linalg.vector_norm(stored, dim=1, dtype=torch.float64)
            self._lengths[-1][used : used + len(part)] = length.cpu().numpy()
            self._count += len(part)
            rows = rows[len(part) :]

    def keep(self, mask: Tensor) -> None:
        """Drop the rows whose `mask` (n,) is False; the others keep their order."""
        old, count, self._blocks, self._lengths, self._count = self._blocks, self._count, [], [], 0
        for start in range(0, count, self.step):
            block = old.pop(0)[: count - start]
            self.append(block[mask[start : start + len(block)].to(self.device)])

    def take(self, index: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Rows (r, d) by their indices (r,) int64, in that order, and their lengths (r,) float64; in main memory."""
        if len(self._blocks) == 1:
            return self._rows_of(0, index), self._lengths[0][index]
        number, inside = np.divmod(index, self.step)
        rows, lengths = np.empty((len(index), self.dim), dtype=np.float32), np.empty(len(index))
        for block in set(number.tolist()):
            here = number == block
            rows[here], lengths[here] = self._rows_of(block, inside[here]), self._lengths[block][inside[here]]
        return rows, lengths

    def _rows_of(self, block: int, inside: np.ndarray) -> np.ndarray:
        if self.device.type == "cpu":
            return self._blocks[block].numpy()[inside]
        return self._blocks[block][torch.from_numpy(inside).to(self.device)].cpu().numpy()

    def whole(self) -> Tensor:
        """All rows as one tensor; a copy if there are several blocks."""
        parts = [block for _, block in self.blocks()]
        return parts[0] if len(parts) == 1 else torch.cat(parts) if parts else torch.empty(0, self.dim)


class Form(NamedTuple):
    """How rows and queries stand for the score: (query @ inverse) . (row @ root) * scale.

    Attributes:
        scale: (n,) float32; None for ones.
        root, inverse: (d, d) float32, C^(1/2) and C^(-1/2); None for the identity.
    """

    scale: Tensor | None = None
    root: Tensor | None = None
    inverse: Tensor | None = None

    def rows(self, block: Tensor, start: int) -> Tensor:
        """Rows from number `start` on, as they are searched."""
        block = block if self.root is None else block @ self.root
        return block if self.scale is None else block * self.scale[start : start + len(block)].unsqueeze(1)

    def queries(self, queries: Tensor) -> Tensor:
        """Queries as they are searched with."""
        return queries if self.inverse is None else queries @ self.inverse


class ExportedVectors(NamedTuple):
    """The index as vectors for any engine that searches by inner product: a snapshot (see `SurpriseIndex.version`).

    Attributes:
        vectors: (n, d) float32, d^ / sigma_d; or unit vectors, C^(1/2) d^ / sigma_d.
        centre: (d,) float32, m. The query for an embedding k is k^ - m (`queries`); its products with the vectors
            are z.
        matrix: (d, d) float32, C^(-1/2), which the query of unit vectors is multiplied by; else None.
        ids: of the rows.
        version: of the index when it was exported; the snapshot is stale once `index.version` differs.
    """

    vectors: Tensor
    centre: Tensor
    matrix: Tensor | None
    ids: list[Any]
    version: int

    def queries(self, embeddings: Tensor) -> Tensor:
        """(b, d) embeddings as the vectors to search with, (b, d) float32."""
        centred = (unit_rows(embeddings.to(torch.float64)) - self.centre.to(embeddings.device)).to(torch.float32)
        return centred if self.matrix is None else centred @ self.matrix.to(embeddings.device)


class Engine(Protocol):
    """Finds the rows with the largest products under a `Form`."""

    wants_unit: bool  # rows of length 1, by the roots of the covariance

    def build(self, rows: Rows, form: Form) -> None:
        """Take all rows anew."""

    def extend(self, rows: Rows, form: Form, start: int) -> None:
        """Rows from `start` on are new; the others, their scales included, are as they were."""

    def search(
        self, queries: Tensor, k: int, allowed: Tensor | None = None, upper: float = math.inf
    ) -> tuple[Tensor, Tensor]:
        """The k best rows of each query, best first.

        Args:
            queries: (b, d) float32.
            k: 1 <= k <= n.
            allowed: (n,) bool, rows that may be found; None for all.
            upper: larger inner products don't count.

        Returns:
            inner products (b, k) float32 and rows (b, k) int64; -inf where fewer than k were found.
        """


def make_engine(name: str, options: dict[str, Any]) -> Engine:
    """An engine by name.

    Raises:
        ValueError: unknown name or options.
        ImportError: FAISS is not installed.
    """
    if name not in ENGINES:
        raise ValueError(f"engine must be one of {ENGINES}, got {name!r}")
    known = {"faiss-hnsw": {"links", "ef_construction", "ef_search"}, "faiss-ivf": {"lists", "probes"}}.get(name, set())
    if unknown := sorted(set(options) - known):
        raise ValueError(f"engine={name!r} knows the options {sorted(known)}, not {unknown}")
    return ExactEngine() if name == "exact" else FaissEngine(name, options)


class ExactEngine:
    """One pass over the rows. Holds no vectors of its own."""

    wants_unit = False

    def build(self, rows: Rows, form: Form) -> None:
        """As `Engine.build`; the form's roots, which change no product, are left out."""
        self.rows, self.scale = rows, None if form.scale is None else form.scale.unsqueeze(1)

    def extend(self, rows: Rows, form: Form, start: int) -> None:  # noqa: ARG002 (the interface)
        """As `Engine.extend`."""
        self.build(rows, form)

    def search(
        self, queries: Tensor, k: int, allowed: Tensor | None = None, upper: float = math.inf
    ) -> tuple[Tensor, Tensor]:
        """As `Engine.search`."""
        step = max(1, TILE // min(self.rows.step, len(self.rows)))
        found = [self._search(part, k, allowed, upper) for part in queries.split(step)]
        values, rows = zip(*found, strict=True)
        return _joined(values, dim=0), _joined(rows, dim=0)

    def _search(self, queries: Tensor, k: int, allowed: Tensor | None, upper: float) -> tuple[Tensor, Tensor]:
        parts, blocks = [], list(self.rows.blocks())
        at_once = max(1, TILE // (len(queries) * self.rows.step))
        for first in range(0, len(blocks), at_once):
            some = blocks[first : first + at_once]
            start, stop = some[0][0], some[-1][0] + len(some[-1][1])
            products = _joined([_products(block, queries) for _, block in some], dim=0)
            if self.scale is not None:
                products *= self.scale[start:stop]
            if allowed is not None:
                products.masked_fill_(~allowed[start:stop, None], -math.inf)
            if upper < math.inf:
                products.masked_fill_(products > upper, -math.inf)
            values, index = _largest(products, min(k, stop - start))
            parts.append((values, index + start if start else index))
        best, where = (_joined(found, dim=1) for found in zip(*parts, strict=True))
        if best.shape[1] > k:
            best, order = best.topk(k, dim=1)
            where = where.gather(1, order)
        return best, where


def _joined(parts: Sequence[Tensor], dim: int) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts), dim=dim)


def _products(block: Tensor, queries: Tensor) -> Tensor:
    """block @ queries.T (n, b); several queries by the package's op, in 60 % of the time that MKL needs."""
    if len(queries) == 1 or block.device.type != "cpu":
        return block @ queries.T
    zeros = torch.zeros(len(queries), dtype=torch.float64)
    return surprise_from_moments(block, queries, zeros, zeros + 1, output="cosine", normalize=False)


def _largest(products: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k largest (b, k) of each column of (n, b), and their rows: in the k groups with the largest maxima."""
    groups = len(products) // GROUP
    if groups < 2 * k or products.numel() < SMALL:
        return products.T.topk(k, dim=1)
    maxima = products[: groups * GROUP].unflatten(0, (groups, GROUP)).amax(dim=1)
    best = maxima.T.contiguous().topk(k, dim=1, sorted=False).indices
    inside = torch.arange(GROUP, device=products.device)
    index = (best.unsqueeze(2) * GROUP + inside).flatten(1)
    rest = torch.arange(groups * GROUP, len(products), device=products.device)
    index = torch.cat((index, rest.expand(len(index), -1)), dim=1)
    values, at = products.T.gather(1, index).topk(k, dim=1)
    return values, index.gather(1, at)


class FaissEngine:
    """A FAISS inner-product index (flat, HNSW or IVF); it holds its own copy of the scaled vectors.

    Options: `links` (32), `ef_construction` (200) and `ef_search` (64) of HNSW; `lists` (about 4 sqrt(n)) and
    `probes` (a fifth of the lists, at least 8) of IVF.
    """

    def __init__(self, name: str, options: dict[str, Any]) -> None:
        try:
            import faiss
        except ImportError as error:
            raise ImportError(
                f"engine={name!r} needs FAISS, which is not installed: pip install 'surprise-hf[faiss]'"
            ) from error
        self._faiss, self.name, self.options = faiss, name, options
        self.wants_unit = name == "faiss-hnsw"
        self._index: Any = None
        self._exact = ExactEngine()
        self._form = Form()

    def build(self, rows: Rows, form: Form) -> None:
        """As `Engine.build`; HNSW takes n log n, IVF trains its lists first."""
        faiss, dim, product = self._faiss, rows.dim, self._faiss.METRIC_INNER_PRODUCT
        if self.name == "faiss-flat":
            self._index = faiss.IndexFlatIP(dim)
        elif self.name == "faiss-hnsw":
            self._index = faiss.IndexHNSWFlat(dim, self.options.get("links", 32), product)
            self._index.hnsw.efConstruction = self.options.get("ef_construction", 200)
        else:
            # FAISS wants 39 training rows for each list
            lists = max(1, min(self.options.get("lists", 4 * math.isqrt(len(rows))), len(rows) // 39))
            self._index = faiss.IndexIVFFlat(faiss.IndexFlatIP(dim), dim, lists, product)
            sample = torch.arange(0, len(rows), max(1, len(rows) // (64 * lists)))
            chosen = form._replace(scale=None if form.scale is None else form.scale[sample])
            trained = torch.from_numpy(rows.take(sample.numpy())[0]).to(rows.device)
            self._index.train(chosen.rows(trained, 0).cpu().numpy())
        self.extend(rows, form, 0)

    def extend(self, rows: Rows, form: Form, start: int) -> None:
        """As `Engine.extend`."""
        self._form = form
        self._exact.build(rows, form)
        for first, block in rows.blocks():
            skip = max(0, start - first)
            if skip < len(block):
                self._index.add(form.rows(block[skip:], first + skip).cpu().numpy())

    def search(
        self, queries: Tensor, k: int, allowed: Tensor | None = None, upper: float = math.inf
    ) -> tuple[Tensor, Tensor]:
        """As `Engine.search`; HNSW and IVF may miss some. A large k or a narrow filter gets one exact pass instead."""
        total = self._index.ntotal
        few = allowed is not None and 10 * int(allowed.sum()) <= total
        if self.name != "faiss-flat" and (few or 10 * k > total):
            return self._exact.search(queries, k, allowed, upper)
        options = self._options(k, allowed)
        searched, fetch = self._form.queries(queries).cpu().numpy(), k
        while True:  # FAISS knows no upper limit: what is above it is fetched and dropped
            values, where = self._index.search(searched, fetch, params=options)
            values[(where < 0) | (values > upper)] = -math.inf
            if upper == math.inf or fetch == total or (values > -math.inf).sum(axis=1).min() >= k:
                break
            fetch = min(4 * fetch, total)
            options = self._options(fetch, allowed)
        if upper < math.inf:  # what is dropped stood before the others
            order = np.argsort(-values, axis=1, kind="stable")[:, :k]
            values, where = np.take_along_axis(values, order, axis=1), np.take_along_axis(where, order, axis=1)
        best, rows = torch.from_numpy(values), torch.from_numpy(np.maximum(where, 0))
        return best.to(queries.device), rows.to(queries.device)

    def _options(self, k: int, allowed: Tensor | None) -> Any:
        faiss = self._faiss
        if self.name == "faiss-flat" and allowed is None:
            return None
        selector = None
        if allowed is not None:
            selector = faiss.IDSelectorBatch(allowed.nonzero().flatten().cpu().numpy())
        if self.name == "faiss-hnsw":
            return faiss.SearchParametersHNSW(efSearch=max(k, self.options.get("ef_search", 64)), sel=selector)
        if self.name == "faiss-ivf":
            probes = self.options.get("probes", max(8, self._index.nlist // 5))
            return faiss.SearchParametersIVF(nprobe=min(probes, self._index.nlist), sel=selector)
        return faiss.SearchParameters(sel=selector)
