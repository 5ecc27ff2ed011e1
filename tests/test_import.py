"""Importing surprise_hf is light, and yet the task is known to transformers. Most tests are a fresh interpreter."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import surprise_hf
from surprise_hf import _register

ROOT = Path(__file__).parents[1]


def python(code: str, *args: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    env = {**os.environ, "PYTHONPATH": path, "HF_HUB_OFFLINE": "1"}
    return subprocess.run([sys.executable, "-c", code, *args], env=env, capture_output=True, text=True, check=False)


def test_import_is_light():
    done = python(
        "import sys, surprise_hf\n"
        "heavy = {'transformers', 'sentence_transformers', 'sklearn', 'scipy', 'datasets', 'evaluate', 'pandas'}\n"
        "print(sorted(heavy & set(sys.modules)), surprise_hf.__version__)"
    )
    assert done.stdout.split("]")[0] == "[", done.stderr
    assert done.stderr == ""


def test_every_public_name_resolves_and_is_listed():
    for name in surprise_hf.__all__:
        assert getattr(surprise_hf, name) is not None
    assert set(surprise_hf.__all__) <= set(dir(surprise_hf))
    with pytest.raises(AttributeError, match="module 'surprise_hf' has no attribute 'nonsense'"):
        _ = surprise_hf.nonsense


def test_pictures_and_metrics_are_there_when_asked_for():
    done = python("import surprise_hf\nprint(surprise_hf.plots.__name__, surprise_hf.metrics.__name__)")
    assert done.stdout.split() == ["surprise_hf.plots", "surprise_hf.metrics"], done.stderr


IMPORTS = {
    "ours first": "import surprise_hf\nimport transformers\npipeline = transformers.pipeline",
    "theirs first, loaded later": "import transformers\nimport surprise_hf\npipeline = transformers.pipeline",
    # without our import the task is unknown, as a README must say: transformers offers no other way
    "theirs loaded first": (
        "import sys\nfrom transformers import pipeline\ntry: pipeline('surprise-zero-shot', model=sys.argv[1])\n"
        "except KeyError as error: assert 'Unknown task surprise-zero-shot' in str(error)\n"
        "else: raise AssertionError('known without surprise_hf')\nimport surprise_hf"
    ),
    "our class first": "from surprise_hf import SurpriseZeroShotPipeline",
    "looked for before it is imported": (
        "import surprise_hf, importlib.util\nspec = importlib.util.find_spec('transformers.pipelines')\n"
        "assert 'PIPELINE_REGISTRY' in spec.loader.get_source(spec.name)\nfrom transformers import pipeline"
    ),
}


@pytest.mark.parametrize("order", IMPORTS)
def test_task_is_known_in_either_import_order(order: str, st_path: Path):
    done = python(
        f"{IMPORTS[order]}\nimport sys, transformers.pipelines as host\n"
        "assert 'sentence_transformers' not in sys.modules, 'registering must not load it'\n"
        "assert type(host.__loader__).__name__ == type(host.__spec__.loader).__name__ == 'SourceFileLoader'\n"
        "waiting = [f.host for f in sys.meta_path if type(f).__module__.startswith('surprise_hf')]\n"
        "assert waiting == ['evaluate.evaluator'], waiting\n"
        "task, entry, _ = host.PIPELINE_REGISTRY.check_task('surprise-zero-shot')\n"
        "print(entry['impl'].__name__, entry['default']['model'][0])",
        str(st_path),
    )
    assert done.stdout.split() == ["SurpriseZeroShotPipeline", "sentence-transformers/sentence-t5-base"], done.stderr
    assert "could not register" not in done.stderr


def test_a_pipeline_in_a_fresh_process(st_path: Path):
    done = python(
        "import surprise_hf, sys, transformers\n"
        "pipe = transformers.pipeline('surprise-zero-shot', model=sys.argv[1], device='cpu')\n"
        "print(sorted(pipe('sport', ['sport', 'politics'], surprise_weight=0)['labels']))",
        str(st_path),
    )
    assert done.stdout.strip() == "['politics', 'sport']", done.stderr


def test_whoever_waits_already_is_not_put_in_line_again(monkeypatch):
    monkeypatch.setattr(_register, "HOSTS", {"surprise_hf_no_such_host": "surprise_hf.pipeline"})
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    before = len(sys.meta_path)
    for _ in range(3):
        _register.register_when_imported()
        assert len(sys.meta_path) == before + 1


def test_a_failed_registration_does_not_break_the_foreign_import():
    done = python(
        "import surprise_hf, surprise_hf._register, sys\n"
        "sys.modules['surprise_hf.pipeline'] = None\n"
        "import transformers.pipelines\nprint('text-classification' in transformers.pipelines.SUPPORTED_TASKS)"
    )
    assert done.stdout.strip() == "True"
    assert "could not register its pipeline" in done.stderr
