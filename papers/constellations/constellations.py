"""Constellations: which inference assigns points to objects, with noise and with clutter, points of no object.

Images are sampled, so that no file is read. An error is the standard deviation over images divided by the
root of their number.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from mereo.errors import UsageError
from papers.common.constellations import Constellations, make_constellations
from papers.common.partition_metrics import adjusted_rand_index, segmentation_accuracy, variation_of_information
from papers.common.settings import Settings
from papers.constellations.capsnet import ConstellationCapsNet
from papers.constellations.constellation_pictures import draw_constellations, draw_templates
from papers.constellations.learning import learn_constellations
from papers.constellations.methods import REPORTED, compared

NOISES = (0.0, 0.1, 0.25)
CLUTTERS = (0, 2)
IMAGES, TRAINING_IMAGES, EPOCHS = 200, 300, 40
PICTURES = ("constellations.png", "learned_templates.png")
NOTES = [
    "SA: segmentation accuracy of all slots, absent ones counted as correct, under the best matching of labels. ARI:"
    " adjusted Rand index, and VI: variation of information in nats (0 is best), of the points that are present.",
    "Inversion: a network whose objects are parents in a capsule mixture. It learned its templates and its"
    " sigma from 300 other images of the same noise, without labels and without clutter; the one with given templates"
    " takes the same sigma. All other rows are given the templates.",
    "Doubly stochastic and mixture are the generative capsule model, its precision fixed at 50 or annealed to 12,800."
    " Its poses are 0 a priori, or translated to the mean of the points. RANSAC proposes poses from pairs of points and"
    " takes the cheapest cover. Routing has no component for clutter.",
    "The table Reported holds the results of the authors' code on 200 images of its own, and the results of stored"
    " predictions of a stacked capsule autoencoder on the same, as SA / ARI / VI. None of it was measured here.",
]


def run(settings: Settings) -> dict[str, Any]:
    """Tables of SA, ARI and VI for every noise and clutter, and two pictures."""
    images = IMAGES if settings.images is None else settings.images
    epochs = EPOCHS if settings.epochs is None else settings.epochs
    if images < 2:
        raise UsageError(f"images is {images}; it must be at least 2, for the errors of their means.")
    networks: dict[float, list[ConstellationCapsNet]] = {}
    for noise in NOISES:
        settings.say(f"noise {noise:g}: learning templates from {TRAINING_IMAGES} images without labels")
        networks[noise] = [_learn(noise, seed, epochs, settings) for seed in range(settings.seeds)]
    tables = {}
    for clutter in CLUTTERS:
        for noise in NOISES:
            title = f"Noise {noise:g}" + (f", {clutter} points of clutter" if clutter else "")
            settings.say(f"{title}: {images} images, {settings.seeds} seed(s)")
            tables[title] = _table(images, networks[noise], noise, clutter)
    firsts = {noise: seeds[0] for noise, seeds in networks.items()}
    draw_constellations(firsts, settings.folder / PICTURES[0])
    draw_templates(firsts, settings.folder / PICTURES[1])
    learned = [
        {"noise": noise, "seed": seed, "sigma": network.sigma, "templates": network.templates.tolist()}
        for noise, seeds in networks.items()
        for seed, network in enumerate(seeds)
    ]
    return {"tables": {**tables, "Reported": REPORTED}, "notes": NOTES, "pictures": [*PICTURES], "learned": learned}


def _learn(noise: float, seed: int, epochs: int, settings: Settings) -> ConstellationCapsNet:
    generator = torch.Generator().manual_seed(1000 + seed)
    data = make_constellations(TRAINING_IMAGES, generator, noise=noise)
    return learn_constellations(data.points, data.mask, generator, epochs=epochs, say=settings.say).network


def _table(images: int, networks: list[ConstellationCapsNet], noise: float, clutter: int) -> list[dict[str, Any]]:
    """A row a method, over the images of all seeds."""
    scores: dict[str, list[Tensor]] = {}
    for seed, network in enumerate(networks):
        generator = torch.Generator().manual_seed(seed)
        data = make_constellations(images, generator, noise=noise, clutter=clutter)
        for name, method in compared(network).items():
            scores.setdefault(name, []).append(_scores(method(data, clutter, generator), data))
    return _rows({name: torch.cat(rows) for name, rows in scores.items()})


def _scores(labels: Tensor, data: Constellations) -> Tensor:
    """SA, ARI and VI of every image: (images, 3)."""
    pair = (labels, data.labels, data.mask)
    accuracy = segmentation_accuracy(*pair, slots=data.mask.shape[1])
    return torch.stack((accuracy, adjusted_rand_index(*pair), variation_of_information(*pair)), -1)


def _rows(scores_of: Mapping[str, Tensor]) -> list[dict[str, Any]]:
    rows = []
    for name, scores in scores_of.items():
        mean, error = scores.mean(0).tolist(), (scores.std(0) / len(scores) ** 0.5).tolist()
        row: dict[str, Any] = {"inference": name}
        for metric, value, spread in zip(("SA", "ARI", "VI"), mean, error, strict=True):
            row |= {metric: value, f"{metric} error": spread}
        rows.append(row)
    return rows
