"""One call of dynamic routing, and its execution by the verbs themselves: the plain twin of every faster way."""

from typing import NamedTuple

from torch import Tensor

from mereo.core.agreement import route_by_agreement
from mereo.core.coupling import Coupling
from mereo.core.votes import DenseVotes


class Routing(NamedTuple):
    """One call: what to route, and how. Shapes as in `mereo.core.kernels.routing.route`."""

    votes: DenseVotes
    coupling: Coupling
    steps: int
    prior: Tensor | None = None
    bias: Tensor | None = None
    detach_routing: bool = False


def plain(call: Routing) -> Tensor:
    """The whole call with its votes as a tensor: (batch, receivers, d_out)."""
    return plain_with_couplings(call)[0]


def plain_with_couplings(call: Routing) -> tuple[Tensor, Tensor]:
    """The parents (batch, receivers, d_out) and the couplings of the last pass (batch, receivers, senders)."""
    kind = call.votes.senders.dtype
    senders, weight = call.votes.senders.to(call.votes.dtype), call.votes.weight.to(call.votes.dtype)
    receivers, count = weight.shape[:2]
    start = senders.new_zeros(receivers, count) if call.prior is None else call.prior
    if call.coupling.normaliser == "none":
        # Without routing the scores are the couplings, 1 each.
        start = start + 1
    last: list[Tensor] = []

    def couple(scores: Tensor) -> Tensor:
        last[:] = [call.coupling(scores)]
        return last[0]

    parents = route_by_agreement(
        # Votes that several passes ask are cheaper to keep than to make again.
        DenseVotes(senders, weight, method="stored"),
        couple,
        start.expand(senders.shape[0], 1, receivers, count),
        call.steps,
        bias=0.0 if call.bias is None else call.bias,
        detach_routing=call.detach_routing,
    )
    return parents.squeeze(1).to(kind), last[0].squeeze(1).to(kind)
