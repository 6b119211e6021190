"""Uniform couplings: what remains of a network when its couplings carry nothing.

Source: arXiv:1908.04626, the uniform baseline.
Cost: one mean for each coupling.
"""

from contextlib import AbstractContextManager

import torch
from torch import Tensor, nn

from mereo.core import Coupling, intervene, mechanism


def _example() -> tuple[nn.Module, tuple[Tensor, ...]]:
    from mereo.mechanisms.attention import MultiHeadAttention

    return nn.Sequential(MultiHeadAttention(6, 2), nn.Linear(6, 3)), (torch.randn(2, 5, 6),)


@mechanism(
    "uniform_couplings",
    family="intervention",
    source="arXiv:1908.04626",
    records="nothing",
    example=_example,
)
def uniform_couplings(model: nn.Module) -> AbstractContextManager[None]:
    """Replace every coupling of a model by its mean over the senders.

    c_rs <- mean_s c_rs

    Args:
        model: any network with couplings.

    Shapes: as for `model`.
    """

    def mean(couplings: Tensor) -> Tensor:
        return couplings.mean(-1, keepdim=True).expand_as(couplings)

    names = [name for name, module in model.named_modules() if isinstance(module, Coupling)]
    return intervene(model, dict.fromkeys(names, mean))
