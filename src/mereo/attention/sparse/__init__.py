"""Attention to selected senders: blocks, clusters, top-k regions, one file a mechanism."""

from mereo.attention.sparse.bi_level_routing import BiLevelRoutingAttention
from mereo.attention.sparse.head_router import HeadRouter, balance_loss
from mereo.attention.sparse.mixture_of_head import MoHAttention

__all__ = ["BiLevelRoutingAttention", "HeadRouter", "MoHAttention", "balance_loss"]
