"""Attention to selected senders: blocks, clusters, top-k regions, one file a mechanism."""

from mereo.mechanisms.attention.sparse.bi_level_routing import BiLevelRoutingAttention
from mereo.mechanisms.attention.sparse.cluster_start import start_clusters
from mereo.mechanisms.attention.sparse.combiner import CombinerAttention, combiner_attention
from mereo.mechanisms.attention.sparse.head_router import BALANCE_WEIGHT, HeadRouter
from mereo.mechanisms.attention.sparse.mixture_of_head import MoHAttention
from mereo.mechanisms.attention.sparse.pr_flash_attention import PrFlashAttention, distance_law, pr_flash_attention
from mereo.mechanisms.attention.sparse.routing_attention import RoutingAttention, routing_attention
from mereo.mechanisms.attention.sparse.sea import SeaAttention, map_losses
from mereo.mechanisms.attention.sparse.sparsifiner import (
    SparsifinerAttention,
    attention_cost,
    keep_tokens,
    set_phase,
)

__all__ = [
    "BALANCE_WEIGHT",
    "BiLevelRoutingAttention",
    "CombinerAttention",
    "HeadRouter",
    "MoHAttention",
    "PrFlashAttention",
    "RoutingAttention",
    "SeaAttention",
    "SparsifinerAttention",
    "attention_cost",
    "combiner_attention",
    "distance_law",
    "keep_tokens",
    "map_losses",
    "pr_flash_attention",
    "routing_attention",
    "set_phase",
    "start_clusters",
]
