"""Accuracy and loss of a model on one split."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mereo.data import Batch, Images
from mereo.errors import MereoError
from mereo.inference.metrics import wilson_interval
from mereo.models import CapsuleClassifier

Loss = Callable[[Tensor, Tensor], Tensor]


def normalise(images: Tensor, mean: tuple[float, ...], std: tuple[float, ...]) -> Tensor:
    """(images - mean) / std by channel: images (batch, channels, height, width) in [0, 1]."""
    m, s = (images.new_tensor(v).view(1, -1, 1, 1) for v in (mean, std))
    return (images - m) / s


@dataclass(frozen=True)
class Scores:
    """What a model says of one split.

    Attributes:
        count: images judged.
        loss: mean of the loss, 0 where none was asked for.
        accuracy: share judged right; where an image holds several objects, share with all of them found.
        hits: where an image holds several, the mean share of its objects found, and the share with at least one.
    """

    count: int
    loss: float
    accuracy: float
    hits: dict[str, float]

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's 95 % interval of the accuracy."""
        return wilson_interval(min(self.accuracy, 1.0), self.count)

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        low, high = self.interval
        return {
            "count": self.count, "accuracy": self.accuracy, "accuracy_low": low, "accuracy_high": high,
            "loss": self.loss, **self.hits,
        }  # fmt: skip


def batches(
    split: Images,
    batch_size: int,
    device: torch.device,
    crop: tuple[int, int] | None = None,
    rank: int = 0,
    processes: int = 1,
) -> Iterator[Batch]:
    """The images of a split in order, unaugmented; each process gets its own share."""
    for start in range(rank * batch_size, len(split), processes * batch_size):
        yield split.batch(torch.arange(start, min(start + batch_size, len(split))), crop=crop, device=device)


def found(scores: Tensor, labels: Tensor) -> Tensor:
    """Which of an image's objects are among its longest capsules: (batch, objects) of bool.

    As many capsules are taken as there are objects.
    """
    columns = labels.unsqueeze(1) if labels.dim() == 1 else labels
    longest = scores.topk(columns.shape[1], 1).indices
    return (longest.unsqueeze(1) == columns.unsqueeze(2)).any(2)


@torch.inference_mode()
def evaluate(
    model: CapsuleClassifier,
    split: Images,
    *,
    loss: Loss | None = None,
    batch_size: int = 256,
    rank: int = 0,
    processes: int = 1,
    reduce: Any = None,
    autocast: Any = None,
) -> Scores:
    """Judge every image of a split.

    Args:
        loss: (scores, labels) -> (), where it is wanted.
        rank, processes: this process's share; `reduce` then sums the totals over the processes.
        autocast: makes the context in which the model runs.
    """
    was_training = model.training
    model.eval()
    parameter = next(model.parameters())
    cfg = model.pretrained_cfg
    # count, loss, all found, mean found, any found, lengths not finite
    totals = torch.zeros(
        6, dtype=torch.float64 if parameter.device.type != "mps" else torch.float32, device=parameter.device
    )
    several = False
    for batch in batches(split, batch_size, parameter.device, tuple(cfg["input_size"][1:]), rank, processes):
        images = normalise(batch.images, cfg["mean"], cfg["std"])
        if autocast is None:
            scores = model(images.to(parameter.dtype)).float()
        else:
            with autocast():
                scores = model(images).float()
        hit = found(scores, batch.labels)
        several = hit.shape[1] > 1
        value = scores.new_zeros(()) if loss is None else loss(scores, batch.labels)
        bad_rows = ~scores.isfinite().all(1)
        rows = (hit.new_ones(len(hit)), value * len(hit), hit.all(1), hit.float().mean(1), hit.any(1), bad_rows)
        totals += torch.stack([r.to(totals.dtype).sum() for r in rows])
    if reduce is not None:
        totals = reduce(totals)
    model.train(was_training)
    count, total_loss, all_found, mean_found, any_found, bad = totals.tolist()
    if bad:
        raise MereoError(f"the lengths of {bad:.0f} of {count:.0f} images are not finite; the weights are bad.")
    n = max(count, 1)
    hits = {"mean_hits": mean_found / n, "any_hit": any_found / n} if several else {}
    return Scores(int(count), total_loss / n, all_found / n, hits)
