"""Labelled text sets in the folder layout of their original releases: `load("ag_news", DIR)`.

Each reader returns texts and label names as the paper uses them (candidates are the names themselves, put into the
template "this matter is {}"). None of the data ships with the project; a missing file is an error that names it.
"""

from __future__ import annotations

import csv
import gzip
import json
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple


class LabelledSet(NamedTuple):
    """`texts[i]` has the label `labels[i]`, one of `names`."""

    name: str
    texts: list[str]
    labels: list[str]

    @property
    def names(self) -> list[str]:
        """The labels that occur, sorted: the candidates."""
        return sorted(set(self.labels))


def _ag_news(root: Path) -> tuple[list[str], list[str]]:
    names = {"1": "World", "2": "Sports", "3": "Business", "4": "Sci/Tech"}
    with (root / "ag_news" / "test.csv").open(encoding="utf8", newline="") as file:
        rows = list(csv.reader(file))
    return [f"{title}. {body}" for _, title, body in rows], [names[label] for label, _, _ in rows]


def _dbpedia(root: Path) -> tuple[list[str], list[str]]:
    rows = json.loads((root / "dbpedia14" / "test_olora_7600.json").read_text(encoding="utf8"))
    texts = [re.sub(r"(?s)^Title: (.*?)\s*\nText:\s*", r"\1. ", row["sentence"]).strip() for row in rows]
    return texts, [row["label"] for row in rows]


def _imdb(root: Path) -> tuple[list[str], list[str]]:
    with gzip.open(root / "imdb" / "test.jsonl.gz", "rt", encoding="utf8") as file:
        rows = [json.loads(line) for line in file]
    random.Random(0).shuffle(rows)  # the file is sorted by label: a limit must not cut one of them off
    names = {"neg": "negative", "pos": "positive"}
    return [row["text"].replace("<br />", " ") for row in rows], [names[row["label"]] for row in rows]


def _sst2(root: Path) -> tuple[list[str], list[str]]:
    lines = (root / "sst2" / "stsa.binary.test").read_text(encoding="utf8").splitlines()
    return [line[2:] for line in lines], [("negative", "positive")[int(line[0])] for line in lines]


def _trec(root: Path) -> tuple[list[str], list[str]]:
    names = {
        "ABBR": "abbreviation",
        "ENTY": "entity",
        "DESC": "description",
        "HUM": "human",
        "LOC": "location",
        "NUM": "number",
    }
    lines = (root / "trec" / "test.txt").read_text(encoding="latin-1").splitlines()
    return [line.split(" ", 1)[1] for line in lines], [names[line.split(":")[0]] for line in lines]


def _banking77(root: Path) -> tuple[list[str], list[str]]:
    with (root / "banking77" / "test.csv").open(encoding="utf8", newline="") as file:
        rows = list(csv.DictReader(file))
    return [row["text"] for row in rows], [row["category"].replace("_", " ") for row in rows]


def _clinc150(root: Path) -> tuple[list[str], list[str]]:
    rows = json.loads((root / "clinc150" / "data_full.json").read_text(encoding="utf8"))["test"]
    return [text for text, _ in rows], [intent.replace("_", " ") for _, intent in rows]


READERS: dict[str, Callable[[Path], tuple[list[str], list[str]]]] = {
    "ag_news": _ag_news,
    "dbpedia": _dbpedia,
    "imdb": _imdb,
    "sst2": _sst2,
    "trec": _trec,
    "banking77": _banking77,
    "clinc150": _clinc150,
}


def load(name: str, root: str | Path, limit: int | None = None, seed: int = 0) -> LabelledSet:
    """The test part of a set, or a random `limit` rows of it in their original order.

    Raises:
        ValueError: an unknown name.
        FileNotFoundError: the set's file is not under `root`.
    """
    if name not in READERS:
        raise ValueError(f"unknown set {name!r}; there are {', '.join(READERS)}")
    texts, labels = READERS[name](Path(root))
    if limit is not None and limit < len(texts):
        keep = sorted(random.Random(seed).sample(range(len(texts)), limit))
        texts, labels = [texts[i] for i in keep], [labels[i] for i in keep]
    return LabelledSet(name, texts, labels)
