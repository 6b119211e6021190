"""Attention of other libraries under observation: couplings of layers of timm, PyTorch and transformers.

While a layer is observed it computes the same by a function that makes its couplings in a `Coupling`; afterwards it is
as before. `mereo.record` and `mereo.intervene` are imported from here, so that they know of these layers.
"""

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mereo.core import Coupling, intervene, record
from mereo.core.kernels.attention import attend
from mereo.core.observe import BORROWERS, Observer
from mereo.mechanisms.attention.hosted import attention_drop, computes_attention, is_host, merge_heads, split_heads
from mereo.mechanisms.attention.interfaced import COUPLING as _KEY
from mereo.mechanisms.attention.interfaced import Interfaced, is_interfaced

__all__ = ["BorrowedCoupling", "intervene", "record"]


class BorrowedCoupling(Coupling):
    """The coupling of an attention layer of another library.

    Args:
        host: the layer; its `forward` is another one from the first observer to the last.
        forward: computes what the layer does, given this coupling.
        dropout: of the couplings.
    """

    host: nn.Module

    def __init__(self, host: nn.Module, forward: Callable[..., Any], dropout: float) -> None:
        super().__init__("senders", dropout=dropout)
        # Outside of PyTorch's table of children, so that the layer is not one of them.
        self.__dict__["host"], self._run = host, forward

    def watch(self, observer: Observer) -> None:
        if not self.observers:
            there = vars(self.host)
            there[_KEY], there["forward"] = self, self._forward_of_host
            _FAST_PATH.leave(self)
        super().watch(observer)

    def unwatch(self, observer: Observer) -> None:
        super().unwatch(observer)
        if not self.observers:
            del vars(self.host)[_KEY], vars(self.host)["forward"]
            _FAST_PATH.back(self)

    def _forward_of_host(self, *arguments: Any, **named: Any) -> Any:
        self.training = self.host.training
        return self._run(self, *arguments, **named)


class _FastPath:
    """PyTorch's fused encoder layers, which skip the forward pass of attention; off while any is observed."""

    def __init__(self) -> None:
        self.users: set[nn.Module] = set()
        self.before = True

    def leave(self, user: nn.Module) -> None:
        if not self.users:
            self.before = torch.backends.mha.get_fastpath_enabled()
            torch.backends.mha.set_fastpath_enabled(False)
        self.users.add(user)

    def back(self, user: nn.Module) -> None:
        self.users.remove(user)
        if not self.users:
            torch.backends.mha.set_fastpath_enabled(self.before)


_FAST_PATH = _FastPath()


def _is_theirs(module: nn.Module) -> bool:
    """Whether a module is of another library and has the forward pass of its class."""
    return not type(module).__module__.startswith("mereo.") and "forward" not in vars(module)


def _takes_tokens_only(module: nn.Module) -> bool:
    """Whether a layer takes tokens and masks, and not positions as well."""
    _, *others = inspect.signature(module.forward).parameters
    return set(others) <= {"attn_mask", "is_causal"}


def borrow(module: nn.Module) -> BorrowedCoupling | None:
    """The coupling of an attention layer of timm, PyTorch, transformers or the same form; None for any other module."""
    if _KEY in vars(module):
        found: BorrowedCoupling = vars(module)[_KEY]
        return found
    if isinstance(module, nn.MultiheadAttention):
        usual = module.bias_k is None and not module.add_zero_attn
        usual = usual and type(module).forward is nn.MultiheadAttention.forward and _is_theirs(module)
        return BorrowedCoupling(module, _Multihead(module), module.dropout) if usual else None
    if is_interfaced(module) and "forward" not in vars(module):
        return BorrowedCoupling(module, Interfaced(module), 0.0)
    if is_host(module) and _is_theirs(module) and _takes_tokens_only(module) and computes_attention(module):
        return BorrowedCoupling(module, _Hosted(module), attention_drop(module))
    return None


BORROWERS.append(borrow)


class _Hosted:
    """Attention as timm writes it, with a coupling."""

    def __init__(self, host: nn.Module) -> None:
        self.host = host

    def __call__(
        self, coupling: Coupling, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False
    ) -> Tensor:
        tokens = x.flatten(1, -2)
        allowed, bias = (attn_mask, None) if attn_mask is None or attn_mask.dtype == torch.bool else (None, attn_mask)
        if is_causal:
            count = tokens.shape[1]
            allowed = torch.ones(count, count, dtype=torch.bool, device=x.device).tril()
        mixed = attend(*split_heads(self.host, tokens), coupling, mask=allowed, bias=bias)
        return merge_heads(self.host, tokens, mixed.transpose(1, 2).flatten(2)).unflatten(1, x.shape[1:-1])


class _Multihead:
    """`torch.nn.MultiheadAttention`, with a coupling.

    c = softmax(q k^T / sqrt(d) + bias),   out = W_o (c v) + b_o
    """

    def __init__(self, host: nn.MultiheadAttention) -> None:
        self.host = host

    def _projected(self, inputs: tuple[Tensor, Tensor, Tensor]) -> list[Tensor]:
        """Queries, keys and values, (batch, heads, tokens, d) each."""
        host = self.host
        if host.in_proj_weight is None:
            weights = [host.q_proj_weight, host.k_proj_weight, host.v_proj_weight]
        else:
            weights = list(host.in_proj_weight.chunk(3))
        biases = [None] * 3 if host.in_proj_bias is None else host.in_proj_bias.chunk(3)
        pairs = zip(inputs, weights, biases, strict=True)
        return [F.linear(x, w, b).unflatten(-1, (host.num_heads, -1)).transpose(1, 2) for x, w, b in pairs]

    def __call__(
        self,
        coupling: Coupling,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        host, batched = self.host, query.dim() == 3
        inputs = (query, key, value)
        if not batched:
            inputs = (query.unsqueeze(0), key.unsqueeze(0), value.unsqueeze(0))
        elif not host.batch_first:
            inputs = (query.transpose(0, 1), key.transpose(0, 1), value.transpose(0, 1))
        q, k, v = self._projected(inputs)
        scores = q @ k.mT * q.shape[-1] ** -0.5
        allowed: Tensor | None = None
        if attn_mask is not None and attn_mask.dim() == 3:
            attn_mask = attn_mask.unflatten(0, (-1, host.num_heads))
        if key_padding_mask is not None:
            key_padding_mask = key_padding_mask.view(-1, 1, 1, scores.shape[-1])
        for mask in (attn_mask, key_padding_mask):  # True leaves a pair out, numbers are added
            if mask is not None and mask.dtype == torch.bool:
                allowed = ~mask if allowed is None else allowed & ~mask
            elif mask is not None:
                scores = scores + mask
        couplings = coupling(scores, allowed)
        out = host.out_proj((couplings @ v).transpose(1, 2).flatten(2))
        weights = (couplings.mean(1) if average_attn_weights else couplings) if need_weights else None
        if not batched:
            return out.squeeze(0), None if weights is None else weights.squeeze(0)
        return out if host.batch_first else out.transpose(0, 1), weights
