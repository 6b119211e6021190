"""The block of a decoder: a token mixer and a channel mixer, each behind a norm and added to what it reads."""

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn

from mereo.layers.feed_forward import FeedForward
from mereo.mechanisms.slots import Place, fill_slot


class DecoderBlock(nn.Module):
    """y = x + drop(mixer(norm1(x))),   out = y + channels(norm2(y)).

    Args:
        dim: of the tokens.
        mixer: a module tokens -> tokens, called with the tokens only, or the name of a mechanism.
        hidden_dim: of the channel mixer, a `FeedForward`.
        dropout: of what is added, in training.
        activation: of the channel mixer.
        num_heads: of a mechanism given by name.
        mechanism_args: arguments of its constructor, beside those that the block fills in.

    Shapes: (batch, tokens, dim), mask bool (batch, tokens) or None -> (batch, tokens, dim).
    """

    def __init__(
        self,
        dim: int,
        mixer: nn.Module | str,
        hidden_dim: int,
        dropout: float = 0.0,
        activation: Callable[[], nn.Module] = nn.GELU,
        *,
        num_heads: int | None = None,
        mechanism_args: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        if isinstance(mixer, str):
            mixer = fill_slot(mixer, "tokens", Place(dim, num_heads), mechanism_args)
        self.norm1, self.mixer = nn.LayerNorm(dim), mixer
        self.norm2, self.channels = nn.LayerNorm(dim), FeedForward(dim, hidden_dim, dropout, activation)
        self.drop = nn.Dropout(dropout)

    def add(self, x: Tensor, mixed: Tensor) -> Tensor:
        """The block behind its token mixer: what it read and what the mixer made of it -> what it returns."""
        x = x + self.drop(mixed)
        out: Tensor = x + self.channels(self.norm2(x))
        return out

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return self.add(x, self.mixer(self.norm1(x)))
