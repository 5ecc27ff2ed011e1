"""examples/reproduce/sets.py: every set of a folder, and the paper's sets and encoders from a Hub by their names."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.hub_server import Hub
from tests.reproduce_data import SCRIPTS, make_folder, scripts, sentences

ROOT = Path(__file__).parents[1]


@pytest.fixture
def sets(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return scripts(monkeypatch, "sets")[0]


# --- a folder ----------------------------------------------------------------------------------------------------


def test_every_set_of_a_folder(sets: ModuleType, tmp_path: Path) -> None:
    data = make_folder(tmp_path)
    text, topic = sentences(24)[0]
    assert topic == "sport"
    first = {
        "ag_news": (f"{text.split()[0]}. {text}", "World", ["Business", "Sci/Tech", "Sports", "World"]),
        "dbpedia": (f"sport. {text}", "Natural Place", ["Film", "Natural Place", "Office Holder", "Plant"]),
        "imdb": (f"{text} {text}", "negative", ["negative", "positive"]),
        "banking77": (text, "sport question", [f"{x} question" for x in ("money", "nature", "politics", "sport")]),
        "clinc150": (text, "about sport", ["about money", "about nature", "about politics", "about sport"]),
        "clinc_domains": (text, "out doors", ["in doors", "out doors"]),
        "clinc_oos": (text, "none", ["none"]),
        "sst2": (text, "negative", ["negative", "positive"]),
        "trec": (f"{text} caf\u00e9 ?", "number", ["human", "location", "number"]),
    }
    assert set(first) == set(sets.FOLDER)
    for name, expected in first.items():
        found = sets.load(name, data)
        assert (found.texts[0], found.labels[0], found.names) == expected
        assert len(found.texts) == len(found.labels) == (2 if name == "clinc_oos" else 24)
    assert sets.default_sets(data) == ["ag_news", "dbpedia", "imdb", "banking77", "clinc150"]
    assert sets.default_sets(data, ()) == ["ag_news", "dbpedia", "imdb"]
    assert sets.default_sets("hub") == ["yahoo", "amazon", "ag_news", "dbpedia", "imdb"]


def test_training_parts(sets: ModuleType, tmp_path: Path) -> None:
    data = make_folder(tmp_path)
    text = sentences(24)[3][0]
    assert sets.load("ag_news", data, split="train")[1:][0][3] == f"nature. {text}"
    assert sets.load("ag_news", data, split="train").labels[3] == "Sci/Tech"
    # the text that the test part has too is left out, numbers are names
    assert sets.load("dbpedia", data, split="train")[1:] == (
        ["a new bird", "a green plant"],
        ["Natural Place", "Plant"],
        ["Natural Place", "Plant"],
    )
    others = ("imdb", "banking77", "clinc150", "trec")
    sizes = {name: len(sets.load(name, data, split="train").texts) for name in others}
    assert sizes == {"imdb": 24, "banking77": 8, "clinc150": 8, "trec": 24}
    with pytest.raises(ValueError, match="the folder of sst2 has no training part"):
        sets.load("sst2", data, split="train")


def test_a_limit_keeps_the_order_and_grows_by_rows(sets: ModuleType, tmp_path: Path) -> None:
    data = make_folder(tmp_path)
    whole = sets.load("imdb", data)
    some, more = (sets.load("imdb", data, limit) for limit in (5, 11))
    assert set(some.texts) < set(more.texts)
    assert [whole.texts.index(text) for text in more.texts] == sorted(whole.texts.index(text) for text in more.texts)
    assert (
        dict(zip(more.texts, more.labels, strict=True)).items()
        <= dict(zip(whole.texts, whole.labels, strict=True)).items()
    )
    assert len(set(more.labels)) == 2  # the file is sorted by label
    assert sets.load("imdb", data, 1).names == whole.names == ["negative", "positive"]  # candidates all the same
    assert sets.load("imdb", data, 11, seed=1) != more
    assert sets.load("imdb", data, 99) == whole


def test_what_is_not_there(sets: ModuleType, tmp_path: Path) -> None:
    data = make_folder(tmp_path / "a folder")
    with pytest.raises(ValueError, match=r"no set 'yahoo' among the folders of .*there are ag_news, dbpedia"):
        sets.load("yahoo", data)
    with pytest.raises(ValueError, match="no set 'trec' on the Hub; there are ag_news, dbpedia, imdb, yahoo, amazon"):
        sets.load("trec", "hub")
    with pytest.raises(ValueError, match="got 'validation'"):
        sets.load("trec", data, split="validation")
    (data / "trec" / "test.txt").unlink()
    with pytest.raises(FileNotFoundError, match="trec"):
        sets.load("trec", data)
    with pytest.raises(FileNotFoundError, match="has none of the folders ag_news, dbpedia14"):
        sets.default_sets(tmp_path)


def test_title_splits_of_a_folder(sets: ModuleType, tmp_path: Path) -> None:
    data = make_folder(tmp_path)
    tasks = sets.title_splits(data, 25)
    assert tasks == sets.title_splits(data, 25)
    assert len(tasks) == 25
    assert all(10 <= len(set(labels)) <= 50 and len(labels) == len(texts) for texts, labels in tasks)
    whose: dict[str, set[str]] = {}
    for texts, labels in tasks:
        for text, label in zip(texts, labels, strict=True):
            whose.setdefault(text, set()).add(label)
        assert len(set(texts)) == len(texts)
    assert {len(x) for x in whose.values()} == {1}
    few = sets.title_splits(data, 3, per_label=2)
    assert all(labels.count(label) == 2 for _, labels in few for label in labels)
    limited = sets.title_splits(data, 3, limit=30, per_label=2)
    assert [len(texts) for texts, _ in limited] == [min(30, len(texts)) for texts, _ in few]


# --- the Hub -----------------------------------------------------------------------------------------------------

AUTHOR = """
import json, sys
from datasets import ClassLabel, Dataset, DatasetDict, Features, Value
from huggingface_hub import HfApi
from sentence_transformers import SentenceTransformer

