"""The former name of `mereo.measure`, with its former names, kept so that existing code still works."""

from mereo.measure import *  # noqa: F403
from mereo.measure import MaskingCheck as Finding
from mereo.measure import PoseChange as Moved
from mereo.measure import TrainedModel as Subject
from mereo.measure import classification_metrics as judge
from mereo.measure import evaluate_models as evaluate_subjects
from mereo.measure import load_trained_models as load_subjects

__all__ = ["Finding", "Moved", "Subject", "evaluate_subjects", "judge", "load_subjects"]
