"""The three verbs: agree, couple, combine. Tensors in, tensors out."""

from mereo.core.catalogue import MECHANISMS, Mechanism, depends, get_mechanism, list_mechanisms, mechanism
from mereo.core.coupling import Coupling
from mereo.core.log_domain import log_mean_exp, masked_logsumexp
from mereo.core.observed import Observed
from mereo.core.record import Trace, intervene, record
from mereo.core.settle import settle
from mereo.core.shapes import Capsules
from mereo.core.source import Source
from mereo.core.squash import bounded, lengths, squash, squash_exponential
from mereo.core.topology import grid_groups
from mereo.core.votes import DenseVotes, SameVotes, SharedVotes, Votes

__all__ = [
    "MECHANISMS",
    "Capsules",
    "Coupling",
    "DenseVotes",
    "Mechanism",
    "Observed",
    "SameVotes",
    "SharedVotes",
    "Source",
    "Trace",
    "Votes",
    "bounded",
    "depends",
    "get_mechanism",
    "grid_groups",
    "intervene",
    "lengths",
    "list_mechanisms",
    "log_mean_exp",
    "masked_logsumexp",
    "mechanism",
    "record",
    "settle",
    "squash",
    "squash_exponential",
]
