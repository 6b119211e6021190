"""Attention and associative memories: receivers that divide themselves among senders.

`dense/`, `local/` and `sparse/` differ in which senders a receiver attends to; in `memory/` the receivers are states
that settle among stored patterns.
"""

from mereo.attention.dense import (
    ChannelGroupAttention,
    ClassAttention,
    MultiHeadAttention,
    ShardedAttention,
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
from mereo.attention.sparse import BiLevelRoutingAttention, HeadRouter, MoHAttention, balance_loss
from mereo.core.distributed import distributed_attention

__all__ = [
    "MEMORIES",
    "SEPARATIONS",
    "AssociativeMemory",
    "BiLevelRoutingAttention",
    "BlockAttention",
    "ChannelGroupAttention",
    "ClassAttention",
    "GridAttention",
    "HaloAttention",
    "HeadRouter",
    "HopfieldAttention",
    "HopfieldLookup",
    "HopfieldPooling",
    "MoHAttention",
    "MultiHeadAttention",
    "NeighborhoodAttention",
    "Separation",
    "ShardedAttention",
    "SingleHeadAttention",
    "TalkingHeadAttention",
    "TopDownAttention",
    "WindowAttention",
    "associative_memory",
    "balance_loss",
    "distributed_attention",
    "energy",
    "neighborhood_attention",
    "retrieve",
    "top_down_attention",
]
