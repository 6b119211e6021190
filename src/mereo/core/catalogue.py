"""The catalogue of mechanisms: each declares in one decorator what it is, and the conformance tests hold it to that."""

import fnmatch
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from torch import Tensor, nn

from mereo.errors import UsageError, check_choice, unknown

Example = tuple[nn.Module, tuple[Tensor, ...]]
KINDS = ("routing", "attention", "memory")


@dataclass(frozen=True)
class Mechanism:
    """One row of the table of mechanisms.

    Attributes:
        name: the file's name.
        kind: the room it lives in.
        over: the axis along which its couplings are normalised, "senders" or "receivers".
        steps: how often it couples in one forward pass.
        says: what a sender says: "a vote per pair" or "the same to all".
        update: what makes a receiver out of the combined votes.
        paper: where it is from.
        positional: whether the order of senders carries meaning, so that permuting them may change the result.
        sender_axes: which axis counts senders, for each input (by position, "0") and parameter (by name) that has one.
        module: the class.
        example: builds a small instance and its inputs.
    """

    name: str
    kind: str
    over: str
    steps: int
    says: str
    update: str
    paper: str
    positional: bool
    sender_axes: Mapping[str, int]
    module: type[nn.Module]
    example: Callable[[], Example]

    @property
    def summary(self) -> str:
        """The first line of the class's docstring."""
        return (inspect.getdoc(self.module) or "").partition("\n")[0]


MECHANISMS: dict[str, Mechanism] = {}
M = TypeVar("M", bound=type[nn.Module])


def mechanism(
    name: str,
    *,
    kind: str,
    over: str,
    steps: int,
    says: str,
    update: str,
    paper: str,
    example: Callable[[], Example],
    positional: bool = False,
    sender_axes: Mapping[str, int] | None = None,
) -> Callable[[M], M]:
    """Register the decorated module under `name`; see `Mechanism` for the facts."""
    check_choice("kind", kind, KINDS)
    check_choice("over", over, ("senders", "receivers"))

    def register(module: M) -> M:
        if name in MECHANISMS:
            raise UsageError(f"mechanism {name!r} is registered twice: {MECHANISMS[name].module} and {module}.")
        MECHANISMS[name] = Mechanism(
            name, kind, over, steps, says, update, paper, positional, dict(sender_axes or {}), module, example
        )
        return module

    return register


def list_mechanisms(pattern: str = "*") -> list[str]:
    """Names of the mechanisms that match a shell-style pattern, sorted."""
    return sorted(fnmatch.filter(MECHANISMS, pattern))


def get_mechanism(name: str) -> Mechanism:
    """The row of one mechanism; UsageError with the nearest names if there is none."""
    if name not in MECHANISMS:
        raise unknown("mechanism", name, MECHANISMS)
    return MECHANISMS[name]
