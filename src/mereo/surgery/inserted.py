"""Modules that hold a mechanism inside another network: added to what a part returns, or in the place of a part."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from mereo.errors import UsageError
from mereo.mechanisms.attention.called import stand_in


def _by(mechanism: Callable[[Tensor], Tensor], layout: str, x: Tensor) -> Tensor:
    """What a mechanism makes of an output in one of `LAYOUTS`, in that layout."""
    there, back = LAYOUTS[layout]
    return mechanism(x.permute(there)).permute(back)


LAYOUTS = {
    "tokens": ((0, 1, 2), (0, 1, 2)),
    "tokens first": ((1, 0, 2), (1, 0, 2)),
    "maps": ((0, 1, 2, 3), (0, 1, 2, 3)),
    "channels last": ((0, 3, 1, 2), (0, 2, 3, 1)),
}
"""Orders of axes of an output: to (batch, tokens, dim) or (batch, dim, height, width), and back."""


class Inserted(nn.Module):
    """A mechanism added to what a module of a network returns.

    out = x + gain * mechanism(x);   for a gate, which multiplies x:   out = x + gain * (gate(x) - x)

    Args:
        mechanism: see `mereo.create_mechanism`.
        dim: channels.
        layout: "tokens", "tokens first", with the batch behind them, "maps" or "channels last".
        is_gate: which of the two equations.
        start: of the gain of every channel.

    Shapes: (batch, tokens, dim), (tokens, batch, dim), (batch, dim, height, width) or (batch, height, width, dim) ->
        the same.
    """

    def __init__(self, mechanism: nn.Module, dim: int, layout: str, is_gate: bool, start: float) -> None:
        super().__init__()
        self.mechanism, self.layout, self.is_gate = mechanism, layout, is_gate
        self.gain = nn.Parameter(torch.full((dim, 1, 1) if layout == "maps" else (dim,), float(start)))

    def forward(self, x: Tensor) -> Tensor:
        added = _by(self.mechanism, self.layout, x)
        return x + self.gain * (added - x if self.is_gate else added)


class Replaced(nn.Module):
    """A mechanism in the place of a layer of self-attention, which takes what the layer was given.

    Args:
        mechanism: see `mereo.create_mechanism`.
        layer: whose place it takes; it is called as that one, see `stand_in`.
        layout: see `Inserted`; that of attention of PyTorch is always "tokens", because `stand_in` knows its own.

    Shapes: as for `Inserted`.
    """

    def __init__(self, mechanism: nn.Module, layer: nn.Module, layout: str = "tokens") -> None:
        super().__init__()
        self.mechanism, self.layout = mechanism, layout
        stand_in(self, layer)

    def forward(self, x: Tensor, *others: Any, **switches: Any) -> Any:
        # Masks and the like must be off.
        if given := [each for each in others if each is not None and each is not False]:
            raise UsageError(f"the layer was replaced and is given {type(given[0]).__name__} besides its tokens.")
        if names := [name for name, value in switches.items() if value is not None and value is not False]:
            raise UsageError(f"{names[0]} is given to a layer that was replaced, which takes its tokens only.")
        return _by(self.mechanism, self.layout, x)
