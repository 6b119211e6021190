"""What a weight file states about its network, checked before anything is built from it.

A file may come from anywhere. Its metadata reaches a network only if it is of the right kind and within bounds, and
a network of the stated size is built only once the tensors in the file are known to fill it.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mereo.core.surgery import are_surgeries
from mereo.errors import UsageError
from mereo.models.arguments import as_tuples
from mereo.models.base import VisionModel
from mereo.models.registry import get_model_entry

FORMAT = 1
"""Version of the metadata; a file with a higher number is refused."""
INTERPOLATIONS = ("bilinear", "bicubic", "nearest", "lanczos", "box", "hamming")
LEAST_CROP = 0.05
MOST_PIXELS = 2**24
"""Largest number of pixels of the image that the central crop is taken from."""
LEAST_STD = 1e-6
LONGEST_TEXT = 10_000
"""Largest number of characters of one text in the metadata, such as a licence or a command."""
_DEEPEST, _LARGEST = 3, 1e6


@dataclass(frozen=True)
class Description:
    """Which network a file is for.

    Attributes:
        model: its name in the catalogue.
        arguments: of its constructor.
        class_names: of the scores, in order; empty if the file has none.
        preprocessing: fields that take the place of the preset's in `pretrained_cfg`.
        surgery: {"name": in `mereo.surgery.SURGERIES`, "args": by name} for each surgery of the network, in order.
    """

    model: str
    arguments: dict[str, Any]
    class_names: tuple[str, ...]
    preprocessing: dict[str, Any]
    surgery: tuple[dict[str, Any], ...] = ()

    @property
    def config(self) -> dict[str, Any]:
        """As a network has it."""
        surgery: dict[str, Any] = {"surgery": list(self.surgery)} if self.surgery else {}
        return {"model": self.model, "args": self.arguments, **surgery}


def _is_plain(value: Any, depth: int = 0) -> bool:
    """Whether a value is what constructors take: text, numbers, switches, lists of them, and tables by name."""
    if isinstance(value, dict):
        return depth == 0 and all(_is_plain(key) and _is_plain(entry, 1) for key, entry in value.items())
    if isinstance(value, list):
        return depth < _DEEPEST and all(_is_plain(entry, depth + 1) for entry in value)
    if isinstance(value, str):
        return len(value) <= LONGEST_TEXT
    return value is None or isinstance(value, int | float)


def _plain(metadata: Mapping[str, Any], name: str, path: Path) -> dict[str, Any]:
    """One of the tables of the metadata, its lists as tuples."""
    table = metadata.get(name, {})
    if not isinstance(table, dict):
        raise UsageError(f"{name} of {path} is not a table of names and values; the file was not written by mereo.")
    for key, value in table.items():
        if not _is_plain(value):
            raise UsageError(f"{key} in {name} of {path} is not a plain value; the file was not written by mereo.")
    return {key: as_tuples(value) for key, value in table.items()}


def describe(path: Path, metadata: Mapping[str, Any]) -> Description:
    """The metadata of a file as a description; UsageError for what is missing or of the wrong kind."""
    number = metadata.get("format", FORMAT)
    if not isinstance(number, int):
        raise UsageError(f"{path} has format {number!r}, which is not a number; it is not a weight file of mereo.")
    if number > FORMAT:
        raise UsageError(f"{path} has format {number}, and this version reads up to {FORMAT}; install a newer mereo.")
    if not {"model", "args"} <= metadata.keys() or not isinstance(metadata["model"], str):
        raise UsageError(f"{path} does not name its model; it is not a weight file written by mereo.")
    try:
        entry = get_model_entry(metadata["model"])
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from error
    arguments = entry.full(_plain(metadata, "args", path))
    foreign = sorted(arguments.keys() - entry.defaults.keys())
    if foreign:
        raise UsageError(
            f"{path} is for {metadata['model']} with {foreign[0]!r}, which is not an argument of that network."
        )
    defaults = entry.defaults
    arguments |= entry.module.older_arguments(arguments)
    for name, value in arguments.items():
        if isinstance(value, dict) and not isinstance(defaults[name], dict):
            raise UsageError(f"{name} in args of {path} is a table, and that argument takes none.")
    names = metadata.get("class_names", [])
    if not isinstance(names, list) or not all(isinstance(name, str) and len(name) <= LONGEST_TEXT for name in names):
        raise UsageError(f"class_names of {path} must be a list of names.")
    surgery = metadata.get("surgery", [])
    if not are_surgeries(surgery) or not all(_is_plain(entry["args"]) for entry in surgery):
        raise UsageError(f"surgery of {path} is no list of names and arguments; the file was not written by mereo.")
    cfg = _plain(metadata, "pretrained_cfg", path)
    return Description(metadata["model"], arguments, tuple(names), cfg, tuple(surgery))


def is_number(value: Any) -> bool:
    """Whether a value is a finite number, and not a bool."""
    return isinstance(value, int | float) and not isinstance(value, bool) and -_LARGEST < value < _LARGEST


def _numbers(value: Any, count: int, least: float) -> bool:
    return isinstance(value, tuple) and len(value) == count and all(is_number(v) and v >= least for v in value)


def check_description(path: Path, description: Description, model: VisionModel) -> None:
    """UsageError unless names and preprocessing belong to the network that the file describes."""
    if len(description.class_names) not in (0, model.num_classes):
        raise UsageError(
            f"class_names of {path} has {len(description.class_names)} names for {model.num_classes} classes; the file"
            " was changed."
        )
    check_preprocessing(path, {**model.pretrained_cfg, **description.preprocessing}, model)


def check_preprocessing(path: Path, cfg: Mapping[str, Any], model: VisionModel) -> None:
    """UsageError unless every input that is prepared according to `cfg` fits a network, and takes little memory.

    For images, mean and std are finite, std at least 1e-6; the central crop keeps at least 0.05 of a side, and the
    image that it is taken from has at most 2^24 pixels.
    """
    if cfg.get("input_size") != model.input_shape:
        raise UsageError(f"input_size of {path} is {cfg.get('input_size')}; it is {list(model.input_shape)}.")
    if model.input_kind != "images":
        return
    channels, height, width = model.image_shape
    if not (_numbers(cfg.get("mean"), channels, -_LARGEST) and _numbers(cfg.get("std"), channels, LEAST_STD)):
        raise UsageError(f"mean and std of {path} must be lists of {channels} numbers, std at least {LEAST_STD:g}.")
    share: Any = cfg.get("crop_pct")
    if not (is_number(share) and LEAST_CROP <= share <= 1):
        raise UsageError(f"crop_pct of {path} is {share!r}; it must be at least {LEAST_CROP} and at most 1.")
    if share < 1 and math.ceil(height / share) * math.ceil(width / share) > MOST_PIXELS:
        raise UsageError(f"crop_pct of {path} is {share!r}; images of more than {MOST_PIXELS:,} pixels would be made.")
    if (method := cfg.get("interpolation", INTERPOLATIONS[0])) not in INTERPOLATIONS:
        raise UsageError(f"interpolation of {path} is {method!r}; it must be one of {', '.join(INTERPOLATIONS)}.")
    for name in ("license", "crop_mode"):
        if not isinstance(cfg.get(name), str | None):
            raise UsageError(f"{name} of {path} is {cfg[name]!r}; it must be text.")


_FIGURES: dict[str, type | tuple[type, ...]] = {
    "chosen_on": str, "which": str, "device": str, "torch": str, "epochs": int, "best_epoch": int, "train_images": int,
    "seconds": (int, float),
}  # fmt: skip
"""Types of the results in a weight file besides the scores on the test images."""
_LARGEST_FIGURE = 3.4e38
"""About the largest number of float32, in which losses are computed."""
SCORES: dict[str, type | tuple[type, ...]] = {
    "count": int, "accuracy": (int, float), "accuracy_low": (int, float), "accuracy_high": (int, float),
}  # fmt: skip


def check_kinds(table: Any, kinds: Mapping[str, type | tuple[type, ...]], what: str) -> None:
    """UsageError unless `table` is a table that has every name of `kinds`, with a value of that kind.

    Numbers are finite, no larger than float32 holds, and not bools.
    """
    if not isinstance(table, dict):
        raise UsageError(f"{what} is not a table of names and values; it was not written by mereo.")
    for name, kind in kinds.items():
        value = table.get(name)
        # Written so that NaN fails too.
        wrong_number = isinstance(value, int | float) and (isinstance(value, bool) or not abs(value) <= _LARGEST_FIGURE)
        if not isinstance(value, kind) or wrong_number:
            shown = repr(value)[:60] if name in table else "missing"
            raise UsageError(f"{name} of {what} is {shown}; it was not written by mereo.")


def check_scores(scores: Any, task: str, what: str) -> None:
    """UsageError unless `scores` are the metrics of a task on one split: a count, and finite numbers by name."""
    kinds: dict[str, type | tuple[type, ...]] = dict(SCORES) if task == "classification" else {"count": int}
    check_kinds(scores, kinds, what)
    check_kinds(scores, dict.fromkeys(scores, (int, float)), what)


def check_results(results: Any, task: str, what: str) -> None:
    """UsageError unless `results` are the figures of a run, as `mereo.export.record.read_record` gives them."""
    check_kinds(results, _FIGURES, what)
    check_scores(results.get("test"), task, f"test in {what}")


def check_record(record: Mapping[str, Any], what: str) -> None:
    """UsageError unless the fields that a weight file has about its run are of the right types; any may be missing."""
    kinds: dict[str, type] = {"task": str, "task_options": dict, "data": str, "command": str, "seed": int, "epoch": int}
    check_kinds(dict(record), {name: kinds[name] for name in kinds if name in record}, what)
    for name in ("data", "command"):
        if len(record.get(name, "")) > LONGEST_TEXT:
            raise UsageError(f"{name} of {what} is longer than {LONGEST_TEXT:,} characters.")
    if "results" in record:
        check_results(record["results"], record.get("task", "classification"), f"results of {what}")
