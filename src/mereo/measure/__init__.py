"""Judging a trained network: calibration, corruption, adversarial attacks, equivariance of its capsules."""

from mereo.measure.attacks.attack import ATTACKS, attack
from mereo.measure.attacks.masking import Finding, look_for_masking
from mereo.measure.classification import judge
from mereo.measure.corruptions import CORRUPTIONS, Corruption, corrupt
from mereo.measure.curves import Point, attack_curve, corruption_curve
from mereo.measure.equivariance import Moved, compare_poses, equivariance
from mereo.measure.evaluation import evaluate_subjects
from mereo.measure.plan import Plan
from mereo.measure.trained_models import Subject, load_subjects

__all__ = [
    "ATTACKS",
    "CORRUPTIONS",
    "Corruption",
    "Finding",
    "Moved",
    "Plan",
    "Point",
    "Subject",
    "attack",
    "attack_curve",
    "compare_poses",
    "corrupt",
    "corruption_curve",
    "equivariance",
    "evaluate_subjects",
    "judge",
    "load_subjects",
    "look_for_masking",
]
