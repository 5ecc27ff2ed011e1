"""Builds the compiled op: two shared libraries on LibTorch's stable ABI, so that one build serves torch 2.10 and later.

`surprise_hf._C` (schemas, CPU) comes from csrc/*.cpp and csrc/cpu, `surprise_hf._C_cuda` from csrc/cuda. ninja drives
the compilers; torch.utils.cpp_extension is not used because it can't compile CUDA sources beside a CPU-only torch.

Without torch, ninja or a compiler the package installs all the same and its torch reference answers. Only
`python setup.py build_ext --inplace`, which `make` calls, is strict: what can't be built is an error.

Environment:
    SURPRISE_HF_SKIP_EXT=1    build nothing
    SURPRISE_HF_SKIP_CUDA=1   build no CUDA library
    SURPRISE_HF_FORCE_CUDA=1  build the CUDA library though this torch has no CUDA; an error where it can't be built
    TORCH_CUDA_ARCH_LIST      default "8.0;9.0+PTX"
    CUDA_HOME, CXX, MAX_JOBS  toolkit, C++ compiler, parallel jobs
    DEBUG=1                   -O0 -g
"""

from __future__ import annotations

import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import sysconfig
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import setuptools
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError

ROOT = Path(__file__).resolve().parent
CPU, CUDA = "surprise_hf._C", "surprise_hf._C_cuda"
TORCH_TARGET = "0x020a000000000000"  # torch 2.10, the oldest whose stable ABI has all that the op calls
PY_LIMITED_API = "0x030a0000"  # Python 3.10
ABI3 = not sysconfig.get_config_var("Py_GIL_DISABLED")  # the free-threaded interpreter has no limited API
# of GCC, about its own AVX-512 headers; clang does not know the second
WARNINGS = ["-Wall", "-Wno-uninitialized", "-Wno-maybe-uninitialized", "-Wno-unknown-warning-option"]
STRICT = "build_ext" in sys.argv


class Toolchain(NamedTuple):
    """Two command lines: the first compiles a source (-c is added), the second links the objects."""

    compile: list[str]
    link: list[str]


def flag(name: str) -> bool:
    """Is this environment variable set to anything but 0?"""
    return os.environ.get(name, "0") not in ("", "0")


def say(line: str) -> None:
    """One line to whoever reads the build."""
    print(f"surprise_hf: {line}", file=sys.stderr, flush=True)


def torch_facts() -> tuple[Path, str, str | None]:
    """Folder, version and CUDA version of the installed torch, read without importing it (seconds; it may be broken).

    Raises:
        ModuleNotFoundError: there is none.
    """
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("torch is not installed")
    facts = runpy.run_path(str(Path(spec.origin).with_name("version.py")))
    return Path(spec.origin).parent, facts["__version__"], facts["cuda"]


def find_cxx() -> list[str] | None:
    """The command in CXX if it is set, else the first compiler on PATH; None when there is none."""
    names = [os.environ["CXX"]] if os.environ.get("CXX") else ["c++", "g++", "clang++"]
    return next((words for words in map(shlex.split, names) if shutil.which(words[0])), None)


def find_ninja() -> str | None:
    """The ninja of the build requirements, else the one on PATH."""
    if find_spec("ninja"):
        import ninja

        return shutil.which("ninja", path=ninja.BIN_DIR) or shutil.which("ninja")
    return shutil.which("ninja")


def find_nvcc(torch_cuda: str | None) -> str:
    """The first nvcc of CUDA_HOME, PATH and /usr/local/cuda that is of torch's CUDA generation (12 or later for None).

    A foreign one is often first on PATH (conda, the distribution, the HPC SDK): each is asked for its release.

    Raises:
        CompileError: there is none; says which were seen.
    """
    homes = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH")]
    paths = [*(f"{home}/bin/nvcc" for home in homes if home), shutil.which("nvcc"), "/usr/local/cuda/bin/nvcc"]
    major = torch_cuda.split(".")[0] if torch_cuda else None
    seen = []
    for nvcc in dict.fromkeys(path for path in paths if path and shutil.which(path)):
        answer = subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=False).stdout
        release = re.search(r"release (\d+)\.\d+", answer)
        if release and (int(release[1]) >= 12 if major is None else release[1] == major):
            return nvcc
        seen.append(f"{nvcc} ({release[0] if release else 'does not run'})")
    need = f"nvcc of CUDA {major}, as torch is" if major else "nvcc of CUDA 12 or later"
    raise CompileError(f"the CUDA library needs {need}; seen: {', '.join(seen) or 'none'}. Set CUDA_HOME")


