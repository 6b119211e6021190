"""The trained network that a command uses."""

from pathlib import Path
from typing import TYPE_CHECKING

from mereo.errors import UsageError

if TYPE_CHECKING:
    from mereo.models import VisionModel

READY = "mspcaps_tiny.mnist"
"""The bundled weights used as long as there is no run."""


def newest_run(output: Path = Path("runs")) -> Path:
    """The run folder with the newest best weights; UsageError if there is none."""
    runs = sorted(output.glob("*/weights/best.safetensors"), key=lambda p: p.stat().st_mtime)
    if not runs:
        raise UsageError(f"weights is not given, and there is no run in {output}/; train a network with `mereo train`.")
    return runs[-1].parent.parent


def load_weights(weights: Path | None, device: str, *, ready: bool = False) -> tuple["VisionModel", Path]:
    """A trained network and where it is from.

    Args:
        ready: without given weights and without a run, use `READY` instead of raising a UsageError.
    """
    from mereo.models import load
    from mereo.runtime.device import choose_device

    try:
        path = newest_run() if weights is None else weights
    except UsageError:
        if not ready:
            raise
        path = Path(READY)
    return load(path, choose_device(device)), path
