"""`mereo.ImageClassifier`: a network as a classifier of scikit-learn."""

import csv
import tempfile
from collections.abc import Mapping, Sequence
from numbers import Real
from pathlib import Path
from typing import Any, ClassVar, get_type_hints

import numpy as np
import torch
from torch import Tensor

from mereo.api.arrays import NAME, array_dataset, image_set
from mereo.api.images import COLOURS, is_picture, picture_arrays
from mereo.errors import UsageError
from mereo.inference.answers import Answers, collect_answers
from mereo.inference.calibration import confidences, ways_of
from mereo.inference.temperature import calibration_of, probabilities
from mereo.runtime.libraries import require
from mereo.training.arguments import fit_all
from mereo.training.automatic import choose
from mereo.training.config import TrainConfig
from mereo.training.report import Report
from mereo.training.trainer import train

require("ImageClassifier", ("sklearn",), "sklearn")
from sklearn.base import BaseEstimator, ClassifierMixin, TransformerMixin  # noqa: E402
from sklearn.utils._param_validation import Interval  # noqa: E402
from sklearn.utils.multiclass import check_classification_targets  # noqa: E402
from sklearn.utils.validation import check_is_fitted, validate_data  # noqa: E402

Array = np.ndarray[Any, Any]
_BYTES, _UNIT = (0.0, 255.0), (0.0, 1.0)
_OWN = (
    "model", "epochs", "batch_size", "lr", "weight_decay", "optimizer", "augment", "img_size", "model_args", "weights",
    "patience", "device",
)  # fmt: skip
"""Arguments that are options of `mereo train` of the same name."""


