"""Studies: variants of one training under one protocol, several seeds each, a table at the end.

A study is data: the base configuration, and for each variant the fields that differ and what its source reports. The
runs are in <output>/<study>-<data>/<variant>-seed<n>; finished runs are reused, so an interrupted study
can be continued. `mereo compare` makes its study from the command line and runs it by the same functions.
"""

import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mereo.errors import UsageError, unknown
from mereo.runtime import printing
from mereo.training.config import TrainConfig
from mereo.training.recipes import apply_recipe

if TYPE_CHECKING:
    from mereo.training.plan import Plan


@dataclass(frozen=True)
class Variant:
    """One row of a study: fields that differ, arguments of the network that differ, and the reported accuracy in %.

    `recipe` replaces that of the study.
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


def _cifar(reported: float, **model_args: Any) -> Variant:
    return Variant(model_args=model_args, reported={"cifar10": reported})


def _mnist(reported: float, **model_args: Any) -> Variant:
    return Variant(model_args=model_args, reported={"mnist": reported})


_LARGE = {"model": "mspcaps_large"}
_MIDDLE = {"model": "capsnet_middle"}
# The authors count three updates, so there are four weighted sums; the initial logits are learned.
_ROUTED = {"routing_steps": 4, "learned_prior": True}
_UNROUTED = {"routing_steps": 0}

STUDIES: dict[str, Study] = {
    "coupling_axis": Study(
        "Over which axis is the softmax of cross-agreement taken? The paper does not state it.",
        "arXiv:2508.16922",
        "mspcaps_paper",
        {
            "receivers": Variant(model_args={"coupling_over": "receivers"}),
            "senders": Variant(model_args={"coupling_over": "senders"}),
        },
    ),
    "mspcaps_ablation": Study(
        "How much do scales, weight sharing, patch size and routing matter in MSPCaps-T?",
        "arXiv:2508.16922",
        "mspcaps_paper",
        {
            "full": _cifar(88.71),
            "scale_32": _cifar(74.81, scales=[0]),
            "scale_16": _cifar(81.90, scales=[1]),
            "scale_8": _cifar(87.48, scales=[2]),
            "two_scales": _cifar(81.57, scales=[0, 1]),
            "not_shared": _cifar(87.59, share_weights=False),
            "patch_2": _cifar(88.01, patch_size=2),
            "patch_3": _cifar(86.34, patch_size=3),
            "dynamic": _cifar(87.46, routing="dynamic"),
        },
    ),
    "mspcaps_large_ablation": Study(
        "How much do weight sharing, patch size and routing matter in MSPCaps-L?",
        "arXiv:2508.16922",
        "mspcaps_paper",
        {
            "full": Variant(_LARGE, {}, {"cifar10": 92.88}),
            "shared": Variant(
                _LARGE,
                {"share_weights": True, "pose_dims": [16, 16, 32], "mid_dim": 32, "out_dim": 64},
                {"cifar10": 92.50},
            ),
            "patch_2": Variant(_LARGE, {"patch_size": 2}, {"cifar10": 93.16}),
            "patch_3": Variant(_LARGE, {"patch_size": 3}, {"cifar10": 93.30}),
            "dynamic": Variant(_LARGE, {"routing": "dynamic"}, {"cifar10": 92.56}),
        },
    ),
    "kiefer_routing": Study(
        "Does CapsNet need routing or a decoder to be accurate and sparse?",
        "arXiv:2209.02567",
        "kiefer",
        {
            "routed_decoder": _mnist(99.23, **_ROUTED),
            "unrouted_decoder": _mnist(99.34, **_UNROUTED),
            "routed": _mnist(99.32, decoder=False, **_ROUTED),
            "unrouted": _mnist(99.29, decoder=False, **_UNROUTED),
            "middle_routed": Variant(_MIDDLE, _ROUTED),
            "middle_unrouted": Variant(_MIDDLE, _UNROUTED),
        },
    ),
}


def get_study(name: str) -> Study:
    """The study of that name; UsageError with the nearest names if there is none."""
    if name not in STUDIES:
        raise unknown("study", name, STUDIES)
    return STUDIES[name]


def configurations(
    name: str, seeds: int, output: str, overrides: Mapping[str, Any], only: Sequence[str] = ()
) -> dict[tuple[str, int], TrainConfig]:
    """The configuration of every run of a published study, by (variant, seed)."""
    study = get_study(name)
    for variant in only:
        if variant not in study.variants:
            raise unknown(f"variant of {name}", variant, study.variants)
    return plan_runs(study, name, seeds, output, overrides, only)


def plan_runs(
    study: Study, name: str, seeds: int, output: str, overrides: Mapping[str, Any], only: Sequence[str] = ()
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


def make_plans(configs: Mapping[tuple[str, int], "TrainConfig | Plan"]) -> dict[tuple[str, int], "Plan"]:
    """The plans of several runs; shared data is inspected once."""
    from mereo.data import DatasetInfo, dataset_info
    from mereo.training.plan import Plan, make_plan

    known: dict[tuple[str, str | None], DatasetInfo] = {}
    plans: dict[tuple[str, int], Plan] = {}
    for key, config in configs.items():
        if isinstance(config, Plan):
            plans[key] = config
            continue
        place = config.data, config.data_root
        if place not in known:
            known[place] = dataset_info(*place)
        plans[key] = make_plan(config, known[place])
    return plans


def finish_runs(
    configs: Mapping[tuple[str, int], "TrainConfig | Plan"], say: Callable[[str], None] = printing.say
) -> dict[str, list[dict[str, Any]]]:
    """Run what is not finished, and return the results of all runs by variant, in the order of seeds.

    UsageError for a finished run of another configuration: it does not belong to this table.
    """
    from mereo.training.engine import train
    from mereo.training.figures import read_results
    from mereo.training.run_folder import RunFolder, differences

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
            train(plan)
        results.setdefault(label, []).append(read_results(finished, plan.task.name))
    return results


def run_study(
    name: str,
    seeds: int,
    output: str,
    overrides: Mapping[str, Any],
    only: Sequence[str] = (),
    say: Callable[[str], None] = printing.say,
) -> list[dict[str, Any]]:
    """Run what is not finished of a published study, and return its table with one row per variant."""
    results = finish_runs(configurations(name, seeds, output, overrides, only), say)
    return [_row(get_study(name).variants[label], label, rows) for label, rows in results.items()]


def _row(variant: Variant, label: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    last = [100 * row["test_last"]["accuracy"] for row in rows]
    best = [100 * row["test_best"]["accuracy"] for row in rows]
    return {
        "variant": label,
        "parameters": rows[0]["parameters"],
        "seeds": len(rows),
        "last": statistics.mean(last),
        "spread": statistics.stdev(last) if len(last) > 1 else None,
        "best": statistics.mean(best),
        "reported": variant.reported.get(rows[0]["data"]),
    }
