"""The two-layer network that follows attention in a transformer block."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from mereo.core.kernels.transforms import fallback_reason

_WHOLE, _PART = 2**22, 2**20
"""Most hidden numbers for which tokens are processed together, and numbers of a part otherwise (4 MiB in float32)."""
NARROW = 256
"""Hidden size up to which parts are an eighth of that, as most of the time of narrow layers goes into memory."""


class FeedForward(nn.Module):
    """second(dropout(activation(first(x)))), on every token by itself.

    Without gradients, many tokens are processed in parts whose hidden layer stays in the processor's cache.

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
        self.first = nn.Linear(dim, hidden_dim)
        self.activation = activation()
        self.second = nn.Linear(hidden_dim, dim)
        self.dropout = nn.Dropout(dropout)

    def _together(self, tokens: Tensor) -> Tensor:
        return self.dropout(self.second(self.dropout(self.activation(self.first(tokens)))))

    def _in_parts(self, tokens: Tensor) -> Tensor:
        rows = tokens.reshape(-1, tokens.shape[-1])
        out = torch.empty_like(rows)
        hidden = self.first.out_features
        size = max(1, (_PART // 8 if hidden <= NARROW else _PART) // hidden)
        for start in range(0, len(rows), size):
            out[start : start + size] = self._together(rows[start : start + size])
        return out.view(tokens.shape)

    def forward(self, tokens: Tensor) -> Tensor:
        # The order of these conditions keeps the number of tokens free where a program is compiled or exported.
        if torch.is_grad_enabled() or torch.compiler.is_compiling() or fallback_reason() is not None or self.training:
            return self._together(tokens)
        hidden = tokens.numel() // max(tokens.shape[-1], 1) * self.first.out_features
        whole = _WHOLE // 4 if self.first.out_features <= NARROW else _WHOLE
        large = tokens.device.type == "cpu" and hidden > whole
        return self._in_parts(tokens) if large and tokens.dtype == self.first.weight.dtype else self._together(tokens)
