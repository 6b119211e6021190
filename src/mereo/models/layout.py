"""How other libraries lay out the weights of mereo's networks: the tables that `mereo.convert` uses."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from mereo.errors import check_choice
from mereo.models.base import VisionModel


def same(tensor: Tensor) -> Tensor:
    """The tensor as it is."""
    return tensor


@dataclass(frozen=True)
class Pair:
    """One module or tensor of ours and its name elsewhere.

    Attributes:
        ours, theirs: names of two modules whose tensors correspond by name, or of two tensors.
        to_ours, to_theirs: what changes in a tensor on the way, such as the order of its rows. Only for tensors.
        part: (i, n) where ours is part i of the n equal parts of theirs along the first axis, such as the keys of a
            layer that makes keys and values together. Every part has a pair.
    """

    ours: str
    theirs: str
    to_ours: Callable[[Tensor], Tensor] = same
    to_theirs: Callable[[Tensor], Tensor] = same
    part: tuple[int, int] | None = None

    def read(self, tensor: Tensor) -> Tensor:
        """Ours, from a tensor of theirs."""
        if self.part is not None:
            number, count = self.part
            size = tensor.shape[0] // count
            tensor = tensor[number * size : (number + 1) * size].clone()
        return self.to_ours(tensor)

    @property
    def copies(self) -> bool:
        """Whether both tensors are the same."""
        return self.to_theirs is same and self.part is None


@dataclass(frozen=True)
class Layout:
    """How another library lays out the weights of a network of mereo's.

    Attributes:
        library: "timm", or "official" for the code of the authors.
        module: mereo's class.
        classes: names of the other library's classes.
        pairs: for a network of ours, every module and tensor with its name there. A more exact name comes before the
            module that contains it.
        arguments: a function that reads from a live network of the other library all our arguments that may differ
            from a preset's.
        ignored: tensors of theirs that ours does not need, such as index tables, by the end of their name.
    """

    library: str
    module: type[VisionModel]
    classes: tuple[str, ...]
    pairs: Callable[[Any], Iterable[Pair]]
    arguments: Callable[[Any], Mapping[str, Any]] | None = None
    ignored: tuple[str, ...] = ()


LAYOUTS: list[Layout] = []


def register_layout(
    library: str,
    module: type[VisionModel],
    pairs: Callable[[Any], Iterable[Pair]],
    *,
    classes: tuple[str, ...] = (),
    arguments: Callable[[Any], Mapping[str, Any]] | None = None,
    ignored: tuple[str, ...] = (),
) -> None:
    """Register how another library lays out the weights of a network, for `convert`: see `Layout`."""
    check_choice("library", library, ("timm", "official"))
    LAYOUTS.append(Layout(library, module, classes, pairs, arguments, ignored))
