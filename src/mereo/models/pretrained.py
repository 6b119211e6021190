"""Weights bundled with the package: small networks, ready without training or a download.

Each is a file <model>.<data set>.safetensors in the folder `pretrained_weights`, with a card of the same name that
states how it was trained and its metrics. `tools/keep_weights.py` makes both from a finished run.
"""

import fnmatch
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from mereo.core.shapes import image_size
from mereo.errors import UsageError, unknown
from mereo.escape import listed
from mereo.models.base import VisionModel
from mereo.models.registry import get_model_entry, outline

FOLDER = Path(__file__).with_name("pretrained_weights")


def list_pretrained(pattern: str = "*") -> list[str]:
    """Names such as "mspcaps_tiny.mnist" that match a shell-style pattern, sorted."""
    return sorted(fnmatch.filter((p.name.removesuffix(".safetensors") for p in FOLDER.glob("*.safetensors")), pattern))


def tags_of(model: str) -> list[str]:
    """The data sets for which there are weights of a model, sorted."""
    return [name.partition(".")[2] for name in list_pretrained(f"{model}.*")]


def bundled_name(name: str) -> str | None:
    """One of `list_pretrained()`, by its name or by the model of which it has the only weights; None for others."""
    names = list_pretrained()
    only = [each for each in names if each.partition(".")[0] == name]
    return name if name in names else only[0] if len(only) == 1 else None


def pretrained_path(name: str) -> Path:
    """The file of one of `list_pretrained()`, or of its model; UsageError with the nearest names if there is none."""
    name = bundled_name(name) or name
    if name not in list_pretrained():
        raise unknown("pretrained network", name, list_pretrained())
    return FOLDER / f"{name}.safetensors"


def description_of(name: str) -> dict[str, Any]:
    """The metadata of one of `list_pretrained()`, read without its tensors."""
    with safe_open(pretrained_path(name), framework="pt") as file:
        metadata: dict[str, Any] = json.loads(file.metadata()["mereo"])
    return metadata


def default_tag(model: str) -> str | None:
    """The data set that `pretrained=True` means: the only one, or the only one whose images have the preset's size.

    Weights with an attribute, such as `cifar10_robust`, must be named.
    """
    preset = get_model_entry(model).defaults
    tags = [tag for tag in tags_of(model) if description_of(f"{model}.{tag}").get("data", tag) == tag]
    if len(tags) > 1:
        args = {tag: description_of(f"{model}.{tag}")["args"] for tag in tags}
        images = ("in_chans", "img_size")
        tags = [tag for tag in tags if all(args[tag][name] == preset[name] for name in images)]
    return tags[0] if len(tags) == 1 else None


def choose_tag(model: str, pretrained: bool | str) -> str:
    """Which weights `pretrained` asks for: a data set by name, or, for True, `default_tag`."""
    tags = tags_of(model)
    if not tags:
        raise UsageError(
            f"pretrained is {pretrained!r}, but there are no bundled weights of {model!r}; there are"
            f" {', '.join(list_pretrained()) or 'none'}, and weights of other libraries, such as timm:resnet18; or give"
            " a run or a file as weights."
        )
    tag = default_tag(model) if pretrained is True else pretrained
    if tag is None:
        raise UsageError(f"pretrained is True, and {model} has weights for {', '.join(tags)}; name one of them.")
    if tag not in tags:
        raise UsageError(f"pretrained is {pretrained!r}; {model} has weights for {', '.join(tags)}.")
    return str(tag)


@dataclass(frozen=True)
class Filled:
    """A report on weights that were loaded into a network.

    Attributes:
        new: parts that keep their new weights.
        sizes: height and width of the images that the weights were made for, and of the network's; None if unknown.
        moved: parts whose weights were interpolated or rearranged for that size.
        unfit: parts that keep new weights because of the size.
    """

    new: tuple[str, ...] = ()
    sizes: tuple[tuple[int, int], tuple[int, int]] | None = None
    moved: tuple[str, ...] = ()
    unfit: tuple[str, ...] = ()

    @property
    def resized(self) -> str | None:
        """Effects of another image size, in words; None if nothing depends on it."""
        if self.sizes is None or not (self.moved or self.unfit):
            return None
        old, new = (f"{height}x{width}" for height, width in self.sizes)
        parts = [f"interpolated {', '.join(self.moved)}"] if self.moved else []
        parts += [f"new {', '.join(self.unfit)}"] if self.unfit else []
        return f"weights for images of {old} moved to {new}: {'; '.join(parts)}; everything else kept"


def check_same_surgery(model: VisionModel, metadata: Mapping[str, Any], source: str) -> None:
    """UsageError unless a network went through the same surgery as its weights."""
    own, stated = (each.get("surgery", []) for each in (model.config, metadata))
    if own != stated:
        words = [", ".join(entry["name"] for entry in each) or "nothing" for each in (stated, own)]
        raise UsageError(
            f"the weights of {source} are of {metadata.get('model')} after {words[0]}, and this network went through"
            f" {words[1]}, or with other arguments; mereo.load makes the network that fits the weights."
        )


