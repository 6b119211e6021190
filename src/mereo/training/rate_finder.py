"""Finds a learning rate: steps whose rate rises geometrically, until the loss grows.

Source: Smith 2015, arXiv:1506.01186, section 3.3, with a geometric rise.
"""

import math
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mereo.pictures import new_figure, save_figure
from mereo.training.backend import deterministic_on
from mereo.training.config import TrainConfig
from mereo.training.freezing import start_training
from mereo.training.plan import Plan, as_plan
from mereo.training.report import Report, reading_progress
from mereo.training.run_folder import RunFolder
from mereo.training.setup import prepare
from mereo.training.trainer import Trainer

LOWEST, HIGHEST, STEPS = 1e-6, 1.0, 100
SMOOTHING = 0.9
"""Share of the former average in that of the loss."""
GROWN = 3.0
"""Times the lowest average at which the search ends."""
BELOW = 10.0
"""The suggestion is the rate with the lowest average, divided by this."""


@dataclass(frozen=True)
class Rates:
    """The rates that were tried, in order, with the loss of each step and its average."""

    rates: tuple[float, ...]
    losses: tuple[float, ...]
    averages: tuple[float, ...]

    @property
    def lowest(self) -> float:
        """The rate at which the average was lowest."""
        return self.rates[min(range(len(self.rates)), key=self.averages.__getitem__)]

    @property
    def suggested(self) -> float:
        """A rate to train with, rounded to two digits."""
        return float(f"{self.lowest / BELOW:.1e}")


def smoothed(losses: Sequence[float]) -> list[float]:
    """Exponential averages without bias: a_n = m_n / (1 - s^n), m_n = s m_(n-1) + (1 - s) l_n."""
    mean, averages = 0.0, []
    for number, loss in enumerate(losses, start=1):
        mean = SMOOTHING * mean + (1 - SMOOTHING) * loss
        averages.append(mean / (1 - SMOOTHING**number))
    return averages


def find_rate(config: TrainConfig | Plan, report: Report | None = None, steps: int = STEPS) -> Rates:
    """Try rates from 1e-6 to 1 on the network and data of a configuration; nothing of it is kept.

    Args:
        config: of the training; its rate and schedule are not used.
        report: shows the reading of the images.
        steps: how many rates.
    """
    plan, report = as_plan(config), report or Report()
    setup = prepare(plan, progress=reading_progress(report))
    rates, losses = list[float](), list[float]()
    with tempfile.TemporaryDirectory() as folder, deterministic_on(setup.device):
        trainer = Trainer(setup, RunFolder(Path(folder)), Report(silent=True))
        start_training(trainer.objective, trainer.frozen)
        for step in range(steps):
            rate = LOWEST * (HIGHEST / LOWEST) ** (step / max(steps - 1, 1))
            epoch, place = divmod(step, trainer.steps)
            loss = trainer.optimise(epoch, place, trainer.sampler(epoch), rate=rate)[0][0].item()
            if not math.isfinite(loss):
                break
            rates.append(rate)
            losses.append(loss)
            averages = smoothed(losses)
            if averages[-1] > GROWN * min(averages):
                break
    return Rates(tuple(rates), tuple(losses), tuple(smoothed(losses)))


def draw_rates(sweep: Rates, path: Path) -> None:
    """The loss over the rate, its average, and the suggestion."""
    figure = new_figure(7, 4)
    axes = figure.subplots()
    axes.plot(sweep.rates, sweep.losses, ".", color="0.7", markersize=4, label="loss of a step")
    axes.plot(sweep.rates, sweep.averages, color="C0", label="average")
    axes.axvline(sweep.suggested, color="C1", label=f"suggested: {sweep.suggested:g}")
    axes.set_xscale("log")
    axes.set_xlabel("learning rate")
    axes.set_ylabel("training loss")
    low, high = min(sweep.averages), max(sweep.averages[0], 1.5 * min(sweep.averages))
    axes.set_ylim(low - 0.2 * (high - low), high + 0.3 * (high - low))
    axes.legend(fontsize=8)
    save_figure(figure, path)
