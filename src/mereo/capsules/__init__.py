"""Layers made of votes, couplings and poses."""

from mereo.capsules.convolutional import ConvCapsules
from mereo.capsules.decoder import ClassIndependentDecoder, FullyConnectedDecoder, UpsamplingDecoder, mask_poses
from mereo.capsules.dropout import CapsuleDropout
from mereo.capsules.matrix_primary import PrimaryMatrixCapsules
from mereo.capsules.multi_dim import MultiDimClassCaps
from mereo.capsules.multi_scale import MultiScalePrimaryCapsules
from mereo.capsules.patchify import PatchifyCapsules, patch_grids
from mereo.capsules.primary import (
    DepthwisePrimaryCapsules,
    PaddedConv2d,
    PrimaryCapsules,
    flat_capsules,
    primary_grid,
)
from mereo.capsules.residual import ResidualBlock
from mereo.core.calls import check_calls

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

check_calls(globals(), __all__)
