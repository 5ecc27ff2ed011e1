"""The model card: its pattern, its numbers, and that every snippet in it runs."""

from __future__ import annotations

import html
import json
import math
import re
import subprocess
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torch
import yaml
from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, RemoteEntryNotFoundError
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import StaticEmbedding
from transformers import AutoTokenizer

from surprise_hf import Ensemble, SurpriseModel, hub, model_card
from surprise_hf.few_shot import fit_labels
from tests.test_import import python

DOCUMENTS = [f"{a} {b}" for a in ("sport", "bank", "rain", "dog") for b in ("red", "one", "cat", "vote")]
LABELS = ["sport", "money", "pipe|label"]

PATTERN = r"""---
.*
---
<!-- Written by surprise_hf each time this is saved\. .*-->

# A surprise-zero-shot model

A sentence encoder built on a local encoder that labels texts by the surprise score: .+

## Usage

```
pip install surprise-hf
```

```python
import surprise_hf .*
from transformers import pipeline

pipe = pipeline\("surprise-zero-shot", model="\."\)
texts = \[.+\]
for result in pipe\(texts\):
    print\(.+\)
```

The task is "surprise-zero-shot": .+

It is a plain sentence-transformers model too:

```python
.+
```

## What is in it

\|  \|  \|
\| --- \| --- \|
\| Encoder \| a local encoder, 32 dimensions \|
\| Labels \| 3: `sport`, `money`, <code>pipe&#124;label</code> \|
\| Template \| `about \{\}` \|
\| Texts longer than the encoder's window \| cut off \|
\| Ensemble \| mean and covariance of the embeddings of 16 documents, and the embeddings of 16 of them \|
\| Scoring options \| `weight=1\.0` \|

## Evaluation

\| data \| metric \| value \|
\| --- \| --- \| --- \|
\| Some news \(test\) \| accuracy \| 0\.8125 \|
\| Some news \(test\) \| f1_macro \| 0\.8000 \|

## Limits

- A score is a rank .+

## Citation

```bibtex
@misc\{surprise_score,.+2308\.09765.+\}
```
"""


def fitted(path: Path) -> SurpriseModel:
    return SurpriseModel(str(path), device="cpu").fit_ensemble(DOCUMENTS).set_labels(LABELS, "about {}", weight=1.0)


def saved(model: SurpriseModel, folder: Path) -> str:
    model.save_pretrained(str(folder))
    return (folder / "README.md").read_text(encoding="utf-8")


def front_matter(card: str) -> dict:
    return yaml.safe_load(card.split("---\n")[1])


@pytest.fixture(scope="module")
def model(st_path) -> SurpriseModel:
    model = fitted(st_path)
    model.record_results("Some news", {"accuracy": 0.1}, split="test")
    model.record_results("Some news", {"accuracy": 0.8125, "f1_macro": 0.8, "note": "text"}, split="test")
    return model


def test_pattern(model, tmp_path):
    card = saved(model, tmp_path)
    assert re.fullmatch(PATTERN, card, flags=re.DOTALL), card
    assert max(map(len, card.splitlines())) < 300


def test_results_are_a_model_index(model, tmp_path):
    from huggingface_hub import ModelCard

    index = front_matter(saved(model, tmp_path))["model-index"]
    (entry,) = index[0]["results"]
    assert entry["task"] == {"type": "zero-shot-classification", "name": "Zero-Shot Classification"}
    assert entry["dataset"] == {"name": "Some news", "type": "Some-news", "split": "test"}
    assert {m["type"]: m["value"] for m in entry["metrics"]} == {"accuracy": 0.8125, "f1_macro": 0.8}
    found = ModelCard.load(tmp_path / "README.md").data
    assert [result.metric_value for result in found.eval_results] == [0.8125, 0.8]
    assert found.library_name == "sentence-transformers"
    assert "surprise-zero-shot" in found.tags


