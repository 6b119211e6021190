"""Evaluates a model on one split."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

from mereo.core.modes import modes_kept
from mereo.data import Batch, Images
from mereo.errors import MereoError
from mereo.models import Network
from mereo.tasks import Classification, Task
from mereo.tasks.base import precise

Loss = Callable[[Any, Batch], Tensor]
"""(outputs, prepared batch) -> ()."""


def normalise(images: Tensor, mean: tuple[float, ...], std: tuple[float, ...]) -> Tensor:
    """(images - mean) / std by channel: images (batch, channels, height, width) in [0, 1]."""
    m, s = (images.new_tensor(v).view(1, -1, 1, 1) for v in (mean, std))
    return (images - m) / s


def prepare_batch(
    batch: Batch, cfg: Mapping[str, Any], memory_format: torch.memory_format = torch.preserve_format
) -> Batch:
    """A batch as a model takes it: normalised images; without targets, the images themselves are the targets.

    Images that are drawn, not read, stay as they are: their network states no `mean`.
    """
    if batch.images is None or "mean" not in cfg:
        return batch
    targets = batch.images if batch.targets is None else batch.targets
    images = normalise(batch.images, cfg["mean"], cfg["std"])
    if memory_format is not torch.preserve_format:
        images = images.contiguous(memory_format=memory_format)
    return batch._replace(images=images, targets=targets)


def entries(batch: Batch) -> int:
    """How many entries a batch has."""
    return next(len(field) for field in batch if field is not None)


@dataclass(frozen=True)
class Scores:
    """The metrics of a model on one split.

    Attributes:
        count: entries of the split.
        loss: mean of the loss, 0 if none was requested.
        values: the metrics of the task by name.
        intervals: the 95 % intervals of metrics that do not have them among the values, if requested.
    """

    count: int
    loss: float
    values: dict[str, float]
    intervals: Mapping[str, tuple[float, float]] = field(default_factory=dict)

    @property
    def accuracy(self) -> float:
        """The metric of that name, of classification."""
        return self.values["accuracy"]

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's 95 % interval of the accuracy."""
        return self.values["accuracy_low"], self.values["accuracy_high"]

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        low = {f"{name}_low": ends[0] for name, ends in self.intervals.items()}
        high = {f"{name}_high": ends[1] for name, ends in self.intervals.items()}
        return {"count": self.count, **self.values, **low, **high, "loss": self.loss}


def batches(
    split: Images,
    batch_size: int,
    device: torch.device,
    crop: tuple[int, int] | None = None,
    rank: int = 0,
    processes: int = 1,
) -> Iterator[Batch]:
    """The images of a split in order, unaugmented; each process gets its own share."""
    parts = torch.arange(len(split)).split(batch_size)[rank::processes]
    if len(split) == 0:
        return
    if parts:
        split.prefetch(torch.cat(parts))
    for part in parts:
        yield split.batch(part, crop=crop, device=device)


def _as(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    return tensor.to(dtype) if tensor.is_floating_point() else tensor


def _outputs(model: Network, batch: Batch, task: Task, autocast: Any) -> Any:
    """The outputs of a model for a prepared batch, in float32."""
    if autocast is None:
        dtype = next(model.parameters()).dtype
        outputs = task.apply(model, tree_map_only(Tensor, lambda x: _as(x, dtype), batch))
    else:
        with autocast():
            outputs = task.apply(model, batch)
    return tree_map_only(Tensor, lambda x: _as(x, torch.float32), outputs)


@torch.inference_mode()
def evaluate(
    model: Network,
    split: Images,
    *,
    task: Task | None = None,
    loss: Loss | None = None,
    batch_size: int = 256,
    rank: int = 0,
    processes: int = 1,
    reduce: Any = None,
    gather: Any = None,
    autocast: Any = None,
    intervals: bool = False,
) -> Scores:
    """The metrics of a task on every entry of a split.

    Args:
        task: classification by default.
        loss: of outputs and a prepared batch; optional.
        rank, processes: this process's share; `reduce` then sums the totals over the processes, and `gather` joins
            the rows that the metrics keep.
        autocast: makes the context in which the model runs.
        intervals: also compute the intervals of the metrics, and metrics that take long.
    """
    task = Classification(split.class_names) if task is None else task
    device, cfg = next(model.parameters()).device, model.pretrained_cfg
    crop = tuple(cfg["input_size"][1:]) if split.serves == "images" else None
    # count, loss, entries whose outputs are not finite
    totals = torch.zeros(3, dtype=precise(device), device=device)
    metrics = task.metrics()
    metrics.final = intervals
    with modes_kept(model):
        model.eval()
        for served in batches(split, batch_size, device, crop, rank, processes):
            batch = prepare_batch(served, cfg)
            task.check(batch)
            outputs, count = _outputs(model, batch, task, autocast), entries(batch)
            value = totals.new_zeros(()) if loss is None else loss(outputs, batch)
            bad = torch.stack([~x.isfinite().flatten(1).all(1) for x in tree_leaves(outputs) if isinstance(x, Tensor)])
            totals += torch.stack([t.to(totals) for t in (totals.new_tensor(count), value * count, bad.any(0).sum())])
            metrics.update(outputs, batch)
    if reduce is not None:
        both = reduce(torch.cat([totals, metrics.state.to(totals)]))
        totals, metrics.state = both[:3], both[3:]
    if gather is not None and metrics.rows:
        metrics.rows = [gather(torch.cat(metrics.rows).to(device)).cpu()]
    total, total_loss, not_finite = totals.tolist()
    if not_finite:
        raise MereoError(
            f"the outputs for {not_finite:.0f} of {total:.0f} images are not finite; the weights are damaged."
        )
    ranges = metrics.intervals() if intervals else {}
    return Scores(int(total), total_loss / max(total, 1), metrics.compute(), ranges)
