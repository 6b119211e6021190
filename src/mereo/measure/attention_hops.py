"""How far heads of attention look: the attention between patches by their distance on the grid.

Source: Li and others 2023, arXiv:2303.13731, of which only the abstract was available; written out by us.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from mereo.core import record
from mereo.errors import UsageError, check_choice, check_count
from mereo.inference.mode import evaluating
from mereo.models import VisionModel


def pair_hops(grid: tuple[int, int]) -> Tensor:
    """max(|row - row'|, |column - column'|) of each pair of patches, row by row: int64 (patches, patches)."""
    check_count(1, rows=grid[0], columns=grid[1])
    cells = torch.cartesian_prod(torch.arange(grid[0]), torch.arange(grid[1])).view(-1, 2)
    return (cells[:, None] - cells).abs().amax(2)


def pair_counts(grid: tuple[int, int]) -> Tensor:
    """The number of pairs at each hop, int64 (hops,), in proportion to the masses of uniform attention."""
    return pair_hops(grid).flatten().bincount()


def _patches(attention: Sequence[Tensor], grid: tuple[int, int], prefix: int) -> None:
    count = prefix + grid[0] * grid[1]
    for number, each in enumerate(attention):
        if each.dim() != 4 or each.shape[2:] != (count, count):
            raise UsageError(
                f"attention has {tuple(each.shape)} at layer {number}; for {prefix} tokens and a grid of"
                f" {grid[0]} x {grid[1]} give (batch, heads, {count}, {count})."
            )
    if not attention:
        raise UsageError("attention is empty; give a map (batch, heads, tokens, tokens) for each layer.")


def hop_profile(
    attention: Sequence[Tensor],
    grid: tuple[int, int],
    kind: str = "mass",
    prefix: int = 1,
    *,
    renormalise: bool = False,
) -> Tensor:
    """The attention of patches to patches k hops away, averaged over images: (layers, heads, hops).

    mass: mean_i sum_(j at k hops of i) A_ij     mean: that sum over the number of such j, of the i that have any

    Tokens before the patches are left out of rows and columns, so that a profile of masses sums to the share of the
    patches, or to 1 with `renormalise`, which divides each row by its share.

    Args:
        attention: of each layer, rows that sum to 1: (batch, heads, tokens, tokens).
        grid: rows and columns of patches.
        kind: "mass" or "mean".
        prefix: tokens before the patches.
    """
    check_choice("kind", kind, ("mass", "mean"))
    _patches(attention, grid, prefix)
    hops = pair_hops(grid)
    shares = torch.nn.functional.one_hot(hops).double()  # (i, j, hops)
    if kind == "mean":
        near = shares.sum(1, keepdim=True)
        shares = shares / near.clamp(min=1) / (near > 0).sum(0, keepdim=True)
    profiles = []
    for each in attention:
        patches = each[..., prefix:, prefix:].double().cpu()
        if renormalise:
            patches = patches / patches.sum(-1, keepdim=True).clamp(min=1e-300)
        profiles.append(
            patches.mean(0).flatten(-2) @ shares.flatten(0, 1) / (len(hops) if kind == "mass" else 1)
        )  # the profile is linear in the attention
    return torch.stack(profiles)


def expected_hop(profile: Tensor) -> Tensor:
    """sum_k k S_k / sum_k S_k of profiles (..., hops)."""
    return (profile * torch.arange(profile.shape[-1])).sum(-1) / profile.sum(-1).clamp(min=1e-300)


class TokenTraffic(NamedTuple):
    """Mean attention between the first token and the patches, (layers, heads) each: a row's total, or of one patch."""

    token_to_patches: Tensor
    patch_to_token: Tensor
    token_to_token: Tensor


def token_traffic(attention: Sequence[Tensor], grid: tuple[int, int], prefix: int = 1) -> TokenTraffic:
    """What the class token takes from all patches, a patch from the class token, and the class token from itself."""
    check_count(1, prefix=prefix)
    _patches(attention, grid, prefix)
    found = [
        (a[:, :, 0, prefix:].sum(-1).mean(0), a[:, :, prefix:, 0].mean((0, 2)), a[:, :, 0, 0].mean(0))
        for a in attention
    ]
    return TokenTraffic(*(torch.stack(each).double().cpu() for each in zip(*found, strict=True)))


class RecordedAttention(NamedTuple):
    """Attention of each layer, (batch, heads, tokens, tokens), names of its couplings, and where the patches are."""

    maps: list[Tensor]
    names: list[str]
    grid: tuple[int, int]
    prefix: int


@torch.no_grad()
def recorded_attention(model: VisionModel, inputs: Tensor) -> RecordedAttention:
    """All attention of a model between its tokens; UsageError that names a layer without a map of all pairs.

    Args:
        model: it runs in evaluation mode and is left as it was.
        inputs: images as the model takes them.
    """
    with evaluating(model), record(model) as trace:
        model(inputs)
    names = [name for name in trace if trace.kinds[name] == "couplings" and trace.calls(name)[0].over == "senders"]
    if not names:
        raise UsageError(f"model is {type(model).__name__}, which has no attention over its tokens.")
    maps, places = [], set()
    for name in names:
        call = trace.calls(name)[-1]
        if call.tiles is not None or call.senders is None or call.scores.shape[-2] != call.scores.shape[-1]:
            raise UsageError(f"model has {name}, which has no map of attention between all tokens of the image.")
        maps.append(trace[name])
        places.add((call.senders.rows, call.senders.columns, call.senders.prefix))
    if len(places) > 1:
        raise UsageError(f"model has layers of several grids, {sorted(places)}; give one with a single grid.")
    rows, columns, prefix = places.pop()
    return RecordedAttention(maps, names, (rows, columns), prefix)