def gencode() -> list[str]:
    """The flags of nvcc for TORCH_CUDA_ARCH_LIST, as torch reads it: "8.0;9.0+PTX", or with spaces.

    Older GPUs than the kernels are made for are left out: containers list them all, and the reference serves those.
    """
    flags = []
    for arch in re.split(r"[;,\s]+", os.environ.get("TORCH_CUDA_ARCH_LIST", "").strip() or "8.0;9.0+PTX"):
        match = re.fullmatch(r"(\d+)\.(\d+[af]?)(\+PTX)?", arch)
        if not match:
            raise CompileError(f"TORCH_CUDA_ARCH_LIST holds {arch!r}; write it like '8.0;9.0+PTX'")
        if int(match[1]) < 8:
            continue
        number = match[1] + match[2]
        flags.append(f"-gencode=arch=compute_{number},code=sm_{number}")
        if match[3]:
            flags.append(f"-gencode=arch=compute_{number},code=compute_{number}")
    if not flags:
        raise CompileError(
            "TORCH_CUDA_ARCH_LIST names no GPU of compute capability 8.0 or later, which the kernels need"
        )
    return flags


def common_flags(torch_dir: Path) -> list[str]:
    """What both compilers get."""
    optimise = ["-O0", "-g"] if flag("DEBUG") else ["-O3", "-DNDEBUG"]
    include = ["-Icsrc", "-isystem", str(torch_dir / "include"), f"-I{sysconfig.get_path('include')}"]
    defines = [f"-DTORCH_TARGET_VERSION={TORCH_TARGET}", *([f"-DPy_LIMITED_API={PY_LIMITED_API}"] if ABI3 else [])]
    return [*optimise, "-std=c++17", *defines, *include]


def cpu_toolchain(torch_dir: Path) -> Toolchain:
    """The C++ compiler, for one flag set: files with vector code choose their instruction set by a pragma."""
    cxx = find_cxx() or ["c++"]
    macos = sys.platform == "darwin"
    shared = ["-dynamiclib", "-undefined", "dynamic_lookup"] if macos else ["-shared", "-Wl,--no-as-needed"]
    return Toolchain(
        [*cxx, *common_flags(torch_dir), "-fPIC", "-fvisibility=hidden", *WARNINGS],
        [*cxx, *shared, f"-L{torch_dir / 'lib'}", "-ltorch_cpu"],
    )


def cuda_toolchain(torch_dir: Path, nvcc: str) -> Toolchain:
    """The CUDA compiler, with the CUDA runtime inside the library: it then serves every minor release of CUDA."""
    host = ["-ccbin", (find_cxx() or ["c++"])[-1]] if os.environ.get("CXX") else []
    # no fusing of products into sums but where the source says so: a formula then has the same bits in every kernel
    nvcc_ = [nvcc, *host, *gencode(), "-fmad=false"]
    # libtorch brings in libtorch_cuda where there is one; no symbol of it is used here, so the linker would drop it
    libraries = ["-Xlinker=--no-as-needed", f"-L{torch_dir / 'lib'}", "-ltorch", "-ltorch_cpu"]
    return Toolchain(
        [*nvcc_, *common_flags(torch_dir), "-DUSE_CUDA", "-Xcompiler=-fPIC,-fvisibility=hidden,-Wall"],
        [*nvcc_, "-shared", "-cudart=static", *libraries],
    )


def ninja_file(toolchain: Toolchain, sources: list[str], output: str) -> str:
    """A build.ninja that compiles `sources` beside `output` and links them; every path relative to ROOT."""
    compile_, link = (shlex.join(command).replace("$", "$$") for command in toolchain)
    objects = [f"{output}.d/{source}.o" for source in sources]
    lines = [
        "ninja_required_version = 1.5",
        f"builddir = {output}.d",
        f"rule compile\n  command = {compile_} -MD -MF $out.d -c $in -o $out\n  depfile = $out.d\n  deps = gcc",
        "  description = compile $in",
        f"rule link\n  command = {link} $in -o $out.tmp && mv $out.tmp $out\n  description = link $out",
        *(f"build {obj}: compile {source}" for obj, source in zip(objects, sources, strict=True)),
        f"build {output}: link {' '.join(objects)}",
    ]
    return "\n".join(lines) + "\n"


def place(built: Path, target: Path) -> None:
    """Copy in one step: a process that has the old library open keeps it, and a killed build leaves no half of one."""
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f"{target.name}.{os.getpid()}.tmp")
    shutil.copy2(built, partial)
    partial.replace(target)


