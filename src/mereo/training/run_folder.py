"""The folder of a run: what lies where, and which folder a run gets."""

import json
import re
from pathlib import Path
from typing import Any

from mereo.errors import UsageError
from mereo.files import write_atomically
from mereo.training.config import TrainConfig

IDENTITY = {"device", "output", "name", "resume", "tensorboard", "dry_run", "checkpoint_seconds", "data_root"}
"""Fields that may differ when a run goes on, for they do not change what it computes."""


class RunFolder:
    """Names of the files of one run.

    config.yaml            what `mereo train <folder>/config.yaml` repeats
    state.safetensors      where a killed run goes on
    weights/best.safetensors, weights/last.safetensors
    results.csv            a line an epoch
    results.json           the figures at the end
    curves.png, samples_train.png, samples_test.png
    tensorboard/           events
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config, self.state = path / "config.yaml", path / "state.safetensors"
        self.best, self.last = path / "weights" / "best.safetensors", path / "weights" / "last.safetensors"
        self.history, self.results = path / "results.csv", path / "results.json"
        self.curves = path / "curves.png"
        self.train_samples, self.test_samples = path / "samples_train.png", path / "samples_test.png"
        self.tensorboard = path / "tensorboard"

    def remove_leftovers(self) -> None:
        """Remove half-written files that a kill left behind."""
        for path in (
            self.config, self.state, self.best, self.last, self.history, self.results, self.curves,
            self.train_samples, self.test_samples,
        ):  # fmt: skip
            for leftover in path.parent.glob(f".{path.name}.*"):
                leftover.unlink(missing_ok=True)

    def write_json(self, path: Path, content: dict[str, Any]) -> None:
        """Write one JSON document atomically."""
        write_atomically(path, (json.dumps(content, indent=2) + "\n").encode())


def run_name(config: TrainConfig) -> str:
    """Name of the run: the one given, or <model>-<data>."""
    data = re.sub(r"[^\w.-]+", "_", Path(config.data).name) or "data"
    return config.name or f"{config.model}-{data}"


def _numbered(config: TrainConfig) -> list[tuple[int, Path]]:
    """Existing folders of that name: (1, name), (2, name-2), ..."""
    name, root = run_name(config), Path(config.output)
    found = [(1, root / name)] if (root / name).exists() else []
    if config.name is None and root.is_dir():
        for path in root.glob(f"{name}-*"):
            number = path.name.removeprefix(f"{name}-")
            if number.isdigit():
                found.append((int(number), path))
    return sorted(found)


def new_folder(config: TrainConfig) -> RunFolder:
    """A folder that is not there yet; UsageError if the name given is taken."""
    taken = _numbered(config)
    if not taken:
        return RunFolder(Path(config.output) / run_name(config))
    if config.name is not None:
        raise UsageError(f"{taken[0][1]} is there already; give --resume to go on with it, or another --name.")
    return RunFolder(Path(config.output) / f"{run_name(config)}-{taken[-1][0] + 1}")


def folder_to_resume(config: TrainConfig) -> RunFolder:
    """The newest folder of that name, or a new one where there is none yet."""
    taken = _numbered(config)
    return RunFolder(taken[-1][1]) if taken else RunFolder(Path(config.output) / run_name(config))


def resumed(folder: RunFolder) -> str | None:
    """What to say of a folder before its run goes on; None where the run itself will tell."""
    if not folder.config.exists():
        return f"no run of that name in {folder.path.parent}; starting {folder.path}"
    if folder.state.exists() and folder.results.exists():
        return f"{folder.path} was finished already, with its results in {folder.results}; it is only judged again"
    return None


def differences(saved: TrainConfig, given: TrainConfig) -> dict[str, tuple[Any, Any]]:
    """The fields by which two configurations compute something else, with both values."""
    a, b = saved.to_dict(), given.to_dict()
    return {name: (a[name], b[name]) for name in a if name not in IDENTITY and a[name] != b[name]}


def check_same(saved: TrainConfig, given: TrainConfig, folder: RunFolder) -> None:
    """UsageError unless two configurations compute the same."""
    differing = differences(saved, given)
    if differing:
        parts = ", ".join(f"{name} was {was} and is {now}" for name, (was, now) in list(differing.items())[:4])
        raise UsageError(
            f"resume goes on with {folder.path} as it was begun, but {parts}. Leave those out, or start a new run from"
            f" its weights: without --resume, with --weights {folder.path} and another --name."
        )
