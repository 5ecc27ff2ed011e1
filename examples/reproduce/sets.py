"""The labelled sets of the reproductions, from the Hub or a folder: `load("ag_news", "hub")`, `load("ag_news", DIR)`.

Label names are as the paper uses them (each goes into the template "this matter is {}"). None of the data ships with
the project. DIR holds one folder for each set, with the files of its original release (docs/results.md lists them).
"""

from __future__ import annotations

import csv
import gzip
import json
import random
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

Rows = tuple[Sequence[str], Sequence[str]]
PAPER = ("yahoo", "amazon", "ag_news", "dbpedia", "imdb")
MORE = ("banking77", "clinc150")  # that a folder's tables show beside the paper's: many labels
WORDS_FILE = "english_words_1.1.0/english_words_alpha_set_sorted.txt"


class LabelledSet(NamedTuple):
    """`texts[i]` has the label `labels[i]`, one of `names`, the candidates: sorted, those of the whole set, of which
    some rows may have fewer.
    """

    name: str
    texts: list[str]
    labels: list[str]
    names: list[str]


def load(name: str, data: str | Path, limit: int | None = None, seed: int = 0, split: str = "test") -> LabelledSet:
    """A set, or `limit` rows of it in their original order; the rows of a smaller limit are among those of a larger.

    Args:
        name: of HUB where `data` is "hub", of FOLDER otherwise.
        data: "hub", or the folder that holds the sets.
        limit: rows, at random.
        seed: of their choice.
        split: "test" or "train". In a folder some sets have a part of the original training set, some none.

    Raises:
        ValueError: a set or split that this source does not have.
        FileNotFoundError: the set's file is not in the folder.
    """
    known = HUB if data == "hub" else FOLDER
    if name not in known:
        where = "on the Hub" if data == "hub" else f"among the folders of {data}"
        raise ValueError(f"there is no set {name!r} {where}; there are {', '.join(known)}")
    if split not in ("test", "train"):
        raise ValueError(f'split must be "test" or "train", got {split!r}')
    if data == "hub":
        return LabelledSet(name, *_from_hub(HUB[name], split, limit, seed))
    texts, labels = FOLDER[name](Path(data), split)
    keep = chosen(len(texts), limit, seed)
    return LabelledSet(name, [texts[i] for i in keep], [labels[i] for i in keep], sorted(set(labels)))


def chosen(size: int, limit: int | None, seed: int = 0) -> list[int]:
    """Ascending positions of `limit` among `size`, the first of one shuffled order."""
    order = list(range(size))
    if limit is None or limit >= size:
        return order
    random.Random(seed).shuffle(order)
    return sorted(order[:limit])


# --- the Hub -----------------------------------------------------------------------------------------------------


class HubSet(NamedTuple):
    """Where a set lies on the Hub, its columns, and what they need.

    Texts of several columns are joined as sentences; `rename` gives the paper's name of a label; `space` is what the
    texts have for a space.
    """

    path: str
    revision: str | None
    config: str | None
    text: tuple[str, ...]
    label: str
    rename: Callable[[str], str] = str
    space: str = " "


HUB = {
    # the text column is title and description with a space between
    "ag_news": HubSet("fancyzhx/ag_news", "eb185aade064a813bc0b7f42de02595523103ca4", None, ("text",), "label"),
    "dbpedia": HubSet(
        "fancyzhx/dbpedia_14", "9abd46cf7fc8b4c64290f26993c540b92aa145ac", "dbpedia_14", ("title", "content"), "label"
    ),
    "imdb": HubSet(
        "stanfordnlp/imdb",
        "e6281661ce1c48d982bc483cf8a173c1bbeb5d31",
        "plain_text",
        ("text",),
        "label",
        {"neg": "negative", "pos": "positive"}.__getitem__,
        "<br />",
    ),
    # the paper speaks of questions: the answer is left out; its names have "or" where the Hub has "&"
    "yahoo": HubSet(
        "community-datasets/yahoo_answers_topics",
        "78fccffa043240c80e17a6b1da724f5a1057e8e5",
        "yahoo_answers_topics",
        ("question_title", "question_content"),
        "topic",
        lambda name: name.replace("&", "or"),
        "\\n",  # backslash and n: lines in the original files
    ),
    # amazon_reviews_multi itself is withdrawn, mteb/amazon_reviews_multi has stars but no categories and needs a
    # loading script, which datasets 4 and later refuse; this copy has all columns, in parquet. It is not pinned: its
    # revision could not be learnt without the Hub
    "amazon": HubSet(
        "0xtimi/amazon_reviews_multi",
        None,
        "en",
        ("review_title", "review_body"),
        "product_category",
        lambda name: name.replace("_", " "),
    ),
}
REDDIT = HubSet("mteb/reddit-clustering", "24640382cdbf8abc73003fb0fa6d111a705499eb", None, ("sentences",), "labels")


