"""`mereo.compare`: several networks trained under one protocol, beside each other."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from mereo.api.display import html_table, png, read_picture
from mereo.errors import UsageError, check_positive
from mereo.export.comparison import EXPLAINED, cells, columns, measured_cells, notes, write_comparison
from mereo.export.rows import Row, ranked, run_comparison
from mereo.files import check_name
from mereo.measure.conclusions import beside_chance, beside_first, chance_words
from mereo.measure.robustness import EPSILON, STEPS, Robustness, beside_plain, measure_robustness
from mereo.measure.side_by_side import EPSILON as SIDE_EPSILON
from mereo.measure.side_by_side import MILD, coupling_line, measure_side_by_side, verdict
from mereo.runtime.progress import Reporter
from mereo.runtime.text import text_table
from mereo.tasks import get_task
from mereo.training.arguments import typed
from mereo.training.automatic import implied_task, show_setting
from mereo.training.compare import comparison_folder
from mereo.training.config import TrainConfig
from mereo.training.families import SIDE, family_networks, upright_augmentation
from mereo.training.option_values import parse_size
from mereo.training.run_folder import RunFolder

SETTINGS = ("epochs", "limit", "batch_size", "lr", "img_size", "warmup_epochs", "precision", "augment")
"""Settings of a comparison that its table names."""
INSERTED_IN = "resnet20"
"""The network in which mechanisms are compared by default."""
Say = Callable[[str], None]
Measured = Mapping[str, Mapping[str, float | None]]


@dataclass(frozen=True, repr=False)
class Comparison:
    """A finished comparison: its tables when printed, its bars in a notebook.

    Attributes:
        rows: accuracy and cost of each network, the best first.
        measured: further measurements by network, such as the accuracy of corrupted images.
        verdicts: lines on which network is better at what.
        notes: on the columns and the settings.
        written: the files: comparison.md, .csv, .json and pictures.
    """

    rows: list[Row]
    measured: Measured = field(default_factory=dict)
    verdicts: Sequence[str] = ()
    notes: Sequence[str] = ()
    written: Sequence[Path] = ()

    @property
    def pictures(self) -> list[Path]:
        """The pictures that were drawn."""
        return [path for path in self.written if path.suffix == ".png"]

    def table(self) -> tuple[Sequence[str], list[tuple[str, ...]]]:
        """Columns and rows, one row a network."""
        return columns(self.rows), [cells(row) for row in self.rows]

    def measured_table(self) -> tuple[Sequence[str], list[tuple[str, ...]]]:
        """Columns and rows of the further measurements, if any were made."""
        return measured_cells(self.rows, self.measured) if self.measured else ((), [])

    def to_dicts(self) -> list[dict[str, Any]]:
        """Plain values, as for JSON."""
        return [row.to_dict() for row in self.rows]

    @property
    def texts(self) -> list[str]:
        """The text below the tables, in paragraphs."""
        parts = ([EXPLAINED] if self.measured else [], self.verdicts, self.notes)
        return ["\n".join(lines) for lines in parts if lines]

    def __str__(self) -> str:
        tables = [text_table(*self.table())] + ([text_table(*self.measured_table())] if self.measured else [])
        return "\n\n".join([*tables, *self.texts])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        tables = html_table(*self.table()) + (html_table(*self.measured_table()) if self.measured else "")
        return tables + "".join(png(read_picture(path)) for path in self.pictures)


@typed(json="call to_dicts() on the result")
def compare(
    models: str | Sequence[str] = (),
    *,
    insert: Sequence[str] = (),
    family: Literal["capsule", "vision"] | None = None,
    task: str | None = None,
    data: str | Path = "digits",
    data_root: str | None = None,
    recipe: str | None = None,
    plain: str = "auto",
    epochs: int | None = None,
    minutes: float | None = None,
    seeds: int = 1,
    limit: int | None = None,
    batch_size: int | None = None,
    lr: float | None = None,
    warmup_epochs: float | None = None,
    img_size: int | tuple[int, int] | None = None,
    device: str | None = None,
    precision: str | None = None,
    output: str = "runs",
    quiet: bool = False,
) -> Comparison:
    """Train several networks under one protocol and compare their accuracy and cost, as `mereo compare` does.

    Finished runs are reused. Settings that are None come from the recipe, or are chosen from the data and the first
    network.

    Args:
        models: networks, optionally with arguments after a colon, or recipes; with a family, kinds of network in it.
        insert: mechanisms to compare in each network, "none" for the network alone, see `mereo train --insert`; without
            a network, in resnet20. Each mechanism is compared with the same network alone, or with the first mechanism
            if there is no "none". Intervals over the seeds are then in place of further measurements.
        family: compare the smallest preset of each kind of network in it with plain networks of their size.
        task: kind of prediction, which decides the metric; by default classification, or what images without classes
            are for.
        data, data_root: the data set or folder of images, and the folder of data sets.
        recipe: for networks that are not given as recipes themselves.
        plain: a plain network to compare with, "auto" for one of about the same size, or "none".
        epochs, minutes: passes over the training images, or the time of a training of the first network.
        seeds: runs of each network.
        limit, batch_size, lr, warmup_epochs, img_size, device, precision: as in `TrainConfig`, for all networks.
        output: folder that holds the folder of the comparison.
        quiet: print nothing.

    comparison = mereo.compare(["mspcaps_tiny", "capsnet:routing_steps=1"], data="digits", epochs=5)
    comparison.table(); comparison.pictures
    """
    shared: dict[str, Any] = {
        "task": task, "data": str(data), "data_root": data_root, "epochs": epochs, "minutes": minutes, "limit": limit,
        "batch_size": batch_size, "lr": lr, "img_size": img_size, "warmup_epochs": warmup_epochs, "device": device,
        "precision": precision,
    }  # fmt: skip
    given = {name: value for name, value in shared.items() if value is not None}
    check_positive(seeds=seeds, **{k: v for k, v in given.items() if k in ("epochs", "limit", "batch_size")})
    if task is None and recipe is None and (implied := implied_task(given["data"], data_root)) is not None:
        given["task"] = implied
    folder = comparison_folder(given["data"], output)
    check_name("data", folder)
    texts, say = [models] if isinstance(models, str) else list(models), Reporter(silent=quiet, output="stdout").say
    measured: dict[str, Any] = {}
    curves: dict[str, Any] = {}
    if insert:
        if family is not None:
            raise UsageError(f"family is {family!r} with insert {' '.join(insert)}; leave one of them out.")
        rows = run_comparison(
            texts or [INSERTED_IN], seeds, output, given, recipe, say, "none", quiet=quiet, insert=insert
        )
        alone = insert.index("none") if "none" in insert else 0
        verdicts = []
        for start in range(0, len(rows), len(insert)):
            of_one = rows[start : start + len(insert)]
            verdicts += _beside_first([of_one[alone], *of_one[:alone], *of_one[alone + 1 :]])
    elif family is None:
        rows = run_comparison(texts, seeds, output, given, recipe, say, plain, quiet=quiet)
        measured, verdicts = _side_by_side(rows, given, say)
    else:
        rows, robust, verdicts = _of_family(family, texts, seeds, output, given, recipe, say, quiet=quiet)
        measured = {label: each.to_dict() for label, each in robust.items()}
        curves = {label: each.curves for label, each in robust.items()}
    rows, guessing = _guessing(rows, measured)
    rows, verdicts, protocol = ranked(rows), [*guessing, *verdicts], _protocol(rows, recipe, seeds)
    written = write_comparison(rows, folder, given["data"], protocol, measured, verdicts, curves)
    return Comparison(rows, measured, verdicts, notes(rows, protocol), written)


def _beside_first(rows: Sequence[Row]) -> list[str]:
    """Intervals of each network over the seeds and its difference from the first one, with the time of training."""
    first = rows[0]
    times = [f"{row.model} {row.seconds / max(first.seconds, 1e-9):.2f}" for row in rows[1:]]
    values = {row.model: [row.scale * value for value in row.values] for row in rows}
    lines = beside_first(values, least=get_task(first.task).chooses[1] == "min")
    return [*lines, f"Time of training beside {first.model}: {', '.join(times)}."] if times else lines


def _side_by_side(
    rows: Sequence[Row], given: Mapping[str, Any], say: Say
) -> tuple[dict[str, dict[str, float | None]], list[str]]:
    """Measurements of all networks, and a line for each on what it is better and worse at than the plain network."""
    plain = [row for row in rows if row.plain]
    others = [row for row in rows if not row.plain]
    runs = {row.model: row.run for row in rows if row.run is not None}
    if rows[0].task != "classification" or len(runs) < len(rows):
        return {}, []
    say("measuring calibration, corruptions, attacks and replaced couplings")
    measured = measure_side_by_side(runs, given["data"], given.get("data_root"), given.get("device", "auto"))
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
        f" ({', '.join(f'{name} {severity:g}' for name, severity in MILD.items())}), and PGD within {SIDE_EPSILON} on"
        f" {one.attacked} of them; shares differ clearly beyond two standard errors."
    )
    return {label: values.to_dict() for label, values in measured.items()}, lines


def _of_family(
    family: str,
    texts: Sequence[str],
    seeds: int,
    output: str,
    given: dict[str, Any],
    recipe: str | None,
    say: Say,
    *,
    quiet: bool,
) -> tuple[list[Row], dict[str, Robustness], list[str]]:
    """The networks of a family: their rows, their robustness to changed images, and lines on the protocol."""
    data, root = given["data"], given.get("data_root")
    side = parse_size(given.setdefault("img_size", SIDE)) or SIDE
    networks, left_out = family_networks(family, data, root, side, texts)
    for line in left_out:
        say(line)
    upright = given | {"augment": upright_augmentation(data, root)}
    rows = run_comparison(networks, seeds, output, upright, recipe, say, "none", family=True, quiet=quiet)
    runs = {row.model: row.run for row in rows if row.run is not None}
    measured = measure_robustness(runs, data, root, given.get("device", "auto"), say=say)
    first = next(iter(measured.values()))
    how = (
        f"Trained upright, with the augmentation {' '.join(upright['augment'])}. On {first.images} test images with the"
        f" first seed: rotation, translation and occlusion are means over their severities; APGD of {STEPS} steps"
        f" within {EPSILON} on {first.attacked} of them."
    )
    return rows, measured, [*left_out, *beside_plain(measured, [row.model for row in rows if row.plain]), how]


def _guessing(rows: Sequence[Row], measured: Mapping[str, Mapping[str, float | None]]) -> tuple[list[Row], list[str]]:
    """The rows, marked if a network predicts no better than chance, and a sentence on each of these."""
    words = {}
    for name, each in measured.items():
        accuracy = beside_chance(float(each["accuracy"] or 0.0), int(each["images"] or 0), each["chance"])
        words[name] = chance_words(name, accuracy)
    marked = [replace(row, at_chance=words.get(row.model) is not None) for row in rows]
    return marked, [line for line in words.values() if line is not None]


def _protocol(rows: Sequence[Row], recipe: str | None, seeds: int) -> str:
    """The settings of the runs in a line; if they differ between networks, all of them."""
    configs = [TrainConfig.from_yaml(RunFolder(row.run).config) for row in rows if row.run is not None]
    parts = [f"recipe {recipe}"] if recipe else []
    for name in SETTINGS:
        values = [value for config in configs if (value := getattr(config, name)) is not None]
        shown = dict.fromkeys(show_setting(name, value) for value in values)
        parts += [f"{name} {' or '.join(shown)}"] if shown else []
    return ", ".join([*parts, f"seeds {seeds}"])
