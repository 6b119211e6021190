"""A network as a folder: config.json, model.safetensors, README.md.

The layout is the Hugging Face hub's. config.json has timm's fields (architecture, model_args, pretrained_cfg,
label_names) and, at the top level, the arguments of the constructor, where `PyTorchModelHubMixin` expects them. Nothing
is unpickled: other weight files are not opened.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mereo.errors import UsageError
from mereo.escape import cut
from mereo.files import read_regular, write_atomically
from mereo.inference.predict import task_of
from mereo.inference.temperature import KEY, check_calibration
from mereo.models import VisionModel, get_model_entry, load, save_weights
from mereo.models.arguments import as_tuples
from mereo.models.metadata import check_preprocessing, check_record
from mereo.models.rebuilding import checked
from mereo.models.timm_entrypoints import PREFIX, timm_name
from mereo.models.weights import LONGEST_HEADER, read_metadata
from mereo.runtime.libraries import is_installed

CONFIG, WEIGHTS, CARD = "config.json", "model.safetensors", "README.md"
RECORD = ("task", "task_options", "data", "seed", "epoch", "results", "command", KEY)
"""Facts of the run that made the weights: its settings, its results, and the temperature of probabilities."""


def network_config(model: VisionModel, record: Mapping[str, Any]) -> dict[str, Any]:
    """The content of config.json."""
    arguments = dict(model.config["args"])
    surgery = {"surgery": model.config["surgery"]} if model.config.get("surgery") else {}
    name = model.config["model"]
    content: dict[str, Any] = {
        # timm makes the network of this name, which is its own for some of our names.
        "architecture": timm_name(name) if model.registered_with_timm and is_installed("timm") else name,
        "num_classes": model.num_classes,
        "num_features": model.num_features,
        "library_name": "mereo",
        "model_args": arguments | surgery,
        "pretrained_cfg": {k: v for k, v in model.pretrained_cfg.items() if k != "architecture"},
        **({} if surgery else arguments),  # a constructor alone would make another network
        "mereo": dict(record),
    }
    if model.class_names:
        content["label_names"] = list(model.class_names)
    return content


def known_record(model: VisionModel, record: Mapping[str, Any] | None) -> dict[str, Any]:
    """The record given, or what the weight file states about its run; UsageError for values of the wrong kinds."""
    source = model.metadata if record is None else {**model.metadata, **record}
    known = {name: source[name] for name in RECORD if source.get(name) is not None}
    check_record(known, "the weights")
    # What the task has measured on the training images, such as the units of numbers.
    fitted = task_of(model).fitted if "task" in model.metadata else {}
    known |= {name: model.metadata[name] for name in fitted if name in model.metadata}
    check_calibration(known.get(KEY))
    return known


def save_pretrained(
    model: VisionModel,
    folder: str | Path,
    *,
    record: Mapping[str, Any] | None = None,
    card: bool = True,
) -> Path:
    """Write a network as a folder that `from_pretrained`, timm and the Hugging Face hub read.

    Args:
        model: made by `create_model` or `load`.
        folder: made if it is not there; files of the same names are replaced.
        record: data, seed, epoch, results and command of the run; what the weight file states by default.
        card: whether README.md is written too.
    """
    model, folder = checked(model), Path(folder)
    known = known_record(model, record)
    content = json.dumps(network_config(model, known), indent=2) + "\n"
    save_weights(folder / WEIGHTS, model, class_names=tuple(model.class_names), **known)
    write_atomically(folder / CONFIG, content.encode())
    if card:
        from mereo.export.card import model_card

        write_atomically(folder / CARD, model_card(model, known, folder.name))
    return folder


def _read_config(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(read_regular(path, LONGEST_HEADER))
    except UsageError:
        raise
    except (OSError, ValueError, RecursionError) as error:
        reason = error.strerror if isinstance(error, OSError) else cut(str(error), 200)
        raise UsageError(f"{path} is not a readable config.json ({reason}).") from error
    keys = {"architecture": str, "model_args": dict, "pretrained_cfg": dict}
    wrong = [k for k, kind in keys.items() if not (isinstance(content, dict) and isinstance(content.get(k), kind))]
    if wrong:
        raise UsageError(f"{path} lacks {', '.join(wrong)}; it was not written by mereo's save_pretrained.")
    return content


def load_folder(folder: Path, device: str = "cpu") -> VisionModel:
    """The network of a folder written by `save_pretrained`, in eval mode.

    The weight file defines the network, and config.json must agree; labels and preprocessing are read from config.json
    and may be edited there.
    """
    config_path, weights = folder / CONFIG, folder / WEIGHTS
    if not weights.is_file():
        pickled = sorted(p.name for p in folder.glob("*") if p.suffix in {".bin", ".pt", ".pth", ".ckpt"})
        others = f" Pickled weights ({', '.join(pickled)}) are not opened." if pickled else ""
        raise UsageError(f"{folder} has no {WEIGHTS}.{others}")
    content = _read_config(config_path)
    name = content["architecture"].removeprefix(PREFIX)
    get_model_entry(name)
    metadata = read_metadata(weights)
    stated = {name: value for name, value in content["model_args"].items() if name != "surgery"}
    surgery = content["model_args"].get("surgery", [])
    pairs = {"architecture": (name, "model"), "model_args": (stated, "args")}
    for field, (value, key) in (pairs | {"surgery": (surgery, "surgery")}).items():
        if value != metadata.get(key, [] if key == "surgery" else None):
            raise UsageError(f"{field} of {config_path} and of {weights} differ; one of the files was changed.")
    model = load(weights, device)
    cfg = {key: as_tuples(value) for key, value in content["pretrained_cfg"].items()}
    check_preprocessing(config_path, cfg, model)
    labels = content.get("label_names", list(model.class_names))
    fits = isinstance(labels, list) and all(isinstance(label, str) for label in labels)
    if not fits or len(labels) not in (0, model.num_classes):
        raise UsageError(f"label_names of {config_path} must be a list of {model.num_classes} names.")
    model.pretrained_cfg |= cfg
    model.class_names = tuple(labels)
    return model
