"""Capsules that compete for the right to be decoded, so that they specialise without labels.

Source: Rawlinson, Ahmed, Kowadlo 2018, arXiv:1804.06094, and the authors' code (Cerenaut/sparse-unsupervised-capsules).
Cost: as dynamic routing with stored votes, one maximum and one sum over the couplings, a sort of the parents.
"""

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mereo.core import Signal, depends, lengths, mechanism
from mereo.core.modes import hooked
from mereo.core.squash import accumulation_type
from mereo.errors import UsageError, check_choice, check_positive, check_steps
from mereo.mechanisms.routing.dynamic import DynamicRouting

MASKS = ("weighted-routing", "routing", "norm", "label", "none")
"""Which parents are decoded; see `CompetingCapsules`."""
SCORES = ("types", "official")
STEEPNESS, SMALLEST = 12.0, 0.01
"""Steepness of a parent's weight, exp(-12 rank / (parents - 1)), and the weight below which it is 0."""
RARE, FREQUENT = 0.48, 1.92
"""Shares of wins, in units of 1 / parents, below and above which boosts change: 0.03 and 0.12 of 16 parents."""
BOOST_STEP, DECAY = 0.1, 0.99
BOOST_EVERY = 50
"""Training steps between two changes of the boosts."""


class Competition(NamedTuple):
    """The result of one routing.

    Attributes:
        poses (batch, parents, pose): of all parents, as dynamic routing leaves them.
        mask (batch, parents): the weight of each parent, without a gradient.
        scores (batch, parents): how much each parent was coupled to, times its boost; without a gradient.
    """

    poses: Tensor
    mask: Tensor
    scores: Tensor

    @property
    def masked(self) -> Tensor:
        """The poses times their weights: (batch, parents, pose)."""
        return self.poses * self.mask.unsqueeze(-1)


def routing_scores(couplings: Tensor, types: int, kind: str = "types") -> Tensor:
    """How much each parent was coupled to.

    types:     q_j = sum over positions p of max over types t of c_j,(t, p)
    official:  the same with children read in the order (position, type), as the authors' code does

    Shapes: couplings (batch, parents, types * positions), children ordered by type, then position -> (batch, parents).
    """
    positions = couplings.shape[-1] // types
    if kind == "official":
        return couplings.unflatten(-1, (positions, types)).amax(-1).sum(-1)
    return couplings.unflatten(-1, (types, positions)).amax(-2).sum(-1)


def ranks(scores: Tensor) -> Tensor:
    """The place of each score in its row, 0 for the largest; of equal ones the first comes first.

    Shapes: (batch, parents) -> int64 (batch, parents).
    """
    order = scores.argsort(dim=-1, descending=True, stable=True)
    places = torch.arange(scores.shape[-1], device=scores.device).expand_as(order)
    return torch.empty_like(order).scatter(-1, order, places)


def rank_weights(places: Tensor, count: int, winners: int = 0) -> Tensor:
    """exp(-12 rank / (count - 1)), 0 where that is below 0.01; with `winners`, 1 for the first of them, else 0.

    Shapes: int64 (...) -> float32 (...).
    """
    if winners:
        return (places < winners).float()
    weights = torch.exp(places * (-STEEPNESS / max(count - 1, 1)))
    return weights * (weights >= SMALLEST)


def _example() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return CompetingCapsules(12, 5, 6, 8, types=3), (torch.randn(3, 12, 6),)


