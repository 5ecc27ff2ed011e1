"""The public sets and encoders of benchmarks/accuracy.py: texts, label names, embeddings kept in a folder."""

from __future__ import annotations

import csv
import gzip
import json
import random
import re
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import normalize

SETS = (
    "ag_news",
    "banking77",
    "clinc150",
    "clinc_domains",
    "dbpedia",
    "imdb",
    "reddit12",
    "reddit30",
    "sst2",
    "trec",
)
UNTOUCHED = ("clinc_domains", "dbpedia", "imdb", "reddit30")  # fixed before any figure was seen
# of documents that belong to none of a set's labels
OUTSIDE = {"clinc150": "clinc_oos", "ag_news": "banking77", "dbpedia": "banking77", "reddit12": "banking77"}
PROMPTS = {"e5": "query: "}  # by the start of an encoder's name
AG_NEWS = {"1": "World", "2": "Sports", "3": "Business", "4": "Sci/Tech"}
TREC = {"ABBR": "abbreviation", "ENTY": "entity", "DESC": "description", "HUM": "human", "LOC": "location"}
TREC |= {"NUM": "number"}
DESCRIPTIONS = {
    "ag_news": {
        "World": "world news, politics, war and diplomacy",
        "Sports": "sports, games, teams and athletes",
        "Business": "business, companies, markets and the economy",
        "Sci/Tech": "science and technology, computers and the internet",
    },
    "sst2": {
        "negative": "a negative review: bad, boring, disappointing",
        "positive": "a positive review: good, moving, entertaining",
    },
    "trec": {
        "abbreviation": "what an abbreviation stands for",
        "entity": "a thing: an animal, food, product, language or event",
        "description": "a definition, description, reason or manner",
        "human": "a person or group, who",
        "location": "a place, city, country, where",
        "number": "a number, date, amount, how many, when",
    },
}
DESCRIPTIONS["imdb"] = DESCRIPTIONS["sst2"]

Rows = tuple[list[str], list[str]]


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="latin-1").splitlines()


