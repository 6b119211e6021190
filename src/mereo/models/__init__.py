"""One file a published network, with its presets."""

from mereo.models.base import Features, VisionModel
from mereo.models.capsnet import CapsNet
from mereo.models.capsule_classifier import CapsuleClassifier
from mereo.models.efficient_capsnet import EfficientCapsNet
from mereo.models.factory import create_model, list_models
from mereo.models.feature_maps import FeatureInfo, FeatureMaps
from mereo.models.mspcaps import MSPCaps
from mereo.models.registry import MODELS, ModelEntry, get_model_entry, is_model, register_model
from mereo.models.weights import load, save_weights

__all__ = [
    "MODELS",
    "CapsNet",
    "CapsuleClassifier",
    "EfficientCapsNet",
    "FeatureInfo",
    "FeatureMaps",
    "Features",
    "MSPCaps",
    "ModelEntry",
    "VisionModel",
    "create_model",
    "get_model_entry",
    "is_model",
    "list_models",
    "load",
    "register_model",
    "save_weights",
]
