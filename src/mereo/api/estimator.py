"""`mereo.ImageClassifier`: a network as a classifier of scikit-learn, which need not be installed."""

import csv
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
import torch
from torch import Tensor

from mereo.api.arrays import NAME, array_dataset, image_set
from mereo.api.estimator_inputs import Array, classes_of, image_array
from mereo.api.images import COLOURS, stack_of
from mereo.api.sklearn_base import Estimator, not_fitted
from mereo.errors import UsageError
from mereo.inference.answers import collect_answers
from mereo.inference.calibration import confidences, ways_of
from mereo.inference.temperature import calibration_of, probabilities
from mereo.training.arguments import fit_all
from mereo.training.config import TrainConfig
from mereo.training.plan import make_plan
from mereo.training.report import Report
from mereo.training.trainer import train

_BYTES, _UNIT = (0.0, 255.0), (0.0, 1.0)


class ImageClassifier(Estimator):
    """A network that is fitted to images and labels in memory, with the interface of scikit-learn.

    It works in `cross_val_score`, `GridSearchCV` and pipelines. Options that are None are those of `mereo train`.

    Args:
        model: name of the network.
        epochs, batch_size, lr, weight_decay, optimizer, augment, img_size, model_args, weights, patience: options of
            `mereo train`.
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

    Shapes: X (n, height, width), (n, height, width, channels), flat (n, values), a tensor (n, channels, height, width),
        or a list of PIL images; y (n,), labels of any type.

    classifier = mereo.ImageClassifier(epochs=10)
    classifier.fit(X, y).predict(X)
    sklearn.model_selection.cross_val_score(classifier, X, y)
    """

    def __init__(
        self,
        model: str = "mspcaps_tiny",
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

    # --- fitting ----------------------------------------------------------------------------------------------------

    def fit(self, X: Any, y: Any) -> "ImageClassifier":
        """Train a new network on images and labels.

        Raises:
            UsageError: for images or labels of another form, fewer than two classes, and wrong options.
        """
        self._check_settings()
        array = image_array(X)
        values = self._images(array)
        classes, numbers = classes_of(y)
        if len(values) != len(numbers):
            raise UsageError(f"X has {len(values)} images and y {len(numbers)} labels; give one label for each image.")
        self.n_features_in_ = int(np.prod(array.shape[1:]))
        self._flat = array.ndim == 2
        self._one = tuple(values.shape[1:])
        self.value_range_ = self._chosen_range(values)
        seed = self._seed()
        config = self._config(seed)
        config.check()
        images = torch.from_numpy(np.ascontiguousarray(self._pixels(values).transpose(0, 3, 1, 2)))
        info = array_dataset((images, numbers), self.validation_fraction, seed)
        with tempfile.TemporaryDirectory(prefix="mereo-fit-") as folder:
            plan = make_plan(config.replace(output=folder), info)
            result = train(plan, Report(silent=not self.verbose), pictures=False)
            rows = _history(result.folder.history)
        self.classes_, self.model_, self.history_ = classes, result.model, rows
        self.model_.class_names = tuple(str(each) for each in classes)
        return self

    def _config(self, seed: int) -> TrainConfig:
        """The configuration of the training; what is None stays as in `mereo train`."""
        own = (
            "model", "epochs", "batch_size", "lr", "weight_decay", "optimizer", "augment", "img_size", "model_args",
            "weights", "patience", "device",
        )  # fmt: skip
        given = {name: getattr(self, name) for name in own if getattr(self, name) is not None}
        fixed = dict.fromkeys(
            ("data", "output", "name", "resume", "dry_run", "find_lr", "seed", "limit", *own, "validation_fraction"),
            "it is an argument of ImageClassifier, or does not apply to images in memory",
        )
        hints = get_type_hints(TrainConfig)
        options = fit_all(hints, "ImageClassifier", given, {})
        options |= fit_all(hints, "ImageClassifier", {"tensorboard": False, **(self.options or {})}, fixed)
        return TrainConfig().replace(**options, data=NAME, seed=seed, validation_fraction=0.0)

    def _check_settings(self) -> None:
        """UsageError for arguments of the constructor of a wrong kind; scikit-learn wants none before `fit`."""
        wanted: dict[str, tuple[bool, str]] = {
            "validation_fraction": (
                isinstance(self.validation_fraction, int | float) and 0 <= self.validation_fraction < 1,
                "a number from 0 to below 1",
            ),
            "value_range": (_are_numbers(self.value_range, float, (2,)), "two numbers, black and white, or None"),
            "image_shape": (
                _are_numbers(self.image_shape, int, (2, 3)),
                "(height, width), (height, width, channels) or None",
            ),
            "options": (self.options is None or isinstance(self.options, Mapping), "a dict of options, or None"),
        }
        for name, (fits, kind) in wanted.items():
            if not fits:
                raise UsageError(f"{name} is {getattr(self, name)!r}; it must be {kind}.")

    def _seed(self) -> int:
        state = self.random_state
        if state is None:
            return 0
        if hasattr(state, "randint"):
            return int(state.randint(2**31 - 1))
        if not isinstance(state, int | np.integer) or isinstance(state, bool):
            raise UsageError(f"random_state is {state!r}; it must be a whole number, a RandomState or None.")
        return int(state)

    # --- images -----------------------------------------------------------------------------------------------------

    def _images(self, array: Array) -> Array:
        """Images as (n, height, width, channels), values as they are."""
        values = array
        if values.ndim == 2:
            values = values.reshape(len(values), *self._shape_of_rows(values.shape[1]))
        elif values.ndim == 4 and values.shape[-1] not in COLOURS and values.shape[1] in COLOURS:
            raise UsageError(f"X is {values.shape}, channels first; give (n, height, width, channels), or a tensor.")
        if values.ndim == 3:
            values = values[..., None]
        if values.ndim != 4 or values.shape[-1] not in COLOURS or 0 in values.shape[1:]:
            raise UsageError(
                f"X is {array.shape}; it must be (n, height, width), (n, height, width, channels) or flat rows (n,"
                " values). Reshape your data."
            )
        if values.dtype.kind == "f" and not np.isfinite(values).all():
            raise UsageError("X has values that are NaN or infinity; replace them.")
        return values

    def _shape_of_rows(self, count: int) -> tuple[int, ...]:
        """The shape of images that are given as flat rows."""
        side = round(count**0.5)
        shape = (side, side) if self.image_shape is None else tuple(self.image_shape)
        if int(np.prod(shape)) != count or len(shape) not in (2, 3):
            given = "image_shape is not given" if self.image_shape is None else f"image_shape is {self.image_shape}"
            raise UsageError(f"X has rows of {count} values, and {given}; give their (height, width[, channels]).")
        return shape

    def _chosen_range(self, values: Array) -> tuple[float, float]:
        if self.value_range is not None:
            low, high = (float(end) for end in self.value_range)
            if not low < high:
                raise UsageError(f"value_range is {self.value_range}; its first value must be below its second.")
            return low, high
        if values.dtype == np.uint8:
            return _BYTES
        low, high = float(values.min()), float(values.max())
        if values.dtype.kind == "f" and low >= 0 and high <= 1:
            return _UNIT
        return (low, high) if low < high else (low, low + 1)

    def _pixels(self, values: Array) -> Array:
        """Values as bytes: those of `value_range_` become 0 to 255, and values outside are clipped."""
        if values.dtype == np.uint8 and self.value_range_ == _BYTES:
            return values[..., :3]
        low, high = self.value_range_
        scaled = np.clip((values[..., :3].astype(np.float64) - low) / (high - low), 0, 1)
        return stack_of(scaled)

    # --- predicting -------------------------------------------------------------------------------------------------

    def _scores(self, X: Any) -> tuple[Tensor, str]:
        """Scores (n, classes) of the network, and their kind."""
        if not hasattr(self, "model_"):
            raise not_fitted(type(self).__name__)
        array = image_array(X)
        if not self._flat and array.shape in (self._one, self._one[:2]):
            raise UsageError(f"X is {array.shape}, one image; give several, (n, ...), such as X[None].")
        if self._flat and array.ndim == 2 and array.shape[1] != self.n_features_in_:
            name, wanted = type(self).__name__, self.n_features_in_
            raise UsageError(f"X has {array.shape[1]} features, but {name} is expecting {wanted} features as input.")
        images = torch.from_numpy(np.ascontiguousarray(self._pixels(self._images(array)).transpose(0, 3, 1, 2)))
        nothing = torch.zeros(len(images), dtype=torch.int64)
        names = [str(each) for each in self.classes_]
        answers = collect_answers(self.model_, image_set(images, nothing, names, self.model_))
        return answers.scores, answers.kind

    def predict(self, X: Any) -> Array:
        """The class of each image, (n,)."""
        scores, _ = self._scores(X)
        chosen: Array = self.classes_[scores.argmax(1).numpy()]
        return chosen

    def predict_proba(self, X: Any) -> Array:
        """A probability for each class, (n, classes).

        By the temperature that `fit` finds on the images that it holds out, as `mereo predict` does; without held-out
        images the softmax of logits, or the share of a capsule's length.
        """
        scores, kind = self._scores(X)
        fitted = calibration_of(self.model_)
        if fitted is None:
            shares = confidences(scores.double(), ways_of(kind)[0])
        else:
            shares = probabilities(scores, fitted.temperature)
        rows: Array = shares.numpy()
        return rows / rows.sum(1, keepdims=True)

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """The share of images that are predicted correctly, weighted where weights are given."""
        return float(np.average(self.predict(X) == np.asarray(y), weights=sample_weight))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()  # type: ignore[misc]
        tags.input_tags.three_d_array = True
        tags.non_deterministic = False
        return tags


def _are_numbers(value: Any, kind: type, counts: tuple[int, ...]) -> bool:
    """Whether a value is None or a sequence of so many numbers, which are whole for the kind int."""
    if value is None:
        return True
    known = (int, np.integer) if kind is int else (int, float, np.integer, np.floating)
    return isinstance(value, tuple | list) and len(value) in counts and all(isinstance(each, known) for each in value)


def _history(path: Path) -> list[dict[str, float]]:
    """The rows of results.csv."""
    with path.open() as file:
        return [{name: float(value) for name, value in row.items() if value} for row in csv.DictReader(file)]
