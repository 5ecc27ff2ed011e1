r"""nDCG@10 and recall@100 by people's relevance judgements: cosine against surprise, both ways (paper, section 5).

    python examples/reproduce/retrieval.py --data DIR --sets scifact,cranfield --model minilm=PATH \
        --model e5=PATH,query:_ --passages e5=passage:_ --out out/retrieval

DIR holds one folder for each set, in one of three forms:
  BEIR    corpus.jsonl, queries.jsonl, qrels/test.tsv
  SMART   *.all*, *.qry, *rel (Cranfield, CISI, MEDLINE)
  TREC    *doc*.trec, *query*.trec, qrels (NPL, also called Vaswani)

The questions that have a relevant document are ranked for, and are the ensemble where that is the questions.
"""

from __future__ import annotations

import csv
import json
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from common import Encoder, arguments, encoders, ending, listed, table, write_results
from torch import Tensor
from tqdm import tqdm

from surprise_hf import SurpriseIndex

AT, DEEP = 10, 100  # places that nDCG and recall look at
WAYS: dict[str, dict[str, Any]] = {
    "cosine": {"direction": "questions", "weight": 0},
    "surprise, questions as q": {"direction": "questions", "weight": 1},
    "documents as q, among documents": {"direction": "documents", "weight": 1},
    "documents as q, among questions": {"direction": "documents", "weight": 1, "ensemble": True},
}


class JudgedSet(NamedTuple):
    """Texts and judgements: documents and queries by id; relevance above 0 by query and document."""

    documents: dict[str, str]
    queries: dict[str, str]
    relevance: dict[str, dict[str, int]]


# --- readers -----------------------------------------------------------------------------------------------------


def load(folder: Path, limit: int | None = None) -> JudgedSet:
    """The set in a folder, with the questions that have a relevant document, at most `limit` of them at random.

    Raises:
        SystemExit: the folder holds no set of a known form.
    """
    for reader in (read_beir, read_smart, read_trec):
        found = reader(folder)
        if found is not None:
            break
    else:
        raise SystemExit(f"{folder} holds no set: neither corpus.jsonl, nor *.all* with *.qry, nor *doc*.trec")
    documents, queries, relevance = found
    kept: dict[str, dict[str, int]] = {}
    for query, judged in relevance.items():
        right = {i: value for i, value in judged.items() if value > 0 and documents.get(i)}
        if right and queries.get(query):
            kept[query] = right
    chosen = sorted(kept)
    if limit is not None:
        chosen = random.Random(0).sample(chosen, min(limit, len(chosen)))
    full = {i: text for i, text in documents.items() if text}
    return JudgedSet(full, {i: queries[i] for i in chosen}, {i: kept[i] for i in chosen})


