"""From a configuration to a model, data and a device, with every open question settled and written down."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from mereo.data import Augmentation, Images, Splits, dataset_info, load_splits
from mereo.data.conversion import check_channels
from mereo.errors import UsageError, unknown
from mereo.models import CapsuleClassifier, create_model, get_model_entry
from mereo.models.registry import outline
from mereo.runtime.device import choose_device
from mereo.runtime.memory import available_memory
from mereo.training.config import TrainConfig
from mereo.training.order import derived_seed
from mereo.training.start import follow_weights, start_from


@dataclass
class Setup:
    """Everything a run needs, and the configuration with nothing left open.

    `start` says from which weights the network starts; None where it starts from its seed, or goes on.
    """

    config: TrainConfig
    model: CapsuleClassifier
    splits: Splits
    augmentation: Augmentation | None
    device: torch.device
    crop: tuple[int, int]
    start: str | None


def resolve(config: TrainConfig) -> TrainConfig:
    """Fill in what the network and the data decide: sizes, channels, augmentation."""
    config.check()
    entry = get_model_entry(config.model)
    info = dataset_info(config.data, config.data_root)
    channels = config.in_chans or info.in_chans
    check_channels(info.in_chans, channels)
    if config.weights is not None:
        config = follow_weights(config, channels)
    size = config.img_size
    if size is None and "img_size" not in config.model_args:
        default = entry.defaults["img_size"]
        size = default if isinstance(default, int) else None
    augment = config.augment
    if augment == ("auto",):
        augment = info.augment or ("none",)
    parse_augment(augment)
    mean, std = config.mean, config.std
    if mean is None or std is None:
        mean, std = entry.normalisation(channels)
    elif len(mean) != channels or len(std) != channels:
        raise UsageError(
            f"mean and std have {len(mean)} and {len(std)} entries for {channels} channels; give one a channel."
        )
    fraction = 0.0 if config.paper_protocol else config.validation_fraction
    return config.replace(
        img_size=size, in_chans=channels, augment=augment, mean=mean, std=std, validation_fraction=fraction
    )


def parse_augment(texts: tuple[str, ...]) -> Augmentation | None:
    """The augmentation of a configuration; None where it is "none"."""
    return None if texts in ((), ("none",)) else Augmentation.parse(texts)


def build_model(config: TrainConfig, num_classes: int) -> CapsuleClassifier:
    """The network of a resolved configuration, started from its seed."""
    known = get_model_entry(config.model).defaults
    for name in config.model_args:
        if name in ("num_classes", "in_chans"):
            raise UsageError(f"model_args has {name}, which follows from the data; leave it out.")
        if name not in known:
            raise unknown(f"argument of {config.model}", name, known)
    arguments: dict[str, Any] = {"img_size": config.img_size, **config.model_args}
    arguments |= {"num_classes": num_classes, "in_chans": config.in_chans}
    _check_memory(config.model, arguments)
    torch.manual_seed(derived_seed(config.seed, "weights"))
    model = create_model(config.model, **arguments)
    model.pretrained_cfg |= {"mean": config.mean, "std": config.std}
    return model


def _check_memory(name: str, arguments: dict[str, Any]) -> None:
    """UsageError for a network whose weights alone do not fit, before memory is taken for them."""
    size = sum(p.numel() * p.element_size() for p in outline(name, **arguments).parameters())
    if size > (free := available_memory()):
        raise UsageError(
            f"{name} with these arguments has {size / 2**30:,.1f} GiB of weights, and {free / 2**30:.1f} GiB of memory"
            " are free; give a smaller --img-size or other --model-args."
        )


def place(images: Images, device: torch.device) -> Images:
    """Images in the memory of an accelerator where they take at most a quarter of what is free, else where they are."""
    if device.type != "cuda":
        return images
    free, _ = torch.cuda.mem_get_info(device)
    size = len(images) * math.prod(images.image_shape)
    return images.to(device) if size < free / 4 else images


def prepare(config: TrainConfig, *, progress: Any = None, cache: Path | None = None, goes_on: bool = False) -> Setup:
    """Resolve a configuration and load what it names.

    The model is built before the data, so that a wrong argument shows before minutes of reading. Where a run goes on
    from its state, the weights that it once started from are not looked for.
    """
    config = resolve(config)
    device = choose_device(config.device)
    info = dataset_info(config.data, config.data_root)
    model, start = _started(config, info.num_classes, goes_on)
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
        limit=config.limit,
        cache_dir=cache,
        progress=progress,
    )
    if len(splits.class_names) != info.num_classes:
        model, start = _started(config, len(splits.class_names), goes_on)
    splits = splits._replace(
        train=place(splits.train, device),
        validation=None if splits.validation is None else place(splits.validation, device),
        test=place(splits.test, device),
    )
    return Setup(config, model, splits, parse_augment(config.augment), device, crop, start)


def images_told(setup: Setup) -> str:
    """How many images serve for what, in a line."""
    splits, config = setup.splits, setup.config
    told = [f"{len(splits.train):,} images to train on"]
    if splits.validation is not None:
        told.append(f"{len(splits.validation):,} to choose the epoch by")
    told.append(f"{len(splits.test):,} to test on")
    has = dataset_info(config.data, config.data_root).splits
    if "validation" in has and "test" not in has:
        told[-1] += " (the val folder, for there is no test folder)"
    return ", ".join(told)


def _started(config: TrainConfig, num_classes: int, goes_on: bool) -> tuple[CapsuleClassifier, str | None]:
    model = build_model(config, num_classes)
    return model, None if config.weights is None or goes_on else start_from(model, config.weights)
