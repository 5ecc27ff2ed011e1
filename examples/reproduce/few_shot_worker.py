"""One few-shot run in a process of its own: a job as JSON on standard input, an answer as JSON on standard output.

few_shot.py starts it, with the interpreter of the method's environment: a peer needs no surprise_hf there, and the
peak memory is that of this run alone. Importing and reading the model take part in no time.

Job: {"method", "model" (path), "revision", "max_length" (or null), "prompt", "names" (m), "template", "texts" (n),
"labels" (n numbers), "documents" (to be labelled), "seed", "options", "limit" (seconds, or absent)}.
Answer: {"found": {decision: a label number for each document}, "train": [wall, CPU seconds], "label": [wall, CPU
seconds], "peak": MiB, "encoded": texts encoded in training steps, or null, "versions"}; or {"cut": wall seconds,
"needs": [wall, CPU seconds], "step", "steps"} of a peer whose steps tell that it cannot end within the limit.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import resource
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from typing import Any

Job = dict[str, Any]
Found = dict[str, Any]
METHODS: dict[str, Callable[[Job], Callable[[], Callable[[], Found]]]] = {}
BATCH, RATE, DECAY, EPSILON, DELTA, STOP, EPOCHS = 16, 1e-4, 0.01, 0.05, 1e-10, 0.3, 20  # the paper's, of `pairs`


class TooSlowError(Exception):
    """A run that cannot end within its limit; the argument is the answer."""


class Forecast:
    """Ends a run whose steps so far tell that it needs more than 1.25 times its limit.

    Asked after a twentieth of the limit (three minutes of an hour) and from then on. What comes before the first step
    counts once.
    """

    def __init__(self, limit: float | None) -> None:
        self.limit, self.first = limit, 0
        self.started = self.warm = _clocks()

    def __call__(self, step: int, steps: int) -> None:
        """After `step` steps of at least `steps`.

        Raises:
            TooSlowError: with the answer.
        """
        now = _clocks()
        if not self.first:
            self.first, self.warm = step, now
        spent = now[0] - self.started[0]
        if self.limit is None or spent < self.limit / 20 or step == self.first:
            return
        left = (steps - step) / (step - self.first)
        needs = [at - start + (at - warm) * left for start, warm, at in zip(self.started, self.warm, now, strict=True)]
        if needs[0] > 1.25 * self.limit:
            raise TooSlowError({"cut": spent, "needs": needs, "step": step, "steps": steps})


def _clocks() -> tuple[float, float]:
    return time.perf_counter(), time.process_time()


def method(prepare: Callable[[Job], Callable[[], Callable[[], Found]]]) -> Callable[..., Any]:
    """A method has three parts: `prepare` reads the model, what it returns trains, and what that returns labels."""
    METHODS[prepare.__name__] = prepare
    return prepare


def shorten(encoder: Any, job: Job) -> None:
    """Cut texts to the job's length."""
    if job["max_length"] is not None:
        encoder.max_seq_length = min(encoder.max_seq_length or job["max_length"], job["max_length"])


@method
def setfit(job: Job) -> Callable[[], Callable[[], Found]]:
    """SetFit, every argument its default."""
    from datasets import Dataset
    from setfit import SetFitModel, Trainer, TrainingArguments
    from transformers import TrainerCallback

    class Watch(TrainerCallback):
        def __init__(self) -> None:
            self.forecast = Forecast(job.get("limit"))

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            del args, control
            self.forecast(state.global_step, state.max_steps)

    model = SetFitModel.from_pretrained(job["model"], revision=job["revision"])
    shorten(model.model_body, job)
    prompt = job["prompt"]
    rows = Dataset.from_dict({"text": [prompt + text for text in job["texts"]], "label": job["labels"]})

    def train() -> Callable[[], Found]:
        folder = tempfile.mkdtemp(prefix="setfit-")
        args = TrainingArguments(output_dir=folder, seed=job["seed"], save_strategy="no", report_to="none")
        Trainer(model=model, args=args, train_dataset=rows, callbacks=[Watch()]).train()
        return lambda: {"setfit": [int(x) for x in model.predict([prompt + text for text in job["documents"]])]}

    return train


