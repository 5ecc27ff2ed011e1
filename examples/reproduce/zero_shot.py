"""Zero-shot accuracy and weighted F1 of cosine and surprise (the paper's zero-shot table, without SetFit).

    python examples/reproduce/zero_shot.py --data DIR --model minilm=PATH --model e5=PATH,query:_ --out out/zero_shot

A model is name=path or name=path,prompt (underscores at the end of the prompt stand for spaces). Embeddings are kept
under --out, so an interrupted run goes on where it stopped.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
from pathlib import Path

import torch
from sets import READERS, LabelledSet, load
from sklearn.metrics import accuracy_score, f1_score
from tqdm import tqdm

import surprise_hf
from surprise_hf import SurpriseModel
from surprise_hf.fitted import FittedLabels

TEMPLATE = "this matter is {}"


class Encoder:
    """A sentence encoder with one prompt for both sides, and its embeddings kept on disk by their texts."""

    def __init__(self, spec: str, cache: Path) -> None:
        self.name, _, rest = spec.partition("=")
        self.path, _, prompt = rest.partition(",")
        self.prompt = re.sub(r"_+$", lambda m: " " * len(m[0]), prompt)
        self.cache = cache
        self._model: SurpriseModel | None = None

    def __call__(self, texts: list[str]) -> torch.Tensor:
        """Embeddings (n, d) float32 of the texts, from disk where they are."""
        from safetensors.torch import load_file, save_file

        key = hashlib.sha256(json.dumps([self.name, self.prompt, texts]).encode()).hexdigest()[:24]
        path = self.cache / f"{self.name}-{key}.safetensors"
        if not path.exists():
            if self._model is None:
                self._model = SurpriseModel.from_pretrained(self.path)
            emb = self._model.encode(
                [self.prompt + text for text in texts], convert_to_tensor=True, show_progress_bar=len(texts) > 500
            )
            path.parent.mkdir(parents=True, exist_ok=True)
            save_file({"emb": emb.float().cpu().contiguous()}, path)
        return load_file(path)["emb"]


def decide(encoder: Encoder, data: LabelledSet, weight: float) -> list[str]:
    """The label of each document at a surprise weight; the documents are the ensemble."""
    documents = encoder(data.texts)
    labels = encoder([TEMPLATE.format(name) for name in data.names])
    fitted = FittedLabels.fit(labels, documents, weight=weight)
    return [data.names[i] for i in fitted.decide(documents).tolist()]


def run(encoder: Encoder, data: LabelledSet) -> dict[str, object]:
    """One row of the table."""
    row: dict[str, object] = {"model": encoder.name, "set": data.name, "n": len(data.texts), "labels": len(data.names)}
    for side, weight in (("cosine", 0.0), ("surprise", 1.0)):
        got = decide(encoder, data, weight)
        row[f"{side}_accuracy"] = 100 * accuracy_score(data.labels, got)
        row[f"{side}_f1"] = 100 * f1_score(data.labels, got, average="weighted")
    return row


def table(rows: list[dict]) -> str:
    """The rows as a markdown table."""
    lines = [
        "| model | set | n | labels | cosine acc. | surprise acc. | cosine F1 | surprise F1 |",
        "|---|---|---:|---:|---:|---:|---:|---:|",
    ]
    numbers = ("cosine_accuracy", "surprise_accuracy", "cosine_f1", "surprise_f1")
    for r in rows:
        cells = " | ".join(f"{r[name]:.1f}" for name in numbers)
        lines.append(f"| {r['model']} | {r['set']} | {r['n']:,} | {r['labels']} | {cells} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Read the arguments, run every model on every set, write JSON and markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder that holds the sets, one folder each")
    parser.add_argument("--model", action="append", required=True, help="name=path or name=path,prompt; repeatable")
    parser.add_argument("--sets", default="ag_news,dbpedia", help=f"comma list of {', '.join(READERS)}")
    parser.add_argument("--limit", type=int, help="random rows of each set")
    parser.add_argument("--out", type=Path, default=Path("out/zero_shot"))
    options = parser.parse_args()
    rows = []
    encoders = [Encoder(spec, options.out / "embeddings") for spec in options.model]
    jobs = [(encoder, name) for encoder in encoders for name in options.sets.split(",")]
    for encoder, name in tqdm(jobs, disable=None):
        rows.append(run(encoder, load(name, options.data, options.limit)))
    options.out.mkdir(parents=True, exist_ok=True)
    about = {"surprise_hf": surprise_hf.__version__, "torch": torch.__version__, "template": TEMPLATE}
    (options.out / "zero_shot.json").write_text(json.dumps({**about, "rows": rows}, indent=1))
    (options.out / "zero_shot.md").write_text(table(rows))
    print(table(rows))


if __name__ == "__main__":
    main()
