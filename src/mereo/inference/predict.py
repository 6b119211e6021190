"""Predictions of a trained network for image files."""

import glob
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

from mereo.data import Batch, ImageSet, load_size
from mereo.data.decode import decode, reason_of
from mereo.data.names import ARCHIVES, IMAGE_SUFFIXES, OTHER_SUFFIXES, TABLES, is_table
from mereo.data.table import table_images
from mereo.errors import MereoError, UsageError
from mereo.inference.evaluate import prepare_batch
from mereo.inference.mode import evaluating
from mereo.inference.temperature import calibration_of, probabilities
from mereo.inference.views import views_of
from mereo.models import VisionModel
from mereo.tasks import Classification, Task, get_task
from mereo.tasks.base import task_for

FEW = 16
"""Images up to which the network runs as it is."""


@dataclass(frozen=True)
class Prediction:
    """The prediction for one image, as its task describes it: for a classifier the class and its scores.

    Attributes:
        path: of the image.
        values: plain values by name.
    """

    path: Path
    values: dict[str, Any]

    @property
    def classes(self) -> tuple[str, ...]:
        """The class names of a classifier, the highest score first."""
        return tuple(self.values["scores"])

    @property
    def scores(self) -> tuple[float, ...]:
        """The scores of `classes`."""
        return tuple(self.values["scores"].values())

    @property
    def probabilities(self) -> tuple[float, ...] | None:
        """The probabilities of `classes`; None for weights without a fitted temperature."""
        shares = self.values.get("probabilities")
        return None if shares is None else tuple(shares.values())

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {"path": str(self.path), **self.values}


def _found(
    patterns: Sequence[str | Path],
    kind: str,
    in_folder: Callable[[Path], list[Path]],
    in_file: Callable[[Path], list[Path]],
) -> list[Path]:
    """The files of paths, folders and globs, each once, in order; UsageError if a pattern or all give none."""
    listed: dict[Path, None] = {}
    for pattern in patterns:
        if pattern == "":  # which would be the working folder
            raise UsageError(f"one of the paths is ''; give {kind} files, folders or patterns.")
        path = Path(pattern)
        if path.is_dir():
            files = in_folder(path)
        elif path.is_file():
            files = in_file(path)
        else:
            files = [Path(p) for p in sorted(glob.glob(str(pattern), recursive=True)) if Path(p).is_file()]  # noqa: PTH207
            if not files:
                raise UsageError(f"{pattern} is not a file, not a folder, and as a pattern matches nothing.")
        listed.update(dict.fromkeys(files))
    if not listed:
        raise UsageError(f"no {kind} is given; give files, folders or patterns.")
    return list(listed)


def _files_of_folder(path: Path) -> list[Path]:
    files = sorted(p for p in path.rglob("*") if p.is_file())
    if not files:
        raise UsageError(f"{path} has no files; give a folder with files.")
    return files


def _evaluate_instead(data: Path) -> str:
    return f"measure the network on it with `mereo evaluate RUN --data {data}`"


def _images_of_folder(path: Path) -> list[Path]:
    suffixes = (*IMAGE_SUFFIXES, *OTHER_SUFFIXES)
    files = sorted(p for p in path.rglob("*") if p.suffix.lower() in suffixes and p.is_file())
    if not files:
        if any(p.suffix.lower() in (".tar", *TABLES) for p in path.rglob("*")):
            raise UsageError(f"{path} holds files of many images; {_evaluate_instead(path)}.")
        raise UsageError(f"{path} has no images ({', '.join(sorted(IMAGE_SUFFIXES))}); give a folder with images.")
    return files


def _images_of_file(path: Path) -> list[Path]:
    """The images that a table lists, or the file itself; UsageError for archives and streams."""
    if is_table(path):
        return list(table_images(path))
    if path.name.lower().endswith(ARCHIVES):
        unpacked = [] if path.suffix.lower() in TABLES else ["unpack it and give the folder"]
        read = [_evaluate_instead(path)] if path.suffix.lower() in (".zip", ".tar", *TABLES) else []
        raise UsageError(f"{path} is a file of many images; {', or '.join(unpacked + read)}.")
    return [path]


