"""The three verbs: agree, couple, combine. Tensors in, tensors out."""

from mereo.core.added_loss import AddedLoss, added_losses
from mereo.core.agreement import iterate_agreement, route_by_agreement
from mereo.core.catalogue import MECHANISMS, Mechanism, depends, get_mechanism, list_mechanisms, mechanism
from mereo.core.coupling import Coupling
from mereo.core.log_domain import log_mean_exp, masked_logsumexp
from mereo.core.observe import Call, Signal
from mereo.core.record import Trace, intervene, record
from mereo.core.settle import settle
from mereo.core.shapes import Capsules
from mereo.core.source import Source
from mereo.core.squash import bounded, lengths, squash, squash_exponential
from mereo.core.topology import Causal, Circle, Grid, Neighborhood, Topology, grid_groups
from mereo.core.votes import (
    DenseVotes,
    GivenVotes,
    JoinedVotes,
    MatrixVotes,
    SameVotes,
    SharedVotes,
    Votes,
    transformed_votes,
)

__all__ = [
    "MECHANISMS",
    "AddedLoss",
    "Call",
    "Capsules",
    "Causal",
    "Circle",
    "Coupling",
    "DenseVotes",
    "GivenVotes",
    "Grid",
    "JoinedVotes",
    "MatrixVotes",
    "Mechanism",
    "Neighborhood",
    "SameVotes",
    "SharedVotes",
    "Signal",
    "Source",
    "Topology",
    "Trace",
    "Votes",
    "added_losses",
    "bounded",
    "depends",
    "get_mechanism",
    "grid_groups",
    "intervene",
    "iterate_agreement",
    "lengths",
    "list_mechanisms",
    "log_mean_exp",
    "masked_logsumexp",
    "mechanism",
    "record",
    "route_by_agreement",
    "settle",
    "squash",
    "squash_exponential",
    "transformed_votes",
]
