"""The patterns that heads of attention have learned: an autoencoder of their maps, clusters, and names by rules.

Source: Li and others 2023, arXiv:2303.13731, of which only the abstract was available; sizes and rules are ours.
"""

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mereo.errors import UsageError, check_count
from mereo.measure.attention_entropy import attention_entropy
from mereo.measure.attention_hops import expected_hop, hop_profile, pair_counts

LABELS = ("diagonal", "local", "vertical stripes", "uniform", "mixed")


class PatternAutoencoder(nn.Module):
    """Maps of attention to a few numbers and back.

    3 convolutions 3x3 of stride 2, 1 -> 16 -> 32 -> 64 channels, and a linear layer; the way back with convolutions 4x4

    Args:
        size: side of the maps, a multiple of 8.
        latent: numbers a map.

    Shapes: (items, 1, size, size) -> the same, in (0, 1).
    """

    def __init__(self, size: int = 64, latent: int = 32) -> None:
        super().__init__()
        check_count(1, latent=latent)
        if not isinstance(size, int) or size < 8 or size % 8:
            raise UsageError(f"size is {size!r}; it must be a multiple of 8.")
        self.size, cells = size, 64 * (size // 8) ** 2
        widths = (1, 16, 32, 64)
        down = [m for i, o in pairwise(widths) for m in (nn.Conv2d(i, o, 3, 2, 1), nn.ReLU())]
        up: list[nn.Module] = []
        for inputs, outputs in zip(widths[:0:-1], widths[-2::-1], strict=True):
            up += [nn.ConvTranspose2d(inputs, outputs, 4, 2, 1), nn.ReLU() if outputs > 1 else nn.Sigmoid()]
        self.encode = nn.Sequential(*down, nn.Flatten(), nn.Linear(cells, latent))
        self.decode = nn.Sequential(nn.Linear(latent, cells), nn.Unflatten(1, (64, size // 8, size // 8)), *up)

    def forward(self, maps: Tensor) -> Tensor:
        return self.decode(self.encode(maps))

    def fit(self, maps: Tensor, *, epochs: int = 20, batch: int = 256, lr: float = 1e-3, seed: int = 0) -> list[float]:
        """Train by Adam on the squared error; the mean loss of each epoch."""
        optimizer, draws = torch.optim.Adam(self.parameters(), lr), torch.Generator().manual_seed(seed)
        losses = []
        for _ in range(epochs):
            total = 0.0
            for chosen in torch.randperm(len(maps), generator=draws).split(batch):
                loss = F.mse_loss(self(maps[chosen]), maps[chosen])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                total += loss.item() * len(chosen)
            losses.append(total / len(maps))
        return losses


def pattern_items(attention: Sequence[Tensor], prefix: int = 1, size: int = 64) -> tuple[Tensor, Tensor]:
    """Every map of an image, layer and head as one item: between patches, averaged over areas, its maximum 1.

    Shapes: (batch, heads, tokens, tokens) each -> (items, 1, size, size), and int64 (items, 3): image, layer, head.
    """
    items, index = [], []
    for layer, each in enumerate(attention):
        patches = each[..., prefix:, prefix:].float().flatten(0, 1).unsqueeze(1)
        made = F.interpolate(patches, (size, size), mode="area")
        items.append(made / made.amax((2, 3), keepdim=True).clamp(min=1e-30))
        places = torch.cartesian_prod(torch.arange(each.shape[0]), torch.tensor([layer]), torch.arange(each.shape[1]))
        index.append(places)
    if not items:
        raise UsageError("attention is empty; give a map (batch, heads, tokens, tokens) for each layer.")
    return torch.cat(items), torch.cat(index)


def k_means(points: Tensor, k: int, *, rounds: int = 50, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Clusters of points (items, dims) by Lloyd's rounds from far starts: centres (k, dims), int64 (items,)."""
    check_count(1, k=k)
    if len(points) < k:
        raise UsageError(f"k is {k} for {len(points)} points; give fewer clusters.")
    draws = torch.Generator().manual_seed(seed)
    centres = points[torch.randint(len(points), (1,), generator=draws)]
    while len(centres) < k:  # k-means++: the next start in proportion to the squared distance
        far = torch.cdist(points, centres).amin(1).square() + 1e-30
        centres = torch.cat((centres, points[torch.multinomial(far, 1, generator=draws)]))
    labels = torch.cdist(points, centres).argmin(1)
    for _ in range(rounds):
        held = F.one_hot(labels, k).to(points).T
        count = held.sum(1, keepdim=True)
        centres = torch.where(count > 0, held @ points / count.clamp(min=1), centres)
        before, labels = labels, torch.cdist(points, centres).argmin(1)
        if torch.equal(before, labels):
            break
    return centres, labels


class Patterns(NamedTuple):
    """What the maps of heads look like.

    Attributes:
        items: image, layer and head of each item, int64 (items, 3).
        latents, coordinates: (items, latent), and their first two principal components (items, 2).
        clusters: of each item, int64 (items,).
        prototypes: the mean map of each cluster, (k, size, size).
        central: the items nearest to the centre of each cluster, up to `nearest`.
        losses: of each epoch of the autoencoder.
    """

    items: Tensor
    latents: Tensor
    coordinates: Tensor
    clusters: Tensor
    prototypes: Tensor
    central: list[list[int]]
    losses: list[float]


def summarise(
    attention: Sequence[Tensor], prefix: int = 1, *, k: int = 8, size: int = 64, latent: int = 32, epochs: int = 20,
    nearest: int = 3, seed: int = 0,
) -> Patterns:  # fmt: skip
    """Train the autoencoder on the maps, and cluster what it makes of them."""
    items, index = pattern_items(attention, prefix, size)
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        model = PatternAutoencoder(size, latent)
    losses = model.fit(items, epochs=epochs, seed=seed)
    with torch.no_grad():
        latents = torch.cat([model.encode(part) for part in items.split(256)])
    centres, clusters = k_means(latents, k, seed=seed)
    centred = latents - latents.mean(0)
    coordinates = centred @ torch.linalg.svd(centred, full_matrices=False).Vh[:2].T
    away, prototypes, central = (latents - centres[clusters]).square().sum(1), [], []
    for cluster in range(k):
        members = (clusters == cluster).nonzero()[:, 0]
        prototypes.append(items[members].mean(0)[0] if len(members) else items.new_zeros(size, size))
        central.append(members[away[members].argsort()[:nearest]].tolist())
    return Patterns(index, latents, coordinates, clusters, torch.stack(prototypes), central, losses)


def pattern_label(attention: Tensor, grid: tuple[int, int], prefix: int = 1) -> str:
    """The first of `LABELS` whose rule holds for a mean map (tokens, tokens) of a head, between patches.

    diagonal: more than half of the attention at hop 0     local: expected hop below 0.6 of uniform attention's
    vertical stripes: rows alike, their mean cosine above 0.9, with an entropy of their mean of at most 0.95 log N
    uniform: mean entropy of the rows above 0.95 log N     mixed: anything else
    """
    patches = attention[prefix:, prefix:].double()
    rows = patches / patches.sum(1, keepdim=True).clamp(min=1e-300)
    profile, most = hop_profile([rows[None, None]], grid, prefix=0)[0, 0], math.log(max(len(rows), 2))
    if profile[0] > 0.5:
        return "diagonal"
    if expected_hop(profile) < 0.6 * expected_hop(pair_counts(grid).double()):
        return "local"
    unit = F.normalize(rows, dim=1)
    alike = (unit.sum(0).square().sum() - len(rows)) / max(len(rows) * (len(rows) - 1), 1)
    if alike > 0.9 and attention_entropy(rows.mean(0)) <= 0.95 * most:
        return "vertical stripes"
    return "uniform" if attention_entropy(rows).mean() > 0.95 * most else "mixed"


def head_table(
    attention: Sequence[Tensor], grid: tuple[int, int], importance: Mapping[str, Tensor], prefix: int = 1
) -> list[dict[str, Any]]:
    """A row a head: its rank by each metric (1 is the most important), expected hop, entropy of rows, and pattern."""
    hops = expected_hop(hop_profile(attention, grid, prefix=prefix))
    ranks = {name: (-values).flatten().argsort().argsort().view_as(values) + 1 for name, values in importance.items()}
    rows = []
    for layer, each in enumerate(attention):
        mean = each.double().mean(0).cpu()
        entropy = attention_entropy(each[..., prefix:, :].double()).mean((0, 2))
        rows += [
            {
                "layer": layer, "head": head, **{name: int(rank[layer, head]) for name, rank in ranks.items()},
                "expected hop": float(hops[layer, head]), "entropy": float(entropy[head]),
                "pattern": pattern_label(mean[head], grid, prefix),
            }
            for head in range(each.shape[1])
        ]  # fmt: skip
    return rows
