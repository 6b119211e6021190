"""`mereo.predict`: the classes of images, or other predictions for them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, overload

from PIL.Image import Image
from torch import Tensor

from mereo.api.display import html_table
from mereo.api.images import Files, as_files, thumbnail
from mereo.api.networks import Trained, trained_network
from mereo.data import Images
from mereo.data.regions import scenes_of
from mereo.data.sequence_files import sequences_of, to_predict
from mereo.errors import UsageError, check_positive
from mereo.files import check_name, check_outputs, reading, starts_with
from mereo.inference.answer_report import DOCUMENT, output_files, prediction_rows, write_answers
from mereo.inference.labelled import UNKNOWN, FolderAnswers, answer_folder, folder_labels
from mereo.inference.point_predictions import predict_sets, sets_of
from mereo.inference.predict import Prediction, class_names, describe_outputs, report_unreadable, task_of
from mereo.inference.predict import predict as predict_files
from mereo.inference.spreadsheet import write_table
from mereo.inference.views import mean_over_views
from mereo.inference.write_predictions import SAMPLES, check_table, is_csv, unique_names, write_predictions
from mereo.models import VisionModel
from mereo.runtime.progress import Reporter
from mereo.runtime.text import percent, text_table
from mereo.tasks import Task
from mereo.training.arguments import typed
from mereo.training.fingerprints import trained_on

SHOWN, MOST_NUMBERS = 24, 8
"""Rows of a table in a notebook, and entries of a list in a cell."""
NO_FOLDERS = (".png", ".jpg", ".jpeg", ".json", ".jsonl", ".tsv", ".txt", ".xlsx", ".html", ".pdf")
"""Suffixes of files: nobody wants a folder whose name ends in one."""


class Predictions(Sequence[Prediction]):
    """Predictions in the order of the images: a sequence, a table when printed, with the images in a notebook.

    Args:
        items: the predictions.
        source: where the weights are from.
        pictures: the images that were given in memory, by the name in their prediction.
        answers: of a classifier, with labels, copies of images and the files that could not be read.
        what: the name of the prediction in the table.

    Attributes:
        written: the files that `write` wrote.
    """

    def __init__(
        self,
        items: Sequence[Prediction],
        source: Path,
        pictures: Mapping[Path, Image] | None = None,
        answers: FolderAnswers | None = None,
        what: str = "image",
    ) -> None:
        self._items, self.source, self._pictures, self.answers = tuple(items), source, dict(pictures or {}), answers
        self.what = what
        self.written: list[Path] = []

    def __len__(self) -> int:
        return len(self._items)

    @overload
    def __getitem__(self, index: int) -> Prediction: ...
    @overload
    def __getitem__(self, index: slice) -> "Predictions": ...
    def __getitem__(self, index: int | slice) -> "Prediction | Predictions":
        chosen = self._items[index]
        return Predictions(chosen, self.source, self._pictures, what=self.what) if isinstance(chosen, tuple) else chosen

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

    @property
    def labelled(self) -> bool:
        """Whether any image has a label, so that there is an accuracy."""
        return self.answers is not None and bool((self.answers.labels >= 0).any())

    @property
    def accuracy(self) -> float | None:
        """The accuracy on labelled images; None without any."""
        if self.answers is None or not self.labelled:
            return None
        return float(self.answers.figures(self.answers.labels >= 0)["accuracy"])

    def write(self, out: str | Path) -> list[Path]:
        """Write the answers of a classifier: a folder with a table and a picture of the errors, or a table (.csv)."""
        if self.answers is None:
            raise UsageError(
                "there are no answers to write: the predictions are only a part, or not a classifier's; give out to"
                " mereo.predict."
            )
        if Path(out).suffix.lower() == ".csv":
            self.written = [write_table(Path(out), *prediction_rows(self.answers))]
        else:
            self.written = write_answers(self.answers, Path(out), str(self.source))
        return self.written

    def to_dicts(self) -> list[dict[str, Any]]:
        """Plain values, as for a table or for JSON."""
        return [item.to_dict() for item in self]

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Columns and rows: image, class and probability (or score, without a calibration), and the next classes.

        For a task other than classification: image and prediction.
        """
        if not all("scores" in item.values for item in self):  # not a classifier
            return [self.what, "prediction"], [[str(item.path), _short(item.values)] for item in self]
        rows, calibrated = [], any(item.probabilities is not None for item in self)
        for item in self:
            values = item.probabilities or item.scores
            shown = (percent(value, 1) if calibrated else f"{value:.3f}" for value in values)
            best, *others = (f"{name} {value}" for name, value in zip(item.classes, shown, strict=True))
            rows.append([str(item.path), best, ", ".join(others)])
        return [self.what, f"class and {'probability' if calibrated else 'score'}", "next"], rows

    def __str__(self) -> str:
        return text_table(*self.table())

    __repr__ = __str__

    def _repr_html_(self) -> str:
        columns, rows = self[:SHOWN].table()
        shown = self[:SHOWN] if self.what == "image" else ()
        pictures = [thumbnail(self._pictures.get(item.path, item.path)) for item in shown]
        more = f"<p>and {len(self) - SHOWN:,} more</p>" if len(self) > SHOWN else ""
        return html_table(columns, rows, pictures) + more


