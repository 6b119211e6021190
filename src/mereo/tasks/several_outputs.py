"""What tasks of several outputs for an image share: outputs without bounds, and images that are not mixed."""

from typing import Any

import torch
from torch import Tensor

from mereo.data import Batch, Images
from mereo.errors import UsageError
from mereo.tasks.base import Settings

_EDGE = 1e-4
"""Distance from 0 and 1 at which lengths and activations of capsules are cut, so that their logits are finite."""


def as_logits(model: Any, scores: Tensor) -> Tensor:
    """The scores of a network without bounds: logits as they are, lengths v of capsules as log(v / (1 - v))."""
    return scores if getattr(model, "score_kind", "logits") == "logits" else torch.logit(scores, eps=_EDGE)


def logits_of(model: Any, batch: Batch) -> Tensor:
    """The scores of a network for a prepared batch, without bounds: float32 (batch, outputs)."""
    return as_logits(model, model(batch.images).float())


def held_field(images: Images, name: str) -> Tensor | None:
    """A field of all images without reading them; None where a set makes its fields when it serves them."""
    fields = getattr(images, "fields", None) or getattr(getattr(images, "source", None), "fields", {})
    return fields.get(name)


def check_unmixed(task: str, settings: Settings) -> None:
    """UsageError for settings of classes that exclude each other."""
    for name in ("mixup", "cutmix", "label_smoothing"):
        if getattr(settings, name):
            raise UsageError(
                f"{name} is {getattr(settings, name)}, which is for one class an image, and task is {task!r}; leave it"
                " out."
            )
