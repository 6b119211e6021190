"""The trained network that a command uses."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mereo.errors import UsageError
from mereo.escape import cut
from mereo.runtime.printing import say

if TYPE_CHECKING:
    from mereo.models import VisionModel

READY = "mspcaps_tiny.mnist"
"""The bundled weights used as long as there is no run."""


RUNS = Path("runs")
"""The default folder of run folders."""


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
    """The data of a run, from its configuration; the run's name where that cannot be read."""
    from mereo.training.config import TrainConfig

    try:
        return TrainConfig.from_yaml(run / "config.yaml").data
    except (UsageError, OSError):
        return run.name


def load_weights(
    weights: Path | None, device: str, *, ready: bool = False, images: bool = True
) -> tuple["VisionModel", Path]:
    """A trained network and where it is from.

    Args:
        ready: without given weights and without a run, use `READY` instead of raising a UsageError.
        images: raise a UsageError for a network that reads something else.
    """
    from mereo.inference.footprint import check_runs
    from mereo.models import load
    from mereo.runtime.device import choose_device

    path = weights
    if path is None:
        path = Path(READY) if ready and not _run_weights(RUNS) else newest_run()
    model = load(path, choose_device(device))
    if images and model.input_kind != "images":
        reads = f"of a network that reads {model.input_kind}"
        raise UsageError(f"weights are {str(path)!r}, {reads}; this command is for images.")
    check_runs(model, path)
    return model, path


def warn_if_out_of_distribution(model: "VisionModel", source: Path, paths: Sequence[Path], *, chosen: bool) -> None:
    """Warn of images that are unlike the training images of a network.

    Args:
        model: the network.
        source: of its weights.
        paths: of the images.
        chosen: whether the newest run was used because no weights were given. It is refused if every image differs from
            its data in two ways; bundled weights are not.
    """
    from mereo.inference.out_of_distribution import describe_out_of_distribution, out_of_distribution, sampled

    line = describe_out_of_distribution(model, paths)
    if line is None:
        return
    others = [path for path, reasons in out_of_distribution(model, paths).items() if len(reasons) > 1]
    if chosen and str(source) != READY and len(others) == len(sampled(paths)):
        raise UsageError(
            f"weights is not given, and with the newest run, {source}, {line}; to use it give --weights {source}."
        )
    say(f"mereo: warning: with {source}, {line}", file=sys.stderr)
