"""Attention and associative memories: receivers that divide themselves among senders.

`dense/`, `local/` and `sparse/` differ in which senders a receiver attends to; in `memory/` the receivers are states
that settle among stored patterns.
"""

from mereo.core.distributed import distributed_attention
from mereo.mechanisms.attention.borrowed import BorrowedCoupling
from mereo.mechanisms.attention.dense import (
    ChannelGroupAttention,
    ClassAttention,
    MultiHeadAttention,
    PositionAttention,
    PowerLawGraphAttention,
    RelativeConvolutionalAttention,
    ShardedAttention,
    SingleHeadAttention,
    TalkingHeadAttention,
    TopDownAttention,
    top_down_attention,
)
from mereo.mechanisms.attention.higher_order import TensorAttention, polynomial_error, tensor_attention
from mereo.mechanisms.attention.hosted import (
    DenseHosted,
    HostedAttention,
    attention_layers,
    replace_attention,
)
from mereo.mechanisms.attention.local import (
    BlockAttention,
    ClearAttention,
    GridAttention,
    HaloAttention,
    NeighborhoodAttention,
    WindowAttention,
    clear_attention,
    clear_attention_bands,
    neighborhood_attention,
)
from mereo.mechanisms.attention.memory import (
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
from mereo.mechanisms.attention.sparse import (
    BiLevelRoutingAttention,
    CombinerAttention,
    HeadRouter,
    MoHAttention,
    RoutingAttention,
    SeaAttention,
    SparsifinerAttention,
    combiner_attention,
    routing_attention,
)

__all__ = [
    "MEMORIES",
    "SEPARATIONS",
    "AssociativeMemory",
    "BiLevelRoutingAttention",
    "BlockAttention",
    "BorrowedCoupling",
    "ChannelGroupAttention",
    "ClassAttention",
    "ClearAttention",
    "CombinerAttention",
    "DenseHosted",
    "GridAttention",
    "HaloAttention",
    "HeadRouter",
    "HopfieldAttention",
    "HopfieldLookup",
    "HopfieldPooling",
    "HostedAttention",
    "MoHAttention",
    "MultiHeadAttention",
    "NeighborhoodAttention",
    "PositionAttention",
    "PowerLawGraphAttention",
    "RelativeConvolutionalAttention",
    "RoutingAttention",
    "SeaAttention",
    "Separation",
    "ShardedAttention",
    "SingleHeadAttention",
    "SparsifinerAttention",
    "TalkingHeadAttention",
    "TensorAttention",
    "TopDownAttention",
    "WindowAttention",
    "associative_memory",
    "attention_layers",
    "clear_attention",
    "clear_attention_bands",
    "combiner_attention",
    "distributed_attention",
    "energy",
    "neighborhood_attention",
    "polynomial_error",
    "replace_attention",
    "retrieve",
    "routing_attention",
    "tensor_attention",
    "top_down_attention",
]
