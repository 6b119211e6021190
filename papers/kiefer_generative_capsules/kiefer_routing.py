"""The four training conditions of appendix A, and two networks with a layer of capsules in the middle.

The runs belong to the study of the same name. Sparsity is measured on the test images with the weights of the last
epoch, and stored with each run, so that an interrupted experiment continues.
"""

import csv
import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mereo.models import load
from mereo.runtime.device import choose_device
from mereo.training.config import TrainConfig
from mereo.training.run_folder import RunFolder
from papers.common.settings import Settings
from papers.common.studies import configurations, run_study
from papers.kiefer_generative_capsules.routing_pictures import draw_routing
from papers.kiefer_generative_capsules.sparsity import MEASURES, layer_sparsity
from papers.kiefer_generative_capsules.studies import KIEFER_ROUTING
from papers.kiefer_generative_capsules.test_images import take_test_images

PICTURE = "kiefer_routing.png"
OVERRIDES = ("data", "data_root", "epochs", "warmup_epochs", "limit", "batch_size", "device")
NOTES = [
    "Train loss: the last epoch, summed over classes; the paper's is their mean, a tenth of it.",
    "Entropy: of the couplings of a child, divided by the largest possible: without routing it is 1.",
    "Routing has the authors' three iterations: learned logits, three updates, four weighted sums.",
    "The learning rate has a warm-up, which the authors do not use; --warmup-epochs 0 repeats.",
]


def run(settings: Settings) -> dict[str, Any]:
    """Train the missing runs, and compare accuracy, loss and sparsity with the paper's numbers."""
    output = str(settings.folder.parent)
    overrides = settings.given(OVERRIDES)
    plan = ("kiefer_routing", KIEFER_ROUTING, settings.seeds, output, overrides, settings.variants)
    configs = configurations(*plan)
    rows = run_study(*plan, say=settings.say)
    folders: dict[str, list[RunFolder]] = {}
    for (label, _), config in configs.items():
        folders.setdefault(label, []).append(RunFolder(Path(config.output) / str(config.name)))
    losses = {label: [_losses(folder) for folder in runs] for label, runs in folders.items()}
    sparsity: dict[str, list[dict[str, Any]]] = {}
    for (label, seed), config in configs.items():
        sparsity.setdefault(label, []).append(_sparsity(folders[label][seed], config, settings))
    draw_routing(losses, _means(sparsity), settings.folder / PICTURE)
    images = next(iter(sparsity.values()))[0]["images"]
    return {
        "tables": {
            "Accuracy at the last epoch": [_accuracy_row(row, losses[row["variant"]]) for row in rows],
            f"Sparsity on {images:,} test images": _means(sparsity),
        },
        "notes": NOTES,
        "pictures": [PICTURE],
        "train_loss": losses,
    }


def _losses(folder: RunFolder) -> list[float]:
    """The training loss of each epoch."""
    with folder.history.open(newline="") as file:
        return [float(row["train_loss"]) for row in csv.DictReader(file)]


def _accuracy_row(row: dict[str, Any], losses: Sequence[Sequence[float]]) -> dict[str, Any]:
    return {
        "variant": row["variant"], "parameters": row["parameters"], "seeds": row["seeds"], "test %": row["last"],
        "spread %": row["spread"], "paper %": row["reported"],
        "train loss": statistics.mean(of_a_seed[-1] for of_a_seed in losses),
    }  # fmt: skip


def _sparsity(folder: RunFolder, config: TrainConfig, settings: Settings) -> dict[str, Any]:
    """The sparsity of one run's last weights, measured once: {"images": count, layer: measures}."""
    path = folder.path / "sparsity.json"
    stored: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    if not stored or stored["asked"] != settings.images:
        settings.say(f"{config.name}: measuring sparsity")
        device = choose_device(config.device)
        model = load(folder.last, device)
        images = take_test_images(model, config.data, config.data_root, settings.images, device).images
        stored = {"asked": settings.images, "images": len(images), **layer_sparsity(model, images)}
        folder.write_json(path, stored)
    return stored


def _means(sparsity: dict[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """A row a variant and layer: each measure, the mean of the seeds."""
    return [
        {"variant": label, "layer": layer}
        | {measure: statistics.mean(run[layer][measure] for run in runs) for measure in MEASURES}
        for label, runs in sparsity.items()
        for layer in ("middle", "classes")
        if layer in runs[0]
    ]
