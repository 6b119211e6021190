"""The catalogue of mechanisms: each declares in one decorator what it is and what it promises.

`tests/conformance` checks every promise; the documentation and `mereo mechanisms` show them.
"""

import fnmatch
import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast

import torch
from torch import Tensor, nn

from mereo.core.inputs import check_inputs
from mereo.core.source import Source
from mereo.errors import UsageError, check_choice, check_positive, check_text, unknown

Example = tuple[nn.Module, tuple[Tensor, ...]]

FAMILIES: dict[str, str] = {
    "routing": "mechanisms.routing",
    "dense attention": "mechanisms.attention.dense",
    "local attention": "mechanisms.attention.local",
    "sparse attention": "mechanisms.attention.sparse",
    "memory": "mechanisms.attention.memory",
    "higher-order attention": "mechanisms.attention.higher_order",
    "scan": "mechanisms.scan",
    "gate": "mechanisms.gate",
    "mixer": "mechanisms.mixer",
    "token selection": "mechanisms.select",
    "technique": "surgery",
    "intervention": "interventions",
}
"""Each family with the package of its files."""

OVER = ("senders", "receivers", "both", "none")
RECORDS = ("couplings", "gates", "states", "kept tokens", "nothing")

PROMISES: dict[str, str] = {
    "normalised": "the recorded couplings sum to one along `over` (along both axes together for 'both')",
    "masks": "takes mask, bool (batch, senders): senders with False change nothing; if all are, the output is finite",
    "any sender order": "permuting the senders changes nothing",
    "any receiver order": "permuting the receivers permutes the output in the same way",
    "causal": "no output depends on a later sender",
    "streaming": "step(x, state) -> (y, state), called position by position, equals forward",
    "recurrence": "mereo.recurrence(mixer, x) gives terms Lambda, B, C, D whose recurrence equals forward to 1e-6",
    "any length": "takes more and fewer senders than its example",
    "compile": "torch.compile(fullgraph=True) gives the same outputs and gradients",
    "export": "torch.export with a free batch size gives the same outputs",
    "half precision": "float16 and bfloat16 stay close to float32",
    "couplings only": "with every coupling set to 0 no input changes the output",
}
"""The promises of mechanisms, each with the property that the conformance tests check."""

COMMON = ("compile", "export", "half precision", "couplings only")
"""Promised by every mechanism that does not give a reason in `lacks`; the last one only if it records couplings."""

INTERFACES: dict[str, str] = {
    "tokens": "(batch, tokens, dim) -> the same",
    "maps": "(batch, channels, height, width) -> the same",
    "qkv": "queries, keys and values (batch, heads, tokens, dim / heads) -> (batch, tokens, dim)",
}
"""The slots of networks that a mechanism may fill, each with its shapes; see `mereo.create_mechanism`."""

T = TypeVar("T")


@dataclass(frozen=True)
class Depends(Generic[T]):
    """A fact that an argument of the mechanism decides: see `depends`."""

    on: str
    default: T

    def __str__(self) -> str:
        return f"{self.default} (argument {self.on})"


def depends(on: str, default: T) -> Depends[T]:
    """A fact that argument `on` decides; `default` holds for the argument's own default."""
    return Depends(on, default)


