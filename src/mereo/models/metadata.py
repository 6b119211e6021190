"""What a file of weights says of its network, looked at before anything is made of it.

A file may come from anywhere. Its words reach a network only where they are of the right kind, and a network of the
size it claims is made only once the tensors beside them are known to fill it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mereo.errors import UsageError, unknown
from mereo.models.base import VisionModel
from mereo.models.registry import MODELS, get_model_entry, is_model

FORMAT = 1
"""Of the metadata; a file with a higher number is refused."""
_DEEPEST, _LARGEST = 3, 1e6


@dataclass(frozen=True)
class Description:
    """Which network a file is for.

    Attributes:
        model: its name in the catalogue.
        arguments: of its constructor.
        class_names: of the scores, in order; empty where the file has none.
        preprocessing: fields that take the place of the preset's in `pretrained_cfg`.
    """

    model: str
    arguments: dict[str, Any]
    class_names: tuple[str, ...]
    preprocessing: dict[str, Any]


def _is_plain(value: Any, depth: int = 0) -> bool:
    """Whether a value is what constructors take: text, numbers, switches, and lists of them."""
    if isinstance(value, list):
        return depth < _DEEPEST and all(_is_plain(entry, depth + 1) for entry in value)
    return value is None or isinstance(value, str | int | float)


def _tuples(value: Any) -> Any:
    """JSON has lists where arguments were tuples."""
    return tuple(_tuples(v) for v in value) if isinstance(value, list) else value


def _plain(metadata: Mapping[str, Any], name: str, path: Path) -> dict[str, Any]:
    """One of the tables of the metadata, its lists as tuples."""
    found = metadata.get(name, {})
    if not isinstance(found, dict):
        raise UsageError(f"{name} of {path} is not a table of names and values; the file was not written by mereo.")
    for key, value in found.items():
        if not _is_plain(value):
            raise UsageError(f"{key} in {name} of {path} is no plain value; the file was not written by mereo.")
    return {key: _tuples(value) for key, value in found.items()}


def describe(path: Path, metadata: Mapping[str, Any]) -> Description:
    """The metadata of a file as a description; UsageError for what is missing or of the wrong kind."""
    number = metadata.get("format", FORMAT)
    if not isinstance(number, int):
        raise UsageError(f"{path} has format {number!r}, which is no number; it is not a file of weights of mereo.")
    if number > FORMAT:
        raise UsageError(f"{path} has format {number}, and this version reads up to {FORMAT}; install a newer mereo.")
    if not {"model", "args"} <= metadata.keys() or not isinstance(metadata["model"], str):
        raise UsageError(f"{path} does not say which model it is for; it is not a file of weights written by mereo.")
    if not is_model(metadata["model"]):
        raise UsageError(f"{path}: {unknown('model', metadata['model'], MODELS)}")
    arguments = _plain(metadata, "args", path)
    foreign = sorted(arguments.keys() - get_model_entry(metadata["model"]).defaults.keys())
    if foreign:
        raise UsageError(f"{path} is for {metadata['model']} with {foreign[0]!r}, which that network has no use for.")
    names = metadata.get("class_names", [])
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise UsageError(f"class_names of {path} must be a list of names.")
    return Description(metadata["model"], arguments, tuple(names), _plain(metadata, "pretrained_cfg", path))


def _numbers(value: Any, count: int, least: float) -> bool:
    return (
        isinstance(value, tuple)
        and len(value) == count
        and all(isinstance(v, int | float) and least < v < _LARGEST for v in value)
    )


def check_description(path: Path, found: Description, model: VisionModel) -> None:
    """UsageError unless names and preprocessing belong to the network that the file describes."""
    if len(found.class_names) not in (0, model.num_classes):
        raise UsageError(
            f"class_names of {path} has {len(found.class_names)} names for {model.num_classes} classes; the file was"
            " changed."
        )
    check_preprocessing(path, {**model.pretrained_cfg, **found.preprocessing}, model)


def check_preprocessing(path: Path, cfg: Mapping[str, Any], model: VisionModel) -> None:
    """UsageError unless every image that is prepared as `cfg` says fits a network."""
    channels = model.image_shape[0]
    if not (_numbers(cfg.get("mean"), channels, -_LARGEST) and _numbers(cfg.get("std"), channels, 0)):
        raise UsageError(f"mean and std of {path} must be lists of {channels} numbers, std above 0.")
    if cfg.get("input_size") != model.image_shape:
        raise UsageError(f"input_size of {path} is {cfg.get('input_size')}; it is {list(model.image_shape)}.")
    share = cfg.get("crop_pct")
    if not (isinstance(share, int | float) and 0 < share <= 1):
        raise UsageError(f"crop_pct of {path} is {share!r}; it must be above 0 and at most 1.")