def open_hub(where: HubSet, split: str) -> Any:
    """The `datasets.Dataset` of a split.

    Raises:
        OSError: no Hub, or nothing of that name there; the message says what was asked for.
    """
    from datasets import load_dataset

    try:
        return load_dataset(where.path, where.config, split=split, revision=where.revision)
    except (OSError, ValueError) as error:
        raise OSError(
            f"{where.path} (revision {where.revision or 'main'}, split {split}) does not load from the Hub: {error}."
            " Leave it out by --sets, or give --data a folder"
        ) from error


def _from_hub(where: HubSet, split: str, limit: int | None, seed: int) -> tuple[list[str], list[str], list[str]]:
    found = open_hub(where, split)
    needed = {*where.text, where.label}
    if missing := sorted(needed - set(found.column_names)):
        raise ValueError(f"{where.path} has no columns {missing}; it has {found.column_names}")
    feature = found.features[where.label]
    as_text = getattr(feature, "int2str", str)
    called = {x: where.rename(as_text(x)) for x in found.unique(where.label)}
    found = found.select(chosen(len(found), limit, seed))
    columns = [list(found[name]) for name in where.text]
    texts = [_sentences(parts).replace(where.space, " ") for parts in zip(*columns, strict=True)]
    return texts, [called[x] for x in found[where.label]], sorted(called.values())


def _sentences(parts: Sequence[str | None]) -> str:
    """Those of the parts that have text, each but the last ended by a full stop where nothing ends it."""
    found = [part.strip() for part in parts if part and part.strip()]
    return " ".join(x if x[-1] in ".!?" or i == len(found) - 1 else f"{x}." for i, x in enumerate(found))


# --- a folder ----------------------------------------------------------------------------------------------------