def read_beir(folder: Path) -> JudgedSet | None:
    """corpus.jsonl, queries.jsonl (_id, title, text) and qrels/test.tsv (query-id, corpus-id, score)."""
    if not (folder / "corpus.jsonl").exists():
        return None
    texts: list[dict[str, str]] = []
    for name in ("corpus", "queries"):
        with (folder / f"{name}.jsonl").open(encoding="utf-8") as file:
            rows = [json.loads(line) for line in file if line.strip()]
        texts.append({row["_id"]: _plain(f"{row.get('title') or ''} {row['text']}") for row in rows})
    relevance: dict[str, dict[str, int]] = {}
    with (folder / "qrels" / "test.tsv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file, delimiter="\t"):
            relevance.setdefault(row["query-id"], {})[row["corpus-id"]] = int(row["score"])
    return JudgedSet(*texts, relevance)


def read_smart(folder: Path) -> JudgedSet | None:
    """Fields .T (title) and .W (text) after each .I; judgements are query, document, code.

    Queries count from 1 in the judgements, whatever the number after their .I (Cranfield's differ). The codes grade
    from 1 (a complete answer) to 4 in Cranfield and say nothing elsewhere, so all but -1 (of no interest) are 1.
    """
    files = [_one(folder, pattern) for pattern in (r"\.all", r"\.qry$", r"rel$")]
    if None in files:
        return None
    text = [str(path.read_text(encoding="latin-1")) for path in files if path is not None]
    documents = {number: _field(body, "T") + " " + _field(body, "W") for number, body in _smart(text[0])}
    queries = {str(i): _field(body, "W") for i, (_, body) in enumerate(_smart(text[1]), start=1)}
    relevance: dict[str, dict[str, int]] = {}
    for line in text[2].splitlines():
        if cells := line.split():
            relevance.setdefault(cells[0], {})[cells[1]] = int(cells[2] != "-1")
    return JudgedSet(
        {i: _plain(x) for i, x in documents.items()}, {i: _plain(x) for i, x in queries.items()}, relevance
    )


def read_trec(folder: Path) -> JudgedSet | None:
    """<DOC> with <DOCNO>, <top> with <num> and <title>, and judgements: query, 0, document, value."""
    files = [_one(folder, pattern) for pattern in (r"doc.*\.trec$", r"query.*\.trec$", r"^qrels")]
    if None in files:
        return None
    text = [str(path.read_text(encoding="utf-8")) for path in files if path is not None]
    documents = dict(re.findall(r"<DOC>\s*<DOCNO>\s*(\S+?)\s*</DOCNO>(.*?)</DOC>", text[0], re.DOTALL))
    queries = dict(re.findall(r"<num>\s*(\S+?)\s*</num>\s*<title>(.*?)</title>", text[1], re.DOTALL))
    relevance: dict[str, dict[str, int]] = {}
    for line in text[2].splitlines():
        if cells := line.split():
            relevance.setdefault(cells[0], {})[cells[2]] = int(cells[3])
    # NPL's questions are in capitals
    return JudgedSet(
        {i: _plain(x) for i, x in documents.items()}, {i: _plain(x).lower() for i, x in queries.items()}, relevance
    )


def _one(folder: Path, pattern: str) -> Path | None:
    found = [path for path in sorted(folder.glob("*")) if re.search(pattern, path.name.lower())]
    return found[0] if found else None


def _smart(text: str) -> list[tuple[str, str]]:
    parts = re.split(r"^\.I\s+(\S+)\s*$", text, flags=re.MULTILINE)
    return list(zip(parts[1::2], parts[2::2], strict=True))


def _field(body: str, name: str) -> str:
    found = re.search(rf"^\.{name}\s*$(.*?)(?=^\.[A-Z]\s*$|\Z)", body, re.MULTILINE | re.DOTALL)
    return found[1] if found else ""


def _plain(text: str) -> str:
    return " ".join(text.split())


# --- measures ----------------------------------------------------------------------------------------------------


def ndcg(gains: Tensor, ideal: Tensor) -> float:
    """DCG of the gains of ranked documents over that of the ideal ranking, both cut at the same place; 0 to 1."""
    places = torch.arange(2, 2 + max(len(gains), len(ideal)), dtype=torch.float64).log2()
    return float((gains / places[: len(gains)]).sum() / (ideal / places[: len(ideal)]).sum())


def measure(ranked: list[str], relevant: dict[str, int]) -> tuple[float, float]:
    """nDCG@10 and recall@100 of one question's ranking, best first."""
    gains = torch.tensor([relevant.get(i, 0) for i in ranked], dtype=torch.float64)
    best = torch.tensor(sorted(relevant.values(), reverse=True), dtype=torch.float64)
    return ndcg(gains[:AT], best[:AT]), int((gains[:DEEP] > 0).sum()) / len(relevant)


def interval(difference: np.ndarray) -> tuple[float, float]:
    """95 % interval of the mean of paired differences: bootstrap over the questions, 5,000 draws."""
    draws = np.random.default_rng(0).integers(len(difference), size=(5000, len(difference)))
    low, high = np.percentile(difference[draws].mean(axis=1), [2.5, 97.5])
    return float(low), float(high)


def run(data: JudgedSet, documents: Tensor, queries: Tensor) -> dict[str, dict[str, Any]]:
    """Both measures x 100 of each way, and the gain in nDCG over the cosine with its interval."""
    scores: dict[str, np.ndarray] = {}
    for way, options in WAYS.items():
        chosen = {**options, "ensemble": queries if options.get("ensemble") else None}
        index = SurpriseIndex(**chosen).add(documents, ids=list(data.documents))
        found = index.search(queries, DEEP)
        pairs = zip(found, data.relevance.values(), strict=True)
        scores[way] = 100 * np.array([measure([hit.id for hit in hits], relevant) for hits, relevant in pairs])
    base = scores["cosine"][:, 0]
    return {
        way: {
            "ndcg": float(values[:, 0].mean()),
            "recall": float(values[:, 1].mean()),
            "gain": float((values[:, 0] - base).mean()),
            "interval": interval(values[:, 0] - base),
        }
        for way, values in scores.items()
    }


def show(rows: list[dict[str, Any]]) -> str:
    """The table: nDCG@10 / recall@100 of each way, and the gain of the paper's with its interval."""
    head = ["set", "documents", "questions", "encoder", *WAYS, "gain among documents", "among questions"]
    cells = []
    for row in rows:
        ways = row["ways"]
        line = [row["set"], f"{row['documents']:,}", f"{row['questions']:,}", row["model"]]
        line += [f"{ways[way]['ndcg']:.1f} / {ways[way]['recall']:.1f}" for way in WAYS]
        for way in list(WAYS)[2:]:
            low, high = ways[way]["interval"]
            line.append(f"{ways[way]['gain']:+.1f} ({low:+.1f} to {high:+.1f})")
        cells.append(line)
    return table(head, cells)


def passages(encoder: Encoder, prompts: list[str], make: Callable[[str], Encoder]) -> Encoder:
    """The encoder with the prompt that --passages gives its documents; itself where none is given."""
    for prompt in prompts:
        name, _, text = prompt.partition("=")
        if name == encoder.name:
            return make(f"{name}={encoder.path},{text}")
    return encoder


def main() -> None:
    """Every encoder on every set."""
    parser = arguments(__doc__, "out/retrieval")
    parser.add_argument("--sets", required=True, help="comma list of folders under --data")
    parser.add_argument("--passages", action="append", default=[], help="name=prompt of an encoder's documents")
    options = parser.parse_args()
    if options.data == "hub":
        parser.error("--data must be a folder: this script reads sets with judgements from disk")
    sets = {name: load(options.data / name, options.limit) for name in listed(options.sets)}
    cache = options.embeddings or options.out / "embeddings"
    rows = []
    for encoder in encoders(options):
        reader = passages(encoder, options.passages, lambda spec: Encoder(spec, cache, options.max_length))
        for name, data in tqdm(sets.items(), desc=encoder.name, disable=None):
            ways = run(data, reader(list(data.documents.values())), encoder(list(data.queries.values())))
            sizes = {"documents": len(data.documents), "questions": len(data.queries)}
            rows.append({"set": name, "model": encoder.name, **sizes, "ways": ways})
    rows.sort(key=lambda row: list(sets).index(row["set"]))
    text = f"nDCG@{AT} / recall@{DEEP}, x 100; gain in nDCG over the cosine, 95 % interval over the questions.\n\n"
    write_results(options.out, "retrieval", text + show(rows), rows=rows)


if __name__ == "__main__":
    ending(main)
