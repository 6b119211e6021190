"""Who vouched for whom in cross-agreement routing: the fine capsule that agreed best with a coarse capsule's vote.

    A_jk = max_m <V1_jkm, V2_jk> / sqrt(D),      the witness of coarse capsule k before parent j is the m of the maximum

The witness alone sets the score, and so the coupling, of the coarse capsule (arXiv:2508.16922).
"""

from typing import NamedTuple

import torch
from torch import Tensor

from mereo.explain.observation import Exchange
from mereo.routing import CrossAgreementRouting


class Agreement(NamedTuple):
    """The witnesses of some receivers.

    Shapes: witnesses int64 (pairs, coarse), numbers of fine capsules; scores (pairs, coarse), what the softmax takes.
    """

    witnesses: Tensor
    scores: Tensor


def best_agreements(exchange: Exchange, images: Tensor, receivers: Tensor) -> Agreement:
    """Which fine capsule agreed best with each coarse capsule's vote for a receiver, and how well.

    Args:
        exchange: the pass through a cross-agreement routing.
        images, receivers: which receiver of which image, int64 (pairs,).
    """
    routing, (fine, coarse) = exchange.module, exchange.inputs
    assert isinstance(routing, CrossAgreementRouting)
    members, weight = fine[images].unflatten(1, (-1, routing.members)), routing.weight[receivers]
    with torch.no_grad():
        votes = torch.einsum("nkd,nkde->nke", coarse[images], weight)
        if routing.fine_weight is None:
            scores = torch.einsum("nkmd,nkde,nke->nkm", members, weight, votes)
        else:
            own = routing.fine_weight[receivers].unflatten(1, (-1, routing.members))
            scores = torch.einsum("nkmd,nkmde,nke->nkm", members, own, votes)
        best, place = scores.max(-1)
    first = torch.arange(members.shape[1], device=fine.device) * routing.members
    return Agreement(first + place, best * votes.shape[-1] ** -0.5)
