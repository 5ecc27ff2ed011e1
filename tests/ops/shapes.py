"""The shapes and dtypes every implementation of the op is tested on, CPU and CUDA alike."""

import torch

# (n, m, d): no row, no query, one of each, widths around every vector length, panels with and without a tail, several
# blocks of rows, more than one chunk of columns
SHAPES = [
    (0, 3, 8),
    (5, 0, 8),
    (1, 1, 1),
    (1, 5, 16),
    (2, 2, 3),
    (7, 4, 33),
    (95, 5, 15),
    (96, 10, 16),
    (97, 14, 17),
    (200, 16, 384),
    (193, 31, 100),
    (300, 33, 193),
    (130, 48, 768),
    (111, 77, 385),
    (260, 150, 64),
    (64, 1000, 48),
]
DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.float64]


def rows(n: int, d: int, dtype: torch.dtype, seed: int, device: str = "cpu") -> torch.Tensor:
    """Vectors with a common part, as crowded encoders give them (cosines near 0.8), of very different lengths."""
    generator = torch.Generator().manual_seed(seed)
    common = torch.randn(d, generator=torch.Generator().manual_seed(d))
    x = common * 2 + torch.randn(n, d, generator=generator)
    lengths = torch.exp(torch.randn(n, 1, generator=generator))
    return (x * lengths).to(device=device, dtype=dtype)


def rms(x: torch.Tensor, exact: torch.Tensor) -> float:
    """Root mean square difference; exact is float64."""
    return (x.to(torch.float64) - exact).square().mean().sqrt().item() if x.numel() else 0.0
