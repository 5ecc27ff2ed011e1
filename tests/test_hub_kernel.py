"""examples/hub_kernel: the folder that its README puts together is complete, and names what setup.py compiles."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from surprise_hf.ops import _loader
from tests import snippets

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # pytest brings it

HERE = snippets.ROOT / "examples" / "hub_kernel"
BUILD = tomllib.loads((HERE / "build.toml").read_text(encoding="utf-8"))
SECTIONS = {"torch": BUILD["torch"], **BUILD["kernel"]}
COMPILED = (".cpp", ".cu")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """What the commands of the README make."""
    work = tmp_path_factory.mktemp("hub kernel")
    for name in ("examples", "csrc", "surprise_hf"):
        (work / name).symlink_to(snippets.ROOT / name)
    (block,) = snippets.blocks((HERE / "README.md").read_text(encoding="utf-8"), "bash")
    subprocess.run(["bash", "-ec", block.code.replace("cp -r", "cp -rH")], cwd=work, check=True)
    return work / "kernel"


def test_the_file_is_of_edition_5():
    """Every key is one that kernel-builder knows; it refuses others."""
    known = {
        "general": {"name", "version", "edition", "license", "backends", "hub", "upstream", "source"},
        "torch": {"src", "include", "minver", "maxver", "pyext", "stable-abi", "cxx-flags"},
        "cpu": {"backend", "depends", "src", "include", "cxx-flags"},
        "cuda": {"backend", "depends", "src", "include", "cxx-flags", "cuda-flags", "cuda-capabilities", "cuda-minver"},
    }
    assert set(BUILD) == {"general", "torch", "kernel"}
    general = BUILD["general"]
    assert {"name", "version", "edition", "license", "backends"} <= set(general) <= known["general"]
    assert general["edition"] == 5
    assert re.fullmatch("[a-z][-a-z0-9]*[a-z0-9]", general["name"])
    assert (HERE / "torch-ext" / general["name"].replace("-", "_")).is_dir()
    assert set(BUILD["torch"]) <= known["torch"]
    assert [section["backend"] for section in BUILD["kernel"].values()] == general["backends"]
    for section in BUILD["kernel"].values():
        assert {"backend", "depends", "src"} <= set(section) <= known[section["backend"]]
        assert section["depends"] == ["torch"]


def test_it_compiles_what_setup_compiles():
    setup = (snippets.ROOT / "setup.py").read_text(encoding="utf-8")
    patterns = [ast.literal_eval(found) for found in re.findall(r"library\(C\w+, (\[.*?\])", setup)]
    assert len(patterns) == 2
    wanted = {
        str(path.relative_to(snippets.ROOT)) for group in patterns for p in group for path in snippets.ROOT.glob(p)
    }
    named = [name for section in SECTIONS.values() for name in section["src"] if name.endswith(COMPILED)]
    assert sorted(named) == sorted([*wanted, "torch-ext/torch_binding.cpp"])
    major, minor = map(int, BUILD["torch"]["stable-abi"].split("."))
    assert f'TORCH_TARGET = "{major << 56 | minor << 48:#018x}"' in setup


@pytest.mark.parametrize("name", SECTIONS)
def test_every_file_is_there_and_nothing_it_includes_is_missing(folder, name):
    """Of each section by itself: kernel-builder compiles the binding and the kernels of one backend."""
    listed = {Path(name) for name in SECTIONS[name]["src"]}
    assert [path for path in listed if not (folder / path).is_file()] == []
    included = set()
    for path in listed:
        text = (folder / path).read_text(encoding="utf-8")
        without_host = re.sub(r"#else\n(?:(?!#endif).*\n)*", "", text)  # what stands in for a GPU in the tests
        for wanted in re.findall(r'^ *#include "(.+)"', without_host, re.MULTILINE):
            if wanted != "registration.h":  # kernel-builder's own
                beside, below = path.parent / wanted, Path("csrc", wanted)
                included.add(beside if (folder / beside).exists() else below)
    assert included <= listed
    assert {path for path in listed if path.suffix not in COMPILED} <= included


@pytest.mark.parametrize("name", SECTIONS)
def test_every_source_is_compiled_into_a_namespace_of_the_builds_own(name):
    named = ["-Dsurprise_hf=TORCH_EXTENSION_NAME"]
    if SECTIONS[name].get("backend") == "cuda":  # fused multiply-adds are those that the sources write, as in setup.py
        assert '"-fmad=false"' in (snippets.ROOT / "setup.py").read_text(encoding="utf-8")
        assert SECTIONS[name]["cuda-flags"] == [*named, "-fmad=false"]
    else:
        assert SECTIONS[name]["cxx-flags"] == named


def test_the_python_files_need_torch_alone(folder):
    files = list((folder / "torch-ext" / "surprise_score").glob("*.py"))
    assert {file.name for file in files} == {file.name for file in (snippets.ROOT / "surprise_hf" / "ops").glob("*.py")}
    for file in files:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                assert node.level <= 1, file.name
                names = [node.module or ""] if node.level == 0 else []
            for top in {name.split(".")[0] for name in names}:
                assert top == "torch" or top in sys.stdlib_module_names, (file.name, top)


USE = """
import importlib.util, json, sys
import torch
where, schemas = sys.argv[1], json.loads(sys.argv[2])
library = torch.library.Library("_surprise_score_cpu_1a2b3c4", "DEF")
for schema in schemas:
    library.define(schema)
spec = importlib.util.spec_from_file_location("some_kernel", f"{where}/__init__.py", submodule_search_locations=[where])
kernel = sys.modules["some_kernel"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(kernel)
assert not [name for name in sys.modules if name.startswith("surprise_hf")]
x, q = (torch.randn(n, 8, generator=torch.Generator().manual_seed(n)).requires_grad_() for n in (30, 4))
scores, mean, std = kernel.cosine_surprise(x, q)
scores.square().sum().backward()
ensemble = [torch.zeros((), dtype=torch.float64), torch.zeros(8).double(), torch.zeros(8, 8).double()]
kernel.ensemble_update(*ensemble, x.detach())
fake = torch.compile(lambda x: kernel.surprise_topk(x, q.detach(), mean, std, 2)[1], backend="eager", fullgraph=True)
from surprise_hf import ops
ours, theirs = (x.grad.clone(), q.grad.clone()), ops.cosine_surprise(x, q)
x.grad = q.grad = None
theirs[0].square().sum().backward()
torch.testing.assert_close((scores, mean, std), theirs)
torch.testing.assert_close(ours, (x.grad, q.grad))
torch.testing.assert_close(fake(x.detach()), ops.surprise_topk(x, q, mean, std, 2)[1])
torch.testing.assert_close(ensemble[1], torch.nn.functional.normalize(x.detach().double()).mean(dim=0))
print(kernel.build_info()["namespace"])
"""


def test_it_works_under_any_name_and_in_any_namespace(folder):
    """With the schemas but no kernels, as on a device that the build has none for: the reference answers."""
    package = folder / "torch-ext" / "surprise_score"
    (package / "_ops.py").write_text("import torch\nops = torch.ops._surprise_score_cpu_1a2b3c4\n")
    command = [sys.executable, "-c", USE, str(package), json.dumps(_loader.SCHEMAS)]
    done = subprocess.run(command, cwd=snippets.ROOT, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "_surprise_score_cpu_1a2b3c4", done.stderr[-3000:]
