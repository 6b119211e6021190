"""Meta saliency: the map of the network after one step of gradient descent on the image itself.

Source: Rebuffi, Fong, Ji, Vedaldi 2020, arXiv:2004.02866, section 5.
Cost: one more forward and backward pass for each image, which is explained by itself, and a copy of the network.
"""

from copy import deepcopy

import torch
import torch.nn.functional as F
from torch import Tensor

from mereo.errors import UsageError, check_finite
from mereo.explain.observation import normalised
from mereo.explain.saliency.methods import Saliency, method_of
from mereo.explain.saliency.signals import Layers, usable
from mereo.explain.target import Target, resolve_target
from mereo.inference.mode import evaluating
from mereo.models import VisionModel


def meta_saliency(method: str | Saliency, lr: float = 1e-4, sign: int = 1) -> Saliency:
    """The method on weights moved by one step, in evaluation mode; the network itself does not change.

    S_meta(x, c) = S(x, c; theta'),   theta' = theta - sign * lr * d CE(model(x), c) / d theta

    Args:
        method: one of `METHODS`, or a function of that interface.
        lr: size of the step; 0.0025 in the source's measurements of class sensitivity.
        sign: 1 descends; -1 ascends, and shows what would hurt.

    Deviates: the scores of capsule networks, which are lengths, enter the cross entropy as logits do.

    Reference: arXiv:2004.02866, section 5.
    """
    inner = method_of(method)
    check_finite(lr=lr)
    if sign not in (1, -1):
        raise UsageError(f"sign is {sign!r}; it must be 1 or -1.")

    def moved(model: VisionModel, images: Tensor, target: Target | None, layers: Layers) -> dict[str, Tensor]:
        model, images = usable(model, images)
        if layers is None:  # the same for all images
            layers = list(inner(model, images, target, None))
        copy, found = deepcopy(model).eval().requires_grad_(), list[dict[str, Tensor]]()
        pairs = list(zip(model.parameters(), copy.parameters(), strict=True))
        with evaluating(model), torch.no_grad():
            classes = resolve_target(model, model(normalised(model, images)), target)
        if not isinstance(classes, Tensor):
            raise UsageError("target is a function, and the step of meta_saliency descends the loss of a class.")
        for n in range(len(images)):
            with torch.no_grad():
                for own, other in pairs:
                    other.copy_(own)
            image, chosen = images[n : n + 1], classes[n : n + 1]
            with torch.enable_grad():
                loss = F.cross_entropy(copy(normalised(model, image)), chosen)
                moves = torch.autograd.grad(loss, [other for _, other in pairs], allow_unused=True)
            with torch.no_grad():
                for (_, other), move in zip(pairs, moves, strict=True):
                    if move is not None:
                        other.sub_(sign * lr * move)
            found.append(inner(copy, image, chosen, layers))
        return {name: torch.cat([each[name] for each in found]) for name in found[0]}

    return moved