def _reddit(data: Path, groups: int, seed: int, most: int) -> Rows:
    with gzip.open(data / "reddit_tweac" / "test.jsonl.gz", "rt", encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    chosen = set(random.Random(seed).sample(sorted({row["label"] for row in rows}), groups))
    rows = [row for row in rows if row["label"] in chosen]
    random.Random(2).shuffle(rows)
    return [row["text"] for row in rows[:most]], [row["label"] for row in rows[:most]]


def texts(name: str, data: Path) -> Rows:
    """Texts and label names of a set, as its README describes the files."""
    if name == "ag_news":
        with (data / "ag_news" / "test.csv").open(encoding="utf-8", newline="") as file:
            rows = list(csv.reader(file))
        return [f"{row[1]}. {row[2]}" for row in rows], [AG_NEWS[row[0]] for row in rows]
    if name == "dbpedia":
        rows = json.loads((data / "dbpedia14" / "test_olora_7600.json").read_text(encoding="utf-8"))
        rows = rows if isinstance(rows, list) else rows["Instances"]
        split = [re.match(r"Title: (.*?)\s*\nText: (.*)", row["sentence"], re.DOTALL) for row in rows]
        whole = [
            f"{found[1].strip()}. {found[2].strip()}" if found else row["sentence"]
            for found, row in zip(split, rows, strict=True)
        ]
        return whole, [row["label"] for row in rows]
    if name == "trec":
        lines = _lines(data / "trec" / "test.txt") + _lines(data / "trec" / "train.txt")[:1500]
        return [line.split(" ", 1)[1] for line in lines], [TREC[line.split(":")[0]] for line in lines]
    if name == "sst2":
        lines = (data / "sst2" / "stsa.binary.test").read_text(encoding="utf-8").splitlines()
        return [line[2:] for line in lines], [("negative", "positive")[int(line[0])] for line in lines]
    if name == "banking77":
        with (data / "banking77" / "test.csv").open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        return [row["text"] for row in rows], [row["category"].replace("_", " ") for row in rows]
    if name == "imdb":
        with gzip.open(data / "imdb" / "test.jsonl.gz", "rt", encoding="utf-8") as file:
            rows = [json.loads(line) for line in file]
        random.Random(0).shuffle(rows)
        names = {"neg": "negative", "pos": "positive", "0": "negative", "1": "positive"}
        key = next(key for key in rows[0] if key != "text")
        return [row["text"].replace("<br />", " ") for row in rows[:2000]], [
            names[str(row[key])] for row in rows[:2000]
        ]
    if name == "reddit12":
        return _reddit(data, 12, 5, 3000)
    if name == "reddit30":
        return _reddit(data, 30, 1, 4000)
    clinc = json.loads((data / "clinc150" / "data_full.json").read_text(encoding="utf-8"))
    if name == "clinc_oos":
        return [row[0] for row in clinc["oos_test"]], ["none"] * len(clinc["oos_test"])
    labels = [row[1] for row in clinc["test"]]
    if name == "clinc_domains":
        domains = json.loads((data / "clinc150" / "domains.json").read_text(encoding="utf-8"))
        of_intent = {intent: domain for domain, intents in domains.items() for intent in intents}
        labels = [of_intent.get(label) or of_intent[label.replace("_", " ")] for label in labels]
    return [row[0] for row in clinc["test"]], [label.replace("_", " ") for label in labels]


class Encoder:
    """A folder that SentenceTransformer opens, opened when something is not in the cache."""

    def __init__(self, folder: Path, data: Path, cache: Path, rows: int) -> None:
        self.name, self.folder, self.data, self.rows = folder.name, folder, data, rows
        self.cache = cache / folder.name
        self.cache.mkdir(parents=True, exist_ok=True)
        self.prompt = next((p for start, p in PROMPTS.items() if self.name.startswith(start)), "")
        self._model = None
        path = self.cache / "labels.pt"
        self._labels: dict[str, Tensor] = torch.load(path) if path.exists() else {}

    def encode(self, parts: list[str]) -> Tensor:
        if self._model is None:
            from sentence_transformers import SentenceTransformer

            self._model = SentenceTransformer(str(self.folder), device="cpu")
            self._model.max_seq_length = min(self._model.max_seq_length or 256, 256)
        found = self._model.encode([self.prompt + part for part in parts], batch_size=32, convert_to_tensor=True)
        return found.float()

    def documents(self, name: str) -> tuple[Tensor, list[str]]:
        """Unit rows (n, d), and the name of each document's label."""
        base = "clinc150" if name == "clinc_domains" else name
        path = self.cache / f"{base}.pt"
        if not path.exists():
            some, labels = texts(base, self.data)
            keep = sorted(random.Random(3).sample(range(len(some)), self.rows)) if len(some) > self.rows else None
            keep = range(len(some)) if keep is None else keep
            some, labels = [some[i] for i in keep], [labels[i] for i in keep]
            torch.save({"emb": self.encode(some), "labels": labels, "texts": some}, path)
        stored = torch.load(path)
        labels = stored["labels"]
        if name == "clinc_domains":
            domain = dict(zip(texts("clinc150", self.data)[1], texts(name, self.data)[1], strict=True))
            labels = [domain[label] for label in labels]
        return normalize(stored["emb"].float()), labels

    def queries(self, names: list[str], template: str = "this matter is {}") -> Tensor:
        """Unit rows (m, d) of label names in a template."""
        wanted = [template.format(name) for name in names]
        missing = [text for text in dict.fromkeys(wanted) if text not in self._labels]
        if missing:
            self._labels |= dict(zip(missing, self.encode(missing), strict=True))
            torch.save(self._labels, self.cache / "labels.pt")
        return normalize(torch.stack([self._labels[text] for text in wanted]))

    def pair(self, name: str) -> tuple[Tensor, Tensor, list[str], Tensor]:
        """Documents, truth (n,), label names and their vectors."""
        documents, labels = self.documents(name)
        names = sorted(set(labels))
        place = {label: i for i, label in enumerate(names)}
        return documents, torch.tensor([place[label] for label in labels]), names, self.queries(names)
