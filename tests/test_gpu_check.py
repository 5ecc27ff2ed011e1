"""benchmarks/gpu_check.sh without a GPU: what it runs, with stand-ins for the programs that need one."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
STEPS = ("build", "library", "tests", "memcheck", "bench", "racecheck", "synccheck", "initcheck")

NVIDIA_SMI = 'case "$1" in *compute_cap*) echo 9.0; echo 9.0 ;; *) echo "A GPU, 1.0" ;; esac'
# compute-sanitizer runs what follows its options
SANITIZER = 'echo "compute-sanitizer $*" >>"$LOG"; while [ "$1" != python3 ]; do shift; done; exec "$@"'
# a script finds the package by the path alone, wherever python puts its own folder; -S leaves installed ones out
PYTHON = """
echo "python3 ${*//$'\\n'/ } [$TORCH_CUDA_ARCH_LIST] [${PYTORCH_NO_CUDA_MEMORY_CACHING-}]" >>"$LOG"
cd / && "$REAL" -Sc 'import sys; from importlib.util import find_spec; sys.exit(find_spec("surprise_hf") is None)' \
  || { echo "No module named surprise_hf"; exit 1; }
echo "some of $2"
case "$*" in *"$FAIL"*) exit 3 ;; esac
"""


def check(folder: Path, *options: str, fail: str = "nothing") -> tuple[int, dict[str, str], list[str]]:
    """Exit code, the summary's line of each step, and the commands run; commands that hold `fail` do."""
    stand_ins = folder / "bin"
    stand_ins.mkdir()
    for name, body in (("nvidia-smi", NVIDIA_SMI), ("compute-sanitizer", SANITIZER), ("python3", PYTHON)):
        (stand_ins / name).write_text(f"#!/usr/bin/env bash\n{body}\n", encoding="utf-8")
        (stand_ins / name).chmod(0o755)
    log = folder / "log"
    log.touch()
    env = {**os.environ, "PATH": f"{stand_ins}:{os.environ['PATH']}", "LOG": str(log), "REAL": sys.executable}
    env |= {"FAIL": fail, "PYTHONPATH": ""}
    out = folder / "out put"
    command = ["bash", str(ROOT / "benchmarks/gpu_check.sh"), str(out), *options]
    run = subprocess.run(command, env=env, cwd="/", capture_output=True, text=True, check=False)
    summary = (out / "gpu_check.txt").read_text(encoding="utf-8")
    lines = dict(re.findall(r"^([a-z]+): (.*)$", summary, re.MULTILINE))
    for step, line in lines.items():
        if "no time" not in line:
            assert "some of" in (out / f"{step}.txt").read_text(encoding="utf-8")
    return run.returncode, lines, log.read_text(encoding="utf-8").splitlines()


def test_every_step_runs_and_finds_the_package(tmp_path):
    code, steps, commands = check(tmp_path)
    assert code == 0
    assert tuple(steps) == STEPS
    assert all(line.startswith("ok") for line in steps.values())
    ran = [line for line in commands if line.startswith("python3")]
    assert all("[9.0]" in line for line in ran)  # built for the GPU that is there
    sanitized = [line for line in commands if line.startswith("compute-sanitizer")]
    for tool, line in zip(("memcheck", "racecheck", "synccheck", "initcheck"), sanitized, strict=True):
        assert f"--tool {tool} " in line
        # what an unwatched kernel writes, initcheck takes for never written
        assert ("--kernel-name" in line) == (tool != "initcheck")
    assert sum(line.endswith("[1]") for line in ran) == len(sanitized)


def test_every_test_with_a_device_is_asked_of_the_gpu(tmp_path):
    commands = check(tmp_path, "--steps=tests")[2]
    (asked,) = (line for line in commands if "pytest" in line)
    for file in sorted((ROOT / "tests").rglob("test_*.py")):
        with_device = re.search(r"^@devices|^@everywhere|cuda\.synchronize", file.read_text("utf-8"), re.MULTILINE)
        if with_device and file.name != Path(__file__).name:
            assert f" {file.relative_to(ROOT)}" in asked


@pytest.mark.parametrize(("fail", "failed"), [("-m pytest", ["tests"]), ("setup.py", ["build"])])
def test_a_failed_step_leaves_the_others(tmp_path, fail, failed):
    code, steps, _ = check(tmp_path, fail=fail)
    assert code == 1
    assert tuple(steps) == STEPS
    assert [step for step, line in steps.items() if line.startswith("FAILED (3)")] == failed


def test_nothing_is_asked_of_a_library_that_does_not_load(tmp_path):
    code, steps, _ = check(tmp_path, fail="build_info")
    assert code == 1
    assert list(steps) == ["build", "library"]


def test_outputs_of_an_earlier_run_do_not_stay(tmp_path):
    out = tmp_path / "out put"
    out.mkdir()
    old = [out / "bench_gpu.csv", *(out / f"{step}.txt" for step in STEPS)]
    for file in old:
        file.write_text("some of an earlier run", encoding="utf-8")
    check(tmp_path, "--steps=library bench", fail="bench_gpu")
    assert [file.name for file in old if file.exists() and "earlier" in file.read_text("utf-8")] == []


def test_steps_that_no_longer_fit_are_named(tmp_path):
    code, steps, commands = check(tmp_path, "--seconds=3", "--steps=tests bench")
    assert code == 1
    assert steps == dict.fromkeys(("tests", "bench"), "FAILED (no time left)")
    assert commands == []
