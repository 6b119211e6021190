"""Attention of a network, of mereo or another library, whose couplings are made where `mereo.record` shows them."""

from collections.abc import Sequence

from torch import nn

from mereo.core.surgery import surgery
from mereo.mechanisms.attention.hosted import DenseHosted, replace_attention


@surgery
def watchable(model: nn.Module, layers: Sequence[int] | None = None) -> nn.Module:
    """A copy of a model whose self-attention makes its couplings where `mereo.record` shows them.

    The copy computes the same. A teacher from timm needs it for matching couplings: each layer gets a `coupling`.
    """
    return replace_attention(model, DenseHosted, layers)
