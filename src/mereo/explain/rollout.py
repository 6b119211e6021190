"""Attention as maps over the image: what the class token attends to, and the rollout through all layers.

Source: Abnar, Zuidema 2020, arXiv:2005.00928, section 3.1, for rollout.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from mereo.core import Grid
from mereo.explain.attention_layers import AttentionLayer, attention_layers, network_of, read_layers
from mereo.explain.observation import Observation


@dataclass(frozen=True)
class AttentionMap:
    """Shares of the places of an image.

    Attributes:
        cells: (batch, rows, columns), or by head (batch, heads, rows, columns).
        grid: where the cells are.
        layers: names of the couplings that it is made from.
    """

    cells: Tensor
    grid: Grid
    layers: tuple[str, ...]


def class_attention(observation: Observation) -> list[AttentionMap]:
    """Attention of the class token to places, for each layer that has one and by head, in the order of the layers.

    The token that stands for the whole image is a single receiver without a position, or the first receiver if the
    positions have a prefix. Its coupling with itself is left out, so the shares of a head sum to at most one.
    """
    maps = []
    for layer in attention_layers(observation):
        if layer.has_class_token:
            grid = layer.senders
            row, _ = layer.rows(torch.zeros(layer.batch, dtype=torch.int64))
            cells = row[..., grid.prefix :].unflatten(-1, (grid.rows, grid.columns))
            maps.append(AttentionMap(cells, grid, (layer.name,)))
    return maps


def _resized(weights: Tensor, old: Grid, new: Grid) -> Tensor:
    """Weights of cells on a grid of another size, with the same sum in each image: (batch, cells) -> (batch, cells)."""
    if (old.rows, old.columns) == (new.rows, new.columns):
        return weights
    maps = weights.unflatten(1, (1, old.rows, old.columns))
    resized = F.interpolate(maps, (new.rows, new.columns), mode="area").flatten(1)
    total, now = weights.sum(1, keepdim=True), resized.sum(1, keepdim=True)
    return resized * total / now.clamp(min=torch.finfo(now.dtype).tiny)


def _widened(first: Tensor, count: int) -> Tensor:
    """Weights of at least so many tokens before the places, the added ones 0: (batch, tokens)."""
    return F.pad(first, (0, max(count - first.shape[1], 0)))


def _back(layer: AttentionLayer, first: Tensor, cells: Tensor) -> tuple[Tensor, Tensor]:
    """Weights of a layer's outputs, passed back to its inputs.

    Args:
        first: weights of the tokens before the places, the class token first, (batch, tokens).
        cells: weights of the receivers' cells; of the senders' if only the class token is a receiver: (batch, cells).
    """
    prefix = layer.senders.prefix
    if layer.receivers is None:
        taken = layer.pull(first[:, :1])
        kept = 0.5 if prefix else 0.0
        before = _widened(first, prefix)
        return kept * (before + _widened(taken[:, :prefix], before.shape[1])), cells + (1 - kept) * taken[:, prefix:]
    if not layer.receivers.prefix:
        taken = layer.pull(cells)[:, prefix:]
        return first, (_resized(cells, layer.receivers, layer.senders) + taken) / 2
    before = _widened(first, max(prefix, layer.receivers.prefix))
    taken = layer.pull(torch.cat((before[:, : layer.receivers.prefix], cells), 1))
    same = _resized(cells, layer.receivers, layer.senders)
    return (before + _widened(taken[:, :prefix], before.shape[1])) / 2, (same + taken[:, prefix:]) / 2


def passed_back(layer: AttentionLayer, first: Tensor, cells: Tensor, grid: Grid) -> tuple[Tensor, Tensor]:
    """Weights of the tokens before the places and of the cells of a grid above a layer, passed back to its inputs.

    Shapes: first (batch, tokens), cells (batch, cells) -> (batch, tokens, or as many as the layer has before its
        places), (batch, senders without these).
    """
    wanted = layer.senders if layer.receivers is None else layer.receivers
    return _back(layer, first, _resized(cells, grid, wanted))


def layers_from_the_input(observation: Observation) -> list[AttentionLayer]:
    """`attention_layers`, or none if attention between places that are not known moves information as well."""
    layers, others = read_layers(observation)
    return [] if others else layers


def starts_at_token(observation: Observation, last: AttentionLayer) -> bool:
    """Whether the network reads the class token of its last layer of attention, and does not average the cells."""
    return last.has_class_token and getattr(network_of(observation), "global_pool", None) != "avg"


def attention_rollout(observation: Observation, layers: list[AttentionLayer] | None = None) -> AttentionMap | None:
    """How much each place of the first layer counts for the output if attention is all that moves information.

    A_l = (I + mean over heads of c_l) / 2,   rollout = w A_L ... A_2 A_1

    w is one for the class token, or equal for all cells without one or where the network averages them. The residual
    connection counts as much as the couplings, whose rows are scaled to sum to one; negative ones count as zero.
    Between maps of different sizes the weight of a cell is divided evenly among the cells under it. What convolutions,
    pooling, gates and attention between channels move does not count. Shares sum to one in each image.

    Args:
        layers: of `attention_layers(observation)`, from the first; all of them by default.

    Returns None for a network without attention between places, and for one of another library some of whose attention
    is inside windows or between places that are not known.

    Reference: arXiv:2005.00928, section 3.1, for networks of equal layers; layers of several sizes, class layers and
    tiles are ours.
    """
    layers = layers_from_the_input(observation) if layers is None else layers
    if not layers:
        return None
    last = layers[-1]
    start = last.senders if last.receivers is None else last.receivers
    count = start.rows * start.columns
    has_token = starts_at_token(observation, last)
    like = torch.ones(last.batch, dtype=last.call.scores.dtype, device=last.call.scores.device)
    like = like.float() if like.dtype in (torch.float16, torch.bfloat16) else like
    first = (like * has_token).unsqueeze(1)
    cells = like.unsqueeze(1).expand(-1, count) * ((not has_token) / count)
    grid = start
    for layer in reversed(layers):
        first, cells = passed_back(layer, first, cells, grid)
        grid = layer.senders
    total = cells.sum(1, keepdim=True)
    # If no place contributes, all places count the same.
    shares = torch.where(total > 0, cells / total.clamp(min=torch.finfo(cells.dtype).tiny), 1 / cells.shape[1])
    names = tuple(layer.name for layer in layers)
    return AttentionMap(shares.unflatten(1, (grid.rows, grid.columns)), grid, names)
