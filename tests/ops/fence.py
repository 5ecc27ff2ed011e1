"""Tensors beside memory that may not be touched: one element too far ends the process, with the test's name."""

import ctypes
import mmap

import torch

_maps: list[mmap.mmap] = []  # a tensor over one doesn't keep it


def fenced(x: torch.Tensor, *, end: bool) -> torch.Tensor:
    """A contiguous copy that ends where a forbidden page begins; with end=False it begins where one ends."""
    size, page = x.numel() * x.element_size(), mmap.PAGESIZE
    pages = -(-size // page)
    memory = mmap.mmap(-1, (pages + 1) * page)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    wall = address + pages * page if end else address
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mprotect(ctypes.c_void_p(wall), ctypes.c_size_t(page), 0) != 0:
        raise OSError(ctypes.get_errno(), "mprotect")
    _maps.append(memory)
    if x.numel() == 0:
        return x.clone()
    offset = pages * page - size if end else page
    flat = torch.frombuffer(memory, dtype=x.dtype, count=x.numel(), offset=offset)
    return flat.view(x.shape).copy_(x)
