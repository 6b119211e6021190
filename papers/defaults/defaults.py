"""The settings chosen by `mereo train`, compared with a grid of batch sizes, rates, sizes and networks.

Every set is trained once with the chosen settings and once with each of the grid, the numbers of epochs such that all
take as long. The best of the grid is chosen on the test images, which favours the grid. Folders of photographs that the
environment variable MEREO_PHOTOS names are trained on too.
"""

import os
from pathlib import Path
from typing import Any

from mereo.data import dataset_info
from mereo.errors import UsageError, check_choice
from mereo.files import write_atomically
from mereo.pictures import new_figure, save_figure
from mereo.training.automatic import choose
from mereo.training.config import TrainConfig
from mereo.training.run_folder import RunFolder
from mereo.training.studies import finish_runs
from papers.common.settings import Settings
from papers.defaults.made_images import KINDS, make_folder

EMBEDDED, MADE, PUBLISHED = ("digits", "solids"), tuple(KINDS), ("mnist", "fashion_mnist")
SETS = (*EMBEDDED, *MADE, *PUBLISHED)
PHOTOS = "MEREO_PHOTOS"
"""Environment variable with folders of photographs, separated as in PATH; without it none are trained on."""
LIMIT = 2000
"""Training images of the larger sets."""
BATCHES, RATES, SIDES = (32, 128), (1e-3, 3e-3), (32, 48)
PLAIN_NETWORK = "resnet20"
PLAIN = {f"resnet20, rate {rate:g}": {"model": "resnet20", "lr": rate} for rate in (3e-3, 1e-2)}
"""Plain networks to compare with."""
FORMER = "the former default"
NOTES = [
    "chosen: what mereo train chooses with no option, its time measured on this machine. grid: batches of"
    f" {' and '.join(map(str, BATCHES))} and rates of {' and '.join(map(str, RATES))} for the same epochs, and"
    f" {' and '.join(map(str, SIDES))} pixels and {' and '.join(PLAIN)} for as long; the best is taken on the test"
    " images, which favours the grid.",
    "The rules were fitted to these sets, with one seed; on others the difference may be larger.",
    f"{FORMER}: batches of 128 at 0.001, with the chosen number of epochs.",
]


def grid(config: TrainConfig) -> dict[str, dict[str, Any]]:
    """The batches and rates to compare with the chosen ones, by label, for the same number of epochs.

    The chosen ones are a point of the grid or between its points.
    """
    return {
        f"batch {batch}, rate {rate:g}": {"batch_size": batch, "lr": rate}
        for batch in BATCHES
        for rate in RATES
        if (batch, rate) != (config.batch_size, config.lr)
    }


def others(config: TrainConfig) -> dict[str, dict[str, Any]]:
    """Other image sizes and plain networks, by label; the rest of their settings is chosen."""
    return {f"{side} pixels": {"img_size": side} for side in SIDES if side != config.img_size} | PLAIN


def photographs() -> dict[str, Path]:
    """The folders that MEREO_PHOTOS names, by their names."""
    return {Path(path).name: Path(path) for path in os.environ.get(PHOTOS, "").split(os.pathsep) if path}


def given_settings(data: str, settings: Settings) -> dict[str, Any]:
    """The settings that are not chosen."""
    given: dict[str, Any] = {"data": data, "data_root": settings.data_root, "tensorboard": False}
    given |= {"limit": settings.limit or LIMIT, "device": settings.device or "auto"}
    return given if settings.epochs is None else {**given, "epochs": settings.epochs}


def first_choice(given: dict[str, Any], folder: Path) -> TrainConfig:
    """The settings chosen at the beginning; an earlier start's settings, if there was one, because times differ."""
    path = folder / "first.yaml"
    if path.exists():
        return TrainConfig.from_yaml(path)
    first = choose(TrainConfig().replace(**given), given).config
    write_atomically(path, first.to_yaml().encode())
    return first


def _as_long(changes: dict[str, Any], given: dict[str, Any], run: RunFolder) -> TrainConfig:
    """The settings with another size or network, chosen for the same time, or its run's settings if it has begun."""
    if run.config.exists():
        return TrainConfig.from_yaml(run.config)
    own = {**given, **changes}
    return choose(TrainConfig().replace(**own), own).config


