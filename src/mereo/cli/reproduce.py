"""`mereo reproduce`."""

import json
from typing import Any

from mereo.cli.options import ReproduceOptions
from mereo.cli.parse import parse
from mereo.cli.show import print_table
from mereo.errors import check_positive
from mereo.training.studies import STUDIES, get_study, run_study


def run(words: list[str], command: str) -> None:
    """Run a study, or list them."""
    options = parse(ReproduceOptions, words, command)
    if options.study is None:
        print_table(("study", "variants", "source", "question"), [
            (name, ", ".join(study.variants), study.source, study.question) for name, study in STUDIES.items()
        ])  # fmt: skip
        return
    check_positive(seeds=options.seeds)
    study = get_study(options.study)
    fields = (
        "data",
        "data_root",
        "epochs",
        "limit",
        "batch_size",
        "device",
        "precision",
        "paper_protocol",
        "warmup_epochs",
    )
    given = {name: getattr(options, name) for name in fields}
    overrides: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    rows = run_study(options.study, options.seeds, options.output, overrides, options.variants)
    if options.json:
        print(json.dumps(rows, indent=2))
        return
    print(f"\n{study.question}")

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
