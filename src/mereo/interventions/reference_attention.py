"""Isolation and reposition attention: subjects that do not read each other, and references that are read in place.

Source: arXiv:2411.19261 (IR-Diffusion), and the authors' public code.
Cost: the target reads N + sum |R'_m| keys in place of N; only moved reference tokens are gathered, nothing is padded to
whole grids.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from mereo.core.coupling import Coupling
from mereo.core.kernels.attention import attend
from mereo.errors import UsageError, check_probability

Turn = Callable[[Tensor, Tensor], Tensor]
"""Queries or keys (P, heads, n, d) and the cells where they stand, int64 (n,) or (P, n) -> the same with positions."""


def subject_labels(target_masks: Tensor) -> Tensor:
    """0 for background and 1 + m for subject m: bool (..., M, H, W) -> int64 (..., H W).

    Raises:
        UsageError: for masks that overlap.
    """
    if bool((target_masks.sum(-3) > 1).any()):
        raise UsageError("target_masks overlap; a cell may belong to one subject, see without_overlap.")
    numbers = torch.arange(1, target_masks.shape[-3] + 1, device=target_masks.device)
    return (target_masks * numbers[:, None, None]).sum(-3).flatten(-2)


def may_read(labels: Tensor) -> Tensor:
    """Which cells read which: all pairs but cells of two different subjects. int64 (..., N) -> bool (..., N, N)."""
    queries, keys = labels.unsqueeze(-1), labels.unsqueeze(-2)
    return (queries == keys) | (queries == 0) | (keys == 0)


def isolation_bias(target_masks: Tensor) -> Tensor:
    """What isolation adds to scores: -inf between two subjects, else 0. bool (M, H, W) -> (N, N)."""
    allowed = may_read(subject_labels(target_masks))
    return torch.zeros(allowed.shape, device=allowed.device).masked_fill_(~allowed, -torch.inf)


def box_of(mask: Tensor) -> tuple[int, int, int, int]:
    """First row, first column, rows and columns of the smallest box around a mask that is not empty."""
    rows, columns = mask.any(1).nonzero(), mask.any(0).nonzero()
    top, left = int(rows[0]), int(columns[0])
    return top, left, int(rows[-1]) - top + 1, int(columns[-1]) - left + 1


def moved_cells(
    source: tuple[int, int, int, int], target: tuple[int, int, int, int], width: int, device: torch.device | None = None
) -> tuple[Tensor, Tensor]:
    """The cell of the source box that each cell of the target box takes (nearest), and that cell: int64 (n,) each."""
    top, left, height, across = target
    rows = torch.arange(height, device=device) * source[2] // height + source[0]
    columns = torch.arange(across, device=device) * source[3] // across + source[1]
    to = (torch.arange(height, device=device)[:, None] + top) * width + torch.arange(across, device=device) + left
    return (rows[:, None] * width + columns).flatten(), to.flatten()


def reposition(x: Tensor, src_box: tuple[int, int, int, int], dst_box: tuple[int, int, int, int]) -> Tensor:
    """Cut a box (top, left, rows, columns), resize it by the nearest cell and paste it into zeros: (C, H, W)."""
    height, width = x.shape[-2:]
    for name, (top, left, rows, columns) in (("src_box", src_box), ("dst_box", dst_box)):
        if min(top, left) < 0 or min(rows, columns) < 1 or top + rows > height or left + columns > width:
            raise UsageError(f"{name} is {(top, left, rows, columns)}; it must lie inside {height} x {width} cells.")
    taken, to = moved_cells(src_box, dst_box, width, x.device)
    out = torch.zeros_like(x).flatten(-2)
    out[..., to] = x.flatten(-2)[..., taken]
    return out.view(x.shape)


@dataclass(frozen=True)
class Plan:
    """What a target reads on one grid, of P pictures with M subjects each.

    Attributes:
        labels: of the cells of the target, int64 (P, N).
        subject, source, place: of each gathered reference token, int64 (P, K): whose it is, its cell in the
            reference, and the cell where it is read.
        there: which of them exist, bool (P, K); the others are padding.
    """

    labels: Tensor
    subject: Tensor
    source: Tensor
    place: Tensor
    there: Tensor

    def allowed(self, isolate: bool = True) -> Tensor:
        """Which pairs take part: bool (P, 1, N, N + K), the target's own keys first."""
        own = may_read(self.labels) if isolate else torch.ones_like(may_read(self.labels))
        reference = (self.labels.unsqueeze(-1) == self.subject.unsqueeze(1) + 1) & self.there.unsqueeze(1)
        return torch.cat((own, reference), -1).unsqueeze(1)

    def bias(self, isolate: bool, ref_bias: float, dtype: torch.dtype) -> Tensor:
        """What is added to scores, -inf where a pair takes no part, `ref_bias` for references: (P, 1, N, N + K)."""
        allowed = self.allowed(isolate)
        bias = torch.zeros(allowed.shape, dtype=dtype, device=allowed.device)
        bias[..., self.labels.shape[1] :] = ref_bias
        return bias.masked_fill_(~allowed, -torch.inf)


