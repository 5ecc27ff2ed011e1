"""What only a GPU can show; its values are tested beside the CPU's. Collected only where there is one (conftest.py)."""

import pytest
import torch

from surprise_hf import ops
from surprise_hf.ops import _loader

from .shapes import DTYPES, rows


def pair(shape, dtype):
    n, m, d = shape
    return rows(n, d, dtype, 1, "cuda"), rows(m, d, dtype, 2, "cuda")


def test_the_kernels_answer():
    assert ops.build_info()["cuda_library"] is not None
    for name in (schema.split("(")[0] for schema in _loader.SCHEMAS):
        if name in ("ensemble_moments", "search_topk", "gathered_products"):  # the reference answers
            continue
        assert torch._C._dispatch_has_kernel_for_dispatch_key(f"surprise_hf::{name}", "CUDA")


def test_the_current_stream_is_used():
    keys, queries = pair((60_000, 20, 512), torch.float32)
    want = ops.cosine_surprise(keys, queries)[0]
    late = torch.zeros_like(keys)
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        torch.cuda._sleep(20_000_000)
        late.copy_(keys)
        got = ops.cosine_surprise(late, queries)[0]
    torch.cuda.synchronize()
    assert torch.equal(got, want)


def test_memory_beyond_inputs_and_outputs_is_bounded():
    keys, queries = pair((300_000, 200, 64), torch.bfloat16)
    scores, mean, std = ops.cosine_surprise(keys, queries)
    output = scores.numel() * 4
    for call, kept in (
        (lambda: ops.cosine_surprise(keys, queries), output),
        (lambda: ops.cosine_moments(keys, queries), 0),
        (lambda: ops.surprise_topk(keys, queries, mean, std, 1), len(keys) * 12),
    ):
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        call()
        assert torch.cuda.max_memory_allocated() - before <= kept + (32 << 20)


# --- the focal loss -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(64, 150, 768), (5, 3, 7), (300, 14, 385)], ids=str)
def test_focal_loss(shape, dtype):
    n, m, _ = shape
    keys, queries = (x.requires_grad_() for x in pair(shape, dtype))
    positive = torch.rand(n, m, generator=torch.Generator().manual_seed(3)) < 0.2
    wide = [x.detach().cpu().double().requires_grad_() for x in (keys, queries)]
    want = ops.weighted_focal_loss(*wide, positive, impl="reference")
    got = ops.weighted_focal_loss(keys, queries, positive.cuda())
    eps = {torch.float64: 1e-12, torch.float32: 5e-6}.get(dtype, 5e-5)
    for x, y in zip(got, want, strict=True):
        assert x.item() == pytest.approx(y.item(), rel=eps)
    grads, exact_grads = torch.autograd.grad(got[0], (keys, queries)), torch.autograd.grad(want[0], wide)
    for found, wanted, source in zip(grads, exact_grads, wide, strict=True):
        x, y = (g.cpu().double() * source.detach().norm(dim=1, keepdim=True) for g in (found, wanted))
        noise = 20 * eps + (0 if dtype == torch.float64 else torch.finfo(dtype).eps)
        assert (x - y).abs().max() <= noise * y.abs().max() + (1e-6 if dtype == torch.float16 else 0)


def test_focal_loss_conforms():
    keys, queries = (x.requires_grad_() for x in pair((13, 5, 12), torch.float64))
    positive = torch.eye(13, 5, dtype=torch.bool, device="cuda")
    torch.library.opcheck(torch.ops.surprise_hf.weighted_focal_loss.default, (keys, queries, positive))
    assert torch.autograd.gradcheck(lambda k, q: ops.weighted_focal_loss(k, q, positive)[0], (keys, queries))