def _json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def _json_lines(path: Path) -> list[dict[str, Any]]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def _csv(path: Path) -> list[list[str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.reader(file))


def _no_train(name: str, split: str) -> None:
    if split == "train":
        raise ValueError(f"the folder of {name} has no training part")


def _titled(sentence: str) -> str:
    """A title line and a text line as one line of sentences."""
    return re.sub(r"(?s)^Title: (.*?)\s*\nText:\s*", r"\1. ", sentence).strip()


def _ag_news(root: Path, split: str) -> Rows:
    if split == "train":
        rows = _json(root / "ag_news" / "train_olora_4000.json")
        other = {"Science or Technology": "Sci/Tech"}
        return [_titled(row["sentence"]) for row in rows], [other.get(row["label"], row["label"]) for row in rows]
    names = {"1": "World", "2": "Sports", "3": "Business", "4": "Sci/Tech"}
    lines = _csv(root / "ag_news" / "test.csv")
    return [f"{title}. {body}" for _, title, body in lines], [names[label] for label, _, _ in lines]


def _dbpedia(root: Path, split: str) -> Rows:
    rows = _json(root / "dbpedia14" / "test_olora_7600.json")
    texts, labels = [_titled(row["sentence"]) for row in rows], [row["label"] for row in rows]
    if split == "test":
        return texts, labels
    # content alone, labels by number, and some texts of the test part, which are left out
    spaced = {_letters(name): name for name in set(labels)}
    meta = (root / "dbpedia14" / "dhim_meta.txt").read_text(encoding="utf-8").splitlines()
    names = {
        number: spaced[_letters(name)] for number, _, name in (x.partition(": ") for x in meta) if number.isdigit()
    }
    seen = {_letters(row["sentence"].partition("\nText:")[2]) for row in rows}
    lines = _csv(root / "dbpedia14" / "dhim_val_5000.csv")
    kept = [(label, text) for label, text in lines if _letters(text) not in seen]
    return [text.strip() for _, text in kept], [names[label] for label, _ in kept]


def _letters(text: str) -> str:
    return re.sub(r"\W", "", text).lower()


def _imdb(root: Path, split: str) -> Rows:
    file = "test.jsonl.gz" if split == "test" else "train_first2500_per_class.jsonl.gz"
    rows = _json_lines(root / "imdb" / file)
    names = {"neg": "negative", "pos": "positive"}
    return [row["text"].replace("<br />", " ") for row in rows], [names[row["label"]] for row in rows]


def _sst2(root: Path, split: str) -> Rows:
    _no_train("sst2", split)
    lines = (root / "sst2" / "stsa.binary.test").read_text(encoding="utf-8").splitlines()
    return [line[2:] for line in lines], [("negative", "positive")[int(line[0])] for line in lines]


def _trec(root: Path, split: str) -> Rows:
    names = {"ABBR": "abbreviation", "ENTY": "entity", "DESC": "description"}
    names |= {"HUM": "human", "LOC": "location", "NUM": "number"}
    lines = (root / "trec" / f"{split}.txt").read_text(encoding="latin-1").splitlines()
    return [line.split(" ", 1)[1] for line in lines], [names[line.split(":")[0]] for line in lines]


def _banking77(root: Path, split: str) -> Rows:
    (_, *lines) = _csv(root / "banking77" / f"{split}.csv")
    return [text for text, _ in lines], [label.replace("_", " ") for _, label in lines]


def _clinc150(root: Path, split: str) -> Rows:
    rows = _json(root / "clinc150" / "data_full.json")[split]
    return [text for text, _ in rows], [intent.replace("_", " ") for _, intent in rows]


def _clinc_domains(root: Path, split: str) -> Rows:
    domains = _json(root / "clinc150" / "domains.json")
    of_intent = {x.replace("_", " "): domain.replace("_", " ") for domain, listed in domains.items() for x in listed}
    texts, intents = _clinc150(root, split)
    return texts, [of_intent[intent] for intent in intents]


def _clinc_oos(root: Path, split: str) -> Rows:
    """Questions that belong to no intent."""
    texts, _ = _clinc150(root, f"oos_{split}")
    return texts, ["none"] * len(texts)


FOLDER: dict[str, Callable[[Path, str], Rows]] = {
    "ag_news": _ag_news,
    "dbpedia": _dbpedia,
    "imdb": _imdb,
    "banking77": _banking77,
    "clinc150": _clinc150,
    "sst2": _sst2,
    "trec": _trec,
    "clinc_domains": _clinc_domains,
    "clinc_oos": _clinc_oos,
}


def default_sets(data: str | Path, more: Sequence[str] = MORE) -> list[str]:
    """What a table is made of when no sets are named: the paper's, in a folder those of them and of `more` it has.

    Raises:
        FileNotFoundError: a folder without any.
    """
    if data == "hub":
        return list(PAPER)
    folders = {"ag_news": "ag_news", "dbpedia": "dbpedia14", "imdb": "imdb", **{name: name for name in more}}
    found = [name for name, folder in folders.items() if (Path(data) / folder).is_dir()]
    if not found:
        raise FileNotFoundError(f"{data} has none of the folders {', '.join(folders.values())}")
    return found


# --- words and titles --------------------------------------------------------------------------------------------


def load_words(data: str | Path) -> list[str]:
    """The paper's dictionary, sorted: from a folder, or from the package english-words 1.1.0.

    Raises:
        SystemExit: no such package.
    """
    if data != "hub":
        return (Path(data) / WORDS_FILE).read_text(encoding="utf-8").splitlines()
    try:
        from english_words import english_words_alpha_set
    except ImportError as error:
        raise SystemExit("the word list is missing: pip install english-words==1.1.0, or --data DIR") from error
    return sorted(english_words_alpha_set)


def titles(data: str | Path) -> dict[str, list[str]]:
    """Titles of each subreddit, as in the folder's file, with duplicates."""
    found: dict[str, list[str]] = {}
    for row in _json_lines(Path(data) / "reddit_tweac" / "test.jsonl.gz"):
        found.setdefault(row["label"], []).append(row["text"])
    return found


def title_splits(data: str | Path, splits: int, limit: int | None = None, per_label: int | None = None) -> list[Rows]:
    """Titles and subreddits of each clustering task, at most `limit` titles of one, `per_label` of a subreddit in it.

    The Hub has the 25 tasks of the paper. From a folder, tasks of 10 to 50 random subreddits are drawn; a title that
    several subreddits have belongs to the first.
    """
    if data == "hub":
        rows = open_hub(REDDIT, "test")
        if splits > len(rows):
            raise ValueError(f"{REDDIT.path} has {len(rows)} splits, asked for {splits}")
        tasks = [(rows[i]["sentences"], rows[i]["labels"]) for i in range(splits)]
    else:
        seen: set[str] = set()
        fresh: dict[str, list[str]] = {}
        for label, listed in titles(data).items():
            fresh[label] = [text for text in dict.fromkeys(listed) if text not in seen]
            seen.update(fresh[label])
            if per_label is not None:
                fresh[label] = random.Random(label).sample(fresh[label], min(per_label, len(fresh[label])))
        rng = random.Random(0)
        tasks = []
        for _ in range(splits):
            labels = rng.sample(sorted(fresh), rng.randint(10, 50))
            tasks.append(([t for x in labels for t in fresh[x]], [x for x in labels for _ in fresh[x]]))
    kept = [chosen(len(texts), limit, seed) for seed, (texts, _) in enumerate(tasks)]
    return [
        ([texts[i] for i in keep], [labels[i] for i in keep]) for keep, (texts, labels) in zip(kept, tasks, strict=True)
    ]