@pytest.mark.parametrize("kind", ["labels and ensemble", "labels", "ensemble"])
def test_every_snippet_runs_in_a_fresh_process(model, st_path, tmp_path, kind):
    if kind == "labels":
        model = SurpriseModel(str(st_path), device="cpu").set_labels(LABELS)
    elif kind == "ensemble":
        model = SurpriseModel(str(st_path), device="cpu").fit_ensemble(DOCUMENTS)
    card = saved(model, tmp_path)
    snippets = re.findall(r"```python\n(.*?)```", card, flags=re.DOTALL)
    assert len(snippets) == 2
    done: subprocess.CompletedProcess[str] = python(f"import os\nos.chdir({str(tmp_path)!r})\n" + "\n".join(snippets))
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 2
    known = LABELS if kind != "ensemble" else ["sports", "politics", "science"]
    for line in lines:
        label, score = line.rsplit(" ", 1)
        assert label in known
        assert 0 <= float(score) <= 1


def test_the_same_model_has_the_same_card(model, tmp_path):
    first = saved(model, tmp_path / "one")
    again = SurpriseModel.from_pretrained(tmp_path / "one", device="cpu")
    assert saved(again, tmp_path / "two") == first
    assert again.report == model.report


def test_it_follows_what_happens(model, tmp_path):
    saved(model, tmp_path / "one")
    again = SurpriseModel.from_pretrained(tmp_path / "one", device="cpu")
    again.set_labels(["music", "art"])
    again.set_ensemble(again.ensemble.without_reservoir() if again.fit_options.get("weight") else None)
    card = saved(again, tmp_path / "two")
    assert "| Labels | 2: `music`, `art` |" in card


def test_without_the_reservoir_it_says_so(model, st_path, tmp_path):
    card = saved(model, tmp_path / "one")
    bare = SurpriseModel(str(st_path), device="cpu")
    bare.set_labels(LABELS, weight=1.0)
    bare.set_ensemble(model.ensemble.without_reservoir())
    assert "hold embeddings of single documents" in card
    other = saved(bare, tmp_path / "two")
    assert "hold embeddings of single documents" not in other
    assert "| Ensemble | mean and covariance of the embeddings of 16 documents |" in other


def test_a_card_that_someone_edited_stays(model, tmp_path):
    card = saved(model, tmp_path / "one").replace(model_card.MARK + "\n", "").replace("# A surprise", "# My surprise")
    (tmp_path / "one" / "README.md").write_text(card, encoding="utf-8")
    again = SurpriseModel.from_pretrained(tmp_path / "one", device="cpu").set_labels(["music", "art"])
    assert saved(again, tmp_path / "two") == card


def test_the_license_of_the_encoder_is_kept_and_its_card_is_not(minilm_path, tmp_path):
    assert "license: apache-2.0" in (minilm_path / "README.md").read_text()
    card = saved(SurpriseModel(str(minilm_path), device="cpu").set_labels(LABELS), tmp_path)
    assert front_matter(card)["license"] == "apache-2.0"
    assert model_card.MARK in card
    assert "This is a [sentence-transformers]" not in card


def test_a_plain_encoder_keeps_the_card_it_has(minilm_path, tmp_path):
    card = saved(SurpriseModel(str(minilm_path), device="cpu"), tmp_path)
    assert card == (minilm_path / "README.md").read_text()


def test_the_encoder_is_named_where_it_has_a_name(model, tmp_path):
    model.encoder_name = "me/encoder"
    try:
        card = saved(model, tmp_path)
    finally:
        model.encoder_name = None
    assert front_matter(card)["base_model"] == "me/encoder"
    assert "built on [me/encoder](https://hf.co/me/encoder)" in card


def test_many_labels_are_not_all_listed(st_path, tmp_path):
    model = SurpriseModel(str(st_path), device="cpu").set_labels([f"label {i}" for i in range(41)], weight=1.0)
    card = saved(model, tmp_path)
    assert "`label 39`, and 1 more" in card
    assert "`label 40`" not in card


def test_as_many_labels_as_are_shown_are_all_there_are(st_path, tmp_path):
    card = saved(SurpriseModel(str(st_path), device="cpu").set_labels([f"label {i}" for i in range(40)]), tmp_path)
    assert "`label 39` |" in card


