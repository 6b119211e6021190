"""Layers that networks share: patches, feed-forward, norms, self-attention, residual branches, positions."""

from mereo.core.relative_positions import RelativePositionNetwork, RelativePositions, resize_relative_table
from mereo.layers.basic_block import BasicBlock
from mereo.layers.conv_norm import ConvNorm
from mereo.layers.decoder_block import DecoderBlock
from mereo.layers.feed_forward import FeedForward
from mereo.layers.gated_linear_unit import SimpleGLU
from mereo.layers.guided_attention import GuidedAttention, SemanticBottleneck
from mereo.layers.inverted_bottleneck import InvertedBottleneck
from mereo.layers.layer_scale import LayerScale
from mereo.layers.norms import ChannelNorm, SimpleRMSNorm
from mereo.layers.positions import distance_bias, resize_positions
from mereo.layers.res2_block import Res2SEBlock
from mereo.layers.residual import Residual
from mereo.layers.self_attention import SelfAttention
from mereo.layers.staircase_cache import StaircaseCache
from mereo.layers.stochastic_depth import StochasticDepth, linear_rates
from mereo.layers.transformer_block import TransformerBlock

__all__ = [
    "BasicBlock",
    "ChannelNorm",
    "ConvNorm",
    "DecoderBlock",
    "FeedForward",
    "GuidedAttention",
    "InvertedBottleneck",
    "LayerScale",
    "RelativePositionNetwork",
    "RelativePositions",
    "Res2SEBlock",
    "Residual",
    "SelfAttention",
    "SemanticBottleneck",
    "SimpleGLU",
    "SimpleRMSNorm",
    "StaircaseCache",
    "StochasticDepth",
    "TransformerBlock",
    "distance_bias",
    "linear_rates",
    "resize_positions",
    "resize_relative_table",
]
