"""Mechanisms by name in the slots of blocks: a factory fills in width, heads and sizes, and converts shapes.

Blocks state what they offer (channels, heads, rows and columns) and know no mechanism. A mechanism whose interface
differs from the slot's is wrapped in an adapter: the patch tokens of a transformer are a map, and the cells of a map
are tokens.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import mereo.mechanisms.attention.dense
import mereo.mechanisms.attention.local
import mereo.mechanisms.attention.memory
import mereo.mechanisms.attention.sparse
import mereo.mechanisms.gate
import mereo.mechanisms.mixer
import mereo.mechanisms.routing
import mereo.mechanisms.scan
import mereo.mechanisms.select  # noqa: F401
from mereo.core.catalogue import ALIASES, MECHANISMS, Mechanism, get_mechanism, list_mechanisms
from mereo.errors import UsageError, check_choice, check_positive, check_text, first_line, unknown

SLOTS = ("tokens", "maps")
"""The interfaces of slots in networks."""
NO_ARGUMENTS: dict[str, Any] = {}
"""The default of networks for the arguments of their mechanism: a table, as files may state one."""
_MOST_HEADS, _WIDEST_WINDOW = 8, 7
_LAYOUT = {"tokens": "tokens", "maps": "maps", "qkv": "tokens"}


@dataclass(frozen=True)
class Place:
    """The properties of a slot.

    Args:
        dim: channels.
        heads: of attention; None for the mechanism's own number, or the largest divisor of `dim` up to 8.
        size: rows and columns of the map, or of the patches among the tokens.
        tokens: number of tokens, including those before the patches; by default rows * columns.
        prefix: tokens before the patches.
        host: the attention layer whose place it takes, for mechanisms that keep its weights.
        causal: whether no token may receive anything from a later one; only mechanisms that promise it fit.
        layer, num_layers: number of the block, and how many the network has.
        dropout: of couplings.
    """

    dim: int
    heads: int | None = None
    size: tuple[int, int] | None = None
    tokens: int | None = None
    prefix: int = 0
    host: nn.Module | None = None
    causal: bool = False
    layer: int = 0
    num_layers: int = 1
    dropout: float = 0.0

    @property
    def all_tokens(self) -> int | None:
        if self.tokens is not None or self.size is None:
            return self.tokens
        return self.prefix + self.size[0] * self.size[1]

    def heads_like(self, default: object) -> int:
        """The number of heads: the one given, a mechanism's default if it divides the width, or the next less."""
        if self.heads is not None:
            return self.heads
        most = default if isinstance(default, int) else _MOST_HEADS
        return next(heads for heads in range(min(most, self.dim), 0, -1) if self.dim % heads == 0)


def _divisor(side: int, most: int) -> int:
    return next(part for part in range(min(side, most), 0, -1) if side % part == 0)


def _window(place: Place, default: object) -> Any:
    """Windows that divide the map; if the mechanism has a default, that or the shorter side of the map."""
    if place.size is None:
        return default
    if isinstance(default, int):
        return min(default, *place.size)
    return tuple(_divisor(side, _WIDEST_WINDOW) for side in place.size)


