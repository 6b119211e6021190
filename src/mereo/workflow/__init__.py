"""The commands as functions: train, predict, evaluate and explain, and a classifier for scikit-learn."""

from mereo.workflow.evaluation import Evaluation, evaluate
from mereo.workflow.explanation import Explanations, explain
from mereo.workflow.prediction import Predictions, predict
from mereo.workflow.training import Training, train

__all__ = [
    "Evaluation",
    "Explanations",
    "Predictions",
    "Training",
    "evaluate",
    "explain",
    "predict",
    "train",
]
