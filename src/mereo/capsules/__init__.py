"""Layers made of votes, couplings and poses."""

from mereo.capsules.convolutional import ConvCapsules
from mereo.capsules.decoder import FullyConnectedDecoder, UpsamplingDecoder, mask_poses
from mereo.capsules.matrix_primary import PrimaryMatrixCapsules
from mereo.capsules.patchify import PatchifyCapsules, patch_grids
from mereo.capsules.primary import DepthwisePrimaryCapsules, PaddedConv2d, PrimaryCapsules, primary_side
from mereo.capsules.residual import ResidualBlock

__all__ = [
    "ConvCapsules",
    "DepthwisePrimaryCapsules",
    "FullyConnectedDecoder",
    "PaddedConv2d",
    "PatchifyCapsules",
    "PrimaryCapsules",
    "PrimaryMatrixCapsules",
    "ResidualBlock",
    "UpsamplingDecoder",
    "mask_poses",
    "patch_grids",
    "primary_side",
]
