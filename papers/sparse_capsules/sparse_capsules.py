"""Do capsules that compete to rebuild images, without labels, serve a classifier of distorted images?

The same network is trained with each mask over its latent capsules on shifted images. A support vector machine and a
linear classifier are then fitted to the frozen, unweighted capsules of shifted training images, and tested on the test
images and on these under random affine maps of affNIST's ranges: rotation by up to 20 degrees, shear of up to 0.2,
width and height by 0.8 to 1.2, shift by up to 2 pixels.
"""

import math
from typing import Any

import torch
from sklearn.linear_model import LogisticRegression
from sklearn.svm import SVC
from torch import Tensor

from mereo.data import Augmentation, Batch
from mereo.data.geometric import rotation, transform
from mereo.data.images import Images
from mereo.errors import check_choice
from mereo.mechanisms.routing.competing_capsules import MASKS, win_entropy
from mereo.models import SparseCapsNet
from mereo.pictures import row_of_panels, save_figure
from mereo.tasks.reconstruction import ReconstructionObjective
from papers.common.classifiers import fitted
from papers.common.fitting import fit
from papers.common.measures import means
from papers.common.settings import Settings

EPOCHS, LIMIT = {"digits": 30}, {"mnist": 5000}
BATCH, RATE, SIDE, SHIFT = 128, 1e-3, 28, 2
COMPARED = ("weighted-routing", "none", "label")
PICTURE = "wins.png"


def run(settings: Settings) -> dict[str, Any]:
    """A table of masks and classifiers, and a picture of how often each capsule wins."""
    masks = settings.variants or COMPARED
    for mask in masks:
        check_choice("variants", mask, MASKS)
    device, data = settings.chosen_device(), str(settings.data)
    splits = settings.splits(SIDE, LIMIT.get(data), single=True)
    train, test = splits.train, splits.test
    test = test.subset(torch.arange(min(2000, len(test))))
    epochs = settings.epochs or EPOCHS.get(data, 8)
    runs = {
        (mask, seed): _trained(mask, seed, train, epochs, settings.batch_size or BATCH, device, settings)
        for mask in masks
        for seed in range(settings.seeds)
    }
    rows, shares = [], {}
    for mask in masks:
        settings.say(f"{mask}: fitting classifiers")
        results = [_measured(runs[mask, seed], train, test, seed, device) for seed in range(settings.seeds)]
        rows.append({"mask": mask, **means([row for row, _ in results])})
        shares[mask] = results[0][1]
    _draw(shares, settings.folder / PICTURE)
    return {
        "tables": {f"{len(train):,} training images of {data}, {len(test):,} test images, {epochs} epochs": rows},
        "notes": [
            "Weighted-routing and none see no labels before the classifiers are fitted; label is CapsNet's objective.",
            "Entropy of wins: 1 if every capsule wins equally many test images, 0 if one wins all. Error: squared, an"
            " image. Affine: test images under random affine maps.",
        ],
        "pictures": [PICTURE],
        "wins": {mask: values.tolist() for mask, values in shares.items()},
    }


def _trained(
    mask: str, seed: int, train: Images, epochs: int, batch_size: int, device: torch.device, settings: Settings
) -> SparseCapsNet:
    torch.manual_seed(seed)
    classes = len(train.class_names)
    model = SparseCapsNet(
        0, train.image_shape[0], SIDE, conv_channels=64, primary_types=8,
        latent_capsules=classes if mask == "label" else 8, mask=mask,
    ).to(device)  # fmt: skip
    objective, step = ReconstructionObjective(model), 0
    steps = epochs * -(-len(train) // batch_size)

    def loss(batch: Batch) -> Tensor:
        nonlocal step
        objective.at_step(step, steps)
        step += 1
        value, _ = objective(batch)
        return value

    fit(
        loss, (p for p in model.parameters() if p.requires_grad), train, epochs=epochs, batch_size=batch_size, lr=RATE,
        device=device, title=mask, say=settings.say, seed=seed, augmentation=Augmentation.parse([f"shift={SHIFT}"]),
    )  # fmt: skip
    return model.eval().requires_grad_(False)


def affine_test(images: Tensor, generator: torch.Generator) -> Tensor:
    """Images under random affine maps of affNIST's ranges.

    Shapes: (batch, channels, height, width) -> the same.
    """

    def uniform(low: float, high: float, *size: int) -> Tensor:
        return low + (high - low) * torch.rand(size, generator=generator)

    count = len(images)
    turned = rotation(uniform(-math.pi / 9, math.pi / 9, count))
    sheared = torch.eye(2).repeat(count, 1, 1)
    sheared[:, 0, 1] = uniform(-0.2, 0.2, count)
    matrices = turned @ sheared @ torch.diag_embed(1 / uniform(0.8, 1.2, count, 2))
    offsets = uniform(-SHIFT, SHIFT, count, 2)
    return transform(images, matrices.to(images.device), offsets.to(images.device))


def _features(model: SparseCapsNet, images: Tensor) -> Tensor:
    return torch.cat([model(part) for part in images.split(250)])


def _measured(
    model: SparseCapsNet, train: Images, test: Images, seed: int, device: torch.device
) -> tuple[dict[str, float], Tensor]:
    """One row of the table, and the share of test images that each capsule wins."""
    draws = torch.Generator().manual_seed(seed)
    shifts = Augmentation.parse([f"shift={SHIFT}"])
    shifted = train.batch(torch.arange(len(train)), augmentation=shifts, generator=draws, device=device)
    held = test.batch(torch.arange(len(test)), device=device)
    distorted = affine_test(held.images, draws)
    features = _features(model, shifted.images)
    readers = {
        "linear": fitted(LogisticRegression(C=100.0, max_iter=1000, tol=1e-6), features, shifted.labels),
        "SVM": fitted(SVC(C=100.0, gamma=0.1), features, shifted.labels),
    }
    row: dict[str, float] = {}
    masked, rebuilt, scores = [], [], []
    for images, answers in zip(held.images.split(250), held.labels.split(250), strict=True):
        result = model.latent.compete(model.primary(model.stage(0, images)), answers)
        masked.append(result.mask)
        rebuilt.append((model.decoder(result.masked.flatten(1)) - images).square().flatten(1).sum(1))
        scores.append(result.scores if model.latent.mask == "weighted-routing" else result.scores / model.latent.boost)
    wins = torch.bincount(torch.cat(scores).argmax(1), minlength=len(model.latent.boost)).double() / len(test)
    row["error"] = torch.cat(rebuilt).mean().item()
    row["capsules an image"] = (torch.cat(masked) > 0).sum(1).double().mean().item()
    row["entropy of wins"] = win_entropy(wins)
    for kind, images in (("test", held.images), ("affine", distorted)):
        read = _features(model, images)
        for name, reader in readers.items():
            row[f"{name}, {kind} %"] = 100 * (reader(read) == held.labels).double().mean().item()
    return row, wins


def _draw(shares: dict[str, Tensor], path: Any) -> None:
    """Bars of the share of test images that each capsule wins, most frequent first, one panel a mask."""
    figure, panels = row_of_panels(shares, 3.2, 2.6, sharey=True)
    for axes, values in zip(panels, shares.values(), strict=True):
        axes.bar(range(1, len(values) + 1), 100 * values.sort(descending=True).values.numpy(), color="#1971c2")
        axes.set_xlabel("capsule")
    panels[0].set_ylabel("test images won, %")
    save_figure(figure, path)
