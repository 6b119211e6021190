"""Weights that come with the package: small networks, ready without training and without a network.

Each is a file <model>.<data set>.safetensors in the folder `pretrained_weights`, with a card of the same name that
says how it was trained and what it measured. `tools/keep_weights.py` makes both of a finished run.
"""

import fnmatch
import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mereo.errors import UsageError, unknown
from mereo.models.base import CapsuleClassifier

FOLDER = Path(__file__).with_name("pretrained_weights")


def list_pretrained(pattern: str = "*") -> list[str]:
    """Names such as "mspcaps_tiny.mnist" that match a shell-style pattern, sorted."""
    return sorted(fnmatch.filter((p.name.removesuffix(".safetensors") for p in FOLDER.glob("*.safetensors")), pattern))


def tags_of(model: str) -> list[str]:
    """The data sets for which there are weights of a model, sorted."""
    return [name.partition(".")[2] for name in list_pretrained(f"{model}.*")]


def pretrained_path(name: str) -> Path:
    """The file of one of `list_pretrained()`; UsageError with the nearest names if there is none."""
    if name not in list_pretrained():
        raise unknown("pretrained network", name, list_pretrained())
    return FOLDER / f"{name}.safetensors"


def description_of(name: str) -> dict[str, Any]:
    """What the weights of one of `list_pretrained()` say of themselves, without reading the tensors."""
    from safetensors import safe_open

    with safe_open(pretrained_path(name), framework="pt") as file:
        found: dict[str, Any] = json.loads(file.metadata()["mereo"])
    return found


def default_tag(model: str) -> str | None:
    """The data set that `pretrained=True` means: the only one, or the only one whose images are the preset's."""
    from mereo.models.registry import get_model_entry

    tags, preset = tags_of(model), get_model_entry(model).defaults
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
            f"pretrained is {pretrained!r}, but no weights of {model!r} come with mereo; there are"
            f" {', '.join(list_pretrained()) or 'none'}. Train them with `mereo train --model {model}` and pass"
            " checkpoint_path=, or use mereo.load(path)."
        )
    tag = default_tag(model) if pretrained is True else pretrained
    if tag is None:
        raise UsageError(f"pretrained is True, and {model} has weights for {', '.join(tags)}; name one of them.")
    if tag not in tags:
        raise UsageError(f"pretrained is {pretrained!r}; {model} has weights for {', '.join(tags)}.")
    return str(tag)


def create_pretrained(
    model: str, pretrained: bool | str, given: dict[str, Any], checkpoint_path: str | Path = ""
) -> CapsuleClassifier:
    """What `create_model` does for a network that starts with weights of the package; `given` are its arguments."""
    from mereo.models.registry import create_model
    from mereo.models.weights import load_tensors

    if checkpoint_path:
        raise UsageError(f"checkpoint_path is {str(checkpoint_path)!r} beside pretrained weights; leave one out.")
    source = f"{model}.{choose_tag(model, pretrained)}"
    tensors, metadata = load_tensors(pretrained_path(source))
    network = create_model(model, **{**metadata["args"], **given})
    fill(network, tensors, metadata, source)
    kept = ("mean", "std") if network.image_shape[0] == metadata["args"]["in_chans"] else ()
    network.pretrained_cfg |= {name: tuple(metadata["pretrained_cfg"][name]) for name in kept}
    network.pretrained_cfg["license"] = metadata["pretrained_cfg"].get("license")
    network.metadata = metadata
    return network


def fill(model: CapsuleClassifier, tensors: dict[str, Tensor], metadata: dict[str, Any], source: str) -> list[str]:
    """Give a network the weights of another of its kind, with as much as fits of what it was asked to be.

    Another number of classes keeps a new head and decoder. Another number of colours folds the first convolution as
    timm does: summed for one, repeated and scaled for more. Anything else that does not fit is a UsageError.

    Returns the names of the parts that keep weights of their own.
    """
    own, adapted = model.state_dict(), dict(tensors)
    kept: list[str] = []
    if model.num_classes != metadata["args"]["num_classes"]:
        heads = tuple(f"{name}." for name in ("head", "decoder", model.classifier))
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
    adapted |= {name: own[name] for name in kept}
    faults = sorted(own.keys() ^ adapted.keys())
    faults += [name for name in own.keys() & adapted.keys() if adapted[name].shape != own[name].shape]
    if faults:
        raise UsageError(
            f"the weights of {source} do not fit these arguments: {faults[0]} is another one. They were trained"
            f" with {', '.join(f'{k}={v}' for k, v in metadata['args'].items() if k in ('img_size', 'in_chans'))} and"
            " the preset's other arguments; num_classes and in_chans alone may differ."
        )
    model.load_state_dict(adapted)
    return sorted({name.partition(".")[0] for name in kept})


def _fold(weight: Tensor, channels: int) -> Tensor:
    """A first convolution (out, in, rows, columns) for another number of colours, with outputs of the same size."""
    total = weight.sum(1, keepdim=True)
    return total if channels == 1 else torch.cat([total / channels] * channels, 1)