def find_files(patterns: Sequence[str | Path]) -> list[Path]:
    """The files of paths, folders (searched at any depth) and globs, each once, in order.

    Raises:
        UsageError: for a path or pattern that matches nothing, and a folder without files.
    """
    return _found(patterns, "image or text", _files_of_folder, lambda path: [path])


def find_images(patterns: Sequence[str | Path]) -> list[Path]:
    """The images of paths, folders (searched at any depth for their suffixes), tables (.csv) and globs, in order.

    Raises:
        UsageError: for a path or pattern that matches nothing, a folder without images, and an archive.
    """
    return _found(patterns, "image", _images_of_folder, _images_of_file)


Aside = tuple[Path, str]
"""A file that was set aside, and the reason."""
MOST_SHOWN = 10


def _decoder(model: VisionModel, times: int = 1) -> Callable[[Path], Tensor | str]:
    """A function that gives the pixels of a file as a model takes them, or the reason why there are none."""
    channels, height, width = model.image_shape
    if channels not in (1, 2, 3):
        raise UsageError(
            f"the model takes {channels} channels; image files give 1 or 3, or 2 as pictures side by side."
        )
    size = load_size((times * height, times * width), model.pretrained_cfg["crop_pct"])

    def read(path: Path) -> Tensor | str:
        try:
            with path.open("rb") as stream:
                return torch.from_numpy(decode(stream, size, channels).copy())
        except MemoryError:
            raise
        except Exception as error:  # a broken file can make a decoder raise nearly anything
            return reason_of(error)

    return read


def read_good(
    paths: Sequence[Path], model: VisionModel, *, strict: bool = False, times: int = 1
) -> tuple[Tensor, list[int], list[Aside]]:
    """Images as a model was trained to see them, before normalisation, and the files that could not be read.

    Args:
        paths: of the files, read by several threads.
        model: whose preprocessing is used.
        strict: whether an unreadable file is an error.
        times: how many times as large as the model takes them.

    Shapes: -> (images, channels, height, width) in [0, 1], their places in `paths`, and the rest with reasons.
    """
    from PIL import Image

    read = _decoder(model, times)
    with warnings.catch_warnings():
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        if len(paths) == 1:
            results = [read(paths[0])]
        else:
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                results = list(pool.map(read, paths))
    aside = [(path, result) for path, result in zip(paths, results, strict=True) if isinstance(result, str)]
    if aside and strict:
        raise MereoError(f"cannot read {aside[0][0]} ({aside[0][1]}); repair it, or leave out --strict.")
    good = [place for place, result in enumerate(results) if not isinstance(result, str)]
    pixels = [result for result in results if not isinstance(result, str)]
    channels, *sides = model.image_shape
    height, width = (times * side for side in sides)
    if not pixels:
        return torch.zeros(0, channels, height, width), [], aside
    stored = ImageSet(torch.stack(pixels), torch.zeros(len(good), dtype=torch.int64), ("",))
    return stored.batch(torch.arange(len(good)), crop=(height, width)).images, good, aside


def report_unreadable(aside: Sequence[Aside], any_read: bool) -> None:
    """Warn of files that could not be read; MereoError if none could."""
    if not aside:
        return
    shown = "; ".join(f"{path} ({reason})" for path, reason in aside[:MOST_SHOWN])
    shown += f"; and {len(aside) - MOST_SHOWN} more" if len(aside) > MOST_SHOWN else ""
    if not any_read and len(aside) == 1:
        raise MereoError(f"{aside[0][0]} cannot be read as an image ({aside[0][1].rstrip('.')}).")
    if not any_read:
        raise MereoError(f"none of {len(aside)} files could be read as an image: {shown}.")
    count = "1 file" if len(aside) == 1 else f"{len(aside)} files"
    warnings.warn(f"{count} could not be read as images and were skipped: {shown}.", stacklevel=3)


def read_images(paths: Iterable[Path], model: VisionModel, *, strict: bool = False) -> tuple[list[Path], Tensor]:
    """Images as a model was trained to see them, before normalisation.

    Unreadable files are named in a warning and skipped; `strict` makes the first of them an error.

    Shapes: -> the paths read, and (images, channels, height, width) in [0, 1].
    """
    paths = list(paths)
    images, good, aside = read_good(paths, model, strict=strict)
    report_unreadable(aside, bool(good))
    return [paths[place] for place in good], images