def push(name, config, columns, **splits):
    rows = {split: [dict(zip(columns, row)) for row in rows] for split, rows in splits.items()}
    made = DatasetDict({split: Dataset.from_list(some, Features(columns)) for split, some in rows.items()})
    made.push_to_hub(name, **({"config_name": config} if config else {}))

text, integer = Value("string"), Value("int32")
label = ClassLabel(names=["World", "Sports", "Business", "Sci/Tech"])
win = ("Team wins The team won", 1)
push(
    "fancyzhx/ag_news", None, {"text": text, "label": label},
    train=[("Oil falls Prices fell", 2), win],
    test=[("A vote A state votes", 0), ("Star seen A star was seen", 3), win, ("Bank A bank", 2)],
)
label = ClassLabel(names=["Company", "EducationalInstitution", "NaturalPlace"])
school = (1, "Music School Inc.", " A school of music.")
push(
    "fancyzhx/dbpedia_14", "dbpedia_14", {"label": label, "title": text, "content": text},
    train=[(0, "A", " of a")],
    test=[(2, "Rain Lake", " Rain Lake is a lake."), school, (0, "Bank", " A bank.")],
)
push(
    "stanfordnlp/imdb", "plain_text", {"text": text, "label": ClassLabel(names=["neg", "pos"])},
    train=[("bad", 0), ("good", 1)],
    test=[("cold rain<br /><br />snow", 0), ("warm sun", 1)],
    unsupervised=[("x", -1)],
)
topic = ClassLabel(names=["Society & Culture", "Science & Mathematics", "Health"])
columns = {"id": integer, "topic": topic, "question_title": text, "question_content": text, "best_answer": text}
cell = (1, 1, "What is a cell?", "In gene physics\\\\nI mean", "an answer")
push(
    "community-datasets/yahoo_answers_topics", "yahoo_answers_topics", columns,
    train=[(0, 2, "t", "c", "a")],
    test=[cell, (2, 0, "music or song", "", "an answer")],
)
review = {name: text for name in ("review_id", "product_id", "reviewer_id")} | {"stars": integer}
review |= {name: text for name in ("review_body", "review_title", "language", "product_category")}
for language in ("de", "en"):
    rows = [("e1", "p1", "r1", 5, "The game is good.", "A game!", language, "video_games"),
            ("e2", "p2", "r2", 1, "The soup is cold.", "Cold", language, "grocery")]
    push("0xtimi/amazon_reviews_multi", language, review, train=rows[:1], validation=rows, test=rows)

tasks = []
for words in ("dog bank rain", "vote gene"):
    labels = [word for word in words.split() for _ in range(4)]
    tasks.append({"sentences": [f"{word} {i}" for i, word in enumerate(labels)], "labels": labels})
lines = "".join(json.dumps(task) + chr(10) for task in tasks).encode()
HfApi().create_repo("mteb/reddit-clustering", repo_type="dataset")
HfApi().upload_file(
    path_or_fileobj=lines, path_in_repo="test.jsonl", repo_id="mteb/reddit-clustering", repo_type="dataset"
)
for name in ("sentence-transformers/sentence-t5-base", "intfloat/e5-large", "sentence-transformers/gtr-t5-large"):
    SentenceTransformer(sys.argv[1], device="cpu").push_to_hub(name)
