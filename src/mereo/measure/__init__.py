"""Measures trained networks: accuracy, calibration, corruptions, adversarial attacks, equivariance of capsules."""

from mereo.measure.attacks.attack import ATTACKS, attack
from mereo.measure.attacks.masking import MaskingCheck, look_for_masking
from mereo.measure.classification import classification_metrics
from mereo.measure.corruptions import CORRUPTIONS, Corruption, corrupt
from mereo.measure.couplings import CouplingEffect, coupling_effect, replace_couplings
from mereo.measure.curves import Point, attack_curve, corruption_curve
from mereo.measure.equivariance import PoseChange, compare_poses, equivariance
from mereo.measure.evaluation import evaluate_models
from mereo.measure.evaluation_plan import Plan
from mereo.measure.trained_models import TrainedModel, load_trained_models

__all__ = [
    "ATTACKS",
    "CORRUPTIONS",
    "Corruption",
    "CouplingEffect",
    "MaskingCheck",
    "Plan",
    "Point",
    "PoseChange",
    "TrainedModel",
    "attack",
    "attack_curve",
    "classification_metrics",
    "compare_poses",
    "corrupt",
    "corruption_curve",
    "coupling_effect",
    "equivariance",
    "evaluate_models",
    "load_trained_models",
    "look_for_masking",
    "replace_couplings",
]
