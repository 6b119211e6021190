"""Changes of the image (rotation, noise, attack) and of the network (silenced parts)."""

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

import torch
from torch import Tensor, nn

from mereo.core import Coupling, intervene
from mereo.core.observe import Call
from mereo.data.geometric import rotation, transform
from mereo.inference.evaluate import normalise
from mereo.measure import attack, corrupt
from mereo.models import VisionModel

STEPS = 5
"""Steps of the attack; few, for a quick response."""


def change_image(
    model: VisionModel, image: Tensor, label: int | None, rotate: float, noise: float, epsilon: float
) -> Tensor:
    """Rotate an image, add noise, and attack it by projected gradient descent against the unchanged network.

    Args:
        image: in [0, 1], not normalised.
        label: the class whose loss the attack maximises; the predicted one when None.
        rotate: degrees, counter-clockwise.
        noise: standard deviation, in units of the full range.
        epsilon: largest change of a pixel by the attack; 0 for none.

    Shapes: image (1, channels, height, width) -> the same.
    """
    if rotate:
        image = transform(image, rotation(torch.tensor([math.radians(rotate)]))).clamp(0, 1)
    if noise:
        image = corrupt("noise", image, noise)
    if epsilon:
        image = image.to(next(model.parameters()).device)
        if label is None:
            cfg = model.pretrained_cfg
            with torch.inference_mode():
                label = int(model(normalise(image, cfg["mean"], cfg["std"])).argmax(1))
        image = attack("pgd", model, image, torch.tensor([label], device=image.device), epsilon, steps=STEPS)
    return image


def silenced_senders(call: Call, places: Sequence[tuple[float, float]], size: tuple[int, int]) -> list[int]:
    """The senders, of all types, of the cells nearest to the given places.

    Args:
        call: an evaluation of a coupling.
        places: (x, y), as fractions of width and height.
        size: (height, width) of the image.
    """
    grid = call.senders
    if grid is None:
        return []
    senders: set[int] = set()
    for start, part in grid.parts:
        for across, down in places:
            row, column = (
                min(max(math.floor((share * side - part.first) / part.step + 0.5), 0), count - 1)
                for share, side, count in ((down, size[0], part.rows), (across, size[1], part.columns))
            )
            cell, cells = row * part.columns + column, part.rows * part.columns
            senders.update(start + kind * cells + cell for kind in range(part.types))
    return sorted(senders)


def silence(
    model: nn.Module, places: Sequence[tuple[float, float]], size: tuple[int, int], count: Callable[[int], None]
) -> AbstractContextManager[None]:
    """Set the couplings of all senders at the given places to 0 inside a with block.

    c_rs <- 0 for all r and each sender s at one of the places

    Args:
        model: any network; couplings whose senders have no position are left unchanged.
        places: (x, y), as fractions of width and height.
        size: (height, width) of the image.
        count: called with the number of silenced senders at each evaluation.
    """

    def change(couplings: Tensor, call: Call) -> Tensor:
        senders = silenced_senders(call, places, size)
        if not senders or call.senders is None or couplings.shape[-1] != call.senders.size:
            return couplings
        count(len(senders))
        kept = torch.ones(couplings.shape[-1], dtype=couplings.dtype, device=couplings.device)
        kept[senders] = 0
        return couplings * kept

    names = [name for name, module in model.named_modules() if isinstance(module, Coupling)]
    return intervene(model, dict.fromkeys(names, change))
