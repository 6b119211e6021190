"""The record of a run: its measured results, data, seed, and the command that repeats it."""

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mereo.data.sets import is_dataset
from mereo.errors import UsageError
from mereo.training.config import FIELDS, TrainConfig
from mereo.training.option_values import show_arguments, show_size
from mereo.training.recipes import apply_recipe, is_recipe
from mereo.training.results import read_results
from mereo.training.run_folder import INCIDENTAL, RunFolder

FILLED_IN = ("img_size", "in_chans", "augment", "mean", "std", "validation_fraction", "loss")
"""Fields that a run fills in if they are not given."""
STATED_FIRST = {"model", "data", "recipe"}
CHOSEN = ("img_size", "epochs", "batch_size", "lr", "warmup_epochs", "augment", "sampler")
"""Fields that `mereo train` chooses from the data if no recipe is given, so that a command must state them."""


def run_of(weights: Path) -> RunFolder | None:
    """The run that a path belongs to: its folder, or a file in its folder of weights."""
    path = weights if weights.is_dir() else weights.parent.parent
    folder = RunFolder(path)
    inside = weights.is_dir() or weights.parent.name == "weights"
    return folder if inside and folder.config.is_file() else None


def read_record(weights: Path) -> dict[str, Any]:
    """The results of the run of some weights and its command; empty if they belong to no finished run."""
    folder = run_of(weights)
    if folder is None or not folder.results.is_file():
        return {}
    config = TrainConfig.from_yaml(folder.config)
    results = read_results(folder.results, config.task)
    which = "last" if weights.name == folder.last.name else "best"
    kept = ("parameters", "chosen_on", "best_epoch", "train_images", "seconds", "device", "torch")
    figures = {"test": results[f"test_{which}"], **{name: results[name] for name in kept}}
    # A training of given minutes ends before the epochs that it may have at most.
    ran = config.replace(epochs=results.get("epochs", config.epochs), minutes=None)
    figures |= {"which": which, "epochs": ran.epochs}
    if which == "last":
        figures["chosen_on"] = "last epoch"
    task: dict[str, Any] = {} if config.task == "classification" else {"task": config.task}
    if config.task_options:
        task["task_options"] = config.task_options
    return {**task, "data": config.data, "seed": config.seed, "results": figures, "command": command_of(ran)}


def _still_filled_in(given: Mapping[str, Any], base: TrainConfig, config: TrainConfig) -> dict[str, Any]:
    """The fields that a run would resolve to other values by itself."""
    from mereo.training.plan import resolve

    # A configuration may come from anywhere, so its data is inspected only if it is a registered data set.
    if not is_dataset(config.data):
        return dict(given)
    try:
        settled = resolve(base.replace(**{k: v for k, v in given.items() if k not in FILLED_IN}))
    except (UsageError, OSError):  # the data set is not on this machine
        return dict(given)
    same = [n for n in FILLED_IN if n in given and getattr(settled, n) == getattr(config, n)]
    return {name: value for name, value in given.items() if name not in same}


def command_of(config: TrainConfig) -> str:
    """The command line of a run: options that differ from its recipe or the defaults, and affect its results."""
    if config.recipe is not None and is_recipe(config.recipe):
        base = apply_recipe(config.recipe, config.model, config.data)
        words = ["--recipe", str(base.recipe)]
    else:
        base, words = TrainConfig().replace(model=config.model, data=config.data), []
    words += ["--model", config.model, "--data", config.data]
    given = {
        name: value
        for name in FIELDS
        if name not in STATED_FIRST | INCIDENTAL and (value := getattr(config, name)) != getattr(base, name)
    }
    stated = _still_filled_in(given, base, config)
    if not is_recipe(config.recipe):
        known = {name: getattr(config, name) for name in CHOSEN}
        stated |= {name: value for name, value in known.items() if value not in (None, ("auto",))}
    for name, value in sorted(stated.items(), key=lambda item: [*FIELDS].index(item[0])):
        option = name.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{option}" if value else f"--no-{option}")
        elif isinstance(value, dict):
            words += [f"--{option}", *show_arguments(value)]
        elif name == "img_size":
            words += [f"--{option}", show_size(value)]
        elif isinstance(value, tuple):
            words += [f"--{option}", *map(str, value)]
        else:
            words += [f"--{option}", str(value)]
    return shlex.join(["mereo", "train", *words])
