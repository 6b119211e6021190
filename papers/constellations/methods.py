"""The compared ways to divide constellations into objects: each gives a label to every point."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from papers.common.constellations import CLASSIC, Constellations, make_templates, similarity_basis
from papers.constellations.capsnet import ConstellationCapsNet
from papers.constellations.generative_capsule_model import GenerativeCapsuleModel
from papers.constellations.presets import label_constellations
from papers.constellations.routing_inference import route_constellations

Method = Callable[[Constellations, int, torch.Generator], Tensor]
"""(constellations, points of clutter, generator) -> labels (images, slots)."""

AT_ONCE = 100
"""Images routed in one batch: votes of pairs take 1 MB an image."""


def _capsule_model(
    data: Constellations, clutter: int, generator: torch.Generator, preset: str, **options: Any
) -> Tensor:
    return label_constellations(preset, data.points, data.mask, generator, clutter=clutter, **options)


def _network(
    data: Constellations, clutter: int, generator: torch.Generator, network: ConstellationCapsNet, starts: int
) -> Tensor:
    network = replace(network, clutter=clutter > 0)
    return network.labels(network.explain(data.points, data.mask, generator, starts=starts))


def _routing(
    data: Constellations, clutter: int, generator: torch.Generator, routing: str, children: str, steps: int
) -> Tensor:
    templates = make_templates()
    model = GenerativeCapsuleModel(similarity_basis(templates.points), templates.owner)
    batches = zip(data.points.split(AT_ONCE), data.mask.split(AT_ONCE), strict=True)
    return torch.cat([
        route_constellations(model, points, mask, generator, routing=routing, children=children, steps=steps)
        for points, mask in batches
    ])  # fmt: skip


def compared(learned: ConstellationCapsNet) -> dict[str, Method]:
    """The rows of a table; the last two are baselines.

    Args:
        learned: a network that has learned its templates and sigma; the one with given templates takes its sigma.
    """
    templates = make_templates()
    given = replace(learned, templates=templates.points, owner=templates.owner)
    exclusive = partial(_capsule_model, preset="gcm_constellations")
    fixed = partial(exclusive, annealed=False)
    return {
        "doubly stochastic, annealed, 5 starts": exclusive,
        "doubly stochastic, annealed, 20 starts": partial(exclusive, restarts=20),
        "doubly stochastic, 5 starts": fixed,
        "doubly stochastic, 20 starts": partial(fixed, restarts=20),
        "mixture, 5 starts": partial(_capsule_model, preset="gcm_gmm"),
        "RANSAC": partial(_capsule_model, preset="gcm_ransac"),
        "inversion, given templates, 5 starts": partial(_network, network=given, starts=5),
        "inversion, learned templates, 5 starts": partial(_network, network=learned, starts=5),
        "inversion, learned templates, 20 starts": partial(_network, network=learned, starts=20),
        "EM routing of pairs, 3 passes": partial(_routing, routing="em", children="pairs", steps=3),
        "EM routing of pairs, 10 passes": partial(_routing, routing="em", children="pairs", steps=10),
        "EM routing of points, 3 passes": partial(_routing, routing="em", children="points", steps=3),
        "dynamic routing of points, 3 passes": partial(_routing, routing="dynamic", children="points", steps=3),
        "dynamic routing of points, 100 passes": partial(_routing, routing="dynamic", children="points", steps=100),
        "doubly stochastic, annealed, prior on the points, 5 starts": partial(exclusive, prior_mean="points"),
        "all points in one object": lambda data, clutter, generator: torch.zeros_like(data.labels),
        "labels at random": lambda data, clutter, generator: torch.randint(
            len(CLASSIC) + (clutter > 0), data.labels.shape, generator=generator
        ),
    }


REPORTED = [
    {"noise": 0.0, "doubly stochastic": "0.970 / 0.864 / 0.132", "mixture": "0.892 / 0.717 / 0.252",
     "stacked autoencoder": "0.947 / 0.841 / 0.212"},
    {"noise": 0.1, "doubly stochastic": "0.945 / 0.741 / 0.254", "mixture": "0.858 / 0.608 / 0.332",
     "stacked autoencoder": "0.870 / 0.471 / 0.560"},
    {"noise": 0.25, "doubly stochastic": "0.863 / 0.517 / 0.548", "mixture": "0.814 / 0.494 / 0.428",
     "stacked autoencoder": "0.765 / 0.114 / 0.887"},
]  # fmt: skip
"""SA / ARI / VI of the authors' code on 200 images of theirs; this experiment samples other images."""
