"""The model card: a short text that says what the model is, filled from what happened to it.

It takes any object with the attributes of a SurpriseModel and imports none of them. A card written here carries MARK
and is written anew each time the model is saved; without that line it is its owner's and stays as it is.
"""

from __future__ import annotations

import math
import re
import string
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .inputs import as_number, short

__all__ = ["CITATION", "MARK", "model_card", "record_results", "training_arguments"]

MARK = "<!-- Written by surprise_hf each time this is saved. To keep your own edits, delete this line. -->"

CITATION = """\
@misc{surprise_score,
    title = {Taken by Surprise: Contrast effect for Similarity Scores},
    author = {Bachlechner, Thomas C. and Martone, Mario and Schillo, Marjorie},
    year = {2023},
    eprint = {2308.09765},
    archivePrefix = {arXiv}
}"""

TASK = "surprise-zero-shot"
TAGS = ["sentence-transformers", "surprise_hf", TASK, "zero-shot-classification", "text-classification"]
SHOWN, LONG = 40, 80  # labels named in the card, and characters of one

TRAINING = (  # of the arguments, those that say how a model was made; no paths, no names of machines
    "num_train_epochs",
    "max_steps",
    "learning_rate",
    "lr_scheduler_type",
    "warmup_steps",
    "weight_decay",
    "per_device_train_batch_size",
    "gradient_accumulation_steps",
    "optim",
    "bf16",
    "fp16",
    "seed",
    "class_weight",
    "labels_per_step",
    "refine",
    "surprise_weight",
)
SWITCHES = (  # the same of options that say something where they are off, too
    "gamma",
    "epsilon",
    "probability",
    "delta",
    "balanced",
    "stop_cross_entropy",
    "dropout",
    "train_word_embeddings",
    "bf16_on_cpu",
    "mix_examples",
    "self_training",
)


def is_ours(path: Path) -> bool:
    """Whether a card may be written to this path: there is none, or one of ours that nobody edited."""
    return not path.is_file() or MARK in path.read_text(encoding="utf-8", errors="replace")


def license_of(card: str) -> str | None:
    """The license that a card names in its front matter."""
    import yaml

    found = re.match(r"---\s*\n(.*?)\n---", card.replace("\r\n", "\n"), flags=re.DOTALL)
    try:
        named = yaml.safe_load(found[1])["license"] if found else None
    except (KeyError, TypeError, yaml.YAMLError):
        return None
    return named if isinstance(named, str) else None


