"""Embeddings of coloured shapes by one learner, by 2 and 4 fixed ones, and by learners that are split in training.

"slow" is one learner at a tenth of the learning rate, at which the gates do not saturate. Gates of the training images
above a half are also proxy masks, on which a segmentation network is trained.

Each pair of a shape and a colour is a class. All embeddings have 32 numbers, and the best epoch is chosen on validation
images.
"""

import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

import mereo
from mereo.data import Batch, ImageSet
from mereo.data.sets.coloured_shapes import make_split
from mereo.inference.evaluate import normalise
from mereo.inference.mode import evaluating
from mereo.models.weights import load_tensors
from mereo.pictures import new_figure, save_figure
from mereo.tasks.segmentation import dice_loss, pixel_loss
from mereo.training.config import TrainConfig
from mereo.training.report import Report
from mereo.training.trainer import train
from papers.common.fitting import fit
from papers.common.settings import Settings

EPOCHS, BATCH, DIM, TESTED = 24, 32, 32, 400
NETWORK: Mapping[str, Any] = {"backbone_args": {"blocks": 1, "widths": [8, 16, 32]}}
DYNAMIC = "dynamic"
RATES = {"1 learner": 1e-2, "2 learners": 1e-2, "4 learners": 1e-2, DYNAMIC: 1e-2, "slow": 1e-3}
LEARNERS = {"2 learners": 2, "4 learners": 4}
"""The learning rate of each network, and its learners at the start, one by default."""
PATIENCE, LEAST_OUTPUTS, LEAST_KEPT = 3, 6, 3
METRICS = {"NMI": "nmi", "recall@1": "recall_at_1", "recall@2": "recall_at_2", "recall@4": "recall_at_4",
           "recall@8": "recall_at_8", "mAP": "mean_average_precision"}  # fmt: skip
CURVES, MAPS = "learners.png", "attention.png"
SHOWN = 8
WIDTHS, SEGMENTING = (8, 16, 32), 12
"""Widths and epochs of the U-Net."""


@dataclass(frozen=True)
class Trained:
    """One training.

    Attributes:
        figures: of the best epoch on test images.
        nmi: of each epoch on validation images.
        splits: as `SubspaceObjective.splits`.
        learners: at the end.
        model: of the best epoch.
    """

    figures: Mapping[str, float]
    nmi: list[float]
    splits: list[dict[str, int]]
    learners: int
    model: Any


def train_one(variant: str, seed: int, settings: Settings) -> Trained:
    """Train one network and test it."""
    options = {"dim": DIM, "least_outputs": LEAST_OUTPUTS, "least_kept": LEAST_KEPT}
    options["patience"] = PATIENCE if variant == DYNAMIC else 0
    config = TrainConfig(
        model="subspace_resnet8", model_args={**NETWORK, "learners": LEARNERS.get(variant, 1)}, data="coloured_shapes",
        task="subspace_embedding", task_options=options, epochs=settings.epochs or EPOCHS, limit=settings.limit,
        batch_size=settings.batch_size or BATCH, lr=RATES[variant], seed=seed, device=settings.device or "auto",
        tensorboard=False,
    )  # fmt: skip
    with TemporaryDirectory() as folder:
        result = train(config.replace(output=folder), Report(silent=True), pictures=False)
        progress = load_tensors(result.folder.state)[1]["progress"]
    splits, history = progress["memory"]["splits"], progress["history"]
    found = Trained(
        result.test_best.values, [row["val_nmi"] for row in history], splits, int(history[-1]["learners"]), result.model
    )
    settings.say(f"{variant}, seed {seed}: NMI {100 * found.figures['nmi']:.1f} %, {found.learners} learners")
    return found


@torch.inference_mode()
def attention(model: Any, images: Tensor) -> Tensor:
    """The gates in the size of the images, from 0 to 1 in each: (n, 3, height, width) -> (n, height, width)."""
    with mereo.record(model) as trace:
        model(normalise(images, model.pretrained_cfg["mean"], model.pretrained_cfg["std"]))
    maps = F.interpolate(trace["gate.gates"], images.shape[-2:], mode="bilinear").squeeze(1)
    least, most = maps.amin((1, 2), keepdim=True), maps.amax((1, 2), keepdim=True)
    return (maps - least) / (most - least).clamp(min=1e-9)


def localisation(maps: Tensor, masks: Tensor) -> tuple[float, float]:
    """How often the largest value is inside of the shape, and the mean IoU of the shape and values above a half."""
    hits = masks.flatten(1).gather(1, maps.flatten(1).argmax(1, keepdim=True)).float().mean()
    there, wanted = maps > 0.5, masks > 0
    iou = (there & wanted).sum((1, 2)) / (there | wanted).sum((1, 2)).clamp(min=1)
    return hits.item(), iou.mean().item()


def dice(found: Tensor, wanted: Tensor) -> float:
    """The mean over images of twice the common area by the sum of the areas, bool (n, height, width) each."""
    both, sums = (found & wanted).sum((1, 2)), found.sum((1, 2)) + wanted.sum((1, 2))
    return (2 * both / sums.clamp(min=1)).mean().item()


