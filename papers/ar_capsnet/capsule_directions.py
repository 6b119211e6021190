"""How the pose of a class capsule follows rotation, scale, shear and shift of the image.

Each image is transformed by growing amounts, which gives a matrix of differences of the pose of the true class. If they
lie along one direction, the first singular value is most of the sum of all. The control takes other
images of the class; an untrained network shows what the architecture alone does. The second part changes single
entries of the pose and measures how much of the decoded image each one changes.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from mereo.core import Capsules
from mereo.data import Augmentation, Batch, Splits
from mereo.data.geometric import rotation, transform
from mereo.data.images import Images
from mereo.models import CapsuleClassifier, create_model
from mereo.pictures import row_of_panels, save_figure
from mereo.tasks.classification import ClassificationObjective
from papers.common.fitting import fit
from papers.common.measures import means
from papers.common.settings import Settings

SIDE, SHIFT, EPOCHS, BATCH, RATE, IMAGES = 20, 2, 15, 32, 2e-3, 300
RECONSTRUCTION = 0.3 / SIDE**2
"""Weight of the squared error of the decoder, summed over the pixels; 0.3 of their mean."""
NETWORKS: dict[str, tuple[str, dict[str, Any]]] = {
    "AR-CapsNet": ("ar_capsnet_small", {}),
    "CapsNet": ("capsnet", {"conv_channels": 64, "primary_types": 8}),
}
STEPS = (-1.0, -0.8, -0.6, -0.4, -0.2, 0.2, 0.4, 0.6, 0.8, 1.0)
"""Amounts of a change, as shares of its largest."""
MOVES = (-0.25, -0.15, 0.0, 0.15, 0.25)
PICTURE = "numbers.png"
Change = Callable[[float], tuple[Tensor, Tensor]]


def _matrix(a: float, b: float, c: float, d: float) -> Tensor:
    return torch.tensor([[a, b], [c, d]])


def _scaled(amount: float) -> Tensor:
    return torch.eye(2) / (1 + 0.2 * amount)


CHANGES: dict[str, Change] = {
    "rotation, 30 degrees": lambda a: (rotation(torch.tensor([a * math.pi / 6]))[0], torch.zeros(2)),
    "scale, 20 %": lambda a: (_scaled(a), torch.zeros(2)),
    "shear, 0.3": lambda a: (_matrix(1, 0.3 * a, 0, 1), torch.zeros(2)),
    "shift to the right, 10 %": lambda a: (torch.eye(2), torch.tensor([-0.1 * SIDE * a, 0])),
    "shift down, 10 %": lambda a: (torch.eye(2), torch.tensor([0, -0.1 * SIDE * a])),
}
"""Name with the largest amount -> (share of it -> the linear map and offset of `transform`)."""


def changed(images: Tensor, change: Change, amount: float) -> Tensor:
    """All images under the same affine map. Shapes: (n, channels, height, width) -> the same."""
    matrix, offset = (each.to(images.device) for each in change(amount))
    return transform(images, matrix.expand(len(images), 2, 2), offset.expand(len(images), 2))


def leading_share(differences: Tensor) -> Tensor:
    """s_1 / sum_k s_k of the singular values of each matrix: 1 where all rows lie on one line, 0 where all are zero.

    Shapes: (..., rows, dim) -> (...).
    """
    values = torch.linalg.svdvals(differences.double())
    return values[..., 0] / values.sum(-1).clamp(min=1e-300)


def spread(images: Tensor) -> Tensor:
    """(sum_p x_p^2)^2 / (P sum_p x_p^4): the share of the pixels that a picture covers, 1 / P if it is one pixel.

    Shapes: (..., channels, height, width) -> (...), 0 for an empty picture.
    """
    squares = images.double().flatten(-3).square()
    return squares.sum(-1).square() / (squares.shape[-1] * squares.square().sum(-1)).clamp(min=1e-300)


def others_of_the_class(labels: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """For each image `count` others of its class, drawn with repetition. Shapes: (n,) -> int64 (n, count)."""
    same = (labels.unsqueeze(1) == labels) & ~torch.eye(len(labels), dtype=torch.bool)
    single = ~same.any(1)
    return torch.multinomial((same | single.unsqueeze(1)).double(), count, replacement=True, generator=generator)


def _poses(model: CapsuleClassifier, images: Tensor, labels: Tensor) -> Tensor:
    """The capsule of the true class of every image: (n, dim)."""
    pose = torch.cat([model.capsules(part).pose for part in images.split(250)])
    return pose[torch.arange(len(pose)), labels]


@torch.no_grad()
def directions(model: CapsuleClassifier, images: Tensor, labels: Tensor, seed: int = 0) -> dict[str, dict[str, float]]:
    """How far differences of capsules lie along one direction, in percent.

    Args:
        model: in evaluation.
        images, labels: test images and their classes.
        seed: of the images of the control.

    Shapes: images (n, channels, height, width), labels int64 (n,) -> change -> {"image": mean over the images of the
        share of their own differences, "class": the same for all images of a class, mean over the classes}; and
        "other images of the class", the control.
    """
    still = _poses(model, images, labels)
    shares = {}
    for name, change in CHANGES.items():
        moved = [_poses(model, changed(images, change, amount), labels) - still for amount in STEPS]
        shares[name] = _shares(torch.stack(moved, 1), labels)
    generator = torch.Generator().manual_seed(seed)
    others = others_of_the_class(labels.cpu(), len(STEPS), generator).to(labels.device)
    shares["other images of the class"] = _shares(still[others] - still.unsqueeze(1), labels)
    return shares


def _shares(differences: Tensor, labels: Tensor) -> dict[str, float]:
    """Shapes: differences (n, steps, dim), labels (n,)."""
    classes = [leading_share(differences[labels == label].flatten(0, 1)) for label in labels.unique()]
    return {
        "image": 100 * leading_share(differences).mean().item(),
        "class": 100 * torch.stack(classes).mean().item(),
    }


@torch.no_grad()
def moved_numbers(model: CapsuleClassifier, images: Tensor, labels: Tensor) -> tuple[dict[str, float], Tensor]:
    """What the decoder shows while single numbers of the true class capsule are moved.

    Shapes: -> in percent, means over numbers and images: how much the reconstruction changes if a number is moved by
        0.25, |after - before| / |before|; over how many pixels, see `spread`; and over how many the reconstruction
        itself is spread; and the reconstructions of the first image (dim, moves, channels, height, width).
    """
    capsules = model.capsules(images)
    rows = torch.arange(len(images))

    def rebuilt(number: int, by: float, count: int) -> Tensor:
        pose = capsules.pose[:count].clone()
        pose[rows[:count], labels[:count], number] += by
        return model.reconstruct(Capsules(pose, capsules.activation[:count]), labels[:count])

    plain = rebuilt(0, 0.0, len(images))
    dim = capsules.pose.shape[2]
    differences = [rebuilt(number, MOVES[-1], len(images)) - plain for number in range(dim)]
    shares = torch.stack([spread(difference).mean() for difference in differences])
    whole = plain.flatten(1).norm(dim=1).clamp(min=1e-12)
    sizes = torch.stack([(difference.flatten(1).norm(dim=1) / whole).mean() for difference in differences])
    first = torch.stack([torch.cat([rebuilt(number, by, 1) for by in MOVES]) for number in range(dim)])
    means = {
        "change by a number %": sizes.mean(),
        "pixels it changes %": shares.mean(),
        "pixels of the image %": spread(plain).mean(),
    }
    return {name: 100 * mean.item() for name, mean in means.items()}, first


def _trained(title: str, splits: Splits, seed: int, settings: Settings) -> tuple[CapsuleClassifier, CapsuleClassifier]:
    """An untrained network and a trained one with the same start, in evaluation."""
    device, train = settings.chosen_device(), splits.train
    models: list[CapsuleClassifier] = []
    name, arguments = NETWORKS[title]
    shape: dict[str, Any] = {"num_classes": len(splits.class_names), "in_chans": train.image_shape[0], "img_size": SIDE}
    for _ in range(2):
        torch.manual_seed(seed)
        model: Any = create_model(name, **shape, **arguments)
        models.append(model.to(device))
    objective = ClassificationObjective(models[1], "margin", RECONSTRUCTION)

    def loss(batch: Batch) -> Tensor:
        return objective(Batch(batch.images, batch.labels, targets=batch.images))[0]

    fit(
        loss, models[1].parameters(), train, epochs=settings.epochs or EPOCHS, batch_size=settings.batch_size or BATCH,
        lr=RATE, device=device, title=title, say=settings.say, seed=seed,
        augmentation=Augmentation.parse([f"shift={SHIFT}"]),
    )  # fmt: skip
    untrained, trained = (each.eval().requires_grad_(False) for each in models)
    return untrained, trained


def _tested(test: Images, settings: Settings) -> Batch:
    device = settings.chosen_device()
    return test.batch(torch.arange(min(settings.images or IMAGES, len(test))), device=device)


def run(settings: Settings) -> dict[str, Any]:
    """Tables of directions and of moved numbers, and a picture of moved numbers."""
    data = str(settings.data)
    splits = settings.splits(SIDE, single=True)
    test = _tested(splits.test, settings)
    shares: dict[str, list[dict[str, dict[str, float]]]] = {}
    moved: dict[str, list[dict[str, float]]] = {}
    pictures: dict[str, Tensor] = {}
    for title in NETWORKS:
        for seed in range(settings.seeds):
            untrained, trained = _trained(title, splits, seed, settings)
            shares.setdefault(title, []).append(directions(trained, test.images, test.labels, seed))
            shares.setdefault(f"{title}, untrained", []).append(directions(untrained, test.images, test.labels, seed))
            accuracy = (trained(test.images).argmax(1) == test.labels).double().mean().item()
            changes, first = moved_numbers(trained, test.images, test.labels)
            moved.setdefault(title, []).append({"test %": 100 * accuracy} | changes)
            pictures.setdefault(title, first)
    _draw(pictures, settings.folder / PICTURE)
    count = settings.seeds
    tables: dict[str, list[dict[str, Any]]] = {
        f"Share of the first singular value, %, of the differences of {of}": [
            {"change": change}
            | {title: sum(run[change][key] for run in runs) / count for title, runs in shares.items()}
            for change in (*CHANGES, "other images of the class")
        ]
        for of, key in (("an image", "image"), ("all images of a class", "class"))
    }
    tables["Numbers of the capsule moved by 0.25"] = [
        {"network": title, **means(rows)} for title, rows in moved.items()
    ]
    return {
        "tables": tables,
        "notes": [
            f"{len(splits.train):,} training images of {data}, shifted by up to {SHIFT} pixels and nothing else,"
            f" {settings.epochs or EPOCHS} epochs; {len(test.images)} test images; {count} seeds.",
            f"A change has {len(STEPS)} amounts up to the amount named, to both sides; the last row, the same number of"
            " differences to other images, is the control.",
        ],
        "pictures": [PICTURE],
    }


def _draw(pictures: dict[str, Tensor], path: Any) -> None:
    """Reconstructions of one image: a row for each number of the capsule, a column for each move."""
    figure, panels = row_of_panels(pictures, 2.4, 5.2)
    for axes, images in zip(panels, pictures.values(), strict=True):
        mosaic = images.mean(2).permute(0, 2, 1, 3).flatten(2).flatten(0, 1)
        axes.imshow(mosaic.cpu().numpy(), cmap="gray", vmin=0, vmax=1, interpolation="nearest")
        side = images.shape[-1]
        axes.set_xticks([side * (i + 0.5) for i in range(len(MOVES))], [f"{by:+g}" for by in MOVES], fontsize=7)
        axes.set_yticks([side * (i + 0.5) for i in range(len(images))], list(map(str, range(len(images)))), fontsize=7)
    panels[0].set_ylabel("number of the capsule")
    save_figure(figure, path)
