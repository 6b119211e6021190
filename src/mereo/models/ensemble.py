"""An ensemble: several trained networks of the same images and classes, whose scores are averaged.

Source: seven trainings of DeepCaps, arXiv:1904.09546, by a weighted sum of the lengths of their class capsules.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from mereo.errors import UsageError
from mereo.models.base import VisionModel


def _interface(model: VisionModel) -> dict[str, object]:
    """What members must share, so that all take the same images and score the same classes."""
    cfg = model.pretrained_cfg
    return {
        "image_shape": model.image_shape, "num_classes": model.num_classes, "class_names": model.class_names,
        "score_kind": model.score_kind, "mean": tuple(cfg["mean"]), "std": tuple(cfg["std"]),
    }  # fmt: skip


class Ensemble(nn.Module):
    """Average the scores of several networks.

    s(x) = sum_k w_k s_k(x),   w_k >= 0,   sum_k w_k = 1

    Scaling all weights would not change the ranking of the classes; with a sum of 1, capsule lengths stay below 1.

    Args:
        members: networks such as `mereo.load` gives, of one image shape, normalisation, kind of scores and list of
            classes.
        weights: of the members, scaled to a sum of 1; by default equal.

    Shapes: images (batch, channels, height, width) -> scores (batch, classes).

    Raises:
        UsageError: for members that differ, or invalid weights.

    Reference: arXiv:1904.09546.
    """

    def __init__(self, members: Sequence[VisionModel], weights: Sequence[float] | None = None) -> None:
        super().__init__()
        if not members:
            raise UsageError("members is empty; give at least one network.")
        first = _interface(members[0])
        for number, member in enumerate(members):
            for name, value in _interface(member).items():
                if value != first[name]:
                    raise UsageError(
                        f"{name} of members[{number}] is {value!r}, and of members[0] {first[name]!r}; give networks"
                        " for the same images and classes."
                    )
        shares = [1.0] * len(members) if weights is None else [float(weight) for weight in weights]
        total = sum(shares)
        if len(shares) != len(members) or not (min(shares) >= 0 and 0 < total < math.inf):
            raise UsageError(f"weights is {shares}; give a number of at least 0 for each member, one above 0.")
        self.members = nn.ModuleList(members)
        self.weights = tuple(weight / total for weight in shares)

    def forward(self, images: Tensor) -> Tensor:
        scores: Tensor = self.weights[0] * self.members[0](images)
        for weight, member in zip(self.weights[1:], list(self.members)[1:], strict=True):
            scores = torch.add(scores, member(images), alpha=weight)
        return scores

    def extra_repr(self) -> str:
        return f"weights={self.weights}"
