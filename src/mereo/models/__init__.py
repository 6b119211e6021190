"""Networks, one file each with its presets: `capsule/` networks, `vision/` backbones, and `sequence/` models."""

import mereo.models.sequence
import mereo.models.vision  # noqa: F401
from mereo.models.base import Features, VisionModel
from mereo.models.capsule import (
    AACapsNet,
    AAVotesCapsNet,
    ARCapsNet,
    CapsNet,
    DACapsNet,
    DeepCaps,
    EfficientCapsNet,
    InvertedDotProductCapsNet,
    LinearHead,
    MSCapsNet,
    MSPCaps,
    MSPCapsHead,
    OrthCaps,
    ParseCaps,
    PooledNet,
    RSCapsNet,
    SelfRoutingCapsNet,
    SparseCapsNet,
    VariationalCapsNet,
)
from mereo.models.capsule_classifier import CapsuleClassifier
from mereo.models.conversion import convert
from mereo.models.diffusion_transformer import DiffusionTransformer, diffusion_transformer
from mereo.models.ensemble import Ensemble
from mereo.models.entry import ModelEntry
from mereo.models.factory import create_model, list_models
from mereo.models.feature_maps import FeatureInfo, FeatureMaps
from mereo.models.network import INPUT_KINDS, OUTPUT_KINDS, Network
from mereo.models.plain import PlainNetwork
from mereo.models.registry import MODELS, get_model_entry, is_model, register_model
from mereo.models.sequence_model import SequenceModel, SequenceState
from mereo.models.weights import load, save_weights

__all__ = [
    "INPUT_KINDS",
    "MODELS",
    "OUTPUT_KINDS",
    "AACapsNet",
    "AAVotesCapsNet",
    "ARCapsNet",
    "CapsNet",
    "CapsuleClassifier",
    "DACapsNet",
    "DeepCaps",
    "DiffusionTransformer",
    "EfficientCapsNet",
    "Ensemble",
    "FeatureInfo",
    "FeatureMaps",
    "Features",
    "InvertedDotProductCapsNet",
    "LinearHead",
    "MSCapsNet",
    "MSPCaps",
    "MSPCapsHead",
    "ModelEntry",
    "Network",
    "OrthCaps",
    "ParseCaps",
    "PlainNetwork",
    "PooledNet",
    "RSCapsNet",
    "SelfRoutingCapsNet",
    "SequenceModel",
    "SequenceState",
    "SparseCapsNet",
    "VariationalCapsNet",
    "VisionModel",
    "convert",
    "create_model",
    "diffusion_transformer",
    "get_model_entry",
    "is_model",
    "list_models",
    "load",
    "register_model",
    "save_weights",
]