Rule = Callable[[Place, object], Any]
ALWAYS: dict[str, Rule] = {
    **dict.fromkeys(("dim", "channels", "embed_dim", "sender_dim", "receiver_dim"), lambda place, _: place.dim),
    **dict.fromkeys(("num_heads", "heads", "num_groups"), lambda place, default: place.heads_like(default)),
    **dict.fromkeys(("prefix", "text_tokens"), lambda place, _: place.prefix),
    "head_dim": lambda place, _: place.dim // place.heads_like(None),
    "heads_local": lambda place, _: (place.heads_like(None) + 1) // 2,
    "heads_routed": lambda place, _: place.heads_like(None) // 2,
    "shared": lambda place, _: max(place.heads_like(None) // 4, 1),
    "active": lambda place, _: max(place.heads_like(None) // 2, 1),
    "host": lambda place, _: place.host,
    "causal": lambda place, default: place.causal or default,
    "strict": lambda place, default: "evaluation" if place.causal else default,
    "metric_scope": lambda place, default: "prefix" if place.causal else default,
    "layer": lambda place, _: place.layer,
    "num_layers": lambda place, _: place.num_layers,
    "attn_drop": lambda place, default: place.dropout or default,
}
"""Arguments of constructors that a slot fills in, by name, from what it knows and the argument's default."""
WHERE_REQUIRED: dict[str, Rule] = {
    **dict.fromkeys(("tokens", "num_tokens", "senders", "receivers", "positions"), lambda place, _: place.all_tokens),
    **dict.fromkeys(("size", "grid"), lambda place, _: place.size),
    "hidden": lambda place, _: max(place.dim // 16, 4),
    "hidden_dim": lambda place, _: 2 * place.dim,
    "attended": lambda place, _: max(place.dim // 4, 1),
}
"""The same for arguments without a default of their own."""
OF_MAPS: dict[str, Rule] = {
    "window": _window,
    # Of 32 channels and more a mechanism's own number fits; others have the largest one that does.
    "norm_groups": lambda place, default: default if place.dim % 32 == 0 else _divisor(place.dim, 16),
    "regions": lambda place, default: default if place.size is None else min(7, *place.size),
}
"""The same for mechanisms of maps."""
_NEEDS = {"tokens": "tokens", "num_tokens": "tokens", "senders": "tokens", "receivers": "tokens", "positions": "tokens"}


def _filled(entry: Mechanism, place: Place, given: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a mechanism's constructor at a place; UsageError for one that is unknown or cannot be filled."""
    parameters = inspect.signature(entry.target).parameters
    for argument in given:
        if argument not in parameters:
            raise unknown(f"argument of {entry.name}", argument, parameters)
    arguments = dict(given)
    for name, parameter in parameters.items():
        required = parameter.default is parameter.empty
        rule = ALWAYS.get(name) or (WHERE_REQUIRED.get(name) if required else None)
        if entry.interface == "maps":
            rule = OF_MAPS.get(name, rule)
        if name in arguments or (rule is None and not required):
            continue
        value = None if rule is None else rule(place, None if required else parameter.default)
        if value is None and required:
            raise UsageError(f"{name} of {entry.name} is None; give {_NEEDS.get(name, 'size')}= or {name}=.")
        arguments[name] = value
    return arguments


def _counts_patches(entry: Mechanism) -> bool:
    """Whether it takes the cells of a grid and nothing before them."""
    parameters = inspect.signature(entry.target).parameters
    given = [parameters[name] for name in ("size", "grid") if name in parameters]
    has_size = any(parameter.default is parameter.empty for parameter in given)
    return entry.interface == "maps" or (has_size and not {"prefix", "text_tokens"} & set(parameters))


class ProjectedHeads(nn.Module):
    """A mechanism of queries, keys and values between projections, so that it takes tokens.

    q, k, v = W x + b for each head;   out = W_o mechanism(q, k, v) + b_o

    Args:
        mechanism: (q, k, v) -> (batch, tokens, dim).
        dim: of the tokens.
        num_heads: divides `dim`.

    Shapes: (batch, tokens, dim) -> the same.
    """

    def __init__(self, mechanism: nn.Module, dim: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.qkv, self.mechanism, self.proj = nn.Linear(dim, 3 * dim), mechanism, nn.Linear(dim, dim)

    def forward(self, tokens: Tensor) -> Tensor:
        parts = self.qkv(tokens).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        out: Tensor = self.proj(self.mechanism(*parts.unbind(0)))
        return out


class Adapted(nn.Module):
    """A mechanism in a slot of another interface.

    In a slot of tokens a mechanism of maps sees the patches as a map. The tokens before them, such as a class token,
    take no part in it; each receives the mean of what the patches receive.

    Args:
        mechanism: a module from tokens or maps to the same.
        inner, outer: interfaces of the mechanism and of the slot, "tokens" or "maps".
        channels_last: whether the mechanism's maps are (batch, height, width, channels).
        size: rows and columns of the patches, for a mechanism of maps among tokens.
        prefix: tokens before the patches that the mechanism does not see.

    Shapes: as the slot's interface.
    """

    def __init__(
        self,
        mechanism: nn.Module,
        inner: str,
        outer: str,
        *,
        channels_last: bool = False,
        size: tuple[int, int] | None = None,
        prefix: int = 0,
    ) -> None:
        super().__init__()
        self.mechanism, self.inner, self.outer = mechanism, inner, outer
        self.channels_last, self.size, self.prefix = channels_last, size, prefix

    def _on_tokens(self, tokens: Tensor) -> Tensor:
        """Tokens without those before the patches -> the same."""
        if self.inner == "tokens":
            return self.mechanism(tokens)
        rows, columns = self.size or (1, tokens.shape[1])
        if rows * columns != tokens.shape[1]:
            raise UsageError(
                f"there are {tokens.shape[1]} patches, and {type(self.mechanism).__name__} was put among {rows} x"
                f" {columns} of them; give images of that size, or put it in for these (img_size)."
            )
        cells = tokens.unflatten(1, (rows, columns))
        if self.channels_last:
            return self.mechanism(cells).flatten(1, 2)
        return self.mechanism(cells.permute(0, 3, 1, 2)).flatten(2).transpose(1, 2)

    def forward(self, x: Tensor) -> Tensor:
        if self.outer == "tokens":
            out = self._on_tokens(x[:, self.prefix :])
            return torch.cat((out.mean(1, keepdim=True).expand(-1, self.prefix, -1), out), 1) if self.prefix else out
        if self.inner == "tokens":
            return self.mechanism(x.flatten(2).transpose(1, 2)).transpose(1, 2).unflatten(2, x.shape[2:])
        if self.channels_last:
            return self.mechanism(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        return self.mechanism(x)

    def extra_repr(self) -> str:
        return f"{self.inner} in a slot of {self.outer}"


def _fits_causal(entry: Mechanism) -> bool:
    return entry.interface is not None and "causal" in entry.promises


def fill_slot(name: str, slot: str, place: Place, arguments: Mapping[str, Any] | None = None) -> nn.Module:
    """A mechanism of the catalogue for a slot of a block.

    Args:
        name: one of `list_mechanisms(interface=...)`.
        slot: the interface of the slot, "tokens" or "maps".
        place: what the slot knows; arguments of the mechanism's constructor are filled from it by their names.
        arguments: further ones, which come first.

    Raises:
        UsageError: for a mechanism that fits no slot, an unknown argument, or one that the slot cannot fill in.
    """
    check_choice("slot", slot, SLOTS)
    check_positive(dim=place.dim)
    entry = _fitting(name)
    if place.causal and "causal" not in entry.promises:
        fitting = ", ".join(each for each in list_mechanisms() if _fits_causal(MECHANISMS[each]))
        raise UsageError(f"mechanism is {name!r}, which is not causal, and the network is; give one of {fitting}.")
    filled = _filled(entry, place, arguments or {})
    try:
        module = entry.target(**filled)
    except TypeError as error:
        raise UsageError(f"{name} cannot be made with {dict(arguments or {})} ({first_line(error)}).") from error
    if entry.interface == "qkv":
        module = ProjectedHeads(module, place.dim, module.num_heads)
    inner = _LAYOUT[str(entry.interface)]
    prefix = place.prefix if slot == "tokens" and _counts_patches(entry) else 0
    if inner == slot and not entry.channels_last and not prefix:
        return module
    if slot == "tokens" and inner == "maps" and place.size is None:
        raise UsageError(f"size of the slot of {name} is None; a mechanism of maps needs rows and columns: give size=.")
    return Adapted(module, inner, slot, channels_last=entry.channels_last, size=place.size, prefix=prefix)


def needs_size(name: str) -> bool:
    """Whether a mechanism is made for a number of tokens or a size of the map."""
    parameters = inspect.signature(_fitting(name).target).parameters.values()
    sized = {"window", *WHERE_REQUIRED} - {"hidden", "hidden_dim", "attended"}
    return any(parameter.default is parameter.empty and parameter.name in sized for parameter in parameters)


def _fitting(name: str) -> Mechanism:
    """The entry of a mechanism that fits a slot."""
    check_text(name=name)
    if name not in MECHANISMS and name not in ALIASES:
        raise unknown("mechanism", name, list_mechanisms(interface="tokens") + list_mechanisms(interface="maps"))
    entry = get_mechanism(name)
    if entry.interface is None:
        raise UsageError(
            f"mechanism is {name!r}, which fits no slot: {entry.why_no_interface}. Choose one of"
            " mereo.list_mechanisms(interface='tokens') or 'maps'."
        )
    return entry


def create_mechanism(
    name: str,
    dim: int,
    *,
    heads: int | None = None,
    tokens: int | None = None,
    size: tuple[int, int] | None = None,
    **arguments: Any,
) -> nn.Module:
    """A mechanism alone, with the shapes of its interface: see `mereo.list_mechanisms(interface=...)`.

    Args:
        name: a mechanism of the catalogue with an interface.
        dim: its width, the channels of maps or the size of tokens.
        heads: of attention; by default the mechanism's own number, or the largest divisor of `dim` below it.
        tokens: how many there are, for mechanisms made for a number of tokens; by default rows * columns.
        size: rows and columns, for mechanisms made for a size.
        arguments: any other argument of its constructor.

    Shapes: tokens (batch, tokens, dim) or maps (batch, dim, height, width) -> the same, or q, k, v (batch, heads,
        tokens, dim / heads) -> (batch, tokens, dim).

    Raises:
        UsageError: for a mechanism without an interface, an unknown argument, or one that is missing.
    """
    entry = _fitting(name)
    place = Place(dim, heads, size, tokens)
    if entry.interface == "qkv":
        check_positive(dim=dim)
        module: nn.Module = entry.target(**_filled(entry, place, arguments))
        return module
    return fill_slot(name, str(entry.interface), place, arguments)