@method
def logistic(job: Job) -> Callable[[], Callable[[], Found]]:
    """Logistic regression on the embeddings of the frozen encoder: SetFit's head without its training."""
    from sentence_transformers import SentenceTransformer
    from sklearn.linear_model import LogisticRegression

    model = SentenceTransformer(job["model"], revision=job["revision"])
    shorten(model, job)

    def encode(texts: list[str]) -> Any:
        return model.encode([job["prompt"] + text for text in texts], show_progress_bar=False)

    def train() -> Callable[[], Found]:
        head = LogisticRegression(max_iter=1000).fit(encode(job["texts"]), job["labels"])
        return lambda: {"logistic": head.predict(encode(job["documents"])).tolist()}

    return train


@method
def pairs(job: Job) -> Callable[[], Callable[[], Found]]:
    """The paper's routine as it is written: every (document, label) pair, both sides encoded."""
    import torch
    from sentence_transformers import SentenceTransformer
    from torch.nn.functional import cosine_similarity

    model = SentenceTransformer(job["model"], revision=job["revision"])
    shorten(model, job)
    texts = [job["prompt"] + text for text in job["texts"]]
    names = [job["prompt"] + job["template"].format(name) for name in job["names"]]

    def embed(some: list[str]) -> Any:
        return model(model.preprocess(some))["sentence_embedding"]

    def train() -> Callable[[], Found]:
        torch.manual_seed(job["seed"])
        optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=DECAY)
        every = [(row, label) for row in range(len(texts)) for label in range(len(names))]
        forecast = Forecast(job.get("limit"))
        for epoch in range(EPOCHS):
            model.train()
            total, parts = 0.0, torch.randperm(len(every)).split(BATCH)
            for at, part in enumerate(parts, 1):
                some = [every[pair] for pair in part.tolist()]
                cos = cosine_similarity(
                    embed([texts[row] for row, _ in some]), embed([names[label] for _, label in some])
                )
                p = torch.relu(cos + DELTA).clamp(DELTA, 1 - 1e-6)
                right = torch.tensor([job["labels"][row] == label for row, label in some])
                target = torch.where(right, 1.0, EPSILON)
                positive, negative = -target * p.log(), -(1 - target) * (1 - p).log()
                ((1 - p) * positive + p * negative).mean().backward()
                optimizer.step()
                optimizer.zero_grad()
                total += float((positive + negative).mean().detach())
                forecast(epoch * len(parts) + at, (epoch + 1) * len(parts))  # it may stop after this epoch
            if total / len(parts) < STOP:
                break
        model.eval()
        return label_all

    def label_all() -> Found:
        documents = model.encode([job["prompt"] + text for text in job["documents"]], convert_to_tensor=True)
        unit = torch.nn.functional.normalize(documents.float().clone())
        with torch.no_grad():
            queries = torch.nn.functional.normalize(embed(names).float())
        cos = unit @ queries.T
        z = (cos - cos.mean(dim=0)) / cos.std(dim=0, correction=0)
        return {"cosine": cos.argmax(dim=1).tolist(), "surprise": z.argmax(dim=1).tolist()}

    return train


def opened(job: Job) -> Any:
    """The job's encoder as a SurpriseModel, with its prompt."""
    from surprise_hf import SurpriseModel

    model = SurpriseModel.from_pretrained(job["model"], revision=job["revision"])
    shorten(model, job)
    if job["prompt"]:
        model.prompts["side"] = job["prompt"]
        model.default_prompt_name = "side"
    return model


def trainer_of(model: Any, rows: Any, job: Job, documents: Any = None) -> Any:
    """A SurpriseTrainer with the job's labels, template and options."""
    from surprise_hf import SurpriseTrainer, SurpriseTrainingArguments

    plain = {"output_dir": tempfile.mkdtemp(prefix="surprise-hf-"), "save_strategy": "no", "report_to": "none"}
    args = SurpriseTrainingArguments(seed=job["seed"], **plain, **(job["options"] or {}))
    return SurpriseTrainer(
        model, args, rows, labels=job["names"], hypothesis_template=job["template"], ensemble=documents
    )


