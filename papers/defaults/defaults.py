"""The network and settings chosen by `mereo train`, compared with a plain residual network trained for as long.

Every set is trained once with what is chosen without an option, and with `resnet20` at two rates, the numbers of epochs
such that all take as long. The better rate of the plain network is chosen on the test images, which favours it. Folders
of photographs that the environment variable MEREO_PHOTOS names are trained on too.
"""

import math
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
CHOSEN = "chosen"
PHOTOS = "MEREO_PHOTOS"
"""Environment variable with folders of photographs, separated as in PATH; without it none are trained on."""
LIMIT = 2000
"""Training images of the larger sets."""
PLAIN_NETWORK = "resnet20"
PLAIN = {f"rate {rate:g}": {"model": PLAIN_NETWORK, "lr": rate} for rate in (3e-3, 1e-2)}
"""Plain networks to compare with; the rest of their settings is chosen."""
NOTES = [
    "chosen: what mereo train chooses with no option, its time measured on this machine. plain:"
    f" {PLAIN_NETWORK} with {' and '.join(PLAIN)} for as long; the better one is taken on the test images, which"
    " favours it.",
    "standard error: of a difference of two networks on these test images, if their errors were independent.",
]


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
    """The settings with another network, chosen for the same time, or its run's settings if it has begun."""
    if run.config.exists():
        return TrainConfig.from_yaml(run.config)
    own = {**given, **changes}
    return choose(TrainConfig().replace(**own), own).config


def _run(data: str, settings: Settings, folder: Path) -> dict[str, Any]:
    """One row: the chosen settings, their accuracy, and the accuracy of the plain network."""
    given = given_settings(data, settings)
    config, planned = first_choice(given, folder), dict[tuple[str, int], TrainConfig]()
    for label, changes in {CHOSEN: {}, **PLAIN}.items():
        for seed in range(settings.seeds):
            run = RunFolder(folder / f"{label.replace(' ', '-')}-seed{seed}")
            base = _as_long(changes, given, run) if changes else config
            planned[label, seed] = base.replace(seed=seed, name=run.path.name, output=str(folder), resume=True)
    results = finish_runs(planned, settings.say)
    accuracy = {label: sum(row["test_best"]["accuracy"] for row in rows) / len(rows) for label, rows in results.items()}
    chosen = accuracy.pop(CHOSEN)
    best = max(accuracy, key=accuracy.__getitem__)
    plain, rows = accuracy[best], results[CHOSEN]
    tested = sum(row["test_best"]["count"] for row in rows)
    seconds = round(sum(row["seconds"] for row in rows) / len(rows), 1)
    return {
        "data": Path(data).name, "network": config.model, "pixels": config.img_size, "batch": config.batch_size,
        "rate": config.lr, "epochs": config.epochs, "seconds": seconds,
        "chosen %": 100 * chosen, "plain %": 100 * plain, "plain": f"{planned[best, 0].epochs} epochs, {best}",
        "difference %": 100 * (chosen - plain),
        "standard error %": 100 * math.sqrt((chosen * (1 - chosen) + plain * (1 - plain)) / tested),
    }  # fmt: skip


def _draw(rows: list[dict[str, Any]], path: Path) -> None:
    figure = new_figure(7, 3.5)
    axes = figure.subplots()
    for shift, column in enumerate(("plain %", "chosen %")):
        axes.bar([n + 0.4 * (shift - 0.5) for n in range(len(rows))], [row[column] for row in rows], 0.38, label=column)
    axes.set_xticks(range(len(rows)), [row["data"].replace("_", "\n") for row in rows])
    axes.set_ylabel("test accuracy in %")
    figure.legend(fontsize=8, loc="outside lower center", ncols=2)
    save_figure(figure, path)


def run(settings: Settings) -> dict[str, Any]:
    """Train every set with the chosen settings and with the plain network, and draw the accuracies."""
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
        settings.say(f"{name}: chosen {row['chosen %']:.2f} %, plain {row['plain %']:.2f} %")
        rows.append(row)
    if not rows:
        raise UsageError("variants are data sets that are not on this machine; give --data-root.")
    _draw(rows, settings.folder / "defaults.png")
    return {
        "tables": {"Settings chosen from the data, and a plain network trained for as long": rows},
        "notes": NOTES,
        "pictures": ["defaults.png"],
    }