def _short(values: Mapping[str, Any]) -> str:
    """Plain values on one line, numbers with four digits."""
    nested = any(isinstance(value, dict | list) for value in values.values())
    return ("; " if nested else ", ").join(f"{name} {_in_words(value)}" for name, value in values.items())


def _in_words(value: Any) -> str:
    """A value in a cell; of many entries the largest, or the first. An object is its label, score and (box)."""
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, dict) and any(isinstance(entry, str) for entry in value.values()):
        return " ".join(
            f"({_in_words(each)})" if isinstance(each, list) else _in_words(each) for each in value.values()
        )
    if isinstance(value, dict):
        largest = sorted(value, key=lambda name: -value[name])[:MOST_NUMBERS]
        entries = [f"{name} {_in_words(entry)}" for name, entry in value.items() if name in largest]
    elif isinstance(value, list):
        entries = [_in_words(entry) for entry in value[:MOST_NUMBERS]]
    else:
        return str(value)
    return ", ".join([*entries, f"... {len(value)} in all"] if len(value) > MOST_NUMBERS else entries) or "none"


@typed(
    weights="it is the first argument, model",
    json="call to_dicts() on the result",
    **dict.fromkeys(("prompt", "length", "temperature", "seed"), "call `generate` of the network from mereo.load"),
)
def predict(
    model: Any,
    images: Any,
    *,
    top: int = 3,
    labels: Literal["auto", "folders", "none"] = "auto",
    out: str | Path | None = None,
    tta: bool = False,
    five_crop: bool = False,
    batch_size: int = 64,
    device: str = "auto",
    strict: bool = False,
    quiet: bool = True,
) -> Predictions:
    """Predict what images show, as `mereo predict` does.

    Args:
        model: a run folder, a weight file or the name of bundled weights; a network; what `mereo.train` returned; None
            for the newest run.
        images: paths, folders or patterns; PIL images; arrays (height, width, channels) or a batch of them, uint8 or in
            [0, 1]; tensors (channels, height, width) or a batch of them; or a list of any of these. For a network that
            reads points, their files (.csv, .json, .npz), arrays (n, 2) or (sets, n, 2), or a list of these; for one
            that reads regions, files (.npz, .npy) or arrays (scenes, regions, features); for one that reads sequences,
            files (.skeleton, .npy, .npz) or arrays (frames, joints, 3).
        top: classes of a prediction, the highest score first.
        labels: whether the names of folders are labels: if they are names of classes, always, or never.
        out: folder for tables, pictures and masks, or a file that ends in .csv for the table only, with masks in a
            folder of its name; nothing is written when None.
        tta: average the scores over the image and changes of it, as in training.
        five_crop: average the scores over five crops of the image.
        batch_size: images per forward pass.
        device: to run on; with "auto" a network in memory stays where it is.
        strict: whether an unreadable file is an error.
        quiet: print no progress.

    predictions = mereo.predict("runs/mspcaps_tiny-photos", "holiday/*.jpg")
    predictions.classes         # ["beach", ...]
    predictions[0].scores       # of the three best classes, highest first
    """
    check_positive(top=top, batch_size=batch_size)
    trained = trained_network(model, device, sets=True, images=images)
    if (reads := trained.model.input_kind) != "images":
        if unused := [name for name, given in {"tta": tta, "five_crop": five_crop}.items() if given]:
            raise UsageError(f"{unused[0]} is set, and {trained.source} reads {reads}; leave it out.")
        return _of_sets(trained, images, top, None if out is None else Path(out), batch_size)
    network = mean_over_views(trained.model, tta=tta, five_crop=five_crop)
    classifies, target = task_of(network).scores_classes, None if out is None else Path(out)
    for name, given in {"labels": labels == "folders", "tta": tta, "five_crop": five_crop}.items():
        if given and not classifies:
            raise UsageError(f"{name} is set, and {trained.source} is not a classifier of images; leave it out.")
    with as_files(images) as files, reading(*files.paths, trained.source):
        if target is not None and classifies:
            _check_out(target, [*files.paths, trained.source])
        answers: FolderAnswers | None = None
        written: list[Path] = []
        if classifies:
            known = _labels(network, labels, files)
            progress = Reporter(silent=quiet or len(files.paths) <= batch_size)
            answers = _answers(network, trained, files, known, batch_size, strict, progress)
            values = describe_outputs(network, answers.scores, top)
            items = [Prediction(path, each) for path, each in zip(answers.paths, values, strict=True)]
            answers = replace(answers, paths=[files.names.get(path, path) for path in answers.paths])
        elif target is not None:
            _check_out_of_task(target, task_of(network))
            items, written = write_predictions(
                network, files.paths, target, names=files.names, top=top, batch_size=batch_size, strict=strict
            )
        else:
            items = list(predict_files(network, files.paths, top=top, batch_size=batch_size, strict=strict))
        pictures = {files.names[path]: picture for path, picture in files.held.items()}
        items = [replace(item, path=files.names.get(item.path, item.path)) for item in items]
        predictions = Predictions(items, trained.source, pictures, answers)
        if target is not None and classifies:
            predictions.write(target)
        elif target is not None:
            predictions.written = written
    return predictions