@method
def pseudo(job: Job) -> Callable[[], Callable[[], Found]]:
    """surprise_hf without any example: trained twice on the documents that the refined labels are surest of."""
    from surprise_hf import pseudo_label
    from surprise_hf.fitted import FittedLabels

    model = opened(job)

    def train() -> Callable[[], Found]:
        for _ in range(2):
            rows = pseudo_label(model, job["documents"], job["names"], hypothesis_template=job["template"])
            trainer_of(model, rows, job).train()
        return label

    def label() -> Found:
        documents, _ = model.embed(job["documents"], show_progress_bar=False)
        stored = model.label_vectors(job["names"], job["template"])
        return {"refined": FittedLabels.fit(stored, documents, refine="auto").decide(documents).tolist()}

    return train


@method
def documents(job: Job) -> Callable[[], Callable[[], Found]]:
    """surprise_hf as a user has it who gives the trainer the documents, which it goes on with where that pays."""
    from datasets import Dataset

    model = opened(job)
    rows = Dataset.from_dict({"text": job["texts"], "label": job["labels"]})

    def train() -> Callable[[], Found]:
        trainer = trainer_of(model, rows, job, job["documents"])
        trainer.train()
        return lambda: {**label(), "encoded": trainer.loss.encoded}

    def label() -> Found:
        emb, _ = model.embed(job["documents"], show_progress_bar=False)
        return {"mixed": model.fitted.decide(emb).tolist()}

    return train


@method
def surprise(job: Job) -> Callable[[], Callable[[], Found]]:
    """surprise_hf; `options` are of SurpriseTrainingArguments, or null: no training.

    Decisions: by the label names' vectors (cosine, surprise, and refined on the documents), and by vectors that
    part the examples, without any document (examples) and refined on the documents (mixed).
    """
    from datasets import Dataset

    from surprise_hf.few_shot import part_labels, refinement_beside
    from surprise_hf.fitted import FittedLabels
    from surprise_hf.ops import unit_rows
    from surprise_hf.targets import as_matrix

    model = opened(job)
    rows = Dataset.from_dict({"text": job["texts"], "label": job["labels"]})
    positive = as_matrix([[label] for label in job["labels"]], len(job["names"]))
    encoded = None

    def train() -> Callable[[], Found]:
        nonlocal encoded
        if job["options"] is None:
            few = embed()
            return lambda: label(*few)
        trainer = trainer_of(model, rows, job)
        trainer.train()
        encoded = trainer.loss.encoded
        return lambda: label(*embed())  # the trainer has embedded them once, as for a user

    def embed() -> tuple[Any, Any]:
        examples, _ = model.embed(job["texts"], show_progress_bar=False)
        return model.set_labels(None).label_vectors(job["names"], job["template"]), examples

    def label(names: Any, examples: Any) -> Found:
        documents, _ = model.embed(job["documents"], show_progress_bar=False)
        alone = parted = part_labels(names, examples, positive)
        if job["options"] is None:  # as `fit_labels` does it
            parted = part_labels(names, examples, positive, unit_rows(documents).mean(dim=0))
        decided = {
            "cosine": FittedLabels.fit(names, documents, weight=0),
            "surprise": FittedLabels.fit(names, documents, weight=1),
            "refined": FittedLabels.fit(names, documents, refine="auto"),
            "examples": FittedLabels.fit(alone, examples, weight=0),
            "mixed": FittedLabels.fit(parted, documents, refine=refinement_beside(len(examples), len(documents))),
        }
        found = {name: fitted.decide(documents).tolist() for name, fitted in decided.items()}
        return {**found, "encoded": encoded}

    return train


def answer(job: Job) -> dict[str, Any]:
    """What one job finds and costs."""
    train = METHODS[job["method"]](job)
    started = _clocks()
    try:
        label = train()
    except TooSlowError as slow:
        return slow.args[0]
    between = _clocks()
    found = label()
    ended = _clocks()
    return {
        "encoded": found.pop("encoded", None),
        "found": found,
        "train": [b - a for a, b in zip(started, between, strict=True)],
        "label": [b - a for a, b in zip(between, ended, strict=True)],
        "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 if sys.platform == "darwin" else 1024),
        "versions": {name: importlib.metadata.version(name) for name in versions(job["method"])},
    }


def main() -> None:
    """One job."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # libraries print
    warnings.simplefilter("ignore")
    json.dump(answer(json.load(sys.stdin)), out)
    out.flush()


def versions(name: str) -> list[str]:
    """Packages whose versions tell what ran."""
    return ["torch", "transformers", "sentence-transformers", *({"setfit": ["setfit"]}.get(name, []))]


if __name__ == "__main__":
    main()