def segmented(images: Tensor, masks: Tensor, tested: Tensor, seed: int, settings: Settings) -> Tensor:
    """Where a small U-Net that was trained on masks finds shapes: (n, 3, h, w), bool (n, h, w), tested (m, 3, h, w)."""
    torch.manual_seed(seed)
    model: Any = mereo.create_model("unet_small", widths=WIDTHS, num_classes=2, img_size=images.shape[-1])
    mean, std = model.pretrained_cfg["mean"], model.pretrained_cfg["std"]

    def loss(batch: Batch) -> Tensor:
        assert batch.masks is not None
        scores = model(normalise(batch.images, mean, std))
        return pixel_loss(scores, batch.masks) + 0.5 * dice_loss(scores, batch.masks)

    whole = ImageSet((255 * images).round().byte(), torch.zeros(len(images)).long(), ("",), {"masks": masks.long()})
    fit(
        loss, model.parameters(), whole, epochs=settings.epochs or SEGMENTING, batch_size=settings.batch_size or BATCH,
        lr=3e-3, seed=seed, device=torch.device("cpu"), title="U-Net", say=lambda line: None,
    )  # fmt: skip
    with evaluating(model), torch.inference_mode():
        return torch.cat([model(normalise(part, mean, std)).argmax(1) for part in tested.split(BATCH)]) > 0


def _row(name: str, values: Mapping[str, list[float]]) -> dict[str, Any]:
    row: dict[str, Any] = {"network": name}
    for title, found in values.items():
        row[title] = 100 * statistics.mean(found)
    return row


def _some(split: str, most: int | None) -> tuple[Tensor, Tensor]:
    """Images of a split in [0, 1] and where their shapes are."""
    images, _, masks = make_split(split)
    chosen = np.linspace(0, len(images) - 1, min(most or len(images), len(images))).astype(int)
    return torch.from_numpy(images[chosen]).float() / 255, torch.from_numpy(masks[chosen]).long()


def run(settings: Settings) -> dict[str, Any]:
    """Retrieval and clustering of each network, the splits, and where the gates look."""
    (pixels, shapes), (seen, known) = _some("test", settings.images or TESTED), _some("train", settings.limit)
    runs = {
        name: [train_one(name, seed, settings) for seed in range(settings.seeds)] for name in settings.chosen(RATES)
    }
    figures, looks, splits, proxies = [], [], [], []
    area = (shapes > 0).float().mean().item()
    for name, trained in runs.items():
        values = {title: [each.figures[metric] for each in trained] for title, metric in METRICS.items()}
        learners = ", ".join(str(each.learners) for each in trained)
        low, high = (100 * extreme(values["NMI"]) for extreme in (min, max))
        figures.append({**_row(name, values), "least NMI": low, "most NMI": high, "learners": learners})
        places = [localisation(attention(each.model.cpu(), pixels), shapes) for each in trained]
        pointing, ious = zip(*places, strict=True)
        looks.append(_row(name, {"pointing": list(pointing), "IoU": list(ious)}))
        own = [dice(attention(each.model, pixels) > 0.5, shapes > 0) for each in trained]
        learned = [
            dice(segmented(seen, attention(each.model, seen) > 0.5, pixels, seed, settings), shapes > 0)
            for seed, each in enumerate(trained)
        ]
        proxies.append(_row(name, {"masks": own, "U-Net trained on them": learned}))
        splits += [
            {"network": name, "seed": seed, **split} for seed, each in enumerate(trained) for split in each.splits
        ]
    looks.append(_row("all pixels alike", {"pointing": [area], "IoU": [area]}))
    true = [dice(segmented(seen, known, pixels, seed, settings), shapes > 0) for seed in range(settings.seeds)]
    everywhere = dice(torch.ones_like(shapes, dtype=torch.bool), shapes > 0)
    proxies.append(_row("true masks", {"masks": [1.0], "U-Net trained on them": true}))
    proxies.append(_row("all pixels alike", {"masks": [everywhere], "U-Net trained on them": [everywhere]}))
    _draw_curves(runs, settings)
    _draw_maps(runs[list(runs)[-1]][0].model, pixels, shapes, settings)
    tables = {
        "Coloured shapes, test images, %": figures,
        "Where the gates look, %": looks,
        "Proxy masks, Dice, %": proxies,
    }
    return {
        "tables": tables | ({"Splits": splits} if splits else {}),
        "notes": [f"Means of seeds ({settings.seeds}); pairs of 4 shapes and 4 colours are the 16 classes."],
        "pictures": [CURVES, MAPS],
    }


def _draw_curves(runs: Mapping[str, list[Trained]], settings: Settings) -> None:
    """The mean NMI on validation images by epoch, and the splits of each seed."""
    figure = new_figure(7.2, 3.4)
    axes = figure.subplots()
    for place, (name, trained) in enumerate(runs.items()):
        mean = np.mean([each.nmi for each in trained], axis=0)
        axes.plot(np.arange(1, len(mean) + 1), 100 * mean, color=f"C{place}", label=name)
        for seed, each in enumerate(trained):
            for split in each.splits:
                at = split["epoch"]
                label = "a split of one seed" if seed == 0 and split is each.splits[0] else None
                axes.plot(at, 100 * mean[at - 1], "o", color=f"C{place}", markersize=5, label=label)
    axes.set(xlabel="epoch", ylabel="NMI on validation images, %")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, fontsize=8, loc="lower right")
    save_figure(figure, settings.folder / CURVES)


def _draw_maps(model: Any, pixels: Tensor, shapes: Tensor, settings: Settings) -> None:
    """Images of the test set, the gates of a network, and where the shapes are."""
    chosen = torch.linspace(0, len(pixels) - 1, SHOWN).long()
    rows = (pixels[chosen].permute(0, 2, 3, 1), attention(model, pixels[chosen]), shapes[chosen])
    figure = new_figure(1.05 * SHOWN, 3.4)
    grid = figure.subplots(3, SHOWN)
    for name, line, shown in zip(("image", "attention", "shape"), grid, rows, strict=True):
        for axes, picture in zip(line, shown, strict=True):
            axes.imshow(picture.numpy(), cmap="viridis" if name == "attention" else "gray")
            axes.set(xticks=[], yticks=[])
        line[0].set_ylabel(name, fontsize=9)
    save_figure(figure, settings.folder / MAPS)
