"""Callbacks at the start and the end of each epoch, by name."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from mereo.errors import UsageError, unknown
from mereo.models.weights import read_metadata


class Callback(Protocol):
    """Runs between epochs. It may replace `trainer.sampler`, `trainer.splits`, or the values of parameters.

    `state` and `restore` make a resumed run exact: the state is saved with every checkpoint, and `restore` has to
    restore everything the callback has changed beyond weights and optimiser. `on_epoch_start` is not called again for
    an epoch that is resumed in the middle.
    """

    def on_epoch_start(self, trainer: Any, epoch: int) -> None:
        """Called before epoch number `epoch`, counted from 0."""

    def on_epoch_end(self, trainer: Any, epoch: int, row: dict[str, Any]) -> None:
        """Called after an epoch with its metrics `row`, before its checkpoint is written."""

    def state(self) -> dict[str, Any]:
        """The state that a resumed run needs, as JSON values."""

    def restore(self, trainer: Any, state: dict[str, Any]) -> None:
        """Continue from a saved state."""


CALLBACKS: dict[str, Callable[[], Callback]] = {}


def register_callback(name: str, make: Callable[[], Callback]) -> None:
    """Add a callback to those that `callbacks` of a configuration may name; `make` creates it for one run."""
    if name in CALLBACKS:
        raise UsageError(f"callback {name!r} is registered twice.")
    CALLBACKS[name] = make


def check_callbacks(names: Sequence[str]) -> None:
    """UsageError with the nearest names for a callback that is not registered."""
    for name in names:
        if name not in CALLBACKS:
            raise unknown("callback", name, CALLBACKS or ("none; register_callback adds one",))


def restore_callbacks(callbacks: Mapping[str, Callback], trainer: Any) -> None:
    """Continue from the states in the checkpoint of a run; UsageError for one that lacks any of them."""
    if not callbacks:
        return
    path = trainer.folder.state
    saved = read_metadata(path).get("progress")
    states = saved.get("callbacks") if isinstance(saved, dict) else None
    if not isinstance(states, dict) or not callbacks.keys() <= states.keys():
        raise UsageError(f"{path} has no state of the callbacks; remove it to start from the beginning.")
    for name, callback in callbacks.items():
        callback.restore(trainer, states[name])
