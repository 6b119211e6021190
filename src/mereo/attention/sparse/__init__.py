"""Attention to selected senders: blocks, clusters, top-k regions, one file a mechanism."""

from mereo.attention.sparse.bi_level_routing import BiLevelRoutingAttention as BiLevelRoutingAttention
