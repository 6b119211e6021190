"""Whole networks: CapsNet and its parts, MSPCaps by kernel, 224x224, and every registered model."""

import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from mereo.bench.correctness import Step
from mereo.bench.counting import network_work
from mereo.bench.suite import Contender, Mode, Setting, Suite, Table, UnavailableError, Work, Workload
from mereo.data import Augmentation, Batch, ImageSet
from mereo.inference.evaluate import normalise
from mereo.models import MODELS as NETWORKS
from mereo.models import VisionModel, create_model, get_model_entry
from mereo.models.capsule.capsnet import CapsNet
from mereo.models.registry import lay_out
from mereo.tasks import Classification
from mereo.tasks.classification import ClassificationObjective as Objective
from mereo.tasks.losses import many_hot, margin_loss

OPERATORS = 15
"""The largest that a table of a training step shows."""
TAKES = "() -> a torch.nn.Module from images (batch, channels, height, width) to scores (batch, classes); not checked"


def _training(loss: Callable[..., Tensor], module: nn.Module) -> Workload:
    """A step with Adam. Its rate is 0, so that every step computes the same."""
    leaves = tuple(module.parameters())
    return Workload(loss, leaves, torch.optim.Adam(leaves, lr=0.0).step)


def workload(model: VisionModel, setting: Setting, mode: Mode) -> Workload:
    """Inference, or a training step with its loss, its decoder and Adam; convolutions in channels-last memory."""
    model = model.to(setting.device)
    lay_out(model)
    if mode == "forward":
        model.eval()
        return Workload(lambda images, labels: model(images))
    objective = Objective(model, Classification().resolve_loss("auto", type(model))).train()
    return _training(lambda images, labels: objective(Batch(images, labels, images))[0], objective)


def adopt(factory: Callable[..., Any], setting: Setting) -> Callable[[Mode], Workload]:
    """A network from outside: its weights are its own, so that only its time can be compared."""

    def build(mode: Mode) -> Workload:
        module = factory().to(setting.device)
        lay_out(module)
        if mode == "forward":
            module.eval()
            return Workload(lambda images, labels: module(images))
        module.train()

        def loss(images: Tensor, labels: Tensor) -> Tensor:
            scores = module(images)
            return margin_loss(scores, many_hot(labels, scores.shape[1]))

        return _training(loss, module)

    return build


def _make(setting: Setting) -> VisionModel:
    return create_model(setting.word("model"))


def images_and_labels(setting: Setting, shape: tuple[int, ...], classes: int) -> tuple[Tensor, Tensor]:
    """Random images in [0, 1] and labels."""
    batch, device = setting.size("batch"), setting.device
    images = torch.rand(batch, *shape, device=device).contiguous(memory_format=torch.channels_last)
    return images, torch.randint(max(classes, 1), (batch,), device=device)


def _inputs(setting: Setting, mode: Mode) -> tuple[Any, ...]:
    entry = get_model_entry(setting.word("model"))
    shape = entry.pretrained_cfg(entry.defaults)["input_size"]
    return images_and_labels(setting, shape, entry.defaults["num_classes"])


def _work(setting: Setting, mode: Mode) -> Work:
    model = _make(setting).to(setting.device)
    return network_work(model, torch.rand(2, *model.image_shape, device=setting.device), setting.size("batch"), mode)


def _whole(setting: Setting) -> Contender:
    return Contender(setting.word("model"), lambda mode: workload(_make(setting), setting, mode))


def _without_optimiser(setting: Setting) -> Contender:
    def build(mode: Mode) -> Workload:
        if mode == "forward":
            raise UnavailableError("inference has no optimiser")
        return replace(workload(_make(setting), setting, mode), finish=None)

    return Contender("without its optimiser", build, "part")


def _convolutions(setting: Setting) -> Contender:
    def build(mode: Mode) -> Workload:
        model: Any = _make(setting)
        two = nn.Sequential(model.conv, nn.ReLU(), model.primary.conv).to(setting.device)
        two = two.to(memory_format=torch.channels_last)
        return Workload(lambda images, labels: two(images), tuple(two.parameters()))

    return Contender("only its convolutions", build, "part")


CAPSNET = Suite(
    "capsnet",
    "CapsNet for MNIST at batch 128: the whole step, without Adam, and only its convolutions; the same for inference",
    TAKES,
    {"batch": 128, "model": "capsnet"},
    _inputs,
    lambda setting: (_whole(setting), _without_optimiser(setting), _convolutions(setting)),
    _work,
    quick={"batch": 16},
    memory=("forward", "training"),
    tolerance=1e-3,
    adopt=adopt,
    adopted="unchecked",
)


