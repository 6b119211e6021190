"""Self-attention of a network that exists, taken apart: queries, keys and values of its heads, and its output.

Understands `MultiHeadAttention`, and modules written as timm writes them: `qkv`, `proj` and `num_heads`, with `q_norm`,
`k_norm`, `norm`, `gate`, `attn_drop` and `proj_drop` where they have them.
"""

from torch import Tensor, nn

from mereo.attention.dense.multi_head import MultiHeadAttention

Heads = tuple[Tensor, Tensor, Tensor]
SEPARATE = ("query", "key", "value", "proj", "num_heads")
JOINT = ("qkv", "proj", "num_heads")


def optional(module: nn.Module, name: str) -> nn.Module:
    """A child that the module may lack; without it nothing happens."""
    child = getattr(module, name, None)
    return child if isinstance(child, nn.Module) else nn.Identity()


def is_host(module: nn.Module) -> bool:
    """Whether a module is self-attention of a form that is understood here."""
    return isinstance(module, MultiHeadAttention) or all(hasattr(module, name) for name in JOINT)


def heads_of(attn: nn.Module, x: Tensor) -> Heads:
    """Queries, keys and values: (batch, tokens, dim) -> (batch, heads, tokens, d) each."""
    heads: int = attn.num_heads  # type: ignore[assignment]
    if all(hasattr(attn, name) for name in SEPARATE):
        q, k, v = (getattr(attn, n)(x).unflatten(-1, (heads, -1)).transpose(1, 2) for n in SEPARATE[:3])
    else:
        q, k, v = attn.qkv(x).unflatten(-1, (3, heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)  # type: ignore[operator]
    return optional(attn, "q_norm")(q), optional(attn, "k_norm")(k), v


def finish(attn: nn.Module, out: Tensor, x: Tensor) -> Tensor:
    """The output of the module from what its heads return: (batch, heads, tokens, d) -> (batch, tokens, dim).

    Args:
        x: the input of the module.
    """
    merged = optional(attn, "norm")(out.transpose(1, 2).flatten(2))
    if getattr(attn, "gate", None) is not None:
        merged = merged * attn.gate(x).sigmoid()  # type: ignore[operator]
    return optional(attn, "proj_drop")(attn.proj(merged))  # type: ignore[operator]
