"""Networks, one file each with its presets: `capsule/` networks, `vision/` backbones, and `sequence/` models."""

import mereo.models.sequence
import mereo.models.vision  # noqa: F401
from mereo.core.calls import check_calls
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
from mereo.models.factory import create_model, list_models
from mereo.models.feature_maps import FeatureInfo, FeatureMaps
from mereo.models.plain import PlainNetwork
from mereo.models.registry import MODELS, ModelEntry, get_model_entry, is_model, register_model
from mereo.models.sequence_model import SequenceModel, SequenceState
from mereo.models.sequence_registry import SEQUENCE_MODELS, SequenceEntry, get_sequence_entry, is_sequence_model
from mereo.models.weights import load, save_weights

__all__ = [
    "MODELS",
    "SEQUENCE_MODELS",
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
    "OrthCaps",
    "ParseCaps",
    "PlainNetwork",
    "PooledNet",
    "RSCapsNet",
    "SelfRoutingCapsNet",
    "SequenceEntry",
    "SequenceModel",
    "SequenceState",
    "SparseCapsNet",
    "VariationalCapsNet",
    "VisionModel",
    "convert",
    "create_model",
    "diffusion_transformer",
    "get_model_entry",
    "get_sequence_entry",
    "is_model",
    "is_sequence_model",
    "list_models",
    "load",
    "register_model",
    "save_weights",
]

check_calls(globals(), __all__)
