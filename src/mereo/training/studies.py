"""Studies: variants of one training under one protocol, several seeds each.

A study is data: the base configuration, and for each variant the fields that differ and what its source reports. The
runs are in <output>/<study>-<data>/<variant>-seed<n>; finished runs are reused, so an interrupted study can be
continued. `mereo compare` makes its study from the command line; the studies of papers are in `papers/`.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mereo.errors import UsageError
from mereo.runtime import printing
from mereo.training.config import TrainConfig
from mereo.training.recipes import apply_recipe

if TYPE_CHECKING:
    from mereo.data import DatasetInfo
    from mereo.training.plan import Plan


@dataclass(frozen=True)
class Variant:
    """One row of a study: fields that differ, arguments of the network that differ, and the reported accuracy in %.

    `recipe` replaces the study's.
    """

    changes: Mapping[str, Any] = field(default_factory=dict)
    model_args: Mapping[str, Any] = field(default_factory=dict)
    reported: Mapping[str, float] = field(default_factory=dict)
    recipe: str | None = None


@dataclass(frozen=True)
class Study:
    """One study: its question, the recipe that its variants change (None: the defaults), and the variants by name."""

    question: str
    source: str
    recipe: str | None
    variants: Mapping[str, Variant]


def plan_runs(
    study: Study, name: str, seeds: int, output: str, overrides: Mapping[str, Any], *, only: Sequence[str] = ()
) -> dict[tuple[str, int], TrainConfig]:
    """The configuration of every run, by (variant, seed); seeds alternate variants, so that each round of seeds is a
    complete comparison."""
    chosen = {label: row for label, row in study.variants.items() if not only or label in only}
    planned = {}
    for seed in range(seeds):
        for label, row in chosen.items():
            recipe, model, data = row.recipe or study.recipe, row.changes.get("model"), overrides.get("data")
            config = TrainConfig() if recipe is None else apply_recipe(recipe, model, data)
            config = config.replace(**{**row.changes, **overrides})
            planned[label, seed] = config.replace(
                model_args={**config.model_args, **row.model_args},
                seed=seed,
                output=str(Path(output) / f"{name}-{Path(config.data).name}"),
                name=f"{folder_name(label)}-seed{seed}",
                resume=True,
            )
    return planned


def folder_name(label: str) -> str:
    """A label as the name of a folder."""
    return re.sub(r"[^\w.=-]+", "_", label).strip("_")


def make_plans(
    configs: Mapping[tuple[str, int], "TrainConfig | Plan"], info: "DatasetInfo | None" = None
) -> dict[tuple[str, int], "Plan"]:
    """The plans of several runs; shared data is inspected once, or not at all if its `info` is given."""
    from mereo.data import dataset_info
    from mereo.models import get_model_entry
    from mereo.training.plan import Plan, make_plan

    known: dict[Any, DatasetInfo] = {}
    plans: dict[tuple[str, int], Plan] = {}
    for key, config in configs.items():
        if isinstance(config, Plan):
            plans[key] = config
            continue
        place = config.data, config.data_root, config.layout
        if place not in known:
            inputs = get_model_entry(config.model).module.input_kind
            found = dataset_info(*place[:2], inputs=inputs, options=config.layout) if info is None else info
            known[place] = found
        plans[key] = make_plan(config, known[place])
    return plans


def finish_runs(
    configs: Mapping[tuple[str, int], "TrainConfig | Plan"],
    say: Callable[[str], None] = printing.say,
    *,
    quiet: bool = False,
) -> dict[str, list[dict[str, Any]]]:
    """Run the unfinished runs, and return the results of all runs by variant, in the order of seeds.

    UsageError for a finished run of another configuration: it does not belong to this table. With `quiet` the trainings
    print nothing.
    """
    from mereo.training.report import Report
    from mereo.training.results import read_results
    from mereo.training.run_folder import RunFolder, differences
    from mereo.training.trainer import train

    plans = make_plans(configs)
    folders = {key: RunFolder(Path(p.config.output) / str(p.config.name)) for key, p in plans.items()}
    for key, folder in folders.items():
        if folder.config.exists():
            differing = differences(TrainConfig.from_yaml(folder.config), plans[key].config)
            if differing:
                former = ", ".join(f"{name} {was}" for name, (was, _) in differing.items())
                raise UsageError(
                    f"{folder.path.parent} was started with {former}; use the same settings, or another --output."
                )
    results: dict[str, list[dict[str, Any]]] = {}
    for number, ((label, seed), plan) in enumerate(plans.items(), start=1):
        finished = folders[label, seed].results
        if finished.exists():
            say(f"{number}/{len(configs)} {label}, seed {seed}: already finished")
        else:
            say(f"{number}/{len(configs)} {label}, seed {seed}")
            train(plan, Report(silent=True) if quiet else None)
        results.setdefault(label, []).append(read_results(finished, plan.task.name))
    return results