def training_arguments(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Of all arguments of a training run, those that a reader of the card wants, where they are set."""
    found = {name: arguments.get(name) for name in TRAINING}
    found = {name: x for name, x in found.items() if x is not None and x is not False and x != -1}  # 0 is a value
    return found | {name: arguments[name] for name in SWITCHES if name in arguments}


def record_results(report: dict[str, Any], dataset: str, metrics: Mapping[str, Any], split: str | None = None) -> None:
    """Add what an evaluation found to a model's report, in place of an earlier one on the same data.

    Args:
        report: `SurpriseModel.report`.
        dataset: its name, as a reader knows it.
        metrics: names and numbers; what is no finite number is left out.
        split: of the data.

    Raises:
        ValueError: there is no number among the metrics.
    """
    found = {}
    for name, value in metrics.items():
        if math.isfinite(number := as_number(value)):
            found[name] = number
    if not found:
        raise ValueError(f"there is no number among the metrics of {dataset!r}: {dict(metrics)}")
    kept = [result for result in report.get("results", []) if (result["dataset"], result["split"]) != (dataset, split)]
    report["results"] = [*kept, {"dataset": dataset, "split": split, "metrics": found}]


def model_card(model: Any, model_id: str | None = None, license: str | None = None) -> str:  # noqa: A002 (its name)
    """The card of a SurpriseModel, front matter and all.

    Args:
        model: the model.
        model_id: Hub id, for the snippets; None writes them for the folder that the card lies in.
        license: of the model; None leaves it open.

    Returns:
        The text of README.md; the same for the same model.
    """
    name = model_id.split("/")[-1] if model_id else "A surprise-zero-shot model"
    parts = [
        f"---\n{_front_matter(model, name, license)}\n---\n{MARK}\n\n# {name}",
        _introduction(model),
        f"## Usage\n\n{_usage(model, model_id or '.')}",
        f"## What is in it\n\n{_contents(model)}",
        _training(model.report.get("training")),
        _results(model.report.get("results")),
        f"## Limits\n\n{_limits(model)}",
        f"## Citation\n\n```bibtex\n{CITATION}\n```",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _front_matter(model: Any, name: str, licence: str | None) -> str:
    from huggingface_hub import EvalResult, ModelCardData

    results = [
        EvalResult(
            task_type="zero-shot-classification",
            task_name="Zero-Shot Classification",
            dataset_type=re.sub(r"[^\w/.-]+", "-", result["dataset"]),
            dataset_name=result["dataset"],
            dataset_split=result["split"],
            metric_type=metric,
            metric_name=metric.replace("_", " "),
            metric_value=value,
        )
        for result in model.report.get("results", [])
        for metric, value in result["metrics"].items()
    ]
    data = ModelCardData(
        library_name="sentence-transformers",
        pipeline_tag="zero-shot-classification",
        language=model.report.get("language"),
        tags=[*TAGS, *(tag for tag in model.report.get("tags", []) if tag not in TAGS)],
        base_model=model.encoder_name,
        license=licence,
        model_name=name,
        eval_results=results or None,
    )
    return data.to_yaml().strip()


def _encoder(model: Any) -> str:
    return f"[{model.encoder_name}](https://hf.co/{model.encoder_name})" if model.encoder_name else "a local encoder"


def _introduction(model: Any) -> str:
    trained = "fine-tuned from" if model.report.get("training") else "built on"
    return (
        f"A sentence encoder {trained} {_encoder(model)} that labels texts by the surprise score: how much more similar"
        " a text is to a label than the texts of an ensemble are. It needs no examples of new labels."
    )


def _usage(model: Any, where: str) -> str:
    labels = "" if model.candidate_labels else ', candidate_labels=["sports", "politics", "science"]'
    opened = f"""\
import surprise_hf  # makes the task known to transformers
from transformers import pipeline

pipe = pipeline("{TASK}", model="{where}")"""
    if model.transformers_model is None:  # transformers.pipeline asks for a config.json of its own kind
        opened = f"""\
from surprise_hf import SurpriseModel, SurpriseZeroShotPipeline

pipe = SurpriseZeroShotPipeline(SurpriseModel.from_pretrained("{where}"))"""
    return f"""\
```
pip install surprise-hf
```

```python
{opened}
texts = ["The match went to extra time.", "Parliament votes on the budget today."]
for result in pipe(texts{labels}):
    print(result["labels"][0], round(result["scores"][0], 3))
```

The task is "{TASK}": as "zero-shot-classification" transformers would put an untrained head on the encoder.

It is a plain sentence-transformers model too:

```python
from sentence_transformers import SentenceTransformer

embeddings = SentenceTransformer("{where}").encode(["The match went to extra time."])
```"""


def _contents(model: Any) -> str:
    labels = list(map(str, model.candidate_labels or []))
    more = f", and {len(labels) - SHOWN} more" if len(labels) > SHOWN else ""
    named = ", ".join(map(_code, labels[:SHOWN])) + more
    template = model.hypothesis_template
    templates = [template] if isinstance(template, str) else list(template)
    ensemble = model.ensemble
    held = "none stored; the documents of a call are their own"
    if ensemble is not None:
        rows = len(ensemble.reservoir)
        held = f"mean and covariance of the embeddings of {len(ensemble):,} documents"
        held += f", and the embeddings of {rows:,} of them" if rows else ""
    lines = [
        ("Encoder", f"{_encoder(model)}, {model.dim} dimensions"),
        ("Labels", f"{len(labels)}: {named}" if labels else "none stored; give them in the call"),
        ("Template", ", ".join(map(_code, templates))),
        (
            "Texts longer than the encoder's window",
            {"truncate": "cut off", "window": "read in pieces"}[model.long_texts],
        ),
        ("Ensemble", held),
    ]
    if model.fit_options:
        options = ", ".join(_code(f"{name}={value!r}") for name, value in sorted(model.fit_options.items()))
        lines.append(("Scoring options", options))
    return _table(("", ""), lines)


def _training(arguments: Mapping[str, Any] | None) -> str:
    if not arguments:
        return ""
    return f"## Training\n\n{_table(('argument', 'value'), [(_code(n), _code(v)) for n, v in arguments.items()])}"


def _results(results: list[dict[str, Any]] | None) -> str:
    if not results:
        return ""
    rows = [
        (
            _plain(result["dataset"] + (f" ({result['split']})" if result["split"] else "")),
            _plain(metric),
            f"{value:.4f}",
        )
        for result in results
        for metric, value in result["metrics"].items()
    ]
    return f"## Evaluation\n\n{_table(('data', 'metric', 'value'), rows)}"


def _limits(model: Any) -> str:
    lines = [
        "A score is a rank among the documents of the ensemble, not the probability that a label is right; scores of"
        " several labels need not add up to 1.",
        "On texts unlike those of the ensemble the scores promise nothing: fit another ensemble with"
        " `pipe.fit_ensemble(documents)`.",
        "What the encoder takes for similar, its biases too, decides.",
    ]
    if model.ensemble is None:
        lines[1] = (
            "Without a stored ensemble a text's scores depend on the other texts of the call; few texts make them lean"
            " on the plain similarity."
        )
    elif len(model.ensemble.reservoir):
        lines.append(
            "The files hold embeddings of single documents of the ensemble, from which something of their text can be"
            " guessed."
        )
    return "\n".join(f"- {line}" for line in lines)


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    cells = [head, ("---",) * len(head), *rows]
    return "\n".join(f"| {' | '.join(row)} |" for row in cells)


def _code(text: Any) -> str:
    """A name of any characters as it is, in the type of code and in one line: no markdown in it, no end of a cell."""
    text = short(str(text), LONG)
    if text and not {"`", "|"} & set(text):
        return f"`{text}`"
    return f"<code>{_coded(text, string.punctuation)}</code>"


def _plain(text: str) -> str:
    """A name of any characters as it is, in one line."""
    return _coded(short(text, LONG), "\\`*[]<>|&")


def _coded(text: str, signs: str) -> str:
    return "".join(f"&#{ord(sign)};" if sign in signs else sign for sign in text)


def ensemble_card(ensemble: Any, repo_id: str) -> str:
    """The card of an `Ensemble` in a repository of its own."""
    rows = len(ensemble.reservoir)
    single = f"the embeddings of {rows:,} of them" if rows else "no embedding of any one of them"
    named = re.fullmatch(r"[\w.-]+(/[\w.-]+)?", ensemble.encoder or "")  # as repositories are, or the Hub refuses it
    base = f'base_model: "{ensemble.encoder}"\n' if named else ""
    return (
        f"---\n{base}library_name: surprise_hf\ntags:\n- surprise_hf\n- ensemble\n---\n{MARK}\n\n# Ensemble\n\n"
        f"Mean and covariance of the embeddings of {len(ensemble):,} documents, {ensemble.dim} dimensions, by"
        f" {_plain(ensemble.encoder or 'an encoder without a name')}, and {single}. They"
        " give a similarity its context: the [surprise score](https://arxiv.org/abs/2308.09765).\n\n"
        f'```python\nimport surprise_hf\n\nensemble = surprise_hf.Ensemble.from_pretrained("{repo_id}")\n```\n'
    )


def index_card(config: Mapping[str, Any], repo_id: str = "this folder") -> str:
    """The card of a `SurpriseIndex`, from its config.json, in a folder or in a repository of its own."""
    return (
        f"---\nlibrary_name: surprise_hf\ntags:\n- surprise_hf\n- surprise-index\n---\n{MARK}\n\n# SurpriseIndex\n\n"
        f"{config['documents']:,} documents, {config['dim']} dimensions.\n"
        f"Encoder: {_plain(config['encoder'] or 'not recorded')}.\n\n"
        "```python\nfrom surprise_hf import SurpriseIndex\n\n"
        f'index = SurpriseIndex.from_pretrained("{repo_id}", model="its encoder")\n'
        'index.search("a text", k=10)\n```\n'
    )
