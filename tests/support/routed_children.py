"""The children of a routing with their transforms, for loops over them."""

from typing import Any

from torch import Tensor, nn


def children_and_transforms(
    routing: nn.Module, children: Any, image: int, receiver: int
) -> list[tuple[Tensor, Tensor]]:
    """Every child of an image with its transform for one receiver, also where children come in several sets."""
    sets, weights = (children, routing.weights) if isinstance(children, tuple) else ((children,), (routing.weight,))
    pairs = zip(sets, weights, strict=True)
    return [pair for poses, weight in pairs for pair in zip(poses[image], weight[receiver].detach(), strict=True)]
