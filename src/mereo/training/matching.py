"""Pairs of places of a student and its teacher, and how the tensors computed there are compared."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mereo.core import Coupling, Trace, record
from mereo.errors import UsageError, check_choice, check_positive, unknown

What = Literal["output", "layer", "input", "coupling"]
WHAT = ("output", "layer", "input", "coupling")
Loss = Callable[[Tensor, Tensor], Tensor]
"""(student, teacher) -> scalar; the teacher's value has no gradient."""

SMALLEST = 1e-8
"""Probabilities below this are this much in a logarithm, so that a pair that the student leaves out costs little."""


def mse(student: Tensor, teacher: Tensor) -> Tensor:
    """Mean of the squared differences."""
    return F.mse_loss(student, teacher)


def squares(student: Tensor, teacher: Tensor) -> Tensor:
    """Sum of the squared differences."""
    return F.mse_loss(student, teacher, reduction="sum")


def kl_of_shares(student: Tensor, teacher: Tensor, axis: int = -1) -> Tensor:
    """KL(teacher || student) of probabilities along an axis, the mean over everything else."""
    logs = teacher.clamp(min=SMALLEST).log() - student.clamp(min=SMALLEST).log()
    return (teacher * logs).sum(axis).mean()


def kl_of_logits(student: Tensor, teacher: Tensor, temperature: float = 1.0) -> Tensor:
    """T^2 KL(softmax(teacher / T) || softmax(student / T)) along the last axis, the mean over everything else."""
    logs, expected = (x.flatten(0, -2).div(temperature).log_softmax(-1) for x in (student, teacher))
    return temperature**2 * F.kl_div(logs, expected, reduction="batchmean", log_target=True)


@dataclass(frozen=True)
class Match:
    """One term of a distillation: weight * loss(what the student computes, what the teacher computes).

    Args:
        what: "output" of the networks, output of a "layer", "input" of a layer (its first), or a "coupling": couplings
            (batch, heads, receivers, senders) over all tokens, as `mereo.record` shows them.
        teacher: name of the teacher's layer or coupling.
        student: name in the student; the same by default.
        student_what: the student's kind, if it differs, such as a layer that predicts couplings.
        loss: "mse", "squares" (their sum), "kl", or a function (student, teacher) -> scalar. "kl" takes couplings as
            probabilities, along the axis that they are normalised over, and outputs and layers as logits.
        weight: factor of the term.
        temperature: divides logits in "kl", whose result is multiplied by its square.
    """

    what: What = "output"
    teacher: str = ""
    student: str | None = None
    student_what: What | None = None
    loss: str | Loss = "mse"
    weight: float = 1.0
    temperature: float = 1.0

    def __post_init__(self) -> None:
        for argument, value in (("what", self.what), ("student_what", self.student_what or self.what)):
            check_choice(argument, value, WHAT)
        check_positive(weight=self.weight, temperature=self.temperature)
        if isinstance(self.loss, str):
            check_choice("loss", self.loss, ("mse", "squares", "kl"))
        if self.what != "output" and not self.teacher:
            raise UsageError(f"teacher is '' for a {self.what}; give its name.")

    @property
    def places(self) -> tuple[tuple[str, str], tuple[str, str]]:
        """Kind and name of the tensors taken from the teacher and from the student."""
        other = self.teacher if self.student is None else self.student
        return (self.what, self.teacher), (self.student_what or self.what, other)

    @property
    def label(self) -> str:
        """Name of the term in the history."""
        (what, _), (_, name) = self.places
        loss = self.loss if isinstance(self.loss, str) else getattr(self.loss, "__name__", "loss")
        return f"{name or what} {loss}"

    def __call__(self, student: Tensor, teacher: Tensor, axis: int = -1) -> Tensor:
        """The weighted term."""
        if student.shape != teacher.shape and isinstance(self.loss, str):
            raise UsageError(
                f"{self.label}: the student's value is {tuple(student.shape)} and the teacher's"
                f" {tuple(teacher.shape)}; give places of equal shapes, or a function as loss."
            )
        if callable(self.loss):
            return self.weight * self.loss(student, teacher)
        if self.loss == "kl" and self.what == "coupling":
            return self.weight * kl_of_shares(student, teacher, axis)
        if self.loss == "kl":
            return self.weight * kl_of_logits(student, teacher, self.temperature)
        return self.weight * (mse if self.loss == "mse" else squares)(student, teacher)


