"""Attention of every receiver to every sender, one file a mechanism."""

from mereo.mechanisms.attention.dense.bottleneck import BottleneckAttention
from mereo.mechanisms.attention.dense.bridging import BridgingAttention, LocationTable
from mereo.mechanisms.attention.dense.channel_attention import ChannelAttention
from mereo.mechanisms.attention.dense.channel_group import ChannelGroupAttention
from mereo.mechanisms.attention.dense.class_attention import ClassAttention
from mereo.mechanisms.attention.dense.lambda_attention import LambdaAttention
from mereo.mechanisms.attention.dense.multi_head import MultiHeadAttention
from mereo.mechanisms.attention.dense.object_pointer import ObjectPointer
from mereo.mechanisms.attention.dense.pointer import Pointer
from mereo.mechanisms.attention.dense.position_attention import PositionAttention
from mereo.mechanisms.attention.dense.power_law_graph import PowerLawGraphAttention
from mereo.mechanisms.attention.dense.random_feature_attention import RandomFeatureAttention, random_feature_kernel
from mereo.mechanisms.attention.dense.random_features import RandomFeatureMLP, kernel_ridge
from mereo.mechanisms.attention.dense.rcmha import RelativeConvolutionalAttention
from mereo.mechanisms.attention.dense.sharded import ShardedAttention
from mereo.mechanisms.attention.dense.single_head import SingleHeadAttention
from mereo.mechanisms.attention.dense.talking_heads import TalkingHeadAttention
from mereo.mechanisms.attention.dense.top_down import TopDownAttention, top_down_attention

__all__ = [
    "BottleneckAttention",
    "BridgingAttention",
    "ChannelAttention",
    "ChannelGroupAttention",
    "ClassAttention",
    "LambdaAttention",
    "LocationTable",
    "MultiHeadAttention",
    "ObjectPointer",
    "Pointer",
    "PositionAttention",
    "PowerLawGraphAttention",
    "RandomFeatureAttention",
    "RandomFeatureMLP",
    "RelativeConvolutionalAttention",
    "ShardedAttention",
    "SingleHeadAttention",
    "TalkingHeadAttention",
    "TopDownAttention",
    "kernel_ridge",
    "random_feature_kernel",
    "top_down_attention",
]
