"""How the linear layers of transformers start."""

from typing import TypeVar

from torch import nn

M = TypeVar("M", bound=nn.Module)


def start_linears(module: M) -> M:
    """Every linear layer of a module, or the layer itself, from a truncated normal of deviation 0.02, biases zero."""
    for linear in module.modules():
        if isinstance(linear, nn.Linear):
            nn.init.trunc_normal_(linear.weight, std=0.02)
            if linear.bias is not None:
                nn.init.zeros_(linear.bias)
    return module