class BuildOp(build_ext):
    """build_ext that leaves compiling to ninja; objects stay in build/op for the next time."""

    extensions: list[Extension]

    def run(self) -> None:
        """Choose the toolchains, drop the CUDA library where it is not wanted, build."""
        torch_dir, _, torch_cuda = torch_facts()
        self.toolchains = {CPU: cpu_toolchain(torch_dir)}
        if flag("SURPRISE_HF_FORCE_CUDA"):
            self.toolchains[CUDA] = cuda_toolchain(torch_dir, find_nvcc(torch_cuda))
        elif torch_cuda and not flag("SURPRISE_HF_SKIP_CUDA"):
            try:
                self.toolchains[CUDA] = cuda_toolchain(torch_dir, find_nvcc(torch_cuda))
            except CompileError as error:
                say(f"{error}. Until then the torch reference answers on the GPU")
        self.extensions = [ext for ext in self.extensions if ext.name in self.toolchains]
        super().run()

    def build_extension(self, ext: Extension) -> None:
        """Compile and link one library (called by setuptools, which turns an error into a warning if ext.optional)."""
        output = f"build/op/{ext.name}.so"
        file = ROOT / f"{output}.ninja"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(ninja_file(self.toolchains[ext.name], ext.sources, output))
        jobs = ["-j", os.environ["MAX_JOBS"]] if os.environ.get("MAX_JOBS") else []
        status = subprocess.run([find_ninja() or "ninja", *jobs, "-f", f"{output}.ninja"], cwd=ROOT, check=False)
        if status.returncode:
            raise CompileError(f"{ext.name} did not compile; the lines above say why")
        place(ROOT / output, Path(self.get_ext_fullpath(ext.name)))

    def copy_extensions_to_source(self) -> None:
        """After an in-place or editable build; setuptools' own copy would keep the half that a killed build left."""
        for ext in self.extensions:
            built = ROOT / f"build/op/{ext.name}.so"
            target = Path(self.get_ext_fullpath(ext.name))
            if (Path(self.build_lib) / self.get_ext_filename(ext.name)).exists():
                place(built, target)
            else:
                target.unlink(missing_ok=True)  # of an older build: its schemas may be others


def missing() -> str | None:
    """What building the op lacks here; None when nothing."""
    if not sys.platform.startswith(("linux", "darwin")):
        return f"support for {sys.platform}"
    try:
        _, version, _ = torch_facts()
    except ModuleNotFoundError:
        return "torch in the build environment: install torch, then add --no-build-isolation"
    if tuple(map(int, version.split(".")[:2])) < (2, 10):
        return f"torch 2.10 or later, and this is {version}"
    if find_ninja() is None:
        return "ninja: pip install ninja"
    if find_cxx() is None:
        return "a C++ compiler: " + (
            f"CXX={os.environ['CXX']} does not exist" if os.environ.get("CXX") else "install g++"
        )
    return None


def libraries() -> list[Extension]:
    """The libraries to build here; none, and a line that says why, where the op can't be built."""
    if flag("SURPRISE_HF_SKIP_EXT"):
        return []
    lacking = missing()
    if lacking:
        if STRICT or flag("SURPRISE_HF_FORCE_CUDA"):
            sys.exit(f"surprise_hf: the compiled op needs {lacking}")
        say(f"installing without the compiled op (same answers, slower). It needs {lacking}")
        return []

    def library(name: str, patterns: list[str], optional: bool) -> Extension:
        sources = sorted(str(path.relative_to(ROOT)) for pattern in patterns for path in ROOT.glob(pattern))
        return Extension(name, sources, py_limited_api=ABI3, optional=optional and not STRICT)

    return [
        library(CPU, ["csrc/*.cpp", "csrc/cpu/*.cpp"], optional=True),
        library(CUDA, ["csrc/cuda/*.cu"], optional=not flag("SURPRISE_HF_FORCE_CUDA")),
    ]


if int(setuptools.__version__.split(".")[0]) < 77:  # without isolation pip takes what is there, and that may be old
    sys.exit(f"surprise_hf: setuptools {setuptools.__version__} is too old: pip install --upgrade setuptools ninja")
EXTENSIONS = libraries()
setup(
    ext_modules=EXTENSIONS,
    cmdclass={"build_ext": BuildOp},
    options={"bdist_wheel": {"py_limited_api": "cp310"}} if EXTENSIONS and ABI3 else {},
)