def test_a_card_for_the_hub_has_the_name_and_finds_the_model_there(model):
    card = model_card.model_card(model, "me/my-model", "mit")
    assert front_matter(card)["license"] == "mit"
    assert "\n# my-model\n" in card
    assert front_matter(card)["model-index"][0]["name"] == "my-model"
    assert 'model="me/my-model"' in card
    assert 'SentenceTransformer("me/my-model")' in card
    assert "\n# my-model\n" in model_card.model_card(model, "my-model")


def test_without_an_ensemble_the_limits_say_what_that_means(st_path):
    model = SurpriseModel(str(st_path), device="cpu").set_labels(LABELS)
    card = model_card.model_card(model)
    assert "Without a stored ensemble a text's scores depend on the other texts of the call" in card
    assert "On texts unlike those of the ensemble" not in card
    assert "needs no examples" in card
    assert "What the encoder takes for similar" in card


def test_training_arguments():
    given = {"learning_rate": 1e-4, "seed": 3, "bf16": False, "max_steps": -1, "output_dir": "/home/me", "refine": None}
    assert model_card.training_arguments(given) == {"learning_rate": 1e-4, "seed": 3}
    zeros = {"seed": 0, "gamma": 0.0, "epsilon": 0, "surprise_weight": 0.0, "weight_decay": 0.0, "refine": 0}
    assert model_card.training_arguments({**zeros, "fp16": False}) == zeros


def test_training_and_evaluation_are_told(st_path, tmp_path):
    from surprise_hf import SurpriseTrainer, SurpriseTrainingArguments

    rows = [{"text": text, "label": LABELS[i % 3]} for i, text in enumerate(DOCUMENTS)]
    options = SurpriseTrainingArguments(
        output_dir=str(tmp_path / "out"), num_train_epochs=1, report_to="none", use_cpu=True, seed=7, disable_tqdm=True
    )
    trainer = SurpriseTrainer(SurpriseModel(str(st_path), device="cpu"), options, rows, rows, labels=LABELS)
    trainer.train()
    metrics = trainer.evaluate()
    trainer.save_model(str(tmp_path / "saved"))
    card = (tmp_path / "saved" / "README.md").read_text()
    assert "A sentence encoder fine-tuned from" in card
    assert "| `seed` | `7` |" in card
    assert f"| the evaluation set | surprise_accuracy | {metrics['eval_surprise_accuracy']:.4f} |" in card
    assert str(tmp_path) not in card
    again = SurpriseModel.from_pretrained(tmp_path / "saved", device="cpu")
    assert saved(again, tmp_path / "again") == card


def test_results_need_a_number(model):
    with pytest.raises(ValueError, match="no number among the metrics of 'x'"):
        model.record_results("x", {"note": "text"})


@pytest.mark.parametrize(
    ("card", "license_"),
    [
        ("---\ntags:\n- a\nlicense: mit\n---\n# X", "mit"),
        ("---\ntags:\n- a\n---\nlicense: mit\n", None),
        ('---\nlicense: "mit"\n---\n', "mit"),
        ("---\nlicense: mit # as its parts\n---\n", "mit"),
        ("---\r\nlicense: mit\r\n---\r\n# X", "mit"),
        ("---\nmodel:\n  license: mit\n---\n", None),
        ("---\nlicense:\n- mit\n---\n", None),
        ("---\n- mit\n---\n", None),
        ("---\na: b: c\n---\n", None),
        ("---\n---\n", None),
        ("", None),
    ],
)
def test_license_of(card, license_):
    assert model_card.license_of(card) == license_


NAMES = ["pipe|label", "tick`tock", "``", "new\nline", "<b>*bold*</b>", "long " * 100, "a\\|b", "日本語", 'x: "y" # z']


def cells(card: str, heading: str) -> list[list[str]]:
    """The rows of a section's table, as HTML shows them."""
    lines = re.search(rf"## {heading}\n\n((?:\|.*\n)+)", card)[1].splitlines()[2:]
    return [[html.unescape(cell.strip()) for cell in line.strip("|").split("|")] for line in lines]


