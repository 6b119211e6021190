"""Sparse iterative inference in a CapsNet without routing: clamp image and label, and let the layers settle.

Source: Kiefer, Millidge, Tschantz, Buckley 2022, arXiv:2209.02567, section 3.1 and appendix C.
Cost: a step is a forward and a backward pass, except for the first convolution, which is computed once.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from mereo.core import lengths, settle
from mereo.errors import MereoError, UsageError, check_choice, check_positive
from mereo.inference.mode import evaluating
from mereo.models import CapsNet, VisionModel

CHUNK = 64
"""Descents that run together; more take more memory."""
Progress = Callable[[int, int], None]


class Inference(NamedTuple):
    """The settled layers.

    Attributes:
        hidden: the first convolution's activity a1 (batch, channels, rows, columns).
        primary: the primary capsules a2 (batch, senders, pose).
        classes: the class capsules a3 (batch, classes, pose).
        lengths: of the class capsules (batch, classes).
        energy: of each image (batch, steps + 1), before the first step and after each.
    """

    hidden: Tensor
    primary: Tensor
    classes: Tensor
    lengths: Tensor
    energy: Tensor


@dataclass(frozen=True)
class Descent:
    """Settings of the descent; see `infer`, whose arguments these are."""

    steps: int = 500
    lr: float = 0.01
    penalty: float = 0.0
    method: str = "sgd"
    free: str = "all"
    rectify: bool = True

    def __post_init__(self) -> None:
        check_positive(steps=self.steps, lr=self.lr)
        if not isinstance(self.steps, int):
            raise UsageError(f"steps is {self.steps!r}; it must be a whole number.")
        if not (isinstance(self.penalty, int | float) and math.isfinite(self.penalty) and self.penalty >= 0):
            raise UsageError(f"penalty is {self.penalty!r}; it must be a number of at least 0.")
        check_choice("method", self.method, ("sgd", "prox"))
        check_choice("free", self.free, ("all", "class"))


def infer(
    model: VisionModel,
    images: Tensor,
    labels: Tensor,
    *,
    steps: int = 500,
    lr: float = 0.01,
    penalty: float = 0.0,
    method: str = "sgd",
    free: str = "all",
    rectify: bool = True,
    progress: Progress | None = None,
) -> Inference:
    """Descend the energy of the activities, with image x and label t clamped and the weights held.

        F = |a1 - f1(x)|^2 + |a2 - f2(a1)|^2 + |a3 - f3(a2)|^2 + sum_j (|a3_j| - t_j)^2 + lambda sum_j |a3_j|

    f1 is the first convolution with its ReLU, f2 the primary capsules and f3 the class capsules, both squashed. The
    activities start at the forward pass. With a2 held and u = f3(a2), a3_j keeps the direction of u_j and settles at

        |a3_j| = max(0, (|u_j| + t_j - lambda / 2) / 2)

    Args:
        model: a CapsNet made with `routing_steps=0`.
        images: as the model takes them.
        labels: the class clamped for each image.
        steps, lr: of gradient descent without momentum on all free activities at once. The energy is a sum over images,
            so that one rate suits every batch.
        penalty: lambda, the price of a class capsule's length; 0 is plain predictive coding.
        method: "sgd" descends the whole, and capsules that ought to vanish stay at a length of some lr * lambda; "prox"
            takes a step on the smooth part and then shortens each class capsule by lr * lambda: exact zeros.
        free: "all" activities, or only the activities of the "class" capsules, which needs no convolution in a step.
        rectify: keep the ReLU of f1. The authors' code for inference leaves it out, though it trained with it, and so
            do their figures.
        progress: called with (steps done, steps in all) after each step, over all parts of the batch.

    Shapes: images (batch, channels, height, width), labels int64 (batch,) -> see `Inference`.

    Raises: UsageError for a network that routes; MereoError when the descent diverges, which a smaller `lr` cures.

    Reference: arXiv:2209.02567, section 3.1.
    """
    how = Descent(steps, lr, penalty, method, free, rectify)
    network = _checked(model, images)
    _check_labels(labels, len(images), network.num_classes)
    parts = _descents(network, images, labels.unsqueeze(1), how, progress)
    return Inference(*(torch.cat(results) for results in zip(*parts, strict=True)))


def label_energies(
    model: VisionModel,
    images: Tensor,
    *,
    steps: int = 500,
    lr: float = 0.01,
    penalty: float = 0.0,
    method: str = "sgd",
    free: str = "all",
    rectify: bool = True,
    progress: Progress | None = None,
) -> Tensor:
    """The energy that each label leaves when it is clamped: the label of the smallest is the answer.

    F_k = min_a F(a; t = k)

    With `free="class"` and a penalty of at most 2 the answer always equals the answer of the forward pass, since the
    energy falls with the length of the capsule that is clamped to 1. Only the activities of earlier layers can
    change it.

    Args:
        model, images, steps, lr, penalty, method, free, rectify, progress: as for `infer`; images times classes
            descents are run.

    Shapes: images (batch, channels, height, width) -> (batch, classes).

    Raises: as `infer`.

    Reference: ours; the paper clamps only the true label.
    """
    how = Descent(steps, lr, penalty, method, free, rectify)
    network = _checked(model, images)
    every = torch.arange(network.num_classes).expand(len(images), -1)
    energies = [part.energy[:, -1] for part in _descents(network, images, every, how, progress)]
    return torch.cat(energies).view(every.shape)


def _descents(
    network: CapsNet, images: Tensor, labels: Tensor, how: Descent, progress: Progress | None
) -> Iterator[Inference]:
    """Part by part, the descents of each image with each of its labels clamped: labels (batch, labels)."""
    several = labels.shape[1]
    together = max(1, CHUNK // several)
    done, total = 0, -(-len(images) // together) * how.steps

    def after() -> None:
        nonlocal done
        done += 1
        if progress is not None:
            progress(done, total)

    with evaluating(network):
        for part, clamped in zip(images.split(together), labels.split(together), strict=True):
            with torch.no_grad():
                # The same in every step, because the image is clamped.
                hidden = network.conv(part)
                hidden = (hidden.relu() if how.rectify else hidden).repeat_interleave(several, 0)
            yield _descend(network, hidden, clamped.flatten().to(hidden.device), how, after)


def _descend(network: CapsNet, hidden: Tensor, labels: Tensor, how: Descent, after: Callable[[], None]) -> Inference:
    """The descents of one part: hidden is f1(x), labels are those clamped, and `after` is called after each step."""
    with torch.no_grad():
        primary = network.primary(hidden)
        classes = network.head(primary)
    predicted, target = classes, torch.nn.functional.one_hot(labels, network.num_classes).to(hidden.dtype)

    def smooth(a1: Tensor, a2: Tensor, a3: Tensor) -> Tensor:
        energy = (lengths(a3) - target).square().sum(1)
        if how.free == "class":
            return energy + (a3 - predicted).square().sum((1, 2))
        errors = (a1 - hidden, a2 - network.primary(a1), a3 - network.head(a2))
        return energy + sum(error.square().flatten(1).sum(1) for error in errors)

    first_free = 2 if how.free == "class" else 0
    trace = []

    def energies(state: list[Tensor]) -> tuple[Tensor, Tensor]:
        """Its smooth part and the price of the lengths, (batch,) each; their sum is kept."""
        energy, price = smooth(*state), how.penalty * lengths(state[2]).sum(1)
        trace.append((energy + price).detach())
        return energy, price

    def descend(state: list[Tensor]) -> list[Tensor]:
        state = [a.detach().requires_grad_(place >= first_free) for place, a in enumerate(state)]
        with torch.enable_grad():
            energy, price = energies(state)
            descended = energy if how.method == "prox" else energy + price
            gradients = torch.autograd.grad(descended.sum(), state[first_free:])
        with torch.no_grad():
            moved = [a - how.lr * g for a, g in zip(state[first_free:], gradients, strict=True)]
            if how.method == "prox":
                moved[-1] = _shorten(moved[-1], how.lr * how.penalty)
        after()
        return [*state[:first_free], *moved]

    state = settle(descend, [hidden, primary, classes], steps=how.steps)
    with torch.no_grad():
        energies(state)
    course = torch.stack(trace, 1)
    # Capsules that sgd cannot bring to rest may raise the energy a little; that does not count as divergence.
    if not course.isfinite().all() or (course[:, -1] > course[:, 0] + 1).any():
        raise MereoError(f"the descent diverged with lr {how.lr}; try a smaller one.")
    a1, a2, a3 = (a.detach() for a in state)
    return Inference(a1, a2, a3, a3.norm(dim=-1), course)


def _shorten(poses: Tensor, amount: float) -> Tensor:
    """Each capsule shortened by an amount, to zero at most: the proximal map of the sum of lengths."""
    length = poses.norm(dim=-1, keepdim=True)
    return poses * ((length - amount).clamp(min=0) / length.clamp(min=torch.finfo(length.dtype).tiny))


def _checked(model: VisionModel, images: Tensor) -> CapsNet:
    """The model, known to be a CapsNet that does not route and takes these images."""
    if not isinstance(model, CapsNet):
        raise UsageError(f"model is a {type(model).__name__}; inference needs a CapsNet made with routing_steps=0.")
    if model.num_classes == 0:
        raise UsageError("num_classes is 0: there are no class capsules to infer; call reset_classifier first.")
    steps, middle = model.routing_options["steps"], model.middle is not None
    if steps != 0 or middle:
        raise UsageError(
            f"model is a CapsNet with routing_steps={steps}{' and a middle layer' if middle else ''}; inference takes"
            " the place of routing, so make it with routing_steps=0 and without middle_capsules: capsnet_unrouted."
        )
    model.check_images(images)
    if not len(images):
        raise UsageError("images is empty; give at least one.")
    return model


def _check_labels(labels: Tensor, count: int, classes: int) -> None:
    if labels.dtype != torch.int64 or labels.shape != (count,):
        given = f"{labels.dtype} of shape {tuple(labels.shape)}"
        raise UsageError(f"labels is {given}; it must be torch.int64 of shape ({count},), one label per image.")
    if not 0 <= int(labels.min()) <= int(labels.max()) < classes:
        raise UsageError(f"labels has values outside 0 .. {classes - 1}.")
