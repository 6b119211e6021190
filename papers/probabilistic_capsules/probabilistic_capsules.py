"""Does test-time optimisation repair what an amortised encoder gets wrong about the parents of poses?

Children are the corners of two squares and a triangle, each with a pose of its own: the pose of its object times its
place in the object. Objects are absent half of the time, and some corners stray. A tree of poses learns relations,
presences and precisions together with an encoder, without labels, from objects whose poses are near the identity. The
encoder's belief about test images is then improved by Adam on the bound; on images like the training images, and on
images whose objects are turned and scaled further.
"""

import math
import time
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim.lr_scheduler import CosineAnnealingLR

from mereo.generative.pose_tree import POSE, affine
from mereo.generative.probabilistic_capsules import PoseExplanation, ProbabilisticCapsules, prob_capsules_toy
from mereo.pictures import row_of_panels, save_figure
from papers.common.constellations import make_templates
from papers.common.fitting import follow
from papers.common.partition_metrics import segmentation_accuracy
from papers.common.settings import Settings

STEPS, BATCH, RATE = 1500, 64, 3e-3
EPOCH = 100
"""Steps that `--epochs` counts as one."""
IMAGES, NOISE, STRAY = 200, 0.05, 0.1
SHIFTS = {
    "as in training": (0.3, 0.0),
    "turned by up to 60 degrees": (0.3, math.pi / 3),
    "three times as far": (0.9, 0.0),
}
OPTIMISED = (20, 50, 200)
PICTURE = "bounds.png"


class Corners(NamedTuple):
    """Poses of corners (images, 11, 3, 3), their objects from 1, 0 for strays (images, 11), and which there are."""

    children: Tensor
    labels: Tensor
    mask: Tensor


def make_corners(images: int, generator: torch.Generator, spread: float, turn: float) -> Corners:
    """Draw corners of objects whose poses differ from the identity by `spread` an entry, turned by up to `turn`."""
    templates = make_templates()
    places = torch.eye(3).repeat(len(templates.owner), 1, 1)
    places[:, :2, 2] = templates.points.float()

    def normal(*size: int) -> Tensor:
        return torch.randn(size, generator=generator)

    identity = torch.eye(2, 3).flatten()
    poses = affine(identity + spread * normal(images, 3, POSE))
    angles = turn * (2 * torch.rand(images, 3, generator=generator) - 1)
    turned = torch.stack((angles.cos(), -angles.sin(), angles.sin(), angles.cos()), -1).unflatten(-1, (2, 2))
    poses[..., :2, :2] = turned @ poses[..., :2, :2]
    sets = torch.randint(1, 8, (images, 1), generator=generator)
    present = (sets >> torch.arange(3) & 1).bool()
    numbers = (poses[:, templates.owner] @ places)[..., :2, :].flatten(-2)
    numbers = numbers + NOISE * normal(*numbers.shape)
    stray = torch.rand(images, len(templates.owner), generator=generator) < STRAY
    numbers = torch.where(stray.unsqueeze(-1), identity + 3 * normal(*numbers.shape), numbers)
    mask = present[:, templates.owner]
    return Corners(affine(numbers), torch.where(stray, 0, templates.owner + 1).masked_fill(~mask, 0), mask)


def _learned(seed: int, steps: int, settings: Settings) -> ProbabilisticCapsules:
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(1000 + seed)
    model = prob_capsules_toy()
    schedule = CosineAnnealingLR(torch.optim.Adam(model.parameters(), lr=RATE), steps, RATE / 10)
    reported = time.monotonic()
    for step in range(steps):
        data = make_corners(BATCH, generator, *SHIFTS["as in training"])
        loss = model.loss(data.children, data.mask)
        follow(schedule, loss, clip=10.0)
        if time.monotonic() - reported > 10:
            reported = time.monotonic()
            settings.say(f"seed {seed}: step {step + 1:,} of {steps:,}, bound {-loss.item():.2f}")
    return model.requires_grad_(False)


def _scores(explained: PoseExplanation, data: Corners) -> Tensor:
    """The bound of each image, and the share of its corners with the right object or none: (images, 2)."""
    assigned = explained.routing.argmax(-1)
    accuracy = segmentation_accuracy(assigned, data.labels, data.mask)
    return torch.stack((explained.elbo.double(), accuracy), -1)


def run(settings: Settings) -> dict[str, Any]:
    """A table for each kind of test images, and the bounds during optimisation."""
    steps, images = EPOCH * settings.epochs if settings.epochs else STEPS, settings.images or IMAGES
    began = time.perf_counter()
    models = [_learned(seed, steps, settings) for seed in range(settings.seeds)]
    learning = time.perf_counter() - began
    tables, traces = {}, {}
    for title, shift in SHIFTS.items():
        scores: dict[str, list[Tensor]] = {}
        for seed, model in enumerate(models):
            data = make_corners(images, torch.Generator().manual_seed(seed), *shift)
            scores.setdefault("encoder", []).append(_scores(model(data.children, data.mask), data))
            for count in OPTIMISED:
                better = model.optimise(data.children, data.mask, steps=count)
                scores.setdefault(f"{count} steps", []).append(_scores(better, data))
                traces[title] = better.trace.mean(0)
        start = torch.cat(scores["encoder"])
        tables[f"Objects {title}"] = [
            {
                "belief": name, "bound": mean[0].item(), "error": (values[:, 0].std() / len(values) ** 0.5).item(),
                "corners with the right object %": 100 * mean[1].item(),
                "images with a lower bound": int((values[:, 0] < start[:, 0] - 1e-9).sum()),
            }
            for name, rows in scores.items()
            for values in [torch.cat(rows)]
            for mean in [values.mean(0)]
        ]  # fmt: skip
    _draw(traces, settings.folder / PICTURE)
    return {
        "tables": tables,
        "notes": [
            f"{images} images a seed; learned in {steps:,} steps of {BATCH} images, {learning:.0f} s. At test time Adam"
            " has a rate of 0.01. Objects are matched to parents image by image.",
        ],
        "pictures": [PICTURE],
    }


def _draw(traces: dict[str, Tensor], path: Any) -> None:
    """The mean bound of an image against the steps of test-time optimisation, a panel a kind of images."""
    figure, panels = row_of_panels(traces, 3.4, 2.6)
    for axes, trace in zip(panels, traces.values(), strict=True):
        axes.plot(trace.numpy(), color="#1971c2", linewidth=1.4)
        axes.set_xlabel("step")
    panels[0].set_ylabel("bound")
    save_figure(figure, path)
