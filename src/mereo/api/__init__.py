"""The commands as functions: train, predict, embed, search, evaluate, explain and compare.

The command line parses words and calls these functions; `estimator` is a classifier for scikit-learn on top of them.
What a name needs is imported when the name is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mereo.api.comparison import Comparison, compare
    from mereo.api.evaluation import Evaluation, evaluate
    from mereo.api.explanation import Explanations, explain
    from mereo.api.features import Embedded, Search, embed, search
    from mereo.api.prediction import Predictions, predict
    from mereo.api.training import Training, train

_HOMES = {
    "Embedded": "features", "embed": "features", "Search": "features", "search": "features",
    "Comparison": "comparison", "compare": "comparison", "Evaluation": "evaluation", "evaluate": "evaluation",
    "Explanations": "explanation", "explain": "explanation", "Predictions": "prediction", "predict": "prediction",
    "Training": "training", "train": "training",
}  # fmt: skip

__all__ = [
    "Comparison",
    "Embedded",
    "Evaluation",
    "Explanations",
    "Predictions",
    "Search",
    "Training",
    "compare",
    "embed",
    "evaluate",
    "explain",
    "predict",
    "search",
    "train",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'mereo.api' has no attribute {name!r}")
    return getattr(import_module(f"mereo.api.{_HOMES[name]}"), name)
