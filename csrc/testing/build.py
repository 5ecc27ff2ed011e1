"""Builds the pybind11 module `_testing`: the inner pieces of the op, and the CUDA block bodies run on the host.

    python csrc/testing/build.py [OUT_DIR]        (default build/testing)

Needs a C++17 compiler and pybind11, neither torch nor CUDA. Not part of the package.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import sysconfig
from pathlib import Path

import pybind11

CSRC = Path(__file__).resolve().parents[1]


def build(out_dir: Path) -> Path:
    """Compile where a source is newer than the module.

    Returns:
        path of the shared library in `out_dir`.

    Raises:
        subprocess.CalledProcessError: the compiler failed; its messages are on stderr.
    """
    out = out_dir / f"_testing{sysconfig.get_config_var('EXT_SUFFIX')}"
    sources = [CSRC / "surprise.h", *(CSRC / "cuda").iterdir(), *(CSRC / "testing").glob("*.[hc]*")]
    newest = max(file.stat().st_mtime for file in sources)
    if out.exists() and out.stat().st_mtime > newest:
        return out
    out_dir.mkdir(parents=True, exist_ok=True)
    partial = out.with_name(f"{out.name}.{os.getpid()}.tmp")
    include = [f"-I{path}" for path in (CSRC, pybind11.get_include(), sysconfig.get_path("include"))]
    flags = ["-O1", "-std=c++17", "-shared", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wno-unknown-pragmas"]
    compiler = shlex.split(os.environ.get("CXX", "c++"))
    subprocess.run([*compiler, *flags, *include, str(CSRC / "testing/bindings.cpp"), "-o", str(partial)], check=True)
    partial.replace(out)
    return out


if __name__ == "__main__":
    print(build(Path(sys.argv[1]) if len(sys.argv) > 1 else CSRC.parent / "build" / "testing"))