@mechanism(
    "competing_capsules",
    family="routing",
    over="receivers",
    steps=depends("steps", 3),
    values="per pair",
    update="squash, then a weight by rank",
    source="arXiv:1804.06094",
    also_records=("gates",),
    promises=("normalised", "any receiver order"),
    receiver_axes={"routing.weight": 0, "routing.bias": 0, "output": 1},
    example=_example,
)
class CompetingCapsules(nn.Module):
    """Route children to parents by agreement, and keep the few parents that most children are coupled to.

    q_j = boost_j sum_p max_t c_j,(t, p),   out_j = m(rank of q_j) v_j,   m(r) = exp(-12 r / (parents - 1)) [>= 0.01]

    Of 16 parents six go on. In training, the share of images that each parent wins is averaged over batches
    (`frequency`), and `rebalance` boosts parents that rarely win, so that all of them are used.

    Args:
        senders, receivers, sender_dim, receiver_dim, steps, bias: as for `DynamicRouting`.
        types: kinds of children; children are ordered by type, then position.
        mask: "weighted-routing" (the equation above), "routing" (1 for the parent with the largest unboosted q),
            "norm" (1 for the longest parent), "label" (1 for the parent of the label: supervised), or "none" (all 1).
        score: "types", or "official", see `routing_scores`.
        winners: of "weighted-routing": the number of parents of weight 1, the others have 0; 0 is the weight by rank.

    Shapes: children (batch, senders, sender_dim), labels int64 (batch,) -> (batch, receivers, receiver_dim).

    Attributes:
        frequency (receivers,): average share of images that a parent wins, 0 before the first training step.
        boost (receivers,): factor of its score, at least 1.

    Reads as: couplings[b, 0, r, s] is the share of its vote that child s gives to parent r; gates[b, r] is the weight
        of parent r. No gradient flows through the gates, so parents of weight 0 have none.

    Deviates: wins are counted in training only, and the maximum is over types; the authors' code also counts in
        evaluation, and its maximum is over neighbouring children (score="official"). Thresholds of `rebalance` scale
        with 1 / parents.

    Reference: arXiv:1804.06094.
    """

    frequency: Tensor
    boost: Tensor

    def __init__(
        self,
        senders: int,
        receivers: int,
        sender_dim: int,
        receiver_dim: int,
        *,
        types: int,
        steps: int = 3,
        bias: bool = True,
        mask: str = "weighted-routing",
        score: str = "types",
        winners: int = 0,
    ) -> None:
        super().__init__()
        check_positive(types=types)
        check_steps(1, steps=steps)
        check_choice("mask", mask, MASKS)
        check_choice("score", score, SCORES)
        if senders % types:
            raise UsageError(f"senders is {senders} and types {types}; senders must be a multiple of types.")
        if not 0 <= winners <= receivers:
            raise UsageError(f"winners is {winners}; it must be at least 0 and at most the {receivers} receivers.")
        if winners and mask != "weighted-routing":
            raise UsageError(f"winners is {winners} with mask {mask!r}; it needs mask='weighted-routing'.")
        self.steps, self.types, self.mask, self.score, self.winners = steps, types, mask, score, winners
        self.routing = DynamicRouting(senders, receivers, sender_dim, receiver_dim, steps=steps, bias=bias)
        self.gates = Signal("gates")
        self.register_buffer("frequency", torch.zeros(receivers))
        self.register_buffer("boost", torch.ones(receivers))

    def compete(self, children: Tensor, labels: Tensor | None = None) -> Competition:
        """Route, score and weigh; in training mode wins are counted.

        Args:
            labels: of the images, for mask="label".
        """
        poses, couplings = self.routing.with_couplings(children)
        if hooked(self.routing):
            poses = self.routing(children)
        with torch.no_grad():
            wide = couplings.detach().to(accumulation_type(couplings))
            raw = routing_scores(wide, self.types, self.score)
            scores = raw * self.boost
            places = ranks(scores)
            if self.training:
                self._count(places == 0)
            mask = self._mask(places, raw, poses.detach(), labels)
        return Competition(poses, self.gates(mask.to(poses.dtype)), scores)

    def forward(self, children: Tensor, labels: Tensor | None = None) -> Tensor:
        return self.compete(children, labels).masked

    def _mask(self, places: Tensor, raw: Tensor, poses: Tensor, labels: Tensor | None) -> Tensor:
        count = places.shape[-1]
        if self.mask == "weighted-routing":
            return rank_weights(places, count, self.winners)
        if self.mask == "none":
            return torch.ones_like(raw)
        if self.mask == "label":
            if labels is None:
                raise UsageError("labels is None with mask 'label'; give the label of every image.")
            return F.one_hot(labels, count)
        return ranks(raw if self.mask == "routing" else lengths(poses)) == 0

    def _count(self, won: Tensor) -> None:
        wins = torch.cat((won.to(self.frequency).sum(0), self.frequency.new_tensor([float(len(won))])))
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            torch.distributed.all_reduce(wins)
        share = wins[:-1] / wins[-1].clamp(min=1)
        first = (self.frequency == 0).all()
        self.frequency.copy_(torch.where(first, share, DECAY * self.frequency + (1 - DECAY) * share))

    @torch.no_grad()
    def rebalance(self) -> None:
        """Raise the boost of parents that rarely win by 0.1, and lower the boost of frequent winners, to at least 1.

        boost_j += 0.1   if frequency_j < 0.48 / parents;
        boost_j = max(1, boost_j - 0.1)   if frequency_j > 1.92 / parents
        """
        count = len(self.boost)
        rare, frequent = self.frequency < RARE / count, self.frequency > FREQUENT / count
        self.boost.add_(BOOST_STEP * rare)
        self.boost.copy_(torch.where(frequent, (self.boost - BOOST_STEP).clamp(min=1), self.boost))

    def extra_repr(self) -> str:
        return f"types={self.types}, mask={self.mask!r}, score={self.score!r}, winners={self.winners}"


def win_entropy(wins: Tensor) -> float:
    """Entropy of the shares of wins as a part of its maximum: 1 if all parents win equally often, 0 if one always does.

    Shapes: wins (parents,), counts or shares.
    """
    shares = wins.double() / wins.double().sum().clamp(min=1e-300)
    return float(-torch.xlogy(shares, shares).sum() / math.log(max(len(wins), 2)))
