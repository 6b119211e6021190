"""Attention to selected senders: blocks, clusters, top-k regions, one file a mechanism."""

from mereo.attention.sparse.bi_level_routing import BiLevelRoutingAttention
from mereo.attention.sparse.sea import SeaAttention, map_losses
from mereo.attention.sparse.sea_model import SeaHosted, set_top_k

__all__ = ["BiLevelRoutingAttention", "SeaAttention", "SeaHosted", "map_losses", "set_top_k"]
