"""Gradient masking: does a network resist attacks, or do its gradients only mislead them?

An attack that fails proves nothing unless it could have succeeded. Each check below compares the gradient attack with
something that can only be stronger where the gradients mislead: a weaker attack, an attack without gradients, one with
more freedom or more tries. After arXiv:1802.00420 (section 3.1) and arXiv:1902.06705 (section 4).
"""

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mereo.inference.mode import evaluating
from mereo.measure.attacks.attack import attack
from mereo.measure.attacks.budget import project
from mereo.measure.attacks.losses import losses_of
from mereo.measure.attacks.target import Target
from mereo.models import VisionModel
from mereo.runtime.text import percent

SLACK = 0.03
"""Differences of accuracy up to this share of the images count as chance."""
RESTARTS, RANDOM_POINTS, QUERIES = 5, 50, 300


class MaskingCheck(NamedTuple):
    """One check: its name, its numbers, whether they point to masked gradients, and the result in words."""

    name: str
    numbers: dict[str, Any]
    suspicious: bool
    words: str

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return self._asdict()


class _Probe:
    """A network, images that it classifies correctly, and the accuracy that remains after an attack."""

    def __init__(
        self, model: VisionModel, images: Tensor, labels: Tensor, loss: str, seed: int,
        done: Callable[[int], None],
    ) -> None:  # fmt: skip
        self.model, self.images, self.labels, self.loss, self.seed = model, images, labels, loss, seed
        self.done = done

    def left(self, images: Tensor) -> float:
        """Share of the images still classified correctly."""
        with evaluating(self.model):
            predicted = Target(self.model).scores(images).argmax(1)
        return float((predicted == self.labels).double().mean())

    def under(self, name: str, epsilon: float, **options: Any) -> float:
        """Accuracy under an attack."""
        options = {"loss": self.loss, "seed": self.seed, **options}
        left = self.left(attack(name, self.model, self.images, self.labels, epsilon, **options))
        self.done(1)
        return left


def look_for_masking(
    model: VisionModel,
    images: Tensor,
    labels: Tensor,
    epsilon: float,
    *,
    steps: int = 20,
    loss: str = "cross_entropy",
    others: Mapping[str, VisionModel] | None = None,
    seed: int = 0,
    done: Callable[[int], None] = lambda _: None,
) -> list[MaskingCheck]:
    """Compare PGD with attacks that can only be stronger if its gradients mislead, on a few images.

    Args:
        model: any classifier.
        images: in [0, 1], all classified correctly.
        labels: their classes.
        epsilon: of the attacks; most informative where about half of the images are still classified correctly.
        steps: of the gradient attack; at least 20.
        loss: of the gradient attack.
        others: further networks for the same images, from which attacks are transferred.
        seed: of all random choices.
        done: called with 1 after each part of the work; there are `masking_parts(len(others))`.

    Shapes: images (n, channels, height, width), labels int64 (n,).
    """
    if not len(images):
        return [
            MaskingCheck(
                "images", {"count": 0}, True, "No image is classified correctly, so there is nothing to attack."
            )
        ]
    steps, probe = max(steps, 20), _Probe(model, images, labels, loss, seed, done)
    trace: list[Tensor] = []
    white = probe.under("pgd", epsilon, steps=steps, watch=lambda losses: trace.append(losses.mean()))
    return [
        _zero_gradients(probe),
        _weaker("single step", "FGSM", probe.under("fgsm", epsilon), white),
        _unbounded(probe, steps),
        _loss_curve(torch.stack(trace).tolist()),
        _more(
            "restarts", f"{RESTARTS} random starts", probe.under("pgd", epsilon, steps=steps, restarts=RESTARTS), white
        ),
        _more("steps", f"{4 * steps} steps", probe.under("pgd", epsilon, steps=4 * steps), white),
        *[
            _more(f"loss {name}", f"the loss {name}", probe.under("pgd", epsilon, steps=steps, loss=name), white)
            for name in losses_of(model)
            if name != loss
        ],
        _weaker("random points", f"The worst of {RANDOM_POINTS} random points", _random_points(probe, epsilon), white),
        _weaker("black box", f"Square with {QUERIES} queries", probe.under("square", epsilon, steps=QUERIES), white),
        *[_transfer(probe, name, other, epsilon, steps, white) for name, other in (others or {}).items()],
    ]


