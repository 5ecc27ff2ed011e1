"""SurpriseIndex: documents ranked by how surprising their similarity to a query text is.

Texts, ids, metadata and files; the numbers are `ranking.Ranker`'s.
"""

from __future__ import annotations

import copy
import os
import warnings
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from . import hub, index_files, index_inputs, index_values, inputs
from .contexts import as_context
from .corpus import Corpus
from .encoders import as_model
from .engines import Engine, ExportedVectors, Rows, make_engine
from .ensemble import Ensemble, check_rows
from .fitted import SMALL_WEIGHT, crossover_weight
from .index_values import Id
from .locks import SharedLock
from .ranking import DIRECTIONS, Found, Limits, Ranker
from .same_encoder import likeness, same_probe

__all__ = ["ExportedVectors", "Hit", "SurpriseIndex"]

SAVED = ("engine", "engine_options", "direction", "weight", "n_cross")  # options that come back with an index
OVERRIDES = ("engine", "engine_options", "weight", "n_cross", "device")  # of them and others, what opening may change


class Hit(NamedTuple):
    """One document found.

    Attributes:
        id: of the document.
        score: its surprise, 0 to 1 (blended with the rescaled cosine where the ensemble is small).
        z: (cosine - mean) / std; orders documents whose scores have both rounded to 1.
        cosine: the plain similarity.
        text, metadata: as given to `add`, or None. The metadata is the index's own: what is changed in it, filters see.
    """

    id: Id
    score: float
    z: float
    cosine: float
    text: str | None = None
    metadata: Any = None