def fill(model: VisionModel, tensors: dict[str, Tensor], metadata: dict[str, Any], source: str) -> Filled:
    """Load the weights of a network of the same architecture that may have other classes and colour channels.

    With another number of classes, the classifier (and what else depends on it, such as a decoder) keeps its new
    weights. With another number of channels, the first convolution is folded as timm does: summed for one channel,
    repeated and scaled for more. With another image size, tables of positions and routings of patches are
    interpolated, and layers whose shape depends on the size otherwise keep their new weights. Anything else that does
    not fit is a UsageError.
    """
    check_same_surgery(model, metadata, source)
    if model.input_kind != "images":
        own, given = ({n: x.shape for n, x in each.items()} for each in (model.state_dict(), tensors))
        if faults := shape_faults(own, given):
            raise UsageError(f"the weights of {source} do not fit these arguments: {listed(faults)}.")
        model.load_state_dict(tensors)
        return Filled()
    own, adapted = model.state_dict(), dict(tensors)
    sizes = None
    if (stated := metadata["args"].get("img_size")) is not None:
        sizes = image_size(stated), (model.image_shape[1], model.image_shape[2])
        adapted = model.resize_tensors(adapted, sizes[0])
    moved = [name for name in adapted if adapted[name] is not tensors.get(name)]
    kept: list[str] = []
    if model.num_classes != metadata["args"].get("num_classes", 0):
        heads = tuple(f"{name}." for name in (*model.classifier_parts, model.classifier))
        adapted = {name: x for name, x in adapted.items() if not name.startswith(heads)}
        kept += [name for name in own if name.startswith(heads)]
    else:
        model.class_names = tuple(metadata.get("class_names", ()))
    first = f"{model.first_conv}.weight"
    channels = model.image_shape[0]
    if first in adapted and adapted[first].shape[1] != channels:
        adapted[first] = _fold(adapted[first], channels)
        kept += [
            n for n in own.keys() & adapted.keys() if n.startswith("decoder.") and own[n].shape != adapted[n].shape
        ]
    unfit = [] if sizes is None else _of_the_size(model, own, adapted, tensors, metadata["args"])
    if any(name.startswith(f"{model.classifier}.") for name in unfit):
        model.class_names = ()
    kept += unfit
    adapted |= {name: own[name] for name in kept}
    faults = shape_faults({n: x.shape for n, x in own.items()}, {n: x.shape for n, x in adapted.items()})
    if faults:
        raise UsageError(
            f"the weights of {source} do not fit these arguments: {listed(faults)}. They were trained"
            f" with {', '.join(f'{k}={v}' for k, v in metadata['args'].items() if k in ('img_size', 'in_chans'))} and"
            " the preset's other arguments; only num_classes, in_chans and img_size may differ."
        )
    model.load_state_dict(adapted)
    return Filled(_parts(kept), sizes, _parts(name for name in moved if name not in kept), _parts(unfit))


def _parts(names: Iterable[str]) -> tuple[str, ...]:
    """The outermost modules of tensors; of a network of another library, those inside of it."""
    return tuple(sorted({".".join(name.split(".")[: 2 if name.startswith("network.") else 1]) for name in names}))


def _of_the_size(
    model: VisionModel, own: Mapping[str, Tensor], adapted: Mapping[str, Tensor], tensors: Mapping[str, Tensor],
    arguments: Mapping[str, Any],
) -> list[str]:  # fmt: skip
    """The tensors of layers whose shape depends on the image size; empty if the weights differ in more than that."""
    wrong = [name for name in own if name in adapted and own[name].shape != adapted[name].shape]
    if not wrong:
        return []
    name = str(model.config["model"])
    of_images = {key: arguments[key] for key in ("num_classes", "in_chans", "img_size") if key in arguments}
    stated = {**model.config["args"], **of_images, "surgery": model.config.get("surgery", ())}
    there = outline(name, **stated).state_dict()
    if shape_faults({n: x.shape for n, x in there.items()}, {n: x.shape for n, x in tensors.items()}):
        return []
    layers = {each.rpartition(".")[0] for each in wrong}
    return [each for each in own if each.rpartition(".")[0] in layers]


def shape_faults(own: Mapping[str, Sequence[int]], given: Mapping[str, Sequence[int]]) -> list[str]:
    """In which names and shapes given tensors differ from a model's own."""
    faults = [f"missing {name}" for name in sorted(own.keys() - given.keys())]
    faults += [f"unexpected {name}" for name in sorted(given.keys() - own.keys())]
    return faults + [
        f"{name} is {tuple(given[name])}, not {tuple(own[name])}"
        for name in own
        if name in given and tuple(given[name]) != tuple(own[name])
    ]


def _fold(weight: Tensor, channels: int) -> Tensor:
    """A first convolution (out, in, rows, columns) for another number of colours, with outputs of the same size."""
    total = weight.sum(1, keepdim=True)
    return total if channels == 1 else torch.cat([total / channels] * channels, 1)
