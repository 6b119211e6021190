"""Another exchange between the projections of a trained attention layer, of mereo, timm, transformers or PyTorch.

The layer's own modules stay where they are, so that weights keep their names and values.
"""

import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mereo.core import Coupling
from mereo.core.kernels.attention import attend
from mereo.core.modes import must_be_called
from mereo.errors import UsageError
from mereo.mechanisms.attention.called import called_by_others, called_by_pytorch, is_plain, stand_in
from mereo.mechanisms.attention.dense.multi_head import MultiHeadAttention, four_axes
from mereo.mechanisms.attention.interfaced import is_interfaced

Heads = tuple[Tensor, Tensor, Tensor]
_INPUTS = (("qkv",), ("query", "key", "value"), ("q_proj", "k_proj", "v_proj"))
"""Names of the linear layers to queries, keys and values: in timm, here, and in transformers."""
_OUTPUTS = ("proj", "o_proj", "out_proj")
"""Names of the linear layer behind the heads: here and in timm, and in transformers and PyTorch."""


def optional(module: nn.Module, name: str) -> Callable[[Tensor], Tensor]:
    """A child that the module may lack; without it nothing happens."""
    child = getattr(module, name, None)
    return child if isinstance(child, nn.Module) else _unchanged


def _unchanged(x: Tensor) -> Tensor:
    return x


def _linear(attn: nn.Module, name: str) -> bool:
    return isinstance(getattr(attn, name, None), nn.Linear)


def _is_packed(attn: nn.Module) -> bool:
    """Whether one weight of the layer itself makes queries, keys and values, as in `torch.nn.MultiheadAttention`."""
    return isinstance(getattr(attn, "in_proj_weight", None), Tensor)


def _inputs(attn: nn.Module) -> list[nn.Linear]:
    """The linear layers to queries, keys and values, or the one to all three; none in other modules."""
    names = next((names for names in _INPUTS if all(_linear(attn, name) for name in names)), ())
    return [getattr(attn, name) for name in names]


def input_weight(attn: nn.Module) -> Tensor:
    """The weight to queries, or to queries, keys and values: (outputs, dim)."""
    if _is_packed(attn):
        return attn.in_proj_weight  # type: ignore[return-value]
    layer: nn.Linear = next(getattr(attn, name) for name, *_ in _INPUTS if _linear(attn, name))
    return layer.weight


def output_name(attn: nn.Module) -> str:
    """The name of the layer behind the heads."""
    return next(name for name in _OUTPUTS if isinstance(getattr(attn, name, None), nn.Module))


def output_layer(attn: nn.Module) -> nn.Module:
    """The layer behind the heads."""
    return attn.get_submodule(output_name(attn))


def number_of_heads(attn: nn.Module) -> int | None:
    """The heads of an attention layer, None if it does not state them."""
    names = ("num_heads", "num_attention_heads", "heads")
    found = [heads for name in names if isinstance(heads := getattr(attn, name, None), int) and heads > 0]
    return found[0] if found else None


def heads_of(attn: nn.Module) -> int:
    """The heads of a layer that `is_host`."""
    heads = number_of_heads(attn)
    assert heads is not None
    return heads


def is_host(module: nn.Module) -> bool:
    """Whether a module is self-attention that `split_heads` and `merge_heads` support.

    It is ours, or written as timm's, or a layer of transformers whose queries, keys and values have equally many heads,
    or `torch.nn.MultiheadAttention` with keys and values as wide as its queries.
    """
    if isinstance(module, MultiHeadAttention):
        return module.key.in_features == module.query.in_features
    if _is_packed(module):
        known = isinstance(module, HostedAttention) or (isinstance(module, nn.MultiheadAttention) and is_plain(module))
        return known and "in_proj_weight" in module._parameters
    inputs = _inputs(module)
    if not inputs or number_of_heads(module) is None or not any(_linear(module, name) for name in _OUTPUTS):
        return False
    if len(inputs) == 1:
        return hasattr(module, "num_heads") and _linear(module, "proj")
    known = is_interfaced(module) or isinstance(module, HostedAttention)
    return known and len({layer.weight.shape for layer in inputs}) == 1


