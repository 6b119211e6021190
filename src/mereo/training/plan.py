"""Resolves options to a plan, which fixes network, data, task and every setting of a training.

A plan is made once, by `make_plan`, and the image folder is scanned once for it. Training, dry runs, comparisons and
studies all take plans.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch

from mereo.core.added_loss import weigh_losses
from mereo.data import Augmentation, DatasetInfo, dataset_info
from mereo.data.conversion import check_channels
from mereo.data.fields import field_in_words
from mereo.data.set_aside import test_fraction
from mereo.errors import UsageError, unknown
from mereo.inference.footprint import check_fits, step_bytes
from mereo.models import ModelEntry, VisionModel, create_model, get_model_entry
from mereo.models.registry import outline
from mereo.runtime.device import choose_device
from mereo.runtime.memory import available_memory, free_memory
from mereo.surgery import insert, tap
from mereo.tasks import Task
from mereo.tasks.base import task_for
from mereo.training.config import TrainConfig
from mereo.training.option_values import parse_insertion
from mereo.training.order import derived_seed
from mereo.training.regularisers import check_couplings, check_regularisers, of_the_network
from mereo.training.start import follow_weights, pretrained_weights


@dataclass(frozen=True)
class Plan:
    """A fully resolved configuration and the objects it names.

    Attributes:
        config: with every field resolved.
        task: the kind of prediction.
        info: of the data.
        augmentation: of training images; None for none.
        arguments: of the network, beyond its name.
    """

    config: TrainConfig
    task: type[Task]
    info: DatasetInfo
    augmentation: Augmentation | None
    arguments: Mapping[str, Any]

    @property
    def device(self) -> torch.device:
        """The device of the configuration; UsageError if this machine does not have it."""
        return choose_device(self.config.device)

    def steps(self, images: int, processes: int = 1) -> tuple[int, int]:
        """Images of an optimiser step and steps of an epoch, given the number of training images."""
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

    def build_model(self, num_classes: int | None = None, *, pooled: bool = True) -> VisionModel:
        """The network, initialised from the seed.

        Args:
            num_classes: of the data, if reading it gave another number than `info`.
            pooled: False leaves out the pooling of tokens, which trained weights do not have; see `pool_tokens`.
        """
        config = self.config
        arguments = dict(self.arguments)
        outputs = get_model_entry(config.model).module.outputs_argument
        if num_classes is not None and outputs is not None:
            arguments[outputs] = self.make_task().num_outputs(num_classes)
        self._check_memory(arguments)
        torch.manual_seed(derived_seed(config.seed, "weights"))
        model = create_model(config.model, **arguments)
        # Weights of a network with insertions bring theirs, which are not put in a second time.
        there = [each["args"] for each in model.config.get("surgery", ()) if each["name"] == "insert"]
        for wanted in map(parse_insertion, config.insert):
            if not any(all(own.get(name) == value for name, value in wanted.items()) for own in there):
                insert(model, **wanted)
        weigh_losses(model, of_the_network(config))
        check_couplings(model, config)
        if config.mean is not None:
            model.pretrained_cfg |= {"mean": config.mean, "std": config.std}
        return self.pool_tokens(model) if pooled else model

    def pool_tokens(self, model: VisionModel) -> VisionModel:
        """A network with the pooling of tokens that the configuration asks for, if it has none yet."""
        there = any(each["name"] == tap.__name__ for each in model.config.get("surgery", ()))
        if not self.config.tap or there:
            return model
        torch.manual_seed(derived_seed(self.config.seed, "tap"))
        return cast(VisionModel, tap(model))

    def _check_memory(self, arguments: dict[str, Any]) -> None:
        """UsageError for a network whose weights, or a step of one image, do not fit in memory, before it is made."""
        name, free = self.config.model, available_memory()
        network = outline(name, **arguments)
        size = sum(p.numel() * p.element_size() for p in network.parameters())
        if size > free:
            raise UsageError(
                f"{name} with these arguments has {size / 2**30:,.1f} GiB of weights, and {free / 2**30:.1f} GiB of"
                " memory are free; give a smaller --img-size or other --model-args."
            )
        if network.input_kind == "images":
            check_fits(name, arguments, network.image_shape[1:], self.least_memory, free_memory(self.device))

    def least_memory(self, model: VisionModel, count: int = 1) -> int:
        """Least number of bytes of a training step, given its number of images and a network on the meta device."""
        task, labels = self.make_task(), self.info.labels_per_image
        return step_bytes(model, lambda m: task.objective(m, self.config), lambda m: task.example(m, count, labels))


def make_plan(config: TrainConfig, info: DatasetInfo | None = None) -> Plan:
    """Resolve a configuration: the network, its initial weights and the data decide what is not set.

    Args:
        config: of the command line, a file or a recipe.
        info: of its data, if already known.
    """
    config.check()
    entry = get_model_entry(config.model)
    module, defaults = entry.module, entry.defaults
    task = task_for(module, config.task)
    if info is None:
        info = dataset_info(
            config.data,
            config.data_root,
            inputs=module.input_kind,
            unseen=task.unseen_classes,
            options=config.layout._replace(task=task.name),
        )
    check_regularisers(config, task)
    info.check_serves(module.input_kind)
    _check_fields(config, task, info)
    if info.task_options:
        config = config.replace(task_options={**info.task_options, **config.task_options})
    augmentation = None
    if module.input_kind == "images":
        _check_adversarial(config, task, info)
        config = config.replace(in_chans=config.in_chans or info.in_chans)
        check_channels(info.in_chans, config.in_chans or 0)
    else:
        _check_no_images(config, module.input_kind)
    if config.pretrained and config.weights is None:
        config = config.replace(weights=pretrained_weights(config.model))
    if config.weights is not None:
        config = follow_weights(config)
    made, outputs = task((), config.task_options), dict[str, Any]()
    if module.outputs_argument is not None:
        outputs[module.outputs_argument] = made.num_outputs(info.num_classes)
    config = config.replace(model_args=entry.full(config.model_args))
    _check_arguments(config, entry)
    of_data = {name: value for name, value in info.network_arguments.items() if name in defaults}
    arguments: dict[str, Any] = {**of_data, **config.model_args, **outputs}
    if module.input_kind == "images":
        config, augmentation = _of_images(config, entry, info)
        arguments = {"img_size": config.img_size, **arguments, "in_chans": config.in_chans}
    chosen = defaults | {name: value for name, value in arguments.items() if value is not None}
    if module.input_kind == "images":
        config = _normalised(config, entry, chosen)
    else:
        config, augmentation = _augmented(config, info, module.input_kind)
        if not isinstance(chosen.get("context", 1), int) or chosen.get("context", 1) < 1:
            raise UsageError(f"context is {chosen['context']!r}; it must be a whole number above 0.")
        info = info.in_windows(chosen.get("context", 1))
    loss = made.resolve_loss(config.loss, module.class_for(chosen))
    fraction = 0.0 if config.paper_protocol else config.validation_fraction
    config = config.replace(task=task.name, validation_fraction=fraction, loss=loss)
    return Plan(config, task, info, augmentation, arguments)


def _of_images(config: TrainConfig, entry: ModelEntry, info: DatasetInfo) -> tuple[TrainConfig, Augmentation | None]:
    """The size of the images, and how they are changed."""
    size = config.img_size
    if size is None and "img_size" not in config.model_args:
        default = entry.defaults["img_size"]
        size = default if isinstance(default, int) else None
    return _augmented(config.replace(img_size=size), info, entry.module.input_kind)


def _augmented(config: TrainConfig, info: DatasetInfo, inputs: str) -> tuple[TrainConfig, Augmentation | None]:
    """How the inputs are changed: as given, else as the data set states."""
    augment = (info.augment or ("none",)) if config.augment == ("auto",) else config.augment
    augmentation = None if augment in ((), ("none",)) else Augmentation.parse(augment)
    for operation in () if augmentation is None else augmentation.operations:
        if operation.changes != inputs:
            raise UsageError(f"augment has {operation}, for {operation.changes}, and {config.model} reads {inputs}.")
    return config.replace(augment=augment), augmentation


def _normalised(config: TrainConfig, entry: ModelEntry, arguments: Mapping[str, Any]) -> TrainConfig:
    """The mean and standard deviation of each channel: as given, else the network's."""
    channels = arguments["in_chans"]
    if config.mean is None or config.std is None:
        cfg = entry.pretrained_cfg(arguments)
        return config.replace(mean=cfg["mean"], std=cfg["std"])
    if len(config.mean) != channels or len(config.std) != channels:
        raise UsageError(
            f"mean and std have {len(config.mean)} and {len(config.std)} entries for {channels} channels; give one for"
            " each channel."
        )
    return config