"""

READER = """
import json, sets
found = {name: [list(sets.load(name, "hub", split=split)[1:3]) for split in ("test", "train")] for name in sets.HUB}
found["two"] = sets.load("ag_news", "hub", 2).texts
found["tasks"] = sets.title_splits("hub", 2, limit=5)
for name, arguments in (("absent", ("ag_news",)), ("splits", None)):
    try:
        if arguments:
            sets.HUB["ag_news"] = sets.HUB["ag_news"]._replace(path="fancyzhx/absent")
        sets.load(*arguments, "hub") if arguments else sets.title_splits("hub", 3)
    except (OSError, ValueError) as error:
        found[name] = str(error)
sets.HUB["imdb"] = sets.HUB["imdb"]._replace(text=("body",))
try:
    sets.load("imdb", "hub")
except ValueError as error:
    found["columns"] = str(error)
print(json.dumps(found))
"""


def process(command: list[str], environment: dict[str, str]) -> str:
    env = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "HUGGING"))}
    env |= {"PYTHONPATH": f"{ROOT}{os.pathsep}{SCRIPTS}", "OMP_NUM_THREADS": "1", **environment}
    done = subprocess.run([sys.executable, *command], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


@pytest.fixture(scope="module")
def hub(st_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The paper's sets, a few rows of each in the columns of the originals, and its encoders, all tiny."""
    with Hub() as hub, pytest.MonkeyPatch.context() as patch:
        process(["-c", AUTHOR, str(st_path)], hub.environment(tmp_path_factory.mktemp("author")))
        sets, common = scripts(patch, "sets", "common")
        pinned = {("dataset", x.path): x.revision for x in (*sets.HUB.values(), sets.REDDIT)}
        pinned |= {("model", path): revision for path, revision, _ in common.MODELS.values()}
        for place, revision in pinned.items():
            if revision:
                assert len(revision) == 40
                branches = hub.repos[place].branches
                branches[revision] = branches.pop("main")  # nothing but the pinned revision may be asked for
        yield hub


def test_the_papers_sets_from_the_hub(hub: Hub, tmp_path: Path) -> None:
    found = json.loads(process(["-c", READER], hub.environment(tmp_path)))
    test = {
        name: parts[0] for name, parts in found.items() if name in ("ag_news", "dbpedia", "imdb", "yahoo", "amazon")
    }
    assert test == {
        "ag_news": [
            ["A vote A state votes", "Star seen A star was seen", "Team wins The team won", "Bank A bank"],
            ["World", "Sci/Tech", "Sports", "Business"],
        ],
        "dbpedia": [
            ["Rain Lake. Rain Lake is a lake.", "Music School Inc. A school of music.", "Bank. A bank."],
            ["NaturalPlace", "EducationalInstitution", "Company"],
        ],
        "imdb": [["cold rain  snow", "warm sun"], ["negative", "positive"]],
        "yahoo": [
            ["What is a cell? In gene physics I mean", "music or song"],
            ["Science or Mathematics", "Society or Culture"],
        ],
        "amazon": [["A game! The game is good.", "Cold. The soup is cold."], ["video games", "grocery"]],
    }
    assert found["ag_news"][1] == [["Oil falls Prices fell", "Team wins The team won"], ["Business", "Sports"]]
    assert found["amazon"][1] == [["A game! The game is good."], ["video games"]]
    assert len(found["two"]) == 2
    assert set(found["two"]) < set(test["ag_news"][0])
    (texts, labels), (_, others) = found["tasks"]
    assert len(texts) == 5
    assert [text.split()[0] for text in texts] == labels
    assert set(others) == {"vote", "gene"}
    assert "fancyzhx/absent (revision eb185aad" in found["absent"]
    assert "Leave it out by --sets, or give --data a folder" in found["absent"]
    assert found["splits"] == "mteb/reddit-clustering has 2 splits, asked for 3"
    assert found["columns"] == "stanfordnlp/imdb has no columns ['body']; it has ['text', 'label']"


def test_the_papers_table_by_one_command(hub: Hub, tmp_path: Path) -> None:
    """Sets and encoders by their Hub names, no other argument."""
    command = [str(SCRIPTS / "zero_shot.py"), "--data", "hub", "--out", str(tmp_path / "out")]
    process(command, hub.environment(tmp_path / "cache"))
    result = json.loads((tmp_path / "out" / "zero_shot.json").read_text())
    models, names = ("sentence-t5-base", "e5-large", "gtr-t5-large"), ("yahoo", "amazon", "ag_news", "dbpedia", "imdb")
    assert [(row["model"], row["set"]) for row in result["rows"]] == [(m, name) for m in models for name in names]
    first, prompted, same = result["rows"][2], result["rows"][7], result["rows"][12]
    assert first["scores"] == same["scores"]  # the same weights under three names, and a prompt in the middle
    assert prompted["n"] == first["n"] == 4
