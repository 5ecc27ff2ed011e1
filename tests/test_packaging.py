"""What gets installed, on machines that have everything and on machines that have not (cases.md 26).

Builds run on a copy of the tree, through the same hooks as pip's but without isolation, so nothing is downloaded. Where
a compiler is at work its source is a stub of one line: the real one is compiled before the tests start.
"""

import ast
import importlib
import json
import os
import re
import runpy
import shutil
import subprocess
import sys
import tarfile
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

import surprise_hf

ROOT = Path(__file__).resolve().parents[1]
LEFT_OUT = shutil.ignore_patterns(".*", "build", "dist", "*.egg-info", "*.so", "__pycache__", "out")
REFERENCE = """
import json, sys, warnings
sys.meta_path = [f for f in sys.meta_path if "editable" not in str(f)]  # it would lend the source tree's libraries
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    import torch
    from surprise_hf import ops
score, mean, std = ops.cosine_surprise(torch.eye(5, 4), torch.eye(3, 4))
print(json.dumps({"warnings": [str(w.message) for w in caught if "surprise_hf" in str(w.message)],
                  "where": ops.__file__, "score": score.tolist(), "mean": mean.tolist(), "std": std.tolist(),
                  **ops.build_info()}))
"""


def python(*arguments, cwd, **environment):
    """A fresh interpreter; returns the finished process."""
    env = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", **environment}
    return subprocess.run([sys.executable, *arguments], cwd=cwd, env=env, capture_output=True, text=True, check=False)


def hook(tree, name, out, **environment):
    """Runs a hook of the build backend as pip does; returns the file it made."""
    out.mkdir(exist_ok=True)
    code = f"from setuptools import build_meta as b; print(b.{name}({str(out)!r}))"
    done = python("-c", code, cwd=tree, **environment)
    assert done.returncode == 0, done.stderr
    return out / done.stdout.splitlines()[-1]


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """The project's files, without what was built."""
    return Path(shutil.copytree(ROOT, tmp_path_factory.mktemp("tree with a space") / "project", ignore=LEFT_OUT))


@pytest.fixture(scope="module")
def plain_wheel(tree, tmp_path_factory):
    return hook(tree, "build_wheel", tmp_path_factory.mktemp("plain"), SURPRISE_HF_SKIP_EXT="1")


@pytest.fixture
def stub(tree, tmp_path):
    """The project with a kernel that compiles at once."""
    ignore = shutil.ignore_patterns("csrc", "tests", "build", "*.egg-info")
    project = Path(shutil.copytree(tree, tmp_path / "a stub", ignore=ignore))
    (project / "csrc" / "cpu").mkdir(parents=True)
    (project / "csrc" / "cpu" / "stub.cpp").write_text('extern "C" int answer() { return 42; }\n')
    return project


def build_in_place(project, **environment):
    return python("setup.py", "-q", "build_ext", "--inplace", cwd=project, SURPRISE_HF_SKIP_CUDA="1", **environment)


# --- what is in the wheel and the sdist --------------------------------------------------------------------------


def test_metadata(plain_wheel):
    with zipfile.ZipFile(plain_wheel) as wheel:
        name = next(n for n in wheel.namelist() if n.endswith(".dist-info/METADATA"))
        metadata = Parser().parsestr(wheel.read(name).decode())
    assert metadata["Name"] == "surprise-hf"
    assert metadata["Version"] == surprise_hf.__version__
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Requires-Python"] == ">=3.10"
    assert {"train", "faiss", "plots", "dev"} <= set(metadata.get_all("Provides-Extra"))
    required = [r for r in metadata.get_all("Requires-Dist") if "extra ==" not in r]
    assert any(re.match(r"torch>=2\.10$", r) for r in required)


def test_every_import_is_declared(plain_wheel):
    with zipfile.ZipFile(plain_wheel) as wheel:
        name = next(n for n in wheel.namelist() if n.endswith(".dist-info/METADATA"))
        lines = Parser().parsestr(wheel.read(name).decode()).get_all("Requires-Dist")
    declared = {
        re.match(r"[\w.-]+", line)[0].lower().replace("-", "_") for line in lines if 'extra == "dev"' not in line
    }
    modules = {"scikit_learn": "sklearn", "faiss_cpu": "faiss", "pyyaml": "yaml"}
    # tokenizers and huggingface_hub are transformers' own
    allowed = {modules.get(n, n) for n in declared} | {"surprise_hf", "huggingface_hub", "tokenizers"}
    for file in (ROOT / "surprise_hf").rglob("*.py"):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        # what stands in a `try` with an answer to ImportError is optional
        trials = (node for node in ast.walk(tree) if isinstance(node, ast.Try) and "ImportError" in ast.dump(node))
        optional = {inner for trial in trials for statement in trial.body for inner in ast.walk(statement)}
        for node in set(ast.walk(tree)) - optional:
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.level == 0:
                names = [node.module]
            for top in {name.split(".")[0] for name in names} - set(sys.stdlib_module_names):
                assert top in allowed, f"{file.relative_to(ROOT)} imports {top}, which pyproject.toml does not require"


