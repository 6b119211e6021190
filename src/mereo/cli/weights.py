"""Which trained network a command uses."""

from pathlib import Path
from typing import TYPE_CHECKING

from mereo.errors import UsageError

if TYPE_CHECKING:
    from mereo.models import CapsuleClassifier


def newest_run(output: Path = Path("runs")) -> Path:
    """The run folder whose best weights were written last; UsageError if there is none."""
    runs = sorted(output.glob("*/weights/best.safetensors"), key=lambda p: p.stat().st_mtime)
    if not runs:
        raise UsageError(f"weights is not given, and there is no run in {output}/; train one with `mereo train`.")
    return runs[-1].parent.parent


def load_weights(weights: Path | None, device: str) -> tuple["CapsuleClassifier", Path]:
    """A trained network and where it is from."""
    from mereo.models import load
    from mereo.training.setup import choose_device

    path = newest_run() if weights is None else weights
    return load(path, choose_device(device)), path
