"""Two textures learned from one image, each by a word of its own: which masks and which sampling teach them?

The image has a red square with stripes and a blue circle with checks. TinyDiff knows plain glyphs only. The new words
start as "square" and "circle"; their embeddings and the keys and values of cross-attention are trained. Then each word
alone is drawn many times: the judge of TinyDiff names the colours, which no prompt states, and a probe that was trained
on true scenes the textures.
"""

from collections.abc import Callable
from contextlib import suppress
from itertools import product
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import mereo
from mereo.data.glyph_scenes.prompts import COLOURS, SHAPES, encode
from mereo.data.glyph_scenes.scenes import GROUND, RADIUS, SHIFT, SIDE, TEXTURES, make_scenes, paint
from mereo.errors import UsageError
from mereo.interventions import attencraft
from mereo.interventions.attencraft import AttentionMaps
from mereo.interventions.concept_masks import ConceptSampler, accepted
from mereo.models.sequence.tinydiff import Judge, with_noise
from mereo.tasks.drawing import judged
from mereo.tasks.interval import wilson_interval
from mereo.tasks.pictures import draw_images
from mereo.training.step import descend
from papers.common.settings import Settings

WORDS = {"new1": "square", "new2": "circle"}
"""New words, and the words as which they start."""
STEPS, RATE, EVERY, LATEST, TRIES = 500, 1e-3, 20, 0.3, 200
"""Steps of a setting, its rate, steps between masks, the latest time of the pass that makes the masks, and noises that
are tried for it."""
PROBE_STEPS, PROBE_BATCH, IMAGES, SHOWN = 600, 64, 100, 6
PLAIN = 1 + len(TEXTURES)
"""The probe's number for a plain glyph; 0 stands for no glyph, 1 and 2 for the textures."""
MASKS = ("no mask", "mask", "mask and attention", "true mask and attention")
"""The last one is ours: the cells of the glyphs in place of what attention finds."""
SAMPLERS = ("joint", "uniform", "reweighted")
NUMBERS = tuple([*COLOURS].index(colour) for colour in ("red", "blue"))
"""The numbers of the colours of both concepts."""
COUNTED = tuple(
    each for name in ("colour", "texture") for each in (f"its {name}", f"the other {name}", f"its {name} alone")
)
PICTURE = "two_textures.png"


def the_image() -> Tensor:
    """A red square with stripes at the top left, and a blue circle with checks at the bottom right, in [-1, 1]."""
    colours, shapes = (torch.tensor([[names.index(each) for each in wanted]]) for names, wanted in (
        ([*COLOURS], ("red", "blue")), (SHAPES, ("square", "circle")),
    ))  # fmt: skip
    centres = torch.tensor([[[SIDE / 4] * 2, [3 * SIDE / 4] * 2]])
    radii, there = torch.full((1, 2), RADIUS[1]), torch.ones(1, 2, dtype=torch.bool)
    return 2 * paint(colours, shapes, centres, radii, there, torch.tensor([[1, 2]])) - 1


