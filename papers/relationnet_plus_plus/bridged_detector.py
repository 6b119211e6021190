"""A small detector of shapes with and without bridging, and with the keypoints learned but unused."""

import statistics
import time
from typing import Any

import torch
from torch import Tensor, nn

import mereo
from mereo.data import Augmentation, Batch, load_splits
from mereo.data.images import Images
from mereo.inference.evaluate import evaluate, prepare_batch
from mereo.layers.bridge import KINDS, Bridge
from mereo.pictures import displayable, new_figure, save_figure
from mereo.tasks import Detection
from mereo.tasks.detection import detect
from mereo.training.config import TrainConfig
from papers.common.fitting import fit
from papers.common.measures import span
from papers.common.settings import Settings

DATA, SIDE, EPOCHS, BATCH, RATE, DRAWN = "shape_boxes", 64, 12, 16, 2e-3, 5
VARIANTS = ("plain", "bridged", "keypoints unused")
"""Of the networks; the last learns the keypoints without bridging."""
BRIDGING = {"most": 8, "per_level": 8, "cells": 65, "num_heads": 4}
PICTURE = "keypoints.png"


class Unused(Bridge):
    """A bridge whose keypoints are learned, and which leaves both branches as they are."""

    def forward(self, maps: Any, classing: Any, placing: Any, strides: Any) -> tuple[list[Tensor], list[Tensor]]:
        super().forward(maps, classing, placing, strides)
        return list(classing), list(placing)


def make(variant: str, classes: int, seed: int) -> Any:
    """A detector; all start from the same weights apart from the bridge."""
    torch.manual_seed(seed)
    plain = mereo.create_model("detector_small", num_classes=classes, img_size=SIDE)
    if variant == "plain":
        return plain
    torch.manual_seed(seed)
    bridged: Any = mereo.create_model("detector_bridged", num_classes=classes, img_size=SIDE, bridging_args=BRIDGING)
    bridged.load_state_dict(plain.state_dict(), strict=False)
    if variant == "keypoints unused":
        bridged.bridge.__class__ = Unused
    return bridged


def train(
    variant: str, seed: int, splits: tuple[Images, Images], classes: tuple[str, ...], settings: Settings
) -> tuple[nn.Module, dict[str, float]]:
    """A trained detector and its figures on the test images."""
    device, task = settings.chosen_device(), Detection(classes)
    model = make(variant, len(classes), seed).to(device).train()
    objective = task.objective(model, TrainConfig())
    objective.train()
    began = time.monotonic()

    def loss(batch: Batch) -> Tensor:
        return objective(prepare_batch(batch, model.pretrained_cfg))[0]

    fit(
        loss, model.parameters(), splits[0], epochs=settings.epochs or EPOCHS,
        batch_size=settings.batch_size or BATCH, lr=RATE, device=device, title=f"{variant}, seed {seed}",
        say=settings.say, seed=seed, augmentation=Augmentation.parse(("flip",)),
    )  # fmt: skip
    seconds = time.monotonic() - began
    figures = evaluate(model, splits[1], task=task, batch_size=32).values
    return model, {**figures, "seconds": seconds}


def run(settings: Settings) -> dict[str, Any]:
    """AP of each variant over the seeds, and a picture of boxes and of the keypoints that cells attend to."""
    splits = load_splits(DATA, img_size=SIDE, limit=settings.limit)
    test = splits.test.subset(torch.arange(min(settings.images or len(splits.test), len(splits.test))))
    classes, rows, last = splits.train.class_names, list[dict[str, Any]](), {}
    for variant in settings.chosen(VARIANTS):
        found = [train(variant, seed, (splits.train, test), classes, settings) for seed in range(settings.seeds)]
        figures = [each for _, each in found]
        last[variant] = found[0][0]
        rows.append(
            {
                "detector": variant,
                "parameters": sum(p.numel() for p in last[variant].parameters()),
                **span("AP", [100 * each["ap"] for each in figures]),
                "AP50": 100 * statistics.mean(each["ap50"] for each in figures),
                "AP75": 100 * statistics.mean(each["ap75"] for each in figures),
                "seconds": statistics.mean(each["seconds"] for each in figures),
            }
        )
        settings.say(f"{variant}: AP {rows[-1]['AP']:.2f}")
    pictures = [PICTURE] if "bridged" in last else []
    if pictures:
        _draw(last["bridged"], test, settings)
    epochs = settings.epochs or EPOCHS
    return {
        "tables": {f"{DATA}, {epochs} epochs of {len(splits.train)} images, {settings.seeds} seeds": rows},
        "notes": [f"AP in percent on {len(test)} test images. Adam at {RATE:g}; keypoints: {BRIDGING}."],
        "pictures": pictures,
        "data": DATA,
    }


@torch.inference_mode()
def _draw(model: Any, test: Images, settings: Settings) -> None:
    """Images with the predicted boxes, and for the surest box of each the keypoints that its cell attends to."""
    from matplotlib.patches import Rectangle

    model.eval()
    batch = test.batch(torch.arange(DRAWN))
    mean, std = (torch.tensor(model.pretrained_cfg[name]).view(-1, 1, 1) for name in ("mean", "std"))
    device = next(model.parameters()).device
    with mereo.record(model.bridge) as trace:
        outputs = model(((batch.images - mean) / std).to(device)).cpu()
    found = detect(outputs, Detection(test.class_names).options)
    surest = (outputs[..., 5:].amax(-1).sigmoid() * outputs[..., 4].sigmoid()).argmax(1)
    branches = ("classing.attention.0", "placing.attention.0", "placing.attention.1")
    places = model.cells(SIDE, SIDE)[0].cpu()
    figure = new_figure(1.7 * DRAWN, 3.9)
    grid = figure.subplots(2, DRAWN, squeeze=False)
    for column in range(DRAWN):
        for row in range(2):
            grid[row][column].set_axis_off()
            grid[row][column].imshow(displayable(batch.images[column]), extent=(0, SIDE, SIDE, 0))
        for x0, y0, x1, y1, score, label in found[column].tolist():
            if label >= 0 and score >= 0.3:
                box = Rectangle((SIDE * x0, SIDE * y0), SIDE * (x1 - x0), SIDE * (y1 - y0), fill=False)
                box.set(edgecolor=f"C{int(label)}", linewidth=1.4)
                grid[0][column].add_patch(box)
        cell = int(surest[column])
        for number, (kind, name) in enumerate(zip(KINDS, branches, strict=True)):
            shares = trace[f"{name}.coupling"][column, :, cell].mean(0).cpu()
            keys = model.bridge.chosen[kind].places[column].cpu()
            grid[1][column].scatter(
                keys[:, 0], keys[:, 1], s=6 + 160 * shares, c=("white", "cyan", "orange")[number],
                marker=("o", "^", "v")[number], edgecolors="black", linewidths=0.5, label=kind, clip_on=True,
            )  # fmt: skip
        grid[1][column].scatter(*places[cell].tolist(), marker="x", c="red", s=40, label="the cell")
        grid[1][column].set(xlim=(0, SIDE), ylim=(SIDE, 0))
    grid[0][0].set_title("predicted boxes", fontsize=8, loc="left")
    grid[1][0].set_title("keypoints by the attention of the surest cell", fontsize=8, loc="left")
    handles, labels = grid[1][0].get_legend_handles_labels()
    legend = figure.legend(handles, labels, loc="outside lower center", ncols=4, fontsize=7)
    for handle in legend.legend_handles[:3]:
        handle.set_sizes([30])
    save_figure(figure, settings.folder / PICTURE)
