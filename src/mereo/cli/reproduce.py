"""`mereo reproduce`."""

import json
import sys
from collections.abc import Mapping
from contextlib import nullcontext, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mereo.cli.comparison_options import ReproduceOptions
from mereo.cli.parse import parse
from mereo.cli.show import print_table
from mereo.errors import UsageError, check_positive, unknown
from mereo.runtime.printing import say
from mereo.training.published_studies import STUDIES, run_study
from mereo.training.studies import Study

if TYPE_CHECKING:
    from mereo.experiments import Experiment

STUDY_OPTIONS = (
    "variants", "seeds", "data", "data_root", "epochs", "warmup_epochs", "limit", "batch_size", "device", "precision",
    "paper_protocol",
)  # fmt: skip


def run(words: list[str], command: str) -> None:
    """Run a study or an experiment, or list them."""
    options = parse(ReproduceOptions, words, command)
    from mereo.experiments import EXPERIMENTS

    if options.study is None:
        _list(EXPERIMENTS)
        return
    name = options.study.replace("-", "_")
    if name not in STUDIES and name not in EXPERIMENTS:
        raise unknown("study or experiment", options.study, STUDIES.keys() | EXPERIMENTS.keys())
    given = _given(options)
    # Progress lines are not part of the JSON document.
    with redirect_stdout(sys.stderr) if options.json else nullcontext():
        results: Any
        if name in EXPERIMENTS:
            results = _run_experiment(name, EXPERIMENTS[name], given, Path(options.output))
        else:
            results = _run_study(name, given, options.output)
    if options.json:
        say(json.dumps(results, indent=2))
    elif name in EXPERIMENTS:
        _show_experiment(EXPERIMENTS[name], results)
    else:
        _show_study(STUDIES[name], results)


def _list(experiments: Mapping[str, "Experiment"]) -> None:
    rows = [(name, ", ".join(study.variants), study.source, study.question) for name, study in STUDIES.items()]
    rows += [(name, "-", e.source, e.question) for name, e in experiments.items() if name not in STUDIES]
    print_table(("name", "variants", "source", "question"), rows)


def _given(options: ReproduceOptions) -> dict[str, Any]:
    """The given options of those that only some studies and experiments use."""
    values = {name: getattr(options, name) for name in (*STUDY_OPTIONS, "images")}
    given = {name: value for name, value in values.items() if value not in (None, ())}
    check_positive(**{k: given[k] for k in ("seeds", "epochs", "limit", "batch_size", "images") if k in given})
    return given


def _check_used(name: str, given: Mapping[str, Any], used: set[str]) -> None:
    for option, value in given.items():
        if option not in used:
            takes = ", ".join(f"--{u.replace('_', '-')}" for u in sorted(used)) or "none of these options"
            raise UsageError(f"{option} is {value!r}, which {name} does not use; leave it out. It takes {takes}.")


def _run_experiment(name: str, experiment: "Experiment", given: Mapping[str, Any], output: Path) -> dict[str, Any]:
    from mereo.experiments.settings import Settings

    _check_used(name, given, set(experiment.uses))
    data = given.get("data", experiment.data)
    folder = output / (name if data is None else f"{name}-{Path(data).name}")
    return experiment.run(Settings(folder, **{**given, "data": data}, say=say))


def _run_study(name: str, given: Mapping[str, Any], output: str) -> list[dict[str, Any]]:
    _check_used(name, given, set(STUDY_OPTIONS))
    overrides = {option: value for option, value in given.items() if option not in ("variants", "seeds")}
    return run_study(name, given.get("seeds", 1), output, overrides, given.get("variants", ()))


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


def _show_experiment(experiment: "Experiment", results: Mapping[str, Any]) -> None:
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
