"""Initial weights of a training, from a file, a run, the package or timm, also for other classes and channels."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from mereo.errors import UsageError
from mereo.models import VisionModel, convert, create_model, get_model_entry, load
from mereo.models.conversion import timm_normalisation
from mereo.models.factory import published_weights
from mereo.models.metadata import Description, describe
from mereo.models.pretrained import choose_tag, fill
from mereo.models.weights import is_described, load_state, read_metadata, weights_file
from mereo.surgery import insert, remove
from mereo.training.config import TrainConfig
from mereo.training.option_values import parse_size

PUBLISHED = ("timm", "torchvision")
"""Libraries that have published weights: a name, or a name and a tag after a dot."""
OF_THE_DATA = ("in_chans", "img_size")
"""Arguments that follow from the data, besides the one that the outputs follow."""


def is_published(weights: str) -> bool:
    """Whether weights name a library's published weights, not a file or folder."""
    return weights.partition(".")[0] in PUBLISHED and not Path(weights).exists()


def pretrained_weights(model: str) -> str:
    """The weights that a pretrained network starts from: its library's weights, else the bundled ones."""
    entry = get_model_entry(model)
    return published_weights(entry) or f"{entry.name}.{choose_tag(entry.name, True)}"


def _own_arguments(described: Description, saved: Mapping[str, Any]) -> dict[str, Any]:
    """The saved arguments of a network that differ from its preset."""
    defaults = get_model_entry(described.model).defaults
    return {name: value for name, value in saved.items() if described.arguments[name] != defaults[name]}


def follow_weights(config: TrainConfig) -> TrainConfig:
    """Fill in the settings that follow from the initial weights and are not set.

    The arguments of the network come from the weights, and so does the normalisation if the number of channels is the
    same. Their path is made absolute, so that the saved configuration can be repeated from any folder. A resumed run
    has all this already, and its initial weights may no longer exist.
    """
    weights, entry = str(config.weights), get_model_entry(config.model)
    part = entry.module.part_with_weights
    if is_published(weights):
        # With weights for a part only, the normalisation follows from that part in any case.
        return config if config.resume or part else _follow_published(config)
    try:
        path = weights_file(weights)
    except UsageError:
        if config.resume:
            return config
        raise
    changes: dict[str, Any] = {"weights": str(Path(weights).absolute())} if Path(weights).exists() else {}
    if not is_described(path):
        return config.replace(**changes)
    metadata = read_metadata(path)
    described = describe(path, metadata)
    own = _own_arguments(described, metadata["args"])
    of_the_data = (*OF_THE_DATA, entry.module.outputs_argument)
    arguments = {name: value for name, value in own.items() if name not in of_the_data}
    if part and described.model == config.model_args.get(part, described.model):
        changes["model_args"] = {part: described.model, f"{part}_args": arguments, **config.model_args}
        return config.replace(**changes)
    if described.model != config.model:
        raise UsageError(
            f"weights is {weights!r}, which belongs to {described.model}, and model is {config.model!r}; give --model"
            f" {described.model}, or weights of {config.model}."
        )
    if described.surgery:
        arguments["surgery"] = list(described.surgery)
    changes["model_args"] = {**arguments, **config.model_args}
    if entry.module.input_kind != "images":
        return config.replace(**changes)
    if config.img_size is None and "img_size" not in config.model_args and "img_size" in own:
        changes["img_size"] = parse_size(own["img_size"])
    trained_channels = described.arguments.get("in_chans", entry.defaults["in_chans"])
    if config.mean is None and trained_channels == config.in_chans:
        changes |= {name: described.preprocessing[name] for name in ("mean", "std") if name in described.preprocessing}
    return config.replace(**changes)


def _follow_published(config: TrainConfig) -> TrainConfig:
    module, weights = get_model_entry(config.model).module, str(config.weights)
    tag = module.check_library(weights)
    mean, std = module.published_statistics(weights) or timm_normalisation(config.model, tag)
    return config.replace(mean=mean, std=std) if config.mean is None and len(mean) == config.in_chans else config


def start_from(model: VisionModel, weights: str) -> str:
    """Give a network the weights that a training starts from, and return a line on its new layers.

    A network whose `part_with_weights` is another network takes weights of that one too. Mechanisms that were inserted
    start with their own weights, unless the given weights are of a network that has them.
    """
    inserted = [each["args"] for each in model.config.get("surgery", ()) if each["name"] == "insert"]
    if inserted and not _states_surgery(weights):
        remove(model)
        line = start_from(model, weights)
        for arguments in inserted:
            insert(model, **arguments)
        return f"{line}; inserted: {', '.join(each['name'] for each in inserted)}"
    if model.input_kind != "images":
        load_state(model, weights_file(weights))
        return f"starting from {weights}"
    if model.part_with_weights and not _is_whole(model, weights):
        model.load_part(weights)
        return f"{model.part_with_weights} starting from {weights}"
    source, name = _source(model, weights)
    filled = fill(model, source.state_dict(), {**source.metadata, **source.config}, name)
    # The new data has other classes, even if their number is the same.
    model.class_names = ()
    parts = [f"starting from {name}"]
    if filled.new:
        parts.append(f"new: {', '.join(filled.new)}")
    if filled.resized is not None:
        parts.append(filled.resized)
    ours, theirs = model.image_shape[0], source.image_shape[0]
    if ours != theirs:
        parts.append(f"first convolution folded from in_chans {theirs} to {ours}")
    return "; ".join(parts)


def _states_surgery(weights: str) -> bool:
    """Whether weights are of a network that was changed after it was made."""
    if is_published(weights):
        return False
    path = weights_file(weights)
    return is_described(path) and bool(read_metadata(path).get("surgery"))


def _is_whole(model: VisionModel, weights: str) -> bool:
    """Whether weights are of a network of the same name."""
    if is_published(weights):
        return False
    path = weights_file(weights)
    return is_described(path) and read_metadata(path).get("model") == model.config["model"]


def _source(model: VisionModel, weights: str) -> tuple[VisionModel, str]:
    """The trained network that some weights belong to, and their name in messages."""
    name, size = str(model.config["model"]), model.image_shape[1:]
    if is_published(weights):
        return create_model(name, weights=weights, img_size=size), f"{weights.partition('.')[0]}'s weights of {name}"
    path = weights_file(weights)
    if is_described(path):
        return load(weights), weights
    # Weights of another library, recognised by the names of the tensors.
    return cast(VisionModel, convert(path, model=name, img_size=size)), f"{weights}, converted"