class ImageClassifier(ClassifierMixin, TransformerMixin, BaseEstimator):
    """A network that is fitted to images and labels in memory, with the interface of scikit-learn.

    It works in `cross_val_score`, `GridSearchCV` and pipelines, and `transform` gives features for another estimator.
    Options that are None are chosen as in `mereo train`, by the same function, except for the number of epochs: one
    that follows from the time of a step would differ between fits, so it is 20 unless `epochs` or
    options={"minutes": 1} are given. scikit-learn reports errors of X, y and parameters.

    Args:
        model, epochs, batch_size, lr, weight_decay, optimizer, augment, img_size, model_args, weights, patience:
            options of `mereo train`.
        validation_fraction: of the images, held out in `fit` to choose the best epoch; 0 takes the last epoch.
        image_shape: (height, width) or (height, width, channels) of images that are given as flat rows; rows of a
            square number of values are square grey images by default.
        value_range: the values that mean black and white; by default 0 to 255 for uint8, 0 to 1 for floating point in
            that range, and otherwise the least and the greatest value that `fit` is given.
        random_state: seed, or a RandomState to draw it from; None means 0.
        device: to train and predict on.
        options: any other options of `mereo train` by name.
        verbose: print the progress.

    Attributes:
        classes_: the labels, sorted.
        model_: the trained network.
        history_: a row of figures for each epoch.
        n_features_in_: values of an image.
        value_range_: the values that mean black and white.

    Shapes: X (n, height, width), (n, height, width, channels), flat (n, values), a tensor (n, channels, height, width),
        or a list of PIL images; y (n,), labels of any type.

    classifier = mereo.ImageClassifier(epochs=10)
    classifier.fit(X, y).predict(X)
    sklearn.model_selection.cross_val_score(classifier, X, y)
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "validation_fraction": [Interval(Real, 0, 1, closed="left")],
        "value_range": ["array-like", None],
        "image_shape": ["array-like", None],
        "options": [Mapping, None],
        "random_state": ["random_state"],
    }

    def __init__(
        self,
        model: str | None = None,
        *,
        epochs: int | None = None,
        batch_size: int | None = None,
        lr: float | None = None,
        weight_decay: float | None = None,
        optimizer: str | None = None,
        augment: Sequence[str] | str | None = None,
        img_size: int | tuple[int, int] | None = None,
        model_args: Mapping[str, Any] | None = None,
        weights: str | None = None,
        patience: int | None = None,
        validation_fraction: float = 0.1,
        image_shape: tuple[int, ...] | None = None,
        value_range: tuple[float, float] | None = None,
        random_state: Any = None,
        device: str = "auto",
        options: Mapping[str, Any] | None = None,
        verbose: bool = False,
    ) -> None:
        self.model = model
        self.epochs = epochs
        self.batch_size = batch_size
        self.lr = lr
        self.weight_decay = weight_decay
        self.optimizer = optimizer
        self.augment = augment
        self.img_size = img_size
        self.model_args = model_args
        self.weights = weights
        self.patience = patience
        self.validation_fraction = validation_fraction
        self.image_shape = image_shape
        self.value_range = value_range
        self.random_state = random_state
        self.device = device
        self.options = options
        self.verbose = verbose

    def fit(self, X: Any, y: Any) -> "ImageClassifier":
        """Train a new network on images and labels."""
        self._validate_params()
        rows, shape = _rows(X)
        self._shape = self.image_shape if shape is None else shape
        rows, y = validate_data(self, rows, y.detach().cpu().numpy() if isinstance(y, Tensor) else y)
        check_classification_targets(y)
        self.classes_, numbers = np.unique(y, return_inverse=True)
        self.value_range_ = self._chosen_range(rows)
        given = self._given(self.random_state or 0)
        info = array_dataset((self._pixels(rows), numbers.tolist()), self.validation_fraction, given["seed"])
        with tempfile.TemporaryDirectory(prefix="mereo-fit-") as folder:
            report = Report(silent=not self.verbose)
            chosen = choose(TrainConfig().replace(**given, output=folder), given, info)
            for line in chosen.lines():
                report.say(line)
            result = train(chosen.plan(), report, pictures=False)
            history = list(csv.DictReader(Path(result.folder.history).read_text().splitlines()))
        self.history_ = [{name: float(value) for name, value in row.items() if value} for row in history]
        self.model_ = result.model
        self.model_.class_names = tuple(str(each) for each in self.classes_)
        return self

    def _given(self, seed: Any) -> dict[str, Any]:
        """The options of the training that are given, with a seed or the RandomState to draw it from."""
        given = {name: getattr(self, name) for name in _OWN if getattr(self, name) is not None}
        fixed = dict.fromkeys(
            ("data", "output", "name", "resume", "dry_run", "seed", "limit", *_OWN, "validation_fraction"),
            "it is an argument of ImageClassifier, or does not apply to images in memory",
        )
        hints, others = get_type_hints(TrainConfig), {"tensorboard": False, **(self.options or {})}
        options = fit_all(hints, "ImageClassifier", given, {}) | fit_all(hints, "ImageClassifier", others, fixed)
        number = int(seed.randint(2**31 - 1) if hasattr(seed, "randint") else seed)
        length = {} if "minutes" in options else {"epochs": TrainConfig().epochs}
        return {**length, **options, "data": NAME, "seed": number, "validation_fraction": 0.0}

    def _chosen_range(self, values: Array) -> tuple[float, float]:
        if self.value_range is not None:
            low, high = (*map(float, self.value_range), 0.0, 0.0)[:2]
            if len(self.value_range) != 2 or not low < high:
                raise UsageError(f"value_range is {self.value_range}; give two numbers, black and white.")
            return low, high
        if values.dtype == np.uint8:
            return _BYTES
        low, high = float(values.min()), float(values.max())
        if values.dtype.kind == "f" and low >= 0 and high <= 1:
            return _UNIT
        return (low, high) if low < high else (low, low + 1)

    def _images(self, rows: Array) -> Array:
        """Flat rows as images, (n, height, width, channels)."""
        side = round(rows.shape[1] ** 0.5)
        shape = (side, side) if self._shape is None else tuple(self._shape)
        shape = shape if len(shape) == 3 else (*shape, 1)
        if len(shape) != 3 or shape[2] not in COLOURS or np.prod(shape) != rows.shape[1]:
            raise UsageError(
                f"X has images of {rows.shape[1]} values, as {shape}, and image_shape is {self.image_shape}; it must be"
                " (height, width) or (height, width, channels)."
            )
        return rows.reshape(-1, *shape)

    def _pixels(self, rows: Array) -> Tensor:
        """Flat rows as uint8 (n, channels, height, width), where `value_range_` becomes 0 to 255."""
        low, high = self.value_range_
        if rows.dtype != np.uint8 or (low, high) != _BYTES:
            rows = np.rint(np.clip((rows.astype(np.float64) - low) / (high - low), 0, 1) * 255).astype(np.uint8)
        return torch.from_numpy(np.ascontiguousarray(self._images(rows)[..., :3].transpose(0, 3, 1, 2)))

    def _answers(self, X: Any, *, features: bool = False) -> Answers:
        """The scores of the network for images, or its features."""
        check_is_fitted(self)
        images = self._pixels(validate_data(self, _rows(X)[0], reset=False))
        names = [str(each) for each in self.classes_]
        split = image_set(images, torch.zeros(len(images), dtype=torch.int64), names, self.model_)
        return collect_answers(self.model_, split, features=features)

    def predict(self, X: Any) -> Array:
        """The class of each image, (n,)."""
        places = self._answers(X).predicted.numpy()
        chosen: Array = self.classes_[places]
        return chosen

    def predict_proba(self, X: Any) -> Array:
        """A probability for each class, (n, classes).

        Computed with the temperature that `fit` finds on held-out images, as in `mereo predict`; without held-out
        images the softmax of logits, or the share of a capsule's length.
        """
        answers, fitted = self._answers(X), calibration_of(self.model_)
        if fitted is None:
            shares = confidences(answers.scores.double(), ways_of(answers.kind)[0])
        else:
            shares = probabilities(answers.scores, fitted.temperature)
        rows: Array = shares.numpy()
        return rows / rows.sum(1, keepdims=True)

    def transform(self, X: Any) -> Array:
        """The features that the last layer of the network reads, (n, features)."""
        rows: Array = self._answers(X, features=True).scores.numpy()
        return rows


def _rows(X: Any) -> tuple[Any, tuple[int, ...] | None]:
    """Images as flat rows, and the shape of one, channels last; other input as it is, and None."""
    if isinstance(X, Tensor) and X.dim() == 4:
        X = X.detach().cpu().movedim(1, -1)
        X = (X.float() if X.dtype is torch.bfloat16 else X).numpy()
    elif is_picture(X) or (isinstance(X, list | tuple) and any(is_picture(each) or np.ndim(each) > 1 for each in X)):
        X = np.asarray(X) if is_picture(X) else np.stack(picture_arrays(X))
    return (X.reshape(len(X), -1), X.shape[1:]) if isinstance(X, np.ndarray) and X.ndim > 2 else (X, None)
