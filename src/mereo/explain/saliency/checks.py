"""Checks of saliency: does a map depend on the weights and on the class, do its pixels matter, does it hit the object?

Sources: weights arXiv:1810.03292; class sensitivity and pointing game arXiv:2004.02866; deletion and insertion
arXiv:1806.07421.
"""

import math
from copy import deepcopy
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from mereo.errors import UsageError, check_choice, check_count
from mereo.explain.deletion import rank_correlation
from mereo.explain.observation import normalised, observe
from mereo.explain.saliency.methods import Saliency, method_of, saliency_map
from mereo.explain.saliency.signals import Layers, usable
from mereo.explain.target import Target, of_classes, resolve_target, value_of
from mereo.explain.wording import bars_of, kind_of
from mereo.inference.mode import evaluating
from mereo.models import VisionModel
from mereo.tasks.interval import Z95


class Mean(NamedTuple):
    """A mean over images, its 95 % interval by the normal distribution, and how many images it is of."""

    value: float
    low: float
    high: float
    images: int

    @classmethod
    def of(cls, values: Tensor, most: float = math.inf) -> "Mean":
        """The mean of (images,), of values from -most to most; of a single image the interval is unknown, and NaN."""
        count, mean = len(values), float(values.double().mean()) if len(values) else math.nan
        half = Z95 * float(values.double().std()) / count**0.5 if count > 1 else math.nan
        low, high = (min(max(bound, -most), most) if count > 1 else math.nan for bound in (mean - half, mean + half))
        return cls(mean, low, high, count)

    def __str__(self) -> str:
        if not self.images:
            return "unknown"
        return f"{self.value:.2f}" + (f" ({self.low:.2f} to {self.high:.2f})" if self.images > 1 else "")


def _correlated(a: Tensor, b: Tensor) -> Tensor:
    """Rank correlations of maps (batch, height, width) over their pixels; NaN where one is the same everywhere."""
    flat_a, flat_b = a.flatten(1), b.flatten(1)
    varied = (flat_a.std(1) > 0) & (flat_b.std(1) > 0)
    return torch.where(varied, rank_correlation(flat_a, flat_b), float("nan"))


def _same_layers(
    model: VisionModel, images: Tensor, target: Target | None, layers: Layers, method: str | Saliency
) -> Layers:
    """The layers, or those that the method chooses for these images: maps of others are not compared with them."""
    return list(method_of(method)(model, images, target, None)) if layers is None else layers


def class_sensitivity(
    model: VisionModel, images: Tensor, layers: Layers = None, *, method: str | Saliency = "normgrad"
) -> Tensor:
    """Spearman's correlation over the pixels of the signed maps for the most and the least probable class, (batch,).

    1: the method ignores the class; near 0 or below: it depends on it. NaN for an image with a map without variance.

    Reference: arXiv:2004.02866, section 5.
    """
    scores = observe(model, images).scores
    if scores.dim() != 2 or scores.shape[1] < 2:
        raise UsageError(f"model gives {tuple(scores.shape)}; class sensitivity needs two scores at least.")
    layers = _same_layers(model, images, None, layers, method)
    most, least = (saliency_map(model, images, c, layers, method=method) for c in (scores.argmax(1), scores.argmin(1)))
    return _correlated(most, least)


def randomised_weights(
    model: VisionModel, images: Tensor, target: Target | None = None, layers: Layers = None, *,
    method: str | Saliency = "normgrad", seed: int = 0,
) -> Tensor:  # fmt: skip
    """Spearman's correlation over the pixels of the maps with the weights and with shuffled ones, (batch,).

    Near 1: the map shows the image, whatever the network has learned. The entries of each parameter are shuffled among
    themselves, of all layers at once. NaN for an image with a map without variance.

    Reference: arXiv:1810.03292, section 3, which draws new weights.
    """
    model, images = usable(model, images)
    chosen = resolve_target(model, observe(model, images, target=target).scores, target)
    layers = _same_layers(model, images, chosen, layers, method)
    copy, generator = deepcopy(model), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in copy.parameters():
            order = torch.randperm(parameter.numel(), generator=generator).to(parameter.device)
            parameter.copy_(parameter.flatten()[order].view_as(parameter))
    own, other = (saliency_map(each, images, chosen, layers, method=method) for each in (model, copy))
    return _correlated(own, other)


