"""`mereo.train`: train a network into a run folder."""

from dataclasses import fields
from pathlib import Path
from typing import Any

from mereo.cli.options import TrainOptions
from mereo.cli.parse import check_values
from mereo.cli.train import start_from, trained
from mereo.errors import UsageError, type_of
from mereo.models import get_model_entry, is_sequence_model
from mereo.models.registry import library_of
from mereo.models.weights import read_metadata
from mereo.training.config import FIELDS, TrainConfig
from mereo.training.plan import Plan, make_plan
from mereo.training.report import Report
from mereo.training.results import RunResult, summary_rows
from mereo.training.show_estimate import announce
from mereo.training.trainer import train as run_plan
from mereo.workflow.arrays import NAME, array_dataset
from mereo.workflow.display import html_table, png, read_picture, text_table
from mereo.workflow.options import fit_all


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


def _base(config: Any, given: dict[str, Any]) -> TrainConfig:
    """The configuration that the given options change, as on the command line."""
    if isinstance(config, TrainConfig):
        return config
    if config is not None and not isinstance(config, str | Path):
        raise UsageError(
            f"config is {type_of(config)}; give options by name, such as mereo.train(data='photos', epochs=10)."
        )
    path = None if config is None else Path(config)
    if path is not None and path.suffix not in (".yaml", ".yml") and not (path / "config.yaml").exists():
        raise UsageError(
            f"config is {str(config)!r}, which is not a configuration or a run folder; for images give"
            f" data={str(config)!r}."
        )
    first = TrainOptions(**given, config=path)
    return start_from(first, [f"--{name.replace('_', '-')}" for name in given])


def _check_network_arguments(options: dict[str, Any]) -> None:
    """UsageError for an argument of the network among the options, which would otherwise be an unknown one."""
    model = options.get("model", TrainConfig.model)
    if isinstance(model, str) and library_of(model) is None and not is_sequence_model(model):
        known = get_model_entry(model).defaults
        for name, value in options.items():
            if name in ("num_classes", "in_chans"):
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
    report = Report(silent=quiet) if report is None else report
    if isinstance(config, Plan):
        if options or data is not None:
            raise UsageError("config is a plan, in which every option is fixed; leave the other arguments out.")
        return _finished(run_plan(config, report))
    _check_network_arguments(options)
    in_memory = data is not None and not isinstance(data, str | Path)
    named = {} if data is None else {"data": NAME if in_memory else str(data)}
    given = fit_all(TrainOptions, "mereo.train", {**named, **options}, {"config": "it is the first argument"})
    base = _base(config, given)
    if "model_args" in given:
        given["model_args"] = {**base.model_args, **given["model_args"]}
    chosen = base.replace(**given)
    check_values(chosen)
    chosen.check()
    if in_memory:
        return _finished(_train_in_memory(chosen, data, report))
    result = trained(chosen, set(given), from_file=config is not None, report=report)
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


def _finished(result: RunResult) -> Training:
    """The result with what a network that is loaded from the run folder knows of itself."""
    result.model.class_names = result.task.output_names
    result.model.metadata = read_metadata(result.folder.best)
    return Training(**{field.name: getattr(result, field.name) for field in fields(RunResult)})
