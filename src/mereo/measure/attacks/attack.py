"""One call for every attack: it checks the arguments, restarts, and keeps the best run for each image."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from mereo.errors import UsageError, check_choice
from mereo.inference.mode import evaluating
from mereo.measure.attacks.apgd import apgd
from mereo.measure.attacks.budget import Budget, random_start
from mereo.measure.attacks.losses import check_loss
from mereo.measure.attacks.pgd import bim, fgsm, pgd
from mereo.measure.attacks.square import square
from mereo.measure.attacks.target import Target
from mereo.models import VisionModel

Method = Callable[[Target, Tensor, Tensor, Tensor, Budget], Tensor]


class Attack(NamedTuple):
    """One attack: its function on a batch, a summary, its source, whether the first run starts at a random point."""

    method: Method
    summary: str
    paper: str
    random: bool
    steps: int = 10


ATTACKS: dict[str, Attack] = {
    "fgsm": Attack(fgsm, "one step along the sign of the gradient", "arXiv:1412.6572", random=False, steps=1),
    "bim": Attack(bim, "small steps from the image", "arXiv:1607.02533", random=False),
    "pgd": Attack(pgd, "steps from a random point", "arXiv:1706.06083", random=True),
    "apgd": Attack(apgd, "momentum and adaptive step sizes", "arXiv:2003.01690", random=True),
    "square": Attack(square, "random squares, without gradients", "arXiv:1912.00049", random=True, steps=500),
}
"""The attacks by name."""


def check_attack(name: str, epsilon: float, steps: int | None, restarts: int, loss: str, model: VisionModel) -> None:
    """UsageError for the first invalid argument of an attack."""
    check_choice("attack", name, ATTACKS)
    if not 0 <= epsilon <= 1:
        raise UsageError(f"epsilon is {epsilon}; it must be between 0 and 1, the range of a pixel.")
    for argument, value in (("steps", steps), ("restarts", restarts)):
        if value is not None and value < 1:
            raise UsageError(f"{argument} is {value}; it must be at least 1.")
    if model.num_classes < 2:
        raise UsageError(f"the model has {model.num_classes} classes; an attack needs at least 2.")
    check_loss(loss, model)


def attack(
    name: str,
    model: VisionModel,
    images: Tensor,
    labels: Tensor,
    epsilon: float,
    *,
    steps: int | None = None,
    step_size: float | None = None,
    restarts: int = 1,
    loss: str = "cross_entropy",
    seed: int | torch.Generator = 0,
    watch: Callable[[Tensor], None] | None = None,
) -> Tensor:
    """Images that differ by at most epsilon in every pixel, stay in [0, 1], and that the network should misclassify.

    max_{|x' - x|_inf <= epsilon, x' in [0, 1]} L(model(x'), label)

    Each restart attacks the images still classified correctly, from a random point. Of two runs the misclassified
    image is kept, otherwise the one with the higher loss. The model is attacked in eval mode and left unchanged.

    Args:
        name: "fgsm", "bim", "pgd", "apgd" or "square".
        model: any classifier.
        images: in [0, 1], not normalised.
        labels: the true classes.
        epsilon: largest change of a pixel, in units of the full range; 0 gives the images back.
        steps: gradient steps, or queries of "square"; by default 10 and 500.
        step_size: change of a pixel in one step; the attack's own when None.
        restarts: number of tries.
        loss: what to raise: "cross_entropy" of the scores, "margin" (the loss of capsule networks) or "dlr".
        seed: of all random choices: a number, or a generator on the CPU.
        watch: called with the losses (batch,) at every step.

    Shapes: images (batch, channels, height, width), labels int64 (batch,) -> like images, without gradient.
    """
    check_attack(name, epsilon, steps, restarts, loss, model)
    if step_size is not None and not 0 < step_size < float("inf"):
        raise UsageError(f"step_size is {step_size}; it must be a number above 0.")
    _check_batch(model, images, labels)
    generator = seed if isinstance(seed, torch.Generator) else torch.Generator().manual_seed(seed)
    images = images.detach()
    if epsilon == 0 or not len(images):
        return images.clone()
    chosen = ATTACKS[name]
    budget = Budget(epsilon, chosen.steps if steps is None else steps, step_size, generator, watch)
    with evaluating(model):
        target = Target(model, loss)
        start = random_start(images, budget) if chosen.random else images
        best = chosen.method(target, images, labels, start, budget)
        for _ in range(restarts - 1):
            scores = target.scores(best)
            left = (scores.argmax(1) == labels).nonzero().flatten()
            if not len(left):
                break
            clean, own = images[left], labels[left]
            tried = chosen.method(target, clean, own, random_start(clean, budget), budget)
            new_scores = target.scores(tried)
            better = (new_scores.argmax(1) != own) | (
                target.loss_of(new_scores, own) > target.loss_of(scores[left], own)
            )
            best = best.index_copy(0, left[better], tried[better])
    return best


def _check_batch(model: VisionModel, images: Tensor, labels: Tensor) -> None:
    model.check_images(images)
    if labels.dim() != 1 or len(labels) != len(images) or labels.dtype != torch.int64:
        raise UsageError(
            f"labels is {labels.dtype} of shape {tuple(labels.shape)}; it must be torch.int64 of shape"
            f" ({len(images)},): attacks are for one label an image."
        )
    if not len(images):
        return
    # NaN fails the comparison too.
    if not bool(((images >= 0) & (images <= 1)).all()):
        raise UsageError("images has values outside [0, 1] or not a number; give pixels before normalisation.")
    if not 0 <= int(labels.min()) <= int(labels.max()) < model.num_classes:
        raise UsageError(f"labels has values outside 0 .. {model.num_classes - 1}.")
