"""Builds the network of a plan and loads its data."""

import math
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import torch
from torch import nn

from mereo.core.coupling import Coupling
from mereo.data import Images, ImageSet, Splits, load_splits
from mereo.data.characters import AUGMENT as SIGNS_AUGMENT
from mereo.data.characters import are_signs
from mereo.data.facts import UNEVEN
from mereo.errors import MereoError, UsageError
from mereo.escape import for_terminal
from mereo.models import VisionModel
from mereo.runtime.text import counted
from mereo.surgery.insert import describe_inserted
from mereo.tasks import Task
from mereo.training.config import TrainConfig
from mereo.training.plan import Plan, as_plan
from mereo.training.start import start_from

__all__ = ["Setup", "describe_images", "describe_imbalance", "place", "prepare"]

BLACK = frozenset({"crop", "shift", "rotate", "rand_augment"})
"""Augmentations that let black enter at the borders."""
COMPARED = 2**28
"""Bytes of training images up to which they are compared with each other."""


@dataclass
class Setup:
    """Everything a run needs.

    Attributes:
        plan: the resolved configuration and the objects that it names.
        task: with the names of the classes.
        model: the network, on the CPU.
        splits: the data.
        device: to train on.
        crop: height and width of the network's images; None if the network does not read images.
        start: a description of the initial weights; None for random weights or a resumed run.
    """

    plan: Plan
    task: Task
    model: VisionModel
    splits: Splits
    device: torch.device
    crop: tuple[int, int] | None
    start: str | None

    def __post_init__(self) -> None:
        if self.config.patience is not None and (self.config.paper_protocol or self.splits.validation is None):
            raise UsageError(
                f"patience is {self.config.patience}, and no images are held out to choose the epoch by; leave it out."
            )

    @property
    def config(self) -> TrainConfig:
        """The resolved configuration."""
        return self.plan.config


def place(images: Images, device: torch.device) -> Images:
    """Move images to an accelerator if they take at most a quarter of its free memory."""
    if device.type != "cuda":
        return images
    free, _ = torch.cuda.mem_get_info(device)
    size = len(images) * math.prod(images.image_shape)
    return images.to(device) if size < free / 4 else images


def prepare(
    config: TrainConfig | Plan, *, progress: Any = None, cache: Path | None = None, resumed: bool = False
) -> Setup:
    """Build what a configuration names and load its data.

    The model is built before the data is read, so that a wrong argument fails at once. A resumed run does not need the
    weights it was started from.
    """
    plan = as_plan(config)
    config, device = plan.config, plan.device
    model, start = _started(plan, None, resumed)
    of_images = model.input_kind == "images"
    crop = model.image_shape[1:] if of_images else None
    splits = load_splits(
        config.data,
        root=config.data_root,
        img_size=crop,
        length=None if of_images else model.input_shape[0],
        in_chans=config.in_chans,
        crop_pct=model.pretrained_cfg["crop_pct"] if of_images else 1.0,
        validation_fraction=config.validation_fraction,
        seed=config.seed,
        strict=config.strict,
        stream=config.stream or None,
        limit=config.limit,
        test_limit=config.test_limit,
        cache_dir=cache,
        progress=progress,
        info=plan.info,
        unseen=plan.task.unseen_classes,
    )
    if of_images and len(splits.class_names) != plan.info.num_classes:
        model, start = _started(plan, len(splits.class_names), resumed)
    task = plan.make_task(splits.class_names)
    task.fit(splits.train)
    return Setup(plan, task, model, _placed(splits, device), device, crop, start)


def _placed(splits: Splits, device: torch.device) -> Splits:
    return splits._replace(
        train=place(splits.train, device),
        validation=None if splits.validation is None else place(splits.validation, device),
        test=place(splits.test, device),
    )


def describe_images(setup: Setup) -> str:
    """One line with the number of images for training, choosing the epoch and testing."""
    splits = setup.splits
    parts = [f"{len(splits.train):,} {setup.task.unit} to train on"]
    if splits.validation is not None:
        parts.append(f"{len(splits.validation):,} to choose the epoch by")
    parts.append(f"{len(splits.test):,} to test on")
    has = setup.plan.info.splits
    if "validation" in has and "test" not in has:
        parts[-1] += " (set aside from the training images, because there is no test split)"
    return ", ".join(parts)


