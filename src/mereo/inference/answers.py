"""The scores of a network for every image of a split, from which all metrics follow."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from mereo.data import Images
from mereo.errors import MereoError, UsageError, check_positive
from mereo.inference.evaluate import normalise
from mereo.inference.mode import evaluating
from mereo.models import VisionModel
from mereo.tasks.base import task_for
from mereo.tasks.classification import Classification, hits

Change = Callable[[Tensor, Tensor], Tensor]
"""(images in [0, 1], their indices in the split) -> images in [0, 1]."""


class Answers(NamedTuple):
    """Scores of the classes for images, and what the images are.

    Attributes:
        kind: of the scores, see `VisionModel.score_kind`.

    Shapes: scores float32 (n, classes), labels int64 (n,), or (n, objects) for images of several; both on the CPU.
    """

    scores: Tensor
    labels: Tensor
    kind: str = "lengths"

    @property
    def predicted(self) -> Tensor:
        """The class of the highest score, (n,)."""
        return self.scores.argmax(1)

    @property
    def correct(self) -> Tensor:
        """Which images are classified correctly, bool (n,); an image of several objects if all are predicted."""
        return self.predicted == self.labels if self.labels.dim() == 1 else hits(self.scores, self.labels).all(1)

    @property
    def accuracy(self) -> float:
        """Share of the images classified correctly; 0 for no image."""
        return float(self.correct.double().mean()) if len(self.labels) else 0.0


def check_one_label(split: Images) -> None:
    """UsageError for images of several objects."""
    if split.labels_per_image > 1:
        raise UsageError(
            f"the images hold {split.labels_per_image} objects each, and attacks and equivariance are for one; leave"
            " them out."
        )


def collect_answers(
    model: VisionModel,
    split: Images,
    *,
    batch_size: int = 256,
    change: Change | None = None,
    features: bool = False,
    progress: Callable[[int], None] | None = None,
) -> Answers:
    """The scores of a network for every image of a split, in order.

    Args:
        model: any classifier; it runs in eval mode and is left as it was.
        split: images of one label each, or of several.
        batch_size: images per forward pass.
        change: applied to the images before the network.
        features: collect the inputs of the last layer in place of the scores.
        progress: called with the number of images done since the last call.
    """
    check_positive(batch_size=batch_size)
    parameter, cfg = next(model.parameters()), model.pretrained_cfg
    of_images = split.serves == "images"
    crop = (model.image_shape[1], model.image_shape[2]) if of_images else None
    collected, labels = [], []
    with evaluating(model), torch.inference_mode():
        for start in range(0, len(split), batch_size):
            indices = torch.arange(start, min(start + batch_size, len(split)))
            batch = split.batch(indices, crop=crop, device=parameter.device)
            if of_images:
                images = batch.images if change is None else change(batch.images, indices)
                ready = normalise(images, cfg["mean"], cfg["std"]).to(parameter.dtype)
                outputs = (
                    model.forward_head(model.forward_features(ready), pre_logits=True) if features else model(ready)
                )
            else:
                outputs = task_for(type(model), Classification.name)(split.class_names).apply(model, batch)
            scores = outputs.float().cpu()
            if not bool(scores.isfinite().all()):
                place = int((~scores.isfinite()).any(1).nonzero()[0])
                raise MereoError(
                    f"the network's scores for image {start + place} are not finite; its weights are damaged."
                )
            collected.append(scores)
            labels.append(batch.labels.cpu())
            if progress is not None:
                progress(len(indices))
    if not collected:
        return Answers(torch.zeros(0, model.num_classes), torch.zeros(0, dtype=torch.int64), model.score_kind)
    return Answers(torch.cat(collected), torch.cat(labels), model.score_kind)
