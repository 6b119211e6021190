"""Multi-head attention with tokens or heads distributed over several processes.

Source: arXiv:2302.06218; see `mereo.core.distributed` for the modes.
Cost: multi-head attention's divided by the number of processes, and the traffic of `expected_traffic`.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mereo.core import mechanism
from mereo.core.distributed import LAYOUTS, MODES, distributed_attention, shared, summed
from mereo.core.distributed.ranks import Group, ranks_of
from mereo.errors import UsageError, check_choice
from mereo.mechanisms.attention.dense.multi_head import MultiHeadAttention


def _example() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return ShardedAttention(12, 3), (torch.randn(2, 5, 12),)


@mechanism(
    "sharded",
    family="dense attention",
    over="senders",
    values="shared",
    update="linear",
    source="arXiv:2302.06218",
    promises=("normalised", "any sender order", "any receiver order", "any length"),
    zero_gradients={"key.bias": "it adds the same to every score of a receiver, and the softmax takes that out"},
    sender_axes={"0": 1},
    receiver_axes={"0": 1, "output": 1},
    largest_input=1e15,  # queries times keys must fit float32
    interface="tokens",
    example=_example,
)
class ShardedAttention(MultiHeadAttention):
    """Replace each token by a weighted sum of the values of the tokens of all processes.

    q = W_q x,  k = W_k x,  v = W_v x   of this process's tokens;   out = W_o [distributed attention(q, k, v), ...] + b

    Args:
        dim: size of the tokens.
        num_heads: independent sets of couplings; divides `dim`.
        group: the processes; None is one. It may be set later, and is no part of the state.
        mode: "ring", "allgather", "alltoall" or "heads", see `mereo.core.distributed.distributed_attention`. With
            "heads" every process has all tokens, computes its share of the heads, and the projections are summed.
        causal: whether a token attends to none behind it.
        layout: which tokens a process holds: "contiguous", "zigzag" or "striped".
        qkv_bias: biases of the three projections.
        proj_drop: dropout of the output.

    Shapes: tokens (batch, tokens of this process, dim) -> the same; with "heads", all tokens in every process.

    Reads as: couplings[b, h, r, s] is the share of token s of the whole sequence in the output of head h for token r of
        this process.

    Parameters have the names of `MultiHeadAttention`, and are the same in all processes. The gradient of one process is
    its part: the sum over the processes is the gradient of the whole sequence.

    Reference: arXiv:2302.06218.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int = 8,
        *,
        group: Group = None,
        mode: str = "ring",
        causal: bool = False,
        layout: str = "contiguous",
        qkv_bias: bool = True,
        proj_drop: float = 0.0,
    ) -> None:
        super().__init__(dim, num_heads, qkv_bias=qkv_bias, proj_drop=proj_drop)
        check_choice("mode", mode, MODES)
        check_choice("layout", layout, LAYOUTS)
        self.group, self.mode, self.causal, self.layout = group, mode, causal, layout

    def _whole(self, x: Tensor, layers: tuple[nn.Linear, ...]) -> Tensor:
        q, k, v = (layer(x).unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for layer in layers)
        return self.proj(self._attend(q, k, v))

    def _attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out = distributed_attention(
            q, k, v, self.group, self.mode, self.causal, layout=self.layout, coupling=self.coupling
        )
        assert isinstance(out, Tensor)
        return out.transpose(1, 2).flatten(2)

    def _own_heads(self, x: Tensor, layers: tuple[nn.Linear, ...]) -> Tensor:
        """With the rows of this process's heads; the bias of the output is added by the first process."""
        ranks = ranks_of(self.group)
        if self.num_heads % ranks.size:
            raise UsageError(
                f"num_heads is {self.num_heads} for {ranks.size} processes; mode 'heads' needs a multiple of them."
            )
        width = self.proj.in_features // ranks.size
        own = slice(ranks.rank * width, (ranks.rank + 1) * width)
        x = shared(x, self.group)
        q, k, v = (
            F.linear(x, layer.weight[own], None if layer.bias is None else layer.bias[own])
            .unflatten(-1, (self.num_heads // ranks.size, -1))
            .transpose(1, 2)
            for layer in layers
        )
        bias = self.proj.bias if ranks.rank == 0 else None
        return summed(F.linear(self._attend(q, k, v), self.proj.weight[:, own], bias), self.group)

    def forward(self, tokens: Tensor) -> Tensor:  # type: ignore[override]
        layers = (self.query, self.key, self.value)
        sharded = self.mode == "heads" and ranks_of(self.group).size > 1
        return self.proj_drop((self._own_heads if sharded else self._whole)(tokens, layers))

    def extra_repr(self) -> str:
        return f"{self.query.in_features}, num_heads={self.num_heads}, mode={self.mode!r}, layout={self.layout!r}"