@dataclass(frozen=True)
class Mechanism:
    """One entry of the catalogue.

    Attributes:
        name: the file's name.
        family: one of `FAMILIES`, which determines the package of its file.
        source: where it is published.
        target: the class; for a technique a function model -> model, for an intervention one model -> context manager.
        example: builds a small instance (for a function: a model to apply it to) and its inputs.
        over: the axis along which its couplings are normalised: "senders", "receivers", "both" together, or "none".
        steps: how often it records in one forward pass.
        values: what a sender contributes: a value "per pair" with each receiver, or one "shared" by all receivers.
        update: what makes a receiver out of the combined votes.
        records: what `mereo.record` shows: "couplings", "gates", "states", "kept tokens" or "nothing".
        also_records: further kinds that it shows.
        promises: the names in `PROMISES` that hold for it.
        lacks: the names in `COMMON` that do not hold, each with the reason.
        zero_gradients: parameters whose gradient may be zero, each with the reason.
        sender_axes: the axis that counts senders, by input (its position, "0") and parameter (its name).
        receiver_axes: the axis that counts receivers, in the same form, also of the "output".
        tuple_size: how many senders a coupling joins: 2 where all pairs of senders have couplings.
        largest_input: the largest factor of the inputs for which outputs must be finite.
        reconstruction: why it is a reconstruction (its source's equations were not available); "" if it is none.
        interface: one of `INTERFACES`, or None for a mechanism that fits no slot; see `why_no_interface`.
        channels_last: whether its maps are (batch, height, width, channels); slots convert them.
        aliases: other names under which it is found.
    """

    name: str
    family: str
    source: Source
    target: Callable[..., Any]
    example: Callable[[], Example]
    over: str | Depends[str]
    steps: int | Depends[int]
    values: str
    update: str
    records: str
    also_records: tuple[str, ...]
    promises: frozenset[str]
    lacks: Mapping[str, str]
    zero_gradients: Mapping[str, str]
    sender_axes: Mapping[str, int]
    receiver_axes: Mapping[str, int]
    tuple_size: int
    largest_input: float
    reconstruction: str
    interface: str | None = None
    channels_last: bool = False
    aliases: tuple[str, ...] = ()

    @property
    def summary(self) -> str:
        """The first line of the docstring."""
        return (inspect.getdoc(self.target) or "").partition("\n")[0]

    @property
    def room(self) -> str:
        """The package of its file."""
        return FAMILIES[self.family]

    @property
    def why_no_interface(self) -> str:
        """The reason why it fits no slot; empty for one that does."""
        if self.interface is not None:
            return ""
        if not inspect.isclass(self.target):
            return "it is applied to a model"
        needed = [
            p.name
            for p in inspect.signature(cast("type[nn.Module]", self.target).forward).parameters.values()
            if p.default is p.empty
        ]
        if len(needed) > 2:
            return f"it takes {' and '.join(needed[1:])}"
        with torch.random.fork_rng(devices=[]):
            module, inputs = self.example()
        with torch.no_grad():
            before, after = tuple(inputs[0].shape), tuple(module.eval()(*inputs).shape)
        return "it declares none" if before == after else f"it makes {after} of {before}"

    def facts(self) -> dict[str, str]:
        """Its row in the table of mechanisms, by column; promises are in `promised`."""
        couples = self.records == "couplings"
        return {
            "couplings sum over": str(self.over) if couples else "-",
            "values of a sender": self.values or "-",
            "steps": str(self.steps) if self.records != "nothing" else "-",
            "update": self.update or "-",
            "records": ", ".join((self.records, *self.also_records)),
            "reconstruction": self.reconstruction or "-",
            "interface": self.interface or "-",
        }

    def promised(self) -> dict[str, bool]:
        """Every promise of `PROMISES` and whether this mechanism makes it."""
        return {promise: promise in self.promises for promise in PROMISES}


MECHANISMS: dict[str, Mechanism] = {}
ALIASES: dict[str, str] = {}
"""Other names of mechanisms, with the names in `MECHANISMS`."""
F = TypeVar("F", bound=Callable[..., Any])


