"""How sparse capsules and couplings are: three numbers between 0 and 1.

Used to test whether routing forms the intended parse tree; see arXiv:2209.02567, section 2.
"""

import math

import torch
from torch import Tensor

from mereo.core import lengths as lengths_of
from mereo.core import record
from mereo.errors import UsageError
from mereo.models import CapsNet, VisionModel

MEASURES = ("winner", "hoyer", "entropy")
CHUNK = 100


def winner_share(lengths: Tensor) -> Tensor:
    """Share of the longest capsule in the length of all: max_j l_j / sum_j l_j.

    1 if only one capsule is active, 1 / capsules where all are alike, also where all are zero.

    Shapes: lengths (..., capsules), at least 0 -> (...).
    """
    total = _several(lengths).sum(-1)
    return (lengths.amax(-1) / total).masked_fill(total == 0, 1 / lengths.shape[-1])


def hoyer_sparsity(lengths: Tensor) -> Tensor:
    """Hoyer's sparsity: (sqrt(n) - |l|_1 / |l|_2) / (sqrt(n) - 1), for n capsules.

    1 if only one capsule is active, 0 where all are alike, also where all are zero.

    Shapes: lengths (..., capsules), at least 0 -> (...).

    Reference: Hoyer 2004, section 3.1.
    """
    root = math.sqrt(_several(lengths).shape[-1])
    euclidean = lengths.norm(dim=-1)
    return ((root - lengths.sum(-1) / euclidean) / (root - 1)).masked_fill(euclidean == 0, 0).clamp(0, 1)


def coupling_entropy(couplings: Tensor) -> Tensor:
    """Entropy of each sender's couplings with the receivers, as a share of the largest: -sum_r p_r log p_r / log R.

    p_r = c_r / sum_r c_r. 0 where a sender has one parent, 1 where it gives to all alike, which is no routing. A sender
    that gives nothing to anyone counts as one that gives to all alike.

    Shapes: couplings (..., receivers, senders), at least 0 -> (..., senders).
    """
    receivers = _several(couplings.transpose(-1, -2)).shape[-1]
    total = couplings.sum(-2, keepdim=True)
    shares = (couplings / total).masked_fill(total == 0, 1 / receivers)
    return -shares.xlogy(shares).sum(-2) / math.log(receivers)


def _several(values: Tensor) -> Tensor:
    """The tensor itself; UsageError if the last axis has fewer than two entries or one is below zero."""
    if values.dim() == 0 or values.shape[-1] < 2:
        raise UsageError(f"the capsules are {tuple(values.shape)}; sparsity needs at least two to choose among.")
    if (values < 0).any():
        raise UsageError(f"the smallest length or coupling is {values.min().item()}; it must be at least 0.")
    return values


@torch.no_grad()
def layer_sparsity(model: VisionModel, images: Tensor) -> dict[str, dict[str, float]]:
    """The mean sparsity of each layer of capsules that others vote for: "classes", and "middle" where there is one.

    Args:
        model: a CapsNet.
        images: as the model takes them.

    Shapes: images (batch, channels, height, width) -> {layer: {"winner": mean share of the longest capsule, "hoyer":
    mean Hoyer sparsity of the lengths, "entropy": mean entropy of a child's couplings, as a share of the largest}}.
    """
    if not isinstance(model, CapsNet) or model.num_classes == 0:
        raise UsageError(f"model is a {type(model).__name__}; it must be a CapsNet with class capsules.")
    couplings = {"classes": "head.coupling"} | ({} if model.middle is None else {"middle": "middle.coupling"})
    sums = {layer: torch.zeros(len(MEASURES), dtype=torch.float64) for layer in couplings}
    was_training = model.training
    model.eval()
    for part in images.split(CHUNK):
        with record(model) as trace:
            features = model.forward_features(part)
            poses = {"middle": features, "classes": model.route(features)}
        for layer, coupling in couplings.items():
            length = lengths_of(poses[layer])
            measures = (winner_share(length), hoyer_sparsity(length), coupling_entropy(trace[coupling]).mean((1, 2)))
            sums[layer] += torch.stack([values.double().sum() for values in measures]).cpu()
    model.train(was_training)
    return {layer: dict(zip(MEASURES, (total / len(images)).tolist(), strict=True)) for layer, total in sums.items()}
