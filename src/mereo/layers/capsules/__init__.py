"""Layers made of votes, couplings and poses."""

from mereo.layers.capsules.convolutional import ConvCapsules
from mereo.layers.capsules.decoder import ClassIndependentDecoder, FullyConnectedDecoder, UpsamplingDecoder, mask_poses
from mereo.layers.capsules.dropout import CapsuleDropout
from mereo.layers.capsules.matrix_primary import PrimaryMatrixCapsules
from mereo.layers.capsules.multi_dim import MultiDimClassCaps
from mereo.layers.capsules.multi_scale import MultiScalePrimaryCapsules
from mereo.layers.capsules.patchify import PatchifyCapsules, patch_grids
from mereo.layers.capsules.primary import (
    DepthwisePrimaryCapsules,
    PaddedConv2d,
    PrimaryCapsules,
    flat_capsules,
    primary_grid,
)
from mereo.layers.capsules.residual import ResidualBlock

__all__ = [
    "CapsuleDropout",
    "ClassIndependentDecoder",
    "ConvCapsules",
    "DepthwisePrimaryCapsules",
    "FullyConnectedDecoder",
    "MultiDimClassCaps",
    "MultiScalePrimaryCapsules",
    "PaddedConv2d",
    "PatchifyCapsules",
    "PrimaryCapsules",
    "PrimaryMatrixCapsules",
    "ResidualBlock",
    "UpsamplingDecoder",
    "flat_capsules",
    "mask_poses",
    "patch_grids",
    "primary_grid",
]
