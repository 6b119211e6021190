"""`mereo.predict`: what images show."""

import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from mereo.cli.options import PredictOptions
from mereo.errors import UsageError, check_positive
from mereo.inference.predict import Prediction
from mereo.inference.predict import predict as predict_files
from mereo.inference.views import mean_over_views
from mereo.runtime.text import percent
from mereo.workflow.display import html_table, text_table
from mereo.workflow.images import as_files, thumbnail
from mereo.workflow.networks import trained_network
from mereo.workflow.options import options_of

if TYPE_CHECKING:
    from PIL.Image import Image

_OF_NETWORK = ("device", "tta", "five_crop")
"""Options that decide about the network, before images are read."""
SHOWN = 24
"""Rows of a table in a notebook."""
_ELSEWHERE = {
    "images": "it is the second argument",
    "weights": "it is the first argument, model",
    "json": "call to_dicts() on the result",
} | dict.fromkeys(("prompt", "length", "temperature", "seed"), "call `generate` of the model that mereo.load returns")


class Predictions(Sequence[Prediction]):
    """Predictions in the order of the images: a sequence, a table when printed, with the images in a notebook.

    Args:
        items: the predictions.
        source: where the weights are from.
        pictures: the images that were given in memory, by the name in their prediction.
    """

    def __init__(
        self, items: Sequence[Prediction], source: Path, pictures: "Mapping[Path, Image] | None" = None
    ) -> None:
        self._items, self.source, self._pictures = tuple(items), source, dict(pictures or {})

    def __len__(self) -> int:
        return len(self._items)

    @overload
    def __getitem__(self, index: int) -> Prediction: ...
    @overload
    def __getitem__(self, index: slice) -> "Predictions": ...
    def __getitem__(self, index: int | slice) -> "Prediction | Predictions":
        chosen = self._items[index]
        return Predictions(chosen, self.source, self._pictures) if isinstance(chosen, tuple) else chosen

    def __iter__(self) -> Iterator[Prediction]:
        return iter(self._items)

    @property
    def classes(self) -> list[str]:
        """The predicted class of each image."""
        return [item.classes[0] for item in self]

    @property
    def scores(self) -> list[float]:
        """The score of the predicted class of each image."""
        return [item.scores[0] for item in self]

    @property
    def probabilities(self) -> list[float] | None:
        """The probability of the predicted class of each image; None for weights without calibration."""
        shares = [item.values.get("probabilities") for item in self]
        return None if None in shares else [next(iter(each.values())) for each in shares if each is not None]

    def to_dicts(self) -> list[dict[str, Any]]:
        """Plain values, as for a table or for JSON."""
        return [item.to_dict() for item in self]

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Columns and rows: image, class and probability, or score where there is none, and the next ones."""
        rows, calibrated = [], any(item.probabilities is not None for item in self)
        for item in self:
            if "scores" not in item.values:  # not a classifier
                rows.append([str(item.path), ", ".join(f"{name} {value}" for name, value in item.values.items()), ""])
                continue
            values = item.probabilities or item.scores
            shown = (percent(value, 1) if calibrated else f"{value:.3f}" for value in values)
            best, *others = (f"{name} {value}" for name, value in zip(item.classes, shown, strict=True))
            rows.append([str(item.path), best, ", ".join(others)])
        return ["image", f"class and {'probability' if calibrated else 'score'}", "next"], rows

    def __str__(self) -> str:
        return text_table(*self.table())

    __repr__ = __str__

    def _repr_html_(self) -> str:
        columns, rows = self[:SHOWN].table()
        pictures = [thumbnail(self._pictures.get(item.path, item.path)) for item in self[:SHOWN]]
        more = f"<p>and {len(self) - SHOWN:,} more</p>" if len(self) > SHOWN else ""
        return html_table(columns, rows, pictures) + more


def predict(model: Any, images: Any, **options: Any) -> Predictions:
    """Predict what images show, as `mereo predict` does.

    Args:
        model: a run folder, a weight file or the name of bundled weights; a network; what `mereo.train` returned; None
            for the newest run.
        images: paths, folders or patterns; PIL images; arrays (height, width, channels) or a batch of them, uint8 or in
            [0, 1]; tensors (channels, height, width) or a batch of them; or a list of any of these.
        options: those of the command: top, batch_size, device, strict, tta, five_crop.

    predictions = mereo.predict("runs/mspcaps_tiny-photos", "holiday/*.jpg")
    predictions.classes         # ["beach", ...]
    predictions[0].scores       # of the three best classes, highest first
    """
    parsed = options_of(PredictOptions, "mereo.predict", options, _ELSEWHERE)
    check_positive(top=parsed.top, batch_size=parsed.batch_size)
    known = inspect.signature(predict_files).parameters
    passed = {name: getattr(parsed, name) for name in options if name not in _OF_NETWORK}
    for name in passed:
        if name not in known:
            raise UsageError(f"{name} is an option of the command only; leave it out.")
    network, source = trained_network(model, parsed.device)
    network = mean_over_views(network, tta=parsed.tta, five_crop=parsed.five_crop)
    with as_files(images) as (paths, held):
        items = list(predict_files(network, paths, **passed))
    names = {path: Path(path.stem) for path in held}
    items = [replace(item, path=names.get(item.path, item.path)) for item in items]
    return Predictions(items, source, {names[path]: picture for path, picture in held.items()})
