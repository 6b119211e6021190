"""Initial weights of a training, from a file, a run or the package, also for other classes and channels."""

from pathlib import Path
from typing import Any

from mereo.errors import UsageError
from mereo.models import VisionModel, get_model_entry, load
from mereo.models.metadata import describe
from mereo.models.pretrained import fill
from mereo.models.weights import load_tensors, weights_file
from mereo.training.config import TrainConfig, parse_size


def follow_weights(config: TrainConfig, channels: int) -> TrainConfig:
    """Fill in the settings that follow from the initial weights and are not set.

    The arguments of the network come from the weights, and so does the normalisation if the number of channels is the
    same. Their path is made absolute, so that the saved configuration can be repeated from any folder. A resumed run
    has all this already, and its initial weights may no longer exist.
    """
    weights = str(config.weights)
    try:
        path = weights_file(weights)
    except UsageError:
        if config.resume:
            return config
        raise
    _, metadata = load_tensors(path)
    described = describe(path, metadata)
    if described.model != config.model:
        raise UsageError(
            f"weights is {weights!r}, those of {described.model}, and model is {config.model!r}; give --model"
            f" {described.model}, or weights of {config.model}."
        )
    defaults = get_model_entry(config.model).defaults
    own = {name: value for name, value in metadata["args"].items() if described.arguments[name] != defaults[name]}
    arguments = {name: value for name, value in own.items() if name not in ("num_classes", "in_chans", "img_size")}
    changes: dict[str, Any] = {"model_args": {**arguments, **config.model_args}}
    if config.img_size is None and "img_size" not in config.model_args and "img_size" in own:
        changes["img_size"] = parse_size(own["img_size"])
    if config.mean is None and described.arguments.get("in_chans", defaults["in_chans"]) == channels:
        changes |= {name: described.preprocessing[name] for name in ("mean", "std") if name in described.preprocessing}
    if Path(weights).exists():
        changes["weights"] = str(Path(weights).absolute())
    return config.replace(**changes)


def start_from(model: VisionModel, weights: str) -> str:
    """Give a network the weights that a training starts from, and return a line on what is new."""
    source = load(weights)
    new = fill(model, source.state_dict(), {**source.metadata, **source.config}, weights)
    # The classes are those of the new data, even if their number is the same.
    model.class_names = ()
    parts = [f"starting from {weights}"]
    if new:
        parts.append(f"new: {', '.join(new)}")
    ours, theirs = model.image_shape[0], source.image_shape[0]
    if ours != theirs:
        parts.append(f"first convolution folded from in_chans {theirs} to {ours}")
    return "; ".join(parts)
