"""When the CUDA kernels are loaded, and what answers where the GPU is too old for them."""

from types import SimpleNamespace

import pytest
import torch

from surprise_hf import ops
from surprise_hf.ops import _loader

CUDA = SimpleNamespace(is_cuda=True)  # all that is asked of an argument
CPU = SimpleNamespace(is_cuda=False)


@pytest.fixture
def machine(monkeypatch):
    """A process that has not met a CUDA tensor yet; `gpus` are the capabilities, `loaded` what it then loads."""
    state = SimpleNamespace(gpus=[(9, 0)], loaded=[], calls=[])

    def load(name):
        state.loaded.append(name)
        return f"{name}.so", None

    monkeypatch.setattr(_loader, "_cuda_pending", True)
    monkeypatch.setattr(_loader, "_info", {**_loader._info, "cuda_library": None, "cuda_reason": "?"})
    monkeypatch.setattr(_loader, "_load", load)
    monkeypatch.setattr(_loader, "OPS", SimpleNamespace(cosine_moments=lambda *x, **_: ("kernel", *x)))
    monkeypatch.setattr(_loader.ref, "cosine_moments", lambda *x, **_: ("reference", *x))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: bool(state.gpus))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(state.gpus))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: state.gpus[device])
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"GPU {device}")
    state.op = _loader._answer("cosine_moments")
    return state


@pytest.mark.parametrize("gpus", [[(8, 0)], [(8, 6)], [(9, 0)], [(12, 0)], [(8, 0), (9, 0)]], ids=str)
def test_the_first_cuda_tensor_loads_the_kernels(machine, gpus):
    machine.gpus = gpus
    assert machine.op(CPU) == ("reference", CPU)
    assert machine.loaded == []
    assert machine.op(CUDA, 1) == ("kernel", CUDA, 1)
    assert machine.op(CUDA) == ("reference", CUDA)  # asked again only where there is no kernel
    assert machine.loaded == ["_C_cuda"]
    assert (_loader._info["cuda_library"], _loader._info["cuda_reason"]) == ("_C_cuda.so", None)


@pytest.mark.parametrize("gpus", [[(7, 5)], [(7, 0)], [(9, 0), (7, 5)]], ids=str)
def test_the_reference_answers_where_a_gpu_is_too_old(machine, gpus):
    machine.gpus = gpus
    assert machine.op(CUDA) == ("reference", CUDA)
    assert machine.loaded == []
    have = ".".join(map(str, gpus[-1]))
    want = f"GPU {len(gpus) - 1} has compute capability {have} and the kernels need 8.0"
    assert _loader._info["cuda_reason"] == want


def test_a_library_that_does_not_load_leaves_the_reference(machine, monkeypatch):
    monkeypatch.setattr(_loader, "_load", lambda name: (None, f"{name} was not built"))
    assert machine.op(CUDA) == ("reference", CUDA)
    assert _loader._info["cuda_reason"] == "_C_cuda was not built"


def test_build_info_asks_too(machine, monkeypatch):
    monkeypatch.setattr(_loader.OPS, "cpu_features", lambda: "avx2", raising=False)
    machine.gpus = []
    assert ops.build_info()["cuda_reason"] == "torch sees no GPU"
    assert machine.op(CUDA) == ("reference", CUDA)


MEAN = torch.zeros(3, dtype=torch.float64)
OTHER = torch.empty(3, device="meta", dtype=torch.float64)


@pytest.mark.parametrize(
    "call",
    [
        lambda x: ops.surprise_from_moments(x, x, MEAN, OTHER),
        lambda x: ops.surprise_from_moments(x, x, OTHER, MEAN),
        lambda x: ops.surprise_topk(x, x, OTHER, MEAN, 1),
        lambda x: ops.search_topk(x, x, OTHER, None, 1),
        lambda x: ops.search_topk(x, x, MEAN, OTHER, 1),
        lambda x: ops.gathered_products(*ops.split_halves(x), torch.zeros(3, 1, dtype=torch.int64), OTHER.expand(3, 3)),
        lambda x: ops.ensemble_update(MEAN.new_zeros(()), OTHER, MEAN.new_zeros(3, 3), x),
        lambda x: ops.ensemble_update(MEAN.new_zeros((), device="meta"), MEAN, MEAN.new_zeros(3, 3), x),
        lambda x: ops.ensemble_moments(OTHER, MEAN.new_zeros(3, 3), x),
        lambda x: ops.cosine_surprise(x, OTHER.expand(3, 3)),
        lambda x: ops.weighted_focal_loss(x, x, torch.ones(3, 3, dtype=torch.bool, device="meta")),
        lambda x: ops.weighted_focal_loss(x, x, torch.ones(3, 3, dtype=torch.bool), weight=OTHER),
    ],
)
def test_operands_on_several_devices_are_refused(call):
    """A kernel would read the other device's address as its own."""
    with pytest.raises(ValueError, match=r"is on|are on"):
        call(torch.randn(3, 3))
