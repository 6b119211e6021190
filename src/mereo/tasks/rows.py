"""Metrics that compare the outputs of all samples of a split, with intervals by resampling."""

from abc import abstractmethod

import torch
from torch import Tensor

from mereo.tasks.base import Metrics

RESAMPLES = 200
"""Resamples of an interval."""


class RowMetrics(Metrics):
    """Metrics of a row of true values and a row of outputs for each sample.

    Args:
        names: of the outputs.
    """

    def __init__(self, names: tuple[str, ...]) -> None:
        super().__init__()
        self.names = names

    @abstractmethod
    def figures(self, true: Tensor, outputs: Tensor) -> dict[str, float]:
        """The metrics of some samples by name; finite even without any.

        Shapes: true, outputs float64 (n, names).
        """

    def parts(self) -> tuple[Tensor, Tensor]:
        """The true values and the outputs of all samples: float64 (n, names), (n, names)."""
        width = len(self.names)
        rows = (torch.cat(self.rows) if self.rows else torch.zeros(0, 2 * width)).double()
        return rows[:, :width], rows[:, width:]

    def compute(self) -> dict[str, float]:
        return self.figures(*self.parts())

    def intervals(self) -> dict[str, tuple[float, float]]:
        """The percentiles 2.5 and 97.5 of the metrics over samples drawn anew with replacement."""
        true, outputs = self.parts()
        if not len(true):
            return {}
        generator = torch.Generator().manual_seed(0)
        drawn = [torch.randint(len(true), (len(true),), generator=generator) for _ in range(RESAMPLES)]
        values = [self.figures(true[places], outputs[places]) for places in drawn]
        bounds = torch.tensor([0.025, 0.975], dtype=torch.float64)
        ends = {name: torch.tensor([each[name] for each in values]).double().quantile(bounds) for name in values[0]}
        return {name: (float(low), float(high)) for name, (low, high) in ends.items()}