def _augmented(setting: Setting) -> Workload:
    """A training step from stored images on: batch, augmentation, normalisation, network, Adam."""
    entry = get_model_entry(setting.word("model"))
    model = _make(setting).to(setting.device)
    lay_out(model)
    loss = Classification().resolve_loss("auto", type(model))
    objective = Objective(model, loss, reconstruction_weight=0.0).train()
    augmentation = Augmentation.parse(("crop=4", "flip"))
    channels = model.image_shape[0]

    def call(stored: Tensor, labels: Tensor) -> Tensor:
        images = ImageSet(stored, labels, tuple(map(str, range(model.num_classes))))
        chosen, draws = torch.arange(len(labels)), torch.Generator().manual_seed(0)
        batch = images.batch(chosen, augmentation=augmentation, generator=draws, device=setting.device)
        pixels = normalise(batch.images, *entry.normalisation(channels))
        pixels = pixels.contiguous(memory_format=torch.channels_last)
        return objective(Batch(pixels, batch.labels, batch.images))[0]

    return _training(call, objective)


def _stored(setting: Setting, mode: Mode) -> tuple[Any, ...]:
    images, labels = _inputs(setting, mode)
    return (255 * images).to(torch.uint8).contiguous(), labels


def step_shares(setting: Setting, quick: bool) -> list[Table]:
    """Where the time of a training step goes: operators by their own time, as torch.profiler measures them."""
    torch.manual_seed(0)
    step = Step(_augmented(setting), _stored(setting, "training"), "training")
    on_cuda, steps = setting.device.startswith("cuda"), 2 if quick else 5
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler reports that there is no GPU as an error
    step()
    with profile(activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_cuda else [])]) as trace:
        for _ in range(steps):
            step()
    kind = "self_device_time_total" if on_cuda else "self_cpu_time_total"
    # Of a GPU's time the kernels themselves, and spans around operators, would count twice.
    operators = (
        each
        for each in trace.key_averages()
        if not on_cuda or (each.device_type.name == "CPU" and not each.is_user_annotation)
    )
    own = {each.key: getattr(each, kind) for each in operators}
    whole, largest = sum(own.values()), sorted(own, key=lambda key: -own[key])[:OPERATORS]
    rows = [(key, f"{own[key] / 1e3 / steps:.2f}", f"{100 * own[key] / whole:.1f} %") for key in largest]
    notes = (f"{len(largest)} of {len(own)} operators, with the profiler running, which makes Python slower",)
    return [Table("where the step goes", ("operator", "ms a step", "share"), tuple(rows), notes)]


MSPCAPS = Suite(
    "mspcaps",
    "a training step of MSPCaps-T at batch 128 from stored images on, and where its time goes, by operator",
    TAKES,
    {"batch": 128, "model": "mspcaps_tiny"},
    _stored,
    lambda setting: (Contender(setting.word("model"), lambda mode: _augmented(setting)),),
    _work,
    quick={"batch": 16},
    modes=("training",),
    tolerance=1e-3,
    adopt=adopt,
    adopted="unchecked",
    tables=step_shares,
)


class StemmedCapsNet(nn.Module):
    """CapsNet of large images: a 7x7 convolution of stride 6 brings them down to the side of 37.

    224 -> 37 -> 29 -> 11: 32 * 11 * 11 = 3872 children for 196 classes, without a decoder.
    """

    def __init__(self, classes: int, image: int, channels: int = 64) -> None:
        super().__init__()
        side = (image + 2 - 7) // 6 + 1
        self.stem = nn.Conv2d(3, channels, 7, 6, padding=1)
        self.capsnet = CapsNet(classes, channels, side, decoder=False)

    def forward(self, images: Tensor) -> Tensor:
        return self.capsnet(self.stem(images).relu())


def _large(setting: Setting) -> StemmedCapsNet:
    return StemmedCapsNet(setting.size("classes"), setting.size("image"))


def _large_shape(setting: Setting) -> tuple[int, int, int]:
    return 3, setting.size("image"), setting.size("image")


def _large_work(setting: Setting, mode: Mode) -> Work:
    images = torch.rand(1, *_large_shape(setting), device=setting.device)
    return network_work(_large(setting).to(setting.device), images, setting.size("batch"), mode)


CAPSNET_224 = Suite(
    "capsnet_224",
    "CapsNet on 224x224 images of 196 classes at batch 32: time and peak memory of a training step, within 4 GiB",
    TAKES,
    {"batch": 32, "classes": 196, "image": 224},
    lambda setting, mode: images_and_labels(setting, _large_shape(setting), setting.size("classes")),
    lambda setting: (Contender("capsnet_224", adopt(lambda: _large(setting), setting)),),
    _large_work,
    quick={"batch": 2, "classes": 20, "image": 128},
    modes=("training",),
    limit=4 * 2**30,
    adopt=adopt,
    adopted="unchecked",
)
MODELS = Suite(
    "models",
    "every registered model: images per second in inference and in training",
    TAKES,
    {"batch": 32, "model": "capsnet"},
    _inputs,
    lambda setting: (_whole(setting),),
    _work,
    sweeps={"model": tuple(sorted(name for name, e in NETWORKS.items() if e.module.input_kind == "images"))},
    quick={"batch": 4},
    tolerance=1e-3,
    adopt=adopt,
    adopted="unchecked",
)
