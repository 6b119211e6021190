"""`mereo.train`: train a network into a run folder."""

import os
from collections.abc import Collection, Mapping
from dataclasses import fields
from pathlib import Path
from time import monotonic
from typing import Any, get_type_hints

from mereo.api.arrays import NAME, array_dataset
from mereo.api.display import html_table, png, read_picture
from mereo.errors import UsageError, type_of
from mereo.escape import for_terminal
from mereo.models import get_model_entry
from mereo.models.registry import library_of
from mereo.models.weights import read_metadata
from mereo.runtime.printing import say
from mereo.runtime.text import text_table
from mereo.tasks import get_task
from mereo.training.arguments import check_values, fit_all
from mereo.training.automatic import Automatic, choose, follow_task
from mereo.training.callbacks import check_callbacks
from mereo.training.config import FIELDS, TrainConfig
from mereo.training.plan import Plan, make_plan
from mereo.training.rate_finder import draw_rates, find_rate
from mereo.training.recipes import apply_recipe
from mereo.training.report import Report
from mereo.training.results import RunResult, summary_rows
from mereo.training.run_folder import RunFolder, check_free, check_resumable, folder_to_resume, resumed, run_name
from mereo.training.show_estimate import announce, print_estimate
from mereo.training.trackers import check_trackers
from mereo.training.trainer import train as run_plan


