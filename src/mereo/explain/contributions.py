"""Which part voted for which whole: what each sender's coupled vote adds to the length of a class capsule.

    contribution_s = c_s <vote_s, v> / |v|,      sum_s contribution_s = <s, v> / |v| = |s|

where s = sum_s c_s vote_s is the class capsule before it is squashed to v. A squash keeps the direction, so the sum is
the length before the squash; a negative contribution is a vote against. A learned bias is no sender's and is left out.
"""

import torch
from torch import Tensor

from mereo.core import lengths
from mereo.core.squash import EPS
from mereo.explain.observation import Observation, chosen_classes
from mereo.routing import CrossAgreementRouting, DynamicRouting, SelfAttentionRouting


def vote_contributions(observation: Observation, classes: Tensor | None = None) -> Tensor | None:
    """What each sender of the class routing adds to the length of a class capsule, before the squash.

    Args:
        observation: what the model did, from `observe`.
        classes: which class to explain for each image, (batch,); the predicted one when None.

    Shapes: -> (batch, senders), or None when the class routing is of a kind whose votes are not known here.
    """
    chosen = chosen_classes(observation, classes)
    exchange = observation.exchanges.get(observation.class_coupling)
    if exchange is None:
        return None
    routing, couplings = exchange.module, observation.class_row(chosen)
    if isinstance(routing, CrossAgreementRouting):
        senders = exchange.inputs[1]
    elif isinstance(routing, DynamicRouting):
        senders = exchange.inputs[0]
    elif isinstance(routing, SelfAttentionRouting):
        senders, couplings = exchange.inputs[0], couplings + routing.log_prior[chosen]
    else:
        return None
    parents = exchange.output[torch.arange(len(chosen), device=chosen.device), chosen]
    direction = parents / lengths(parents, keepdim=True).clamp(min=EPS**0.5)
    # One class an image: only its row of transforms is used, never the votes for all classes.
    with torch.no_grad():
        votes = torch.einsum("bsd,bsde->bse", senders, routing.weight[chosen])
        return couplings * torch.einsum("bse,be->bs", votes, direction)
