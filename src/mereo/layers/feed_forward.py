"""The two-layer network that follows attention in a transformer block."""

from collections.abc import Callable

from torch import Tensor, nn

from mereo.core.kernels.affine import Linear, activated


class FeedForward(nn.Module):
    """second(dropout(activation(first(x)))), on every token by itself.

    Args:
        dim: of the tokens.
        hidden_dim: size between the two layers.
        dropout: after the activation and after the second layer.
        activation: makes the activation; the exact GELU by default.

    Shapes: (..., dim) -> (..., dim).
    """

    def __init__(
        self, dim: int, hidden_dim: int, dropout: float = 0.0, activation: Callable[[], nn.Module] = nn.GELU
    ) -> None:
        super().__init__()
        self.first = Linear(dim, hidden_dim)
        self.activation = activation()
        self.second = Linear(hidden_dim, dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.dropout(self.second(self.dropout(activated(self.first, tokens, self.activation))))