def _module(model: nn.Module, what: str, name: str, role: str) -> nn.Module:
    there = dict(model.named_modules())
    if name not in there:
        raise unknown(f"{what} of the {role}", name, [n for n in there if n])
    module = there[name]
    if what == "coupling" and not isinstance(module, Coupling):
        raise UsageError(f"{name!r} of the {role} is a {type(module).__name__}, which makes no couplings.")
    return module


def check_places(model: nn.Module, places: Sequence[tuple[str, str]], role: str) -> None:
    """UsageError for the first place that the model does not have."""
    for what, name in places:
        if what != "output":
            _module(model, what, name, role)


class Views:
    """The tensors that a model computes in chosen places, filled by each forward pass inside `watching`."""

    def __init__(self, role: str) -> None:
        self.role, self.output = role, None
        self.layers: dict[tuple[str, str], Any] = {}
        self.trace = Trace()

    def value(self, what: str, name: str) -> Tensor:
        """The last value of one place; UsageError without one, or if it is no tensor."""
        if what == "coupling":
            if name not in self.trace:
                raise UsageError(f"coupling {name!r} of the {self.role} was not made in its forward pass.")
            call = self.trace.calls(name)[-1]
            assert call.couplings is not None
            return call.couplings if call.tiles is None else call.tiles.place(call.couplings, sparse=False)
        value = self.output if what == "output" else self.layers.get((what, name))
        if isinstance(value, (tuple, list)) and value:
            value = value[0]
        if not isinstance(value, Tensor):
            place = f"{what} {name!r}" if name else what
            raise UsageError(f"{place} of the {self.role} is {type(value).__name__}; it must be a tensor.")
        return value

    def axis(self, name: str) -> int:
        """The axis along which a coupling is normalised."""
        return -2 if self.trace.calls(name)[-1].over == "receivers" else -1


@contextmanager
def watching(
    model: nn.Module, places: Sequence[tuple[str, str]], role: str, *, gradients: bool
) -> Iterator[Callable[..., Views]]:
    """A function that runs the model and gives its `Views`, while the block is open."""
    views = Views(role)

    def keep(what: str, name: str) -> Callable[[nn.Module, Any, Any], None]:
        def hook(module: nn.Module, inputs: Any, output: Any) -> None:
            views.layers[what, name] = inputs if what == "input" else output

        return hook

    named = dict(model.named_modules())
    at_layers = [place for place in dict.fromkeys(places) if place[0] in ("layer", "input")]
    hooks = [named[name].register_forward_hook(keep(what, name)) for what, name in at_layers]
    couplings = list(dict.fromkeys(name for what, name in places if what == "coupling"))

    def run(*inputs: Any) -> Views:
        views.layers.clear()
        with record(model, couplings, gradients=gradients) as trace, torch.set_grad_enabled(gradients):
            views.output, views.trace = model(*inputs), trace
        return views

    try:
        yield run
    finally:
        for hook in hooks:
            hook.remove()


def terms(matches: Sequence[Match], teacher: Views, student: Views) -> Mapping[str, Tensor]:
    """Every weighted term by its label; terms of one label are added."""
    values: dict[str, Tensor] = {}
    for match in matches:
        of_teacher, of_student = match.places
        axis = teacher.axis(of_teacher[1]) if of_teacher[0] == "coupling" else -1
        value = match(student.value(*of_student), teacher.value(*of_teacher).detach(), axis)
        values[match.label] = values[match.label] + value if match.label in values else value
    return values
