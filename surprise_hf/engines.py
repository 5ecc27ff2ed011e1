"""Where vectors are kept and searched by inner product: by one pass, or by FAISS.

A search reads vectors rounded to bfloat16, half of their memory, and says how far off their products can be: the rows
that might be among the best are few, and float64 settles them (`ranking.Ranker`).

The ops are called as they are: their public functions check every argument, for 15 microseconds a search each.

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

from . import inputs
from .ensemble import check_rows
from .ops import full_precision, join_halves, split_halves, unit_rows

OPS = torch.ops.surprise_hf

ENGINES = ("exact", "faiss-flat", "faiss-hnsw", "faiss-ivf")

OPTIONS = {  # and the least that each may be: FAISS is told at the first search, and dies of some
    "faiss-hnsw": {"links": 2, "ef_construction": 1, "ef_search": 1},
    "faiss-ivf": {"lists": 1, "probes": 1},
}

BLOCK_BYTES = 64 << 20  # of the row store: what growing and shrinking cost on top of the rows themselves
LISTED = 1 << 21  # rows listed at once for some queries, by each thread

SLICE = 4096  # rows at once where each is worked on for itself
NEAR = 2e-6  # of the lengths of two vectors: how far float32 may be from their product
ADDITION = 2.0**-24  # the same for one number after another: what each addition may lose


class Rows:
    """(n, d) float32 vectors in blocks, all full but the last: growing copies nothing.

    Each number is kept in two halves of 16 bits: the bfloat16 that is nearest, and what its bits lack. A search reads
    the former alone, which is half of the memory, and the latter of the few rows that it finds.

    Attributes:
        longest: length of the longest row that was ever here.
        lost: the longest difference between a row and its bfloat16 numbers.
    """

    def __init__(self, dim: int, device: torch.device | str = "cpu") -> None:
        self.dim, self.device = dim, torch.device(device)
        self.step = max(1, BLOCK_BYTES // (4 * dim))
        self.longest = self.lost = 0.0
        self._blocks: list[tuple[Tensor, Tensor]] = []  # (step, d) bfloat16 and int16
        self._lengths: list[np.ndarray] = []  # float32 leaves unit rows 1e-7 from 1, which float64 settles
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def rounded(self) -> Iterator[tuple[int, Tensor]]:
        """(index of the first row, view of the rows in bfloat16) of each block."""
        for start, (near, _) in zip(range(0, self._count, self.step), self._blocks, strict=True):
            yield start, near[: self._count - start]

    def blocks(self) -> Iterator[tuple[int, Tensor]]:
        """(index of the first row, copy of the rows in float32) of each block."""
        return self.parts(0, self.step)

    def parts(self, first: int = 0, length: int = SLICE) -> Iterator[tuple[int, Tensor]]:
        """(index of the first row, copy of at most `length` rows in float32), from row `first` on."""
        while first < self._count:
            block, used = divmod(first, self.step)
            stop = min(used + length, self.step, used + self._count - first)
            yield first, join_halves(*(half[used:stop] for half in self._blocks[block]))
            first += stop - used

    @property
    def lengths(self) -> np.ndarray:
        """(n,) float64."""
        return np.concatenate([np.empty(0), *self._lengths])[: self._count]

    def append(self, rows: Tensor) -> None:
        """Add rows (b, d) float32 at the end; values beyond 3e38 are not taken."""
        rows = rows.contiguous()
        near, rest = split_halves(rows)
        length = torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64).cpu().numpy()
        if len(rows):
            self.longest = max(self.longest, float(length.max()))
            self.lost = max(self.lost, float(torch.linalg.vector_norm(rows - near, dim=1).max()))
        self._append(near, rest, length)

    @torch.inference_mode()  # a block that was made or copied in that mode is written in it alone, others anywhere
    def _append(self, near: Tensor, rest: Tensor, length: np.ndarray) -> None:
        done = 0
        while done < len(length):
            number, used = divmod(self._count, self.step)
            if number == len(self._blocks):
                shape = self.step, self.dim
                block = [torch.empty(shape, dtype=half.dtype, device=self.device) for half in (near, rest)]
                self._blocks.append((block[0], block[1]))
                self._lengths.append(np.empty(self.step))
            stop = min(done + self.step - used, len(length))
            place = slice(used, used + stop - done)
            for kept, half in zip(self._blocks[number], (near, rest), strict=True):
                kept[place] = half[done:stop]
            self._lengths[number][place] = length[done:stop]
            self._count += stop - done
            done = stop

    def kept(self, mask: Tensor) -> Rows:
        """The rows whose `mask` (n,) is True, in their order, as another store; this one stays as it is.

        Blocks ahead of the first row that goes are full, so nothing is written to them again: both have them.
        """
        left = Rows(self.dim, self.device)
        left.step, left.longest, left.lost = self.step, self.longest, self.lost
        shared = int(mask.long().cumprod(dim=0).sum()) // self.step
        left._blocks, left._lengths, left._count = self._blocks[:shared], self._lengths[:shared], shared * self.step
        for start in range(left._count, self._count, self.step):
            number = start // self.step
            for first in range(start, min(start + self.step, self._count), SLICE):
                chosen = first - start + mask[first : min(first + SLICE, start + self.step)].nonzero().flatten()
                there = chosen.to(self.device)
                near, rest = (half[there] for half in self._blocks[number])
                left._append(near, rest, self._lengths[number][chosen.numpy()])
        return left

    def cut(self, count: int) -> None:
        """Drop all rows but the first `count`."""
        self._count, used = count, -(-count // self.step)
        del self._blocks[used:], self._lengths[used:]

    def take(self, index: np.ndarray) -> Tensor:
        """Rows (r, d) by their indices (r,) int64, in that order."""
        out = torch.empty(len(index), self.dim, dtype=torch.float32, device=self.device)
        for block, here, inside in self._parts_of(index):
            rows = torch.from_numpy(inside[here]).to(self.device)
            out[torch.from_numpy(here).to(self.device)] = join_halves(*(half[rows] for half in self._blocks[block]))
        return out

    def products(self, index: np.ndarray, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Products of keys (b, d) with rows of their own by indices (b, f), and those rows' lengths; (b, f) float64."""
        there = torch.from_numpy(keys).to(self.device)
        if len(self._blocks) == 1:
            rows = torch.from_numpy(index).to(self.device)
            return OPS.gathered_products(*self._blocks[0], rows, there).cpu().numpy(), self._lengths[0][index]
        products, lengths = np.zeros(index.shape), np.empty(index.shape)
        for block, here, inside in self._parts_of(index):
            rows = torch.from_numpy(inside if here.all() else np.where(here, inside, -1)).to(self.device)
            products += OPS.gathered_products(*self._blocks[block], rows, there).cpu().numpy()
            lengths[here] = self._lengths[block][inside[here]]
        return products, lengths

    def _parts_of(self, index: np.ndarray) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
        """(block, mask of the indices that are in it, indices inside their blocks) of each block that is needed."""
        number, inside = np.divmod(index, self.step)
        for block in np.unique(number).tolist():
            yield block, number == block, inside

    def whole(self) -> Tensor:
        """A copy of all rows as one tensor."""
        parts = [block for _, block in self.blocks()]
        empty = torch.empty(0, self.dim, dtype=torch.float32, device=self.device)
        return parts[0] if len(parts) == 1 else torch.cat([empty, *parts])


