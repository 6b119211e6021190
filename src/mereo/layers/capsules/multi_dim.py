"""Class capsules of several sets of children with poses of different sizes, routed together.

Source: Xiang, Zhang, Tang, Zou, Xu, "MS-CapsNet: a novel multi-scale capsule network", IEEE Signal Processing Letters
25(12), 2018, and the authors' code, https://github.com/cxiang26/MS-CapsNet
Cost: votes 2 S R d D FLOPs an image for the S children of each set, made anew twice in each pass; they are stored only
if couplings are watched or a program is exported.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from mereo.core import Coupling, DenseVotes, JoinedVotes, iterate_agreement, squash
from mereo.core.squash import accumulation_type
from mereo.errors import UsageError, check_choice, check_positive, check_steps
from mereo.layers.capsules.dropout import CapsuleDropout

VARIANTS = ("classical", "public")
Masks = Sequence[Tensor | None]
"""For each set of children None, or bool (batch, senders of the set): True takes part."""


class MultiDimClassCaps(nn.Module):
    """Route sets of children, whose poses differ in size, to the classes by the agreement of their votes.

    vote_rs = W_rs^T u_s                                               W_rs of the size that the set of s has
    classical: b = 0;   `steps` times:  c = softmax_r(b),  v_r = squash(sum_s c_rs vote_rs),  b_rs += <vote_rs, v_r>
    public:    v_r = squash(sum_s vote_rs), b = 1;
               `steps` times:  b_rs += <vote_rs, v_r>,  c = softmax_s(b),  v_r = squash(sum_s c_rs vote_rs)

    Args:
        senders, sender_dims: how many children each set has, and their pose size.
        classes, class_dim: how many parents, and their pose size.
        steps: evaluations of the couplings, at least 1. Gradients flow through all of them.
        variant: "classical" divides each child among the parents; "public" is the authors' code, which divides each
            parent among the children, after a first pass in which every vote counts whole.
        capsule_drop: probability with which a child is left out in training, see `CapsuleDropout`.

    Shapes: children, for each set (batch, senders, sender_dim); masks, for each set bool (batch, senders) or None ->
        (batch, classes, class_dim).

    Reads as: couplings[b, 0, r, s] is the share of its vote that child s gives to class r; children are numbered one
        set after the other. With "public" it is the share of class r that comes from child s.

    Deviates: none. Transforms start normal with deviation 0.5, as in the authors' code; the rate of the dropout is not
        stated.

    Reference: Xiang, Zhang, Tang, Zou, Xu 2018 (IEEE Signal Processing Letters).
    """

    def __init__(
        self,
        senders: Sequence[int],
        sender_dims: Sequence[int],
        classes: int,
        class_dim: int = 16,
        *,
        steps: int = 3,
        variant: str = "classical",
        capsule_drop: float = 0.0,
    ) -> None:
        super().__init__()
        check_choice("variant", variant, VARIANTS)
        check_positive(classes=classes, class_dim=class_dim)
        check_steps(1, steps=steps)
        if not senders or len(senders) != len(sender_dims) or min(*senders, *sender_dims) < 1:
            raise UsageError(
                f"senders is {tuple(senders)} with sender_dims {tuple(sender_dims)}; give a number above 0 of each for"
                " every set."
            )
        self.senders, self.steps, self.variant = tuple(senders), steps, variant
        sizes = zip(senders, sender_dims, strict=True)
        self.weights = nn.ParameterList(torch.empty(classes, count, dim, class_dim) for count, dim in sizes)
        for weight in self.weights:
            nn.init.normal_(weight, std=0.5)
        self.dropout = CapsuleDropout(capsule_drop)
        # The first pass of the authors' code, in which scores of 1 are the couplings.
        self.start = Coupling("none", "none") if variant == "public" else None
        self.coupling = Coupling("senders" if variant == "public" else "receivers")

    def votes(self, children: Sequence[Tensor], masks: Masks | None = None) -> JoinedVotes:
        """The votes of each child for each class."""
        if len(children) != len(self.weights) or (masks is not None and len(masks) != len(self.weights)):
            given = f"{len(children)} sets of children" + ("" if masks is None else f" and {len(masks)} masks")
            raise UsageError(f"there are {given}; the transforms are for {len(self.weights)} sets.")
        parts = []
        for place, (poses, weight) in enumerate(zip(children, self.weights, strict=True)):
            mask = None if masks is None else masks[place]
            there = poses if mask is None else poses.masked_fill(~mask.unsqueeze(-1), 0)
            wide = accumulation_type(poses)
            parts.append(DenseVotes(there.to(wide), weight.to(wide)))
        return JoinedVotes(parts, self.senders)

    def _mask(self, children: Sequence[Tensor], masks: Masks | None) -> Tensor | None:
        """Which children of all sets take part, (batch, 1, 1, senders); None if all do."""
        if masks is None or all(mask is None for mask in masks):
            return None
        pairs = zip(children, masks, strict=True)
        whole = [poses.new_ones(poses.shape[:2], dtype=torch.bool) if mask is None else mask for poses, mask in pairs]
        return torch.cat(whole, 1)[:, None, None]

    def forward(self, children: Sequence[Tensor], masks: Masks | None = None) -> Tensor:
        votes = self.votes([self.dropout(poses) for poses in children], masks)
        mask, first = self._mask(children, masks), children[0]
        shape = (first.shape[0], 1, self.weights[0].shape[0], sum(self.senders))
        plain = first.new_zeros(1, dtype=accumulation_type(first)).expand(shape)

        def exchange(agreed: Tensor | None) -> Tensor:
            if agreed is None:
                couplings = self.coupling(plain, mask) if self.start is None else self.start(plain + 1, mask)
            else:
                couplings = self.coupling(votes.agree(agreed), mask)
            return votes.combine(couplings)

        passes = self.steps + (self.start is not None)
        return iterate_agreement(exchange, squash, passes).squeeze(1).to(first.dtype)

    def extra_repr(self) -> str:
        sets = ", ".join(f"{weight.shape[1]} x {weight.shape[2]}" for weight in self.weights)
        return f"{sets} -> {self.weights[0].shape[0]} x {self.weights[0].shape[-1]}, steps={self.steps}"
