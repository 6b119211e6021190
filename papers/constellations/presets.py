"""The published ways to divide constellations into objects, by name.

Source: Nazabal, Williams 2021, arXiv:2103.06676, and the authors' code.
"""

import torch
from torch import Tensor

from mereo.errors import check_choice
from papers.common.constellations import Templates, make_templates, similarity_basis
from papers.constellations.generative_capsule_model import GenerativeCapsuleModel
from papers.constellations.inference import infer_constellations
from papers.constellations.ransac import ransac

CONSTELLATION_PRESETS = ("gcm_constellations", "gcm_gmm", "gcm_ransac")
"""Variational inference with exclusive parts, the same with a mixture, both from precision 50; and RANSAC."""


def label_constellations(
    preset: str,
    points: Tensor,
    mask: Tensor,
    generator: torch.Generator,
    *,
    templates: Templates | None = None,
    clutter: int = 0,
    prior_mean: str | tuple[float, ...] = "zero",
    annealed: bool = True,
    restarts: int = 5,
    updates: int = 500,
) -> Tensor:
    """The object of each point; for points of none, one more than the last object.

    Args:
        preset: one of CONSTELLATION_PRESETS.
        points, mask: the points, and which slots have one.
        generator: of the random starts; RANSAC has none.
        templates: of the objects; None: two squares and a triangle.
        clutter, prior_mean: as of `GenerativeCapsuleModel`. RANSAC has no prior, and leaves unexplained points over.
        annealed: whether the precision of "gcm_constellations" doubles up to 1e4; the mixture's is fixed.
        restarts, updates: as of `infer_constellations`.

    Shapes: points (images, slots, 2), mask (images, slots) -> int64 (images, slots).
    """
    check_choice("preset", preset, CONSTELLATION_PRESETS)
    templates = make_templates() if templates is None else templates
    if preset == "gcm_ransac":
        return ransac(templates, points, mask).labels
    exclusive = preset == "gcm_constellations"
    model = GenerativeCapsuleModel(
        similarity_basis(templates.points.to(points)), templates.owner.to(points.device),
        "doubly_stochastic" if exclusive else "mixture", clutter, rounds=5 if clutter else 2, prior_mean=prior_mean,
    )  # fmt: skip
    return infer_constellations(
        model, points, mask, generator, max_precision=1e4 if exclusive and annealed else None, restarts=restarts,
        updates=updates,
    ).labels  # fmt: skip
