"""`mereo train`."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

from mereo.cli.options import TrainOptions
from mereo.cli.parse import parse
from mereo.cli.show import print_table
from mereo.runtime.collection import uncollected
from mereo.runtime.printing import say
from mereo.training.config import FIELDS, TrainConfig
from mereo.training.recipes import apply_recipe

if TYPE_CHECKING:
    from collections.abc import Collection

    from mereo.training.defaults import Defaults
    from mereo.training.plan import Plan
    from mereo.training.report import Report
    from mereo.training.results import RunResult


def start_from(first: TrainOptions, words: list[str]) -> TrainConfig:
    """The configuration that options on the command line change: a file, the run to resume, a recipe, or the defaults.

    Args:
        first: the options, parsed on top of the defaults.
        words: the command line itself, which shows which options were given.
    """
    from mereo.training.defaults import follow_task
    from mereo.training.run_folder import RunFolder, check_resumable, folder_to_resume

    if first.config is not None:
        path = first.config / "config.yaml" if first.config.is_dir() else first.config
        if first.resume and not path.is_file():
            check_resumable(RunFolder(first.config))
        config = TrainConfig.from_yaml(path)
        # A run folder is the name of the run to resume.
        in_run_folder = first.resume and path.name == "config.yaml"
        return config.replace(name=path.parent.name, output=str(path.parent.parent)) if in_run_folder else config
    given = {word.split("=")[0] for word in words}
    base = TrainConfig()
    if first.recipe is not None:
        base = apply_recipe(
            first.recipe,
            first.model if "--model" in given else None,
            first.data if "--data" in given else None,
        )
    elif "--task" in given:
        base = follow_task(base.replace(task=first.task), given_options(words))
    if first.resume:
        named = base.replace(
            model=first.model if "--model" in given else base.model,
            data=first.data if "--data" in given else base.data,
            name=first.name,
            output=first.output,
        )
        folder = folder_to_resume(named)
        if folder.config.exists():
            return TrainConfig.from_yaml(folder.config).replace(name=first.name, output=first.output)
    return base


def given_options(words: list[str]) -> set[str]:
    """Names of the fields that options on a command line set."""
    names = {word[2:].partition("=")[0].replace("-", "_") for word in words if word.startswith("--")}
    return {name.removeprefix("no_") if name not in FIELDS else name for name in names}


def _defaults(config: TrainConfig, given: "Collection[str]", from_file: bool) -> "Defaults":
    """The configuration with its open settings chosen; a file, a recipe and the run to resume leave none open."""
    from mereo.training.defaults import Defaults, choose_defaults

    if from_file or config.recipe is not None or config.resume:
        if "minutes" not in given or config.resume:
            return Defaults(config)
        # With a time of its own only the number of epochs follows from it.
        given = {*given, *FIELDS} - ({"epochs"} - {*given})
    return choose_defaults(config, given)


def options_from(words: list[str], command: str = "train") -> TrainConfig:
    """The configuration of a command line, not resolved yet."""
    return _parsed(words, command)[0]


def _parsed(words: list[str], command: str) -> tuple[TrainConfig, TrainOptions]:
    """The configuration of a command line, and the options parsed on top of the defaults."""
    first = parse(TrainOptions, words, command)
    _import_engine()
    base = start_from(first, words)
    options = first
    if base != TrainConfig():
        given = {name: getattr(base, name) for name in FIELDS}
        options = parse(TrainOptions, words, command, TrainOptions(**given, config=first.config))
    config = TrainConfig(**{name: getattr(options, name) for name in FIELDS})
    for name in ("model_args", "task_options"):
        kept, changed = getattr(base, name), getattr(options, name)
        if set(kept) != set(changed):
            config = config.replace(**{name: {**kept, **changed}})
    config.check()
    return config, first


def _import_engine() -> None:
    """Import all that a training needs; with garbage collection this takes a quarter longer."""
    with uncollected():
        import accelerate  # noqa: F401

        import mereo.training.engine  # noqa: F401


def _find_rate(plan: "Plan") -> None:
    from mereo.training.rate_finder import draw_rates, find_rate
    from mereo.training.run_folder import run_name

    config = plan.config
    sweep = find_rate(plan)
    path = Path(config.output) / f"{run_name(config)}-rates.png"
    path.parent.mkdir(parents=True, exist_ok=True)
    draw_rates(sweep, path)
    say(f"the loss was lowest at a rate of {sweep.lowest:.1e}, after {len(sweep.rates)} steps: {path}")
    say(f"suggested: --lr {sweep.suggested:g}")


def run(words: list[str], command: str) -> None:
    """Train, or print the cost of training."""
    config, first = _parsed(words, command)
    if config.augment == ("help",):
        from mereo.data.augmentation_help import rows

        print_table(("operation", "what it does", "values"), rows())
        return
    result = trained(config, given_options(words), from_file=first.config is not None)
    if result is not None and result.main:
        from mereo.training.results import summary

        summary(result)


def trained(
    config: TrainConfig, given: "Collection[str]", *, from_file: bool = False, report: "Report | None" = None
) -> "RunResult | None":
    """The result of a training with its announcements; None where only its cost or a rate was to be printed.

    Args:
        config: of the training.
        given: names of the fields that were given, which are kept; the others are chosen from the data.
        from_file: whether it comes from a file, which leaves nothing to be chosen.
        report: shows the progress.
    """
    from mereo.training.callbacks import check_callbacks
    from mereo.training.defaults import show_defaults
    from mereo.training.run_folder import check_free, check_resumable, folder_to_resume, resumed
    from mereo.training.trackers import check_trackers

    # Before anything is read or timed.
    check_trackers(config.track)
    check_callbacks(config.callbacks)
    folder, first = folder_to_resume(config), os.environ.get("RANK", "0") == "0"
    if config.resume and first:
        check_resumable(folder)
    if config.dry_run or config.find_lr:
        from mereo.training.show_estimate import print_estimate

        defaults = _defaults(config, given, from_file)
        show_defaults(defaults, timed=False)
        plan = defaults.plan()
        if config.dry_run:
            print_estimate(plan)
        else:
            _find_rate(plan)
        return None
    from mereo.training.second_network import train_watched, watched
    from mereo.training.show_estimate import announce

    if first:
        check_free(config)
    shown = first and (report is None or not report.silent)
    if config.resume and shown and (line := resumed(folder, config)) is not None:
        say(line)

    def show(chosen: "Defaults") -> None:
        if shown:
            show_defaults(chosen)
            announce(chosen.plan(), measure=chosen.choice is None or chosen.choice.seconds is None)

    defaults = _defaults(config, given, from_file)
    show(defaults)
    return train_watched(watched(defaults).plan(), report, show)
