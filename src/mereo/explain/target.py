"""What an explanation is about: one number for each image, by default the score of the predicted class."""

from collections.abc import Callable

import torch
from torch import Tensor

from mereo.errors import MereoError, UsageError
from mereo.inference.predict import task_of
from mereo.models import VisionModel
from mereo.tasks import Task

Target = int | Tensor | Callable[[Tensor], Tensor]
"""A class, one for all images or int64 (batch,); or a function from the outputs of a network to (batch,)."""
_EXAMPLES = {
    "maps": "lambda maps: maps[:, 1].mean((1, 2))",
    "embedding": "lambda embedding: (embedding * other).sum(1)",
}


def chosen_classes(scores: Tensor, classes: Tensor | None) -> Tensor:
    """The class to explain for each image: the given one, or else the class of the highest score.

    Shapes: scores (batch, classes) -> int64 (batch,).
    """
    if classes is None:
        return scores.argmax(1)
    chosen = torch.as_tensor(classes, device=scores.device)
    if chosen.shape != scores.shape[:1] or chosen.dtype != torch.int64:
        raise UsageError(
            f"classes is {chosen.dtype} of shape {tuple(chosen.shape)}; it must be int64 of shape ({len(scores)},)."
        )
    if outside := [number for number in chosen.tolist() if not 0 <= number < scores.shape[1]]:
        raise UsageError(f"classes has {outside[0]}; the classes are 0 to {scores.shape[1] - 1}.")
    return chosen


def check_finite(outputs: Tensor) -> None:
    """MereoError unless all outputs are finite."""
    if not bool(outputs.isfinite().all()):
        raise MereoError("the scores are not finite: the network's weights are damaged.")


def check_scores(model: VisionModel, outputs: Tensor) -> None:
    """UsageError unless the outputs of a network are scores of classes, (batch, classes); MereoError for NaN."""
    kind = model.output_kind
    if kind != "scores" or not isinstance(outputs, Tensor) or outputs.dim() != 2:
        example = _EXAMPLES.get(kind, "lambda outputs: outputs.flatten(1).mean(1)")
        raise UsageError(
            f"target is not a function, and {type(model).__name__} gives {kind}, not one score for each class, (batch,"
            f" classes); in Python, mereo.explain takes a function of the outputs, such as target={example}."
        )
    check_finite(outputs)


def of_classes(model: VisionModel) -> bool:
    """Whether a network is explained by scores of its outputs, not by a number that its task makes of them."""
    return type(task_of(model)).explained is Task.explained


def resolve_target(model: VisionModel, outputs: Tensor, target: Target | None) -> Tensor | Callable[[Tensor], Tensor]:
    """The classes of the images, int64 (batch,): the given ones, else the predicted ones; a function stays as it is.

    Without any, a task without scores of classes chooses, see `Task.explained`.
    """
    if target is None and not of_classes(model):
        check_finite(outputs)
        target = task_of(model).explained(outputs.detach())
    if callable(target) and not isinstance(target, Tensor):
        check_finite(outputs)
        return target
    check_scores(model, outputs)
    return chosen_classes(outputs, torch.full((len(outputs),), target) if isinstance(target, int) else target)


def value_of(outputs: Tensor, target: Tensor | Callable[[Tensor], Tensor]) -> Tensor:
    """The explained value, (batch,): the score of a class, or the function of the outputs.

    Raises:
        UsageError: for a function that does not give one number for each image.
    """
    if isinstance(target, Tensor):
        return outputs.gather(1, target[:, None])[:, 0]
    value = target(outputs)
    if not isinstance(value, Tensor) or value.shape != outputs.shape[:1]:
        found = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
        raise UsageError(f"target gives {found}; it must give a tensor ({len(outputs)},), one number for each image.")
    return value
