"""A plain network trained on photographs of many kinds, as the start of one for other photographs.

It is worth giving to users if it beats starting fresh by three points on two sets that it has not seen. Those are the
folders that the environment variable MEREO_PHOTOS names, otherwise images that are drawn.
"""

from pathlib import Path
from typing import Any

from mereo.training.config import TrainConfig
from mereo.training.run_folder import RunFolder
from mereo.training.studies import finish_runs
from papers.common.settings import Settings
from papers.defaults.defaults import first_choice, given_settings, photographs
from papers.defaults.made_images import KINDS, make_folder

MINUTES, MOST_EPOCHS = 80.0, 200
"""Time of the training of the backbone, and its epochs at most."""
NETWORK = "resnet8_64"
LIMIT, DRAWN, WORTH = 500, ("shapes", "scenes"), 3.0
"""Training images of the other sets, these sets if no folders are named, and the points that must be gained."""


def backbone(settings: Settings) -> TrainConfig:
    """The training of the backbone, which goes on where it was stopped."""
    length: dict[str, Any] = {"minutes": MINUTES, "epochs": MOST_EPOCHS}
    if settings.epochs is not None:
        length = {"epochs": settings.epochs}
    return TrainConfig(
        model=NETWORK, data=str(settings.data), data_root=settings.data_root, in_chans=3, lr=3e-3, precision="bf16",
        batch_size=128, label_smoothing=0.1, augment=("zoom=0.25:1", "flip"), validation_fraction=0.04,
        limit=settings.limit, device=settings.device or "auto", tensorboard=False, output=str(settings.folder),
        name="backbone", resume=True,
    ).replace(**length)  # fmt: skip


def _row(name: str, data: str, settings: Settings, weights: Path) -> dict[str, Any]:
    """The accuracies of a set, started fresh and from the backbone, with the same settings otherwise."""
    folder = settings.folder / name
    folder.mkdir(parents=True, exist_ok=True)
    given = {**given_settings(data, settings), "model": NETWORK, "limit": min(settings.limit or LIMIT, LIMIT)}
    config = first_choice(given, folder).replace(in_chans=3)
    starts: dict[str, dict[str, Any]] = {"fresh": {}, "backbone": {"weights": str(weights), "pretrained": True}}
    planned = {
        (label, seed): config.replace(**changes, seed=seed, name=f"{label}-seed{seed}", output=str(folder), resume=True)
        for label, changes in starts.items()
        for seed in range(settings.seeds)
    }
    results = finish_runs(planned, settings.say)
    fresh, started = (
        100 * sum(row["test_best"]["accuracy"] for row in results[label]) / len(results[label]) for label in starts
    )
    return {"data": name, "epochs": config.epochs, "fresh %": fresh, "from it %": started, "gain %": started - fresh}


def run(settings: Settings) -> dict[str, Any]:
    """Train the backbone, and networks of other sets with and without it."""
    config = backbone(settings)
    (trained,) = finish_runs({("backbone", 0): config}, settings.say)["backbone"]
    weights = RunFolder(settings.folder / "backbone").best
    folders = {name: str(path) for name, path in photographs().items() if path.is_dir()}
    for name in () if folders else DRAWN:
        drawn = name in KINDS
        folders[name] = str(make_folder(settings.folder / "images" / name, name)) if drawn else name
    rows = [_row(name, data, settings, weights) for name, data in folders.items()]
    worth = len(rows) > 1 and all(row["gain %"] >= WORTH for row in rows)
    return {
        "tables": {"Starting from the backbone, and fresh": rows},
        "notes": [
            f"{NETWORK} trained on {config.data}: {100 * trained['test_best']['accuracy']:.2f} % there.",
            f"It is {'' if worth else 'not '}worth giving: {WORTH:g} points must be gained on two sets or more.",
        ],
    }
