"""Layers made of votes, couplings and poses."""

from mereo.capsules.decoder import FullyConnectedDecoder, UpsamplingDecoder, mask_poses
from mereo.capsules.patchify import PatchifyCapsules
from mereo.capsules.primary import DepthwisePrimaryCapsules, PaddedConv2d, PrimaryCapsules

__all__ = [
    "DepthwisePrimaryCapsules",
    "FullyConnectedDecoder",
    "PaddedConv2d",
    "PatchifyCapsules",
    "PrimaryCapsules",
    "UpsamplingDecoder",
    "mask_poses",
]