def _of_sets(trained: Trained, sets: Any, top: int, out: Path | None, batch_size: int) -> Predictions:
    """The predictions of a network that reads points, regions or sequences, written into a folder if there is one."""
    if out is not None:
        _check_out_of_task(out, task_of(trained.model))
    reads = trained.model.input_kind
    if reads == "sequences":
        found_names, each = sequences_of(sets)
        names = unique_names([Path(name) for name in found_names])
        split: Images = to_predict(names, each, trained.model.input_shape)
    else:
        found = scenes_of(sets) if reads == "regions" else sets_of(sets)._replace(pointers=None)
        names, split = found.names, found.as_split()
    items, written = predict_sets(trained.model, names, split, out, top=top, batch_size=batch_size)
    predictions = Predictions(items, trained.source, what=SAMPLES.get(reads, "set"))
    predictions.written = written
    return predictions


def _check_out_of_task(out: Path, task: Task) -> None:
    """Refuse to replace files that no earlier prediction wrote, and a table for a task without one."""
    check_name("out", out)
    check_out(out)
    if is_csv(out):
        check_table(out, task)
    elif out.is_dir() and any(out.iterdir()) and not (out / DOCUMENT).is_file():
        raise UsageError(f"out is {out}, a folder with files that mereo did not write; give another one.")


def _answers(
    network: VisionModel,
    trained: Trained,
    files: Files,
    labels: Tensor,
    batch_size: int,
    strict: bool,
    progress: Reporter,
) -> FolderAnswers:
    """The answers of a classifier, with its training images recognised if images are labelled."""
    known = trained_on(trained.source) if bool((labels >= 0).any()) else None
    with progress.stage("classified", len(files.paths)) as done:
        answers = answer_folder(
            network, files.paths, labels, trained=known, batch_size=batch_size, strict=strict, progress=done
        )
    report_unreadable(answers.aside, bool(answers.paths))
    return answers


def _labels(model: VisionModel, wanted: str, files: Files) -> Tensor:
    """The labels of images: int64 (n,), `UNKNOWN` for an image without a label."""
    labels = folder_labels(files.given, files.paths, class_names(model))
    if wanted == "none":
        labels.fill_(UNKNOWN)
    if wanted == "folders" and not bool((labels >= 0).any()):
        every = class_names(model)
        names = ", ".join(every[:5]) + (", ..." if len(every) > 5 else "")
        raise UsageError(
            "labels is 'folders', and none of the folders that were given has the name of a class or holds one that has"
            f" ({names}); give the folder of the images, or leave --labels out."
        )
    return labels


def check_out(out: Path | None) -> None:
    """UsageError for a file that is not a table (.csv), or a name that would be one."""
    if out is None or out.suffix.lower() == ".csv" or out.is_dir():
        return
    if out.is_file() or out.suffix.lower() in NO_FOLDERS:
        what = "which is a file" if out.is_file() else "the name of a file"
        raise UsageError(f"out is {out}, {what}; give a folder, or a file that ends in .csv.")


def _check_out(out: Path, inputs: list[Path]) -> None:
    """Refuse to replace files that no earlier prediction wrote."""
    check_out(out)
    document = out / DOCUMENT
    if out.suffix.lower() != ".csv":
        check_outputs("out", [document] if document.exists() else output_files(out), inputs)
        return
    if out.exists() and starts_with(out, "image,class,probability,"):  # the table of an earlier prediction
        return
    check_outputs("out", [out], inputs)
