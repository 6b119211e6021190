"""Mixture of heads for an existing model: its attention lets each token choose its heads.

Source: arXiv:2410.11842.
Cost: as for the host, with scores and combinations of active heads only; see
`mereo.mechanisms.attention.MoHAttention`.
"""

from collections.abc import Sequence
from copy import deepcopy

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mereo.core import Coupling, mechanism
from mereo.core.surgery import surgery
from mereo.errors import UsageError, check_fraction
from mereo.mechanisms.attention.dense import MultiHeadAttention
from mereo.mechanisms.attention.hosted import (
    HostedAttention,
    attention_drop,
    attention_layers,
    computes_attention,
    heads_of,
    input_weight,
    is_host,
    number_of_heads,
)
from mereo.mechanisms.attention.sparse import HeadRouter
from mereo.mechanisms.attention.sparse.head_router import check_routed_heads


class MixtureOfHeads(HostedAttention):
    """A self-attention whose heads are weighted by gates; its layers keep their names.

    Args:
        attn: the host, with `query`, `key`, `value` or `qkv`, and `proj`.
        router: makes the gates.
        method: see `mereo.mechanisms.attention.MoHAttention`.

    Shapes: (batch, tokens, dim) -> the same.
    """

    def __init__(self, attn: nn.Module, router: HeadRouter, method: str = "auto") -> None:
        super().__init__(attn)
        own = getattr(attn, "coupling", None)
        self.coupling = own if isinstance(own, Coupling) else Coupling("senders", dropout=attention_drop(attn))
        self.router, self.method = router, method
        self.router.train(attn.training)
        self.coupling.train(attn.training)

    def exchange(self, q: Tensor, k: Tensor, v: Tensor, tokens: Tensor | None = None) -> Tensor:
        """The heads of tokens (batch, tokens, dim), each multiplied by its gate."""
        assert tokens is not None
        return self.router.gated(q, k, v, self.router(tokens, q), self.coupling, self.method)

    def forward(self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
        return self.attended(x, attn_mask, is_causal, x.flatten(1, -2))


class GatedProjection(nn.Module):
    """The output projection of any attention: the part of each head is multiplied by its gate first.

    Args:
        proj: the projection; its weights keep their names.
        router: makes the gates from the tokens that come to the attention.

    Shapes: (batch, ..., heads * d) -> (batch, ..., dim).
    """

    def __init__(self, proj: nn.Linear, router: HeadRouter) -> None:
        super().__init__()
        self.weight, self.bias, self.router = proj.weight, proj.bias, router
        self.gates: Tensor | None = None

    def note(self, tokens: Tensor) -> None:
        """Make the gates of tokens (batch, ..., dim), before their heads are computed."""
        self.gates = self.router(tokens.flatten(1, -2)).view(*tokens.shape[:-1], -1)

    def forward(self, merged: Tensor) -> Tensor:
        gates, self.gates = self.gates, None
        if gates is None or gates.shape[:-1] != merged.shape[:-1]:
            came = None if gates is None else tuple(gates.shape[:-1])
            raise UsageError(
                f"tokens come to the attention as {came} and to its projection as {tuple(merged.shape[:-1])}; a"
                " mixture of heads needs the same order of tokens in both."
            )
        parts = merged.unflatten(-1, (self.router.num_heads, -1)) * gates.unsqueeze(-1)
        return F.linear(parts.flatten(-2), self.weight, self.bias)


def _note_tokens(attn: nn.Module, inputs: tuple[Tensor, ...]) -> None:
    """Before an attention runs, its projection makes the gates."""
    attn.proj.note(inputs[0])  # type: ignore[union-attr,operator]


def _hosts(model: nn.Module) -> list[str]:
    """Names, in order, of the attention modules that have heads and an output projection."""
    known, hosts = attention_layers(model), []
    for name, module in model.named_modules():
        layers = hasattr(module, "qkv") or hasattr(module, "query")
        usual = number_of_heads(module) and layers and isinstance(getattr(module, "proj", None), nn.Linear)
        if usual or name in known:
            hosts.append(name)
    return hosts


def _converted(attn: nn.Module, shared: int, active: int, gate: str, routing: str, method: str) -> nn.Module:
    weight = input_weight(attn)
    router = HeadRouter(weight.shape[1], heads_of(attn), shared, active, gate, routing).to(weight)
    if is_host(attn) and computes_attention(attn):
        return MixtureOfHeads(attn, router, method)
    if routing == "queries" or not isinstance(getattr(attn, "coupling", None), Coupling):
        raise UsageError(
            f"{type(attn).__name__} computes something else than attention of all tokens to all tokens; give"
            " routing='tokens' if it is of this library, or leave it out by `layers`."
        )
    attn.proj = GatedProjection(attn.proj, router)  # type: ignore[arg-type]
    attn.register_forward_pre_hook(_note_tokens)
    return attn


class _Example(nn.Sequential):
    """One layer of attention, as a model."""


def _example() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return _Example(MultiHeadAttention(12, 6)), (torch.randn(2, 5, 12),)


@mechanism(
    "moh",
    family="technique",
    source="arXiv:2410.11842",
    records="gates",
    also_records=("couplings",),
    lacks={"half precision": "rounding can change which heads are active, and with them the output"},
    zero_gradients={"0.key.bias": "it adds the same to every score of a receiver, and the softmax takes that out"},
    largest_input=1e15,  # queries times keys must fit float32
    example=_example,
)
@surgery
def moh(
    model: nn.Module,
    active: float = 0.75,
    *,
    shared: int | None = None,
    layers: Sequence[int] | None = None,
    routing: str = "queries",
    gate: str = "code",
    method: str = "auto",
) -> nn.Module:
    """A copy of a model whose multi-head attention lets each token use the shared heads and the best of the others.

    out = W_o [g_1 H_1, ..., g_h H_h] + b,   g_i of the router: 1 on average, 0 where i is not active

    Args:
        model: of mereo, timm, torchvision or transformers, with multi-head self-attention, trained or not. It is not
            changed; the copy has the same weights under the same names.
        active: share of the heads that act for a token, shared ones included.
        shared: number of heads that always act, the first ones; by default half of the active heads, rounded down.
        layers: numbers of the attention layers, from 0; by default all.
        routing: "queries" adds no weights, for continuing the training of a trained model. "tokens" adds routers.
        gate: form of the gates of "tokens": "code" or "paper".
        method: "auto", "gathered" or "dense", see `mereo.mechanisms.attention.MoHAttention`.

    Shapes: as for `model`. Recorded, by layer: gates (batch, tokens, heads).

    Raises:
        UsageError: for a model without multi-head attention, and numbers of heads that do not fit.

    In training it adds the loss "balance", so that all heads are used: `mereo train` sums it, a loop of your own takes
    it from `mereo.added_losses(model)`.

    Deviates: attention inside windows or neighbourhoods is weighted too, with routing by tokens; all of its heads are
        computed.

    Reference: arXiv:2410.11842, section 3; queries: section 4.3.
    """
    check_fraction(active=active)
    names = _hosts(model)
    if not names:
        raise UsageError(f"model is a {type(model).__name__} without multi-head self-attention.")
    chosen = list(range(len(names))) if layers is None else list(layers)
    if not chosen or len(set(chosen)) < len(chosen) or not all(0 <= layer < len(names) for layer in chosen):
        raise UsageError(f"layers is {layers!r}; give different numbers from 0 to {len(names) - 1}.")
    copy = deepcopy(model)
    for layer in chosen:
        attn = copy.get_submodule(names[layer])
        heads = number_of_heads(attn)
        assert heads is not None
        acting = max(1, round(active * heads))
        always = acting // 2 if shared is None else shared
        check_routed_heads(heads, always, acting - always)
        converted = _converted(attn, always, acting - always, gate, routing, method)
        if names[layer] == "":
            return converted
        parent, _, child = names[layer].rpartition(".")
        setattr(copy.get_submodule(parent), child, converted)
    return copy