def class_names(model: VisionModel) -> tuple[str, ...]:
    """Names of a model's classes; their numbers if it has none."""
    return model.class_names or tuple(str(i) for i in range(model.num_classes))


def task_of(model: VisionModel) -> Task:
    """The task that a model was trained for; if its weights name none, the first for networks of its kind."""
    options = model.metadata.get("task_options", {})
    if not isinstance(options, dict):
        raise UsageError(f"task_options of the weights is {options!r}; it must be a table of names and values.")
    named = model.metadata.get("task")
    kind = task_for(type(model), Classification.name) if named is None else get_task(str(named))
    task = kind(class_names(model), options)
    task.restore(model.metadata)
    return task


class Answered(NamedTuple):
    """The answers for a batch of image files.

    Attributes:
        paths: that were read.
        images: as the network takes them, before normalisation and without views.
        outputs: of the task in float32.
        aside: the files that could not be read.
    """

    paths: list[Path]
    images: Tensor
    outputs: Any
    aside: list[Aside]


@torch.inference_mode()
def answer_files(
    model: VisionModel,
    paths: Sequence[Path],
    *,
    batch_size: int = 64,
    strict: bool = False,
) -> Iterator[Answered]:
    """The outputs of a network for image files, a batch at a time.

    Args:
        model: with the task that it was trained for; with views, see `mean_over_views`.
        paths: of the files.
        batch_size: files read at a time.
        strict: whether an unreadable file is an error.
    """
    task, cfg = task_of(model), model.pretrained_cfg
    device = next(model.parameters()).device
    # A copy with folded weights pays for itself after some images.
    many = len(paths) > FEW
    ready, views = model.fuse() if many else model, views_of(model)
    with nullcontext() if many else evaluating(model):
        for start in range(0, len(paths), batch_size):
            part = paths[start : start + batch_size]
            images, good, aside = read_good(part, model, strict=strict)
            if not good:
                yield Answered([], images, None, aside)
                continue
            seen = images.to(device)
            labels = torch.zeros(len(good), dtype=torch.int64, device=device)
            output = task.apply(ready, prepare_batch(Batch(seen, labels), cfg))
            output = tree_map_only(Tensor, lambda x: x.float() if x.is_floating_point() else x, output)
            if not all(bool(x.isfinite().all()) for x in tree_leaves(output) if isinstance(x, Tensor)):
                raise MereoError("the outputs of the network are not finite; its weights are damaged.")
            shown = images if views is None else views.unchanged(images)
            yield Answered([part[place] for place in good], shown, output, aside)


def describe_outputs(model: VisionModel, outputs: Any, top: int) -> list[dict[str, Any]]:
    """Outputs of a network as plain values; of a calibrated classifier with the probabilities of its best classes."""
    values = task_of(model).predict(outputs, top)
    calibration = calibration_of(model) if task_of(model).scores_classes else None
    if calibration is None:
        return values
    shares = probabilities(outputs, calibration.temperature).cpu()
    best = outputs.topk(min(top, outputs.shape[1]), 1).indices.cpu()
    for row, order, share in zip(values, best.tolist(), shares, strict=True):
        row["probabilities"] = dict(zip(row["scores"], share[order].tolist(), strict=True))
    return values


def predict(
    model: VisionModel,
    paths: Sequence[Path],
    *,
    top: int = 3,
    batch_size: int = 64,
    strict: bool = False,
) -> Iterator[Prediction]:
    """Predictions for image files, in their order, a batch at a time.

    The task is the one that the model was trained for; classification if its weights name none. Files that cannot be
    read are named in a warning and skipped; MereoError if none can be read.

    Args:
        model: whose weights may hold a temperature; then predictions have probabilities. With views, see
            `mean_over_views`.
        paths: of the files.
        top: classes of a prediction, the highest score first.
        batch_size: files read at a time.
        strict: whether an unreadable file is an error.
    """
    aside, count = list[Aside](), 0
    for answered in answer_files(model, paths, batch_size=batch_size, strict=strict):
        aside += answered.aside
        if answered.paths:
            count += len(answered.paths)
            outputs = task_of(model).kept(answered.outputs)
            for path, values in zip(answered.paths, describe_outputs(model, outputs, top), strict=True):
                yield Prediction(path, values)
    report_unreadable(aside, count > 0)
