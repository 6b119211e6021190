"""Clusters that start from tokens, against Lloyd's algorithm in loops."""

import pytest
import torch
from torch import Tensor

import mereo
from mereo.errors import UsageError
from mereo.mechanisms.attention import RoutingAttention
from mereo.mechanisms.attention.sparse import start_clusters
from mereo.mechanisms.attention.sparse.cluster_start import start_from
from mereo.mechanisms.attention.sparse.clusters import Clusters


def lloyd(points: list[Tensor], centroids: list[Tensor], iterations: int) -> list[Tensor]:
    for _ in range(iterations):
        own: list[list[Tensor]] = [[] for _ in centroids]
        for point in points:
            own[min(range(len(centroids)), key=lambda c: float((point - centroids[c]).square().sum()))].append(point)
        centroids = [sum(o) / len(o) if o else old for o, old in zip(own, centroids, strict=True)]  # type: ignore[misc]
    return centroids


@pytest.mark.parametrize("masked", [False, True])
def test_it_is_lloyds_algorithm(masked: bool) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 3, 12, 4, dtype=torch.float64)
    mask = torch.rand(2, 12) < 0.7 if masked else None
    clusters = Clusters(3, 5, 4).double()
    torch.manual_seed(1)
    start_from(clusters, x, mask, iterations=4)
    there = torch.ones(2, 12, dtype=torch.bool) if mask is None else mask
    torch.manual_seed(1)
    for head in range(3):
        points = [x[b, head, n] for b in range(2) for n in range(12) if there[b, n]]
        chosen = [points[n] for n in torch.randperm(len(points))[:5].tolist()]
        torch.testing.assert_close(clusters.centroids[head], torch.stack(lloyd(points, chosen, 4)))
    assert (clusters.counts == 1).all() and clusters.sums.equal(clusters.centroids)


def test_separate_groups_of_tokens_become_clusters() -> None:
    centres = torch.tensor([[9.0, 0], [0, 9], [-9, -9]])
    x = (centres.repeat(8, 1) + 0.1 * torch.randn(24, 2)).view(1, 1, 24, 2)
    best = torch.inf
    for seed in range(5):  # a start with two tokens of one group can end in a local minimum
        torch.manual_seed(seed)
        clusters = Clusters(1, 3, 2)
        start_from(clusters, x)
        best = min(best, float(torch.cdist(centres, clusters.centroids[0]).amin(1).max()))
    assert best < 0.2


@pytest.mark.parametrize("share_qk", [True, False])
def test_every_layer_of_a_network(share_qk: bool) -> None:
    layer = RoutingAttention(8, 1, 1, clusters=3, window=4, share_qk=share_qk).train()
    tokens, mask = torch.randn(2, 9, 8), torch.rand(2, 9) < 0.8
    assert start_clusters(layer, tokens, mask) == 1 and layer.training
    q, k, _ = layer._routed(tokens)
    every = torch.cat([x.detach().transpose(0, 1)[:, mask] for x in (q, k) if x is not None], 1)
    before = torch.cdist(every, layer.clusters.centroids).amin(2).square().mean()
    fresh = RoutingAttention(8, 1, 1, clusters=3, window=4, share_qk=share_qk).clusters.centroids
    assert before < torch.cdist(every, fresh).amin(2).square().mean()

    model = mereo.create_model(
        "routing_transformer_tiny", dim=12, heads_local=1, heads_routed=2, clusters=2, window=4, block=4, hidden_dim=20
    )
    old = [b.mixer.clusters.centroids.clone() for b in model.blocks]
    assert start_clusters(model, torch.randint(256, (2, 11))) == len(old)
    assert not any(b.mixer.clusters.centroids.equal(x) for b, x in zip(model.blocks, old, strict=True))
    assert not any(b.mixer._forward_pre_hooks for b in model.blocks)


def test_bad_input() -> None:
    with pytest.raises(UsageError, match="6 queries and keys for 8 clusters"):
        start_clusters(RoutingAttention(8, 1, 1), torch.randn(1, 3, 8))
    with pytest.raises(UsageError, match="no RoutingAttention"):
        start_clusters(torch.nn.Linear(3, 3), torch.randn(1, 3))
    with pytest.raises(UsageError, match="iterations is 0"):
        start_clusters(RoutingAttention(8, 1, 1), torch.randn(1, 9, 8), iterations=0)