@pytest.mark.filterwarnings("ignore:.* labels are longer")
def test_names_of_any_characters(st_path, tmp_path):
    """Labels, templates, data and metrics stay in their cell and are no markdown; the front matter stays YAML."""
    model = SurpriseModel(str(st_path), device="cpu").fit_ensemble(DOCUMENTS)
    model.set_labels(NAMES, [f"{name} {{}}" for name in NAMES], weight=1.0)
    for name in NAMES:
        model.record_results(name, {name: 0.5}, split=name)
    card = saved(model, tmp_path)
    assert max(map(len, card.splitlines())) < 1000
    shown = [" ".join(name.split())[:70] for name in NAMES]
    parts = cells(card, "What is in it")
    assert all(len(row) == 2 for row in parts)
    told = dict(parts)
    for name in shown:
        assert name in told["Labels"]
        assert name in told["Template"]
    results = cells(card, "Evaluation")
    assert len(results) == len(NAMES)
    for name, (data, metric, value) in zip(shown, results, strict=True):
        assert data.startswith(name)
        assert metric.startswith(name)
        assert value == "0.5000"
    index = front_matter(card)["model-index"][0]["results"]
    assert [entry["dataset"]["name"] for entry in index] == NAMES
    assert SurpriseModel.from_pretrained(tmp_path, device="cpu").candidate_labels == [name.strip() for name in NAMES]


def test_code_and_text_are_no_markdown():
    assert model_card._code("plain *name* <b>") == "`plain *name* <b>`"
    assert model_card._code("a`b") == "<code>a&#96;b</code>"
    assert model_card._code("*a|b*") == "<code>&#42;a&#124;b&#42;</code>"
    assert model_card._code("") == "<code></code>"
    assert model_card._code("x" * 80) == f"`{'x' * 80}`"
    assert model_card._code("x" * 81) == f"`{'x' * 79}…`"
    assert model_card._plain("[a](b) `c` *d* <e> f_g \\ &lt;") == (
        "&#91;a&#93;(b) &#96;c&#96; &#42;d&#42; &#60;e&#62; f_g &#92; &#38;lt;"
    )


def test_a_result_replaces_one_of_the_same_data_and_split():
    report = {}
    for dataset, split, value in (("a", None, 1), ("a", "test", 2), ("b", "test", 3), ("a", "test", 4)):
        model_card.record_results(report, dataset, {"accuracy": value}, split)
    kept = [(one["dataset"], one["split"], one["metrics"]["accuracy"]) for one in report["results"]]
    assert kept == [("a", None, 1), ("b", "test", 3), ("a", "test", 4)]


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        (np.float32(0.5), 0.5),
        (np.float64(0.5), 0.5),
        (np.int64(3), 3.0),
        (2, 2.0),
        (True, None),
        (np.bool_(True), None),
        (math.nan, None),
        (math.inf, None),
        ("0.5", None),
        ([0.5], None),
        (None, None),
    ],
)
def test_numbers_of_any_library_are_recorded_and_nothing_else(value, kept):
    report: dict = {}
    model_card.record_results(report, "data", {"value": value, "one": 1})
    ((result),) = report["results"]
    assert result["metrics"].get("value") == kept
    json.dumps(report, allow_nan=False)


def test_an_ensembles_card_tells_of_single_documents():
    ensemble = Ensemble.from_embeddings(torch.eye(4))
    assert "and the embeddings of 4 of them. They give" in model_card.ensemble_card(ensemble, "me/ensemble")
    bare = model_card.ensemble_card(ensemble.without_reservoir(), "me/ensemble")
    assert "and no embedding of any one of them. They give" in bare
    assert 'Ensemble.from_pretrained("me/ensemble")' in bare


