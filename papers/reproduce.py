"""Runs and shows the experiments that `mereo reproduce` and `python -m papers` are called with."""

import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, redirect_stdout
from pathlib import Path
from typing import Any

from mereo.cli.comparison_options import ReproduceOptions
from mereo.cli.show import print_table
from mereo.errors import UsageError, check_positive, unknown
from mereo.runtime.printing import say
from mereo.training.studies import Study
from papers.common.paper import Experiment
from papers.common.settings import Settings
from papers.listing import EXPERIMENTS, STUDIES

STUDY_OPTIONS = (
    "variants", "seeds", "data", "data_root", "epochs", "warmup_epochs", "limit", "batch_size", "device", "precision",
    "paper_protocol",
)  # fmt: skip


def reproduce(options: ReproduceOptions) -> None:
    """Run a study or an experiment, or list them."""
    if options.study is None:
        _list()
        return
    name = options.study.replace("-", "_")
    if name not in STUDIES and name not in EXPERIMENTS:
        raise unknown("study or experiment", options.study, STUDIES.keys() | EXPERIMENTS.keys())
    given = given_options(options)
    # Progress lines are not part of the JSON document.
    with redirect_stdout(sys.stderr) if options.json else nullcontext():
        results: Any
        if name in EXPERIMENTS:
            results = run_experiment(name, given, Path(options.output))
        else:
            results = _run_study(name, given, options.output)
    if options.json:
        say(json.dumps(results, indent=2))
    elif name in EXPERIMENTS:
        show_experiment(EXPERIMENTS[name], results)
    else:
        _show_study(STUDIES[name], results)


def _list() -> None:
    rows = [(name, ", ".join(study.variants), study.source, study.question) for name, study in STUDIES.items()]
    rows += [(name, "-", e.source, e.question) for name, e in EXPERIMENTS.items() if name not in STUDIES]
    print_table(("name", "variants", "source", "question"), rows)


def given_options(options: ReproduceOptions) -> dict[str, Any]:
    """The given options of those that only some studies and experiments use."""
    values = {name: getattr(options, name) for name in (*STUDY_OPTIONS, "images", "minutes")}
    given = {name: value for name, value in values.items() if value not in (None, ())}
    check_positive(
        **{k: given[k] for k in ("seeds", "epochs", "limit", "batch_size", "images", "minutes") if k in given}
    )
    return given


def _check_used(name: str, given: Mapping[str, Any], used: set[str]) -> None:
    for option, value in given.items():
        if option not in used:
            takes = ", ".join(f"--{u.replace('_', '-')}" for u in sorted(used)) or "none of these options"
            raise UsageError(f"{option} is {value!r}, which {name} does not use; leave it out. It takes {takes}.")


def run_experiment(name: str, given: Mapping[str, Any], output: Path) -> dict[str, Any]:
    """Run an experiment with the given settings, in a folder of `output`; its results."""
    experiment = EXPERIMENTS[name]
    _check_used(name, given, set(experiment.uses))
    data = given.get("data", experiment.data)
    folder = output / (name if data is None else f"{name}-{Path(data).name}")
    return experiment.run(Settings(folder, **{**given, "data": data}, say=say))


def results_of(name: str, given: Mapping[str, Any], output: Path) -> Mapping[str, Sequence[Mapping[str, Any]]]:
    """The tables of an experiment, or the rows of a study."""
    if name in EXPERIMENTS:
        tables: Mapping[str, Sequence[Mapping[str, Any]]] = run_experiment(name, given, output)["tables"]
        return tables
    if name not in STUDIES:
        raise unknown("study or experiment", name, STUDIES.keys() | EXPERIMENTS.keys())
    return {STUDIES[name].question: _run_study(name, given, str(output))}


def _run_study(name: str, given: Mapping[str, Any], output: str) -> list[dict[str, Any]]:
    from papers.common.studies import run_study

    _check_used(name, given, set(STUDY_OPTIONS))
    overrides = {option: value for option, value in given.items() if option not in ("variants", "seeds")}
    return run_study(name, STUDIES[name], given.get("seeds", 1), output, overrides, given.get("variants", ()))


def _show_study(study: Study, rows: list[dict[str, Any]]) -> None:
    say(f"\n{study.question}")

    def percent(value: float | None) -> str:
        return "-" if value is None else f"{value:.2f}"

    print_table(
        ("variant", "parameters", "seeds", "test % (last epoch)", "spread", "test % (best epoch)", "reported %"),
        [
            (
                row["variant"], f"{row['parameters']:,}", row["seeds"], percent(row["last"]), percent(row["spread"]),
                percent(row["best"]), percent(row["reported"]),
            )
            for row in rows
        ],
    )  # fmt: skip


def show_experiment(experiment: Experiment, results: Mapping[str, Any]) -> None:
    """Print the tables and notes of an experiment."""

    def cell(column: str, value: object) -> str:
        if value is None:
            return "-"
        if isinstance(value, float):
            return f"{value:z.2f}" if "%" in column else f"{value:z.4f}"
        return f"{value:,}" if isinstance(value, int) else str(value)

    say(f"\n{experiment.question}")
    for title, rows in results.get("tables", {}).items():
        say()
        print_table(tuple(rows[0]), [[cell(*pair) for pair in row.items()] for row in rows], title)
    for line in results.get("notes", ()):
        say(f"\n{line}")
    say("\nwritten: " + ", ".join(results["files"]))
