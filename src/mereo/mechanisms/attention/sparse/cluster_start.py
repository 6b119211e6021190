"""Clusters of routing attention that start from tokens: Lloyd's algorithm on one batch, before training.

Source: Roy, Saffar, Vaswani, Grangier 2021, arXiv:2003.05997, whose clusters start at random; Lloyd 1982 for the steps.
"""

from typing import Any

import torch
from torch import Tensor, nn

from mereo.core.kernels.clustered import distances
from mereo.core.modes import modes_kept
from mereo.errors import UsageError, check_positive
from mereo.mechanisms.attention.sparse.clusters import Clusters
from mereo.mechanisms.attention.sparse.routing_attention import RoutingAttention


@torch.no_grad()
def start_from(clusters: Clusters, x: Tensor, mask: Tensor | None = None, iterations: int = 10) -> None:
    """Start centroids at tokens chosen at random, and move them to the means of the tokens nearest to them, repeatedly.

    A centroid that is nearest to no token stays. Counts become 1 and sums the centroids, as in a fresh module.
    Processes of a group add their tokens; the first one chooses.

    Shapes: x (batch, heads, tokens, dim), mask bool (batch, tokens), True = takes part.
    """
    check_positive(iterations=iterations)
    tokens = x.transpose(0, 1)  # (heads, batch, tokens, dim)
    tokens = tokens.flatten(1, 2) if mask is None else tokens[:, mask]
    count = clusters.centroids.shape[1]
    if tokens.shape[1] < count:
        raise UsageError(f"there are {tokens.shape[1]} queries and keys for {count} clusters; give at least {count}.")
    chosen = torch.stack([each[torch.randperm(len(each), device=x.device)[:count]] for each in tokens])
    clusters.centroids.copy_(chosen)
    together = torch.distributed.is_available() and torch.distributed.is_initialized()
    if together:
        torch.distributed.broadcast(clusters.centroids, 0)
    for _ in range(iterations):
        counts, sums = clusters.assigned(x, distances(x, clusters.centroids).argmin(2), mask)
        if together:
            for value in (counts, sums):
                torch.distributed.all_reduce(value)
        means = sums / counts.clamp(min=1).unsqueeze(-1)
        clusters.centroids.copy_(torch.where(counts.unsqueeze(-1) > 0, means, clusters.centroids))
    clusters.counts.fill_(1)
    clusters.sums.copy_(clusters.centroids)


def start_clusters(model: nn.Module, *inputs: Any, iterations: int = 10) -> int:
    """Start the clusters of every `RoutingAttention` in a network from one batch, layer after layer.

    The network runs once, without gradients; each layer takes its queries and keys as its clusters find them.

    Args:
        model: a network, or one layer.
        inputs: its inputs, such as a batch of tokens.
        iterations: of Lloyd's algorithm.

    Returns: the number of layers that were started; layers without routed heads have no clusters.

    Raises:
        UsageError: if no layer was reached, or if a batch has fewer tokens than a layer has clusters.
    """
    check_positive(iterations=iterations)
    started = 0

    def start(layer: nn.Module, args: tuple[Any, ...], named: dict[str, Any]) -> None:
        nonlocal started
        assert isinstance(layer, RoutingAttention)
        given = dict(zip(("tokens", "mask"), args, strict=False)) | named
        q, k, _ = layer._routed(given["tokens"])
        mask = given.get("mask")
        x = q if k is None else torch.cat((q, k), 2)
        start_from(layer.clusters, x, mask if mask is None or k is None else torch.cat((mask, mask), 1), iterations)
        started += 1

    layers = [each for each in model.modules() if isinstance(each, RoutingAttention) and each.heads_routed]
    hooks = [each.register_forward_pre_hook(start, with_kwargs=True) for each in layers]
    try:
        with modes_kept(model), torch.no_grad():
            model.eval()(*inputs)
    finally:
        for hook in hooks:
            hook.remove()
    if not started:
        raise UsageError(
            f"{type(model).__name__} called no RoutingAttention with routed heads; give a network of them."
        )
    return started
