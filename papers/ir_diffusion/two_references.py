"""Two subjects with a reference each, drawn by TinyDiff: do they keep the colours of their references?

The prompt of the target names shapes and places, not colours: these are known from the references alone, which stand
wherever the network puts them. Masks are where a rehearsal of each picture, without references, differs from its
ground. The judge then names the glyph in each quarter.
"""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

import mereo
from mereo.data.glyph_scenes.prompts import COLOURS, SHAPES, encode
from mereo.data.glyph_scenes.scenes import GROUND
from mereo.interventions import isolate_and_reposition
from mereo.interventions.subject_masks import without_overlap
from mereo.tasks.drawing import QUARTERS, judged
from mereo.tasks.interval import wilson_interval
from mereo.tasks.pictures import draw_images
from papers.common.settings import Settings

IMAGES, STEPS, TIMES, GRID, SHOWN = 60, 20, 15, 8, 4
"""Targets, steps of the sampler, timed passes, cells of a side, and targets in the picture."""
PICTURE = "two_references.png"
VARIANTS: dict[str, dict[str, Any] | None] = {
    "plain": None,
    "isolation": {"ref_masks": None},
    "references, not moved": {"isolate": False, "reposition": False},
    "references, moved": {"isolate": False},
    "isolation, references moved": {},
    "the same, mutual text": {"mutual_text": 0.9},
}


def subjects(count: int, seed: int) -> list[dict[str, Any]]:
    """Shapes, colours and quarters of two subjects, all different."""
    draws = torch.Generator().manual_seed(seed)

    def two(most: int) -> list[int]:
        return torch.randperm(most, generator=draws)[:2].tolist()

    return [{"at": two(4), "shapes": two(len(SHAPES)), "colours": two(len(COLOURS))} for _ in range(count)]


def prompts_of(each: dict[str, Any]) -> list[str]:
    """The prompts of the two references, and of the target."""
    shapes = [SHAPES[number] for number in each["shapes"]]
    colours = [[*COLOURS][number] for number in each["colours"]]
    references = [f"a {colours[n]} {shapes[n]}" for n in range(2)]
    return [*references, " and ".join(f"a {shapes[n]} {QUARTERS[each['at'][n]]}" for n in range(2))]


def seen(images: Tensor) -> Tensor:
    """Cells in which images differ from the ground: bool (images, GRID, GRID)."""
    far = (images - GROUND).abs().amax(1)  # (images, height, width)
    return torch.nn.functional.adaptive_avg_pool2d(far[:, None], GRID)[:, 0] > 0.08


def quarters_of(mask: Tensor, places: list[int]) -> Tensor:
    """A mask in each of two quarters: bool (GRID, GRID) -> (2, GRID, GRID)."""
    half, masks = GRID // 2, torch.zeros(2, GRID, GRID, dtype=torch.bool)
    for number, place in enumerate(places):
        rows, columns = (slice(half * index, half * index + half) for index in divmod(place, 2))
        masks[number, rows, columns] = mask[rows, columns]
    return masks


