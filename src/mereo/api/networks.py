"""The trained network of a call: of a run, a file or a bundled checkpoint, or a network that is in memory."""

import warnings
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor, nn

from mereo.errors import UsageError, type_of
from mereo.escape import cut
from mereo.inference.footprint import check_runs
from mereo.models import FeatureMaps, Network, VisionModel, create_model, load
from mereo.models.plain.own import as_vision_model, has_preprocessing
from mereo.models.pretrained import bundled_name
from mereo.models.registry import library_of
from mereo.runtime.device import choose_device
from mereo.training.arguments import fit
from mereo.training.config import TrainConfig
from mereo.training.results import RunResult

READY = "mspcaps_tiny.mnist"
"""The bundled weights used as long as there is no run."""
RUNS = Path("runs")
"""The default folder of run folders."""


class Trained(NamedTuple):
    """A trained network, and where its weights are from."""

    model: VisionModel
    source: Path


def _run_weights(output: Path) -> list[Path]:
    """The best weights of the runs in a folder, the newest last."""
    return sorted(output.glob("*/weights/best.safetensors"), key=lambda path: path.stat().st_mtime)


def newest_run(output: Path = RUNS) -> Path:
    """The run folder with the newest best weights; UsageError if there is none, or if runs are of different data."""
    runs = [path.parent.parent for path in _run_weights(output)]
    if not runs:
        raise UsageError(f"weights is not given, and there is no run in {output}/; train a network with `mereo train`.")
    newest = {_data(run): str(run) for run in runs}
    if len(newest) > 1:
        listed = ", ".join(f"--weights {run} (trained on {cut(data, 60)})" for data, run in list(newest.items())[:5])
        raise UsageError(f"weights is not given, and the runs in {output}/ are of different data; give one: {listed}.")
    return runs[-1]


def _data(run: Path) -> str:
    """The data of a run, from its configuration; the run's name if that cannot be read."""
    try:
        return TrainConfig.from_yaml(run / "config.yaml").data
    except (UsageError, OSError):
        return run.name


def is_weights(text: str | Path) -> bool:
    """Whether a path is a run folder or a file of weights, a name of bundled weights, or of a network of a library."""
    if library_of(str(text)) is not None:
        return True
    path = Path(text)
    if path.is_dir():
        return (path / "config.yaml").is_file() and (path / "weights").is_dir()
    return path.suffix == ".safetensors" if path.is_file() else bundled_name(str(text)) is not None


def load_weights(weights: Path | None, device: str, *, ready: bool = False, images: bool = True) -> Trained:
    """A trained network and where it is from.

    Args:
        weights: a run folder, a file, a bundled name, or a network of a library with its published weights, such as
            timm:resnet18; the newest run when None.
        device: to run on.
        ready: without given weights and without a run, use `READY` instead of raising a UsageError.
        images: raise a UsageError for a network that reads something else.
    """
    path = weights
    if path is None:
        path = Path(READY) if ready and not _run_weights(RUNS) else newest_run()
    if library_of(str(path)) is not None:
        model: Any = create_model(str(path), pretrained=True).to(choose_device(device)).eval()
    else:
        model = load(path, choose_device(device))
    if images:
        check_reads(model, path, ("images",))
    check_runs(model, path)
    return Trained(model, path)


def check_reads(model: Network, path: Path, kinds: tuple[str, ...]) -> None:
    """UsageError for a network that reads something else."""
    if model.input_kind not in kinds:
        reads = f"of a network that reads {model.input_kind}"
        raise UsageError(f"weights are {str(path)!r}, {reads}; this command is for {' and '.join(kinds)}.")


def trained_network(model: Any, device: str = "auto", *, sets: bool = False, images: Any = None) -> Trained:
    """A network for images, and where its weights are from.

    Args:
        model: a run folder, a weight file or the name of bundled weights; a network, of mereo, timm, torchvision or
            your own; what `mereo.train` or `load_weights` returned; a fitted `mereo.ImageClassifier`; or None for the
            newest run, else the bundled digits.
        device: to run on; with "auto" a network stays where it is.
        sets: accept a network that reads points, regions or sequences too.
        images: what the network is used on; a network without a stated size gets the size of tensors and arrays.
    """
    kinds = ("images", *(("points", "regions", "sequences") if sets else ()))
    source: Path | None = None
    if isinstance(model, Trained):
        return model
    if isinstance(model, RunResult):
        model, source = model.model, model.folder.best
    elif hasattr(model, "model_") and isinstance(model.model_, nn.Module):
        model = model.model_
    if model is None or isinstance(model, str | Path):
        trained = load_weights(fit("model", model, Path | None), device, ready=True, images=not sets)
        check_reads(trained.model, trained.source, kinds)
        return trained
    model = getattr(model, "_orig_mod", model)
    if isinstance(model, nn.Module) and not isinstance(model, Network | FeatureMaps):
        model = _given(model, images)
    if getattr(model, "input_kind", None) not in kinds:
        raise UsageError(f"model is {_what(model)}; give a run folder, a weight file, or a network for images.")
    if device != "auto":
        model = model.to(choose_device(device))
    name = str(model.config["model"]) if hasattr(model, "config") else type(model).__name__
    return Trained(model, source or Path(name))


def _what(model: Any) -> str:
    if isinstance(model, FeatureMaps):
        return "a backbone without a classifier (features_only=True)"
    if isinstance(model, Network):
        return f"{type_of(model)}, which reads {model.input_kind}; call it itself"
    return type_of(model)


def _given(network: nn.Module, images: Any) -> VisionModel:
    """A network of timm, torchvision or the user's own under mereo's protocol."""
    size = None
    if isinstance(images, Tensor) and images.dim() in (3, 4):
        size = (images.shape[-2], images.shape[-1])
    elif isinstance(images, np.ndarray) and images.ndim == 4:
        size = images.shape[1:3]
    model = as_vision_model(network, size)
    if not has_preprocessing(network):
        warnings.warn(
            f"{type(network).__name__} states no mean and std of its images, so they are given as values in [0, 1]; if"
            " it was trained on others, set its pretrained_cfg = {'mean': (...), 'std': (...)}.",
            UserWarning,
            stacklevel=5,
        )
    return model
