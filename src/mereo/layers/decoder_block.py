"""The block of a decoder: a token mixer and a channel mixer, each behind a norm and added to what it reads."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn

from mereo.layers.feed_forward import FeedForward
from mereo.layers.gated_linear_unit import SimpleGLU
from mereo.layers.norms import SimpleRMSNorm
from mereo.mechanisms.slots import Place, fill_slot


class DecoderBlock(nn.Module):
    """y = x + drop(mixer(norm1(x))),   out = y + channels(norm2(y)).

    Args:
        dim: of the tokens.
        mixer: a module tokens -> tokens, or the name of a mechanism that promises causality. It is called with the
            tokens, and with the mask if it takes one; padding at the end changes no token before it.
        hidden_dim: of the channel mixer.
        dropout: of the branches, of hidden layers and of the couplings of a mechanism given by name, in training.
        activation: of the channel mixer, a `FeedForward`; None for `SimpleGLU`, with `SimpleRMSNorm` as the norms.
        num_heads: of a mechanism given by name.
        layer, num_layers: number of the block, and how many the network has.
        mechanism_args: arguments of the mechanism's constructor that the block does not fill in.

    Shapes: (batch, tokens, dim), mask bool (batch, tokens) or None -> (batch, tokens, dim).
    """

    def __init__(
        self,
        dim: int,
        mixer: nn.Module | str,
        hidden_dim: int,
        dropout: float = 0.0,
        activation: Callable[[], nn.Module] | None = nn.GELU,
        *,
        num_heads: int | None = None,
        layer: int = 0,
        num_layers: int = 1,
        mechanism_args: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        if isinstance(mixer, str):
            place = Place(dim, num_heads, causal=True, layer=layer, num_layers=num_layers, dropout=dropout)
            mixer = fill_slot(mixer, "tokens", place, mechanism_args)
        self.masked = "mask" in inspect.signature(mixer.forward).parameters
        gated = activation is None
        self.norm1, self.mixer = SimpleRMSNorm() if gated else nn.LayerNorm(dim), mixer
        self.norm2 = SimpleRMSNorm() if gated else nn.LayerNorm(dim)
        self.channels = (
            SimpleGLU(dim, hidden_dim) if activation is None else FeedForward(dim, hidden_dim, dropout, activation)
        )
        self.drop = nn.Dropout(dropout)

    @property
    def streams(self) -> bool:
        """Whether the mixer can go on from a state."""
        return hasattr(self.mixer, "extend")

    def add(self, x: Tensor, mixed: Tensor) -> Tensor:
        """The block after its token mixer: the block's input and the mixer's output -> the block's output."""
        x = x + self.drop(mixed)
        return x + self.channels(self.norm2(x))

    def extend(self, x: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        """The next tokens after `state`, and the state after them."""
        mixed, state = self.mixer.extend(self.norm1(x), state)  # type: ignore[operator]
        return self.add(x, mixed), state

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        normed = self.norm1(x)
        return self.add(x, self.mixer(normed, mask) if self.masked else self.mixer(normed))
