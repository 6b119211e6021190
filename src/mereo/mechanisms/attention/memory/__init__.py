"""Memories: states that settle among stored patterns or activate concepts, one file a mechanism."""

from mereo.mechanisms.attention.memory.associative_memory import (
    MEMORIES,
    AssociativeMemory,
    associative_memory,
    energy,
    retrieve,
)
from mereo.mechanisms.attention.memory.hopfield import HopfieldAttention
from mereo.mechanisms.attention.memory.hopfield_lookup import HopfieldLookup
from mereo.mechanisms.attention.memory.hopfield_pooling import HopfieldPooling
from mereo.mechanisms.attention.memory.index_feedback import IndexFeedback
from mereo.mechanisms.attention.memory.separation import SEPARATIONS, Separation

__all__ = [
    "MEMORIES",
    "SEPARATIONS",
    "AssociativeMemory",
    "HopfieldAttention",
    "HopfieldLookup",
    "HopfieldPooling",
    "IndexFeedback",
    "Separation",
    "associative_memory",
    "energy",
    "retrieve",
]