def test_wheel_without_the_op_fits_every_machine(plain_wheel):
    assert plain_wheel.name == f"surprise_hf-{surprise_hf.__version__}-py3-none-any.whl"
    with zipfile.ZipFile(plain_wheel) as wheel:
        files = {name for name in wheel.namelist() if ".dist-info/" not in name}
        assert any(n.endswith("licenses/LICENSE") for n in wheel.namelist())
    sources = {str(p.relative_to(ROOT)) for p in (ROOT / "surprise_hf").rglob("*.py")}
    assert sources | {"surprise_hf/py.typed"} <= files
    assert {name.split("/")[0] for name in files} == {"surprise_hf"}


def test_sdist_can_build_the_op_and_run_the_tests(tree, tmp_path):
    with tarfile.open(hook(tree, "build_sdist", tmp_path)) as archive:
        packed = {name.split("/", 1)[1] for name in archive.getnames() if "/" in name}
    needed = {p for folder in ("csrc", "tests", "examples") for p in (tree / folder).rglob("*") if p.is_file()}
    assert len(needed) > 10
    assert {str(p.relative_to(tree)) for p in needed if p.suffix != ".pyc"} <= packed
    assert {"setup.py", "pyproject.toml", "LICENSE", "Makefile"} <= packed
    assert not [name for name in packed if name.endswith((".so", ".o", ".pyc"))]


def test_console_script():
    script = re.search(r'^surprise-hf = "([\w.]+):(\w+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert callable(getattr(importlib.import_module(script[1]), script[2]))


# --- reference mode -------------------------------------------------------------------------------------------------


def reference_answers(folder, **environment):
    done = python("-c", REFERENCE, cwd=folder, PYTHONPATH=str(folder), **environment)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_without_libraries_the_reference_answers_and_one_message_says_how_to_get_the_op(plain_wheel, tmp_path):
    with zipfile.ZipFile(plain_wheel) as wheel:
        wheel.extractall(tmp_path)
    seen = reference_answers(tmp_path, SURPRISE_HF_REFERENCE="0")
    assert seen["where"].startswith(str(tmp_path))
    assert seen["implementation"] == "reference"
    assert len(seen["warnings"]) == 1
    assert "pip install" in seen["warnings"][0]
    # rows e1..e4 and 0: cosines 1, 0, 0, 0, 0 with each query, mean 1/5, deviation 2/5, z = 2 and -1/2
    assert seen["mean"] == pytest.approx([0.2] * 3, abs=1e-12)
    assert seen["std"] == pytest.approx([0.4] * 3, abs=1e-12)
    high, low = 0.9772498680518208, 0.3085375387259869
    expected = [[high if row == column else low for column in range(3)] for row in range(5)]
    assert [x for row in seen["score"] for x in row] == pytest.approx([x for row in expected for x in row], abs=1e-6)


def test_reference_on_request_needs_no_message():
    seen = reference_answers(ROOT, SURPRISE_HF_REFERENCE="1")
    assert (seen["implementation"], seen["warnings"]) == ("reference", [])


# --- machines that lack something -----------------------------------------------------------------------------------


def test_no_compiler_still_gives_a_wheel(stub, tmp_path):
    wheel = hook(stub, "build_wheel", tmp_path / "out", CXX="/nonexistent/c++")
    assert wheel.name.endswith("-py3-none-any.whl")


def test_failing_compiler_still_gives_a_wheel(stub, tmp_path):
    wheel = hook(stub, "build_wheel", tmp_path / "out", CXX="false", SURPRISE_HF_SKIP_CUDA="1")
    with zipfile.ZipFile(wheel) as archive:
        assert not [name for name in archive.namelist() if name.endswith(".so")]


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"CXX": "/nonexistent/c++"}, r"needs a C\+\+ compiler: CXX=/nonexistent/c\+\+ does not exist"),
        ({"PYTHONPATH": "old"}, r"needs torch 2\.10 or later, and this is 2\.9\.1"),
        ({"PYTHONPATH": "none"}, r"needs torch in the build environment"),
    ],
)
def test_direct_build_says_in_one_line_what_it_lacks(stub, environment, message):
    for folder, origin in (("old", "__version__ = '2.9.1'\ncuda = None\n"), ("none", None)):
        (stub / folder / "torch").mkdir(parents=True)
        if origin:
            (stub / folder / "torch" / "__init__.py").touch()
            (stub / folder / "torch" / "version.py").write_text(origin)
    # a folder without __init__.py loses to an installed torch: hide that one
    hide = "import importlib.util as u; f = u.find_spec; u.find_spec = lambda n, *a: None if n == 'torch' else f(n, *a)"
    (stub / "none" / "sitecustomize.py").write_text(hide)
    done = build_in_place(stub, **environment)
    assert done.returncode != 0
    assert len(done.stderr.strip().splitlines()) == 1
    assert re.search(message, done.stderr)


