"""PyTorch's FlexAttention: a program compiled for a mask, which leaves out blocks that have no allowed pair."""

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from mereo.core.kernels.transforms import fallback_reason


@lru_cache(maxsize=1)
def _program() -> Any:
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention, dynamic=False)


def flex(q: Tensor, k: Tensor, v: Tensor, mask: Any, scale: float) -> Tensor:
    """Attention with a block mask, as `create_block_mask` makes it.

    Shapes: q (batch, heads, receivers, dim), k (batch, heads, senders, dim), v (batch, heads, senders, pose)
        -> (batch, heads, receivers, pose).
    """
    out: Tensor = _program()(q.contiguous(), k.contiguous(), v.contiguous(), block_mask=mask, scale=scale)
    return out


def flex_cannot(*tensors: Tensor) -> str | None:
    """Why FlexAttention cannot run on these tensors; None if it can."""
    if tensors[0].device.type == "cpu" and torch.is_grad_enabled() and any(x.requires_grad for x in tensors):
        return "FlexAttention has no gradients on a CPU"
    if torch.compiler.is_compiling():
        return "the model is being compiled"
    return fallback_reason() if tensors[0].numel() else "the batch is empty"
