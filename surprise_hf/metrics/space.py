"""The page of a metric's Space: three boxes of JSON in, the result out."""

from __future__ import annotations

import importlib
import json
import re
from pathlib import Path
from typing import Any

import evaluate

from surprise_hf.metrics import path

EXAMPLES: dict[str, dict[str, Any]] = {
    "surprise_calibration": {
        "predictions": [0.05, 0.25, 0.45, 0.65, 0.95],
        "references": None,
        "arguments": {"thresholds": [0.9]},
    },
    "surprise_classification": {
        "predictions": [[0.8, 0.7], [0.3, 0.4], [0.4, 0.2], [0.7, 0.4]],
        "references": ["sports", "sports", "politics", "politics"],
        "arguments": {"queries": [[0.3, 0.4], [0.8, 0.5]], "label_names": ["sports", "politics"]},
    },
    "surprise_clustering": {"predictions": [0, 0, 1, 1], "references": ["a", "a", "b", "a"], "arguments": {}},
    "surprise_similarity": {
        "predictions": [[0.9, 0.1, 0.1], [0.1, 0.9, 0.1], [0.9, 0.1, 0.1]],
        "references": [[1, 0, 0], [0, 1, 0], [0, 0, 1]],
        "arguments": {},
    },
}


def compute(name: str, predictions: str, references: str, arguments: str) -> str:
    """A metric's result as JSON, from JSON.

    Raises:
        ValueError: a box holds no JSON, the arguments are no object, or as the metric.
    """
    boxes = {"predictions": predictions, "references": references, "arguments": arguments}
    values = {box: _read(box, text) for box, text in boxes.items()}
    metric = evaluate.load(path(name))
    more = values.pop("arguments") or {}
    if not isinstance(more, dict):
        raise ValueError(f"arguments must be a JSON object, such as {{}}, got {json.dumps(more)}")
    return json.dumps(metric.compute(**values, **more), indent=2)


def _read(box: str, text: str) -> Any:
    try:
        return json.loads(text) if text.strip() else None
    except json.JSONDecodeError as error:
        raise ValueError(f"{box} is no JSON: {error}") from error


def demo(name: str) -> Any:
    """The gradio page of a metric, not yet launched.

    Raises:
        ImportError: gradio is not installed.
        ValueError: no such metric.
    """
    folder = Path(path(name))
    try:
        gradio = importlib.import_module("gradio")
    except ImportError as error:
        raise ImportError("a metric's page needs gradio: pip install gradio") from error
    card = re.sub(r"\A---\n.*?\n---\n", "", (folder / "README.md").read_text(encoding="utf-8"), flags=re.DOTALL)

    def run(predictions: str, references: str, arguments: str) -> str:
        try:
            return compute(name, predictions, references, arguments)
        except (TypeError, ValueError) as error:
            raise gradio.Error(str(error)) from error

    boxes = {box: json.dumps(value) for box, value in EXAMPLES[name].items()}
    return gradio.Interface(
        fn=run,
        inputs=[gradio.Code(value=value, language="json", label=box) for box, value in boxes.items()],
        outputs=gradio.Code(language="json", label="result"),
        title=name,
        article=card,
    )
