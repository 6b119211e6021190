"""Attention to selected senders: blocks, clusters, top-k regions, one file a mechanism."""

from mereo.attention.sparse.bi_level_routing import BiLevelRoutingAttention
from mereo.attention.sparse.routing_attention import RoutingAttention, routing_attention

__all__ = ["BiLevelRoutingAttention", "RoutingAttention", "routing_attention"]
