"""The commands as functions: train, predict, evaluate, explain and compare.

The command line parses words and calls these functions; `estimator` is a classifier for scikit-learn on top of them.
"""

from mereo.api.comparison import Comparison, compare
from mereo.api.evaluation import Evaluation, evaluate
from mereo.api.explanation import Explanations, explain
from mereo.api.prediction import Predictions, predict
from mereo.api.training import Training, train

__all__ = [
    "Comparison",
    "Evaluation",
    "Explanations",
    "Predictions",
    "Training",
    "compare",
    "evaluate",
    "explain",
    "predict",
    "train",
]
