"""The networks of one family for a comparison: the smallest preset of each kind, and plain networks of their size."""

import math
import statistics
from collections.abc import Sequence

from mereo.data import Augmentation, dataset_info
from mereo.errors import UsageError, check_choice
from mereo.models import MODELS
from mereo.models.entry import ModelEntry
from mereo.models.registry import outline
from mereo.training.option_values import show_arguments

FAMILIES = ("capsule", "vision")
"""Rooms of `mereo.models` whose networks can be compared."""
PLAIN, DEPTHS, WIDEST = "resnet20", (1, 2, 3), 512
"""The plain network, and the blocks in a stage of its three forms."""
SIDE = 32
"""Side of the images that all networks take, unless another is given."""
ARGUMENTS: dict[str, dict[str, object]] = {"matrix_capsnet": {"padding": 2, "cost_per_children": True}}
"""Arguments of a kind of network beside its preset's: without padding, images of 20 x 20 leave matrix capsules a single
position, and without cost_per_children the few that are left stay half active."""
ROTATING = ("rotate", "rand_augment", "efficient_mnist")
"""Operations that rotate images."""


def upright_augmentation(data: str, root: str | None = None) -> tuple[str, ...]:
    """The augmentation of a data set without rotations, so that rotated images are new to all networks."""
    kept = [op for op in Augmentation.parse(dataset_info(data, root).augment).operations if op.name not in ROTATING]
    return tuple(map(str, kept)) or ("none",)


def _parameters(name: str, **arguments: object) -> int:
    return sum(parameter.numel() for parameter in outline(name, **arguments).parameters())


def _text(name: str, **arguments: object) -> str:
    """A network with arguments, as `mereo compare` takes it."""
    return ":".join([name, *([",".join(show_arguments(arguments))] if arguments else [])])


def smallest_presets(family: str) -> list[list[ModelEntry]]:
    """The presets of each kind of network in a family, ascending by their parameters."""
    check_choice("family", family, FAMILIES)
    kinds: dict[str, list[ModelEntry]] = {}
    for entry in MODELS.values():
        if f".models.{family}." in entry.module.__module__:
            kinds.setdefault(entry.family, []).append(entry)
    return [sorted(entries, key=lambda entry: entry.parameters) for entries in kinds.values()]


def plain_networks(parameters: int, side: int | tuple[int, int], channels: int, classes: int) -> list[str]:
    """Residual networks of three depths, each as wide as comes nearest to that number of parameters."""
    texts = []
    for blocks in DEPTHS:

        def count(width: int, blocks: int = blocks) -> int:
            widths = (width, 2 * width, 4 * width)
            return _parameters(
                PLAIN, widths=widths, blocks=blocks, img_size=side, in_chans=channels, num_classes=classes
            )

        # The number of parameters is a polynomial of degree two in the width, known from three of its values.
        one, two, three = (count(width) for width in (1, 2, 3))
        square = (three - 2 * two + one) / 2
        linear = two - one - 3 * square
        room = max(linear**2 - 4 * square * (one - square - linear - parameters), 0.0)
        width = min(max(round((math.sqrt(room) - linear) / (2 * square)), 1), WIDEST)
        texts.append(f"{PLAIN}:blocks={blocks},widths=[{width},{2 * width},{4 * width}]")
    return texts


def family_networks(
    family: str, data: str, root: str | None = None, side: int | tuple[int, int] = SIDE, only: Sequence[str] = ()
) -> tuple[list[str], list[str]]:
    """The networks to compare, as `mereo compare` takes them, and a line for each kind that is left out.

    Args:
        family: one of `FAMILIES`.
        data, root: of the images.
        side: of the images that all networks take.
        only: kinds of network, by the name of their file; all when empty.
    """
    info = dataset_info(data, root)
    shape = {"img_size": side, "in_chans": info.in_chans, "num_classes": info.num_classes}
    kinds = {presets[0].family: presets for presets in smallest_presets(family)}
    for kind in only:
        check_choice("model", kind, kinds)
    names, sizes, left_out = [], [], []
    for kind, presets in kinds.items():
        reason = ""
        for entry in presets if not only or kind in only else ():
            try:
                size = _parameters(entry.name, **shape, **ARGUMENTS.get(kind, {}))
            except UsageError as error:
                reason = str(error)
                continue
            names.append(_text(entry.name, **ARGUMENTS.get(kind, {})))
            sizes.append(size)
            break
        else:
            left_out += [f"{kind} is left out: {reason}"] if reason else []
    if not names:
        raise UsageError(f"img_size is {side}, which no network of the family {family!r} takes; give another one.")
    return [*names, *plain_networks(round(statistics.median(sizes)), side, info.in_chans, info.num_classes)], left_out
