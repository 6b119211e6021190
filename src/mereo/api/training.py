"""`mereo.train`: train a network into a run folder."""

import os
from collections.abc import Collection, Mapping
from dataclasses import fields
from pathlib import Path
from time import monotonic
from typing import Any, get_type_hints

from torch import nn

from mereo.api.arrays import NAME, array_dataset
from mereo.api.display import html_table, png, read_picture
from mereo.data import DatasetInfo
from mereo.errors import UsageError, type_of
from mereo.escape import for_terminal
from mereo.models import Network, get_model_entry
from mereo.models.plain.own import register_own
from mereo.models.registry import library_of
from mereo.models.weights import read_metadata
from mereo.runtime.printing import say
from mereo.runtime.progress import silenced
from mereo.runtime.text import text_table
from mereo.tasks import get_task
from mereo.training.arguments import check_values, fit_all
from mereo.training.automatic import Automatic, choose, follow_task
from mereo.training.config import FIELDS, TrainConfig
from mereo.training.plan import Plan
from mereo.training.recipes import apply_recipe
from mereo.training.report import Report
from mereo.training.results import RunResult, summary_rows
from mereo.training.run_folder import RunFolder, check_free, check_resumable, folder_to_resume, resumed
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
        """The accuracy on the test images, of the best epoch."""
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
    config = _with_tag(base.replace(**changes))
    check_values(config)
    config.check()
    return config


def _with_tag(config: TrainConfig) -> TrainConfig:
    """A name such as timm:resnet18.a1_in1k as the network and its published weights."""
    library, (name, _, tag) = library_of(config.model), config.model.partition(".")
    if library is None or not tag:
        return config
    if config.weights is not None:
        raise UsageError(
            f"model is {config.model!r}, which names weights, and weights is {config.weights!r}; give one."
        )
    return config.replace(model=name, weights=f"{library}.{tag}")


def _saved(source: Any, given: Mapping[str, Any]) -> TrainConfig:
    """The configuration of a file or of a run folder, which is also the name of the run to resume."""
    if isinstance(source, nn.Module):
        raise UsageError("config is a network; give it as model, such as mereo.train(model=network, data='photos').")
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
    elif chosen := {name: given[name] for name in ("task", "model") if name in given}:
        base = follow_task(base.replace(**chosen), given)
    if given.get("resume"):
        own = {name: given.get(name, getattr(TrainConfig(), name)) for name in ("name", "output")}
        named = {name: given[name] for name in ("model", "data") if name in given}
        candidates = [base.replace(**named, **own)]
        task = get_task(base.task)
        if "model" not in given:
            candidates += [candidates[0].replace(model=name) for name in (task.colour_model, task.large_model) if name]
        folders = [folder for candidate in candidates if (folder := folder_to_resume(candidate)).config.exists()]
        if folders:
            folder = max(folders, key=lambda found: found.config.stat().st_mtime)
            return TrainConfig.from_yaml(folder.config).replace(**own)
    return base


def _check_network_arguments(options: Mapping[str, Any]) -> None:
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


