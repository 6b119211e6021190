"""Attention of a running network, averaged over heads and layers on the way, for masks and losses of concepts.

Source: arXiv:2405.17965 (AttenCraft), and the authors' public code.
Cost: the couplings of the watched layers are made, one sum of them is kept for each grid.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from mereo.errors import UsageError
from mereo.interventions.attention_layers import (
    AttentionLayer,
    Replacement,
    attention_layers,
    chosen_layers,
    replaced,
    split_mask,
)
from mereo.interventions.concept_masks import attention_alignment_loss, concept_masks
from mereo.interventions.subject_masks import min_max, square, token_columns


class AttentionMaps:
    """The attention of the last pass, by the number of cells.

    Args:
        concept_tokens, background_token: as `concept_masks` takes them.
    """

    def __init__(self, concept_tokens: Sequence[int | Sequence[int]], background_token: int) -> None:
        self.concept_tokens, self.background_token = list(concept_tokens), background_token
        self.sums: dict[tuple[str, int], tuple[Tensor, int]] = {}

    def add(self, kind: str, couplings: Tensor) -> None:
        """Add the couplings of a layer, (batch, heads, cells, senders)."""
        key, mean = (kind, couplings.shape[2]), couplings.mean(1)
        total, count = self.sums.get(key, (None, 0))
        self.sums[key] = (mean if total is None else total + mean, count + 1)

    def _mean(self, kind: str, cells: int | None) -> Tensor:
        there = [each for name, each in self.sums if name == kind]
        if not there:
            raise UsageError(f"there is no {kind}-attention yet; run the model inside the block.")
        cells = max(there) if cells is None else cells
        if cells not in there:
            raise UsageError(f"cells is {cells}; {kind}-attention is of {', '.join(map(str, sorted(there)))} cells.")
        total, count = self.sums[kind, cells]
        return total / count

    def self_attention(self, cells: int | None = None) -> Tensor:
        """The mean over heads and layers of one grid, the finest by default: (batch, cells, cells)."""
        return self._mean("self", cells)

    def cross_attention(self, cells: int | None = None) -> Tensor:
        """The mean over heads and layers of one grid, the finest by default: (batch, cells, words)."""
        return self._mean("cross", cells)

    def masks(self, sample: int = -1, power: int = 4, threshold: float = 0.1) -> tuple[Tensor, tuple[int, ...]]:
        """Labels of the cells of a sample, and the assignment: see `concept_masks`."""
        own, cross = (each[sample].detach().float() for each in (self.self_attention(), self.cross_attention()))
        return concept_masks(own, cross, self.concept_tokens, self.background_token, power, threshold)

    def columns(self, tokens: Sequence[int | Sequence[int]], sample: int = -1) -> Tensor:
        """Raw cross-attention of words: (words, side, side)."""
        return square(token_columns(self.cross_attention()[sample], tokens, "tokens"))

    def loss(
        self,
        masks: Tensor,
        tokens: Sequence[int | Sequence[int]] | None = None,
        sample: int = -1,
        temperature: float = 1.0,
        weight: float = 1.0,
    ) -> Tensor:
        """The alignment loss of words with masks, (); see `attention_alignment_loss`.

        Args:
            tokens: a word for each mask, by default the concepts and the background.
        """
        tokens = [*self.concept_tokens, self.background_token] if tokens is None else tokens
        return attention_alignment_loss(min_max(self.columns(tokens, sample)), masks, temperature, weight)


@contextmanager
def attencraft(
    model: nn.Module,
    concept_tokens: Sequence[int | Sequence[int]],
    background_token: int = 0,
    *,
    layers: Sequence[str] | None = None,
    detach_first: bool = False,
) -> Iterator[AttentionMaps]:
    """Watch self- and cross-attention of a network, for masks of concepts and the loss that aligns attention with them.

    Args:
        model: with attention of mereo or of diffusers.
        concept_tokens: the place of each concept's word in the prompt, or the places of its words.
        background_token: the place of the word that stands for the background, the start of the text.
        layers: names of the layers that are watched; all by default.
        detach_first: whether key and value of the first word get no gradient in cross-attention.

    Shapes: as for the model; the maps are of the whole batch, of which `masks` and `loss` take one sample, the
        last by default.

    Raises:
        UsageError: for layers that do not exist, no cross-attention, and an empty set of tokens.

    Reference: arXiv:2405.17965. Outputs stay the same up to rounding.
    """
    maps = AttentionMaps(concept_tokens, background_token)
    token_columns(torch.zeros(1, 2**16), [*maps.concept_tokens], "concept_tokens")
    every = attention_layers(model)
    chosen = {name: every[name] for name in chosen_layers("layers", layers, every)}
    if all(layer.reads_grid for layer in chosen.values()):
        raise UsageError(f"layers are {', '.join(chosen)}, without cross-attention to words; give a model with it.")
    first: list[str] = []

    def watched(
        layer: AttentionLayer, name: str, tokens: Tensor, context: Tensor | None, mask: Tensor | None
    ) -> Tensor:
        if not first:
            first.append(name)
        if name == first[0]:
            maps.sums.clear()
        kind = "self" if context is None else "cross"
        context = tokens if context is None else context
        q, k, v = (layer.project(part, x) for part, x in enumerate((tokens, context, context)))
        if kind == "self":
            everywhere = torch.arange(q.shape[2], device=q.device)
            q, k = layer.turned(q, everywhere), layer.turned(k, everywhere)
        elif detach_first:
            k, v = (torch.cat((x[:, :, :1].detach(), x[:, :, 1:]), 2) for x in (k, v))
        couplings, mixed = layer.couplings(q, k, v, *split_mask(mask))
        maps.add(kind, couplings)
        return layer.merge(mixed)

    def forward(name: str) -> Replacement:
        def run(layer: AttentionLayer, tokens: Tensor, context: Tensor | None, mask: Tensor | None) -> Tensor:
            if context is None and not layer.reads_grid:
                return layer.plain(tokens, None, mask)
            return watched(layer, name, tokens, context, mask)

        return run

    with replaced(chosen, forward):
        yield maps
