"""Values to record and change in a running model: couplings, and signals such as gates, states and kept tokens."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Protocol

from torch import Tensor, nn

from mereo.core.topology import Grid, Tiles, Topology
from mereo.errors import check_choice, check_network

SIGNALS = ("gates", "states", "kept tokens")


@dataclass
class Call:
    """One evaluation of a `Coupling`.

    Attributes:
        scores: what is normalised, (batch, heads, receivers, senders); of a mechanism that attends inside tiles,
            (batch * tiles, heads, receivers of a tile, senders of a tile), and `tiles` places them.
        couplings: as used, of the same shape: normalised, then offset and weighted if the mechanism does so. None
            until they are made.
        over: the axis along which they are normalised.
        mask: bool, broadcastable to the scores, True = takes part; None if every pair does.
        offset, weight: what the mechanism adds to the normalised scores, and then multiplies them by; or None.
        topology: which pairs exist; None for every pair.
        tiles: which receivers and senders each tile holds; None if the scores are of the whole image.
        senders, receivers: their positions on the image; None without positions.
        context: from the mechanism and the caller of `intervene`: token types, positions, a cache.
        name: of the coupling in the watched model.
        step: number of earlier evaluations of this coupling inside the block.
        number: number of earlier evaluations of all couplings of the model.
    """

    scores: Tensor
    over: str
    couplings: Tensor | None = None
    mask: Tensor | None = None
    offset: Tensor | None = None
    weight: Tensor | None = None
    topology: Topology | None = None
    tiles: Tiles | None = None
    senders: Grid | None = None
    receivers: Grid | None = None
    context: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    name: str = ""
    step: int = 0
    number: int = 0

    def placed(self, values: Tensor) -> Tensor:
        """Scores or couplings of this call over the whole image: (batch, heads, receivers, senders)."""
        return values if self.tiles is None else self.tiles.place(values)


class Observer(Protocol):
    """Sees, and may replace, what goes through the modules that it was added to."""

    def scores(self, call: Call) -> Tensor: ...
    def couplings(self, call: Call) -> Tensor: ...
    def signal(self, value: Tensor, kind: str) -> Tensor: ...


class Observable(nn.Module):
    """A module that observers can be added to; copies and pickled modules have none."""

    def __init__(self) -> None:
        super().__init__()
        self.observers: list[Observer] = []

    def watch(self, observer: Observer) -> None:
        """Add an observer."""
        self.observers.append(observer)

    def unwatch(self, observer: Observer) -> None:
        """Take an observer away."""
        self.observers.remove(observer)

    @property
    def watched(self) -> bool:
        """Whether an observer needs the values, so that they must be computed."""
        return bool(self.observers or self._forward_hooks or self._forward_pre_hooks)

    def __getstate__(self) -> dict[str, Any]:
        # The end of the block removes observers from the original only; a copy would keep them for ever.
        return {**self.__dict__, "observers": []}


BORROWERS: list[Callable[[nn.Module], Observable | None]] = []
"""Functions that take a module of another library and give the coupling it uses while observed, or None."""


def borrowed(module: nn.Module) -> Observable | None:
    """The coupling of a module of another library, or None for one that is not known to make any."""
    return next((found for borrow in BORROWERS if (found := borrow(module)) is not None), None)


def observables(model: nn.Module) -> dict[str, Observable]:
    """Everything in a model that can be observed, by name; attention of other libraries as its name and ".coupling"."""
    check_network(model)
    model = getattr(model, "_orig_mod", model)
    there: dict[str, Observable] = {}
    for name, module in model.named_modules():
        if isinstance(module, Observable):
            there[name] = module
        elif (found := borrowed(module)) is not None:
            there[f"{name}.coupling".lstrip(".")] = found
    return there


class Signal(Observable):
    """Passes a value through, where `record` can see it and `intervene` change it.

    Args:
        kind: "gates" (such as factors between 0 and 1), "states" (of a scan) or "kept tokens" (bool, which stay).

    Shapes: any -> the same.
    """

    def __init__(self, kind: str) -> None:
        super().__init__()
        check_choice("kind", kind, SIGNALS)
        self.kind = kind

    def forward(self, value: Tensor) -> Tensor:
        for observer in self.observers:
            value = observer.signal(value, self.kind)
        return value

    def extra_repr(self) -> str:
        return repr(self.kind)