def true_labels() -> Tensor:
    """0 where the square stands, 1 where the circle does, 2 on the ground: int64 (8, 8)."""
    far = ((the_image() + 1) / 2 - GROUND).abs().amax(1)
    there = F.adaptive_avg_pool2d(far, SIDE // 4)[0] > 0.1
    half = len(there) // 2
    concept = (torch.arange(len(there)) >= half).long().unsqueeze(1).expand_as(there)
    return concept.where(there, torch.tensor(2))


def textured_scenes(count: int, draws: torch.Generator) -> tuple[Tensor, Tensor]:
    """Scenes with glyphs in about half of the quarters, plain or with a texture; images and what is in each quarter."""

    def drawn(most: int) -> Tensor:
        return torch.randint(most, (count, 4), generator=draws)

    middles = torch.tensor([[SIDE * (1 + 2 * x) / 4, SIDE * (1 + 2 * y) / 4] for y in range(2) for x in range(2)])
    centres = middles + SHIFT * (2 * torch.rand(count, 4, 2, generator=draws) - 1)
    radii = RADIUS[0] + (RADIUS[1] - RADIUS[0]) * torch.rand(count, 4, generator=draws)
    there, textures = drawn(2) > 0, drawn(PLAIN)
    images = paint(drawn(len(COLOURS)), drawn(len(SHAPES)), centres, radii, there, textures)
    return images, textures.where(textures > 0, PLAIN).masked_fill(~there, 0)


def trained_probe(say: Callable[[str], None]) -> tuple[Judge, float]:
    """A network that names the texture in each quarter, and its accuracy on new scenes."""
    torch.manual_seed(0)
    probe, draws = Judge(SIDE, PLAIN + 1), torch.Generator().manual_seed(0)
    optimizer = torch.optim.Adam(probe.parameters(), 2e-3)
    for step in range(PROBE_STEPS):
        images, kinds = textured_scenes(PROBE_BATCH, draws)
        spoiled = images + 0.1 * torch.randn(images.shape, generator=draws)
        loss = F.cross_entropy(probe(spoiled).flatten(0, 1), kinds.flatten())
        descend(optimizer, 2e-3 * (1 - step / PROBE_STEPS), loss)
    images, kinds = textured_scenes(500, draws)
    with torch.no_grad():
        accuracy = (probe(images).argmax(-1) == kinds).double().mean().item()
    say(f"the probe names the texture of {100 * accuracy:.1f} % of the quarters of new scenes")
    return probe.eval(), accuracy


def places_of(tokens: Tensor, model: Any) -> list[int]:
    """The places of the new words in a prompt."""
    first = len(model.words.weight) - len(WORDS)
    return [place for place, token in enumerate(tokens.tolist()) if token >= first]


def noisy(image: Tensor, time: Tensor, draws: torch.Generator) -> tuple[Tensor, Tensor]:
    """Images with drawn noise, and the velocities that should be found."""
    return with_noise(image, torch.randn(image.shape, generator=draws), time)


class Lesson:
    """The training of one setting.

    Args:
        model: a copy of TinyDiff with the new words.
        mask: one of MASKS: whether the loss counts the cells of the drawn concepts only, and has the loss of attention.
        sampler: see `ConceptSampler`.
    """

    def __init__(self, model: Any, mask: str, sampler: str, seed: int) -> None:
        self.model, self.masked, self.aligned = model, mask != MASKS[0], mask in MASKS[2:]
        self.given = mask == MASKS[3]
        self.draws, self.image = torch.Generator().manual_seed(seed), the_image()
        self.both = encode([" and ".join(WORDS)], [*WORDS])
        self.labels, scores = self.first_masks()
        self.right = (self.labels == true_labels()).double().mean().item()
        if self.given:
            self.labels = true_labels()
        self.sampler = ConceptSampler(len(WORDS), sampler, scores, seed)

    def watching(self, places: list[int]) -> Any:
        """The context in which attention is watched."""
        return attencraft(self.model, places, detach_first=True)

    @torch.no_grad()
    def masks_now(self) -> tuple[Tensor, AttentionMaps]:
        """Labels of the cells by the attention of a pass with little noise; UsageError if they are not one-to-one."""
        with self.watching(places_of(self.both[0], self.model)) as maps:
            time = LATEST * torch.rand(1, generator=self.draws)
            self.model(self.both, noisy(self.image, time, self.draws)[0], time)
        labels, order = maps.masks()
        return torch.tensor([*order, len(order)])[labels], maps

    def first_masks(self) -> tuple[Tensor, list[float]]:
        """The first labels that are one-to-one, and the attention of each word inside its mask."""
        for _ in range(TRIES):
            with suppress(UsageError):
                labels, maps = self.masks_now()
                columns = maps.columns(maps.concept_tokens)
                return labels, [columns[concept][labels == concept].mean().item() for concept in range(len(WORDS))]
        raise UsageError(f"attention gives no mask to each word with any of {TRIES} noises; train the network longer.")

    def step(self, optimizer: torch.optim.Optimizer, number: int) -> None:
        """One step on the image and on a scene of plain glyphs."""
        chosen = self.sampler()
        names = [[*WORDS][concept] for concept in chosen]
        prompt, prior = encode([" and ".join(names)], [*WORDS]), make_scenes(torch.tensor([number]), 10**6)
        time = torch.rand(2, generator=self.draws)
        start, wanted = noisy(torch.cat((self.image, 2 * prior.images - 1)), time, self.draws)
        places = places_of(prompt[0], self.model)
        with self.watching(places) as maps:
            found = self.model(torch.cat((prompt, prior.tokens)), start, time)
        cells = torch.stack([self.labels == concept for concept in (*chosen, len(WORDS))]).float()
        weight = torch.ones(SIDE, SIDE)
        if self.masked:
            weight = F.interpolate(cells[:-1].amax(0)[None, None], size=(SIDE, SIDE), mode="bicubic")[0, 0]
        errors = found - wanted
        loss = (weight * errors[0]).square().mean() + errors[1].square().mean()
        if self.aligned:
            loss = loss + maps.loss(cells, [*places, maps.background_token], sample=0)
        descend(optimizer, RATE, loss)
        if self.masked and not self.given and number % EVERY == EVERY - 1:
            self.refresh()

    def refresh(self) -> None:
        """New masks, if they are one-to-one and like those before."""
        with suppress(UsageError):
            labels, _ = self.masks_now()
            if accepted(self.labels, labels, len(WORDS)):
                self.labels = labels


def trained(mask: str, sampler: str, seed: int) -> tuple[Any, float]:
    """TinyDiff after the steps of a setting, and the share of cells that the first masks label rightly."""
    original: Any = mereo.load("tinydiff")
    model = original.with_concepts(WORDS).eval().requires_grad_(False)
    words: nn.Parameter = model.words.weight
    learned = [
        words,
        *(part.weight for block in model.blocks for part in (block.cross_attention.key, block.cross_attention.value)),
    ]
    for parameter in learned:
        parameter.requires_grad_(True)
    new = (torch.arange(len(words)) >= len(words) - len(WORDS)).unsqueeze(1)
    words.register_hook(lambda gradient: gradient * new)
    lesson = Lesson(model, mask, sampler, seed)
    optimizer = torch.optim.Adam(learned, RATE)
    for number in range(STEPS):
        lesson.step(optimizer, number)
    return model, lesson.right


def measured(model: Any, probe: Judge, count: int) -> tuple[dict[str, int], Tensor]:
    """How often a picture of each word alone has the colour and the texture of its concept, and of the other one."""
    counts, shown = dict.fromkeys(COUNTED, 0), []
    for concept, word in enumerate(WORDS):
        pictures = model.draw([f"a {word}"] * count, seed=1)
        with torch.no_grad():
            textures, kinds = probe(pictures).argmax(-1), judged(model, pictures).kinds
        colours = (kinds % len(COLOURS)).masked_fill(kinds < 0, -1)
        for name, found, wanted in (("colour", colours, NUMBERS), ("texture", textures, (1, 2))):
            own, other = ((found == wanted[each]).any(1) for each in (concept, 1 - concept))
            counts[f"its {name}"] += int(own.sum())
            counts[f"the other {name}"] += int(other.sum())
            counts[f"its {name} alone"] += int((own & ~other).sum())
        shown.append(pictures[: SHOWN // 2])
    return counts, torch.cat(shown)


def run(settings: Settings) -> dict[str, Any]:
    """A row for each setting, and some pictures of each word."""
    probe, accuracy = trained_probe(settings.say)
    count, rows, first = settings.images or IMAGES, list[dict[str, Any]](), list[float]()
    panels, titles = [(the_image() + 1) / 2, torch.ones(SHOWN - 1, 3, SIDE, SIDE)], ["the image", *[""] * (SHOWN - 1)]
    for mask, sampler in product(settings.chosen(MASKS), SAMPLERS):
        sums, total = dict.fromkeys(COUNTED, 0), 2 * count * settings.seeds
        for seed in range(settings.seeds):
            model, right = trained(mask, sampler, seed)
            first.append(right)
            found, pictures = measured(model, probe, count)
            sums = {name: sums[name] + found[name] for name in sums}
            if seed == 0:
                panels.append(pictures)
                titles += [",\n".join((mask.replace(" and", "\nand"), sampler))] + [""] * (len(pictures) - 1)
        low, high = wilson_interval(sums["its colour alone"] / total, total)
        shares = {f"{name} %": 100 * number / total for name, number in sums.items()}
        rows.append({"masks": mask, "sampler": sampler, **shares, "alone, low": 100 * low, "high": 100 * high})
        settings.say(f"{mask}, {sampler}: " + ", ".join(f"{name} {share:.1f}" for name, share in shares.items()))
    draw_images(torch.cat(panels), titles, settings.folder / PICTURE, columns=SHOWN, side=1.1)
    return {
        "tables": {f"{total} pictures of one word": rows},
        "notes": [
            f"the probe names {100 * accuracy:.1f} % of the quarters of new scenes; the first masks by attention label"
            f" {100 * min(first):.1f} to {100 * max(first):.1f} % of the cells rightly"
        ],
        "pictures": [PICTURE],
    }
