"""Every kernel and every tile width once, on small ragged inputs: what gpu_check.sh runs under compute-sanitizer."""

import torch

from surprise_hf import ops

for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.float64):
    for n, m, d in ((150, 5, 40), (150, 12, 37), (150, 30, 72), (150, 60, 40), (290, 90, 40), (150, 130, 72)):
        keys, queries = torch.randn(n, d, device="cuda").to(dtype), torch.randn(m, d, device="cuda").to(dtype)
        scores, mean, std = ops.cosine_surprise(keys, queries)
        ops.surprise_from_moments(keys, queries, mean, std)
        ops.surprise_topk(keys, queries, mean, std, 2)
        state = [torch.zeros(s, dtype=torch.float64, device="cuda") for s in ((), (d,), (d, d))]
        ops.ensemble_update(*state, keys)
        assert not scores.isnan().any()
        assert state[0].item() == n
print("every op ran")
