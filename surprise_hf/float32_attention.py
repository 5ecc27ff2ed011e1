"""Attention in float32 inside a training step whose other products are in bfloat16."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from torch.overrides import TorchFunctionMode

__all__ = ["Float32Attention"]


class Float32Attention(TorchFunctionMode):
    """While it is entered, attention is computed in float32, whatever autocast says.

    On a CPU the fused attention of bfloat16 takes two to four times that of float32, forward and backward.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Every function of torch comes through here."""
        del types
        kwargs = kwargs or {}
        if func is not scaled_dot_product_attention:
            return func(*args, **kwargs)
        query = args[0] if args else kwargs["query"]
        if query.dtype != torch.bfloat16:
            return func(*args, **kwargs)
        with torch.autocast(query.device.type, enabled=False):
            wide = {name: _in_float32(x) for name, x in kwargs.items()}
            return func(*map(_in_float32, args), **wide).to(query.dtype)


def _in_float32(x: Any) -> Any:
    """A tensor of numbers in float32; a mask of bools, and what is no tensor, as it is."""
    return x.float() if isinstance(x, Tensor) and x.is_floating_point() else x
