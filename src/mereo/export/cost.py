"""The change in accuracy and speed with a lower precision."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from mereo.data import Images
from mereo.export.programs import Scorer
from mereo.inference.evaluate import Scores, batches, normalise, prepare_batch
from mereo.tasks import Classification, Task
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


def evaluate_scorer(
    score: Scorer, test: Images, cfg: Mapping[str, Any], batch_size: int, task: Task | None = None
) -> Scores:
    """The metrics of a task, classification by default, for any function from images to outputs."""
    task = Classification(test.class_names) if task is None else task
    metrics = task.metrics()
    for batch in batches(test, batch_size, torch.device("cpu"), tuple(cfg["input_size"][1:])):
        prepared = prepare_batch(batch, cfg)
        assert prepared.images is not None
        metrics.update(score(prepared.images), prepared)
    return Scores(len(test), 0.0, metrics.compute())


def measure(
    runners: Mapping[str, tuple[Scorer, int]],
    test: Images,
    cfg: Mapping[str, Any],
    batch_size: int,
    task: Task | None = None,
) -> list[Cost]:
    """Evaluate runners (function, bytes of its file) on all test images, and time them in turn on one batch."""
    scores = {name: evaluate_scorer(score, test, cfg, batch_size, task) for name, (score, _) in runners.items()}
    count = min(batch_size, len(test))
    batch = test.batch(torch.arange(count), crop=tuple(cfg["input_size"][1:]))
    images = normalise(batch.images, cfg["mean"], cfg["std"])
    timed = {name: partial(score, images) for name, (score, _) in runners.items()}
    rates = images_per_second(timed, count)
    return [Cost(name, scores[name], rates[name], size) for name, (_, size) in runners.items()]
