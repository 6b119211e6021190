"""Associative memories: states that settle among stored patterns, one file a mechanism."""

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
from mereo.mechanisms.attention.memory.separation import SEPARATIONS, Separation

__all__ = [
    "MEMORIES",
    "SEPARATIONS",
    "AssociativeMemory",
    "HopfieldAttention",
    "HopfieldLookup",
    "HopfieldPooling",
    "Separation",
    "associative_memory",
    "energy",
    "retrieve",
]
