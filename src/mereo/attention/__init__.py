"""One file an attention mechanism or associative memory: wholes that ask their parts."""

from mereo.attention.associative_memory import MEMORIES, AssociativeMemory, associative_memory, energy, retrieve
from mereo.attention.hopfield import HopfieldAttention
from mereo.attention.hopfield_lookup import HopfieldLookup
from mereo.attention.hopfield_pooling import HopfieldPooling
from mereo.attention.multi_head import MultiHeadAttention
from mereo.attention.separation import SEPARATIONS, Separation
from mereo.attention.top_down import TopDownAttention, top_down_attention

__all__ = [
    "MEMORIES",
    "SEPARATIONS",
    "AssociativeMemory",
    "HopfieldAttention",
    "HopfieldLookup",
    "HopfieldPooling",
    "MultiHeadAttention",
    "Separation",
    "TopDownAttention",
    "associative_memory",
    "energy",
    "retrieve",
    "top_down_attention",
]
