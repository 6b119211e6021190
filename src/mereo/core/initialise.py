"""Initial weights of the linear layers of transformers and of the layers of CapsNet."""

from typing import TypeVar

from torch import nn

M = TypeVar("M", bound=nn.Module)


def start_linears(module: M) -> M:
    """Fill the linear layers of a module, or the layer itself, from a truncated normal (std 0.02), biases with 0."""
    for linear in module.modules():
        if isinstance(linear, nn.Linear):
            nn.init.trunc_normal_(linear.weight, std=0.02)
            if linear.bias is not None:
                nn.init.zeros_(linear.bias)
    return module


def xavier_linears(module: M) -> M:
    """Fill the linear layers of a module, or the layer itself, from Xavier's uniform distribution, biases with 0."""
    for linear in module.modules():
        if isinstance(linear, nn.Linear):
            nn.init.xavier_uniform_(linear.weight)
            if linear.bias is not None:
                nn.init.zeros_(linear.bias)
    return module


def start_off_zero(module: nn.Module) -> None:
    """Fill biases of feed-forward networks from a normal distribution (std 1e-6), as timm does in vision transformers.

    Where all biases are zero, a blank image is zero at every depth, and the derivative of each layer norm is eps^-1/2:
    the product of all layers of a deep network overflows float32.
    """
    for name, parameter in module.named_parameters():
        if (".feed_forward." in name or ".glu." in name) and name.endswith("bias"):
            nn.init.normal_(parameter, std=1e-6)


def start_as_capsnet(*modules: nn.Module | None, std: float = 0.1) -> None:
    """Fill parameters from a truncated normal, biases with 0.1, routing priors with 0, as the authors' code of CapsNet.

    Source: arXiv:1710.09829.
    """
    for name, parameter in (pair for m in modules if m is not None for pair in m.named_parameters()):
        if name.endswith("prior"):
            nn.init.zeros_(parameter)
        elif name.endswith("bias"):
            nn.init.constant_(parameter, 0.1)
        else:
            nn.init.trunc_normal_(parameter, std=std, a=-2 * std, b=2 * std)
