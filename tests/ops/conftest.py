"""What is collected here: the CUDA tests only where there is a GPU."""

import importlib.util
import runpy
from pathlib import Path
from types import ModuleType

import pytest
import torch

collect_ignore = [] if torch.cuda.is_available() else ["test_cuda.py"]


@pytest.fixture(scope="session")
def bodies() -> ModuleType:
    """The pybind11 module with the op's inner pieces (csrc/testing), built on first use."""
    path = runpy.run_path(str(Path(__file__).parents[2] / "csrc/testing/build.py"))["build_bodies"]()
    spec = importlib.util.spec_from_file_location("_testing", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
