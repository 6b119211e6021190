"""From a plan to the network and the data in memory."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from mereo.data import Images, Splits, load_splits
from mereo.models import VisionModel
from mereo.tasks import Task
from mereo.training.config import TrainConfig
from mereo.training.plan import Plan, as_plan
from mereo.training.start import start_from

__all__ = ["Setup", "describe_images", "place", "prepare"]


@dataclass
class Setup:
    """Everything a run needs.

    Attributes:
        plan: what was resolved.
        task: with the names of the classes.
        model: the network, on the CPU.
        splits: the data.
        device: where it is trained.
        crop: height and width that the network takes.
        start: from which weights the network starts; None where it starts from its seed, or is resumed.
    """

    plan: Plan
    task: Task
    model: VisionModel
    splits: Splits
    device: torch.device
    crop: tuple[int, int]
    start: str | None

    @property
    def config(self) -> TrainConfig:
        """The resolved configuration."""
        return self.plan.config


def place(images: Images, device: torch.device) -> Images:
    """Images in the memory of an accelerator where they take at most a quarter of what is free, else where they are."""
    if device.type != "cuda":
        return images
    free, _ = torch.cuda.mem_get_info(device)
    size = len(images) * math.prod(images.image_shape)
    return images.to(device) if size < free / 4 else images


def prepare(
    config: TrainConfig | Plan, *, progress: Any = None, cache: Path | None = None, resumed: bool = False
) -> Setup:
    """Build what a configuration names and load its data.

    The model is built before the data, so that a wrong argument shows before minutes of reading. Where a run is resumed
    from its state, the weights that it once started from are not looked for.
    """
    plan = as_plan(config)
    config, device = plan.config, plan.device
    model, start = _started(plan, None, resumed)
    crop = model.image_shape[1:]
    splits = load_splits(
        config.data,
        root=config.data_root,
        img_size=crop,
        in_chans=config.in_chans,
        crop_pct=model.pretrained_cfg["crop_pct"],
        validation_fraction=config.validation_fraction,
        seed=config.seed,
        strict=config.strict,
        stream=config.stream or None,
        limit=config.limit,
        cache_dir=cache,
        progress=progress,
        info=plan.info,
    )
    if len(splits.class_names) != plan.info.num_classes:
        model, start = _started(plan, len(splits.class_names), resumed)
    splits = splits._replace(
        train=place(splits.train, device),
        validation=None if splits.validation is None else place(splits.validation, device),
        test=place(splits.test, device),
    )
    return Setup(plan, plan.task(splits.class_names), model, splits, device, crop, start)


def describe_images(setup: Setup) -> str:
    """How many images serve for what, in a line."""
    splits = setup.splits
    parts = [f"{len(splits.train):,} images to train on"]
    if splits.validation is not None:
        parts.append(f"{len(splits.validation):,} to choose the epoch by")
    parts.append(f"{len(splits.test):,} to test on")
    has = setup.plan.info.splits
    if "validation" in has and "test" not in has:
        parts[-1] += " (the val folder, for there is no test folder)"
    return ", ".join(parts)


def _started(plan: Plan, num_classes: int | None, resumed: bool) -> tuple[VisionModel, str | None]:
    model, weights = plan.build_model(num_classes), plan.config.weights
    return model, None if weights is None or resumed else start_from(model, weights)
