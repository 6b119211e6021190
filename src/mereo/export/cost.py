"""The change in accuracy and speed with a lower precision."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from mereo.data import Images
from mereo.export.programs import Scorer
from mereo.inference.evaluate import Scores, batches, normalise
from mereo.tasks.classification import accuracy_figures, hits
from mereo.training.compare import images_per_second


@dataclass(frozen=True)
class Cost:
    """One runner, measured: its name, its scores on the test images, images a second, and bytes of its file."""

    runner: str
    scores: Scores
    rate: float
    size: int

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {"runner": self.runner, **self.scores.to_dict(), "images_per_second": self.rate, "bytes": self.size}


def judge(score: Scorer, test: Images, cfg: Mapping[str, Any], batch_size: int) -> Scores:
    """Accuracy of any function from images to scores."""
    right = count = 0
    for batch in batches(test, batch_size, torch.device("cpu"), tuple(cfg["input_size"][1:])):
        hit = hits(score(normalise(batch.images, cfg["mean"], cfg["std"])), batch.labels).all(1)
        right, count = right + int(hit.sum()), count + len(hit)
    return Scores(count, 0.0, accuracy_figures(right, count))


def measure(
    runners: Mapping[str, tuple[Scorer, int]], test: Images, cfg: Mapping[str, Any], batch_size: int
) -> list[Cost]:
    """Evaluate runners (function, bytes of its file) on all test images, and time them in turn on one batch."""
    scores = {name: judge(score, test, cfg, batch_size) for name, (score, _) in runners.items()}
    count = min(batch_size, len(test))
    batch = test.batch(torch.arange(count), crop=tuple(cfg["input_size"][1:]))
    images = normalise(batch.images, cfg["mean"], cfg["std"])
    timed = {name: partial(score, images) for name, (score, _) in runners.items()}
    rates = images_per_second(timed, count)
    return [Cost(name, scores[name], rates[name], size) for name, (_, size) in runners.items()]
