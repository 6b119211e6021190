"""Capsule networks, one file each with its presets."""

from mereo.models.capsule.aa_capsnet import AACapsNet, AAVotesCapsNet
from mereo.models.capsule.ar_capsnet import ARCapsNet
from mereo.models.capsule.capsnet import CapsNet
from mereo.models.capsule.da_capsnet import DACapsNet
from mereo.models.capsule.deepcaps import DeepCaps
from mereo.models.capsule.efficient_capsnet import EfficientCapsNet
from mereo.models.capsule.inverted_dot_product_capsnet import InvertedDotProductCapsNet
from mereo.models.capsule.matrix_capsnet import MatrixCapsNet
from mereo.models.capsule.ms_capsnet import MSCapsNet
from mereo.models.capsule.mspcaps import MSPCaps
from mereo.models.capsule.mspcaps_head import LinearHead, MSPCapsHead
from mereo.models.capsule.orthcaps import OrthCaps
from mereo.models.capsule.parsecaps import ParseCaps
from mereo.models.capsule.rs_capsnet import RSCapsNet
from mereo.models.capsule.self_routing_capsnet import PooledNet, SelfRoutingCapsNet
from mereo.models.capsule.sparse_capsnet import SparseCapsNet
from mereo.models.capsule.variational_capsnet import VariationalCapsNet

__all__ = [
    "AACapsNet",
    "AAVotesCapsNet",
    "ARCapsNet",
    "CapsNet",
    "DACapsNet",
    "DeepCaps",
    "EfficientCapsNet",
    "InvertedDotProductCapsNet",
    "LinearHead",
    "MSCapsNet",
    "MSPCaps",
    "MSPCapsHead",
    "MatrixCapsNet",
    "OrthCaps",
    "ParseCaps",
    "PooledNet",
    "RSCapsNet",
    "SelfRoutingCapsNet",
    "SparseCapsNet",
    "VariationalCapsNet",
]
