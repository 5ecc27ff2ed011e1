# ruff: noqa: INP001  a script, not a package
"""Builds what only the tests use, into build/testing. Not part of the package.

`_testing`: a pybind11 module with the inner pieces of the op and the CUDA block bodies run on the host. Needs a C++17
compiler and pybind11, neither torch nor CUDA.

`libhost_op.so`: the CUDA library itself, its sources compiled by the C++ compiler with blocks of fibers in the place of
the GPU's, as torch.ops.surprise_hf_host.* on CPU tensors. Needs torch.

`libemulated_op.so`: the CPU library with the kernels of AVX-512 and of the matrix unit, their instructions in plain
C++, as torch.ops.surprise_hf_emulated.*. Needs torch and an x86 processor with AVX2.

    python csrc/testing/build.py
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sysconfig
from pathlib import Path

CSRC = Path(__file__).resolve().parents[1]
OUT = CSRC.parent / "build" / "testing"
FLAGS = ["-O1", "-std=c++17", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wno-unknown-pragmas"]
FLAGS += ["-Wno-uninitialized", "-Wno-maybe-uninitialized", f"-I{CSRC}"]  # GCC warns of its own AVX-512 headers


def _compile(name: str, arguments: list[str]) -> Path:
    """Compile and link in one go where a source is newer than the result; replaced in one step."""
    out = OUT / name
    if out.exists() and out.stat().st_mtime > max(file.stat().st_mtime for file in CSRC.rglob("*") if file.is_file()):
        return out
    OUT.mkdir(parents=True, exist_ok=True)
    partial = out.with_name(f"{os.getpid()}.{name}")
    compiler = shlex.split(os.environ.get("CXX", "c++"))
    subprocess.run([*compiler, *FLAGS, "-shared", *arguments, "-o", str(partial)], check=True)
    partial.replace(out)
    return out


def build_bodies() -> Path:
    """The pybind11 module.

    Returns:
        its path.

    Raises:
        subprocess.CalledProcessError: the compiler failed; its messages are on stderr.
    """
    import pybind11

    include = [f"-I{pybind11.get_include()}", f"-I{sysconfig.get_path('include')}"]
    name = f"_testing{sysconfig.get_config_var('EXT_SUFFIX')}"
    sources = [CSRC / "testing/bindings.cpp", CSRC / "testing/cpu_kernels.cpp", CSRC / "cpu/dispatch.cpp"]
    return _compile(name, [*include, *map(str, [*sources, *sorted((CSRC / "cpu").glob("kernel_*.cpp"))])])


def build_host_op() -> Path:
    """The whole CUDA op on the host, to be opened with torch.ops.load_library. Returns and raises as above."""
    return _compile_op("host", [], sorted((CSRC / "cuda").glob("*.cu")))


def build_emulated_op() -> Path:
    """The CPU op with kernels for processors that need not be here. Returns and raises as above."""
    names = ("ops", "loss", "search", "kernel_avx512", "kernel_amx")
    sources = [CSRC / "testing/emulated_dispatch.cpp", *(CSRC / f"cpu/{name}.cpp" for name in names)]
    # GCC warns of how vectors longer than the processor's are passed
    flags = ["-O2", "-mavx2", "-mfma", "-Wno-psabi", "-include", "testing/emulated_x86.h"]
    return _compile_op("emulated", flags, sources)


def _compile_op(kind: str, flags: list[str], sources: list[Path]) -> Path:
    """A library of torch.ops.surprise_hf_<kind>."""
    import torch

    root = Path(torch.__file__).parent
    target = ["-DTORCH_TARGET_VERSION=0x020a000000000000", f"-Dsurprise_hf=surprise_hf_{kind}"]
    include = ["-isystem", str(root / "include"), f"-I{sysconfig.get_path('include')}"]
    files = ["-x", "c++", str(CSRC / "bindings.cpp"), *map(str, sources), "-x", "none"]
    return _compile(f"lib{kind}_op.so", [*flags, *target, *include, *files, f"-L{root / 'lib'}", "-ltorch_cpu"])


if __name__ == "__main__":
    build_bodies()
    build_host_op()
    build_emulated_op()
