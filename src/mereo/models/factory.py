"""Networks by name, with or without trained weights."""

import fnmatch
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, cast, overload

from mereo.errors import UsageError, check_text
from mereo.models.base import VisionModel
from mereo.models.conversion import convert, from_timm_checkpoint, has_timm_weights
from mereo.models.entry import ModelEntry
from mereo.models.feature_maps import FeatureMaps
from mereo.models.pretrained import Filled, choose_tag, fill, list_pretrained, pretrained_path, tags_of
from mereo.models.rebuilding import rebuild
from mereo.models.registry import MODELS, build, get_model_entry, library_of
from mereo.models.weights import is_described, load, load_state, load_tensors, weights_file

Size = int | tuple[int, int]


def list_models(pattern: str = "*", pretrained: bool = False) -> list[str]:
    """Names of the models that match a shell-style pattern, sorted.

    Args:
        pretrained: only those with weights in the package, as "model.data": "mspcaps_tiny.mnist".
    """
    if pretrained:
        return sorted(set(list_pretrained(pattern)) | set(list_pretrained(f"{pattern}.*")))
    return sorted(fnmatch.filter(MODELS, pattern))


@overload
def create_model(
    name: str,
    pretrained: bool | str = ...,
    *,
    num_classes: int | None = ...,
    in_chans: int | None = ...,
    img_size: Size | None = ...,
    checkpoint_path: str | Path = ...,
    weights: str | Path | None = ...,
    features_only: Literal[False] = ...,
    **kwargs: Any,
) -> VisionModel: ...


@overload
def create_model(
    name: str,
    pretrained: bool | str = ...,
    *,
    num_classes: int | None = ...,
    in_chans: int | None = ...,
    img_size: Size | None = ...,
    checkpoint_path: str | Path = ...,
    weights: str | Path | None = ...,
    features_only: Literal[True],
    out_indices: int | Sequence[int] | None = ...,
    **kwargs: Any,
) -> FeatureMaps: ...


def create_model(
    name: str,
    pretrained: bool | str = False,
    *,
    num_classes: int | None = None,
    in_chans: int | None = None,
    img_size: Size | None = None,
    checkpoint_path: str | Path = "",
    weights: str | Path | None = None,
    features_only: bool = False,
    out_indices: int | Sequence[int] | None = None,
    **kwargs: Any,
) -> VisionModel | FeatureMaps:
    """Create a published network.

    If timm has a model of the same name, this creates mereo's, which timm lists under "mereo_" and the name.

    Args:
        name: one of `list_models()`, an alias of it, or one of `list_models(pretrained=True)`, whose weights it then
            gets; or a network of another library, such as "timm:resnet18" or "torchvision:resnet18".
        pretrained: start with bundled weights: name their data set, such as "mnist", or give True for the data set
            whose images have the preset's size, or the only one. Networks of other libraries, and networks that timm
            has too and that have no bundled weights, get the published ones. Other numbers of classes and colours may
            be given: the head is then new and the first convolution adapted. Everything else is as trained.
        num_classes: how many classes; 0 gives the features instead of scores.
        in_chans: channels of the images.
        img_size: side of the images, or (height, width).
        checkpoint_path: weights saved by mereo for the same architecture.
        weights: "timm" for timm's published weights of the preset of the same name, or "timm.TAG" for one of several;
            timm downloads what is not in its cache. Or a run, or a file: of mereo, or under the names of timm or of
            the authors; other numbers of classes and colours may be given, as with `pretrained`. A network on a
            backbone gives them to its backbone, and takes a bundled name as well.
        features_only: return a backbone that gives the maps of its stages, see `FeatureMaps`.
        out_indices: the stages whose maps a backbone gives; all by default. For a network on a backbone, the stages
            that it uses.
        kwargs: any other argument of the network, such as `patch_size` of MSPCaps. None means "the preset's". `surgery`
            is a list of {"name": ..., "args": {...}} of functions of `mereo.surgery`, which are done to the network in
            order, as `config["surgery"]` of a changed network states them.

    Returns:
        The model in training mode, with `config` and `pretrained_cfg` set, its convolutions in the memory layout in
        which they are faster. Saved weights have the ordinary layout. What it reads and gives are its `input_kind`
        and `output_kind`: a `SequenceModel` takes neither classes nor image sizes.
    """
    if not isinstance(features_only, bool):
        raise UsageError(f"features_only is {features_only!r}; it must be True or False.")
    check_text(name=name)
    name, _, tag = name.partition(".")
    entry = get_model_entry(name)
    name = entry.name
    given = {"num_classes": num_classes, "in_chans": in_chans, "img_size": img_size, **kwargs}
    if out_indices is not None and not features_only:
        if "out_indices" not in entry.defaults:
            raise UsageError(f"out_indices is {out_indices}, and features_only is False; set features_only=True.")
        given["out_indices"] = out_indices
    given = {argument: value for argument, value in given.items() if value is not None}
    if weights is not None:
        if tag or pretrained or checkpoint_path:
            raise UsageError(f"weights is {weights!r}, and other weights are given too; leave one out.")
        model = _with_weights(entry, weights, given)
    elif (tag or pretrained) and (published := published_weights(entry, tag or pretrained)) is not None:
        model = _with_weights(entry, published, given)
    elif tag or pretrained:
        model = _pretrained(name, tag or pretrained, given, checkpoint_path)
    else:
        model = build(name, **given)
        if checkpoint_path:
            load_state(model, checkpoint_path)
    return FeatureMaps(model, out_indices) if features_only else model


