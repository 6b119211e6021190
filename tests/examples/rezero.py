"""ReZero: a residual branch starts at nothing and learns how much of it to add.

Source: arXiv:2003.04887, eq. 2.
Cost: one parameter and one multiplication an entry.
"""

import torch
from torch import Tensor, nn

from mereo.core import mechanism


def _example() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 6)), (torch.randn(2, 5, 6),)


class Residual(nn.Module):
    """The input and a learned multiple of a branch: y = x + a f(x)."""

    def __init__(self, branch: nn.Module) -> None:
        super().__init__()
        self.branch, self.weight = branch, nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.weight * self.branch(x)


@mechanism(
    "rezero",
    family="technique",
    source="arXiv:2003.04887",
    records="nothing",
    promises=("any receiver order",),
    receiver_axes={"0": 1, "output": 1},
    example=_example,
)
def rezero(model: nn.Module) -> nn.Module:
    """Add a model to its input with a learned weight that starts at zero.

    y = x + a f(x),   a = 0 at the start

    Args:
        model: the branch f; its output has the shape of its input.

    Shapes: as for `model`.
    """
    return Residual(model)
