"""Masks of two concepts from constructed attention: a square and a disc on 16 x 16 cells.

Cross-attention prefers the cells of the class of a word and is noisy; cells attend to cells of their class, the
nearer the more, with noise too. Masks are right where a cell has the label of its class.
"""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mereo.errors import UsageError
from mereo.interventions.concept_masks import concept_maps, concept_masks, label_maps
from mereo.pictures import new_figure, save_figure
from papers.common.settings import Settings

IMAGES, SIDE, THRESHOLD = 100, 16, 0.1
NOISES = (0.0, 0.5, 1.0, 1.5, 2.0)
POWERS = (0, 1, 2, 4, 8)
PICTURE = "noisy_maps.png"


def true_labels() -> Tensor:
    """0 for the square, 1 for the disc, 2 for the ground: int64 (SIDE, SIDE)."""
    rows, columns = torch.meshgrid(torch.arange(SIDE), torch.arange(SIDE), indexing="ij")
    labels = torch.full((SIDE, SIDE), 2)
    labels[2:8, 2:8] = 0
    labels[(rows - 10.5) ** 2 + (columns - 10) ** 2 < 12] = 1
    return labels


def attention(labels: Tensor, noise: float, draws: torch.Generator) -> tuple[Tensor, Tensor]:
    """Self-attention (cells, cells), and cross-attention (cells, words): start, first, second."""
    flat, places = labels.flatten(), torch.cartesian_prod(torch.arange(SIDE), torch.arange(SIDE)).double()
    far = torch.cdist(places, places)
    own = (flat[:, None] == flat).double() * 2 - far / 4
    own = own + 0.5 * noise * torch.randn(own.shape, generator=draws, dtype=torch.float64)
    liked = torch.stack([(flat == each).double() for each in (2, 0, 1)], 1)
    words = 1.5 * liked + noise * torch.randn(liked.shape, generator=draws, dtype=torch.float64)
    return own.softmax(1), words.softmax(1)


def run(settings: Settings) -> dict[str, Any]:
    """A row for each noise, a column for each power of self-attention, and one of the attention that starts."""
    labels, count = true_labels(), settings.images or IMAGES
    rows, shown = [], []
    for noise in NOISES:
        right, failed = dict.fromkeys(POWERS, 0.0), 0
        for number in range(count):
            draws = torch.Generator().manual_seed(number + 1000 * (settings.seeds - 1))
            own, cross = attention(labels, noise, draws)
            for power in POWERS:
                found = label_maps(concept_maps(own, cross, [1, 2], power=power), THRESHOLD)
                right[power] += (found == labels).double().mean().item() / count
                if number == 0 and power in (0, 4):
                    shown.append((noise, power, found))
            try:
                concept_masks(own, cross, [1, 2], threshold=THRESHOLD)
            except UsageError:
                failed += 1
        each = {f"power {power} %": 100 * share for power, share in right.items()}
        rows.append({"noise": f"{noise:g}", **each, "starts refused %": 100 * failed / count})
    _draw(labels, shown, settings.folder / PICTURE)
    return {"tables": {f"{count} pairs of maps, threshold {THRESHOLD}: cells right": rows},
            "notes": ["Power 0 is cross-attention alone, power 4 the published one. Refused: masks of power 4 that are"
                      " empty or belong to one concept."],
            "pictures": [PICTURE]}  # fmt: skip


def _draw(labels: Tensor, shown: list[tuple[float, int, Tensor]], path: Path) -> None:
    """The true labels, and those found from the first maps of each noise, by both powers."""
    figure = new_figure(1.5 * (len(NOISES) + 1), 3.4)
    panels = figure.subplots(2, len(NOISES) + 1)
    for row, power in enumerate((0, 4)):
        found = [(f"noise {noise:g}", each) for noise, other, each in shown if other == power]
        for axes, (title, each) in zip(panels[row], [("true", labels), *found], strict=True):
            axes.imshow(each.numpy(), cmap="viridis", vmin=0, vmax=3)
            axes.set_title(f"{title}\npower {power}" if title != "true" else title, fontsize=8)
            axes.set_axis_off()
    save_figure(figure, path)
