"""The files of a SurpriseIndex: safetensors for vectors and ensemble, parquet for the rest, JSON for the options.

config.json                 what it is; written last, so that a folder without it is no index
vectors-00000.safetensors   unit rows, one file for each block of the row store
ensemble.safetensors        Ensemble.save
documents.parquet           id, text, metadata (JSON)
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .engines import Rows
from .ensemble import Ensemble
from .folders import replacing
from .formats import INDEX, check_version, format_of
from .hub import check_exists
from .model_card import index_card, is_ours

FORMAT, VERSION = INDEX, 1
CONFIG, ENSEMBLE, DOCUMENTS, CARD = "config.json", "ensemble.safetensors", "documents.parquet", "README.md"
SHARD = "vectors-{:05d}.safetensors"
COUNTS = ("shards", "documents", "next_id", "index_version")  # of the config, whole numbers
OPTIONS = ("engine", "engine_options", "direction", "weight", "n_cross", "own_ensemble")  # what else has to be there
PATTERNS = ["vectors-*.safetensors", ENSEMBLE, DOCUMENTS, CONFIG]  # what a later upload replaces


class Documents(NamedTuple):
    """Columns of the corpus."""

    ids: list[Any]
    texts: list[str | None]
    metadata: list[Any]


class Saved(NamedTuple):
    """What `read` found."""

    config: dict[str, Any]
    rows: Rows | None
    ensemble: Ensemble | None
    documents: Documents


def write(
    folder: Path, rows: Rows | None, ensemble: Ensemble | None, documents: Documents, options: dict[str, Any]
) -> None:
    """Write an index, in place of one that the folder holds.

    That one is as it was until all files of the new one are written, under a name of their own. A card that someone
    wrote or edited stays.

    Raises:
        ValueError: the folder's config.json is no index's, as a model's; nothing is written then.
        TypeError: metadata or options that JSON cannot hold; nothing is written then.
    """
    import pyarrow as pa
    from pyarrow import parquet
    from safetensors.torch import save_file

    if format_of(folder / CONFIG) not in (None, FORMAT):
        raise ValueError(
            f"{folder} holds something else than an index, as a model: its {CONFIG} is not of surprise_hf.index."
            " Choose another folder, or remove that file if it was an index's"
        )
    metadata = [None if data is None else json.dumps(data, ensure_ascii=False) for data in documents.metadata]
    kind = pa.string() if documents.ids and isinstance(documents.ids[0], str) else pa.int64()
    columns = {"id": (documents.ids, kind), "text": (documents.texts, pa.string())}
    columns["metadata"] = (metadata, pa.string())
    table = pa.table({name: pa.array(values, dtype) for name, (values, dtype) in columns.items()})
    config = {
        "format": FORMAT,
        "version": VERSION,
        "documents": len(documents.ids),
        "dim": None if rows is None else rows.dim,
        "shards": 0 if rows is None else -(-len(rows) // rows.step),
        "ensemble": ensemble is not None,
        **options,
    }
    text = json.dumps(config, indent=2) + "\n"
    with replacing(folder, CONFIG, PATTERNS) as new:
        for number, (_, block) in enumerate([] if rows is None else rows.blocks()):
            save_file({"vectors": block.contiguous()}, new / SHARD.format(number))
        if ensemble is not None:
            ensemble.save(new / ENSEMBLE)
        parquet.write_table(table, new / DOCUMENTS)
        if is_ours(folder / CARD):
            (new / CARD).write_text(index_card(config), encoding="utf-8")
        (new / CONFIG).write_text(text, encoding="utf-8")


def read(folder: Path, device: torch.device | str) -> Saved:
    """Read what `write` wrote, vectors onto `device`.

    Raises:
        FileNotFoundError: the folder holds no index.
        ValueError: a damaged or newer file; the message names it.
    """
    import pyarrow as pa
    from pyarrow import parquet

    path = folder / CONFIG
    if not path.is_file():
        raise FileNotFoundError(f"{folder} holds no index: there is no {CONFIG}")
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
        if config["format"] != FORMAT:
            raise ValueError(f"{CONFIG} was not written by surprise_hf")
        check_version(config["version"], VERSION)
        dim, shards, count = config["dim"], config["shards"], config["documents"]
        for name in (*COUNTS, *OPTIONS):
            value = config[name]
            if name in COUNTS and (type(value) is not int or value < 0):
                raise ValueError(f"{name} must be a whole number, 0 or more, not {value!r}")
        if dim is not None and (type(dim) is not int or dim < 1):
            raise ValueError(f"dim must be a whole number above 0, not {dim!r}")
    except (ValueError, KeyError, TypeError) as error:
        reason = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise ValueError(f"{path} can't be used: {reason}") from error
    rows = None
    if dim is not None:
        rows = Rows(dim, device)
        for number in range(shards):
            rows.append(_vectors(folder / SHARD.format(number), rows))
    try:
        table = parquet.read_table(folder / DOCUMENTS)
        ids, texts, metadata = (table.column(name).to_pylist() for name in ("id", "text", "metadata"))
    except (OSError, KeyError, pa.ArrowException) as error:
        raise ValueError(f"{folder / DOCUMENTS} is missing or damaged: {error}") from error
    if not len(ids) == count == (0 if rows is None else len(rows)):
        raise ValueError(f"{folder}: {CONFIG}, {DOCUMENTS} and the vectors differ in their number of documents")
    ensemble = None
    if config.get("ensemble"):
        if not (folder / ENSEMBLE).is_file():
            raise ValueError(f"{folder / ENSEMBLE} is missing")
        ensemble = Ensemble.load(folder / ENSEMBLE, dim, device=device)
    loaded = [None if data is None else json.loads(data) for data in metadata]
    return Saved(config, rows, ensemble, Documents(ids, texts, loaded))


def _vectors(path: Path, rows: Rows) -> Tensor:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        vectors = load_file(path, device=str(rows.device))["vectors"]
    except (OSError, KeyError, SafetensorError) as error:
        raise ValueError(f"{path} is missing or damaged: {error}") from error
    if vectors.dim() != 2 or vectors.shape[1] != rows.dim:
        raise ValueError(f"{path} holds vectors {tuple(vectors.shape)}, not (rows, {rows.dim})")
    return vectors


def download(repo_id: str, **options: Any) -> Path:
    """Folder of a data set repository's files; `options` as for `huggingface_hub.snapshot_download`."""
    from huggingface_hub import snapshot_download

    check_exists(repo_id)
    return Path(snapshot_download(repo_id, repo_type="dataset", **options))


def card(folder: Path, repo_id: str) -> str:
    """The card of an index in a folder, for the repository that it goes to."""
    return index_card(json.loads((folder / CONFIG).read_text(encoding="utf-8")), repo_id)
