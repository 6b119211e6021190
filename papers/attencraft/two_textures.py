"""Two new textures from one image: is the wanted one drawn, and the other one not?

A probe, trained on true scenes of plain, striped and checked glyphs, names the texture in each quarter.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import mereo
from mereo.data.glyph_scenes.prompts import COLOURS, SHAPES
from mereo.data.glyph_scenes.scenes import RADIUS, SHIFT, SIDE, paint
from mereo.tasks.interval import wilson_interval
from mereo.tasks.pictures import draw_images
from papers.attencraft.customise import WORDS, Way, customise, new_image
from papers.common.settings import Settings

IMAGES, PROBE_STEPS, SHOWN = 20, 120, 3
STEPS: int | None = None
PICTURE = "two_textures.png"
SAMPLINGS = ("joint", "uniform", "reweighted")
LOSSES = {"no mask": (False, False), "mask": (True, False), "mask and attention": (True, True)}


def quarters_of(images: Tensor) -> Tensor:
    """(n, 3, SIDE, SIDE) -> (4 n, 3, SIDE / 2, SIDE / 2)."""
    return images.unflatten(3, (2, -1)).unflatten(2, (2, -1)).permute(0, 2, 4, 1, 3, 5).flatten(0, 2)


def textured(count: int, draws: torch.Generator) -> tuple[Tensor, Tensor]:
    """Scenes of four glyphs, plain, striped, checked or absent, and what is in each quarter: 0 none or plain, 1, 2."""
    shape = (count, 4)
    columns, rows = torch.arange(4) % 2, torch.arange(4) // 2
    middles = torch.stack((columns, rows), -1) * (SIDE / 2) + SIDE / 4
    centres = middles + SHIFT * (2 * torch.rand(*shape, 2, generator=draws) - 1)
    textures = torch.randint(3, shape, generator=draws)
    there = torch.rand(shape, generator=draws) < 0.8
    images = paint(
        torch.randint(len(COLOURS), shape, generator=draws),
        torch.randint(len(SHAPES), shape, generator=draws),
        centres,
        RADIUS[0] + (RADIUS[1] - RADIUS[0]) * torch.rand(shape, generator=draws),
        there,
        textures,
    )
    noise = torch.randn(images.shape, generator=draws) * 0.1 * torch.rand(count, 1, 1, 1, generator=draws)
    return images + noise, (textures * there).flatten()


def train_probe(seed: int = 0) -> tuple[nn.Module, float]:
    """The probe and its accuracy on other scenes."""
    torch.manual_seed(seed)
    probe = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.ReLU(), nn.Conv2d(32, 32, 3, 2, 1),
        nn.ReLU(), nn.Flatten(), nn.Linear(32 * 16, 3),
    )  # fmt: skip
    optimizer, draws = torch.optim.AdamW(probe.parameters(), lr=3e-3), torch.Generator().manual_seed(seed)
    for _ in range(PROBE_STEPS):
        images, labels = textured(32, draws)
        loss = F.cross_entropy(probe(quarters_of(images)), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    images, labels = textured(100, draws)
    return probe.eval(), (probe(quarters_of(images)).argmax(1) == labels).double().mean().item()


@torch.no_grad()
def textures_in(probe: nn.Module, images: Tensor) -> Tensor:
    """Whether each image shows stripes, and checks: bool (n, 2)."""
    named = probe(quarters_of(images)).argmax(1).view(-1, 4)
    return torch.stack([(named == texture).any(1) for texture in (1, 2)], 1)


def run(settings: Settings) -> dict[str, Any]:
    """A row for each of the nine settings, and some pictures."""
    model: Any = mereo.load("tinydiff")
    probe, accuracy = train_probe()
    count, rows, images, titles, notes = settings.images or IMAGES, [], [new_image()[0]], ["the one image"], []
    before = torch.stack([textures_in(probe, model.draw([f"a {shape}"] * count)).double().mean(0) for shape in
                          ("square", "circle")])  # fmt: skip
    for sampling in SAMPLINGS:
        for name, (masked, aligned) in LOSSES.items():
            right, wanted, other = 0, [0, 0], [0, 0]
            for seed in range(settings.seeds):
                learner, facts = customise(model, Way(sampling, masked, aligned), seed, STEPS)
                for concept, word in enumerate(WORDS):
                    pictures = learner.draw([word] * count, seed=seed)
                    there = textures_in(probe, pictures)
                    wanted[concept] += int(there[:, concept].sum())
                    other[concept] += int(there[:, 1 - concept].sum())
                    right += int((there[:, concept] & ~there[:, 1 - concept]).sum())
                    if seed == 0:
                        images += [*pictures[:SHOWN]]
                        titles += [f"{word}: {sampling},\n{name}"] * len(pictures[:SHOWN])
                settings.say(f"{sampling}, {name}, seed {seed}: {right}, masks replaced {facts['replaced']} times")
            total = count * settings.seeds
            low, high = wilson_interval(right / (2 * total), 2 * total)
            rows.append(
                {
                    "sampling": sampling,
                    "loss": name,
                    "wanted and not the other %": 50 * right / total,
                    "low": 100 * low,
                    "high": 100 * high,
                    **{f"{word} wanted %": 100 * wanted[n] / total for n, word in enumerate(WORDS)},
                    **{f"{word} other %": 100 * other[n] / total for n, word in enumerate(WORDS)},
                }
            )
            cells = [int((facts["labels"] == each).sum()) for each in range(4)]
            notes = [
                f"first masks (seed {settings.seeds - 1}): {cells[0]} and {cells[1]} cells, ground {cells[2]}, none"
                f" {cells[3]}, threshold {facts['threshold']:g}; mean attention inside {facts['scores'][0]:.3f} and"
                f" {facts['scores'][1]:.3f}"
            ]
    blank = [torch.ones_like(images[0])] * (2 * SHOWN - 1)
    draw_images(torch.stack([images[0], *blank, *images[1:]]), [titles[0], *[""] * len(blank), *titles[1:]],
                settings.folder / PICTURE, columns=2 * SHOWN)  # fmt: skip
    notes += [
        f"The probe is right on {100 * accuracy:.1f} % of the quarters of true scenes. Before, a square shows stripes"
        f" in {100 * before[0, 0]:.0f} % and a circle checks in {100 * before[1, 1]:.0f} %."
    ]
    return {"tables": {f"{count} pictures of each word, {settings.seeds} seeds": rows}, "notes": notes,
            "pictures": [PICTURE]}  # fmt: skip
