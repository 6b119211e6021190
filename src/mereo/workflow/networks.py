"""The trained network of a call: of a run, a file or a bundled checkpoint, or a network that is in memory."""

from pathlib import Path
from typing import Any

from torch import nn

from mereo.cli.weights import load_weights
from mereo.errors import UsageError, type_of
from mereo.models import FeatureMaps, Network, VisionModel
from mereo.runtime.device import choose_device
from mereo.training.results import RunResult
from mereo.workflow.options import fit


def trained_network(model: Any, device: str = "auto") -> tuple[VisionModel, Path]:
    """A network for images, and where its weights are from.

    Args:
        model: a run folder, a weight file or the name of bundled weights; a network; what `mereo.train` returned; a
            fitted `mereo.ImageClassifier`; or None for the newest run, else the bundled digits.
        device: to run on; with "auto" a network stays where it is.
    """
    source: Path | None = None
    if isinstance(model, RunResult):
        model, source = model.model, model.folder.best
    elif hasattr(model, "model_") and isinstance(model.model_, nn.Module):
        model = model.model_
    if model is None or isinstance(model, str | Path):
        return load_weights(fit("model", model, Path | None), device, ready=True)
    model = getattr(model, "_orig_mod", model)
    if not isinstance(model, VisionModel):
        raise UsageError(
            f"model is {_what(model)}; give a run folder, a weight file, or a network of mereo for images."
        )
    if device != "auto":
        model = model.to(choose_device(device))
    return model, source or Path(str(model.config["model"]) if hasattr(model, "config") else type(model).__name__)


def _what(model: Any) -> str:
    if isinstance(model, FeatureMaps):
        return "a backbone without a classifier (features_only=True)"
    if isinstance(model, Network):
        return f"{type_of(model)}, which reads {model.input_kind}; call it itself"
    if isinstance(model, nn.Module):
        return f"{type_of(model)}, which is not mereo's (timm's are mereo.create_model('timm:NAME'))"
    return type_of(model)
