"""Attention to selected senders: blocks, clusters, top-k regions, one file a mechanism."""

from mereo.attention.sparse.bi_level_routing import BiLevelRoutingAttention
from mereo.attention.sparse.sea import SeaAttention, map_losses
from mereo.attention.sparse.sea_model import SeaHosted, set_top_k
from mereo.attention.sparse.sparsifiner import SparsifinerAttention, attention_cost
from mereo.attention.sparse.sparsifiner_model import keep_tokens, set_phase

__all__ = [
    "BiLevelRoutingAttention",
    "SeaAttention",
    "SeaHosted",
    "SparsifinerAttention",
    "attention_cost",
    "keep_tokens",
    "map_losses",
    "set_phase",
    "set_top_k",
]
