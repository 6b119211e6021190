"""Attention of every receiver to every sender, one file a mechanism."""

from mereo.attention.dense.bottleneck import BottleneckAttention
from mereo.attention.dense.channel_group import ChannelGroupAttention
from mereo.attention.dense.class_attention import ClassAttention
from mereo.attention.dense.lambda_attention import LambdaAttention
from mereo.attention.dense.multi_head import MultiHeadAttention
from mereo.attention.dense.position_attention import PositionAttention
from mereo.attention.dense.sharded import ShardedAttention
from mereo.attention.dense.single_head import SingleHeadAttention
from mereo.attention.dense.talking_heads import TalkingHeadAttention
from mereo.attention.dense.top_down import TopDownAttention, top_down_attention

__all__ = [
    "BottleneckAttention",
    "ChannelGroupAttention",
    "ClassAttention",
    "LambdaAttention",
    "MultiHeadAttention",
    "PositionAttention",
    "ShardedAttention",
    "SingleHeadAttention",
    "TalkingHeadAttention",
    "TopDownAttention",
    "top_down_attention",
]
