"""For the tests of examples/reproduce: small sets in the layout of the originals, and the scripts as modules."""

from __future__ import annotations

import csv
import gzip
import importlib
import json
import random
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.conftest import WORDS

SCRIPTS = Path(__file__).parents[1] / "examples" / "reproduce"
TOPICS = {"sport": WORDS[12:22], "politics": WORDS[22:27], "money": WORDS[27:34], "nature": WORDS[34:40]}
DICTIONARY = sorted({*WORDS, "Alsatian", "furry", "puppyish", "potato", "the", "my", "dog"})


def scripts(monkeypatch: pytest.MonkeyPatch, *names: str) -> list[ModuleType]:
    """The scripts as modules, imported anew as the command line would."""
    monkeypatch.syspath_prepend(str(SCRIPTS))
    for path in SCRIPTS.glob("*.py"):
        monkeypatch.delitem(sys.modules, path.stem, raising=False)
    found = [importlib.import_module(name) for name in names]
    for path in SCRIPTS.glob("*.py"):  # what the test leaves behind, monkeypatch takes away
        if path.stem in sys.modules:
            monkeypatch.setitem(sys.modules, path.stem, sys.modules[path.stem])
    return found


def call(module: ModuleType, monkeypatch: pytest.MonkeyPatch, *arguments: object) -> Any:
    """main() of a script with a command line."""
    monkeypatch.setattr(sys, "argv", [f"{module.__name__}.py", *map(str, arguments)])
    return module.main()


def sentences(count: int, seed: int = 0) -> list[tuple[str, str]]:
    """(text, topic) pairs, different texts, topics in turn."""
    rng = random.Random(seed)
    found: dict[str, str] = {}
    while len(found) < count:
        topic = list(TOPICS)[len(found) % len(TOPICS)]
        found.setdefault(" ".join([*rng.sample(TOPICS[topic], 3), *rng.sample(WORDS, 2)]), topic)
    return list(found.items())


def _csv(path: Path, rows: list[list[str]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, quoting=csv.QUOTE_ALL).writerows(rows)


def _json(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value), encoding="utf-8")


def _json_lines(path: Path, rows: list[dict[str, str]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(path, "wt", encoding="utf-8") as file:
        file.write("".join(json.dumps(row) + "\n" for row in rows))


def make_folder(root: Path, rows: int = 24) -> Path:
    """Every set of `sets.FOLDER`, the word list and the Reddit titles."""
    pairs = sentences(rows)
    number = {topic: str(i + 1) for i, topic in enumerate(TOPICS)}
    named = dict(zip(TOPICS, ("World", "Sports", "Business", "Science or Technology"), strict=True))
    _csv(root / "ag_news" / "test.csv", [[number[topic], text.split()[0], text] for text, topic in pairs])
    train = [{"label": named[topic], "sentence": f"Title: {topic}\nText: {text}\n"} for text, topic in pairs]
    _json(root / "ag_news" / "train_olora_4000.json", train)

    entities = dict(zip(TOPICS, ("Natural Place", "Office Holder", "Film", "Plant"), strict=True))
    test = [{"label": entities[topic], "sentence": f"Title: {topic}\nText:  {text}\n"} for text, topic in pairs]
    _json(root / "dbpedia14" / "test_olora_7600.json", test)
    _csv(root / "dbpedia14" / "dhim_val_5000.csv", [["2", pairs[0][0]], ["1", "a new bird"], ["3", "a green plant"]])
    meta = "1: NaturalPlace\n2: OfficeHolder\n3: Plant\n#train: 50000 #val: 5000\n"
    (root / "dbpedia14" / "dhim_meta.txt").write_text(meta)

    reviews = [
        {"id": str(i), "label": ("neg", "pos")[i % 2], "text": f"{t}<br />{t}"} for i, (t, _) in enumerate(pairs)
    ]
    reviews.sort(key=lambda row: row["label"])
    _json_lines(root / "imdb" / "test.jsonl.gz", reviews)
    _json_lines(root / "imdb" / "train_first2500_per_class.jsonl.gz", reviews[::-1])

    questions = [["text", "category"], *([text, f"{topic}_question"] for text, topic in pairs)]
    _csv(root / "banking77" / "test.csv", questions)
    _csv(root / "banking77" / "train.csv", questions[:9])
    intents = [[text, f"about_{topic}"] for text, topic in pairs]
    parts = {"test": intents, "train": intents[:8], "oos_test": intents[:2], "oos_train": intents[:1]}
    _json(root / "clinc150" / "data_full.json", parts)
    domains = {"in_doors": ["about_money", "about_politics"], "out_doors": ["about_sport", "about_nature"]}
    _json(root / "clinc150" / "domains.json", domains)

    lines = [f"{i % 2} {text}" for i, (text, _) in enumerate(pairs)]
    (root / "sst2").mkdir()
    (root / "sst2" / "stsa.binary.test").write_text("\n".join(lines) + "\n")
    kinds = ("NUM:date", "LOC:city", "HUM:ind")
    (root / "trec").mkdir()
    for split in ("test", "train"):
        lines = [f"{kinds[i % 3]} {text} caf\u00e9 ?" for i, (text, _) in enumerate(pairs)]
        (root / "trec" / f"{split}.txt").write_text("\n".join(lines) + "\n", encoding="latin-1")

    (root / "english_words_1.1.0").mkdir()
    (root / "english_words_1.1.0" / "english_words_alpha_set_sorted.txt").write_text("\n".join(DICTIONARY) + "\n")
    rng = random.Random(1)
    posts = []
    for label in range(60):
        home = rng.sample(WORDS, 3)
        posts += [{"label": f"r{label}", "text": " ".join([*home, *rng.sample(WORDS, 2)])} for _ in range(9)]
    _json_lines(root / "reddit_tweac" / "test.jsonl.gz", posts)
    return root
