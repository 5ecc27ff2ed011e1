"""The public sets and encoders of benchmarks/accuracy.py: which rows of each, and their embeddings."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import normalize

sys.path.append(str(Path(__file__).parents[1] / "examples" / "reproduce"))
import common  # the reproductions read the same files
import sets

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
PROMPTS = {"e5": "query:_"}  # by the start of an encoder's name
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


def texts(name: str, data: Path) -> Rows:
    """Texts and label names of a set, before the limit on its rows."""
    if name.startswith("reddit"):
        groups, seed, most = {"reddit12": (12, 5, 3000), "reddit30": (30, 1, 4000)}[name]
        titles = sets.titles(data)
        chosen = set(random.Random(seed).sample(sorted(titles), groups))
        return _shuffled([(text, label) for label in titles if label in chosen for text in titles[label]], 2, most)
    found = sets.load(name, data)
    if name == "imdb":
        return _shuffled(list(zip(found.texts, found.labels, strict=True)), 0, 2000)
    if name == "trec":  # 500 rows are few
        more = sets.load(name, data, split="train")
        return found.texts + more.texts[:1500], found.labels + more.labels[:1500]
    return found.texts, found.labels


def _shuffled(rows: list[tuple[str, str]], seed: int, most: int) -> Rows:
    random.Random(seed).shuffle(rows)
    return [text for text, _ in rows[:most]], [label for _, label in rows[:most]]


class Encoder:
    """A folder that SentenceTransformer opens, and at most `rows` documents of each set as it sees them."""

    def __init__(self, folder: Path, data: Path, cache: Path, rows: int) -> None:
        self.name, self.data, self.rows = folder.name, data, rows
        prompt = next((p for start, p in PROMPTS.items() if self.name.startswith(start)), "")
        self.encode = common.Encoder(f"{self.name}={folder},{prompt}", cache, max_length=256)

    def documents(self, name: str, unit: bool = True) -> tuple[Tensor, list[str]]:
        """Rows (n, d), of length 1 if `unit`, and the name of each document's label."""
        some, labels = texts(name, self.data)
        keep = sets.chosen(len(some), self.rows, seed=3)
        found = self.encode([some[i] for i in keep])
        return normalize(found) if unit else found, [labels[i] for i in keep]

    def queries(self, names: list[str], template: str = common.TEMPLATE, unit: bool = True) -> Tensor:
        """Rows (m, d) of label names in a template."""
        found = self.encode([template.format(name) for name in names])
        return normalize(found) if unit else found

    def pair(self, name: str, unit: bool = True) -> tuple[Tensor, Tensor, list[str], Tensor]:
        """Documents, truth (n,), label names and their vectors."""
        documents, labels = self.documents(name, unit)
        names = sorted(set(labels))
        place = {label: i for i, label in enumerate(names)}
        return documents, torch.tensor([place[label] for label in labels]), names, self.queries(names, unit=unit)