def test_whose_card_it_is(tmp_path, monkeypatch):
    file = tmp_path / "README.md"
    absent, no_answer = (kind("x", response=Mock()) for kind in (RemoteEntryNotFoundError, HfHubHTTPError))
    monkeypatch.setattr("huggingface_hub.hf_hub_download", lambda *_, **__: str(file))
    for text, ours in ((f"---\na: 1\n---\n{model_card.MARK}\n# X", True), ("# My own", False)):
        file.write_text(text, encoding="utf-8")
        assert hub.has_free_card("me/model") == ours
        folder = tmp_path / text[-1]
        folder.mkdir()
        hub.keep_card("me/model", folder)
        assert [path.read_text(encoding="utf-8") for path in folder.iterdir()] == ([] if ours else [text])
    for error, free in ((absent, True), (LocalEntryNotFoundError("x"), False), (no_answer, False)):
        monkeypatch.setattr("huggingface_hub.hf_hub_download", Mock(side_effect=error))
        assert hub.has_free_card("me/model") == free
        hub.keep_card("me/model", tmp_path)
        assert file.read_text(encoding="utf-8") == "# My own"


@pytest.mark.parametrize(
    "encoder", ["me/encoder", "all-MiniLM-L6-v2", "my: enc #1", "/home/me/enc", "a\nb", "123", None]
)
def test_the_card_of_an_ensemble(encoder):
    card = model_card.ensemble_card(Ensemble.from_embeddings(torch.eye(4), encoder=encoder), "me/ensemble")
    head = front_matter(card)
    assert head["library_name"] == "surprise_hf"
    assert head.get("base_model") == (encoder if encoder in ("me/encoder", "all-MiniLM-L6-v2", "123") else None)
    assert f"4 documents, 4 dimensions, by {' '.join((encoder or 'an encoder without a name').split())}, and" in card


def test_an_encoder_without_a_transformer_is_opened_by_its_class(tmp_path, st_path):
    tokenizer = AutoTokenizer.from_pretrained(st_path)
    encoder = SentenceTransformer(modules=[StaticEmbedding(tokenizer.backend_tokenizer, embedding_dim=8)], device="cpu")
    model = SurpriseModel.from_encoder(encoder).fit_ensemble(["dog", "red", "vote"]).set_labels(["dog", "rain"])
    model.save_pretrained(tmp_path)
    code = re.findall(r"```python\n(.*?)```", (tmp_path / "README.md").read_text(), flags=re.DOTALL)[0]
    assert "transformers" not in code
    done = python(code.replace('from_pretrained(".")', f'from_pretrained("{tmp_path}")'))
    assert done.returncode == 0, done.stderr
    assert {line.split()[0] for line in done.stdout.splitlines()} <= {"dog", "rain"}


def test_the_name_of_an_encoder_in_memory(st_path):
    encoder = SentenceTransformer(str(st_path), device="cpu")
    assert SurpriseModel.from_encoder(encoder).encoder_name is None
    encoder.model_card_data.base_model = "owner/encoder"  # as loading from the Hub leaves it
    assert SurpriseModel.from_encoder(encoder).encoder_name == "owner/encoder"


def test_a_card_edited_where_the_model_is_saved_again_stays(model, tmp_path):
    (tmp_path / "README.md").write_text("of another model", encoding="utf-8")
    card = saved(model, tmp_path).replace(model_card.MARK, "My own words.")
    assert "of another model" not in card
    (tmp_path / "README.md").write_text(card, encoding="utf-8")
    assert saved(model, tmp_path) == card


@pytest.mark.parametrize(
    "change",
    [
        lambda model: model.set_labels(["music", "art"]),
        lambda model: model.add_labels(["music"]),
        lambda model: model.fit_ensemble(["red vote", "one gene", "dog cat"]),
        lambda model: model.fit_ensemble(["red vote"], update=True),
        lambda model: model.set_ensemble(None),
        lambda model: fit_labels(model, ["red vote", "one gene"], ["music", "art"]),
    ],
)
def test_results_go_with_what_they_were_of(st_path, change):
    documents = [f"{a} {b}" for a in ("red", "one", "cat", "dog") for b in ("vote", "gene", "rain", "bank")]
    model = SurpriseModel(str(st_path), device="cpu").fit_ensemble(documents).set_labels(["sport", "money"])
    model.record_results("a test set", {"accuracy": 0.5})
    assert "a test set" in model_card.model_card(model)
    change(model)
    assert "a test set" not in model_card.model_card(model)
