"""The scores of cross-agreement routing without votes: how well the best fine capsule agrees with the coarse one above.

    A_bjk = max_m <W1_jkm^T u1_bkm, W2_jk^T u2_bk> = max_m  u1_bkm^T M_jkm u2_bk,     M = W1 W2^T

The product of the two transforms does not depend on the image, so it is made once; then no vote is needed, and the work
for a pair is d1 d2 multiplications instead of (d1 + d2) D. With shared transforms, M_jk serves all members of a group.
Saved for the gradient are the capsules and M; it makes everything else anew, a tile of groups at a time. Second
derivatives go through the same formula in plain operations.

Cost: 2 B R K s d1 d2 FLOPs forward (shared: 2 B R K d1 (d2 + s)). Live at once: a few tensors (batch, receivers, tile,
d1).
"""

from typing import Any

import torch
from torch import Tensor

from mereo.core.kernels.again import gradients_again
from mereo.core.kernels.direct import direct, direct_operator
from mereo.core.kernels.streamed import default_tile
from mereo.core.kernels.transforms import forward_mode
from mereo.core.squash import accumulation_type


def _pulled(coarse: Tensor, forms: Tensor) -> Tensor:
    """M u2: the query of each coarse capsule for the fine ones, with an axis of members if each has its own M."""
    return torch.einsum("bkd,jk...cd->bjk...c", coarse, forms)


def _agreements(fine: Tensor, pulled: Tensor) -> Tensor:
    """Agreements of every member: (batch, receivers, coarse, members)."""
    return torch.einsum("bkmc,bjkmc->bjkm" if pulled.dim() == 5 else "bkmc,bjkc->bjkm", fine, pulled)


@direct_operator("mereo::best_agreement")
def _best(fine: Tensor, coarse: Tensor, forms: Tensor, tile: int) -> Tensor:
    wide = accumulation_type(fine)
    parts = []
    for at in _tiles(coarse.shape[1], tile):
        pulled = _pulled(coarse[:, at].to(wide), forms[:, at].to(wide))
        parts.append(_agreements(fine[:, at].to(wide), pulled).amax(-1).to(fine.dtype))
    return torch.cat(parts, 2)


def _tiles(size: int, tile: int) -> list[slice]:
    return [slice(first, min(first + tile, size)) for first in range(0, size, tile)]


@_best.register_fake
def _(fine: Tensor, coarse: Tensor, forms: Tensor, tile: int) -> Tensor:
    return fine.new_empty(fine.shape[0], forms.shape[0], coarse.shape[1])


@torch.library.custom_op("mereo::best_agreement_backward", mutates_args=())
def _best_backward(
    grad: Tensor, fine: Tensor, coarse: Tensor, forms: Tensor, tile: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of fine, coarse and forms; among equal members it is shared out evenly, as amax does."""
    wide = accumulation_type(fine)
    gradients = tuple(torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (fine, coarse, forms))
    for at in _tiles(coarse.shape[1], tile):
        u1, u2, M = fine[:, at].to(wide), coarse[:, at].to(wide), forms[:, at].to(wide)
        pulled = _pulled(u2, M)
        scores = _agreements(u1, pulled)
        best = (scores == scores.amax(-1, keepdim=True)).to(wide)
        share = best * (grad[..., at].to(wide) / best.sum(-1)).unsqueeze(-1)
        if M.dim() == 5:
            gradients[0][:, at] = torch.einsum("bjkm,bjkmc->bkmc", share, pulled)
            voted = share.unsqueeze(-1) * u1.unsqueeze(1)
        else:
            gradients[0][:, at] = torch.einsum("bjkm,bjkc->bkmc", share, pulled)
            voted = torch.einsum("bjkm,bkmc->bjkc", share, u1)
        members = "m" if M.dim() == 5 else ""
        gradients[1][:, at] = torch.einsum(f"bjk{members}c,jk{members}cd->bkd", voted, M)
        gradients[2][:, at] = torch.einsum(f"bjk{members}c,bkd->jk{members}cd", voted, u2)
    return gradients[0], gradients[1], gradients[2]


@_best_backward.register_fake
def _(grad: Tensor, fine: Tensor, coarse: Tensor, forms: Tensor, tile: int) -> tuple[Tensor, ...]:
    return tuple(x.new_empty(x.shape) for x in (fine, coarse, forms))


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    *tensors, ctx.tile = inputs
    ctx.save_for_backward(*tensors)


def _gradients(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    fine, coarse, forms = ctx.saved_tensors
    if not (torch.is_grad_enabled() or forward_mode()):
        return *_best_backward(grad, fine, coarse, forms, ctx.tile), None
    best = gradients_again(lambda u, V, W: _agreements(u, _pulled(V, W)).amax(-1), ctx.saved_tensors, [grad])
    return *best, None


_best.register_autograd(_gradients, setup_context=_save)


def best_agreement(
    fine: Tensor, coarse: Tensor, weight: Tensor, fine_weight: Tensor | None, *, tile: int | None = None
) -> Tensor:
    """The agreement of each coarse capsule's vote with the best vote of the fine capsules beneath it.

    Args:
        fine_weight: the transforms of the fine capsules; None if they share the transform of the coarse capsule above.
        tile: how many coarse capsules are looked at together; None chooses it from the sizes.

    Shapes: fine (batch, coarse, members, fine_dim), coarse (batch, coarse, coarse_dim), weight (receivers, coarse,
        coarse_dim, pose), fine_weight (receivers, coarse, members, fine_dim, pose) -> (batch, receivers, coarse).
    """
    if tile is None:
        each = fine[:, :, 0] if fine_weight is None else fine.flatten(2)
        tile = default_tile(each, weight.shape[0])
    if fine_weight is None:
        forms = weight @ weight.transpose(-1, -2)
    else:
        forms = fine_weight @ weight.transpose(-1, -2).unsqueeze(2)
    return direct(_best, fine, coarse, forms, tile)