def test_build_in_place_then_repair_what_a_killed_build_left(stub):
    assert build_in_place(stub).returncode == 0
    (library,) = (stub / "surprise_hf").glob("_C*.so")
    assert ".abi3" in library.name
    whole = library.read_bytes()
    library.write_bytes(whole[:100])  # newer than its sources, as after a kill in the middle of a copy
    (stub / "build" / "op" / "surprise_hf._C.so.d" / "csrc" / "cpu" / "stub.cpp.o").write_bytes(b"half an object")
    (stub / "build" / "op" / "surprise_hf._C.so.d" / ".ninja_log").unlink()
    (stub / "build" / "op" / "surprise_hf._C.so.d" / ".ninja_deps").unlink()
    done = build_in_place(stub)
    assert done.returncode == 0, done.stderr
    assert library.read_bytes() == whole


def test_wheel_with_the_op_serves_every_python_from_3_10(stub, tmp_path):
    wheel = hook(stub, "build_wheel", tmp_path / "out", SURPRISE_HF_SKIP_CUDA="1")
    assert f"-{surprise_hf.__version__}-cp310-abi3-" in wheel.name
    with zipfile.ZipFile(wheel) as archive:
        assert "surprise_hf/_C.abi3.so" in archive.namelist()


# --- nvcc -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def build_functions(tree, monkeypatch):
    monkeypatch.chdir(tree)
    monkeypatch.setenv("SURPRISE_HF_SKIP_EXT", "1")
    monkeypatch.setattr(sys, "argv", ["setup.py", "--version"])
    return runpy.run_path("setup.py")


def fake_nvcc(folder, answer):
    (folder / "bin").mkdir(parents=True)
    nvcc = folder / "bin" / "nvcc"
    nvcc.write_text(f"#!/bin/sh\n{answer}\n")
    nvcc.chmod(0o755)
    return str(nvcc)


def test_a_foreign_nvcc_first_on_path_is_passed_over(build_functions, monkeypatch, tmp_path):
    foreign = fake_nvcc(tmp_path / "foreign", 'echo "Cuda compilation tools, release 11.5, V11.5.119"')
    broken = fake_nvcc(tmp_path / "broken", "exit 1")
    fitting = fake_nvcc(tmp_path / "cuda-97.0", 'echo "Cuda compilation tools, release 97.4, V97.4.1"')
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "cuda-97.0"))
    monkeypatch.delenv("CUDA_PATH", raising=False)
    monkeypatch.setenv("PATH", f"{Path(foreign).parent}:/usr/bin:/bin")
    find_nvcc = build_functions["find_nvcc"]
    assert find_nvcc("97.0") == fitting
    assert find_nvcc("11.8") == foreign
    monkeypatch.setenv("PATH", f"{Path(broken).parent}:/usr/bin:/bin")
    with pytest.raises(Exception, match=r"needs nvcc of CUDA 96, as torch is; seen: .*97\.4.*does not run"):
        find_nvcc("96.1")


@pytest.mark.parametrize(
    ("listed", "flags"),
    [
        (None, ["compute_80,code=sm_80", "compute_90,code=sm_90", "compute_90,code=compute_90"]),
        ("8.6 10.0a", ["compute_86,code=sm_86", "compute_100a,code=sm_100a"]),
        ("12.0+PTX", ["compute_120,code=sm_120", "compute_120,code=compute_120"]),
        ("7.0 7.5+PTX 8.6", ["compute_86,code=sm_86"]),  # the reference serves the older ones
    ],
)
def test_architectures(build_functions, monkeypatch, listed, flags):
    monkeypatch.delenv("TORCH_CUDA_ARCH_LIST", raising=False)
    if listed:
        monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", listed)
    assert build_functions["gencode"]() == [f"-gencode=arch={flag}" for flag in flags]


def test_only_architectures_that_are_too_old(build_functions, monkeypatch):
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", "7.0;7.5+PTX")
    with pytest.raises(Exception, match="no GPU of compute capability"):
        build_functions["gencode"]()


def test_an_architecture_that_is_no_number_is_named(build_functions, monkeypatch):
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", "8.0;Hopper")
    with pytest.raises(Exception, match="'Hopper'"):
        build_functions["gencode"]()
