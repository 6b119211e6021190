"""Dynamic routing by agreement: children are divided among the parents that agree with their votes.

Source: Sabour, Frosst, Hinton 2017, arXiv:1710.09829, procedure 1. The variant without routing: arXiv:2209.02567.
Cost: votes 2 S R d D FLOPs an image, each pass 2 S R D more, twice. Without stored votes, see `dynamic_routing`, they
are made in every pass, and the memory is batch (S d + R D) instead of batch S R D.
"""

import torch
from torch import Tensor, nn

from mereo.core import (
    Capsules,
    Coupling,
    DenseVotes,
    depends,
    iterate_agreement,
    lengths,
    mechanism,
    route_by_agreement,
    squash,
)
from mereo.core.kernels.plain import Routing, plain_with_couplings
from mereo.core.kernels.routing import route
from mereo.core.kernels.transforms import fallback_reason
from mereo.core.window_votes import WindowVotes
from mereo.errors import UsageError, check_choice, check_positive, check_steps
from mereo.mechanisms.routing.vote_routing import VoteRouting, vote_routing

__all__ = ["DynamicRouting", "dynamic_routing", "route_by_agreement"]


def dynamic_routing(
    children: Tensor, weight: Tensor, steps: int = 3, *, method: str = "auto", tile: int | None = None
) -> Tensor:
    """Route children to parents by iterated agreement of their votes, as a function.

    b = 0;  `steps` times:  c = softmax_r(b),  v_r = squash(sum_s c_rs W_rs^T u_s),  b_rs += <W_rs^T u_s, v_r>

    Args:
        children: poses of the children.
        weight: a transform for every pair.
        steps: evaluations of the couplings, at least 1. Gradients flow through all of them.
        method: "plain" keeps the votes (batch, receivers, senders, d_out) and can be differentiated in every way;
            "streamed" (PyTorch), "fused" (compiled, CPU) and "triton" (CUDA) never make them and keep only
            children, parents and one tile. "auto" takes the fastest that can run; `mereo.core.kernels.backends()` lists
            those available. Requesting one that cannot run is a UsageError.
        tile: how many children "streamed" looks at together; None chooses it from the sizes.

    Shapes: children (batch, senders, d_in), weight (receivers, senders, d_in, d_out) -> (batch, receivers, d_out).

    In half precision, sums, softmax and squash are float32, and except in "plain" all other intermediate results too.
    """
    check_steps(1, steps=steps)
    return route(Routing(DenseVotes(children, weight, tile=tile), Coupling("receivers"), steps), method)


def _example() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return DynamicRouting(12, 5, 6, 8), (torch.randn(3, 12, 6),)


