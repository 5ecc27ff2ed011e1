"""A branch of a model's repository that works in processes without surprise_hf, by code that it holds.

transformers looks at `custom_pipelines` in config.json before its own registry, and then demands trust_remote_code of
everyone. So the main branch never has it; the branch REVISION has, beside a copy of `surprise_remote`.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import transformers

from .hub import upload

__all__ = ["REVISION", "push", "save"]

REVISION = "remote-code"
CODE = Path(__file__).with_name("surprise_remote.py")


def save(model: Any, folder: str | Path) -> None:
    """Save a SurpriseModel with the code that runs it.

    Args:
        model: with labels or an ensemble.
        folder: made where there is none. `transformers.pipeline("surprise-zero-shot", model=folder)` then demands
            trust_remote_code=True.

    Raises:
        ValueError: the model holds what that code can't do.
    """
    if model.ensemble is None and model.candidate_labels is None:
        raise ValueError("a plain encoder needs no remote code: fit an ensemble or set labels first")
    if model.transformers_model is None:
        raise ValueError("remote code needs an encoder of transformers, and this model has none")
    if model.long_texts != "truncate":
        raise ValueError(f"remote code can't do long_texts={model.long_texts!r}: set model.long_texts = 'truncate'")
    if model.fitted is not None and model.fitted.estimator == "tail":
        raise ValueError("remote code can't do estimator='tail': set the labels again with another")
    model.save_pretrained(str(folder))
    config = Path(folder, "config.json")
    found = json.loads(config.read_text(encoding="utf-8"))
    kind = type(model.transformers_model).__name__  # of T5, AutoModel would make the decoder too
    kind = kind if hasattr(transformers, kind) else "AutoModel"
    found["custom_pipelines"] = {
        "surprise-zero-shot": {"impl": f"{CODE.stem}.SurpriseRemotePipeline", "pt": [kind], "type": "text"}
    }
    config.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    shutil.copy(CODE, folder)


def push(model: Any, repo_id: str, *, revision: str = REVISION, **kwargs: Any) -> str:
    """Push what `save` writes, to a branch of its own.

    Args:
        model: as for `save`.
        repo_id: owner/name.
        revision: the branch.
        kwargs: of `hub.upload`.

    Returns:
        The address of the commit.

    Raises:
        ValueError: as `save`.
    """
    with tempfile.TemporaryDirectory() as folder:
        save(model, folder)
        return upload(
            folder, repo_id, revision=revision, commit_message="Add code for use without surprise_hf", **kwargs
        )
