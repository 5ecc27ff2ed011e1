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
from .model_card import TASK

__all__ = ["REVISION", "branch", "check", "push", "save"]

REVISION = "remote-code"
CODE = Path(__file__).with_name("surprise_remote.py")


def check(model: Any) -> None:
    """Refuse a SurpriseModel that the code can't run.

    Raises:
        ValueError: it has neither labels nor an ensemble, or something that code can't do.
    """
    if model.ensemble is None and model.candidate_labels is None:
        raise ValueError("a plain encoder needs no remote code: fit an ensemble or set labels first")
    if model.transformers_model is None:
        raise ValueError("remote code needs an encoder of transformers, and this model has none")
    if model.long_texts != "truncate":
        raise ValueError(
            f"remote code can't do long_texts={model.long_texts!r}: fit the ensemble anew with a model that reads texts"
            " with long_texts='truncate'"
        )
    if model.fitted is not None:
        if model.fitted.estimator == "tail":
            raise ValueError("remote code can't do estimator='tail': set the labels again with another")
        return
    for name, known in {"estimator": "gaussian", "refine": 0}.items():  # each call would have to fit with them
        value = model.fit_options.get(name, known)
        if value != known:
            raise ValueError(
                f"remote code can't fit labels with {name}={value!r}, and these are not fitted: fit an ensemble first,"
                f" or set the labels again with {name}={known!r}"
            )


def save(model: Any, folder: str | Path) -> None:
    """Save a SurpriseModel with the code that runs it.

    Args:
        model: with labels or an ensemble.
        folder: made where there is none. `transformers.pipeline("surprise-zero-shot", model=folder)` then demands
            trust_remote_code=True.

    Raises:
        ValueError: as `check`; nothing is written then.
    """
    check(model)
    model.save_pretrained(str(folder))
    config = Path(folder, "config.json")
    found = json.loads(config.read_text(encoding="utf-8"))
    kind = type(model.transformers_model).__name__  # of T5, AutoModel would make the decoder too
    kind = kind if hasattr(transformers, kind) else "AutoModel"
    found["custom_pipelines"] = {TASK: {"impl": f"{CODE.stem}.SurpriseRemotePipeline", "pt": [kind], "type": "text"}}
    config.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    shutil.copy(CODE, folder)


def branch(revision: str | None) -> str:
    """The branch with code that stands beside a branch of the model (None: the main one)."""
    return REVISION if revision in (None, "main") else f"{revision}-{REVISION}"


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
        kwargs = {"commit_message": "Add code for use without surprise_hf", "delete_patterns": ["surprise/*"], **kwargs}
        return upload(folder, repo_id, revision=revision, **kwargs)
