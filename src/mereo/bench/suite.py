"""The structure of a benchmark: a suite has cases, a case has contenders, and a contender is built into a workload.

A suite is data and four functions of a `Setting`: inputs, contenders, the work that the sizes imply, and a wrapper for
external callables. Everything is rebuilt from names, so that a case can also run in a separate process.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from torch import Tensor

if TYPE_CHECKING:
    from mereo.bench.results import Run

Mode = Literal["forward", "training"]
Value = int | str
Role = Literal["contender", "part", "unchecked"]


class UnavailableError(Exception):
    """A contender that this installation cannot run; the message is the reason."""


@dataclass(frozen=True)
class Work:
    """Arithmetic and traffic.

    Attributes:
        flops: operations, a multiply-add counts two.
        bytes: moved to and from memory.
    """

    flops: float
    bytes: float


@dataclass(frozen=True)
class Setting:
    """The sizes of one case and the device it runs on."""

    sizes: Mapping[str, Value]
    device: str = "cpu"

    def size(self, name: str) -> int:
        """A size that is a number."""
        return int(self.sizes[name])

    def word(self, name: str) -> str:
        """A size that is a name."""
        return str(self.sizes[name])


@dataclass
class Workload:
    """A contender, ready to run.

    Attributes:
        call: takes the inputs of the case, returns a tensor or a tuple of tensors.
        leaves: tensors that get gradients besides the inputs.
        finish: called after the backward pass, such as the step of an optimiser.
        compared: after a backward pass, the gradients to compare with the reference's, in the same order; by default
            the gradients of the inputs and leaves.
    """

    call: Callable[..., Any]
    leaves: tuple[Tensor, ...] = ()
    finish: Callable[[], object] | None = None
    compared: Callable[[], tuple[Tensor | None, ...]] | None = None


@dataclass(frozen=True)
class Contender:
    """One implementation of the computation of a case.

    Attributes:
        name: of the row.
        build: makes the workload of a mode.
        role: "contender" is compared with the reference and may have a speed-up next to its name; "part" is a part of
            the reference and has a share of its time; "unchecked" cannot be compared and has no speed-up.
        needs: bytes it takes beyond its inputs, estimated from the sizes; 0 if unknown.
        work: arithmetic and traffic of this formulation, if they differ from the task's.
        exact: computes the relative error of its gradients in float64, compared with the reference's.
    """

    name: str
    build: Callable[[Mode], Workload]
    role: Role = "contender"
    needs: Callable[[Mode], int] = lambda mode: 0
    work: Callable[[Mode], Work] | None = None
    exact: Callable[[], float] | None = None


@dataclass(frozen=True)
class Table:
    """A table of a report, with lines of text before it."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()


def no_tables(setting: Setting, quick: bool) -> list[Table]:
    """For suites without further tables."""
    return []


def no_digest(run: "Run") -> list[Table]:
    """For suites without a table over all cases."""
    return []


def measurable(setting: Setting) -> str | None:
    """For suites all of whose cases can be measured."""
    return None


def as_function(function: Callable[..., Any], setting: Setting) -> Callable[[Mode], Workload]:
    """A callable from outside that takes the inputs of the case."""
    return lambda mode: Workload(function)


@dataclass(frozen=True)
class Suite:
    """A family of cases.

    Attributes:
        name: on the command line.
        summary: one line.
        takes: arguments and result of a callable from outside.
        sizes: of the published case.
        inputs: makes the inputs of a setting and mode; random, from a seed that the harness sets.
        contenders: of a setting; the first is the reference.
        work: the least work of the task: its operations, and every input, output and gradient moved once.
        sweeps: size -> values; each is swept with the others at `sizes`.
        growth: swept sizes with which time and memory grow as a power: the exponents are fitted and shown.
        theory: the exponent of time that the number of operations of a contender implies, by its name.
        quick, quick_sweeps: their replacements under `--quick`.
        threads: thread counts by default; 0 is all.
        modes: what is timed.
        memory: modes whose peak memory is measured, each contender in a separate process.
        timed: False measures only memory.
        limit: bytes that a contender may take while memory is measured.
        tolerance: relative error above which a contender is wrong.
        gradient_tolerance: the same for its gradients; by default the tolerance of the outputs.
        by_norm: compare the gradients in the type that is timed by the norm of all together, for networks in which the
            rounding of single gradients is as large as they are; contenders then have `exact`.
        adopt: makes a contender's `build` of a callable from outside.
        adopted: its role.
        tables: further results, measured after the cases.
        digest: tables over all cases, made from the finished run.
        also: further cases at every place: changes of its sizes, and the modes that are timed there.
        skip: the reason why a setting cannot be measured, such as a network that does not exist; None if it can.
        models: names that `--models` may choose in addition to the sweep over "model".
    """

    name: str
    summary: str
    takes: str
    sizes: Mapping[str, Value]
    inputs: Callable[[Setting, Mode], tuple[Any, ...]]
    contenders: Callable[[Setting], tuple[Contender, ...]]
    work: Callable[[Setting, Mode], Work | None]
    sweeps: Mapping[str, tuple[Value, ...]] = field(default_factory=dict)
    growth: tuple[str, ...] = ()
    theory: Mapping[str, float] = field(default_factory=dict)
    quick: Mapping[str, Value] = field(default_factory=dict)
    quick_sweeps: Mapping[str, tuple[Value, ...]] = field(default_factory=dict)
    threads: tuple[int, ...] = (0,)
    modes: tuple[Mode, ...] = ("forward", "training")
    memory: tuple[Mode, ...] = ("training",)
    timed: bool = True
    limit: int | None = None
    tolerance: float = 1e-4
    gradient_tolerance: float | None = None
    by_norm: bool = False
    adopt: Callable[[Callable[..., Any], Setting], Callable[[Mode], Workload]] = as_function
    adopted: Role = "contender"
    tables: Callable[[Setting, bool], list[Table]] = no_tables
    digest: "Callable[[Run], list[Table]]" = no_digest
    also: tuple[tuple[Mapping[str, Value], tuple[Mode, ...]], ...] = ()
    skip: Callable[[Setting], str | None] = measurable
    models: Callable[[], Sequence[str]] = tuple


@dataclass(frozen=True)
class Case:
    """One place of a suite: a setting, and how many threads work on it.

    Attributes:
        name: of the sizes that differ from case to case.
        setting: all of its sizes.
        axis: the size along which the suite is swept here, or "".
        threads: how many.
        modes: what is timed.
    """

    name: str
    setting: Setting
    axis: str
    threads: int
    modes: tuple[Mode, ...]