def mechanism(
    name: str,
    *,
    family: str,
    source: str,
    example: Callable[[], Example],
    over: str | Depends[str] = "none",
    steps: int | Depends[int] = 1,
    values: str = "",
    update: str = "",
    records: str = "couplings",
    also_records: Collection[str] = (),
    promises: Collection[str] = (),
    lacks: Mapping[str, str] | None = None,
    zero_gradients: Mapping[str, str] | None = None,
    sender_axes: Mapping[str, int] | None = None,
    receiver_axes: Mapping[str, int] | None = None,
    tuple_size: int = 1,
    largest_input: float = 1e30,
    reconstruction: str = "",
    interface: str | None = None,
    channels_last: bool = False,
    aliases: tuple[str, ...] = (),
) -> Callable[[F], F]:
    """Register the decorated class or function under `name`; see `Mechanism` for the facts."""
    check_choice("family", family, FAMILIES)
    check_choice("over", over.default if isinstance(over, Depends) else over, OVER)
    check_choice("records", records, RECORDS)
    for kind in also_records:
        check_choice("also_records", kind, RECORDS[:-1])
    check_positive(largest_input=largest_input, tuple_size=tuple_size)
    if interface is not None:
        check_choice("interface", interface, INTERFACES)
    if channels_last and interface != "maps":
        raise UsageError(f"channels_last is True and interface is {interface!r}; only 'maps' have channels to order.")
    for promise, reason in (lacks or {}).items():
        check_choice("lacks", promise, COMMON)
        _check_reason("lacks", promise, reason)
    for parameter, reason in (zero_gradients or {}).items():
        _check_reason("zero_gradients", parameter, reason)
    senders, receivers = dict(sender_axes or {}), dict(receiver_axes or {})
    _check_promises(promises, over=over, sender_axes=senders, receiver_axes=receivers)
    common = set(COMMON) if records == "couplings" else set(COMMON) - {"couplings only"}
    everything = frozenset(promises) | (common - set(lacks or {}))

    def register(target: F) -> F:
        if name in MECHANISMS:
            raise UsageError(f"mechanism {name!r} is registered twice: {MECHANISMS[name].target} and {target}.")
        ALIASES.update(dict.fromkeys(aliases, name))
        MECHANISMS[name] = Mechanism(
            name=name,
            family=family,
            source=Source(source),
            target=target,
            example=example,
            over=over,
            steps=steps,
            values=values,
            update=update,
            records=records,
            also_records=tuple(also_records),
            promises=everything,
            lacks=dict(lacks or {}),
            zero_gradients=dict(zero_gradients or {}),
            sender_axes=senders,
            receiver_axes=receivers,
            tuple_size=tuple_size,
            largest_input=largest_input,
            reconstruction=reconstruction,
            interface=interface,
            channels_last=channels_last,
            aliases=tuple(aliases),
        )
        if inspect.isclass(target) and hasattr(target, "forward") and not hasattr(target.forward, "checks_inputs"):
            check_inputs(cast("type[nn.Module]", target), example)
        return target

    return register


_NEEDED_BY = {
    "sender_axes": ("any sender order", "any length", "masks", "causal"),
    "receiver_axes": ("any receiver order", "causal", "streaming"),
}
"""For each argument that names axes, the promises that are tested along these axes."""


def _check_promises(promises: Collection[str], *, over: str | Depends[str], **axes: Mapping[str, int]) -> None:
    """UsageError for an unknown promise, or one without the axes along which it is tested."""
    if isinstance(promises, str):
        raise UsageError(f"promises is {promises!r}; give a tuple of names.")
    for promise in promises:
        check_choice("promises", promise, PROMISES)
    if "normalised" in promises and over == "none":
        raise UsageError("over is 'none' with 'normalised' among the promises; name the axis that sums to one.")
    for argument, needed_by in _NEEDED_BY.items():
        for promise in needed_by:
            if promise in promises and not axes[argument]:
                raise UsageError(f"{argument} is empty with {promise!r} among the promises; name the axes to test.")


def _check_reason(argument: str, key: str, reason: str) -> None:
    if not reason.strip():
        raise UsageError(f"{argument} has {reason!r} for {key!r}; give the reason.")


def list_mechanisms(pattern: str = "*", family: str | None = None, *, interface: str | None = None) -> list[str]:
    """Names of the mechanisms that match a shell-style pattern, sorted.

    Args:
        family: only mechanisms of this family.
        interface: only those that fill this slot, one of `INTERFACES`.
    """
    if family is not None:
        check_choice("family", family, FAMILIES)
    if interface is not None:
        check_choice("interface", interface, INTERFACES)
    chosen = (MECHANISMS[name] for name in fnmatch.filter(MECHANISMS, pattern))
    fitting = (m for m in chosen if family in (None, m.family) and interface in (None, m.interface))
    return sorted(m.name for m in fitting)


def get_mechanism(name: str) -> Mechanism:
    """The entry of one mechanism, by its name or an alias; UsageError with the nearest names if there is none."""
    check_text(name=name)
    name = ALIASES.get(name, name)
    if name not in MECHANISMS:
        raise unknown("mechanism", name, MECHANISMS)
    return MECHANISMS[name]
