"""How sparse the layers of a trained CapsNet are, over a set of images."""

import torch
from torch import Tensor

from mereo.core import lengths, record
from mereo.errors import UsageError
from mereo.generative.sparsity import coupling_entropy, hoyer_sparsity, winner_share
from mereo.models import CapsNet, VisionModel

MEASURES = ("winner", "hoyer", "entropy")
CHUNK = 100


@torch.no_grad()
def layer_sparsity(model: VisionModel, images: Tensor) -> dict[str, dict[str, float]]:
    """The mean sparsity of each layer of capsules that others vote for: "classes", and "middle" where there is one.

    Args:
        model: a CapsNet.
        images: as the model takes them.

    Shapes: images (batch, channels, height, width) -> {layer: {"winner": mean share of the longest capsule, "hoyer":
    mean Hoyer sparsity of the lengths, "entropy": mean entropy of what a child gives, as a share of the largest}}.
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
            length = lengths(poses[layer])
            measures = (winner_share(length), hoyer_sparsity(length), coupling_entropy(trace[coupling]).mean((1, 2)))
            sums[layer] += torch.stack([values.double().sum() for values in measures]).cpu()
    model.train(was_training)
    return {layer: dict(zip(MEASURES, (total / len(images)).tolist(), strict=True)) for layer, total in sums.items()}