class Form(NamedTuple):
    """How rows and queries stand for the score: (query @ inverse) . (row @ root) * scale.

    Attributes:
        scale: (n,) float32; None for ones.
        root, inverse: (d, d) float32, C^(1/2) and C^(-1/2); None for the identity.
    """

    scale: Tensor | None = None
    root: Tensor | None = None
    inverse: Tensor | None = None

    @full_precision
    def rows(self, block: Tensor, start: int) -> Tensor:
        """Rows from number `start` on, as they are searched."""
        block = block if self.root is None else block @ self.root
        return block if self.scale is None else block * self.scale[start : start + len(block)].unsqueeze(1)

    @full_precision
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

    @full_precision
    def queries(self, embeddings: Any) -> Tensor:
        """Embeddings (b, d), or one (d,), as the vectors to search with, float32 of the same shape.

        Args:
            embeddings: floating, a tensor or an array.

        Raises:
            TypeError, ValueError: they are not floating, not finite, or of another dimension.
        """
        emb = inputs.as_tensor(embeddings)
        rows = emb.unsqueeze(0) if emb.dim() == 1 else emb
        check_rows("embeddings", rows, len(self.centre))
        centred = (unit_rows(rows.to(torch.float64)) - self.centre.to(emb.device)).to(torch.float32)
        return (centred if self.matrix is None else centred @ self.matrix.to(emb.device)).view(emb.shape)


class Engine(Protocol):
    """Finds the rows with the largest products under a `Form`, and tells how large the others' can be."""

    wants_unit: bool  # rows of length 1, by the roots of the covariance

    def build(self, rows: Rows, form: Form) -> None:
        """Take all rows anew."""

    def extend(self, rows: Rows, form: Form, start: int) -> None:
        """Rows from `start` on are new; the others, their scales included, are as they were."""

    def search(
        self, queries: Tensor, k: int, allowed: Tensor | None = None, upper: float = math.inf, fine: bool = False
    ) -> tuple[Tensor, Tensor]:
        """k rows of each query.

        Args:
            queries: (b, d) float32.
            k: 1 <= k <= n.
            allowed: (n,) bool, rows that may be found; None for all.
            upper: rows with larger products need not be found.
            fine: tell rows apart as well as float32 can, which takes longer.

        Returns:
            bounds (b, k) float32, largest first, which the products do not exceed, and rows (b, k) int64. A row that
            is not among them has no larger product than the last bound (an engine that guesses may miss some).
            -inf where fewer than k were found.
        """


