"""Metrics of a run for other programs: Weights & Biases, MLflow and other trackers that Accelerate knows by name.

Nothing leaves the machine unless the environment says so: Weights & Biases writes offline into the run folder, and
MLflow into a database beside it. TensorBoard events are written by `events.py`.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from typing import Any

from mereo.errors import MereoError, UsageError, unknown
from mereo.training.config import TrainConfig
from mereo.training.run_folder import RunFolder

TENSORBOARD = "tensorboard"
PROJECT = "mereo"
"""Name of the project or experiment that runs are listed under."""
EXTRAS = ("mlflow", TENSORBOARD, "wandb")
"""Extras of the package of the same name."""
_PLAIN = (bool, int, float, str)
"""Types of values that every tracker takes; others are stored as text."""


def check_trackers(names: Sequence[str]) -> None:
    """UsageError for a tracker that Accelerate does not know, and for one whose package is missing."""
    if not names:
        return
    from accelerate.tracking import LOGGER_TYPE_TO_CLASS
    from accelerate.utils import LoggerType

    for name in names:
        if name not in LOGGER_TYPE_TO_CLASS:
            raise unknown("tracker", name, LOGGER_TYPE_TO_CLASS)
        # Trackers that users registered bring their own package.
        known = name in LoggerType.list() and LOGGER_TYPE_TO_CLASS[name].__module__.startswith("accelerate.")
        if known and find_spec(name) is None:
            package = f"mereo[{name}]" if name in EXTRAS else name
            raise UsageError(f"track is {name!r}, which is not installed; pip install '{package}'.")


def _arguments(name: str, folder: RunFolder) -> dict[str, Any]:
    """Arguments of the tracker of a run; it writes on this machine unless the environment names another place."""
    if name == "wandb":
        os.environ.setdefault("WANDB_MODE", "offline")
        return {"name": folder.path.name, "dir": str(folder.path)}
    if name == "mlflow":
        runs = folder.path.parent.resolve()
        os.environ.setdefault("MLFLOW_TRACKING_URI", f"sqlite:///{runs / 'mlflow.db'}")
        return {"run_name": folder.path.name, "logging_dir": (runs / "mlflow").as_uri()}
    return {}


def _try(tracker: str, call: Callable[..., Any], /, *arguments: Any, **options: Any) -> Any:
    """The result of a call into a tracker; MereoError with its name for whatever it raises."""
    try:
        return call(*arguments, **options)
    except Exception as error:
        raise MereoError(f"{tracker} failed ({' '.join(str(error).split())}); leave it out of --track.") from error


class Trackers:
    """The trackers of one run; in other processes than the first none.

    Args:
        config: resolved; it is stored with the run.
        folder: of the run.
    """

    def __init__(self, config: TrainConfig, folder: RunFolder, *, main: bool = True) -> None:
        self.trackers: list[Any] = []
        names = [name for name in dict.fromkeys(config.track) if name != TENSORBOARD] if main else []
        if not names:
            return
        from accelerate.tracking import LOGGER_TYPE_TO_CLASS

        plain = {key: value if isinstance(value, _PLAIN) else str(value) for key, value in config.to_dict().items()}
        for name in names:
            kind = LOGGER_TYPE_TO_CLASS[name]
            place = [str(folder.path)] if kind.requires_logging_directory else []
            tracker = _try(name, kind, PROJECT, *place, **_arguments(name, folder))
            _try(name, tracker.start)
            _try(name, tracker.store_init_configuration, plain)
            self.trackers.append(tracker)

    def epoch(self, row: Mapping[str, Any]) -> None:
        """Log the metrics of an epoch."""
        values = {name: value for name, value in row.items() if name != "epoch" and value is not None}
        for tracker in self.trackers:
            _try(tracker.name, tracker.log, values, step=row["epoch"])

    def close(self) -> None:
        """Finish all of them."""
        for tracker in self.trackers:
            _try(tracker.name, tracker.finish)
