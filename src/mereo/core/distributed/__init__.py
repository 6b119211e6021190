"""Attention over tokens distributed over several processes (`torch.distributed`): exact, forward and backward."""

from mereo.core.distributed.attention import MODES, distributed_attention
from mereo.core.distributed.collectives import shared, summed
from mereo.core.distributed.layout import LAYOUTS, shard_lengths, shard_positions
from mereo.core.distributed.shards import shard, unshard
from mereo.core.distributed.traffic import Traffic, count_traffic, expected_traffic

__all__ = [
    "LAYOUTS",
    "MODES",
    "Traffic",
    "count_traffic",
    "distributed_attention",
    "expected_traffic",
    "shard",
    "shard_lengths",
    "shard_positions",
    "shared",
    "summed",
    "unshard",
]
