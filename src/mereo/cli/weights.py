"""Which trained network a command uses."""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mereo.models import CapsuleClassifier


DEFAULT = "mspcaps_tiny.mnist"
"""The network of the package that a command uses where there is no run."""


def newest_run(output: Path = Path("runs")) -> Path:
    """The run folder whose best weights were written last, or else the network that comes with the package."""
    runs = sorted(output.glob("*/weights/best.safetensors"), key=lambda p: p.stat().st_mtime)
    return runs[-1].parent.parent if runs else Path(DEFAULT)


def load_weights(weights: Path | None, device: str) -> tuple["CapsuleClassifier", Path]:
    """A trained network and where it is from."""
    from mereo.models import load
    from mereo.training.setup import choose_device

    path = newest_run() if weights is None else weights
    return load(path, choose_device(device)), path
