"""SEA in place of the attention of a trained transformer, and what it learns from the dense one."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from mereo.core import Causal
from mereo.core.surgery import restate_surgery, surgery
from mereo.mechanisms.attention.dense import MultiHeadAttention
from mereo.mechanisms.attention.hosted import HostedAttention, replace_attention
from mereo.mechanisms.attention.sparse.sea import SeaAttention


class SeaHosted(HostedAttention):
    """SEA between the projections of another layer.

    Args:
        host: see `HostedAttention`; SEA is causal if the host is.
        arguments: of `SeaAttention`.

    Shapes: (batch, tokens, dim) -> (batch, tokens, dim).
    """

    def __init__(self, host: nn.Module, **arguments: Any) -> None:
        super().__init__(host)
        causal = isinstance(host, MultiHeadAttention) and host.coupling.topology == Causal()
        like = next(host.parameters())
        self.sea = SeaAttention(self.num_heads, self.head_dim, causal=causal, **arguments).to(like.device, like.dtype)
        self.train(host.training)

    def exchange(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return self.sea(q, k, v)


@surgery
def sea(
    model: nn.Module, *, columns: int = 128, top_k: float = 64, layers: Sequence[int] | None = None, seed: int = 0,
    **arguments: Any,
) -> nn.Module:  # fmt: skip
    """A copy of a trained transformer, or of one attention layer, with SEA in place of its attention.

    Queries, keys, values and output keep their weights, and dropout of the couplings is left out; the estimator is new,
    and learns from the dense model:

    student = mereo.sea(teacher, columns=32, top_k=8)
    mereo.distil(teacher, student, data, mereo.sea_matches(teacher, student), epochs=20)

    Args:
        model: of mereo, timm, torchvision or transformers; it is not changed. Attention that is causal stays so.
        columns, top_k: see `SeaAttention`; so are further arguments, such as `group`, `features` or `max_len`.
        layers: numbers of the replaced layers; all by default.
        seed: of the new weights.

    Shapes: as for `model`.

    Raises:
        UsageError: for a model without attention that can be replaced.

    Reference: arXiv:2310.01777.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return replace_attention(model, lambda host: SeaHosted(host, columns=columns, top_k=top_k, **arguments), layers)


def set_top_k(model: nn.Module, top_k: float) -> None:
    """Let all SEA of a model keep another number of keys; nothing needs to be trained again."""
    for module in model.modules():
        if isinstance(module, SeaAttention):
            module.top_k = top_k
    restate_surgery(model, "sea", top_k=top_k)