def _run(data: str, settings: Settings, folder: Path) -> dict[str, Any]:
    """One row: the chosen settings, their accuracy, and the best of the grid."""
    given = given_settings(data, settings)
    config = first_choice(given, folder)
    rows = {"chosen": {}, **grid(config)}
    planned = {}
    for number, (label, changes) in enumerate((rows | others(config)).items()):
        for seed in range(settings.seeds):
            run = RunFolder(folder / f"{f'grid{number}' if number else label}-seed{seed}")
            base = config.replace(**changes) if label in rows else _as_long(changes, given, run)
            planned[label, seed] = base.replace(seed=seed, name=run.path.name, output=str(folder), resume=True)
    results = finish_runs(planned, settings.say)
    accuracy = {
        label: 100 * sum(row["test_best"]["accuracy"] for row in rows) / len(rows) for label, rows in results.items()
    }
    best = max(accuracy, key=accuracy.__getitem__)
    plain = [value for label, value in accuracy.items() if planned[label, 0].model == PLAIN_NETWORK]
    seconds = sum(row["seconds"] for row in results["chosen"]) / len(results["chosen"])
    chosen = (
        f"{config.model}, {config.img_size} px, batch {config.batch_size}, rate {config.lr:g}, {config.epochs} epochs"
    )
    return {
        "data": Path(data).name, "chosen": chosen, "seconds": round(seconds, 1), "chosen %": accuracy["chosen"],
        "best of grid %": accuracy[best], "best of grid": best,
        "difference %": accuracy["chosen"] - accuracy[best],
        f"above {PLAIN_NETWORK} %": accuracy["chosen"] - max(plain, default=accuracy["chosen"]),
        f"{FORMER} %": accuracy.get("batch 128, rate 0.001", accuracy["chosen"]),
    }  # fmt: skip


def _draw(rows: list[dict[str, Any]], path: Path) -> None:
    figure = new_figure(7, 3.5)
    axes = figure.subplots()
    for shift, column in enumerate((f"{FORMER} %", "best of grid %", "chosen %")):
        axes.bar([n + 0.27 * (shift - 1) for n in range(len(rows))], [row[column] for row in rows], 0.25, label=column)
    axes.set_xticks(range(len(rows)), [row["data"].replace("_", "\n") for row in rows])
    axes.set_ylabel("test accuracy in %")
    figure.legend(fontsize=8, loc="outside lower center", ncols=3)
    save_figure(figure, path)


def run(settings: Settings) -> dict[str, Any]:
    """Train every set with the chosen settings and with the grid, and draw the accuracies."""
    folders = photographs()
    for name in settings.variants:
        check_choice("variants", name, (*SETS, *folders))
    if not folders and not settings.variants:
        settings.say(f"photographs are left out: {PHOTOS} names no folder")
    rows = []
    for name in settings.variants or (*SETS, *folders):
        if name in folders:
            if not folders[name].is_dir():
                settings.say(f"{name} is left out: {folders[name]} is no folder")
                continue
            row = _run(str(folders[name]), settings, settings.folder / name)
        elif name in PUBLISHED:
            try:
                dataset_info(name, settings.data_root)
                row = _run(name, settings, settings.folder / name)
            except UsageError as error:
                settings.say(f"{name} is left out: {error}")
                continue
        else:
            made = name in MADE
            data = str(make_folder(settings.folder / "images" / name, name)) if made else name
            row = _run(data, settings, settings.folder / name)
        settings.say(f"{name}: chosen {row['chosen %']:.2f} %, best of the grid {row['best of grid %']:.2f} %")
        rows.append(row)
    if not rows:
        raise UsageError("variants are data sets that are not on this machine; give --data-root.")
    _draw(rows, settings.folder / "defaults.png")
    return {
        "tables": {"Settings chosen from the data, and a grid of as much computation": rows},
        "notes": NOTES,
        "pictures": ["defaults.png"],
    }
