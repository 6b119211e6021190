"""The measurements of an evaluation and their images."""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from mereo.data.split import stratified
from mereo.inference.answers import Answers
from mereo.measure.trained_models import TrainedModel


@dataclass(frozen=True)
class Plan:
    """What is evaluated beyond the metrics on clean images.

    Attributes:
        tta: whether scores are the mean over the image and changes of it, see `mean_over_views`.
        five_crop: whether they are the mean over five crops.
        couplings: whether the metric is also measured with replaced couplings, of networks that have any.
        corruptions: whether accuracy under corruption is measured.
        equivariance: whether the poses of rotated and shifted images are measured.
        attacks: names of attacks.
        epsilons: at which to attack; 0 is added.
        loss: maximised by attacks.
        steps: of the gradient attacks.
        queries: of the square attack.
        restarts: number of runs of each attack.
        attack_limit: largest number of images to attack, with classes in proportion; all when None.
        masking_images: number of images of the checks for gradient masking; 0 for no checks.
        batch_size: images worked on at once.
        seed: of every random choice.
    """

    corruptions: bool = False
    equivariance: bool = False
    attacks: tuple[str, ...] = ()
    epsilons: tuple[float, ...] = (0.0, 0.01, 0.02, 0.03, 0.05, 0.1)
    loss: str = "cross_entropy"
    steps: int = 10
    queries: int = 500
    restarts: int = 1
    attack_limit: int | None = 1000
    masking_images: int = 0
    batch_size: int = 256
    seed: int = 0
    couplings: bool = True
    tta: bool = False
    five_crop: bool = False

    def steps_of(self, name: str) -> int:
        """Steps or queries of an attack."""
        return {"fgsm": 1, "square": self.queries}.get(name, self.steps)

    def attack_options(self, name: str) -> dict[str, Any]:
        """The arguments of `attack` that follow from the plan."""
        return {"steps": self.steps_of(name), "restarts": self.restarts, "loss": self.loss, "seed": self.seed}


def part_of(
    model: TrainedModel, answers: Answers, limit: int | None, seed: int, only: Tensor | None = None
) -> TrainedModel:
    """The model with at most `limit` of its images, classes in proportion; of those in `only`, bool (n,)."""
    places = torch.arange(len(answers.labels)) if only is None else only.nonzero().flatten()
    if limit is not None and limit < len(places):
        places = places[stratified(answers.labels[places], limit, seed)[1]]
    elif only is None:
        return model
    return replace(model, split=model.split.subset(places))
