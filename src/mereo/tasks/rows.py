"""Metrics that compare the outputs of all samples of a split, with intervals by resampling."""

from abc import abstractmethod

import torch
from torch import Tensor

from mereo.tasks.base import Metrics
from mereo.tasks.interval import resampled


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
        """By drawing the samples anew."""
        true, outputs = self.parts()
        return resampled(len(true), lambda places: self.figures(true[places], outputs[places]))
