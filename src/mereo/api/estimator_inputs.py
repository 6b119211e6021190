"""X and y of an estimator as arrays, with the messages that scikit-learn's checks of estimators expect."""

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mereo.api.images import COLOURS, is_picture, picture_arrays
from mereo.api.sklearn_base import of_sklearn
from mereo.errors import UsageError, type_of

Array = np.ndarray[Any, Any]


def image_array(X: Any) -> Array:
    """Images as one array of numbers, samples first and channels last; UsageError for what is none."""
    if hasattr(X, "toarray"):
        raise UsageError("X is sparse data, which has no images; give X.toarray().")
    if isinstance(X, Tensor):
        if X.dim() != 4 or X.shape[1] not in COLOURS:
            raise UsageError(f"X is a tensor {tuple(X.shape)}; it must be (n, channels, height, width).")
        moved = X.detach().cpu().movedim(1, -1)
        return (moved.float() if moved.dtype is torch.bfloat16 else moved).numpy()
    if isinstance(X, Mapping | str):
        raise UsageError(f"X is {type_of(X)}; give images as an array, a tensor or a list of PIL images.")
    if is_picture(X):
        raise UsageError("X is one image; give a list of images, such as [image].")
    try:
        values = np.stack(picture_arrays(X)) if isinstance(X, list | tuple) and X else np.asarray(X)
    except ValueError as error:
        raise UsageError("X has images of several sizes; give images of one size.") from error
    if values.dtype.kind == "c":
        raise UsageError(f"Complex data not supported: X is of {values.dtype}.")
    if values.dtype.kind not in "fiub":
        try:
            values = values.astype(np.float64)
        except (TypeError, ValueError) as error:
            raise UsageError(f"X is of {values.dtype}, argument must be numbers: give images as arrays.") from error
    if values.ndim == 2 and values.shape[1] == 0:
        raise UsageError(f"X has 0 feature(s) (shape={values.shape}) while a minimum of 1 is required.")
    if values.ndim and not len(values):
        raise UsageError(f"X has 0 sample(s) (shape={values.shape}) while a minimum of 1 is required.")
    return values


def classes_of(y: Any) -> tuple[Array, list[int]]:
    """The classes, sorted, and the number of each label among them."""
    if y is None:
        raise UsageError("y is None; requires y to be passed, but the target y is None: give a label for each image.")
    labels = np.asarray(y.detach().cpu() if isinstance(y, Tensor) else y)
    if labels.ndim == 2 and labels.shape[1] == 1:
        kind = of_sklearn("DataConversionWarning", UserWarning)
        text = f"A column-vector y was passed when a 1d array was expected; y is {labels.shape}, give y.ravel()."
        warnings.warn(text, kind, stacklevel=3)
        labels = labels[:, 0]
    if labels.ndim == 0:
        raise UsageError(f"y is {type_of(y)}; it must be a list or an array (n,), one label for each image.")
    if labels.ndim != 1:
        raise UsageError(f"y is {labels.shape}; it must be (n,), one label for each image.")
    if labels.dtype.kind == "f":
        if not np.isfinite(labels).all():
            raise UsageError("y has values that are NaN or infinity; replace them.")
        if (labels != np.rint(labels)).any():
            raise UsageError("Unknown label type: y has fractions; give classes, or whole numbers for them.")
    try:
        classes, numbers = np.unique(labels, return_inverse=True)
    except TypeError as error:
        raise UsageError("y has labels of several types, which cannot be sorted; give labels of one type.") from error
    return classes, numbers.tolist()
