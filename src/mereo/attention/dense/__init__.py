"""Attention of every receiver to every sender, one file a mechanism."""

from mereo.attention.dense.bottleneck import BottleneckAttention
from mereo.attention.dense.multi_head import MultiHeadAttention
from mereo.attention.dense.top_down import TopDownAttention, top_down_attention

__all__ = ["BottleneckAttention", "MultiHeadAttention", "TopDownAttention", "top_down_attention"]