@mechanism(
    "dynamic",
    family="routing",
    over="receivers",
    steps=depends("steps", 3),
    values="per pair",
    update="squash",
    source="arXiv:1710.09829",
    promises=("normalised", "masks", "any sender order", "any receiver order"),
    sender_axes={"0": 1, "weight": 1},
    receiver_axes={"weight": 0, "output": 1},
    interface="tokens",
    example=_example,
)
class DynamicRouting(nn.Module):
    """Route children to parents by iterated agreement of their votes.

    b = 0;  `steps` times:  c = softmax_r(b),  v_r = squash(sum_s c_rs W_rs^T u_s),  b_rs += <W_rs^T u_s, v_r>

    Args:
        senders, receivers: how many children and parents.
        sender_dim, receiver_dim: their pose sizes.
        steps: evaluations of the couplings; 0 means no routing, see `coupling`.
        coupling: the fixed coupling of `steps=0`: "unit" (every vote counts whole) or "uniform" (1 / receivers, as
            in a single pass).
        leaky: softmax over the parents and one more that takes the votes which fit none.
        learned_prior: start from a learned b, (receivers, senders), instead of 0.
        bias: add a learned bias to each parent before squashing.
        detach_routing: gradients flow through the last pass only, unlike in the paper; not the true gradient.

    Shapes: children (batch, senders, sender_dim), mask (batch, senders) -> (batch, receivers, receiver_dim).

    The votes are kept as a tensor only if the couplings are needed (for recording, intervening, exporting) or by an
    option (detach_routing); see `dynamic_routing`, whose `method` the call takes too.

    Reads as: couplings[b, 0, r, s] is the share of its vote that child s gives to parent r.

    Deviates: weights start uniform in +-1 / sqrt(senders), as in reimplementations that train well; the authors' start
        (truncated normal, 0.1) is `init="official"` of the model.

    Reference: arXiv:1710.09829, procedure 1.
    """

    def __init__(
        self,
        senders: int,
        receivers: int,
        sender_dim: int,
        receiver_dim: int,
        *,
        steps: int = 3,
        coupling: str = "unit",
        leaky: bool = False,
        learned_prior: bool = False,
        bias: bool = False,
        detach_routing: bool = False,
    ) -> None:
        super().__init__()
        check_positive(senders=senders, receivers=receivers, sender_dim=sender_dim, receiver_dim=receiver_dim)
        check_choice("coupling", coupling, ("unit", "uniform"))
        check_steps(steps=steps)
        # Without routing the scores are the couplings: they pass through unchanged, so that recording still sees them.
        unit = steps == 0 and coupling == "unit"
        if unit and (leaky or learned_prior):
            raise UsageError(
                f"steps is 0 with coupling 'unit', leaky={leaky} and learned_prior={learned_prior}; without routing no"
                " softmax is taken, so both must be False. Give coupling='uniform' or steps of at least 1."
            )
        self.steps, self.detach_routing = steps, detach_routing
        self.weight = nn.Parameter(torch.empty(receivers, senders, sender_dim, receiver_dim))
        nn.init.uniform_(self.weight, -(senders**-0.5), senders**-0.5)
        self.prior = nn.Parameter(torch.zeros(receivers, senders)) if learned_prior else None
        self.bias = nn.Parameter(torch.zeros(receivers, receiver_dim)) if bias else None
        normaliser = "none" if unit else "leaky_softmax" if leaky else "softmax"
        self.coupling = Coupling("receivers", normaliser)

    def votes(self, children: Tensor, mask: Tensor | None = None) -> DenseVotes:
        """The votes of each child for each parent."""
        if mask is not None:
            children = children.masked_fill(~mask.unsqueeze(-1), 0)
        return DenseVotes(children, self.weight)

    def _call(self, children: Tensor, mask: Tensor | None) -> Routing:
        steps, votes = max(self.steps, 1), self.votes(children, mask)
        return Routing(votes, self.coupling, steps, self.prior, self.bias, self.detach_routing)

    def forward(self, children: Tensor, mask: Tensor | None = None, *, method: str = "auto") -> Tensor:
        return route(self._call(children, mask), method)

    def with_couplings(self, children: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The parents and the couplings of the last pass, which made them; the votes are kept as a tensor.

        Shapes: as `forward` -> (batch, receivers, receiver_dim), (batch, receivers, senders).
        """
        return plain_with_couplings(self._call(children, mask))

    def extra_repr(self) -> str:
        receivers, senders, sender_dim, receiver_dim = self.weight.shape
        return f"{senders} x {sender_dim} -> {receivers} x {receiver_dim}, steps={self.steps}"


@vote_routing("dynamic")
class DynamicVoteRouting(VoteRouting):
    """Dynamic routing of the votes that a layer makes; activations are lengths, and children's are not used.

    Args:
        receivers, senders, pose: as for every `VoteRouting`.
        steps, leaky, learned_prior, bias, detach_routing: as for `DynamicRouting`, with at least one step.

    Reads as: couplings[b, 0, r, s] is the share of its vote that child s gives to parent r.

    Reference: arXiv:1710.09829, procedure 1.
    """

    def __init__(
        self,
        receivers: int,
        senders: int,
        pose: int,
        *,
        steps: int = 3,
        leaky: bool = False,
        learned_prior: bool = False,
        bias: bool = False,
        detach_routing: bool = False,
    ) -> None:
        super().__init__(receivers, senders, pose)
        check_steps(1, steps=steps)
        self.steps, self.detach_routing = steps, detach_routing
        self.prior = nn.Parameter(torch.zeros(receivers, senders)) if learned_prior else None
        self.bias = nn.Parameter(torch.zeros(receivers, pose)) if bias else None
        self.coupling = Coupling("receivers", "leaky_softmax" if leaky else "softmax")

    def forward(self, votes: WindowVotes, activation: Tensor | None = None) -> Capsules:
        poses = self._fused(votes) if self._can_fuse(votes) else self._by_verbs(votes)
        return Capsules(poses, lengths(poses))

    def _can_fuse(self, votes: WindowVotes) -> bool:
        """Whether every window is a routing of vectors of its own, for which there are passes without votes."""
        vectors = votes.poses.shape[2] == 1 and votes.method == "auto"
        return vectors and votes.across is None and not self.coupling.watched and fallback_reason() is None

    def _fused(self, votes: WindowVotes) -> Tensor:
        dense = DenseVotes(votes.poses.squeeze(2), votes.weight)
        return route(Routing(dense, self.coupling, self.steps, self.prior, self.bias, self.detach_routing))

    def _by_verbs(self, votes: WindowVotes) -> Tensor:
        start = votes.equal_scores()
        if self.prior is not None:
            start = start + self.prior
        bias = 0.0 if self.bias is None else self.bias

        def exchange(agreed: Tensor | None) -> Tensor:
            scores = start
            if agreed is not None:
                fits = votes.agree(agreed)
                scores = start + (fits.detach() if self.detach_routing else fits)
            return votes.combine(votes.couple(self.coupling, scores)) + bias

        return iterate_agreement(exchange, squash, self.steps, detach=self.detach_routing).squeeze(1)
