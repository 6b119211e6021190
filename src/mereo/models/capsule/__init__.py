"""Capsule networks, one file each with its presets."""

from mereo.models.capsule.capsnet import CapsNet
from mereo.models.capsule.efficient_capsnet import EfficientCapsNet
from mereo.models.capsule.matrix_capsnet import MatrixCapsNet
from mereo.models.capsule.mspcaps import MSPCaps
from mereo.models.capsule.mspcaps_head import LinearHead, MSPCapsHead

__all__ = ["CapsNet", "EfficientCapsNet", "LinearHead", "MSPCaps", "MSPCapsHead", "MatrixCapsNet"]
