"""Weights as safetensors that carry everything needed to use them: name, arguments, classes, preprocessing.

Nothing is unpickled: a file that is not safetensors is refused by its content.
"""

import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from mereo.errors import MereoError, UsageError
from mereo.models.base import CapsuleClassifier
from mereo.models.registry import create_model

FORMAT = 1
"""Of the metadata; a file with a higher number is refused."""


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file so that at any moment either the old or the new content is there, whole."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            Path(name).chmod(0o644)
            Path(name).replace(path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise MereoError(
            f"cannot write {path}: {error.strerror or error}. The files written before are untouched."
        ) from error


def save_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, Any]) -> None:
    """Tensors and one JSON document as a safetensors file, written atomically."""
    flat = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    write_atomically(path, save(flat, {"format": "pt", "mereo": json.dumps(metadata)}))


def load_tensors(path: str | Path, device: str = "cpu") -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and the JSON document of a file written by `save_tensors`; UsageError if it is anything else."""
    path = Path(path)
    if not path.is_file():
        raise UsageError(f"{path} is not a file.")
    try:
        with safe_open(path, framework="pt", device=device) as file:
            metadata = json.loads((file.metadata() or {}).get("mereo", "null"))
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, ValueError, OSError) as error:
        raise UsageError(
            f"{path} is not a readable safetensors file ({error}). Pickled checkpoints are not opened; files end in"
            " .safetensors and are written by `mereo train`."
        ) from error
    if not isinstance(metadata, dict):
        raise UsageError(f"{path} holds tensors but says nothing of the model they belong to; it is not mereo's.")
    return tensors, metadata


def save_weights(
    path: str | Path,
    model: CapsuleClassifier,
    *,
    class_names: tuple[str, ...] = (),
    state: Mapping[str, Tensor] | None = None,
    **extra: Any,
) -> None:
    """Save a model so that `load` needs nothing else.

    Args:
        path: a file that ends in .safetensors.
        model: made by `create_model`.
        class_names: of the scores, in order.
        state: its weights, where they are not those the model holds now (an average, say).
        extra: anything else worth keeping, such as measured results.
    """
    if not hasattr(model, "config"):
        raise UsageError(
            f"this {type(model).__name__} does not know its name and arguments; make it with create_model to save it."
        )
    metadata = {
        "format": FORMAT,
        **model.config,
        "class_names": list(class_names),
        "pretrained_cfg": model.pretrained_cfg,
        **extra,
    }
    save_tensors(Path(path), model.state_dict() if state is None else state, metadata)


def load_state(model: CapsuleClassifier, path: str | Path) -> None:
    """Put the weights of a file into a model of the same architecture; UsageError says what does not fit."""
    tensors, _ = load_tensors(path)
    _fill(model, tensors, Path(path))


def _fill(model: CapsuleClassifier, tensors: Mapping[str, Tensor], path: Path) -> None:
    expected = model.state_dict()
    missing = sorted(expected.keys() - tensors.keys())
    surplus = sorted(tensors.keys() - expected.keys())
    wrong = [
        f"{name} is {tuple(tensors[name].shape)}, not {tuple(expected[name].shape)}"
        for name in sorted(expected.keys() & tensors.keys())
        if tensors[name].shape != expected[name].shape
    ]
    wrong += [
        f"{name} is {tensors[name].dtype}, not {expected[name].dtype}"
        for name in sorted(expected.keys() & tensors.keys())
        if tensors[name].is_floating_point() != expected[name].is_floating_point()
    ]
    faults = [f"missing {n}" for n in missing] + [f"unexpected {n}" for n in surplus] + wrong
    faults += [
        f"{name} holds values that are not finite"
        for name, tensor in tensors.items()
        if tensor.is_floating_point() and not torch.isfinite(tensor).all()
    ]
    if faults:
        shown = "; ".join(faults[:3]) + (f"; and {len(faults) - 3} more" if len(faults) > 3 else "")
        raise UsageError(f"{path} does not fit {type(model).__name__}: {shown}.")
    model.load_state_dict(dict(tensors))


def load(path: str | Path, device: str | torch.device = "cpu") -> CapsuleClassifier:
    """A trained model from a file of weights, the folder of a run or an exported folder, in eval mode.

    `model.class_names` are the names of its scores, `model.pretrained_cfg` its preprocessing, `model.metadata` all that
    was saved beside the weights.
    """
    path = Path(path)
    if path.is_dir():
        exported = path / "model.safetensors"
        path = exported if exported.is_file() else path / "weights" / "best.safetensors"
    tensors, metadata = load_tensors(path)
    if metadata.get("format", FORMAT) > FORMAT:
        raise UsageError(
            f"{path} has format {metadata['format']}, and this version reads up to {FORMAT}; install a newer mereo."
        )
    if not {"model", "args"} <= metadata.keys():
        raise UsageError(f"{path} does not say which model it is for; it is not a file of weights written by mereo.")
    arguments = {k: _tuples(v) for k, v in metadata["args"].items()}
    model = create_model(metadata["model"], **arguments)
    _fill(model, tensors, path)
    model.pretrained_cfg = {k: _tuples(v) for k, v in metadata.get("pretrained_cfg", model.pretrained_cfg).items()}
    model.class_names = tuple(metadata.get("class_names", ()))
    model.metadata = metadata
    return model.to(device).eval()


def _tuples(value: Any) -> Any:
    """JSON has lists where arguments were tuples."""
    return tuple(_tuples(v) for v in value) if isinstance(value, list) else value