def make_engine(name: str, options: dict[str, Any]) -> Engine:
    """An engine by name.

    Raises:
        ValueError: unknown name or options.
        ImportError: FAISS is not installed.
    """
    if name not in ENGINES:
        raise ValueError(f"engine must be one of {ENGINES}, got {name!r}")
    known = OPTIONS.get(name, {})
    if unknown := sorted(set(options) - set(known)):
        raise ValueError(f"engine={name!r} knows the options {sorted(known)}, not {unknown}")
    for option, value in options.items():
        if not known[option] <= inputs.positive_int(f"engine_options: {option}", value) < 1 << 31:
            raise ValueError(f"engine_options: {option} must be from {known[option]} to 2^31 - 1, got {value!r}")
    return ExactEngine() if name == "exact" else FaissEngine(name, options)


class ExactEngine:
    """One pass over the rows. Holds no vectors of its own."""

    wants_unit = False

    def build(self, rows: Rows, form: Form) -> None:
        """As `Engine.build`; the form's roots, which change no product, are left out."""
        self.rows, self.scale = rows, form.scale

    def extend(self, rows: Rows, form: Form, start: int) -> None:  # noqa: ARG002 (the interface)
        """As `Engine.extend`."""
        self.build(rows, form)

    def search(
        self, queries: Tensor, k: int, allowed: Tensor | None = None, upper: float = math.inf, fine: bool = False
    ) -> tuple[Tensor, Tensor]:
        """As `Engine.search`."""
        rounded = queries if fine else queries.to(torch.bfloat16)
        error = _margin(queries, rounded, self.rows.longest, 0.0 if fine else self.rows.lost)
        margin = torch.from_numpy(error).to(queries.device)
        scale = self.scale
        if allowed is not None:
            scale = torch.ones_like(allowed, dtype=torch.float32) if scale is None else scale
            scale = scale.masked_fill(~allowed, math.nan)
        step = max(1, LISTED // min(k, self.rows.step))
        parts = [slice(first, first + step) for first in range(0, len(queries), step)]
        found = [self._search(rounded[part], margin[part], scale, k, upper, fine) for part in parts]
        bounds, rows = zip(*found, strict=True)
        return _joined(bounds, dim=0), _joined(rows, dim=0)

    def _search(
        self, queries: Tensor, margin: Tensor, scale: Tensor | None, k: int, upper: float, fine: bool
    ) -> tuple[Tensor, Tensor]:
        parts = []
        for start, block in self.rows.blocks() if fine else self.rows.rounded():
            part = None if scale is None else scale[start : start + len(block)]
            values, index = OPS.search_topk(block, queries, margin, part, min(k, len(block)), upper=upper)
            parts.append((values, index + start if start else index))
        best, where = (_joined(found, dim=1) for found in zip(*parts, strict=True))
        if best.shape[1] > k:
            best, order = best.topk(k, dim=1)
            where = where.gather(1, order)
        return best, where


def _margin(queries: Tensor, rounded: Tensor, longest: float, lost: float) -> np.ndarray:
    """How far (b,) float64 the products of rounded queries and rows may be from those of what was rounded.

    |q.r - q'.r'| <= |q| |r - r'| + |q - q'| |r'|, and what float32 loses. Where rows are rounded, hardware may sum in
    any order: that is little beside the rest.
    """
    wide = queries.cpu().numpy().astype(np.float64)
    gap = np.linalg.norm(wide - rounded.to("cpu", torch.float32).numpy(), axis=1)
    near = wide.shape[1] * ADDITION if lost else NEAR
    return (lost + near * longest) * np.linalg.norm(wide, axis=1) + (longest + lost) * gap


def _joined(parts: Sequence[Tensor], dim: int) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts), dim=dim)


def _faiss(engine: str) -> Any:
    """The module, which is optional. An engine that held it could not be copied."""
    try:
        import faiss
    except ImportError as error:
        raise ImportError(f"engine={engine!r} needs FAISS, which is not installed: pip install faiss-cpu") from error
    return faiss


