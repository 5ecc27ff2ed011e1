"""evaluate's files, away from the user's."""

from __future__ import annotations

import sys

import evaluate
import pytest


@pytest.fixture(scope="module", autouse=True)
def own_cache(tmp_path_factory):
    """evaluate's cache files and copies of the modules, which are imported from where they were first copied to."""
    folder = tmp_path_factory.mktemp("evaluate")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evaluate.config, "HF_METRICS_CACHE", folder / "metrics")
        patch.setattr(evaluate.config, "HF_MODULES_CACHE", folder / "modules")
        patch.setattr(sys, "path", [*sys.path])
        forget()
        yield folder
        forget()


def forget() -> None:
    """The copies imported so far."""
    for name in [name for name in sys.modules if name.split(".")[0] == "evaluate_modules"]:
        del sys.modules[name]
