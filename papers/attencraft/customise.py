"""Teach TinyDiff two new words from one image: which steps see which words, which pixels, and where attention goes."""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from mereo.data.glyph_scenes.prompts import COLOURS, SHAPES, encode
from mereo.data.glyph_scenes.scenes import GROUND, SIDE, paint
from mereo.errors import UsageError
from mereo.interventions import attencraft
from mereo.interventions.attencraft import AttentionMaps
from mereo.interventions.concept_masks import ConceptSampler, accepted
from mereo.models.sequence.tinydiff import TinyDiff, schedule

WORDS = ("new1", "new2")
CLASSES = ("square", "circle")
STEPS, BATCH, PRIOR, RATE, EVERY = 40, 4, 4, 5e-3, 20
EARLY, TRIES, THRESHOLDS, GRID = 0.3, 10, (0.1, 0.05), 8
TEMPERATURE, WEIGHT = 0.1, 0.1
"""Of the attention loss."""


@dataclass(frozen=True)
class Way:
    """One of the nine settings.

    Attributes:
        sampling: of `ConceptSampler`.
        masked: whether the error counts inside the masks of the drawn concepts only.
        aligned: whether attention is aligned with the masks.
    """

    sampling: str
    masked: bool
    aligned: bool


def new_image() -> Tensor:
    """A striped red square top left and a checked blue circle bottom right: (1, 3, SIDE, SIDE)."""
    quarter = SIDE / 4
    centres = torch.tensor([[[quarter, quarter], [3 * quarter, 3 * quarter]]])
    colours = torch.tensor([[[*COLOURS].index("red"), [*COLOURS].index("blue")]])
    shapes = torch.tensor([[SHAPES.index(shape) for shape in CLASSES]])
    there = torch.ones(1, 2, dtype=torch.bool)
    return paint(colours, shapes, centres, torch.full((1, 2), 6.0), there, torch.tensor([[1, 2]]))


def prior_images(count: int, draws: torch.Generator) -> tuple[Tensor, list[str]]:
    """Plain squares and circles of any colour in any quarter, with their prompts."""
    which = torch.randint(2, (count, 1), generator=draws)
    shapes = torch.tensor([SHAPES.index(shape) for shape in CLASSES])[which]
    colours = torch.randint(len(COLOURS), (count, 1), generator=draws)
    quarters = torch.randint(4, (count, 1), generator=draws)
    centres = torch.stack((quarters % 2, quarters // 2), -1) * (SIDE / 2) + SIDE / 4
    there = torch.ones(count, 1, dtype=torch.bool)
    images = paint(colours, shapes, centres, 5 + torch.rand(count, 1, generator=draws), there)
    return images, [f"a {CLASSES[each]}" for each in which.flatten().tolist()]


def prompt_of(concepts: tuple[int, ...]) -> tuple[str, list[int]]:
    """The prompt of some concepts, and the place of each one's word."""
    return " and ".join(WORDS[concept] for concept in concepts), [1 + 2 * n for n in range(len(concepts))]


def noised(images: Tensor, time: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Noisy images and their velocities."""
    a, s = (part[:, None, None, None] for part in schedule(time))
    x = 2 * images - 1
    return a * x + s * noise, a * noise - s * x


def look(model: TinyDiff, image: Tensor, draws: torch.Generator) -> AttentionMaps:
    """The attention of one pass with both words and little noise, without an update."""
    prompt, places = prompt_of((0, 1))
    time = EARLY * torch.rand(1, generator=draws)
    noisy, _ = noised(image, time, torch.randn(image.shape, generator=draws))
    with torch.no_grad(), attencraft(model, places) as maps:
        model(encode([prompt], WORDS), noisy, time)
    return maps


def true_labels(image: Tensor) -> Tensor:
    """Labels of the cells from the pixels: each glyph in its quarter, and the ground."""
    far = (image - GROUND).abs().amax(1, keepdim=True)
    seen = F.adaptive_avg_pool2d(far, GRID)[0, 0] > 0.1
    lower = torch.arange(GRID).unsqueeze(1) >= GRID // 2
    return lower.long().where(seen, torch.tensor(2))


def first_labels(model: TinyDiff, image: Tensor, draws: torch.Generator) -> tuple[Tensor, list[float], float | None]:
    """Labels, the mean attention of each concept inside its mask, and the threshold that gave them.

    Where no noise and threshold give three masks, the network attends too little to its words: the labels are then the
    true ones, and the threshold None.
    """
    for threshold in THRESHOLDS:
        for _ in range(TRIES):
            maps = look(model, image, draws)
            try:
                return *_scored(maps, maps.masks(threshold=threshold)[0]), threshold
            except UsageError:
                continue
    return *_scored(look(model, image, draws), true_labels(image)), None


def _scored(maps: AttentionMaps, labels: Tensor) -> tuple[Tensor, list[float]]:
    raw = maps.columns([1, 3])
    return labels, [raw[concept][labels == concept].mean().item() for concept in range(2)]


def customise(model: TinyDiff, way: Way, seed: int = 0, steps: int | None = None) -> tuple[TinyDiff, dict[str, Any]]:
    """A copy of a network that has learned the two words, and what its masks did on the way."""
    steps, draws, image = STEPS if steps is None else steps, torch.Generator().manual_seed(seed), new_image()
    learner = model.with_concepts(dict(zip(WORDS, CLASSES, strict=True)))
    learner.requires_grad_(False)
    learned = [learner.words.weight]
    for block in learner.blocks:
        cross: Any = block.cross_attention
        learned += [cross.key.weight, cross.value.weight]
    for parameter in learned:
        parameter.requires_grad_(True)
    labels, scores, threshold = first_labels(learner, image, draws)
    start, replaced = labels, 0
    sampler = ConceptSampler(2, way.sampling, scores, seed)
    optimizer = torch.optim.AdamW(learned, lr=RATE, weight_decay=0.0)
    for step in range(steps):
        if step and step % EVERY == 0:
            try:
                new = None if threshold is None else look(learner, image, draws).masks(threshold=threshold)[0]
            except UsageError:
                new = None
            if new is not None and accepted(labels, new, 3):
                labels, replaced = new, replaced + 1
        concepts = sampler()
        prompt, places = prompt_of(concepts)
        masks = torch.stack([labels == each for each in (*concepts, 2)]).float()
        inside = F.interpolate(masks[None, :-1].amax(1, keepdim=True), size=(SIDE, SIDE), mode="bicubic").clamp(0, 1)
        plain, plain_prompts = prior_images(PRIOR, draws)
        images = torch.cat((image.expand(BATCH, -1, -1, -1), plain))
        time = torch.rand(len(images), generator=draws)
        noisy, velocity = noised(images, time, torch.randn(images.shape, generator=draws))
        tokens = encode([*[prompt] * BATCH, *plain_prompts], WORDS)
        with attencraft(learner, places, detach_first=True) as maps:
            found = learner(tokens, noisy, time)
        error = (found - velocity).square()
        loss = (error[:BATCH] * inside.square()).mean() if way.masked else error[:BATCH].mean()
        loss = loss + error[BATCH:].mean()
        if way.aligned:
            each = [maps.loss(masks, [*places, 0], n, TEMPERATURE, WEIGHT) for n in range(BATCH)]
            loss = loss + torch.stack(each).mean()
        optimizer.zero_grad()
        loss.backward()
        assert learner.words.weight.grad is not None
        learner.words.weight.grad[: -len(WORDS)] = 0
        optimizer.step()
    return learner.eval(), {"labels": start, "last": labels, "replaced": replaced, "scores": scores,
                            "threshold": threshold}  # fmt: skip
