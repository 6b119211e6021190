"""Classifiers of scikit-learn on frozen features."""

import warnings
from collections.abc import Callable
from typing import Any

import torch
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor


def fitted(classifier: Any, features: Tensor, labels: Tensor) -> Callable[[Tensor], Tensor]:
    """Fit a classifier of scikit-learn; the result maps features to classes.

    Shapes: features (samples, features), labels int64 (samples,); (n, features) -> int64 (n,).
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # the iterations are a setting of the experiment
        classifier.fit(features.cpu().numpy(), labels.cpu().numpy())
    return lambda rows: torch.from_numpy(classifier.predict(rows.cpu().numpy())).to(rows.device)
