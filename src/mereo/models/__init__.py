"""One file a published network, with its presets."""

from mereo.models.base import CapsuleClassifier
from mereo.models.capsnet import CapsNet
from mereo.models.efficient_capsnet import EfficientCapsNet
from mereo.models.mspcaps import MSPCaps
from mereo.models.registry import MODELS, ModelEntry, create_model, get_model_entry, is_model, list_models
from mereo.models.weights import load, save_weights

__all__ = [
    "MODELS",
    "CapsNet",
    "CapsuleClassifier",
    "EfficientCapsNet",
    "MSPCaps",
    "ModelEntry",
    "create_model",
    "get_model_entry",
    "is_model",
    "list_models",
    "load",
    "save_weights",
]
