"""Attention of `transformers`: layers that call an attention function by its interface, observed and replaced.

While a layer is observed, its configuration names the function below, which makes the couplings in a `Coupling`.
"""

import copy
import sys
from typing import Any

import torch
from torch import Tensor, nn

from mereo.core import Coupling
from mereo.errors import UsageError

INTERFACE = "mereo"
COUPLING = "_borrowed_coupling"
"""Under which an observed layer holds its coupling."""
_UNUSED = ("num_items_in_batch",)
"""What the Trainer gives to every module, and only the loss uses."""


def is_interfaced(module: nn.Module) -> bool:
    """Whether a module is an attention layer of `transformers` that calls a function of its interface."""
    home = sys.modules.get(type(module).__module__)
    return (
        type(module).__module__.startswith("transformers.")
        and hasattr(home, "ALL_ATTENTION_FUNCTIONS")
        and type(module).__name__.endswith("Attention")
        and hasattr(getattr(module, "config", None), "_attn_implementation")
        and hasattr(module, "is_causal")
    )


def called_by_transformers(module: nn.Module) -> bool:
    """Whether a module is such a layer, or stands in the place of one."""
    return getattr(module, "of_transformers", False) is True or is_interfaced(module)


class Interfaced:
    """The forward pass of such a layer, with a coupling in its attention function."""

    def __init__(self, host: Any) -> None:
        functions: Any = sys.modules[type(host).__module__]
        functions.ALL_ATTENTION_FUNCTIONS.register(INTERFACE, _attend)
        self.host, self.config = host, copy.copy(host.config)
        self.config._attn_implementation = INTERFACE

    def __call__(self, coupling: Coupling, *arguments: Any, **named: Any) -> Any:
        host, before = self.host, self.host.config
        host.config = self.config
        try:
            return type(host).forward(host, *arguments, **named)
        finally:
            host.config = before


def _attend(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None,
    scaling: float | None = None, dropout: float = 0.0, is_causal: bool | None = None, **_: Any,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Attention as `transformers` calls it: heads (batch, heads, tokens, d) -> (batch, tokens, heads, d), couplings."""
    coupling: Coupling = vars(module)[COUPLING]
    groups, queries, senders = query.shape[1] // key.shape[1], query.shape[2], key.shape[2]
    key, value = (each.repeat_interleave(groups, 1) for each in (key, value))
    scores = query @ key.mT * (query.shape[-1] ** -0.5 if scaling is None else scaling)
    causal = bool(getattr(module, "is_causal", False)) if is_causal is None else is_causal
    allowed: Tensor | None = None
    if causal and queries > 1 and (attention_mask is None or attention_mask.dim() == 2):
        allowed = torch.ones(queries, senders, dtype=torch.bool, device=query.device).tril(senders - queries)
    if attention_mask is not None:
        mask = attention_mask if attention_mask.dim() == 4 else attention_mask[:, None, None].bool()
        mask = mask[..., :senders]
        if mask.dtype != torch.bool:  # numbers are added, the least of the type leaves a pair out
            taken = mask > torch.finfo(mask.dtype).min / 2
            scores, mask = scores + mask.masked_fill(~taken, 0), taken
        allowed = mask if allowed is None else allowed & mask
    coupling.dropout = dropout
    couplings = coupling(scores, allowed)
    return (couplings @ value).transpose(1, 2).contiguous(), couplings


def answer_transformers(module: nn.Module) -> None:
    """Let a module of tokens stand where `transformers` has such a layer: it takes its call and returns its pair."""
    module.of_transformers = True  # type: ignore[assignment]
    module.register_forward_pre_hook(_read_call, with_kwargs=True)
    module.register_forward_hook(_as_pair)


def _read_call(
    module: nn.Module, given: tuple[Any, ...], named: dict[str, Any]
) -> tuple[tuple[Tensor], dict[str, Any]]:
    """The tokens of a call without its switches, such as whether the layer shall return its couplings."""
    tokens, *others = given or (named["hidden_states"],)
    rest = [*others, *(value for name, value in named.items() if name not in (*_UNUSED, "hidden_states"))]
    for value in rest:
        if isinstance(value, Tensor) and torch.compiler.is_exporting():
            # An exported network always makes a mask, which leaves nothing out unless it is given one.
            kept = value if value.dtype == torch.bool else value == 0
            torch._assert_async(kept.all(), f"{type(module).__name__} takes no mask")
        elif isinstance(value, Tensor | tuple):
            raise UsageError(
                f"{type(module).__name__} stands in a network of transformers that gives it a mask or positions besides"
                " its tokens, which it does not take."
            )
    return (tokens,), {}


def _as_pair(module: nn.Module, given: Any, output: Any) -> tuple[Tensor, Tensor | None]:
    return output if isinstance(output, tuple) else (output, None)


ANSWERS = (_read_call, _as_pair)
"""The hooks that answer a call of `transformers`."""
