"""Conditional cross-attention: a query for each condition, such as an attribute, reads the tokens of an image.

Source: Song, Hwang, Yoon, Choi, Gu, ICCV 2023, arXiv:2307.13254, of which only the abstract was available: the
equations are the smallest reading that agrees with it.
Cost: keys and values of N tokens, 2 N D^2 multiplications, which all conditions share; each condition takes 2 N D for
its attention and 10 D^2 for the rest of the block.
"""

from typing import cast

import torch
from torch import Tensor, nn

from mereo.core import mechanism
from mereo.errors import UsageError, check_choice, check_positive
from mereo.mechanisms.attention.hosted import CrossBlock

KINDS = ("lookup", "mask")
"""How the token of a condition is made."""
RESIDUALS = ("condition", "cls", "none")
"""What the block adds its attention to: the token of the condition, the class token of the image, or nothing."""


class ConditionTokens(nn.Module):
    """A learned token for each condition.

    lookup:   u_c = W_c           mask:   u_c = W relu(M_c) + b

    Args:
        conditions: A.
        dim: D.
        kind: of `KINDS`. W_c starts from N(0, 0.5), M_c from N(0.9, 0.7).

    Shapes: condition None for all of them -> (A, D); int64 (batch,), numbers, or floating point (batch, A), weights,
        which give the weighted sum of the tokens -> (batch, D).

    Reference: arXiv:2307.13254; masks of arXiv:1603.07810. The start of W_c is ours.
    """

    def __init__(self, conditions: int, dim: int, kind: str = "lookup") -> None:
        super().__init__()
        check_positive(conditions=conditions, dim=dim)
        check_choice("kind", kind, KINDS)
        mask = kind == "mask"
        self.table = nn.Parameter(torch.empty(conditions, dim).normal_(0.9 if mask else 0.0, 0.7 if mask else 0.5))
        self.linear = nn.Linear(dim, dim) if mask else None

    def forward(self, condition: Tensor | None = None) -> Tensor:
        # A copy, because what watches the gradients of modules cannot watch a parameter that one returns.
        tokens = self.table.clone() if self.linear is None else self.linear(self.table.relu())
        if condition is None:
            return tokens
        count = len(self.table)
        if condition.dim() == 2 and condition.shape[1] == count:
            return condition.to(tokens.dtype) @ tokens
        if condition.dim() != 1 or condition.dtype != torch.int64:
            raise UsageError(
                f"condition is {condition.dtype} of shape {tuple(condition.shape)}; give numbers, int64 (batch,), or"
                f" weights (batch, {count})."
            )
        if not torch.compiler.is_compiling() and condition.numel():
            least, most = int(condition.min()), int(condition.max())
            if least < 0 or most >= count:
                raise UsageError(f"condition has {least if least < 0 else most}; the conditions are 0 to {count - 1}.")
        return tokens[condition]


class _Attention(nn.Module):
    """The attention layer of the example's block, in the form that blocks hold."""

    def __init__(self, dim: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads, self.qkv, self.proj = num_heads, nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)


def _example() -> tuple[nn.Module, tuple[Tensor, ...]]:
    block = nn.Module()
    block.norm1, block.norm2, block.attn = nn.LayerNorm(12), nn.LayerNorm(12), _Attention(12, 3)
    block.mlp = nn.Sequential(nn.Linear(12, 24), nn.GELU(), nn.Linear(24, 12))
    return ConditionalCrossAttention(block), (torch.randn(2, 7, 12), torch.randn(2, 3, 12))


@mechanism(
    "conditional_cross_attention",
    family="dense attention",
    over="senders",
    steps=1,
    values="shared",
    update="mlp",
    source="arXiv:2307.13254",
    reconstruction="only the abstract of the paper was available",
    promises=("normalised", "masks", "any sender order", "any receiver order", "any length"),
    lacks={"couplings only": "the residual is the token of the condition, whatever the couplings"},
    sender_axes={"0": 1},
    receiver_axes={"1": 1, "output": 1},
    largest_input=1e15,  # the layer norms of the block
    example=_example,
)
class ConditionalCrossAttention(CrossBlock):
    """A transformer block whose queries are the tokens of conditions, and whose keys and values those of an image.

    o_c = W_o [softmax(q_c K^T / sqrt(D / heads)) V, ...],   q_c of norm_c(u_c), K and V of norm(X)

    z_c = r_c + o_c,   out_c = z_c + mlp(norm z_c),   r_c = u_c, the class token of X, or 0

    Args:
        block: see `CrossBlock`: self-attention, which may be trained; its weights are copied under their names.
        residual: r, of `RESIDUALS`.

    Shapes: tokens (batch, tokens, dim), the class token first; conditions (batch, receivers, dim); mask bool (batch,
        tokens), True = takes part -> (batch, receivers, dim).

    Reads as: `attn.coupling`, couplings[b, h, c, n], is what condition c takes from token n.

    Deviates: the paper's choices of the residual and of the replaced layer are not known. A query repeated for each
        token, as in its figure, gives equal rows, so that there is one.

    Reference: arXiv:2307.13254.
    """

    def __init__(self, block: nn.Module, residual: str = "condition") -> None:
        super().__init__(block)
        check_choice("residual", residual, RESIDUALS)
        self.residual = residual
        norm = cast(nn.LayerNorm, self.norm1)
        self.condition_norm = nn.LayerNorm(norm.normalized_shape, eps=norm.eps)
        self.train(block.training)

    def forward(self, tokens: Tensor, conditions: Tensor, mask: Tensor | None = None) -> Tensor:
        added = {"condition": conditions, "cls": tokens[:, :1], "none": None}[self.residual]
        return self.cross(added, self.condition_norm(conditions), self.norm1(tokens), mask)