class SurpriseIndex:
    """Documents, searched by surprise.

    Args:
        model: SurpriseModel, SentenceTransformer, folder or Hub id that embeds texts; None for embeddings alone.
        ensemble: what gives a similarity its context, an `Ensemble`, embeddings (e, d) or texts; it stays as it is.
            None: with direction="documents" the indexed documents, exact after every `add` and `remove`; with
            direction="questions" the questions of each call.
        engine: "exact" (one pass over the vectors) or FAISS (`pip install faiss-cpu`): "faiss-flat", "faiss-hnsw",
            "faiss-ivf". FAISS holds a copy of the vectors and makes it anew after a change of the corpus, unless the
            ensemble is a given one and documents were only added.
        direction: which side the mean and sigma belong to (q in S(k, q)).
            "documents": to each document; the text searched for is the key. The paper (section 5) recommends it in
            both cases: with the documents themselves as the ensemble (the default) where the text is one of their
            kind, as words among words; with past questions as `ensemble` where texts are of another kind, as
            questions to passages (BEIR), expecting less of it there. Measured, it costs such questions more often than
            it helps (docs/ranking.md): "questions" keeps the cosine's order for them.
            "questions": to the text searched for; the documents are the keys, the ensemble the questions. Within one
            question the order is the cosine's (design fact 3); what changes is the score, one threshold meaning the
            same for every question. One question alone needs an `ensemble`: its own deviation is 0.
        weight: w between 0 (rescaled cosine) and 1 (surprise); None gives tanh(e / n_cross) for an ensemble of e.
            Below w = 1 (3,800 documents) a search with direction="documents" passes over all documents and sorts them,
            whatever the engine. The first after a change also fits the rescaled cosine, to at most 1,024 documents
            (drawn at random, the same each time) by 1,024 of the ensemble; where the questions of a call are the
            ensemble, each call fits it to them. With more, scores differ from those of all pairs by some 0.002 (1 - w),
            up to 0.3 (1 - w) where cosines have a gap at their median, as those of two topics of equal size.
        n_cross: of the crossover.
        engine_options: for FAISS, see `engines.FaissEngine`.
        device: where the vectors live.

    Attributes:
        version: counts the changes of the corpus; what was exported or noted under another version is stale.
        ids, texts, metadata: of the documents, in the order they were added.
        engine, direction, weight, n_cross, engine_options, device: as given; they stay.

    Raises:
        TypeError: the model is of a kind that can't be one.
        ValueError: an engine, a direction or an engine's option that there is not, a weight outside [0, 1], an n_cross
            that is not positive, an ensemble of another encoder, of texts without a model, or that is none.
        ImportError: the engine needs faiss.

    Examples:
        >>> index = surprise_hf.SurpriseIndex(model).add(docs)
        >>> index.search("dog", k=10)

    References: paper sections 1 (word tables) and 5; design facts 1, 2 and 3.
    """

    def __init__(
        self,
        model: Any = None,
        ensemble: Any = None,
        engine: str = "exact",
        direction: str = "documents",
        *,
        weight: float | None = None,
        n_cross: float = 1000,
        engine_options: dict[str, Any] | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        if direction not in DIRECTIONS:
            raise ValueError(f"direction must be one of {DIRECTIONS}, got {direction!r}")
        crossover_weight(1, weight, n_cross)  # refuses both where they make no sense
        self.direction, self.engine, self.device = direction, engine, torch.device(device)
        self.weight, self.n_cross = None if weight is None else float(weight), inputs.plain(n_cross)
        self.engine_options = {name: inputs.plain(value) for name, value in (engine_options or {}).items()}
        self.model = None if model is None else as_model(model)
        self._new_engine()  # refuses one that there is not
        self._warned: set[str] = set()  # of which limits
        self._lock = SharedLock()  # a row number means nothing beside ids of another version
        self._given = self._as_ensemble(ensemble)
        self._corpus = Corpus()
        if self._given is not None:
            self._corpus.ranker = self._new_ranker(self._given.dim)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in (*SAVED, "device") and name in self.__dict__:
            way = f", or save this one and open it with {name}=..." if name in OVERRIDES else ""
            raise AttributeError(f"{name} is fixed when an index is made: make a new one{way}")
        super().__setattr__(name, value)

    def __len__(self) -> int:
        return len(self._corpus)

    def __contains__(self, document_id: object) -> bool:
        return document_id in self._corpus.positions

    def __repr__(self) -> str:
        return f"SurpriseIndex({len(self):,} documents, engine={self.engine!r}, direction={self.direction!r})"

    def __copy__(self) -> SurpriseIndex:
        """Documents of its own, and the same model, which `copy.deepcopy` copies too."""
        again = object.__new__(type(self))
        with self._lock.shared():
            again.__dict__.update(self.__dict__, _corpus=copy.deepcopy(self._corpus), _lock=SharedLock())
        again._warned = set(self._warned)
        return again

    @property
    def version(self) -> int:
        """How often the corpus has changed."""
        return self._corpus.version

    @property
    def ids(self) -> list[Id]:
        """Of the documents."""
        return self._corpus.ids

    @property
    def texts(self) -> list[str | None]:
        """Of the documents, None where there is none."""
        return self._corpus.texts

    @property
    def metadata(self) -> list[Any]:
        """Of the documents, None where there is none."""
        return self._corpus.metadata

    @property
    def ensemble(self) -> Ensemble | None:
        """What was given, or the statistics of the indexed documents; None before there are any."""
        ranker = self._corpus.ranker
        return None if ranker is None else ranker.ensemble

    @property
    def dim(self) -> int | None:
        """d; None before the first document."""
        ranker = self._corpus.ranker
        return None if ranker is None else ranker.rows.dim

    # --- documents -----------------------------------------------------------------------------------------------

    def add(
        self,
        documents: Any,
        *,
        texts: Sequence[str | None] | None = None,
        ids: Iterable[Id] | None = None,
        metadata: Iterable[Any] | None = None,
        batch_size: int = inputs.BATCH_SIZE,
    ) -> SurpriseIndex:
        """Add documents; all of them or, after an error, none.

        Args:
            documents: texts in any form that the pipeline takes, generators included, or embeddings (n, d) as a tensor
                or array. Blank texts are left out, with a warning; every other document keeps its id and metadata.
            texts: for embeddings, the texts they belong to.
            ids: a distinct int or str for each document, all of one kind; default: running numbers above all that were
                ever in use. Documents with the same text are different documents.
            metadata: anything JSON can hold for each document, for filters and to be given back. Kept as JSON gives it
                back: NumPy's numbers as Python's, tuples as lists. It is read before the documents, as the ids are.
            batch_size: of the encoder.

        Returns:
            self.

        Raises:
            TypeError: embeddings are not floating, or metadata that JSON can't hold (a date, a key that is no string).
            ValueError: lengths differ, an id is in use or beyond 64 bits, a row is of a wrong type or not finite (the
                message names it), or texts without a model.
        """
        given, data = None if ids is None else index_values.read_ids(ids), index_values.read_metadata(metadata)
        if given is None:
            index_values.check_running(self._corpus.next_id, 1)
        parts, kept, held, read = index_inputs.read_documents(documents, texts, self.dim, self.model, batch_size)
        new_metadata = index_values.column("metadata", data, read)
        with self._lock.alone():
            corpus = self._corpus
            if given is None:
                index_values.check_running(corpus.next_id, read)
            added = index_values.new_ids(given, read, corpus.next_id, corpus.positions, corpus.ids[:1])
            next_id = index_values.id_after(corpus.next_id, added)
            if kept:
                ranker = corpus.ranker or self._new_ranker(parts[0].shape[1])
                ids, metadata = ([values[row] for row in kept] for values in (added, new_metadata))
                corpus.add(ids, held, metadata, parts, ranker, next_id)
            corpus.next_id = next_id
        return self

    def remove(self, ids: Id | Iterable[Id]) -> SurpriseIndex:
        """Remove documents by their ids, and from the ensemble where it is their own (exact to 1e-9).

        All of them or, after an error or an interrupt, none: what stays is copied before what was there is let go, so
        for a moment up to two copies of the vectors are held.

        Raises:
            ValueError: what is no id, or no list or set of them, or an id is not in the index; nothing is removed then.
        """
        given: Any = inputs.plain(ids)
        if isinstance(given, (str, bytes)) or not isinstance(given, Iterable):
            given = [given]
        wanted = index_values.read_ids(list(given) if isinstance(given, (set, frozenset)) else given)
        with self._lock.alone():
            positions = self._corpus.positions
            missing = [i for i in wanted if i not in positions]
            if missing:
                raise ValueError(f"no document has the id {', '.join(map(repr, missing[:5]))}; nothing was removed")
            if wanted:
                mask = torch.ones(len(self), dtype=torch.bool)
                mask[[positions[i] for i in wanted]] = False
                self._corpus = self._corpus.kept(mask, self._new_engine())
        return self

    def _new_engine(self) -> Engine:
        return make_engine(self.engine, self.engine_options)

    def _new_ranker(self, dim: int) -> Ranker:
        if self.model is not None and self.model.dim != dim:
            raise ValueError(f"embeddings of dimension {dim}, but the model gives {self.model.dim}")
        own, ensemble = self._given is None and self.direction == "documents", self._given
        if own:
            encoder = None if self.model is None else self.model.encoder_name
            ensemble = Ensemble(dim, reservoir=0, encoder=encoder, device=self.device)
        rows, engine = Rows(dim, self.device), self._new_engine()
        return Ranker(rows, engine, self.direction, self.weight, self.n_cross, ensemble, own)

    # --- searching -----------------------------------------------------------------------------------------------

    def search(
        self,
        queries: Any,
        k: int | None = 10,
        *,
        filter: Callable[[Any], bool] | None = None,  # noqa: A002 (the word that every index uses)
        min_score: float = 0.0,
        max_score: float = 1.0,
        at_least_as_similar_as: str | Tensor | None = None,
    ) -> Any:
        """The documents that surprise most by their similarity to each query, best first.

        Args:
            queries: one text or embedding (d,), or several: a list of texts, embeddings (b, d).
            k: the most documents for each; None gives all that pass.
            filter: of the metadata of a document: True lets it be found. The ensemble stays that of all documents.
            min_score, max_score: limits of the score, both included.
            at_least_as_similar_as: a text or embedding (d,): documents that surprise less than it would are left out.

        Returns:
            list of `Hit` for one query, else a list of such lists.

        Raises:
            ValueError: a blank or wrong-typed query (the message names it), k < 1, limits of the score that leave none,
                another dimension, or texts without a model.
        """
        single, keys = index_inputs.read_queries("queries", queries, self.dim, self.model)
        if k is not None:
            k = inputs.positive_int("k", k)
        if inputs.share("min_score", min_score) > inputs.share("max_score", max_score):
            raise ValueError(f"no score can be at least min_score={min_score} and at most max_score={max_score}")
        cutoff = None
        if at_least_as_similar_as is not None:
            name = "at_least_as_similar_as"
            one, cutoff = index_inputs.read_queries(name, at_least_as_similar_as, self.dim, self.model)
            if not one:
                raise ValueError("at_least_as_similar_as must be one text or one embedding")
        hits: list[list[Hit]] = [[] for _ in range(len(keys))]
        with self._lock.shared():
            known = self.dim in (None, keys.shape[1])  # or the first documents came after the check of the queries
            if len(keys) and not known:
                check_rows("queries", torch.from_numpy(keys), self.dim)
            allowed = None
            if filter is not None:
                passing = self._passing(filter)
                allowed = torch.tensor(passing, dtype=torch.bool, device=self.device)
            ranker = self._corpus.ranker
            if ranker is not None and len(self) and len(keys) and (allowed is None or allowed.any()):
                self._warn_of_limits(ranker.context_size(len(keys)))
                found = ranker.search(keys, cutoff, Limits(k, min_score, max_score, allowed))
                hits = [self._hits(columns) for columns in found]
        return hits[0] if single else hits

    def _hits(self, found: Found) -> list[Hit]:
        ids, texts, metadata = self.ids, self.texts, self.metadata
        return [Hit(ids[i], score, z, c, texts[i], metadata[i]) for i, c, z, score in zip(*found, strict=True)]

    def _passing(self, filter: Callable[[Any], bool]) -> list[bool]:  # noqa: A002
        try:
            return [bool(filter(data)) for data in self.metadata]
        except (TypeError, AttributeError) as error:
            if any(data is not None for data in self.metadata):
                raise
            message = "filter looks at metadata, and no document of this index has any: add(..., metadata=[...])"
            raise ValueError(message) from error

    def _warn_of_limits(self, documents: int) -> None:
        weight = crossover_weight(documents, self.weight, self.n_cross)
        small, alone = self.weight is None and weight < SMALL_WEIGHT, documents == 1
        kind = "small" if small else "alone"
        if kind in self._warned or not (small or (alone and weight >= SMALL_WEIGHT)):
            return
        self._warned.add(kind)
        advice = "; pass a larger ensemble (--ensemble FILE on the command line)"
        if self.direction == "questions" and self._given is None:
            advice += ", or more questions at once, which are each other's"
        if small:
            what = self.direction.removesuffix("s") if alone else self.direction
            found = f"{documents:,} {what}, so the surprise counts with a weight of {weight:.2f} and the plain"
            advice = f" similarity with the rest{advice}"
            advice += "" if alone else ", or weight=1 (--surprise-weight 1) for the surprise alone"
        else:  # a deviation of 0
            found = "one text: whatever is less similar than that text itself scores 0, as like it 0.5, and more 1"
        warnings.warn(f"the ensemble holds {found}{advice}", stacklevel=3)

    def _as_ensemble(self, ensemble: Any) -> Ensemble | None:
        if ensemble is None:
            return None
        found = as_context(ensemble, self.model)
        if isinstance(found, Ensemble):
            return copy.deepcopy(found).to(self.device)  # as it is now: the caller may go on with it
        encoder = None if self.model is None else self.model.encoder_name
        return Ensemble.from_embeddings(found, encoder=encoder, precision="exact").to(self.device)

    # --- elsewhere -----------------------------------------------------------------------------------------------

    def export_vectors(self, unit: bool = False) -> ExportedVectors:
        """The documents as vectors for any engine that searches by inner product (FAISS, Qdrant, pgvector, ...).

        A snapshot: adding or removing documents moves every sigma of an ensemble that is their own. Compare its
        `version` with the index's, and export again where they differ. With direction="questions" the vectors are
        d^ and the centre is 0. The order is that of z, which is the search's where w = 1; below it a warning says so.

        Args:
            unit: vectors of length 1 with the same products, for engines that search a graph (HNSW), which finds few
                of the right documents among vectors that have one large component in common.

        Raises:
            ValueError: the index is empty.
        """
        with self._lock.shared():
            ranker = self._corpus.ranker
            if ranker is None or not len(self):
                raise ValueError("the index is empty: add documents first")
            if self.direction == "documents":
                self._warn_of_limits(ranker.context_size(0))
            return ExportedVectors(*ranker.export(unit), list(self.ids), self.version)

    def save_pretrained(self, path: str | os.PathLike) -> None:
        """Write the index to a folder: safetensors for vectors and ensemble, parquet for ids, texts and metadata.

        A folder for itself: an index that is there is replaced, and a README.md that someone wrote is left alone.

        Raises:
            TypeError: metadata, changed since it was added, that JSON can't hold; nothing is written then.
            ValueError: the folder's config.json is no index's, as a model's; nothing is written then.
        """
        with self._lock.shared():
            options = {name: getattr(self, name) for name in SAVED}
            options |= {
                "encoder": None if self.model is None else self.model.encoder_name,
                "own_ensemble": self._given is None,
                "next_id": self._corpus.next_id,
                "index_version": self.version,
            }
            rows = None if self._corpus.ranker is None else self._corpus.ranker.rows
            documents = index_files.Documents(self.ids, self.texts, self.metadata)
            index_files.write(Path(path), rows, self.ensemble, documents, options)

    @classmethod
    def from_pretrained(
        cls,
        name_or_path: str | os.PathLike,
        model: Any = None,
        *,
        revision: str | None = None,
        token: bool | str | None = None,
        cache_dir: str | None = None,
        local_files_only: bool = False,
        **overrides: Any,
    ) -> SurpriseIndex:
        """Open a folder, or a data set repository of the Hub, that holds an index.

        Args:
            name_or_path: folder or Hub id.
            model: what embeds texts, as for the constructor; the encoder that the index was made with.
            revision, token, cache_dir, local_files_only: of the download.
            overrides: engine, engine_options, weight, n_cross or device in place of what was saved. Ensemble and
                direction belong to what was added: for others make the index anew.

        Raises:
            FileNotFoundError: the folder holds no index.
            TypeError: another override.
            ValueError: a damaged or newer file, or another encoder.
        """
        if unknown := sorted(set(overrides) - set(OVERRIDES)):
            raise TypeError(f"an index is opened as it was saved but for {OVERRIDES}, not {unknown}: make it anew")
        folder = Path(name_or_path)
        if not folder.is_dir():
            where = {"revision": revision, "token": token, "cache_dir": cache_dir, "local_files_only": local_files_only}
            folder = index_files.download(os.fspath(name_or_path), **where)
        saved = index_files.read(folder, overrides.get("device", "cpu"))
        options = {name: saved.config[name] for name in SAVED}
        if "engine" in overrides:
            options["engine_options"] = None
        given = None if saved.config["own_ensemble"] else saved.ensemble
        index = cls(model, given, **{**options, **overrides})
        ranker = None
        if saved.rows is not None:
            ranker = index._new_ranker(saved.rows.dim)
            ranker.rows, ranker.ensemble = saved.rows, saved.ensemble
        next_id = index_values.id_after(saved.config["next_id"], saved.documents.ids)
        index._corpus = Corpus(*saved.documents, next_id, saved.config["index_version"], ranker)
        index._check_encoder()
        return index

    def push_to_hub(self, repo_id: str, **options: Any) -> str:
        """Upload the index to a data set repository, made if need be; returns the address of the commit.

        Args:
            repo_id: user/name.
            options: of `hub.upload`: private, token, revision, commit_message.

        A card that someone edited stays as it is.
        """
        options = {"commit_message": "Upload SurpriseIndex", "delete_patterns": index_files.PATTERNS, **options}
        with TemporaryDirectory() as folder:
            self.save_pretrained(folder)
            card = partial(index_files.card, Path(folder))
            return hub.upload(folder, repo_id, repo_type="dataset", card=card, **options)

    def _check_encoder(self) -> None:
        """Refuse a model under which a stored text no longer has the vector that is stored with it."""
        row = next((row for row, text in enumerate(self.texts) if text is not None), None)
        ranker = self._corpus.ranker
        if self.model is None or row is None or ranker is None:
            return
        emb = self.model.embed([str(self.texts[row])], show_progress_bar=False)[0][0]
        kept = ranker.rows.take(np.array([row])).cpu()[0]
        if not same_probe(emb, kept):
            raise ValueError(
                "the index was made with another encoder, prompt or weights than this model: they embed document"
                f" {self.ids[row]!r} with a cosine of {likeness(emb, kept):.2f}"
            )