class FaissEngine:
    """A FAISS inner-product index (flat, HNSW or IVF); it holds its own copy of the scaled vectors.

    That of "faiss-flat" is rounded to bfloat16, which takes half of the memory and of the time; what that leaves open
    is settled with the index's own vectors.

    Options: `links` (32), `ef_construction` (200) and `ef_search` (64) of HNSW; `lists` (about 4 sqrt(n)) and
    `probes` (a fifth of the lists, at least 8) of IVF.
    """

    def __init__(self, name: str, options: dict[str, Any]) -> None:
        _faiss(name)  # says at once where it is missing
        self.name, self.options = name, options
        self.wants_unit = name == "faiss-hnsw"
        self._index: Any = None
        self._exact = ExactEngine()
        self._form = Form()
        self._longest = self._lost = 0.0  # as in `Rows`, of the vectors that FAISS holds

    def build(self, rows: Rows, form: Form) -> None:
        """As `Engine.build`; HNSW takes n log n, IVF trains its lists first."""
        faiss, dim = _faiss(self.name), rows.dim
        product = faiss.METRIC_INNER_PRODUCT
        if self.name == "faiss-flat":
            self._index = faiss.IndexScalarQuantizer(dim, faiss.ScalarQuantizer.QT_bf16, product)
            self._index.train(np.empty((0, dim), dtype=np.float32))  # there is nothing to learn
        elif self.name == "faiss-hnsw":
            self._index = faiss.IndexHNSWFlat(dim, self.options.get("links", 32), product)
            self._index.hnsw.efConstruction = self.options.get("ef_construction", 200)
        else:
            # FAISS wants 39 training rows for each list
            lists = max(1, min(self.options.get("lists", 4 * math.isqrt(len(rows))), len(rows) // 39))
            self._index = faiss.IndexIVFFlat(faiss.IndexFlatIP(dim), dim, lists, product)
            sample = torch.arange(0, len(rows), max(1, len(rows) // (64 * lists)))
            chosen = form._replace(scale=None if form.scale is None else form.scale[sample])
            trained = rows.take(sample.numpy())
            self._index.train(chosen.rows(trained, 0).cpu().numpy())
        self._longest = self._lost = 0.0
        self._fill(rows, form, 0)

    def extend(self, rows: Rows, form: Form, start: int) -> None:
        """As `Engine.extend`."""
        if self._index.ntotal == start:
            self._fill(rows, form, start)
        else:  # this was interrupted before
            self.build(rows, form)

    def _fill(self, rows: Rows, form: Form, start: int) -> None:
        self._form = form
        self._exact.build(rows, form)
        for first, part in rows.parts(start):
            self._add(form.rows(part, first))

    def _add(self, vectors: Tensor) -> None:
        self._longest = max(self._longest, float(torch.linalg.vector_norm(vectors, dim=1).max()))
        if self.name == "faiss-flat":
            rounded = vectors.to(torch.bfloat16).to(torch.float32)
            self._lost = max(self._lost, float(torch.linalg.vector_norm(vectors - rounded, dim=1).max()))
            vectors = rounded
        self._index.add(vectors.cpu().numpy())

    def search(
        self, queries: Tensor, k: int, allowed: Tensor | None = None, upper: float = math.inf, fine: bool = False
    ) -> tuple[Tensor, Tensor]:
        """As `Engine.search`; HNSW and IVF may miss some.

        A large k, a narrow filter or an upper limit gets one exact pass instead: FAISS knows no such limit, and what
        is near the query is what the limit leaves out.
        """
        total = self._index.ntotal
        few = allowed is not None and 10 * int(allowed.sum()) <= total
        if fine or upper < math.inf or (self.name != "faiss-flat" and (few or 10 * k > total)):
            return self._exact.search(queries, k, allowed, upper, fine)
        formed = self._form.queries(queries).cpu()
        rounded = formed.to(torch.bfloat16).to(torch.float32) if self.name == "faiss-flat" else formed
        searched = rounded.numpy()
        error = _margin(formed, rounded, self._longest, self._lost)[:, None].astype(np.float32)
        bounds, where = self._index.search(searched, k, params=self._options(k, allowed))
        bounds += error
        bounds[where < 0] = -math.inf
        best, rows = torch.from_numpy(bounds), torch.from_numpy(np.maximum(where, 0))
        return best.to(queries.device), rows.to(queries.device)

    def _options(self, k: int, allowed: Tensor | None) -> Any:
        faiss = _faiss(self.name)
        if self.name == "faiss-flat" and allowed is None:
            return None
        selector = None
        if allowed is not None:
            selector = faiss.IDSelectorBatch(allowed.nonzero().flatten().cpu().numpy())
        if self.name == "faiss-hnsw":
            width = min(self.options.get("ef_search", 64), self._index.ntotal)  # it has so much memory, used or not
            return faiss.SearchParametersHNSW(efSearch=max(k, width), sel=selector)
        if self.name == "faiss-ivf":
            probes = self.options.get("probes", max(8, self._index.nlist // 5))
            return faiss.SearchParametersIVF(nprobe=min(probes, self._index.nlist), sel=selector)
        return faiss.SearchParameters(sel=selector)
