"""What `mereo train --data FOLDER` trains, and a plain network of torchvision, trained for the same minutes.

Both start from random weights and are measured on the same test images by one function; masks are compared at the size
of the plain network. That is trained by a plain loop: AdamW, a rate that falls linearly by the clock, mirrored images.
It chooses no epoch, and so is also trained on the images that mereo holds out for that.
"""

from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import mereo
from mereo.data import Augmentation, load_splits
from mereo.data.images import Images
from mereo.errors import check_choice
from mereo.inference.evaluate import prepare_batch
from mereo.tasks import Task
from mereo.training.automatic import implied_task
from mereo.training.config import TrainConfig
from mereo.training.order import epoch_order, generator
from mereo.training.plan import make_plan
from mereo.training.step import descend
from papers.common.settings import Settings
from papers.plain_baselines.networks import PLAIN

MINUTES, RATE, BATCH = 10.0, 1e-3, 16
MOMENTUM = 0.1
"""Of batch norms, PyTorch's default: torchvision's 0.01 for MobileNetV3 needs more steps than fit into minutes."""
CFG = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}


def train(network: Any, images: Images, end: float, device: torch.device) -> int:
    """Train until a moment of `monotonic`, for one step at least; the number of images that were used."""
    optimizer, began, used, epoch = torch.optim.AdamW(network.parameters(), RATE), monotonic(), 0, 0
    flip = Augmentation.parse(["flip"])
    while True:
        for step, indices in enumerate(epoch_order(0, epoch, len(images)).split(BATCH)):
            left = (end - monotonic()) / max(end - began, 1e-9)
            if used and left <= 0:
                return used
            draws = generator(0, "augment", epoch, step)
            batch = images.batch(indices, augmentation=flip, generator=draws, device=device)
            if len(indices) > 1:  # a batch norm takes no single image
                descend(optimizer, RATE * max(left, 0.01), network.loss(prepare_batch(batch, CFG)))
            used += len(indices)
        epoch += 1


@torch.inference_mode()
def measure(task: Task, images: int, count: Callable[[Any, Tensor], None]) -> dict[str, Any]:
    """The figures of a row; `count` updates metrics of the task with the test images at some indices."""
    metrics, row = task.metrics(), dict[str, Any]()
    metrics.final = True
    for indices in torch.arange(images).split(BATCH):
        count(metrics, indices)
    figures, ends = metrics.compute(), metrics.intervals()
    for name in PLAIN[task.name][-1]:
        scale, unit = (1.0, "") if name == "boundary_distance" else (100.0, " %")
        row[f"{name}{unit}"] = scale * figures[name]
        row[f"{name} interval"] = " to ".join(f"{scale * end:.2f}" for end in ends.get(name, ()))
    return row


def run(settings: Settings) -> dict[str, Any]:
    """Train both networks, and measure them: a row each."""
    data, minutes = str(settings.data), settings.minutes or MINUTES
    task_given = None if implied_task(data, settings.data_root) else "embedding"  # folders of classes are identities
    options = {"task": task_given, "limit": settings.limit, "test_limit": settings.images, "device": settings.device}
    given: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    given |= {"data": data, "data_root": settings.data_root, "minutes": minutes, "tensorboard": False}
    default = mereo.train(output=str(settings.folder), **given)
    task, model, config = default.task, default.model.eval(), TrainConfig.from_yaml(default.folder.config)
    check_choice("task", task.name, PLAIN)
    device, (title, make, side, _), info = next(model.parameters()).device, PLAIN[task.name], make_plan(config).info
    end = monotonic() + 60 * minutes

    def load(shape: tuple[int, ...]) -> Any:
        return load_splits(
            data, root=config.data_root, in_chans=shape[0], img_size=(shape[1], shape[2]), limit=settings.limit,
            test_limit=settings.images, validation_fraction=0.0, info=info,
        )  # fmt: skip

    splits = load((3, side, side))
    torch.manual_seed(0)
    plain = make(len(splits.class_names)).to(device).train()
    for module in plain.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = MOMENTUM
    used = train(plain, splits.train, end, device)
    plain.eval()
    own, true = load(model.image_shape).test, splits.test

    def count_plain(metrics: Any, indices: Tensor) -> None:
        plain.count(metrics, prepare_batch(true.batch(indices, device=device), CFG))

    def count_default(metrics: Any, indices: Tensor) -> None:
        outputs = task.apply(model, prepare_batch(own.batch(indices, device=device), model.pretrained_cfg)).float()
        if task.name == "segmentation":
            outputs = F.interpolate(outputs, (side, side), mode="bilinear", align_corners=False)
        metrics.update(outputs, true.batch(indices, device=device))

    def row(name: str, network: nn.Module, pixels: int, used: int) -> dict[str, Any]:
        parameters = sum(p.numel() for p in network.parameters())
        figures = measure(task, len(true), count_plain if network is plain else count_default)
        return {"network": name, "parameters": parameters, "pixels": pixels, "images used": used, **figures}

    trained = default.results["epochs"] * default.results["train_images"]
    rows = [row("default", model, model.image_shape[1], trained), row("plain", plain, side, used)]
    return {
        "tables": {f"{Path(data).name}, {minutes:g} minutes each, {len(true):,} test images": rows},
        "notes": [f"default: {config.model}; plain: {title}. 95 % intervals, by drawing the test images anew."],
        "data": data,
    }
