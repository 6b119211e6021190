"""Equivariance of class capsules: does rotating the input change the pose by a rule, and keep its length?

A pose that ignores rotation is invariant; one that moves by a rule is equivariant. For a transform g and the capsule of
the true class, three fits of the pose of g(x) are compared on images held out of the fit:

    linear     pose(g(x)) ~ A pose(x) + b, A and b fitted for each class: the share of the variance that a rule explains
    unmoved    pose(g(x)) ~ pose(x): the share explained if nothing changed (may be far below 0)
    permuted   as linear, with the pairs of x and g(x) shuffled within the class: the control

A high "linear" over a low "unmoved" is equivariance; both high is invariance; "linear" near "permuted" is neither.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mereo.core import lengths
from mereo.data import Images
from mereo.data.geometric import rotation, take_window, transform
from mereo.errors import check_positive
from mereo.inference.answers import check_one_label
from mereo.inference.evaluate import normalise
from mereo.inference.mode import evaluating
from mereo.models import VisionModel

FOLDS = 5
FEWEST = 2 * FOLDS
"""Fewest images of a class for a fit."""
RIDGES = (1e-3, 1e-2, 1e-1, 1.0, 10.0)
ANGLES = (-60.0, -45.0, -30.0, -15.0, 0.0, 15.0, 30.0, 45.0, 60.0)
SHIFTS = (-20.0, -15.0, -10.0, -5.0, 0.0, 5.0, 10.0, 15.0, 20.0)


class PoseChange(NamedTuple):
    """How one transform changes the capsules of the true classes.

    Attributes:
        amount: degrees, or percent of the width.
        linear, unmoved, permuted: R^2 of the three fits over all classes; NaN if a class has too few images.
        by_class: R^2 of the linear fit of each class that has enough images.
        length: mean over the images of the capsule's length after the transform over that before.
        angle: mean angle in degrees between the pose after and before.
    """

    amount: float
    linear: float
    unmoved: float
    permuted: float
    by_class: dict[int, float]
    length: float
    angle: float

    def to_dict(self) -> dict[str, Any]:
        """Plain values; None if a number is not defined."""
        plain = {k: None if isinstance(v, float) and math.isnan(v) else v for k, v in self._asdict().items()}
        return {**plain, "by_class": {str(k): v for k, v in self.by_class.items()}}


def turn(images: Tensor, amount: float) -> Tensor:
    """All images rotated by the same angle in degrees; zeros fill the corners."""
    return transform(images, rotation(torch.full((len(images),), math.radians(amount), device=images.device)))


def shift(images: Tensor, amount: float) -> Tensor:
    """All images shifted to the right by the same percentage of the width, in whole pixels; zeros fill the border."""
    height, width = images.shape[-2:]
    corners = torch.tensor([[0, -round(width * amount / 100)]]).expand(len(images), 2)
    return take_window(images, corners, (height, width))


TRANSFORMS: dict[str, tuple[Callable[..., Tensor], tuple[float, ...], str]] = {
    "rotation": (turn, ANGLES, "degrees"),
    "shift": (shift, SHIFTS, "% of the width"),
}
"""Name -> (transform, amounts, unit)."""


def errors_of_linear_fit(before: Tensor, after: Tensor, folds: int = FOLDS) -> Tensor:
    """Squared errors of a linear map from `before` to `after` on images held out of its fit.

    min_{A, b} sum_n |after_n - A before_n - b|^2 + r v |A|^2, by folds n mod `folds`, v the mean variance of an entry
    of `before` times n; r is the one of lowest error among 0.001, 0.01, 0.1, 1, 10

    Args:
        before, after: poses.
        folds: parts, each predicted from the others.

    Shapes: (n, pose) and (n, out) -> (n,), float64.
    """
    before, after = before.double(), after.double()
    part, errors = torch.arange(len(before)) % folds, before.new_zeros(len(RIDGES), len(before))
    ridges = torch.tensor(RIDGES, dtype=torch.float64)[:, None, None]
    for fold in range(folds):
        held = part == fold
        x, y = before[~held], after[~held]
        x_mean, y_mean = x.mean(0), y.mean(0)
        x, y = x - x_mean, y - y_mean
        gram = x.T @ x
        penalty = ridges * gram.diagonal().mean().clamp(min=1e-30) * torch.eye(len(gram), dtype=gram.dtype)
        fits = torch.linalg.solve(gram + penalty, x.T @ y)
        errors[:, held] = ((before[held] - x_mean) @ fits + y_mean - after[held]).square().sum(2)
    return errors[errors.sum(1).argmin()]


def compare_poses(amount: float, before: Tensor, after: Tensor, labels: Tensor, seed: int = 0) -> PoseChange:
    """The three fits of the poses after a transform by those before, and how length and direction changed.

    R^2 = 1 - sum of squared errors / sum of |pose - mean pose of the class|^2, both over all images of all classes

    Args:
        amount: of the transform.
        before, after: pose of the true class of each image.
        labels: the true classes; one with fewer than 10 images is left out of the fits.
        seed: of the shuffling.

    Shapes: before, after (n, pose), labels int64 (n,).
    """
    generator = torch.Generator().manual_seed(seed)
    before, after = before.double(), after.double()
    sums, by_class = torch.zeros(4, dtype=torch.float64), dict[int, float]()
    for label in labels.unique().tolist():
        x, y = before[labels == label], after[labels == label]
        if len(x) < FEWEST:
            continue
        total = (y - y.mean(0)).square().sum()
        fitted = errors_of_linear_fit(x, y).sum()
        shuffled = errors_of_linear_fit(x[torch.randperm(len(x), generator=generator)], y).sum()
        sums += torch.stack([fitted, (y - x).square().sum(), shuffled, total])
        if total > 0:
            by_class[label] = float(1 - fitted / total)
    linear, unmoved, permuted = (1 - sums[:3] / sums[3]).tolist() if sums[3] > 0 else [math.nan] * 3
    longer = (lengths(after) / lengths(before).clamp(min=1e-6)).mean()
    cosine = torch.nn.functional.cosine_similarity(before, after, dim=1).clamp(-1, 1)
    return PoseChange(amount, linear, unmoved, permuted, by_class, float(longer), float(cosine.acos().rad2deg().mean()))


def why_no_fit(moved: Sequence[PoseChange], labels: Tensor) -> str | None:
    """The reason why no rule could be fitted; None if one was."""
    if any(m.by_class for m in moved):
        return None
    most = int(labels.unique(return_counts=True)[1].max()) if len(labels) else 0
    if most < FEWEST:
        return f"too few images of a class ({most}) to fit a rule; {FEWEST} are needed"
    return "the poses of a class do not differ, so there is no variance to explain"


def true_poses(
    model: VisionModel,
    split: Images,
    change: Callable[[Tensor], Tensor] | None = None,
    *,
    batch_size: int = 256,
    progress: Callable[[int], None] | None = None,
) -> tuple[Tensor, Tensor]:
    """Poses of the true classes' capsules after a change of the images, and the classes.

    Shapes: -> (n, pose) float32 and int64 (n,), on the CPU.
    """
    check_positive(batch_size=batch_size)
    check_one_label(split)
    parameter, cfg, crop = next(model.parameters()), model.pretrained_cfg, tuple(model.image_shape[1:])
    poses, labels = [], []
    with evaluating(model), torch.inference_mode():
        for indices in torch.arange(len(split)).split(batch_size):
            batch = split.batch(indices, crop=(crop[0], crop[1]), device=parameter.device)
            images = batch.images if change is None else change(batch.images)
            capsules = model.capsules(normalise(images, cfg["mean"], cfg["std"]).to(parameter.dtype))
            assert capsules is not None
            pose = capsules.pose
            poses.append(pose[torch.arange(len(pose), device=pose.device), batch.labels].float().cpu())
            labels.append(batch.labels.cpu())
            if progress is not None:
                progress(len(indices))
    return torch.cat(poses), torch.cat(labels)


def equivariance(
    name: str,
    model: VisionModel,
    split: Images,
    *,
    amounts: Sequence[float] | None = None,
    seed: int = 0,
    batch_size: int = 256,
    progress: Callable[[int], None] | None = None,
) -> tuple[list[PoseChange], Tensor, Tensor]:
    """How the capsules of the true classes change as the images are rotated or shifted.

    Args:
        name: "rotation" or "shift".
        model: with class capsules.
        split: images of one label each.
        amounts: degrees, or percent of the width; -60 .. 60, or -20 .. 20, when None.
        seed: of the permuted control.
        batch_size: images worked on at once.
        progress: called with the number of images done since the last call.

    Shapes: -> one entry an amount; the poses (amounts, n, pose); the labels int64 (n,).
    """
    change, usual, _ = TRANSFORMS[name]
    still, labels = true_poses(model, split, batch_size=batch_size, progress=progress)
    changes, tracks = [], []
    for amount in usual if amounts is None else amounts:
        moved = still
        if amount:
            moved, _ = true_poses(
                model,
                split,
                partial(change, amount=amount),
                batch_size=batch_size,
                progress=progress,
            )
        changes.append(compare_poses(amount, still, moved, labels, seed))
        tracks.append(moved)
    return changes, torch.stack(tracks), labels
