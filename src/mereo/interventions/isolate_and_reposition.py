"""Isolation and reposition of subjects in any diffusion network with attention, for pictures with references.

Source: arXiv:2411.19261 (IR-Diffusion), the mutual text of arXiv:2407.12899, and the authors' public code.
Cost: a mask in the self-attention of targets, and the moved tokens of the references as further keys of one half of the
layers; keys and values of the references come from their own pass.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mereo.errors import UsageError, check_probability, check_seed
from mereo.interventions.attention_layers import (
    AttentionLayer,
    Replacement,
    attention_layers,
    chosen_layers,
    replaced,
    split_mask,
)
from mereo.interventions.reference_attention import Plan, drop_elements, gathered, make_plan
from mereo.interventions.subject_masks import on_grid, without_overlap


class _Pictures:
    """The plans of all pictures for each grid, drawn anew for each pass if elements are dropped."""

    def __init__(
        self, targets: Tensor, references: Tensor, members: int, repositioned: bool, drop: float, seed: int
    ) -> None:
        self.targets, self.references, self.members = targets, references, members
        self.repositioned, self.drop = repositioned, drop
        self.generator = torch.Generator().manual_seed(seed)
        self.plans: dict[int, Plan] = {}
        self.kept: dict[tuple[int, int, bool, torch.dtype], tuple[Plan, Tensor]] = {}

    def next_pass(self) -> None:
        if self.drop:
            self.kept.clear()

    def plan(self, cells: int) -> Plan:
        """The plan on the grid with that many cells."""
        if cells not in self.plans:
            rows, columns = self.targets.shape[-2:]
            scale = (cells / (rows * columns)) ** 0.5
            size = round(rows * scale), round(columns * scale)
            if size[0] * size[1] != cells or size[0] * columns != size[1] * rows:
                raise UsageError(
                    f"target_masks are {rows} x {columns}, and a layer has {cells} cells; give masks of its grid, or of"
                    " one with the same proportions."
                )
            target, reference = (without_overlap(on_grid(each, size)) for each in (self.targets, self.references))
            self.plans[cells] = make_plan(target, reference, self.repositioned)
        return self.plans[cells]

    def repeated(self, keys: Tensor, halves: int, biased: tuple[bool, float], read: bool) -> tuple[Plan, Tensor]:
        """The plan for all halves of guidance and the bias of scores, in a layer with or without references.

        The bias is made for targets, (halves P, 1, N, N + K); without references, K = 0, of the whole batch.
        """
        cells, device = keys.shape[2], keys.device
        key = (cells, halves, read, keys.dtype)
        if key not in self.kept:
            plan = self.plan(cells)
            if self.drop:
                plan = drop_elements(plan, self.drop, self.generator)
            more = [x.repeat(halves, 1).to(device) for x in (plan.subject, plan.source, plan.place, plan.there)]
            plan = Plan(plan.labels.repeat(halves, 1).to(device), *(x if read else x[:, :0] for x in more))
            bias = plan.bias(*biased, keys.dtype)
            if not plan.subject.shape[1] and self.members > 1:
                # For references too; a bias of zeros changes no bit of what they read.
                bias = F.pad(bias.unsqueeze(1), (0, 0, 0, 0, 0, 0, self.members - 1, 0)).flatten(0, 1)
            self.kept[key] = plan, bias
        return self.kept[key]


def _masks(argument: str, masks: Tensor) -> Tensor:
    """Masks with an axis of pictures; UsageError for other shapes, and numbers that are not finite."""
    masks = masks.unsqueeze(0) if masks.dim() == 3 else masks
    if masks.dim() != 4 or 0 in masks.shape:
        raise UsageError(
            f"{argument} are {tuple(masks.shape)}; they must be (subjects, rows, columns) or (pictures, subjects, rows,"
            " columns), with at least one of each."
        )
    if masks.is_floating_point() and not bool(masks.isfinite().all()):
        raise UsageError(f"{argument} hold values that are not finite; give bool masks, or soft ones in [0, 1].")
    return masks if masks.is_floating_point() or masks.dtype == torch.bool else masks != 0


@contextmanager
def isolate_and_reposition(
    model: nn.Module,
    target_masks: Tensor,
    ref_masks: Tensor | None = None,
    *,
    isolate: bool = True,
    reposition: bool = True,
    ref_bias: float = 0.0,
    mutual_text: float = 0.0,
    mask_dropout: float = 0.0,
    layers: Sequence[str] | None = None,
    reference_layers: Sequence[str] | None = None,
    seed: int = 0,
) -> Iterator[None]:
    """Keep subjects of a picture from reading each other, and let each read its reference where it stands itself.

    In self-attention of a target: cells of one subject do not read cells of another (isolation); in `reference_layers`
    cells of subject m also read the tokens of reference m inside its mask, moved and resized to the box of the
    subject before positions are applied (reposition). References read themselves only.

    Args:
        model: with attention of mereo or of diffusers.
        target_masks: where each subject stands in each target. Soft masks become bool by Otsu's threshold, on each grid
            for itself; cells of two subjects go to the first.
        ref_masks: where each stands in its reference; None for pictures without references.
        isolate, reposition: whether to do so; without `reposition` references are read where they stand.
        ref_bias: added to the scores of reference tokens.
        mutual_text: share of what cells of a subject read from the prompt of its reference in cross-attention, such
            as 0.9; 0 for their own prompt alone.
        mask_dropout: probability with which an element of a mask is left out of a pass, such as 0.5.
        layers: names of the self-attention layers that are changed; all that read a grid by default.
        reference_layers: those in which references are read; by default the later half, or diffusers' up blocks.
        seed: of the dropped elements.

    Shapes:
        masks (pictures, subjects, rows, columns), or without pictures for one. A batch of the model holds, for each
        half of guidance and each picture, the references in order and then the target: halves * pictures *
        (subjects + 1) samples; without references halves * pictures.

    Raises:
        UsageError: for layers that do not exist, and masks of another form; inside the block, for batches and grids
            that do not fit the masks.

    Deviates: boxes are taken from the masks before elements are dropped; boxes of one row or column are supported.

    Reference: arXiv:2411.19261; the equations are at `multi_reference_attention`.
    """
    check_probability(mask_dropout=mask_dropout)
    if not ref_bias < float("inf"):
        raise UsageError(f"ref_bias is {ref_bias}; it must be a finite number, or minus infinity.")
    check_seed(seed)
    if not 0 <= mutual_text <= 1:
        raise UsageError(f"mutual_text is {mutual_text}; it must be between 0 and 1.")
    targets = _masks("target_masks", target_masks)
    references = torch.zeros_like(targets) if ref_masks is None else _masks("ref_masks", ref_masks)
    if references.shape != targets.shape:
        raise UsageError(
            f"ref_masks are {tuple(references.shape)}; they must be {tuple(targets.shape)}, as target_masks."
        )
    members = 1 if ref_masks is None else targets.shape[1] + 1
    group = len(targets) * members
    pictures = _Pictures(targets, references, members, reposition, mask_dropout, seed)
    every = attention_layers(model)
    of_grid = {name: layer for name, layer in every.items() if layer.reads_grid}
    chosen = chosen_layers("layers", layers, of_grid)
    up = [name for name in chosen if name.startswith("up_blocks.")] or chosen[len(chosen) // 2 :]
    reading = (
        []
        if ref_masks is None
        else chosen_layers("reference_layers", up if reference_layers is None else reference_layers, chosen)
    )
    changed = {name: of_grid[name] for name in chosen}
    if mutual_text and ref_masks is not None:
        changed |= {name: layer for name, layer in every.items() if not layer.reads_grid}

    def halves_of(batch: int) -> int:
        if batch % group:
            raise UsageError(
                f"the batch holds {batch} samples, and the masks are of {len(targets)} pictures of {members} samples"
                " each; give the references and the target of each picture, once for each half of guidance."
            )
        return batch // group

    def self_attention(layer: AttentionLayer, tokens: Tensor, name: str) -> Tensor:
        if name == chosen[0]:
            pictures.next_pass()
        q, k, v = (layer.project(part, tokens) for part in range(3))
        plan, bias = pictures.repeated(k, halves_of(len(tokens)), (isolate, ref_bias), name in reading)
        everywhere = torch.arange(q.shape[2], device=q.device)
        turned, placed = layer.turned(q, everywhere), layer.turned(k, everywhere)
        if not plan.subject.shape[1]:
            return layer.merge(layer.attend(turned, placed, v, bias=bias))
        qs, ks, vs, plain = (x.unflatten(0, (-1, members)) for x in (turned, placed, v, k))
        keys = torch.cat((ks[:, -1], layer.turned(gathered(plain[:, :-1], plan), plan.place)), 2)
        values = torch.cat((vs[:, -1], gathered(vs[:, :-1], plan)), 2)
        # References attend as ever: computing targets with them costs less than taking them out.
        out = layer.attend(turned, placed, v).unflatten(0, (-1, members))
        mine = layer.attend(qs[:, -1], keys, values, bias=bias)
        return layer.merge(torch.cat((out[:, :-1], mine.unsqueeze(1)), 1).flatten(0, 1))

    def cross_attention(layer: AttentionLayer, tokens: Tensor, context: Tensor, mask: Tensor | None) -> Tensor:
        halves = halves_of(len(tokens))
        parts = split_mask(mask)
        q, k, v = layer.project(0, tokens), layer.project(1, context), layer.project(2, context)
        out = layer.attend(q, k, v, *parts).unflatten(0, (-1, members))
        labels = pictures.plan(q.shape[2]).labels.repeat(halves, 1).to(tokens.device)[:, None, :, None]
        q, k, v = (x.unflatten(0, (-1, members)) for x in (q, k, v))
        mine = out[:, -1]
        for subject in range(members - 1):
            own = [x if x is None or len(x) == 1 else x.unflatten(0, (-1, members))[:, subject] for x in parts]
            other = layer.attend(q[:, -1], k[:, subject], v[:, subject], *own)
            mine = torch.where(labels == subject + 1, (1 - mutual_text) * out[:, -1] + mutual_text * other, mine)
        return layer.merge(torch.cat((out[:, :-1], mine.unsqueeze(1)), 1).flatten(0, 1))

    def forward(name: str) -> Replacement:
        def run(layer: AttentionLayer, tokens: Tensor, context: Tensor | None, mask: Tensor | None) -> Tensor:
            if layer.reads_grid:
                return self_attention(layer, tokens, name)
            if context is None:
                return layer.plain(tokens, None, mask)
            return cross_attention(layer, tokens, context, mask)

        return run

    with replaced(changed, forward):
        yield