def make_plan(target_masks: Tensor, ref_masks: Tensor, repositioned: bool = True) -> Plan:
    """Which reference tokens are gathered, and where they are read.

    With `repositioned` the box of R_m is resized to the box of T_m, and R_m with it; otherwise tokens stay where they
    are. A subject with an empty mask has none.

    Shapes: bool (P, M, H, W) twice, M = 0 for no subjects.
    """
    if target_masks.shape != ref_masks.shape or target_masks.dim() != 4 or target_masks.dtype != torch.bool:
        raise UsageError(
            f"target_masks are {target_masks.dtype} {tuple(target_masks.shape)} and ref_masks {ref_masks.dtype}"
            f" {tuple(ref_masks.shape)}; both must be bool (pictures, subjects, rows, columns)."
        )
    labels, width, device = subject_labels(target_masks), target_masks.shape[-1], target_masks.device
    rows = []
    for targets, references in zip(target_masks, ref_masks, strict=True):
        parts = [torch.zeros(3, 0, dtype=torch.int64, device=device)]
        for subject, (target, reference) in enumerate(zip(targets, references, strict=True)):
            if not bool(target.any() & reference.any()):
                continue
            taken, to = moved_cells(box_of(reference), box_of(target), width, device)
            if not repositioned:
                taken = to = torch.arange(reference.numel(), device=device)
            kept = reference.flatten()[taken]
            parts.append(torch.stack((torch.full_like(taken, subject), taken, to))[:, kept])
        rows.append(torch.cat(parts, 1))
    most = max((row.shape[1] for row in rows), default=0)
    whole = torch.zeros(len(rows), 3, most, dtype=torch.int64, device=device)
    there = torch.zeros(len(rows), most, dtype=torch.bool, device=device)
    for number, row in enumerate(rows):
        whole[number, :, : row.shape[1]], there[number, : row.shape[1]] = row, True
    return Plan(labels, whole[:, 0], whole[:, 1], whole[:, 2], there)


def drop_elements(plan: Plan, share: float, generator: torch.Generator | None = None) -> Plan:
    """Drop elements of both kinds of masks with a probability, of each mask at most all but one."""
    labels, there = plan.labels.clone(), plan.there.clone()

    def kept(members: Tensor) -> Tensor:
        draws = torch.rand(members.shape, generator=generator, device="cpu").to(members.device)
        best = draws.masked_fill(~members, -1).argmax(-1, keepdim=True)
        return members & ((draws >= share) | torch.zeros_like(members).scatter(-1, best, True))

    for subject in range(int(labels.max()) if labels.numel() else 0):
        of_target, of_reference = labels == subject + 1, there & (plan.subject == subject)
        labels[of_target & ~kept(of_target)] = 0
        there &= ~of_reference | kept(of_reference)
    return Plan(labels, plan.subject, plan.source, plan.place, there)


def gathered(x: Tensor, plan: Plan) -> Tensor:
    """The tokens that a plan takes from the references: (P, M, heads, N, d) -> (P, heads, K, d)."""
    pictures = torch.arange(len(x), device=x.device).unsqueeze(1)
    return x[pictures, plan.subject, :, plan.source].transpose(1, 2)


def multi_reference_attention(
    q_t: Tensor,
    h_ref: Tensor,
    h_t: Tensor,
    w_k: Tensor,
    w_v: Tensor,
    target_masks: Tensor,
    ref_masks: Tensor,
    isolate: bool = True,
    reposition: bool = True,
    ref_bias: float = 0.0,
    mask_dropout: float = 0.0,
    rel_pos: Turn | None = None,
) -> Tensor:
    """Attention of a target image that also reads moved references, each by its own subject only.

    out_u = softmax over [keys of the target that u may read, moved reference tokens of the subject of u] of
            q k^T / sqrt(d) + bias,   k = W_k h, v = W_v h

    Args:
        q_t: queries of the target, without positions.
        h_ref, h_t: tokens of references and target.
        w_k, w_v: weights, as of a linear layer.
        target_masks, ref_masks: where subject m stands in the target, and in its reference.
        isolate: forbid cells of a subject to read cells of another.
        reposition: read references in the place and size of their subject; else where they stand.
        ref_bias: added to the scores of reference tokens.
        mask_dropout: probability with which an element of a mask is dropped.
        rel_pos: gives queries and keys their positions; None for attention without positions.

    Shapes: q_t (P, N, d), h_ref (P, M, N, C), h_t (P, N, C), masks bool (P, M, H, W), H W = N -> (P, N, d_v). The axis
        of pictures may be left out of all of them.
    """
    if single := h_t.dim() == 2:
        q_t, h_ref, h_t, target_masks, ref_masks = (x[None] for x in (q_t, h_ref, h_t, target_masks, ref_masks))
    check_probability(mask_dropout=mask_dropout)
    plan = make_plan(target_masks, ref_masks, reposition)
    if plan.labels.shape[1] != h_t.shape[1]:
        raise UsageError(
            f"target_masks have {plan.labels.shape[1]} cells, and h_t {h_t.shape[1]}; give masks of its grid."
        )
    if mask_dropout:
        plan = drop_elements(plan, mask_dropout)
    everywhere = torch.arange(h_t.shape[1], device=h_t.device)
    q, k, v = q_t[:, None], (h_t @ w_k.mT)[:, None], (h_t @ w_v.mT)[:, None]
    if rel_pos is not None:
        q, k = rel_pos(q, everywhere), rel_pos(k, everywhere)
    taken = gathered(h_ref.unsqueeze(2), plan)
    more = taken @ w_k.mT
    keys = torch.cat((k, more if rel_pos is None else rel_pos(more, plan.place)), 2)
    values = torch.cat((v, taken @ w_v.mT), 2)
    out = attend(q, keys, values, Coupling("senders"), bias=plan.bias(isolate, ref_bias, q.dtype))
    return out[0, 0] if single else out[:, 0]
