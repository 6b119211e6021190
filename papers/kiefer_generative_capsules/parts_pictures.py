"""The pictures of a generative capsule network: reconstructions and samples."""

from pathlib import Path

import torch
from torch import Tensor

from mereo.generative.generative_capsnet import GenerativeCapsNet
from papers.common.pictures import draw_rows
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
        "strongest parent": _strongest(model, clean.inversion.responsibilities),
        "occluded": covered,
        "from its parts ": model.decode(explained.parts),
        "from its parents,\nmasked": explained.rebuilt,
    }
    draw_rows(rows, len(images), path, (1.15, 1.15))


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
    rows = {"drawn": model.sample(count, torch.Generator(image.device).manual_seed(0))}
    for parent in strongest:
        moved = inversion.mean.expand(count, -1, -1).clone()
        moved[:, parent, 0] += steps
        shares = inversion.responsibilities.expand(count, -1, -1)
        poses = model.capsules.predict(inversion._replace(mean=moved, responsibilities=shares))
        rows[f"parent {parent},\naxis 0"] = model.decode(poses)
    draw_rows(rows, count, path, (1.0, 1.05))