def scored(kinds: Tensor, chosen: list[dict[str, Any]]) -> dict[str, int]:
    """Subjects with their shape in place, with their colour too, and with a trait of the other subject."""
    found = {"shape": 0, "identity": 0, "fusion": 0, "both": 0}
    for row, each in zip(kinds.tolist(), chosen, strict=True):
        right = 0
        for number in range(2):
            kind = row[each["at"][number]]
            shape, colour = (kind // len(COLOURS), kind % len(COLOURS)) if kind >= 0 else (-1, -1)
            same = shape == each["shapes"][number], colour == each["colours"][number]
            other = shape == each["shapes"][1 - number] or colour == each["colours"][1 - number]
            found["shape"] += same[0]
            found["identity"] += all(same)
            found["fusion"] += other
            right += all(same)
        found["both"] += right == 2
    return found


def timed(run: Callable[[], Any], changed: Callable[[], AbstractContextManager[None]]) -> tuple[float, float]:
    """Seconds of a plain pass, and how much longer a changed one takes: medians over TIMES passes of both in turn."""
    plain, ratios = [], []
    for _ in range(TIMES):
        spent = []
        for context in (nullcontext, changed):
            with context():
                run()
                start = time.process_time()
                run()
                spent.append(time.process_time() - start)
        plain.append(spent[0])
        ratios.append(spent[1] / spent[0])
    return median(plain), median(ratios)


def run(settings: Settings) -> dict[str, Any]:
    """A row for each variant, the cost, and some targets of each."""
    model: Any = mereo.load("tinydiff")
    chosen = subjects(settings.images or IMAGES, seed=0)
    prompts = [prompt for each in chosen for prompt in prompts_of(each)]
    noise = torch.randn(len(prompts), *model.start.shape, generator=torch.Generator().manual_seed(1))
    rehearsal = model.draw(prompts, noise=noise, steps=STEPS).unflatten(0, (-1, 3))
    pairs = zip(rehearsal, chosen, strict=True)
    masks = [(quarters_of(seen(images[2:])[0], each["at"]), seen(images[:2])) for images, each in pairs]
    target, reference = (torch.stack(part) for part in zip(*masks, strict=True))
    target = without_overlap(target)
    rows, panels = [], [rehearsal[:SHOWN, :2].flatten(0, 1)]
    for name, options in VARIANTS.items():
        settings.say(name)
        if options is None:
            pictures = rehearsal[:, 2]
        else:
            given = {"ref_masks": reference, **options}
            alone = given["ref_masks"] is None
            asked, start = (prompts[2::3], noise[2::3]) if alone else (prompts, noise)
            with isolate_and_reposition(model, target, **given):
                pictures = model.draw(asked, noise=start, steps=STEPS)
            pictures = pictures if alone else pictures[2::3]
        found, count = scored(judged(model, pictures).kinds, chosen), 2 * len(chosen)
        low, high = wilson_interval(found["identity"] / count, count)
        rows.append(
            {
                "variant": name,
                "shape in place %": 100 * found["shape"] / count,
                "identity %": 100 * found["identity"] / count,
                "low": 100 * low,
                "high": 100 * high,
                "both %": 100 * found["both"] / len(chosen),
                "fusion %": 100 * found["fusion"] / count,
            }
        )
        panels.append(pictures[:SHOWN])
    _draw(chosen, panels, settings.folder / PICTURE)
    batch = min(8, len(chosen))
    features = model.forward_features(encode(prompts[: 3 * batch]))
    middle = torch.full((3 * batch,), 0.5)

    @torch.no_grad()
    def one_pass() -> Tensor:
        found: Tensor = model.velocity(noise[: 3 * batch], middle, *features)
        return found

    def changed() -> AbstractContextManager[None]:
        return isolate_and_reposition(model, target[:batch], reference[:batch])

    seconds, ratio = timed(one_pass, changed)
    cost = [{"plain pass, ms": 1000 * seconds, "with isolation and references": ratio}]
    return {
        "tables": {f"{len(chosen)} targets of two subjects": rows, f"cost of a pass of {3 * batch} images": cost},
        "notes": ["fusion: a subject with the colour or the shape of the other one"],
        "pictures": [PICTURE],
    }


def _draw(chosen: list[dict[str, Any]], panels: list[Tensor], path: Path) -> None:
    """A row for each target: its references, then the picture of each variant."""
    images, titles = [], []
    for number in range(len(panels[1])):
        prompts = prompts_of(chosen[number])
        short = [prompt.replace("a ", "").replace(" and ", ",\n").replace("bottom", "low") for prompt in prompts]
        images += [*panels[0][2 * number : 2 * number + 2], *(panel[number] for panel in panels[1:])]
        names = [name.replace(", ", ",\n") for name in VARIANTS]
        titles += [f"reference:\n{short[0]}", f"reference:\n{short[1]}", short[2], *names[1:]]
    draw_images(torch.stack(images), titles, path, columns=len(VARIANTS) + 2, side=1.25)