def _check_fields(config: TrainConfig, task: type[Task], info: DatasetInfo) -> None:
    """UsageError for data without a field that the task needs."""
    lacking = next((field for field in task.requires if field not in info.fields), None)
    if lacking is not None:
        raise UsageError(
            f"task is {task.name!r}, which needs {field_in_words(lacking)}; {config.data} has"
            f" {', '.join(info.fields)}: use other data or another --task."
        )


def _check_adversarial(config: TrainConfig, task: type[Task], info: DatasetInfo) -> None:
    """UsageError for a task or data that adversarial training cannot use."""
    if config.adversarial and (not task.scores_classes or info.labels_per_image > 1):
        raise UsageError(
            f"adversarial is {config.adversarial}, which needs one class an image; {config.data} with the task"
            f" {task.name} has not. Leave it out."
        )


def _check_no_images(config: TrainConfig, inputs: str) -> None:
    """UsageError for settings of images, which a network of other inputs does not use."""
    unused = {
        "insert": (), "img_size": None, "in_chans": None, "mean": None, "std": None, "mixup": 0.0, "cutmix": 0.0,
        "adversarial": 0.0, "tap": False,
    }  # fmt: skip
    for name, value in unused.items():
        if getattr(config, name) != value:
            raise UsageError(f"{name} is {getattr(config, name)}, and {config.model} reads {inputs}; leave it out.")


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


def _check_arguments(config: TrainConfig, entry: ModelEntry) -> None:
    follow = (entry.module.outputs_argument, "in_chans")
    for name in config.model_args:
        if name in follow and name in entry.defaults:
            raise UsageError(f"model_args has {name}, which follows from the data; leave it out.")
        if name not in (*entry.defaults, "surgery"):
            raise unknown(f"argument of {config.model}", name, entry.defaults)