def masking_parts(losses: int, others: int) -> int:
    """Calls of `done` in `look_for_masking`: PGD, FGSM, unbounded, restarts, steps, points, Square; losses; models."""
    return 7 + (losses - 1) + others


def _zero_gradients(probe: _Probe) -> MaskingCheck:
    numbers = {}
    with evaluating(probe.model):
        for name in losses_of(probe.model):
            gradient = Target(probe.model, name).slope(probe.images, probe.labels).gradient
            numbers[name] = float((gradient.flatten(1).abs().amax(1) == 0).double().mean())
    share = numbers[probe.loss]
    listed = ", ".join(f"{name} {percent(value, 1)}" for name, value in numbers.items())
    return MaskingCheck(
        "zero gradients", numbers, share > SLACK, f"Images whose gradient is exactly 0, by loss: {listed}."
    )


def _weaker(name: str, what: str, other: float, white: float) -> MaskingCheck:
    """An attack that should do no more harm than the gradient attack."""
    words = f"{what} leaves {percent(other, 1)} correct, PGD {percent(white, 1)}."
    return MaskingCheck(name, {"other": other, "pgd": white}, other < white - SLACK, words)


def _more(name: str, what: str, other: float, white: float) -> MaskingCheck:
    """The gradient attack with more steps or tries: if they help much, it had not converged."""
    words = f"With {what} PGD leaves {percent(other, 1)} correct instead of {percent(white, 1)}."
    return MaskingCheck(name, {"other": other, "pgd": white}, other < white - 2 * SLACK, words)


def _unbounded(probe: _Probe, steps: int) -> MaskingCheck:
    left = probe.under("pgd", 1.0, steps=2 * steps)
    words = (
        f"With epsilon 1, where an image may become any other, PGD leaves {percent(left, 1)} correct; expected: 0 %."
    )
    return MaskingCheck("unbounded", {"accuracy": left}, left > 0.01, words)


def _loss_curve(curve: list[float]) -> MaskingCheck:
    gains = [b - a for a, b in pairwise(curve)]
    share_rising = sum(gain > 0 for gain in gains) / max(len(gains), 1)
    late = curve[-1] - curve[3 * len(curve) // 4]
    share = late / (curve[-1] - curve[0]) if curve[-1] > curve[0] else 0.0
    words = (
        f"The mean loss goes from {curve[0]:.4f} to {curve[-1]:.4f} and rises in {percent(share_rising, 1)} of the"
        f" steps; the last quarter of them brings {percent(share, 1)} of it."
    )
    return MaskingCheck("loss over steps", {"curve": curve}, curve[-1] <= curve[0] or share_rising < 0.6, words)


def _random_points(probe: _Probe, epsilon: float) -> float:
    generator = torch.Generator().manual_seed(probe.seed)
    right = torch.ones_like(probe.labels, dtype=torch.bool)
    with evaluating(probe.model):
        target = Target(probe.model)
        for _ in range(RANDOM_POINTS):
            signs = 2 * torch.randint(0, 2, probe.images.shape, generator=generator) - 1
            corner = project(probe.images + epsilon * signs.to(probe.images), probe.images, epsilon)
            right &= target.scores(corner).argmax(1) == probe.labels
    probe.done(1)
    return float(right.double().mean())


def _transfer(probe: _Probe, name: str, other: VisionModel, epsilon: float, steps: int, white: float) -> MaskingCheck:
    changed = attack("pgd", other, probe.images, probe.labels, epsilon, steps=steps, loss=probe.loss, seed=probe.seed)
    probe.done(1)
    return _weaker(f"transfer from {name}", f"An attack made on {name}", probe.left(changed), white)
