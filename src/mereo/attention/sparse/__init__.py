"""Attention to selected senders: blocks, clusters, top-k regions, one file a mechanism."""

from mereo.attention.sparse.bi_level_routing import BiLevelRoutingAttention
from mereo.attention.sparse.combiner import CombinerAttention, combiner_attention
from mereo.attention.sparse.routing_attention import RoutingAttention, routing_attention

__all__ = [
    "BiLevelRoutingAttention",
    "CombinerAttention",
    "RoutingAttention",
    "combiner_attention",
    "routing_attention",
]
