"""`mereo compare`."""

import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, redirect_stdout
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from mereo.cli.comparison_options import CompareOptions
from mereo.cli.parse import parse
from mereo.cli.show import print_table
from mereo.errors import check_positive
from mereo.files import check_name
from mereo.runtime.printing import say

if TYPE_CHECKING:
    from mereo.export.comparison_pictures import Curves
    from mereo.export.rows import Row
    from mereo.measure.robustness import Robustness

SHARED = (
    "task", "data", "data_root", "epochs", "minutes", "limit", "batch_size", "lr", "img_size", "warmup_epochs",
    "device", "precision",
)  # fmt: skip
SETTINGS = ("epochs", "limit", "batch_size", "lr", "img_size", "warmup_epochs", "precision", "augment")
"""Settings of a comparison that its table names."""


def _side_by_side(
    rows: "Sequence[Row]", options: CompareOptions
) -> tuple[dict[str, dict[str, float | None]], list[str]]:
    """Measurements of all networks, and a line for each on what it is better and worse at than the plain network."""
    plain = [row for row in rows if row.plain]
    others = [row for row in rows if not row.plain]
    runs = {row.model: row.run for row in rows if row.run is not None}
    if rows[0].task != "classification" or len(runs) < len(rows):
        return {}, []
    from mereo.measure.side_by_side import EPSILON, MILD, coupling_line, measure_side_by_side, verdict

    say("measuring calibration, corruptions, attacks and replaced couplings")
    measured = measure_side_by_side(runs, options.data, options.data_root, options.device or "auto")
    lines = []
    for row in others:
        for other in plain:
            cost = {
                "inference images/s": (row.rate, other.rate),
                "training images/s": (row.train_rate, other.train_rate),
                "training memory in MiB": (row.memory / 2**20, other.memory / 2**20),
                "parameters": (float(row.parameters), float(other.parameters)),
            }
            least = ("training memory in MiB", "parameters")
            names = row.model, other.model
            lines.append(verdict(names, measured[row.model], measured[other.model], cost, least))
    lines += [line for label, each in measured.items() if (line := coupling_line(label, each)) is not None]
    one = measured[rows[0].model]
    lines.append(
        f"Measured on {one.images} test images with the first seed: the mean over mild corruptions"
        f" ({', '.join(f'{name} {severity:g}' for name, severity in MILD.items())}), and PGD within {EPSILON} on"
        f" {one.attacked} of them; shares differ clearly beyond two standard errors."
    )
    return {label: values.to_dict() for label, values in measured.items()}, lines


def _of_family(
    options: CompareOptions, given: dict[str, Any]
) -> tuple[list["Row"], dict[str, "Robustness"], list[str]]:
    """The networks of a family: their rows, their robustness to changed images, and lines on the protocol."""
    from mereo.export.rows import run_comparison
    from mereo.measure.robustness import EPSILON, STEPS, beside_plain, measure_robustness
    from mereo.training.families import SIDE, family_networks, upright_augmentation
    from mereo.training.option_values import parse_size

    assert options.family is not None
    side = parse_size(given.setdefault("img_size", SIDE)) or SIDE
    texts, left_out = family_networks(options.family, options.data, options.data_root, side, options.models)
    for line in left_out:
        say(line)
    upright = given | {"augment": upright_augmentation(options.data, options.data_root)}
    rows = run_comparison(texts, options.seeds, options.output, upright, options.recipe, say, "none", family=True)
    runs = {row.model: row.run for row in rows if row.run is not None}
    measured = measure_robustness(runs, options.data, options.data_root, options.device or "auto", say=say)
    first = next(iter(measured.values()))
    how = (
        f"Trained upright, with the augmentation {' '.join(upright['augment'])}. On {first.images} test images with the"
        f" first seed: rotation, translation and occlusion are means over their severities; APGD of {STEPS} steps"
        f" within {EPSILON} on {first.attacked} of them."
    )
    return rows, measured, [*left_out, *beside_plain(measured, [row.model for row in rows if row.plain]), how]


def _guessing(
    rows: "Sequence[Row]", measured: Mapping[str, Mapping[str, float | None]]
) -> tuple[list["Row"], list[str]]:
    """The rows, marked where a network predicts no better than chance, and a sentence on each of these."""
    from mereo.measure.conclusions import beside_chance, chance_words

    words = {}
    for name, each in measured.items():
        accuracy = beside_chance(float(each["accuracy"] or 0.0), int(each["images"] or 0), each["chance"])
        words[name] = chance_words(name, accuracy)
    marked = [replace(row, at_chance=words.get(row.model) is not None) for row in rows]
    return marked, [line for line in words.values() if line is not None]


def _protocol(options: CompareOptions, rows: "Sequence[Row]") -> str:
    """The settings of the runs in a line; where they differ between networks, all of them."""
    from mereo.training.config import TrainConfig
    from mereo.training.defaults import show_setting
    from mereo.training.run_folder import RunFolder

    configs = [TrainConfig.from_yaml(RunFolder(row.run).config) for row in rows if row.run is not None]
    parts = [f"recipe {options.recipe}"] if options.recipe else []
    for name in SETTINGS:
        values = [value for config in configs if (value := getattr(config, name)) is not None]
        shown = dict.fromkeys(show_setting(name, value) for value in values)
        parts += [f"{name} {' or '.join(shown)}"] if shown else []
    return ", ".join([*parts, f"seeds {options.seeds}"])


def run(words: list[str], command: str) -> None:
    """Train several networks under one protocol and print their accuracy and cost."""
    options = parse(CompareOptions, words, command)
    given: dict[str, Any] = {name: getattr(options, name) for name in SHARED if getattr(options, name) is not None}
    check_positive(seeds=options.seeds, **{k: v for k, v in given.items() if k in ("epochs", "limit", "batch_size")})
    from mereo.export.comparison import EXPLAINED, cells, columns, measured_cells, notes, write_comparison
    from mereo.export.rows import ranked, run_comparison
    from mereo.training.compare import comparison_folder

    measured: Mapping[str, Mapping[str, float | None]]
    curves: dict[str, Curves] = {}
    folder = comparison_folder(options.data, options.output)
    check_name("data", folder)
    # Progress lines are not part of the JSON document.
    with redirect_stdout(sys.stderr) if options.json else nullcontext():
        if options.family is None:
            rows = run_comparison(
                options.models, options.seeds, options.output, given, options.recipe, say, options.plain
            )
            measured, verdicts = _side_by_side(rows, options)
        else:
            rows, robust, verdicts = _of_family(options, given)
            measured = {label: each.to_dict() for label, each in robust.items()}
            curves = {label: each.curves for label, each in robust.items()}
    rows, guessing = _guessing(rows, measured)
    verdicts = [*guessing, *verdicts]
    protocol = _protocol(options, rows)
    paths = write_comparison(rows, folder, options.data, protocol, measured, verdicts, curves)
    if options.json:
        say(json.dumps([row.to_dict() for row in ranked(rows)], indent=2))
        return
    say()
    print_table(columns(rows), [cells(row) for row in ranked(rows)])
    if measured:
        say()
        print_table(*measured_cells(rows, measured))
        say(f"\n{EXPLAINED}")
    if verdicts:
        say("\n" + "\n".join(verdicts))
    say("\n" + "\n".join(notes(rows, protocol)))
    say("written: " + ", ".join(map(str, paths)))
