"""Runs of a published study, and the table of their results."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mereo.errors import unknown
from mereo.runtime import printing
from mereo.training.config import TrainConfig
from mereo.training.studies import Study, Variant, finish_runs, plan_runs


def configurations(
    name: str, study: Study, seeds: int, output: str, overrides: Mapping[str, Any], only: Sequence[str] = ()
) -> dict[tuple[str, int], TrainConfig]:
    """The configuration of every run of a study, by (variant, seed)."""
    for variant in only:
        if variant not in study.variants:
            raise unknown(f"variant of {name}", variant, study.variants)
    return plan_runs(study, name, seeds, output, overrides, only=only)


def run_study(
    name: str,
    study: Study,
    seeds: int,
    output: str,
    overrides: Mapping[str, Any],
    only: Sequence[str] = (),
    *,
    say: Callable[[str], None] = printing.say,
) -> list[dict[str, Any]]:
    """Run the unfinished runs of a study, and return its table with one row per variant."""
    results = finish_runs(configurations(name, study, seeds, output, overrides, only), say)
    return [_row(study.variants[label], label, rows) for label, rows in results.items()]


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
