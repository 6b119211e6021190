"""The pictures of top-down attention: the digit that each place of an overlay is assigned to."""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from mereo.pictures import displayable, new_figure, save_figure

FIRST, SECOND = torch.tensor([0.85, 0.33, 0.10]), torch.tensor([0.10, 0.45, 0.80])
"""The colours of the two digits."""


class Shown(NamedTuple):
    """A few overlays.

    Attributes:
        images: (count, channels, height, width).
        targets: the two digits by themselves, the lower class first, (count, 2, channels, height, width).
        maps: name -> share of the first digit at each place, (count, rows, columns).
        strength: sum of the lengths of all parts at a place, (count, rows, columns).
        named: the two predicted classes of each.
    """

    images: Tensor
    targets: Tensor
    maps: Mapping[str, Tensor]
    strength: Tensor
    named: list[list[int]]


def draw_assignments(shown: Shown, path: Path) -> None:
    """A row an overlay: the image, its digits in two colours, and each map in the same colours."""
    count = len(shown.images)
    figure = new_figure(1.5 * (2 + len(shown.maps)), 1.55 * count + 0.5)
    figure.suptitle("Parts assigned to digits. Orange and blue: the two digits; darker: shorter parts", fontsize=10)
    for row, all_axes in enumerate(figure.subplots(count, 2 + len(shown.maps), squeeze=False)):
        overlay, truth, *others = all_axes
        overlay.imshow(displayable(shown.images[row]), cmap="gray", vmin=0, vmax=1)
        overlay.set_title("predicted " + " and ".join(map(str, shown.named[row])), fontsize=8)
        first, second = shown.targets[row].mean(1).unsqueeze(-1)
        truth.imshow((first * FIRST + second * SECOND).clamp(0, 1).numpy())
        truth.set_title("its digits", fontsize=8)
        strength = (shown.strength[row] / shown.strength[row].max()).unsqueeze(-1)
        for axes, (name, shares) in zip(others, shown.maps.items(), strict=True):
            share = shares[row].unsqueeze(-1)
            axes.imshow((strength * (share * FIRST + (1 - share) * SECOND)).clamp(0, 1).numpy())
            axes.set_title(name, fontsize=8)
        for axes in all_axes:
            axes.set_axis_off()
    save_figure(figure, path)
