"""Attention of every receiver to every sender, one file a mechanism."""

from mereo.attention.dense.multi_head import MultiHeadAttention
from mereo.attention.dense.single_head import SingleHeadAttention
from mereo.attention.dense.top_down import TopDownAttention, top_down_attention

__all__ = ["MultiHeadAttention", "SingleHeadAttention", "TopDownAttention", "top_down_attention"]
