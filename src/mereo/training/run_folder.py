"""The folder of a run: its files, its name, and its lock against other trainings."""

import json
import os
import re
import shlex
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from mereo.errors import MereoError, UsageError
from mereo.files import cannot_write, write_atomically
from mereo.training.config import TrainConfig
from mereo.training.run_lock import LockedError, RunLock, check_unlocked

INCIDENTAL = {
    "device", "output", "name", "resume", "tensorboard", "track", "dry_run", "checkpoint_seconds", "data_root",
    "sync_batchnorm", "stream", "minutes",
}  # fmt: skip
"""Fields on which the results of a run in one process do not depend, so that they may differ when it is resumed."""
_LISTED = 3
"""Runs that a message lists."""


class RunFolder:
    """Names of the files of one run.

    config.yaml            configuration; `mereo train <folder>/config.yaml` repeats the run
    state.safetensors      checkpoint from which an interrupted run is resumed
    weights/best.safetensors, weights/last.safetensors
    results.csv            one line per epoch
    results.json           final metrics
    curves.png, samples_train.png, samples_test.png
    tensorboard/           events
    seen.safetensors       fingerprints of the training images
    set_aside.csv          files that could not be read, if there are any
    run.lock               exists while a process trains, and names it
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config, self.state = path / "config.yaml", path / "state.safetensors"
        self.best, self.last = path / "weights" / "best.safetensors", path / "weights" / "last.safetensors"
        self.history, self.results = path / "results.csv", path / "results.json"
        self.fingerprints, self.set_aside = path / "seen.safetensors", path / "set_aside.csv"
        self.curves = path / "curves.png"
        self.train_samples, self.test_samples = path / "samples_train.png", path / "samples_test.png"
        self.tensorboard = path / "tensorboard"
        self.files = (
            self.config, self.state, self.best, self.last, self.history, self.results, self.curves,
            self.train_samples, self.test_samples, self.fingerprints, self.set_aside,
        )  # fmt: skip

    def remove_leftovers(self) -> None:
        """Remove the temporary files of writes that a kill interrupted."""
        for path in self.files:
            for leftover in path.parent.glob(f".{path.name}.*"):
                leftover.unlink(missing_ok=True)

    def remove(self) -> None:
        """Remove the files of the run, and the folder if nothing else is in it."""
        self.remove_leftovers()
        for path in (*self.files, *self.tensorboard.glob("events.*")):
            path.unlink(missing_ok=True)
        for folder in (self.best.parent, self.tensorboard, self.path):
            with suppress(OSError):
                folder.rmdir()

    def write_json(self, path: Path, content: dict[str, Any]) -> None:
        """Write one JSON document atomically."""
        write_atomically(path, (json.dumps(content, indent=2) + "\n").encode())


def run_name(config: TrainConfig) -> str:
    """Name of the run: `config.name`, or <model>-<data>."""
    data = re.sub(r"[^\w.-]+", "_", Path(config.data).name) or "data"
    return config.name or f"{config.model.replace(':', '_')}-{data}"


def _numbered(config: TrainConfig) -> list[tuple[int, Path]]:
    """Existing folders of that name: (1, name), (2, name-2), ..."""
    name, root = run_name(config), Path(config.output)
    existing = [(1, root / name)] if (root / name).exists() else []
    if config.name is None and root.is_dir():
        for path in root.glob(f"{name}-*"):
            number = path.name.removeprefix(f"{name}-")
            if number.isdigit():
                existing.append((int(number), path))
    return sorted(existing)


def folder_to_resume(config: TrainConfig) -> RunFolder:
    """The newest folder of that name, or a new name if there is none yet."""
    taken = _numbered(config)
    return RunFolder(taken[-1][1]) if taken else RunFolder(Path(config.output) / run_name(config))


def resume_commands(root: Path) -> str:
    """The commands that go on with the newest runs in a folder, as text; empty without runs."""
    runs = sorted(root.glob("*/config.yaml"), key=lambda path: -path.stat().st_mtime) if root.is_dir() else []
    return "; ".join(f"mereo train {shlex.quote(str(path.parent))} --resume" for path in runs[:_LISTED])


def check_resumable(folder: RunFolder) -> None:
    """UsageError unless a folder is a run that no process trains, with the commands that resume the newest runs."""
    if folder.config.is_file() or folder.state.is_file():
        check_unlocked(folder.path)
        return
    parent = folder.path.parent
    what = "it is not the folder of a run" if folder.path.exists() else "it does not exist"
    inside, here = resume_commands(folder.path), resume_commands(parent)
    if not inside and not here:
        what += f", and {parent} has no runs"
    others = inside or here or resume_commands(Path(TrainConfig().output))
    go_on = f", or continue another run: {others}" if others else ""
    raise UsageError(f"there is no run {folder.path} to resume ({what}); leave out --resume to start a new one{go_on}.")


def resumed(folder: RunFolder, config: TrainConfig) -> str | None:
    """A line about a finished run, printed before it is resumed; None for any other, and for one that is refused."""
    finished = folder.config.exists() and folder.state.exists() and folder.results.exists()
    if finished and not differences(TrainConfig.from_yaml(folder.config), config):
        return f"{folder.path} is already finished, with results in {folder.results}; evaluating it again"
    return None


@contextmanager
def claimed(config: TrainConfig) -> Iterator[RunFolder]:
    """The folder in which a configuration trains, locked inside the block.

    A new folder is claimed by making it, so of several processes that start together each gets its own. The processes
    of one launch share the claim of the first. A folder in which nothing was written is removed afterwards. The
    configuration is a resolved one.

    Raises UsageError for a name that is taken, for a run that is being trained, and for a run to resume whose
    configuration computes something else.
    """
    from mereo.runtime.device import choose_device
    from mereo.training.processes import share_text

    config.check()
    device = choose_device(config.device)
    if int(os.environ.get("RANK", "0")) != 0:
        answer = json.loads(share_text("", device))
        if "error" in answer:
            raise UsageError(answer["error"])
        yield RunFolder(Path(answer["path"]))
        return
    root, new_root = Path(config.output), not Path(config.output).exists()
    try:
        folder, lock = _claim(config)
    except (UsageError, MereoError) as error:
        share_text(json.dumps({"error": str(error)}), device)
        raise
    try:
        share_text(json.dumps({"path": str(folder.path)}), device)
        yield folder
    finally:
        lock.release()
        with suppress(OSError):
            folder.path.rmdir()
            if new_root:
                root.rmdir()


def _claim(config: TrainConfig) -> tuple[RunFolder, RunLock]:
    """The folder of a run and its lock."""
    if config.resume:
        folder = folder_to_resume(config)
        lock = _make_and_lock(folder, new=False)
        try:
            _check_resumed(config, folder)
        except BaseException:
            lock.release()
            raise
        return folder, lock
    taken = _numbered(config)
    number = taken[-1][0] + 1 if taken and config.name is None else 1
    while True:
        name = run_name(config) if number == 1 else f"{run_name(config)}-{number}"
        folder = RunFolder(Path(config.output) / name)
        try:
            return folder, _make_and_lock(folder, new=True)
        except (FileExistsError, LockedError) as error:
            if config.name is not None:
                raise _taken(folder) from error
            number += 1


def check_free(config: TrainConfig) -> None:
    """UsageError for a new run whose name is taken or whose output is a file, before anything is prepared."""
    output = Path(config.output)
    if output.is_file():
        raise UsageError(f"output is {config.output!r}, which is a file; give a folder, in which runs are made.")
    if config.name is not None and not config.resume and (output / config.name).exists():
        raise _taken(RunFolder(output / config.name))


def _taken(folder: RunFolder) -> UsageError:
    return UsageError(f"{folder.path} already exists; give --resume to continue it, or another --name.")


def _make_and_lock(folder: RunFolder, *, new: bool) -> RunLock:
    """Make a folder and lock it; FileExistsError if `new` and it already exists."""
    try:
        folder.path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise cannot_write(folder.path, error) from error
    while True:
        try:
            folder.path.mkdir()
        except FileExistsError as error:
            if new:
                raise
            if not folder.path.is_dir():
                raise cannot_write(folder.path, error) from error
        except OSError as error:
            raise cannot_write(folder.path, error) from error
        try:
            return RunLock(folder.path)
        except FileNotFoundError:  # another process has just removed the empty folder
            continue
        except OSError as error:
            raise cannot_write(folder.path, error) from error


def _check_resumed(config: TrainConfig, folder: RunFolder) -> None:
    """UsageError unless a folder may be resumed with this resolved configuration."""
    folder.remove_leftovers()
    if folder.config.exists():
        check_same(TrainConfig.from_yaml(folder.config), config, folder)


def differences(saved: TrainConfig, given: TrainConfig) -> dict[str, tuple[Any, Any]]:
    """Fields that differ between two configurations and affect results, with both values."""
    a, b = saved.to_dict(), given.to_dict()
    return {name: (a[name], b[name]) for name in a if name not in INCIDENTAL and a[name] != b[name]}


def check_same(saved: TrainConfig, given: TrainConfig, folder: RunFolder) -> None:
    """UsageError unless two configurations give the same results."""
    differing = differences(saved, given)
    if differing:
        parts = ", ".join(f"{name} was {was} and is {now}" for name, (was, now) in list(differing.items())[:4])
        raise UsageError(
            f"resume continues {folder.path} with its own configuration, but {parts}. Leave those out, or start a new"
            f" run from its weights: without --resume, with --weights {folder.path} and another --name."
        )
