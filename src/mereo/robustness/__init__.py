"""Judging a trained network: calibration, corruption, adversarial attacks, equivariance of its capsules."""

from mereo.robustness.attacks import ATTACKS, attack
from mereo.robustness.corruptions import CORRUPTIONS, Corruption, corrupt
from mereo.robustness.curves import Point, attack_curve, corruption_curve
from mereo.robustness.equivariance import Moved, compare_poses, equivariance
from mereo.robustness.evaluation import evaluate_subjects
from mereo.robustness.judgement import judge
from mereo.robustness.masking import Finding, look_for_masking
from mereo.robustness.plan import Plan
from mereo.robustness.subjects import Subject, load_subjects

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