def uneven_classes(setup: Setup) -> tuple[tuple[str, int], tuple[str, int]] | None:
    """The largest and the smallest class with their numbers of training images; None if these differ little."""
    images, names = setup.splits.train, setup.splits.class_names
    if not setup.task.scores_classes or images.labels_per_image != 1:
        return None
    counts = torch.bincount(images.strata, minlength=len(names))
    most, least = int(counts.argmax()), int(counts.argmin())
    if counts[most] < UNEVEN * counts[least] or len(names) != len(counts):
        return None
    return (names[most], int(counts[most])), (names[least], int(counts[least]))


def describe_imbalance(setup: Setup) -> str | None:
    """A line about classes of very different sizes; None for even ones."""
    uneven = uneven_classes(setup)
    if uneven is None:
        return None
    (largest, most), (smallest, least) = ((for_terminal(name), count) for name, count in uneven)
    shown = counted(most, setup.task.unit.removesuffix("s"))
    line = f"classes differ in size: {shown} of {largest}, {least:,} of {smallest}"
    if setup.splits.validation is not None:
        line += "; balanced accuracy chooses the epoch"
    return line if setup.config.sampler == "balanced" else f"{line}; --sampler balanced draws every class equally often"


def describe_contradictions(setup: Setup) -> str | None:
    """A line about images that are the same, pixel by pixel, in several classes; None without any."""
    images = setup.splits.train
    if not isinstance(images, ImageSet) or not setup.task.scores_classes or images.images.numel() > COMPARED:
        return None
    labels, first, known = images.labels.tolist(), {}, dict[bytes, int]()
    for place, image in enumerate(images.images.cpu().flatten(1).numpy()):
        known.setdefault(digest := blake2b(image, digest_size=16).digest(), place)
        if labels[known[digest]] != labels[place]:
            first[place] = known[digest]
    if not first:
        return None
    one, other = (for_terminal(images.class_names[labels[place]]) for place in next(iter(first.items())))
    return (
        f"{counted(len(first), 'training image')} {'is' if len(first) == 1 else 'are'} the same as one of another"
        f" class, such as of {other} and {one}; no network can tell these apart"
    )


def describe_augmentation(setup: Setup) -> list[str]:
    """Lines about changes of the images that suit photographs and not signs: mirroring, and black on bright margins."""
    names, augment = setup.splits.class_names, setup.config.augment
    if not setup.task.scores_classes or not are_signs(names):
        return []
    used = {text.partition("=")[0] for text in augment}
    shown = ", ".join(map(for_terminal, names[:3]))
    lines = []
    if "flip" in used:
        lines.append(
            f"flip mirrors the images, and the classes look like signs ({shown}, ...); leave it out of --augment"
        )
    elif augment == SIGNS_AUGMENT:
        lines.append(
            f"the classes look like signs ({shown}, ...), so images are neither mirrored nor given black borders"
        )
    black = sorted(used & BLACK)
    if black and _bright_margins(setup.splits.train):
        lines.append(f"{' and '.join(black)} put{'s' * (len(black) == 1)} black borders on images with bright margins")
    return lines


def describe_setup(setup: Setup) -> list[str]:
    """Lines about a training, printed before it starts."""
    splits = setup.splits
    lines = (
        describe_images(setup),
        describe_imbalance(setup),
        describe_contradictions(setup),
        *describe_augmentation(setup),
        *setup.task.describe_data(splits.train, splits.validation, splits.test),
        *setup.task.remarks(setup.model),
        setup.start,
        describe_inserted(setup.model),
        describe_lone_senders(setup.model),
    )
    return [line for line in lines if line is not None]


def describe_lone_senders(model: nn.Module) -> str | None:
    """A line about couplings that are always 1, because the images leave them one sender; None without any."""
    lone = [
        name.removesuffix(".coupling")
        for name, module in model.named_modules()
        if isinstance(module, Coupling) and module.over == "senders" and module.senders and module.senders.size == 1
    ]
    if not lone:
        return None
    return (
        f"images of this size leave {' and '.join(lone)} a single sender, so that couplings are 1 whatever it sends;"
        " larger images or smaller patches give several"
    )


def _bright_margins(images: Images) -> bool:
    """Whether the border pixels of the images are bright in the mean."""
    try:
        shown = images.batch(torch.arange(0, len(images), max(len(images) // 32, 1)), device="cpu").images
    except MereoError:  # an image of a stream that cannot be read
        return False
    edges = torch.cat([shown[..., 0, :], shown[..., -1, :], shown[..., 0], shown[..., -1]], dim=-1)
    return edges.mean().item() > 0.5


def _started(plan: Plan, num_classes: int | None, resumed: bool) -> tuple[VisionModel, str | None]:
    model, weights = plan.build_model(num_classes, pooled=False), plan.config.weights
    start = None if weights is None or resumed else start_from(model, weights)
    return plan.pool_tokens(model), start
