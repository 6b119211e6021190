"""Resolves options to a plan, which fixes network, data, task and every setting of a training.

A plan is made once, by `make_plan`, and the image folder is scanned once for it. Training, dry runs, comparisons and
studies all take plans.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from mereo.data import Augmentation, DatasetInfo, dataset_info
from mereo.data.conversion import check_channels
from mereo.data.set_aside import test_fraction
from mereo.data.text import in_windows, text_info
from mereo.errors import UsageError, unknown
from mereo.inference.footprint import check_fits, step_bytes
from mereo.models import (
    SequenceModel,
    VisionModel,
    create_model,
    get_model_entry,
    get_sequence_entry,
    is_sequence_model,
)
from mereo.models.registry import outline
from mereo.runtime.device import choose_device
from mereo.runtime.memory import available_memory, free_memory
from mereo.tasks import Classification, Language, Task, get_task
from mereo.training.config import TrainConfig
from mereo.training.order import derived_seed
from mereo.training.start import follow_weights, follow_weights_of_tokens


@dataclass(frozen=True)
class Plan:
    """A fully resolved configuration and the objects it names.

    Attributes:
        config: with every field resolved.
        task: the kind of prediction.
        info: of the data.
        augmentation: of training images; None for none.
        arguments: of the network, beyond its name.
        given: the fields that the user gave, where a second network may replace this one; otherwise None.
    """

    config: TrainConfig
    task: type[Task]
    info: DatasetInfo
    augmentation: Augmentation | None
    arguments: Mapping[str, Any]
    given: Mapping[str, Any] | None = None

    @property
    def device(self) -> torch.device:
        """The device of the configuration; UsageError if this machine does not have it."""
        return choose_device(self.config.device)

    def steps(self, images: int, processes: int = 1) -> tuple[int, int]:
        """Images of an optimiser step and steps of an epoch, for so many training images."""
        config, parts = self.config, processes * self.config.accumulate
        batch_size = min(config.batch_size, images - images % parts)
        if batch_size < 1 or batch_size % parts:
            raise UsageError(
                f"batch_size is {config.batch_size} for {images} training images; it must be a multiple of the"
                f" {processes} processes times accumulate, {config.accumulate}."
            )
        return batch_size, images // batch_size

    def make_task(self, class_names: tuple[str, ...] = ()) -> Task:
        """The task with its options, for data of these classes."""
        return self.task(class_names, self.config.task_options)

    def build_model(self, num_classes: int | None = None) -> VisionModel:
        """The network, initialised from the seed.

        Args:
            num_classes: of the data, if reading it gave another number than `info`.
        """
        config = self.config
        arguments = dict(self.arguments)
        if num_classes is not None:
            arguments["num_classes"] = self.make_task((), config.task_options).num_outputs(num_classes)
        self._check_memory(arguments)
        torch.manual_seed(derived_seed(config.seed, "weights"))
        model = create_model(config.model, **arguments)
        if config.mean is not None:
            model.pretrained_cfg |= {"mean": config.mean, "std": config.std}
        return model

    def _check_memory(self, arguments: dict[str, Any]) -> None:
        """UsageError for a network of which weights or a step of one image do not fit in memory, before any is made."""
        name, free = self.config.model, available_memory()
        network = outline(name, **arguments)
        size = sum(p.numel() * p.element_size() for p in network.parameters())
        if size > free:
            raise UsageError(
                f"{name} with these arguments has {size / 2**30:,.1f} GiB of weights, and {free / 2**30:.1f} GiB of"
                " memory are free; give a smaller --img-size or other --model-args."
            )
        if not isinstance(network, SequenceModel):
            check_fits(name, arguments, network.image_shape[1:], self.least_memory, free_memory(self.device))

    def least_memory(self, model: VisionModel, count: int = 1) -> int:
        """Bytes that a training step of so many images takes at least, of a network on the meta device."""
        task, labels = self.make_task(), self.info.labels_per_image
        return step_bytes(model, lambda m: task.objective(m, self.config), lambda m: task.example(m, count, labels))


def make_plan(config: TrainConfig, info: DatasetInfo | None = None) -> Plan:
    """Resolve a configuration: the network, its initial weights and the data decide what is not set.

    Args:
        config: of the command line, a file or a recipe.
        info: of its data, where that is known already.
    """
    config.check()
    if is_sequence_model(config.model):
        return _plan_of_tokens(config)
    entry, task = get_model_entry(config.model), get_task(config.task)
    info = dataset_info(config.data, config.data_root) if info is None else info
    _check_images(config, task, info)
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
    augmentation = None if augment in ((), ("none",)) else Augmentation.parse(augment)
    arguments = {"img_size": size, **config.model_args, "in_chans": channels}
    arguments["num_classes"] = task((), config.task_options).num_outputs(info.num_classes)
    _check_arguments(config, entry.defaults)
    chosen = entry.defaults | {name: value for name, value in arguments.items() if value is not None}
    loss = task((), config.task_options).resolve_loss(config.loss, entry.module.class_for(chosen))
    mean, std = config.mean, config.std
    if mean is None or std is None:
        cfg = entry.pretrained_cfg(chosen)
        mean, std = cfg["mean"], cfg["std"]
    elif len(mean) != channels or len(std) != channels:
        raise UsageError(
            f"mean and std have {len(mean)} and {len(std)} entries for {channels} channels; give one for each channel."
        )
    fraction = 0.0 if config.paper_protocol else config.validation_fraction
    config = config.replace(
        img_size=size, in_chans=channels, augment=augment, mean=mean, std=std, validation_fraction=fraction, loss=loss
    )
    return Plan(config, task, info, augmentation, arguments)


def _check_images(config: TrainConfig, task: type[Task], info: DatasetInfo) -> None:
    """UsageError for data or a task of tokens, and for a task or data that adversarial training cannot use."""
    if info.text is not None or "images" not in task.requires:
        what = f"data is {config.data!r}" if info.text is not None else f"task is {config.task!r}"
        raise UsageError(f"{what}, which is for networks that read tokens, and {config.model} takes images.")
    lacking = next((field for field in task.requires if field not in info.fields), None)
    if lacking is not None:
        raise UsageError(
            f"task is {config.task!r}, which needs {lacking}, and {config.data} has {', '.join(info.fields)}; use other"
            " data."
        )
    if config.adversarial and (not task.scores_classes or info.labels_per_image > 1):
        raise UsageError(
            f"adversarial is {config.adversarial}, which needs one class an image; {config.data} with the task"
            f" {config.task} has not. Leave it out."
        )


def _plan_of_tokens(config: TrainConfig) -> Plan:
    """The plan of a sequence model, which has no images to prepare: its windows have the length `context`."""
    entry = get_sequence_entry(config.model)
    # The task that a configuration names by default is that of images.
    task = get_task(Language.name if config.task == Classification.name else config.task)
    if "tokens" not in task.requires:
        raise UsageError(f"task is {config.task!r}, which needs {task.requires[0]}, and {config.model} reads tokens.")
    unused = {
        "img_size": None, "in_chans": None, "mean": None, "std": None, "mixup": 0.0, "cutmix": 0.0, "adversarial": 0.0,
    }  # fmt: skip
    for name, value in unused.items():
        if getattr(config, name) != value:
            raise UsageError(f"{name} is {getattr(config, name)}, and {config.model} reads tokens; leave it out.")
    if config.augment not in ((), ("auto",), ("none",)):
        raise UsageError(f"augment is {config.augment}, which changes images, and {config.model} reads tokens.")
    if config.weights is not None:
        config = follow_weights_of_tokens(config)
    known = entry.defaults
    for name in config.model_args:
        if name == "vocab_size":
            raise UsageError("model_args has vocab_size, which follows from the data; leave it out.")
        if name not in known:
            raise unknown(f"argument of {config.model}", name, known)
    length = config.model_args.get("context", known["context"])
    if not isinstance(length, int) or length < 1:
        raise UsageError(f"context is {length!r}; it must be a whole number above 0, the bytes of a window.")
    info = in_windows(text_info(config.data, config.data_root), length)
    arguments = {**config.model_args, "vocab_size": task((), config.task_options).num_outputs(info.num_classes)}
    loss = task((), config.task_options).resolve_loss(config.loss, entry.module)
    config = config.replace(task=task.name, augment=("none",), loss=loss)
    return Plan(config, task, info, None, arguments)


def training_images(config: TrainConfig, info: DatasetInfo) -> int:
    """Images per epoch, counted without reading them."""
    count = info.splits.get("train", 0)
    count -= round(test_fraction(info.splits) * count)
    if "validation" not in info.splits:
        count -= round(config.validation_fraction * count)
    return count if config.limit is None else min(count, config.limit)


def as_plan(config: TrainConfig | Plan) -> Plan:
    """The plan of a configuration; a plan as it is."""
    return config if isinstance(config, Plan) else make_plan(config)


def resolve(config: TrainConfig) -> TrainConfig:
    """The configuration with every field resolved."""
    return make_plan(config).config


def _check_arguments(config: TrainConfig, known: Mapping[str, Any]) -> None:
    for name in config.model_args:
        if name in ("num_classes", "in_chans"):
            raise UsageError(f"model_args has {name}, which follows from the data; leave it out.")
        if name not in known:
            raise unknown(f"argument of {config.model}", name, known)