@torch.no_grad()
def perturbation_curves(
    model: VisionModel, images: Tensor, maps: Tensor, target: Target | None = None, *,
    mode: Literal["deletion", "insertion"] = "deletion", steps: int = 16,
) -> Tensor:  # fmt: skip
    """The score as pixels are replaced by the image's mean colour, or restored, the most salient first.

    The first of steps + 1 values is of the whole image for "deletion", and of the mean colour for "insertion". The mean
    over the steps is the area under the curve: a good map has a small one of deletion, a large one of insertion. Scores
    are probabilities where the network gives logits.

    Shapes: images (batch, channels, height, width), maps (batch, height, width) -> (batch, steps + 1).

    Reference: arXiv:1806.07421, section 3.2; the mean colour in place of black or a blurred image.
    """
    check_choice("mode", mode, ("deletion", "insertion"))
    check_count(1, steps=steps)
    model, images = usable(model, images)
    if maps.shape != (len(images), *images.shape[2:]):
        raise UsageError(f"maps are {tuple(maps.shape)}; give a number for each pixel of images {tuple(images.shape)}.")
    chosen = resolve_target(model, observe(model, images, target=target).scores, target)
    kind, mean = kind_of(model), images.mean((2, 3), keepdim=True)
    rank = maps.flatten(1).argsort(dim=1, descending=True, stable=True).argsort(dim=1).view_as(maps).unsqueeze(1)
    curve = []
    with evaluating(model):
        for step in range(steps + 1):
            among = rank < round(step / steps * rank[0].numel())
            outputs = model(normalised(model, torch.where(among == (mode == "deletion"), mean, images)))
            curve.append(value_of(bars_of(outputs, kind) if isinstance(chosen, Tensor) else outputs, chosen))
    return torch.stack(curve, 1)


def pointing_game(maps: Tensor, objects: Tensor, tolerance: int = 0) -> Tensor:
    """Whether the strongest pixel of each map lies on the object, or at most `tolerance` pixels beside it.

    Args:
        maps: over the image.
        objects: bool, the pixels of a mask or box.
        tolerance: pixels in each direction; the source takes 15 for photographs of about 500.

    Shapes: maps (batch, height, width), objects the same -> bool (batch,).

    Reference: arXiv:1608.00507, section 4.1.
    """
    check_count(tolerance=tolerance)
    if maps.shape != objects.shape or maps.dim() != 3 or objects.dtype != torch.bool:
        raise UsageError(f"objects is {objects.dtype} {tuple(objects.shape)}; give bool {tuple(maps.shape)}, as maps.")
    near = F.max_pool2d(objects.float().unsqueeze(1), 2 * tolerance + 1, 1, tolerance).flatten(1)
    return near.gather(1, maps.flatten(1).argmax(1, keepdim=True))[:, 0] > 0


class SaliencyChecks(NamedTuple):
    """How far a method can be trusted on some images.

    Attributes:
        randomised: correlation with the maps of shuffled weights.
        sensitivity: correlation of the maps for the most and the least probable class; None without classes.
        deletion, insertion: area under the curve, minus the same area for the map moved to a wrong place
            by a quarter of its sides at least: single random pixels would be noise that no network was trained on.
        constant: maps without variance, which count in no correlation.
    """

    randomised: Mean
    sensitivity: Mean | None
    deletion: Mean
    insertion: Mean
    constant: int

    @property
    def failures(self) -> dict[str, str]:
        """The checks that fail, in words; the bounds are ours: a correlation of 0.5, and the intervals against 0."""
        failed = {}
        if not self.randomised.images:
            return {"constant": "every map, or every one of shuffled weights, is the same everywhere"}
        if not self.randomised.value < LEAST_CHANGED:
            failed["weights"] = "the map hardly changes when the weights are shuffled"
        if self.sensitivity is not None and not self.sensitivity.images:
            failed["class"] = "the map of the least probable class is the same everywhere"
        elif self.sensitivity is not None and not self.sensitivity.value < LEAST_CHANGED:
            failed["class"] = "it is nearly the same for the least probable class"
        on = f"on {self.deletion.images} images"
        if not self.deletion.high < 0:
            failed["deletion"] = f"deleting its pixels is not shown to lower the score more than others, {on}"
        if not self.insertion.low > 0:
            failed["insertion"] = f"inserting its pixels is not shown to raise the score more than others, {on}"
        return failed


LEAST_CHANGED = 0.5
"""Mean rank correlation from which on two maps count as the same."""


def check_saliency(
    model: VisionModel, images: Tensor, target: Target | None = None, layers: Layers = None, *,
    method: str | Saliency = "normgrad", steps: int = 16, seed: int = 0,
) -> SaliencyChecks:  # fmt: skip
    """All checks of a method that need no masks, on images (batch, channels, height, width) in [0, 1]."""
    maps = saliency_map(model, images, target, layers, method=method)
    shuffled = randomised_weights(model, images, target, layers, method=method, seed=seed)
    observed = observe(model, images, target=target)
    classes = of_classes(observed.model) and observed.model.output_kind == "scores" and observed.scores.shape[1] > 1
    sensitive = class_sensitivity(model, images, layers, method=method) if classes else None
    generator, (height, width) = torch.Generator().manual_seed(seed), maps.shape[1:]
    shifts = [torch.randint(side // 4, side - side // 4, (len(maps),), generator=generator) for side in (height, width)]
    moved = torch.stack([m.roll((int(y), int(x)), (0, 1)) for m, y, x in zip(maps, *shifts, strict=True)])

    def gain(mode: Literal["deletion", "insertion"]) -> Mean:
        own, other = (perturbation_curves(model, images, m, target, mode=mode, steps=steps) for m in (maps, moved))
        return Mean.of((own - other).mean(1))

    return SaliencyChecks(
        Mean.of(shuffled[shuffled.isfinite()], most=1.0),
        None if sensitive is None else Mean.of(sensitive[sensitive.isfinite()], most=1.0),
        gain("deletion"),
        gain("insertion"),
        int((maps.flatten(1).std(1) == 0).sum()),
    )
