"""Self-guided attention without one of its parts at a time, and a U-Net, on slices with organs.

All networks take the same steps of Adam on the same images. Dice and distance are of single organs of single images.
"""

import statistics
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import mereo
from mereo.data import Augmentation, Batch
from mereo.data.images import Images
from mereo.pictures import new_figure, save_figure
from mereo.tasks.base import Objective
from mereo.tasks.boundary_distance import boundary_distance
from mereo.tasks.mask_pictures import overlay
from mereo.tasks.segmentation import SegmentationObjective
from papers.common.fitting import batches, fit
from papers.common.measures import span
from papers.common.settings import Settings

WIDTHS, WIDTH, SIDE = (16, 32, 64, 128), 8, 48
EPOCHS, BATCH, RATE = 1, 4, 1e-2
VARIANTS: dict[str, dict[str, Any]] = {
    "all parts": {},
    "position attention only": {"attention": "position"},
    "channel attention only": {"attention": "channel"},
    "no guide loss": {"guide_weight": 0.0},
    "no gate": {"gated": False},
    "one round": {"rounds": 1},
    "unet_small": {},
}
SHOWN, DRAWN = 3, ("all parts", "unet_small")
PICTURE = "organs.png"


def make(name: str, classes: int, shape: tuple[int, ...], seed: int) -> Any:
    """A network in training; the U-Net has no added losses."""
    torch.manual_seed(seed)
    sizes: dict[str, Any] = {"num_classes": classes, "in_chans": shape[0], "img_size": tuple(shape[1:])}
    if name == "unet_small":
        return mereo.create_model("unet_small", widths=WIDTHS, **sizes).train()
    backbone = {"widths": WIDTHS, "blocks": 1, "stem_stride": 4}
    return mereo.create_model(
        "self_guided_small", backbone_args=backbone, width=WIDTH, **sizes, **VARIANTS[name]
    ).train()


def overlap(found: Tensor, true: Tensor) -> float:
    """Dice of two sets of pixels."""
    return 2 * int((found & true).sum()) / int(found.sum() + true.sum())


@torch.inference_mode()
def measure(model: Any, test: Images, classes: int, device: torch.device) -> dict[str, list[float]]:
    """Dice of each organ of each image, and its boundary distance where any of its pixels is predicted."""
    figures: dict[str, list[float]] = {"dice": [], "distance": []}
    model.eval()
    for batch in batches(test, 16, device):
        assert batch.masks is not None
        for found, true in zip(model(batch.images).argmax(1).cpu(), batch.masks.cpu(), strict=True):
            for organ in range(1, classes):
                there = true == organ
                if not there.any():
                    continue
                figures["dice"].append(overlap(found == organ, there))
                if (found == organ).any():
                    figures["distance"].append(boundary_distance(found == organ, there))
    return figures


def _loss(objective: Objective, batch: Batch) -> Tensor:
    return objective(batch)[0]


def run(settings: Settings) -> dict[str, Any]:
    """A row for each network over all seeds, and a picture of masks and of attention."""
    device = settings.chosen_device()
    splits = settings.splits(SIDE, validation_fraction=0.1)
    test = splits.test.subset(torch.arange(min(settings.images or len(splits.test), len(splits.test))))
    names, rows, kept = splits.class_names, [], {}
    for name in settings.chosen(VARIANTS):
        found: dict[str, list[list[float]]] = {"dice": [], "distance": []}
        for seed in range(settings.seeds):
            model = make(name, len(names), splits.train.image_shape, seed).to(device)
            objective = SegmentationObjective(model, dice_weight=0.0).train()
            fit(
                partial(_loss, objective), model.parameters(), splits.train, epochs=settings.epochs or EPOCHS,
                batch_size=settings.batch_size or BATCH, lr=RATE, device=device, title=f"{name}, seed {seed}",
                say=settings.say, seed=seed, augmentation=Augmentation.parse(["flip"]),
            )  # fmt: skip
            for key, values in measure(model, test, len(names), device).items():
                found[key].append(values)
            if seed == 0 and name in DRAWN:
                kept[name] = model
        together = [value for values in found["dice"] for value in values]
        apart = [value for values in found["distance"] for value in values]
        rows.append(
            {
                "network": name,
                "parameters": sum(p.numel() for p in model.parameters()),
                **span("dice %", [100 * statistics.mean(values) for values in found["dice"]]),
                "deviation over organs": 100 * statistics.pstdev(together),
                "missed %": 100 * (1 - len(apart) / len(together)),
                "distance": statistics.mean(apart) if apart else 0.0,
            }
        )
        settings.say(", ".join(f"{key} {value:.4g}" for key, value in list(rows[-1].items())[1:]))
    _draw(kept, test.batch(torch.arange(min(SHOWN, len(test))), device=device), settings.folder / PICTURE)
    return {
        "tables": {f"{settings.data}, {settings.seeds} {'seed' if settings.seeds == 1 else 'seeds'}": rows},
        "notes": ["Distances are in pixels, over organs of which any pixel is predicted; missed are the others."],
        "pictures": [PICTURE],
        "data": str(settings.data),
    }


@torch.inference_mode()
def _draw(kept: dict[str, Any], batch: Batch, path: Path) -> None:
    """Images, masks by each network, and the places that one place of an organ attends to in both rounds."""
    assert batch.masks is not None
    panels = [("image", batch.images.mean(1, keepdim=True).expand(-1, 3, -1, -1).cpu())]
    panels.append(("true", overlay(batch.images, batch.masks)))
    places = [_middle(mask == mask.max()) for mask in batch.masks.cpu()]
    attended: list[tuple[str, Tensor]] = []
    for name, model in kept.items():
        with mereo.record(model) as trace:
            panels.append((name, overlay(batch.images, model(batch.images).argmax(1))))
        rounds = [key for key in trace if key.startswith("attentions.") and ".0.branches.position" in key]
        for number, key in enumerate(rounds if not attended else (), 1):
            side = batch.images.shape[-1] // model.cell
            cells = [row // model.cell * side + column // model.cell for row, column in places]
            shares = trace[key][torch.arange(len(cells)), 0, cells].cpu()
            attended.append((f"attention of the\ncross, round {number}", shares.unflatten(1, (-1, side))))
    figure = new_figure(1.35 * (len(panels) + len(attended)), 1.45 * len(batch.images) + 0.3)
    grid = figure.subplots(len(batch.images), len(panels) + len(attended), squeeze=False)
    for row, (axes, (down, across)) in enumerate(zip(grid, places, strict=True)):
        for place, (title, pictures) in zip(axes, panels + attended, strict=True):
            shown = (pictures[row].movedim(0, -1) if pictures.dim() == 4 else pictures[row]).numpy()
            extent = (0, batch.images.shape[-1], batch.images.shape[-2], 0)
            place.imshow(shown, interpolation="nearest", cmap="magma", extent=extent)
            place.set_axis_off()
            if row == 0:
                place.set_title(title, fontsize=7)
        for place in (axes[1], *axes[len(panels) :]):
            place.plot(across + 0.5, down + 0.5, "+", color="cyan", markersize=6)
    save_figure(figure, path)


def _middle(inside: Tensor) -> tuple[int, int]:
    """Row and column of the pixel nearest to the mean of some."""
    pixels = inside.nonzero().float()
    row, column = pixels[(pixels - pixels.mean(0)).square().sum(1).argmin()].int().tolist()
    return row, column
