"""Attention and associative memories: receivers that divide themselves among senders.

`dense/`, `local/` and `sparse/` differ in which senders a receiver attends to; in `memory/` the receivers are states
that settle among stored patterns.
"""

from mereo.attention.dense import (
    ChannelGroupAttention,
    ClassAttention,
    MultiHeadAttention,
    SingleHeadAttention,
    TalkingHeadAttention,
    TopDownAttention,
    top_down_attention,
)
from mereo.attention.local import (
    BlockAttention,
    GridAttention,
    HaloAttention,
    NeighborhoodAttention,
    WindowAttention,
    neighborhood_attention,
)
from mereo.attention.memory import (
    MEMORIES,
    SEPARATIONS,
    AssociativeMemory,
    HopfieldAttention,
    HopfieldLookup,
    HopfieldPooling,
    Separation,
    associative_memory,
    energy,
    retrieve,
)
from mereo.attention.sparse import (
    BiLevelRoutingAttention,
    CombinerAttention,
    RoutingAttention,
    combiner_attention,
    routing_attention,
)

__all__ = [
    "MEMORIES",
    "SEPARATIONS",
    "AssociativeMemory",
    "BiLevelRoutingAttention",
    "BlockAttention",
    "ChannelGroupAttention",
    "ClassAttention",
    "CombinerAttention",
    "GridAttention",
    "HaloAttention",
    "HopfieldAttention",
    "HopfieldLookup",
    "HopfieldPooling",
    "MultiHeadAttention",
    "NeighborhoodAttention",
    "RoutingAttention",
    "Separation",
    "SingleHeadAttention",
    "TalkingHeadAttention",
    "TopDownAttention",
    "WindowAttention",
    "associative_memory",
    "combiner_attention",
    "energy",
    "neighborhood_attention",
    "retrieve",
    "routing_attention",
    "top_down_attention",
]
