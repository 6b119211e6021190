"""Attention and associative memories: receivers that divide themselves among senders.

`dense/`, `local/` and `sparse/` differ in which senders a receiver attends to; in `memory/` the receivers are states
that settle among stored patterns.
"""

from mereo.attention.dense import (
    ClassAttention,
    MultiHeadAttention,
    SingleHeadAttention,
    TalkingHeadAttention,
    TopDownAttention,
    top_down_attention,
)
from mereo.attention.local import BlockAttention, GridAttention
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

__all__ = [
    "AssociativeMemory",
    "BlockAttention",
    "ClassAttention",
    "GridAttention",
    "HopfieldAttention",
    "HopfieldLookup",
    "HopfieldPooling",
    "MEMORIES",
    "MultiHeadAttention",
    "SEPARATIONS",
    "Separation",
    "SingleHeadAttention",
    "TalkingHeadAttention",
    "TopDownAttention",
    "associative_memory",
    "energy",
    "retrieve",
    "top_down_attention",
]
