"""Every op that has a CUDA kernel and every tile width once, on small ragged inputs.

gpu_check.sh runs it under compute-sanitizer.
"""

import argparse

import torch

from surprise_hf import ops

# each width of `product_cols` (csrc/cuda), the widest with and without whole 16 bytes in a row, two blocks of columns
SHAPES = [(150, 5, 40), (150, 12, 37), (150, 30, 72), (150, 60, 40), (290, 90, 40)]
SHAPES += [(150, 120, 72), (150, 120, 37), (150, 130, 72)]
MANY_ROWS = (270_000, 3, 16)  # more tiles than blocks, whose shared memory is used again


def every_op(n: int, m: int, d: int, dtype: torch.dtype) -> None:
    """Forward and backward of all of them."""
    keys, queries = torch.randn(n, d, device="cuda").to(dtype), torch.randn(m, d, device="cuda").to(dtype)
    keys[3], queries[1] = 0, 0  # the zero rows' own ways
    keys[5] *= 1e-20 if dtype in (torch.float32, torch.bfloat16) else 1
    scores, mean, std = ops.cosine_surprise(keys, queries)
    assert not scores.isnan().any()
    ops.cosine_moments(keys, queries)
    ops.surprise_from_moments(keys, queries, mean, std, output="log_tail")
    ops.surprise_topk(keys, queries, mean, std, 2)
    for exact in (False, True):
        state = [torch.zeros(s, dtype=torch.float64, device="cuda") for s in ((), (d,), (d, d))]
        ops.ensemble_update(*state, keys, exact=exact)
        assert state[0].item() == n
    positive = torch.rand(n, m, device="cuda") < 0.2
    keys, queries = keys.requires_grad_(), queries.requires_grad_()
    ops.weighted_focal_loss(keys, queries, positive)[0].backward()
    assert keys.grad is not None
    assert keys.grad.isfinite().all()


def main() -> None:
    """All shapes in every dtype."""
    for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.float64):
        for shape in SHAPES:
            every_op(*shape, dtype)
    n, m, d = MANY_ROWS
    ops.cosine_moments(torch.randn(n, d, device="cuda"), torch.randn(m, d, device="cuda"))
    torch.cuda.synchronize()
    print("every op ran")


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    main()
