"""The parts of a multi-head attention that was written elsewhere: how it reads heads, and how it merges them.

Attention of this library has `query`, `key`, `value`, or `qkv`, with `coupling` and `proj`; timm's has `qkv` and
`proj`, and may have `q_norm`, `k_norm`, `attn_drop`, `norm`, `gate` and `proj_drop`.
"""

from typing import cast

from torch import Tensor, nn


def optional(module: nn.Module, name: str) -> nn.Module:
    """A child that the module may lack; without it nothing happens."""
    child = getattr(module, name, None)
    return child if isinstance(child, nn.Module) else nn.Identity()


def input_layer(attn: nn.Module) -> nn.Linear:
    """The layer that reads the queries, perhaps with keys and values."""
    return cast(nn.Linear, attn.query if hasattr(attn, "query") else attn.qkv)


def read_heads(attn: nn.Module, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values of the heads.

    Shapes: (batch, tokens, dim) -> (batch, heads, tokens, d) each.
    """
    heads: int = attn.num_heads  # type: ignore[assignment]
    if hasattr(attn, "query"):
        layers = cast(tuple[nn.Linear, ...], (attn.query, attn.key, attn.value))
        q, k, v = (layer(x).unflatten(-1, (heads, -1)).transpose(1, 2) for layer in layers)
    else:
        q, k, v = attn.qkv(x).unflatten(-1, (3, heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)  # type: ignore[operator]
    return optional(attn, "q_norm")(q), optional(attn, "k_norm")(k), v


def dropout_of(attn: nn.Module) -> float:
    """The share of couplings that are dropped in training, of attention without a `Coupling`."""
    drop = getattr(attn, "attn_drop", None)
    return float(drop.p) if isinstance(drop, nn.Dropout) else 0.0


def merge_heads(attn: nn.Module, merged: Tensor, x: Tensor) -> Tensor:
    """The output, of what the heads made of tokens x: (batch, tokens, heads * d), (batch, tokens, dim) -> as x."""
    merged = optional(attn, "norm")(merged)
    if getattr(attn, "gate", None) is not None:
        merged = merged * attn.gate(x).sigmoid()  # type: ignore[operator]
    return optional(attn, "proj_drop")(attn.proj(merged))  # type: ignore[operator]