def _own_options(network: nn.Module, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that a network given in place of a name stands for: its name, channels, and the size if it is one."""
    if isinstance(network, Network):
        raise UsageError(
            f"model is {type_of(network)} of mereo; give its name, and its weights as weights=: mereo.train(model="
            f"{getattr(network, 'config', {}).get('model', 'NAME')!r}, ...)."
        )
    entry = register_own(network)
    one_size = entry.module.fixed_input_size or entry.size[0] != entry.size[1]  # type: ignore[attr-defined]
    follow = {"in_chans": entry.defaults["in_chans"], **({"img_size": entry.size} if one_size else {})}
    return {"model": entry.name, **{name: value for name, value in follow.items() if name not in options}}


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
        data: a data set, a folder of images or another source that the command takes; or a pair (images, labels), or
            (images, masks) with masks (n, height, width), (images, several labels) with 0 and 1 (n, labels), or
            (images, numbers), of arrays or tensors; a fifth of them is set aside for testing.
        quiet: print nothing.
        options: of the command, such as model, epochs, batch_size, lr, img_size, recipe, resume. `model` may also
            be a network of timm, torchvision or your own: a copy of it is trained from the weights that it has, and is
            then `run.model.network`. With `dry_run` the figures are printed and None is returned.

    run = mereo.train(data="photos", epochs=10)
    run.accuracy; run.model; run.folder.path
    mereo.predict(run, "holiday/*.jpg")
    """
    return start_training(config, report, data=data, quiet=quiet, options=options, began=monotonic())


def start_training(
    config: TrainConfig | Plan | str | Path | None,
    report: Report | None = None,
    *,
    data: Any,
    quiet: bool = False,
    options: Mapping[str, Any],
    began: float,
) -> Training:
    """`train`, with its options and the moment from which a given time counts, by `time.monotonic`."""
    report = Report(silent=quiet or os.environ.get("RANK", "0") != "0") if report is None else report
    if isinstance(config, Plan):
        if options or data is not None:
            raise UsageError("config is a plan, in which every option is fixed; leave the other arguments out.")
        return _finished(run_plan(config, report))
    given_network = options.get("model")
    if isinstance(given_network, nn.Module):
        options = {**options, **_own_options(given_network, options)}
    _check_network_arguments(options)
    in_memory = data is not None and not isinstance(data, str | Path)
    named = {} if data is None else {"data": NAME if in_memory else str(data)}
    given = fit_all(get_type_hints(TrainConfig), "mereo.train", {**named, **options}, {})
    chosen = configuration(config, given)
    if in_memory and chosen.resume:
        raise UsageError("resume is True, and data is in memory; save the images into a folder for that.")
    info = array_dataset(data) if in_memory else None
    with silenced(report.silent):
        result = _train(chosen, given, info, from_file=config is not None, report=report, began=began)
    # None is returned for options that only print, which the type leaves out for the sake of all other calls.
    return result if result is None else _finished(result)  # type: ignore[return-value]


def _train(
    config: TrainConfig,
    given: Mapping[str, Any],
    info: DatasetInfo | None,
    *,
    from_file: bool,
    report: Report,
    began: float,
) -> RunResult | None:
    """The result of a training with its announcements; None if only its cost was to be printed.

    Args:
        config: of the training.
        given: the options that were given, which are kept; the others are chosen from the data.
        info: of data in memory.
        from_file: whether it comes from a file, which leaves nothing to be chosen.
        report: shows the progress.
        began: start of the time of --minutes, before anything is imported, read or timed.
    """
    check_trackers(config.track)
    folder, first = folder_to_resume(config), os.environ.get("RANK", "0") == "0"
    if config.resume and first:
        check_resumable(folder)
    if config.dry_run:
        chosen = _automatic(config, given, info, from_file)
        plan = chosen.plan()
        for text in (*_understood(plan), *chosen.lines(timed=False)):
            say(text)
        print_estimate(plan)
        return None
    if first:
        check_free(config)
    shown = first and not report.silent
    if config.resume and shown and (line := resumed(folder, config)) is not None:
        say(line)
    chosen = _automatic(config, given, info, from_file)
    plan = chosen.plan()
    if shown:
        for text in (*_understood(plan), *chosen.lines()):
            say(text)
        announce(plan, measure=chosen.seconds is None)
    return run_plan(plan, report, began=began)


def _understood(plan: Plan) -> list[str]:
    """The line that says what a folder or table of images, or a folder of sequences, was recognised as."""
    layout, of_sequences = plan.info.layout, plan.info.path is not None and "sequences" in plan.info.fields
    evidence = plan.info.summary if of_sequences else "" if layout is None else layout.evidence
    return [for_terminal(f"{plan.config.data}: {evidence}; task {plan.task.name}")] if evidence else []


def _automatic(config: TrainConfig, given: Collection[str], info: DatasetInfo | None, from_file: bool) -> Automatic:
    """The configuration with its open settings chosen; a file, a recipe and the run to resume leave none open."""
    if from_file or config.recipe is not None or config.resume:
        if "minutes" not in given or config.resume:
            return Automatic(config, info)
        # With a time of its own only the number of epochs follows from it.
        given = {*given, *FIELDS} - ({"epochs"} - {*given})
    return choose(config, given, info)


def _finished(result: RunResult) -> Training:
    """The result, whose network has the facts that loading it from the run folder would give."""
    result.model.class_names = result.task.output_names
    result.model.metadata = read_metadata(result.folder.best)
    return Training(**{field.name: getattr(result, field.name) for field in fields(RunResult)})