class Training(RunResult):
    """A finished run: its table when printed, its curves and test images in a notebook."""

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Columns, without names, and rows: what the command prints at the end."""
        return ["", ""], [list(row) for row in summary_rows(self)]

    @property
    def accuracy(self) -> float:
        """On the test images, of the best epoch."""
        return self.test_best.accuracy

    def __str__(self) -> str:
        return text_table(*self.table())

    __repr__ = __str__

    def _repr_png_(self) -> bytes:
        return read_picture(self.folder.curves)

    def _repr_html_(self) -> str:
        pictures = [png(read_picture(path)) for path in (self.folder.curves, self.folder.test_samples)]
        return html_table(*self.table()) + "".join(pictures)


def configuration(source: Any, given: Mapping[str, Any]) -> TrainConfig:
    """The configuration that some options give, not resolved yet.

    Args:
        source: a configuration, its file or a run folder; None for the run to resume, a recipe, or the defaults.
        given: the options, by name.

    Raises:
        UsageError: for a source that is none, and for wrong options.
    """
    base = source if isinstance(source, TrainConfig) else _started(given) if source is None else _saved(source, given)
    changes = dict(given)
    for name in ("model_args", "task_options", "loss_weights"):
        if name in given:
            changes[name] = {**getattr(base, name), **given[name]}
    config = base.replace(**changes)
    check_values(config)
    config.check()
    return config


def _saved(source: Any, given: Mapping[str, Any]) -> TrainConfig:
    """The configuration of a file or of a run folder, which is also the name of the run to resume."""
    if not isinstance(source, str | Path):
        raise UsageError(
            f"config is {type_of(source)}; give options by name, such as mereo.train(data='photos', epochs=10)."
        )
    place, resume = Path(source), given.get("resume", False)
    path = place / "config.yaml" if place.is_dir() else place
    if resume and not path.is_file():
        check_resumable(RunFolder(place))
    if not path.is_file() and place.suffix not in (".yaml", ".yml"):
        raise UsageError(
            f"config is {str(source)!r}, which is not a configuration or a run folder; for images give"
            f" --data {source}, or data={str(source)!r} in Python."
        )
    config = TrainConfig.from_yaml(path)
    in_run_folder = resume and path.name == "config.yaml"
    return config.replace(name=path.parent.name, output=str(path.parent.parent)) if in_run_folder else config


def _started(given: Mapping[str, Any]) -> TrainConfig:
    """The configuration of the run to resume, else of a recipe, else the defaults."""
    base = TrainConfig()
    if given.get("recipe") is not None:
        base = apply_recipe(given["recipe"], given.get("model"), given.get("data"))
    elif "task" in given:
        base = follow_task(base.replace(task=given["task"]), given)
    if given.get("resume"):
        own = {name: given.get(name, getattr(TrainConfig(), name)) for name in ("name", "output")}
        named = {name: given[name] for name in ("model", "data") if name in given}
        candidates = [base.replace(**named, **own)]
        if "model" not in given and (colour := get_task(base.task).colour_model) is not None:
            candidates.append(candidates[0].replace(model=colour))
        folders = [folder for candidate in candidates if (folder := folder_to_resume(candidate)).config.exists()]
        if folders:
            folder = max(folders, key=lambda found: found.config.stat().st_mtime)
            return TrainConfig.from_yaml(folder.config).replace(**own)
    return base


def _check_network_arguments(options: dict[str, Any]) -> None:
    """UsageError for an argument of the network among the options, which would otherwise be an unknown one."""
    model = options.get("model", TrainConfig.model)
    if isinstance(model, str) and library_of(model) is None:
        known = get_model_entry(model).defaults
        for name, value in options.items():
            if name == "num_classes":
                raise UsageError(f"{name} is {value!r}; it follows from the data. Leave it out.")
            if name not in FIELDS and name in known:
                raise UsageError(
                    f"{name} is an argument of the network {model}; give model_args={{{name!r}: {value!r}}}."
                )


def train(
    config: TrainConfig | Plan | str | Path | None = None,
    report: Report | None = None,
    *,
    data: Any = None,
    quiet: bool = False,
    **options: Any,
) -> Training:
    """Train a network, as `mereo train` does, and return the finished run.

    Args:
        config: a configuration file, a run folder to repeat, or a configuration; the other arguments override it.
        report: shows the progress.
        data: a data set, a folder of images or another source that the command takes; or a pair (images, labels) of
            arrays or tensors, of which a fifth is set aside for testing.
        quiet: print nothing.
        options: those of the command, such as model, epochs, batch_size, lr, img_size, recipe, resume. With `dry_run`
            or `find_lr` the figures are printed and None is returned.

    run = mereo.train(data="photos", epochs=10)
    run.accuracy; run.model; run.folder.path
    mereo.predict(run, "holiday/*.jpg")
    """
    report = Report(silent=quiet or os.environ.get("RANK", "0") != "0") if report is None else report
    if isinstance(config, Plan):
        if options or data is not None:
            raise UsageError("config is a plan, in which every option is fixed; leave the other arguments out.")
        return _finished(run_plan(config, report))
    _check_network_arguments(options)
    in_memory = data is not None and not isinstance(data, str | Path)
    named = {} if data is None else {"data": NAME if in_memory else str(data)}
    given = fit_all(get_type_hints(TrainConfig), "mereo.train", {**named, **options}, {})
    chosen = configuration(config, given)
    if in_memory:
        return _finished(_train_in_memory(chosen, data, report))
    result = _train(chosen, given, from_file=config is not None, report=report)
    # None is returned for options that only print, which the type leaves out for the sake of all other calls.
    return result if result is None else _finished(result)  # type: ignore[return-value]


def _train_in_memory(config: TrainConfig, data: Any, report: Report) -> RunResult:
    for name in ("resume", "dry_run", "find_lr"):
        if getattr(config, name):
            raise UsageError(f"{name} is True, and data is in memory; save the images into a folder for that.")
    plan = make_plan(config, array_dataset(data, seed=config.seed))
    if not report.silent:
        announce(plan)
    return run_plan(plan, report)


def _train(config: TrainConfig, given: Mapping[str, Any], *, from_file: bool, report: Report) -> RunResult | None:
    """The result of a training with its announcements; None where only its cost or a rate was to be printed.

    Args:
        config: of the training.
        given: the options that were given, which are kept; the others are chosen from the data.
        from_file: whether it comes from a file, which leaves nothing to be chosen.
        report: shows the progress.
    """
    # The time of --minutes begins before anything is read or timed.
    began = monotonic()
    check_trackers(config.track)
    check_callbacks(config.callbacks)
    folder, first = folder_to_resume(config), os.environ.get("RANK", "0") == "0"
    if config.resume and first:
        check_resumable(folder)
    if config.dry_run or config.find_lr:
        chosen = _automatic(config, given, from_file)
        plan = chosen.plan()
        for text in (*_understood(plan), *chosen.lines(timed=False)):
            say(text)
        if config.dry_run:
            print_estimate(plan)
        else:
            _find_rate(plan)
        return None
    if first:
        check_free(config)
    shown = first and not report.silent
    if config.resume and shown and (line := resumed(folder, config)) is not None:
        say(line)
    chosen = _automatic(config, given, from_file)
    plan = chosen.plan()
    if shown:
        for text in (*_understood(plan), *chosen.lines()):
            say(text)
        announce(plan, measure=chosen.seconds is None)
    return run_plan(plan, report, began=began)


def _understood(plan: Plan) -> list[str]:
    """The line that says what a folder or table of images was recognised as."""
    layout = plan.info.layout
    return [] if layout is None else [for_terminal(f"{plan.config.data}: {layout.evidence}; task {plan.task.name}")]


def _automatic(config: TrainConfig, given: Collection[str], from_file: bool) -> Automatic:
    """The configuration with its open settings chosen; a file, a recipe and the run to resume leave none open."""
    if from_file or config.recipe is not None or config.resume:
        if "minutes" not in given or config.resume:
            return Automatic(config)
        # With a time of its own only the number of epochs follows from it.
        given = {*given, *FIELDS} - ({"epochs"} - {*given})
    return choose(config, given)


def _find_rate(plan: Plan) -> None:
    """Print the result of `mereo train --find-lr`."""
    sweep = find_rate(plan)
    path = Path(plan.config.output) / f"{run_name(plan.config)}-rates.png"
    path.parent.mkdir(parents=True, exist_ok=True)
    draw_rates(sweep, path)
    say(f"the loss was lowest at a rate of {sweep.lowest:.1e}, after {len(sweep.rates)} steps: {path}")
    say(f"suggested: --lr {sweep.suggested:g}")


def _finished(result: RunResult) -> Training:
    """The result with what a network that is loaded from the run folder knows of itself."""
    result.model.class_names = result.task.output_names
    result.model.metadata = read_metadata(result.folder.best)
    return Training(**{field.name: getattr(result, field.name) for field in fields(RunResult)})
