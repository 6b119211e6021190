"""Routing of votes that a layer makes: a routing without transforms of its own.

A convolutional capsule layer makes the votes of every window and routes them by any entry of `VOTE_ROUTINGS`.
"""

import inspect
from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from torch import Tensor, nn

from mereo.core import Capsules, Coupling
from mereo.core.window_votes import WindowVotes
from mereo.errors import UsageError, check_positive, unknown


class VoteRouting(nn.Module):
    """Route the votes of the children in windows to the parents at the position of each window.

    A subclass takes options as keywords, makes `coupling`, and defines `forward`. Children beyond the map come with
    poses, votes and activations of 0. Couplings are made by `votes.couple(self.coupling, scores, ...)`, which knows who
    competes; `votes.combine`, `votes.agree` and `votes.sum` need no tensor of votes, `votes.dense()` makes it, and
    `votes.poses` are the poses of the children. All shapes count windows of all images as the batch.

    Args:
        receivers: types of parents; parameters of parents are one for each type.
        senders: children of a window.
        pose: numbers in a vote.

    Attributes:
        needs_activation: whether children must come with an activation.
        reads_children: whether it has an argument `sender_dim`, the numbers in the pose of a child, which the layer
            gives.
    """

    coupling: Coupling
    needs_activation = False
    reads_children = False

    def __init__(self, receivers: int, senders: int, pose: int) -> None:
        super().__init__()
        check_positive(receivers=receivers, senders=senders, pose=pose)
        self.receivers, self.senders, self.pose = receivers, senders, pose

    @abstractmethod
    def forward(self, votes: WindowVotes, activation: Tensor | None = None) -> Capsules:
        """The parents of each window.

        Shapes: activation (batch * windows, senders) -> pose (batch * windows, receivers, pose), activation (batch *
            windows, receivers).
        """


VOTE_ROUTINGS: dict[str, type[VoteRouting]] = {}
"""Name of a routing -> its class, for layers that make votes."""

R = TypeVar("R", bound=type[VoteRouting])


def vote_routing(name: str) -> Callable[[R], R]:
    """Register the decorated class under `name`."""

    def register(cls: R) -> R:
        if name in VOTE_ROUTINGS:
            raise UsageError(f"vote routing {name!r} is registered twice: {VOTE_ROUTINGS[name]} and {cls}.")
        VOTE_ROUTINGS[name] = cls
        return cls

    return register


def make_vote_routing(
    name: str,
    receivers: int,
    senders: int,
    pose: int,
    options: Mapping[str, Any] | None = None,
    *,
    sender_dim: int | None = None,
) -> VoteRouting:
    """The routing `name` with its options; UsageError for an unknown name.

    Args:
        sender_dim: numbers in the pose of a child; None for the number in a vote.
    """
    if name not in VOTE_ROUTINGS:
        raise unknown("vote routing", name, VOTE_ROUTINGS)
    cls, given = VOTE_ROUTINGS[name], dict(options or {})
    if cls.reads_children and given.setdefault("sender_dim", sender_dim or pose) != (sender_dim or pose):
        raise UsageError(
            f"sender_dim is {given['sender_dim']!r} for children of {sender_dim or pose} numbers; leave it out."
        )
    try:
        inspect.signature(cls).bind(receivers, senders, pose, **given)
    except TypeError as error:
        raise UsageError(f"options of vote routing {name!r} are {given}: {error}.") from None
    return cls(receivers, senders, pose, **given)
