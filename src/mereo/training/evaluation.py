"""Evaluation during a run: of the averaged weights if there are any, divided among processes."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from mereo.data import Images
from mereo.inference.evaluate import Scores, evaluate
from mereo.tasks import Objective, Task
from mereo.training.averaging import WeightAverage

BALANCED = "balanced_accuracy"


@torch.no_grad()
def _put(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    for name, parameter in model.named_parameters():
        parameter.copy_(weights[name])


@contextmanager
def averaged(model: nn.Module, average: WeightAverage | None) -> Iterator[None]:
    """The model with its averaged weights, if there are any; its own weights are restored afterwards."""
    if average is None:
        yield
        return
    backup = {name: p.detach().clone() for name, p in model.named_parameters()}
    _put(model, average.average)
    try:
        yield
    finally:
        _put(model, backup)


def _gathered(accelerator: Any, rows: Tensor) -> Tensor:
    """The finite rows (n, columns) of all processes, which need not have equally many."""
    padded = accelerator.pad_across_processes(rows, dim=0, pad_index=float("nan"))
    together: Tensor = accelerator.gather(padded)
    return together[~together.isnan().any(1)]


def evaluate_run(
    objective: Objective,
    split: Images,
    task: Task,
    *,
    average: WeightAverage | None,
    accelerator: Any,
    batch_size: int,
    final: bool,
) -> Scores:
    """Metrics of the averaged weights, if there are any, on every image of a split.

    Args:
        objective, split, task, average, accelerator: of the run.
        batch_size: of the training; at least `task.evaluated_at_once` samples are evaluated at once.
        final: evaluate in single precision, as saved weights are used, not in the precision of the training.
    """
    processes = accelerator.num_processes
    with averaged(objective.model, average):
        return evaluate(
            objective.model, split, task=task, loss=objective.loss, batch_size=max(batch_size, task.evaluated_at_once),
            rank=accelerator.process_index, processes=processes,
            reduce=(lambda t: accelerator.reduce(t, "sum")) if processes > 1 else None,
            gather=partial(_gathered, accelerator) if processes > 1 else None,
            autocast=nullcontext if final else accelerator.autocast, intervals=final,
        )  # fmt: skip


def choosing_metric(task: Task, *, uneven: bool) -> str:
    """The metric that chooses the best epoch: the task's; for classes of very different sizes the balanced accuracy,
    because the accuracy of such images hardly depends on the small classes."""
    return BALANCED if uneven and task.chooses[0] == "accuracy" else task.chooses[0]


def is_better(task: Task, scores: Scores, best: Mapping[str, Any] | None, metric: str | None = None) -> bool:
    """Whether an epoch is better than the best so far: by a metric, by default the task's, then by the loss.

    Epochs of older checkpoints may have the task's metric only; then that one is compared.
    """
    if best is None:
        return True
    default, direction = task.chooses
    if metric is None or metric not in best or metric not in scores.values:
        metric = default
    sign = 1 if direction == "max" else -1
    return (sign * scores.values[metric], -scores.loss) > (sign * best[metric], -best["loss"])
