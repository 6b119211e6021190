"""Attention of other libraries under observation: couplings of layers of timm, PyTorch, transformers and of your own.

While a layer is observed it computes the same by a function that makes its couplings in a `Coupling`; afterwards it is
as before. `mereo.record` and `mereo.intervene` are imported from here, so that they know of these layers.
"""

import inspect
from collections.abc import Callable
from functools import cache
from types import FunctionType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from mereo.core import Coupling, intervene, record
from mereo.core.modes import kept, source_of
from mereo.core.observe import BORROWERS, Observable, Observer
from mereo.mechanisms.attention.hosted import number_of_heads
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


@cache
def _sources(kind: type[nn.Module]) -> str:
    """The source of a class, of the constructors it inherits, and of what its forward pass calls."""
    constructors = [vars(base)["__init__"] for base in kind.__mro__ if "__init__" in vars(base)]
    found, waiting = dict[FunctionType, None](), list[Any]([kind.forward])
    while waiting:
        function = inspect.unwrap(waiting.pop())
        if not isinstance(function, FunctionType) or function in found or str(function.__module__).startswith("torch."):
            continue
        found[function] = None
        names = function.__code__.co_names
        called = {name: function.__globals__.get(name) for name in names}
        modules = [vars(each) for each in called.values() if isinstance(each, ModuleType)]
        waiting += [getattr(kind, name, None) for name in names] + [*called.values()]
        waiting += [module[name] for module in modules for name in names if name in module]
    return "".join(map(source_of, [kind, *constructors, *found]))


def _is_attention(module: nn.Module) -> bool:
    """Whether a module has fused attention, or is attention by the name of its class or heads and has a softmax."""
    source = _sources(type(module))  # type: ignore[arg-type]
    named = "att" in type(module).__name__.lower() or number_of_heads(module) is not None
    return "scaled_dot_product_attention" in source or (named and "softmax" in source.lower())


def borrow(module: nn.Module) -> BorrowedCoupling | None:
    """The coupling of an attention layer of another library; None for any other module.

    It is `torch.nn.MultiheadAttention`, a layer of transformers, or a class whose source, or that of a function which
    it calls, has fused attention, or a softmax if it is named attention or states its heads. Its couplings are what the
    softmax gives: what the layer does to them afterwards, such as a mixture of heads, is not in them.
    """
    if _KEY in vars(module):
        found: BorrowedCoupling = vars(module)[_KEY]
        return found
    if isinstance(module, nn.MultiheadAttention):
        usual = module.bias_k is None and not module.add_zero_attn
        usual = usual and type(module).forward is nn.MultiheadAttention.forward and _is_theirs(module)
        return BorrowedCoupling(module, _Multihead(module), module.dropout) if usual else None
    if is_interfaced(module) and "forward" not in vars(module):
        return BorrowedCoupling(module, Interfaced(module), 0.0)
    if _is_theirs(module) and _is_attention(module):
        parts = (part for part in module.modules() if part is not module)
        if not any(isinstance(part, Observable) or borrow(part) is not None for part in parts):
            return BorrowedCoupling(module, _Softmax(module), 0.0)
    return None


BORROWERS.append(borrow)


class _Softmax:
    """The forward pass of any attention, with a coupling in place of its softmax over the last axis or fused attention.

    Scores of more than four axes, such as (batch, windows, heads, receivers, senders), have their first ones as batch;
    scores of three are of one head, unless there are as many as images times the heads that the layer states.
    """

    def __init__(self, host: nn.Module) -> None:
        self.host = host

    def __call__(self, coupling: Coupling, *arguments: Any, **named: Any) -> Any:
        fused = "fused_attn" in vars(self.host)  # of timm, whose kernels for some devices cannot be seen
        images = next((len(x) for x in (*arguments, *named.values()) if isinstance(x, Tensor)), 0)
        with (
            _Calls(coupling, number_of_heads(self.host) or 1, images),
            kept([self.host] if fused else [], "fused_attn"),
        ):
            if fused:
                self.host.fused_attn = False  # type: ignore[assignment]
            return type(self.host).forward(self.host, *arguments, **named)


class _Calls(TorchFunctionMode):
    """Gives the scores of calls of softmax and of fused attention to a coupling.

    Args:
        heads: of the layer.
        images: in its input. Scores of three axes, the first of size heads x images, have their heads there.
    """

    def __init__(self, coupling: Coupling, heads: int, images: int) -> None:
        super().__init__()
        self.coupling, self.heads, self.images = coupling, heads, images

    def __torch_function__(
        self, function: Any, types: Any, given: tuple[Any, ...] = (), named: dict[str, Any] | None = None
    ) -> Any:
        named = named or {}
        if function is F.scaled_dot_product_attention:
            with torch._C.DisableTorchFunction():
                return self._attend(*given, **named)
        if function in _SOFTMAX:
            scores, axis, kind = _read_softmax(*given, **named)
            if scores.dim() >= 3 and axis in (-1, scores.dim() - 1):
                with torch._C.DisableTorchFunction():
                    return self._couple(scores if kind is None else scores.to(kind))
        return function(*given, **named)

    def _couple(self, scores: Tensor, allowed: Tensor | None = None) -> Tensor:
        """Couplings of scores (..., receivers, senders), in their shape; allowed has the same."""
        heads = self.heads if len(scores) == self.heads * self.images else 1

        def by_head(each: Tensor) -> Tensor:
            return each.unflatten(0, (-1, heads)) if each.dim() == 3 else each.flatten(0, -4)

        return self.coupling(by_head(scores), None if allowed is None else by_head(allowed)).view(scores.shape)

    def _attend(
        self, query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0,
        is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
    ) -> Tensor:  # fmt: skip
        if enable_gqa:
            key, value = (each.repeat_interleave(query.shape[-3] // each.shape[-3], -3) for each in (key, value))
        scores = query @ key.mT * (query.shape[-1] ** -0.5 if scale is None else scale)
        allowed = scores.new_ones(scores.shape[-2:], dtype=torch.bool).tril() if is_causal else None
        if attn_mask is not None and attn_mask.dtype == torch.bool:
            allowed = attn_mask
        elif attn_mask is not None:
            scores = scores + attn_mask
        if allowed is not None:
            allowed = allowed.expand(scores.shape)
        self.coupling.dropout, self.coupling.training = dropout_p, dropout_p > 0
        return self._couple(scores, allowed) @ value


_SOFTMAX = (F.softmax, torch.softmax, Tensor.softmax)


def _read_softmax(
    input: Tensor, dim: int | None = None, _stacklevel: int = 3, dtype: torch.dtype | None = None
) -> tuple[Tensor, int | None, torch.dtype | None]:
    """The scores, the axis and the type of a call of `F.softmax`."""
    return input, dim, dtype


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
