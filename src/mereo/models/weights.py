"""Weights as safetensors that carry everything needed to use them: name, arguments, classes, preprocessing.

Nothing is unpickled: a file that is not safetensors is refused by its content.
"""

import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from mereo.core.shapes import image_size
from mereo.errors import MereoError, UsageError, type_of
from mereo.escape import cut, listed
from mereo.files import open_regular, write_atomically
from mereo.models.base import VisionModel
from mereo.models.metadata import FORMAT, Description, check_description, describe
from mereo.models.pretrained import bundled_name, check_same_surgery, list_pretrained, pretrained_path, shape_faults
from mereo.models.rebuilding import check_dense, checked, outline_of, rebuild
from mereo.models.registry import OWN, library_of

LONGEST_HEADER = 2**24
"""Largest size of names, shapes and metadata in bytes; 20,000 tensors with 20,000 class names take a tenth of it."""
_NO_PICKLES = (
    "Pickled checkpoints (.pth, .pt, .bin) are not opened, because they may run code: write their tensors by"
    " safetensors.torch.save_file(torch.load(path, weights_only=True), 'weights.safetensors')"
)


def not_finite(tensors: Mapping[str, Tensor]) -> list[str]:
    """Names of the tensors that hold NaN or infinity."""
    return [n for n, tensor in tensors.items() if tensor.is_floating_point() and not torch.isfinite(tensor).all()]


def check_finite(tensors: Mapping[str, Tensor], path: Path) -> None:
    """MereoError, before anything is written, for weights that are not finite."""
    for name in not_finite(tensors):
        raise MereoError(
            f"{name} holds values that are not finite, so {path} is not written. If it comes from training, a smaller"
            " lr, clip_norm=1 or a longer warm-up may help."
        )


def save_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, Any]) -> None:
    """Tensors and one JSON document as a safetensors file, written atomically."""
    flat = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    write_atomically(path, save(flat, {"format": "pt", "mereo": json.dumps(metadata)}))


@contextmanager
def _opened(path: Path, device: str = "cpu", described: bool = True) -> Iterator[tuple[Any, dict[str, Any]]]:
    """A safetensors file, none of its tensors read, and its JSON document; UsageError if it is anything else.

    Without `described`, a file without such a document is accepted, and the document returned is empty.
    """
    if not path.is_file():
        raise UsageError(f"{path} is not a file.")
    try:
        _check_header(path)
        with safe_open(path, framework="pt", device=device) as file:
            metadata = json.loads((file.metadata() or {}).get("mereo", "null"))
            if not isinstance(metadata, dict) and not described:
                metadata = {}
            if not isinstance(metadata, dict):
                raise UsageError(f"{path} holds tensors but no description of a model; it was not written by mereo.")
            yield file, metadata
    except UsageError:
        raise
    except (SafetensorError, ValueError, RecursionError, OSError) as error:
        program = path.suffix in {".onnx", ".pt2"}
        others = "An exported program is run by onnxruntime or torch.export" if program else _NO_PICKLES
        raise UsageError(
            f"{path} is not a readable safetensors file ({cut(str(error), 200)}). {others}; weights end in"
            " .safetensors, as `mereo train` writes them."
        ) from error


