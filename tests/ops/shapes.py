"""The devices, shapes and dtypes that every implementation of the op is tested on, CPU and CUDA alike."""

import pytest
import torch

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]

# (n, m, d): no row, no query, one of each, widths around every vector length, rows of whole pages, panels with and
# without a tail, several blocks of rows, more than one chunk of columns, more queries than a sweep takes at once
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
    (101, 1, 1024),
    (35, 3, 1024),
    (200, 16, 384),
    (193, 31, 100),
    (99, 29, 104),
    (300, 33, 193),
    (130, 48, 768),
    (111, 77, 385),
    (260, 150, 64),
    (64, 1000, 48),
    (5, 2055, 9),
]
# every tile width of the CUDA product with and without tails, several row tiles, long rows, moment sums over several
LARGE = [(5_000, 10, 384), (3_001, 300, 386), (1_030, 96, 1024), (700, 129, 4100), (270_000, 3, 16), (20_000, 1_100, 8)]
DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.float64]


def rows(n: int, d: int, dtype: torch.dtype, seed: int, device: str = "cpu") -> torch.Tensor:
    """Vectors with a common part, as crowded encoders give them (cosines near 0.8), of very different lengths."""
    generator = torch.Generator().manual_seed(seed)
    common = torch.randn(d, generator=torch.Generator().manual_seed(d))
    x = common * 2 + torch.randn(n, d, generator=generator)
    lengths = torch.exp(torch.randn(n, 1, generator=generator))
    return (x * lengths).to(device=device, dtype=dtype)


def everywhere(shapes: list[tuple[int, ...]], cuda: list[tuple[int, ...]] = ()) -> pytest.MarkDecorator:
    """The same test for these shapes on every device there is, and for more of them on a GPU."""
    cases = [(device, shape) for device in DEVICES for shape in [*shapes, *(cuda if device == "cuda" else ())]]
    return pytest.mark.parametrize(("device", "shape"), cases, ids=str)


devices = pytest.mark.parametrize("device", DEVICES)


def tolerance(device: str, dtype: torch.dtype, d: int) -> float:
    """Of a cosine of rows of width d.

    A tensor core has one sum for the 16-bit types, which every 16 columns cut by up to 18 units of 2^-24.
    """
    if dtype == torch.float64:
        return 1e-14
    if device == "cpu":
        return 3e-7
    return 5e-7 + (0 if dtype == torch.float32 else 18 * 2**-24 * d / 16)


def rms(x: torch.Tensor, exact: torch.Tensor) -> float:
    """Root mean square difference; exact is float64."""
    return (x.to(torch.float64) - exact).square().mean().sqrt().item() if x.numel() else 0.0
