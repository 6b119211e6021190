"""The pictures of a generative capsule network: reconstructions, samples, accuracy under occlusion."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from mereo.generative.generative_capsnet import GenerativeCapsNet
from mereo.pictures import displayable, new_figure, save_figure
from papers.kiefer_generative_capsules.occlusion import hide


def draw_rebuilt(model: GenerativeCapsNet, images: Tensor, hidden: Tensor, path: Path) -> None:
    """Images, their reconstructions from parts and parents, and the strongest parent of each place; clean and occluded.

    Shapes: images (batch, channels, height, width), hidden bool (batch, height, width).
    """
    clean, covered = model.explain(images), hide(images, hidden)
    explained = model.explain(covered, model.visible_parts(hidden))
    rows = {
        "image": images,
        "from its parts": model.decode(clean.parts),
        "from its parents": clean.rebuilt,
        "strongest parent": None,
        "occluded": covered,
        "from its parts ": model.decode(explained.parts),
        "from its parents,\nmasked": explained.rebuilt,
    }
    figure = new_figure(1.15 * len(images) + 1.2, 1.15 * len(rows) + 0.3)
    grid = figure.subplots(len(rows), len(images), squeeze=False)
    winners = _strongest(model, clean.inversion.responsibilities)
    for axes_row, (name, pictures) in zip(grid, rows.items(), strict=True):
        axes_row[0].set_ylabel(name, rotation=0, ha="right", va="center", fontsize=8)
        for place, axes in enumerate(axes_row):
            if pictures is None:
                axes.imshow(winners[place].numpy(), cmap="tab10", vmin=0, vmax=9, interpolation="nearest")
            else:
                axes.imshow(displayable(pictures[place]), cmap="gray", vmin=0, vmax=1)
            axes.set_xticks([])
            axes.set_yticks([])
    save_figure(figure, path)


def _strongest(model: GenerativeCapsNet, responsibilities: Tensor) -> Tensor:
    """Which parent explains the most at each place: (batch, rows, columns)."""
    return responsibilities.unflatten(1, (model.types, *model.grid)).sum(1).argmax(-1).cpu()


def draw_samples(model: GenerativeCapsNet, image: Tensor, path: Path) -> None:
    """Samples from the prior; below them, an image whose strongest parents are changed along an axis of their pose.

    The responsibilities of the image are kept: only the pose changes.

    Shapes: image (channels, height, width).
    """
    count = 10
    inversion = model.capsules.invert(model.parts(image.unsqueeze(0)))
    strongest = inversion.responsibilities.sum((0, 1)).topk(min(4, inversion.mean.shape[1])).indices.tolist()
    steps = torch.linspace(-3, 3, count, device=image.device)
    rows = [("drawn", model.sample(count, torch.Generator(image.device).manual_seed(0)))]
    for parent in strongest:
        moved = inversion.mean.expand(count, -1, -1).clone()
        moved[:, parent, 0] += steps
        shares = inversion.responsibilities.expand(count, -1, -1)
        poses = model.capsules.predict(inversion._replace(mean=moved, responsibilities=shares))
        rows.append((f"parent {parent},\naxis 0", model.decode(poses)))
    figure = new_figure(1.0 * count + 1.2, 1.05 * len(rows) + 0.3)
    grid = figure.subplots(len(rows), count, squeeze=False)
    for axes_row, (name, pictures) in zip(grid, rows, strict=True):
        axes_row[0].set_ylabel(name, rotation=0, ha="right", va="center", fontsize=8)
        for axes, picture in zip(axes_row, pictures, strict=True):
            axes.imshow(displayable(picture), cmap="gray", vmin=0, vmax=1)
            axes.set_xticks([])
            axes.set_yticks([])
    save_figure(figure, path)


def draw_occlusion(sides: Sequence[int], curves: Mapping[str, Sequence[float]], path: Path) -> None:
    """Accuracy against the side of the square."""
    figure = new_figure(6.0, 3.8)
    axes = figure.subplots()
    for name, values in curves.items():
        axes.plot(sides, values, marker=".", label=name)
    axes.set_xlabel("side of the occluding square in pixels")
    axes.set_ylabel("accuracy in %")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    save_figure(figure, path)