def load_tensors(path: str | Path, device: str = "cpu") -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and the JSON document of a file written by `save_tensors`; UsageError if it is anything else."""
    with _opened(Path(path), device) as (file, metadata):
        return {name: file.get_tensor(name) for name in file.keys()}, metadata  # noqa: SIM118


def read_tensors(path: str | Path) -> dict[str, Tensor]:
    """Tensors of any safetensors file, such as one of another library."""
    with _opened(Path(path), described=False) as (file, _):
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118


def is_described(path: str | Path) -> bool:
    """Whether a safetensors file states which network of mereo it is for; UsageError if it is no such file."""
    with _opened(Path(path), described=False) as (_, metadata):
        return bool(metadata)


def read_metadata(path: str | Path) -> dict[str, Any]:
    """The JSON document of a file written by `save_tensors`, without its tensors."""
    with _opened(Path(path)) as (_, metadata):
        return metadata


def _check_header(path: Path) -> None:
    """UsageError for a header that is larger than any that mereo writes: reading it would take many times its size."""
    with open_regular(path) as file:
        start = file.read(8)
    if len(start) == 8 and (size := struct.unpack("<Q", start)[0]) > LONGEST_HEADER:
        raise UsageError(
            f"{path} is not a readable safetensors file (its header claims {size:,} bytes). {_NO_PICKLES}; weights end"
            " in .safetensors, as `mereo train` writes them."
        )


def save_weights(
    path: str | Path,
    model: VisionModel,
    *,
    class_names: tuple[str, ...] = (),
    state: Mapping[str, Tensor] | None = None,
    **extra: Any,
) -> None:
    """Save a model so that `load` needs nothing else: its name, arguments, surgery and weights.

    Args:
        path: a file that ends in .safetensors.
        model: made by `create_model`, also after `moh`, `evit` and the other functions of `mereo.surgery`, or compiled.
        class_names: of the scores, in order.
        state: weights to save in place of the model's own, such as an average.
        extra: anything else worth keeping, such as measured results.

    Raises:
        UsageError: for a network that was changed in another way, which no file can describe; the error names it.
    """
    if not isinstance(model, nn.Module):
        raise UsageError(f"model is {type_of(model)}; the file comes first: save_weights(path, model).")
    model = checked(model, state)
    metadata = {
        "format": FORMAT,
        **model.config,
        "class_names": list(class_names),
        "pretrained_cfg": model.pretrained_cfg,
        **extra,
    }
    state = model.state_dict() if state is None else state
    check_dense(state, f"{path} cannot be written")
    check_finite(state, Path(path))
    save_tensors(Path(path), state, metadata)


def load_state(model: VisionModel, path: str | Path) -> None:
    """Put the weights of a file into a model of the same architecture; UsageError names what does not fit."""
    with _opened(Path(path)) as (file, metadata):
        check_same_surgery(model, metadata, str(path))
        tensors = _fitting(model, file, Path(path))
    model.load_state_dict(tensors)


def _fitting(model: VisionModel, file: Any, path: Path) -> dict[str, Tensor]:
    """The tensors of an open file; UsageError unless they have the names, shapes and kinds of a model's own.

    Names and shapes are compared before a tensor is read.
    """
    expected = model.state_dict()
    shapes = {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118
    _check_faults(shape_faults({name: x.shape for name, x in expected.items()}, shapes), model, path)
    faults = []
    tensors = {name: file.get_tensor(name) for name in expected}
    for name in sorted(expected):
        given, dtype = tensors[name], expected[name].dtype
        if given.is_floating_point() != dtype.is_floating_point:
            faults.append(f"{name} is {given.dtype}, not {dtype}")
        # In the model's type, for which a wider number may be too large.
        elif given.is_floating_point() and not torch.isfinite(given.to(dtype)).all():
            faults.append(f"{name} holds values that are not finite")
    _check_faults(faults, model, path)
    return tensors


def _check_faults(faults: Sequence[str], model: VisionModel, path: Path) -> None:
    if faults:
        raise UsageError(f"{path} does not fit {type(model).__name__}: {listed(faults)}.")


def weights_file(path: str | Path) -> Path:
    """The file that `load` reads for the path of a file or folder, or a bundled name; UsageError if there is none."""
    if not isinstance(path, str | Path):
        raise UsageError(f"weights are {type_of(path)}; give the path of a file or folder, or a bundled name.")
    if path == "":  # which would be the working folder
        raise UsageError(f"weights are ''; {_at_hand(Path())}.")
    if not Path(path).exists() and bundled_name(str(path)) is not None:
        return pretrained_path(str(path))
    path = Path(path)
    if not path.is_dir():
        if not path.is_file():
            raise UsageError(
                f"weights are {str(path)!r}, and there is no such file or folder; {_at_hand(path.parent)}."
            )
        return path
    for file in (path / "model.safetensors", path / "weights" / "best.safetensors"):
        if file.is_file():
            return file
    what = "a folder without weights"
    if (path / "config.yaml").is_file():
        what = "a run without weights yet, because none of its epochs is finished"
    raise UsageError(f"weights are {str(path)!r}, {what}; {_at_hand(path)}.")


def _at_hand(folder: Path) -> str:
    """The trained networks of a folder, the newest first, and the bundled ones."""
    files = sorted(folder.glob("*/weights/best.safetensors"), key=lambda file: -file.stat().st_mtime)
    runs = [str(file.parent.parent) for file in files]
    listed = ", ".join(runs[:5]) + (f" and {len(runs) - 5} more" if len(runs) > 5 else "")
    return f"there are {f'{listed}; and ' if runs else ''}{', '.join(list_pretrained())} in the package"


def _give(network: nn.Module, description: Description) -> None:
    """Register a network under the name that its file states."""
    from mereo.models.plain.own import register_own  # which imports networks, and they this module

    name = str(description.config["model"])
    if library_of(name) != OWN:
        raise UsageError(f"network is given, and the weights are of {name}, which is made by its name; leave it out.")
    register_own(network, image_size(description.config["args"]["img_size"]), name.partition(":")[2])


def load(path: str | Path, device: str | torch.device = "cpu", *, network: nn.Module | None = None) -> VisionModel:
    """A trained model from a file of weights, the folder of a run, an exported folder, or the package, in eval mode.

    `path` may also be one of `list_models(pretrained=True)`, such as "mspcaps_tiny.mnist", unless a file has that name;
    the name of the network is enough if the package has one file of its weights.

    `model.class_names` are the names of its scores, `model.pretrained_cfg` its preprocessing, `model.metadata` all that
    was saved with the weights.

    Args:
        path: of the weights.
        device: to load to.
        network: the module that was trained, or one like it, for weights of a network that was given to `mereo.train`.
    """
    path = weights_file(path)
    with _opened(path) as (file, metadata):
        description = describe(path, metadata)
        if network is not None:
            _give(network, description)
        # A small file may state a network of any size: its outline takes no memory.
        try:
            stated = outline_of(description.config)
        except UsageError as error:
            raise UsageError(f"{path}: {error}") from error
        check_description(path, description, stated)
        tensors = _fitting(stated, file, path)
    model = rebuild(description.config)
    model.load_state_dict(tensors)
    model.pretrained_cfg = {**model.pretrained_cfg, **description.preprocessing}
    model.class_names = description.class_names
    model.metadata = metadata
    return model.to(device).eval()