def split_heads(attn: nn.Module, x: Tensor) -> Heads:
    """Queries, keys and values of an attention layer: (batch, tokens, dim) -> (batch, heads, tokens, d) each."""
    heads, inputs = heads_of(attn), _inputs(attn)
    if len(inputs) == 3:
        q, k, v = (layer(x).unflatten(-1, (heads, -1)).transpose(1, 2) for layer in inputs)
    else:
        joint = F.linear(x, attn.in_proj_weight, attn.in_proj_bias) if _is_packed(attn) else attn.qkv(x)  # type: ignore[arg-type,operator]
        q, k, v = joint.unflatten(-1, (3, heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
    return optional(attn, "q_norm")(q), optional(attn, "k_norm")(k), v


def cross_heads(attn: nn.Module, x: Tensor, context: Tensor) -> Heads:
    """Queries of some tokens, keys and values of others, by one layer: (batch, tokens, dim) each -> as `split_heads`.

    Only the queries of x and the keys and values of the context are computed, unless the layer has hooks.
    """
    heads, inputs = heads_of(attn), _inputs(attn)
    if len(inputs) == 3:
        q, k, v = (layer(tokens) for layer, tokens in zip(inputs, (x, context, context), strict=True))
    elif not _is_packed(attn) and must_be_called(attn.qkv):  # type: ignore[arg-type]
        q, (_, k, v) = attn.qkv(x).chunk(3, -1)[0], attn.qkv(context).chunk(3, -1)  # type: ignore[operator]
    else:
        packed = _is_packed(attn)
        weight, bias = (attn.in_proj_weight, attn.in_proj_bias) if packed else (attn.qkv.weight, attn.qkv.bias)  # type: ignore[union-attr]
        width = len(weight) // 3  # type: ignore[arg-type]
        q_bias, kv_bias = (None, None) if bias is None else (bias[:width], bias[width:])  # type: ignore[index]
        q = F.linear(x, weight[:width], q_bias)  # type: ignore[index]
        k, v = F.linear(context, weight[width:], kv_bias).chunk(2, -1)  # type: ignore[index]
    q, k, v = (each.unflatten(-1, (heads, -1)).transpose(1, 2) for each in (q, k, v))
    return optional(attn, "q_norm")(q), optional(attn, "k_norm")(k), v


def merge_heads(attn: nn.Module, x: Tensor, merged: Tensor) -> Tensor:
    """The output projection of the layer: x, (batch, tokens, heads * d) -> (batch, tokens, dim)."""
    merged = optional(attn, "norm")(merged)
    if getattr(attn, "gate", None) is not None:
        merged = merged * attn.gate(x).sigmoid()  # type: ignore[operator]
    return optional(attn, "proj_drop")(output_layer(attn)(merged))


def refuse_masks(module: nn.Module, attn_mask: Tensor | None, is_causal: bool) -> None:
    """UsageError unless the two switches with which timm calls blocks and attention are off."""
    if attn_mask is not None or is_causal:
        raise UsageError(f"attn_mask or is_causal is given, and {type(module).__name__} takes neither; leave them out.")


def takes_tokens_only(module: nn.Module) -> bool:
    """Whether a layer takes tokens and the two switches of timm, and not positions as well."""
    _, *others = inspect.signature(module.forward).parameters
    return set(others) <= {"attn_mask", "is_causal"}


def attention_drop(attn: nn.Module) -> float:
    """Dropout of the layer's couplings."""
    if isinstance(attn, MultiHeadAttention):
        return attn.coupling.dropout
    if isinstance(attn, nn.MultiheadAttention):
        return attn.dropout
    if is_interfaced(attn):
        stated = (getattr(attn, name, 0.0) for name in ("attention_dropout", "dropout"))
        return next((share for share in stated if isinstance(share, float)), 0.0)
    drop = optional(attn, "attn_drop")
    return float(drop.p) if isinstance(drop, nn.Dropout) else 0.0


class HostedAttention(nn.Module, ABC):
    """Self-attention with the projections of another layer, and an exchange of its own.

    Args:
        host: `MultiHeadAttention` over its own tokens, timm's attention, or that of transformers or PyTorch, as which
            it is then called; its modules and weights are taken over, not copied.

    Shapes: (batch, tokens, dim) or (batch, rows, columns, dim) -> the same.
    """

    def __init__(self, host: nn.Module) -> None:
        super().__init__()
        if not is_host(host):
            raise UsageError(
                f"host is a {type(host).__name__}; it must be a MultiHeadAttention without a context, attention with"
                " the linear layers qkv and proj, as in timm, attention of transformers with as many heads for keys, or"
                " torch.nn.MultiheadAttention."
            )
        for name, child in host.named_children():
            if not isinstance(child, Coupling):
                self.add_module(name, child)
        if _is_packed(host):
            for name in ("in_proj_weight", "in_proj_bias"):
                self.register_parameter(name, host._parameters[name])
        self.training = host.training
        self.num_heads = heads_of(host)
        self.head_dim = int(output_layer(host).in_features) // self.num_heads  # type: ignore[arg-type]
        stand_in(self, host)

    @abstractmethod
    def exchange(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """(batch, heads, tokens, d) each -> (batch, tokens, heads * d)."""

    def attended(self, x: Tensor, attn_mask: Tensor | None, is_causal: bool, *others: Any) -> Tensor:
        """Split, exchange with further arguments, merge; timm's blocks give the two switches, which must be off."""
        refuse_masks(self, attn_mask, is_causal)
        tokens = x.flatten(1, -2)
        out: Tensor = merge_heads(self, tokens, self.exchange(*split_heads(self, tokens), *others))
        return out.unflatten(1, x.shape[1:-1])

    def forward(self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
        return self.attended(x, attn_mask, is_causal)


class DenseHosted(HostedAttention):
    """The attention of another layer, whose couplings are recorded.

    Shapes: (batch, tokens, dim) -> (batch, tokens, dim).
    """

    def __init__(self, host: nn.Module) -> None:
        super().__init__(host)
        topology = host.coupling.topology if isinstance(host, MultiHeadAttention) else None
        self.coupling = Coupling("senders", dropout=attention_drop(host), topology=topology)

    def exchange(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attend(q, k, v, self.coupling).transpose(1, 2).flatten(2)


class CrossAttention(HostedAttention):
    """The attention of another layer, whose queries are other tokens than its keys and values.

    Shapes: queries (batch, receivers, dim), context (batch, senders, dim), mask bool (batch, senders) or None ->
        (batch, receivers, dim).
    """

    def __init__(self, host: nn.Module) -> None:
        super().__init__(host)
        self.coupling = Coupling("senders", dropout=attention_drop(host))

    def exchange(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
        return attend(q, k, v, self.coupling, mask=four_axes(mask)).transpose(1, 2).flatten(2)

    def forward(self, x: Tensor, context: Tensor, mask: Tensor | None = None) -> Tensor:  # type: ignore[override]
        out: Tensor = merge_heads(self, x, self.exchange(*cross_heads(self, x, context), mask))
        return out


class CrossBlock(nn.Module):
    """A transformer block, of mereo or timm, whose attention reads other tokens than it changes.

    z = x + attention(queries, context),   out = z + mlp(norm z)

    Args:
        block: with `norm1`, `attn`, `norm2` and `mlp`, and, if it has them, `ls1`, `ls2`, `drop_path1`, `drop_path2`;
            copied, with its weights under their names.
    """

    norm1: nn.Module
    attn: nn.Module
    norm2: nn.Module
    mlp: nn.Module

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        for name, child in deepcopy(block).named_children():
            self.add_module(name, CrossAttention(child) if name == "attn" else child)

    def _branch(self, which: int, out: Tensor) -> Tensor:
        return optional(self, f"drop_path{which}")(optional(self, f"ls{which}")(out))

    def cross(self, x: Tensor | None, queries: Tensor, context: Tensor, mask: Tensor | None = None) -> Tensor:
        """The block for rows x, None for zeros, with normalised queries and context."""
        z = self._branch(1, self.attn(queries, context, mask))
        z = z if x is None else x + z
        return z + self._branch(2, self.mlp(self.norm2(z)))


_LARGEST = 2**26
"""Weights of a layer that is still tried."""


def _varied(shape: Sequence[int]) -> Tensor:
    """Numbers between -1 and 1 without a pattern, even if `on_meta_device` skips random initialisation."""
    return (12.9898 * torch.arange(math.prod(shape), device="cpu", dtype=torch.float64) ** 1.5).sin().view(*shape)


@torch.no_grad()
def computes_attention(host: nn.Module, *, dense: bool = False) -> bool:
    """Whether a layer computes what `DenseHosted` does, tried on random tokens, with random weights if it has none yet.

    Args:
        host: True for one without weights that is larger than any in use.
        dense: whether it must let every token attend to every token as well, which a causal one does not.
    """
    if not (isinstance(host, MultiHeadAttention) or called_by_others(host) or takes_tokens_only(host)):
        return False
    like, copy = next(host.parameters()), deepcopy(host).eval()
    if like.is_meta:
        if sum(tensor.numel() for tensor in host.state_dict().values()) > _LARGEST:
            return True
        copy = copy.to_empty(device="cpu")
        like = next(copy.parameters())
        for tensor in (*copy.parameters(), *copy.buffers()):
            tensor.copy_(_varied(tensor.shape) if tensor.is_floating_point() else torch.zeros_like(tensor))
    x = 3 * _varied((2, 9, input_weight(copy).shape[1])).to(like)
    call = (x, x, x) if called_by_pytorch(copy) else (x,)
    try:
        with torch.device(like.device):
            expected, twin = copy(*call), DenseHosted(copy).eval()
            if dense:
                twin.coupling.topology = None
            out = twin(*call)
        if isinstance(expected, tuple):
            expected, out = expected[0], out[0]
        return torch.allclose(out, expected, rtol=1e-2, atol=1e-2 * float(expected.abs().max()))
    except (AttributeError, RuntimeError, TypeError, ValueError):
        return False


def check_host(name: str, host: nn.Module, *, dense: bool = False) -> None:
    """UsageError unless `computes_attention` holds for the layer."""
    if not computes_attention(host, dense=dense):
        raise UsageError(
            f"layer {name!r} is a {type(host).__name__} that computes something else than softmax attention over"
            " all tokens, such as relative positions, windows or a mask; it cannot be replaced."
        )


def attention_layers(model: nn.Module) -> list[str]:
    """Names of the self-attention layers of a model that can be replaced, in order.

    Where others are, `torch.nn.MultiheadAttention` is left out, which then gathers all tokens in one or reads others.
    """
    hosts = [(name, module) for name, module in model.named_modules() if is_host(module)]
    others = [name for name, module in hosts if not called_by_pytorch(module)]
    decoders = [name for name, module in model.named_modules() if isinstance(module, nn.TransformerDecoderLayer)]
    reading = {f"{name}.multihead_attn".removeprefix(".") for name in decoders}
    return others or [name for name, _ in hosts if name not in reading]


def replace_attention(
    model: nn.Module, make: Callable[[nn.Module], nn.Module], layers: Sequence[int] | None = None
) -> nn.Module:
    """A copy of a model, or of one layer, whose self-attention is replaced.

    Args:
        model: of mereo, timm or transformers, or with `torch.nn.MultiheadAttention`; it is not changed.
        make: a function from an attention layer to its replacement.
        layers: numbers of the replaced layers in the order of `attention_layers`; all by default.
    """
    names = attention_layers(model)
    if not names:
        raise UsageError(
            f"model is a {type(model).__name__} without self-attention that can be replaced; give a transformer of"
            " mereo, timm or transformers or with torch.nn.MultiheadAttention, or one attention layer."
        )
    chosen = range(len(names)) if layers is None else layers
    if not all(0 <= number < len(names) for number in chosen) or not len(chosen):
        raise UsageError(f"layers is {list(chosen)!r}; give numbers from 0 to {len(names) - 1}.")
    copy = deepcopy(model)
    for name in (names[number] for number in dict.fromkeys(chosen)):
        host = copy.get_submodule(name)
        check_host(name, host)
        if not name:
            return make(host)
        copy.set_submodule(name, make(host))
    return copy
