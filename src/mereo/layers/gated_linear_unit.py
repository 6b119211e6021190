"""The channel mixer of decoders with gated linear units."""

from torch import Tensor, nn

from mereo.errors import check_positive


class SimpleGLU(nn.Module):
    """Multiply two projections of each token, and project the product back; no activation and no bias.

    out = W_o (W_a x * W_b x)

    Args:
        dim: of the tokens.
        hidden_dim: of the product.

    Shapes: (..., dim) -> (..., dim).

    Reference: arXiv:2307.14995, section 3.3.2. Weights normal of 0.02.
    """

    def __init__(self, dim: int, hidden_dim: int) -> None:
        super().__init__()
        check_positive(dim=dim, hidden_dim=hidden_dim)
        self.first = nn.Linear(dim, hidden_dim, bias=False)
        self.gate = nn.Linear(dim, hidden_dim, bias=False)
        self.second = nn.Linear(hidden_dim, dim, bias=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise: normal weights of 0.02."""
        for linear in (self.first, self.gate, self.second):
            nn.init.normal_(linear.weight, std=0.02)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x) * self.gate(x))