def published_weights(entry: ModelEntry, pretrained: bool | str = True) -> str | None:
    """The `weights` that `pretrained` stands for, if a library publishes them: for its own networks, and for presets of
    the same name without bundled weights."""
    if (library := library_of(entry.name)) is not None:
        return library if pretrained is True else f"{library}.{pretrained}"
    if pretrained is not True or tags_of(entry.name) or not has_timm_weights(entry.name):
        return None
    return "timm"


def _with_weights(entry: ModelEntry, weights: str | Path, given: dict[str, Any]) -> VisionModel:
    """A network with the weights of a file or a run, or with a library's published weights."""
    if entry.module.part_with_weights:
        model = build(entry.name, **given)
        model.load_part(str(weights))
        return model
    if Path(weights).exists():
        return _from_file(entry.name, weights, given)
    if (load_published := entry.module.published_loader(str(weights))) is not None:
        model = build(entry.name, **given)
        load_published(model)
        return model
    library, _, tag = str(weights).partition(".")
    if library != "timm":
        raise UsageError(f"weights is {str(weights)!r}; give 'timm', or a file or a run folder that exists.")
    return from_timm_checkpoint(entry.name, given, tag or None)


def _say_what_is_new(filled: Filled) -> None:
    """Warn of layers that must be trained because the weights are for images of another size."""
    if filled.unfit:
        warnings.warn(f"{filled.resized}. Train the network before use.", UserWarning, stacklevel=4)


def _from_file(name: str, weights: str | Path, given: dict[str, Any]) -> VisionModel:
    """A network with the weights of a run or a file; `given` are its arguments."""
    path = weights_file(weights)
    if is_described(path):
        source = load(path)
        if source.config["model"] != name:
            raise UsageError(f"weights is {str(weights)!r}, which belongs to {source.config['model']}, not to {name}.")
    else:
        own = {argument: value for argument, value in given.items() if argument not in ("num_classes", "in_chans")}
        source = cast(VisionModel, convert(path, model=name, **own))
    model = rebuild({**source.config, "args": {**source.config["args"], **given}})
    if model.input_kind != "images":
        load_state(model, path)
        return model
    _say_what_is_new(fill(model, source.state_dict(), {**source.metadata, **source.config}, str(weights)))
    if model.image_shape[0] == source.image_shape[0]:
        model.pretrained_cfg |= {key: source.pretrained_cfg[key] for key in ("mean", "std")}
    model.metadata = source.metadata
    return model


def _pretrained(
    name: str, pretrained: bool | str, given: dict[str, Any], checkpoint_path: str | Path = ""
) -> VisionModel:
    """A network with weights of the package; `given` are its arguments."""
    if checkpoint_path:
        raise UsageError(f"checkpoint_path is {str(checkpoint_path)!r} with pretrained weights; leave one out.")
    source = f"{name}.{choose_tag(name, pretrained)}"
    tensors, metadata = load_tensors(pretrained_path(source))
    model = build(name, **{**metadata["args"], **given})
    if model.input_kind != "images":
        load_state(model, pretrained_path(source))
        model.metadata, model.class_names = metadata, tuple(metadata.get("class_names", ()))
        return model
    _say_what_is_new(fill(model, tensors, metadata, source))
    kept = ("mean", "std") if model.image_shape[0] == metadata["args"].get("in_chans") else ()
    model.pretrained_cfg |= {key: tuple(metadata["pretrained_cfg"][key]) for key in kept}
    model.pretrained_cfg["license"] = metadata["pretrained_cfg"].get("license")
    model.metadata = metadata
    return model
