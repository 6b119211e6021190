"""The trainings of the table, a row each in a CSV file: finished ones are not trained again."""

import csv
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mereo.errors import MereoError
from mereo.training.config import TrainConfig
from mereo.training.report import Report
from mereo.training.trainer import NonFiniteLossError, train
from papers.capsule_table.measured import Measured, measure
from papers.capsule_table.protocol import EPOCHS, LINEAR, OWN, RATES, RISE, configuration, controls
from papers.capsule_table.rows import Row, write_rows


@dataclass(frozen=True)
class Training(Row):
    """One finished training with its measurements.

    Attributes:
        kind, control: the network and its couplings.
        rate, seed, epochs: of the training.
        validation, test: accuracies on the images to choose by and on the test images, of the best epoch; NaN if
            the loss did not stay finite.
        rise: by how much the former grew over the last quarter of the epochs.
        parameters: of the network.
        seconds: of the training.
    """

    kind: str
    control: str
    rate: float
    seed: int
    epochs: int
    validation: float
    test: float
    rise: float
    parameters: int
    seconds: float

    @property
    def key(self) -> tuple[str, str, float, int, int]:
        """What tells it from others."""
        return self.kind, self.control, self.rate, self.seed, self.epochs

    @property
    def diverged(self) -> bool:
        """Whether the loss did not stay finite."""
        return math.isnan(self.validation)


class Results:
    """The files of one data set: trainings, and measurements of the networks of the table.

    Args:
        path: of the file of trainings; the file of measurements lies beside it.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.beside = path, path.with_name(f"{path.stem}_measured.csv")
        self.read()

    def read(self) -> None:
        """Read the files, to which another process may have added rows."""
        self.trainings = {each.key: each for each in Training.read(self.path)}
        self.measured = {each.key: each for each in Measured.read(self.beside)}

    def add(self, training: Training) -> None:
        """Keep a finished training."""
        self.read()
        self.trainings[training.key] = training
        write_rows(self.path, Training, list(self.trainings.values()))

    def add_measured(self, measured: Measured) -> None:
        """Keep the measurements of a network."""
        self.read()
        self.measured[measured.key] = measured
        write_rows(self.beside, Measured, list(self.measured.values()))

    def drop_measured(self, kind: str, control: str, rate: float, epochs: int) -> None:
        """Forget what was measured of a network that was trained at another rate or for other epochs."""

        def holds(each: Measured) -> bool:
            return (each.kind, each.control) != (kind, control) or (each.rate, each.epochs) == (rate, epochs)

        self.read()
        self.measured = {key: each for key, each in self.measured.items() if holds(each)}
        if self.beside.exists():
            write_rows(self.beside, Measured, list(self.measured.values()))


class Table:
    """What is trained for one data set.

    Args:
        data: its name.
        results: of finished trainings.
        given: fields of every configuration: output, and data_root, limit and device where they are given.
        say: called with lines of progress.
        epochs, seeds: of the trainings.
        images: test images to measure on; all when None.
    """

    def __init__(
        self, data: str, results: Results, given: Mapping[str, Any], say: Callable[[str], None], *,
        epochs: int | None = None, seeds: int, images: int | None = None,
    ) -> None:  # fmt: skip
        self.data, self.results, self.given, self.say = data, results, given, say
        self.epochs, self.seeds, self.images = epochs or EPOCHS, seeds, images

    def complete(self, kind: str) -> None:
        """Train and measure one kind of network in all its forms."""
        for control in controls(kind):
            rate, epochs = self._chosen(kind, control)
            while any(self._trained(kind, control, rate, seed, epochs).diverged for seed in range(self.seeds)):
                rate, epochs = self._chosen(kind, control)  # one of these trainings diverged
            self.results.drop_measured(kind, control, rate, epochs)
            for seed in range(self.seeds):
                self._measured(kind, control, rate, seed, epochs)

    def _chosen(self, kind: str, control: str) -> tuple[float, int]:
        """The rate and the number of epochs of a network, found with seed 0 among rates at which no seed diverged."""
        tuned = control if control == LINEAR else OWN
        tried = [self._trained(kind, tuned, rate, 0, self.epochs) for rate in RATES]
        known = [each for each in self.results.trainings.values() if each.kind == kind and each.diverged]
        diverged = {each.rate for each in known if each.control in {control, tuned}}
        best = max(
            (each for each in tried if each.rate not in diverged), key=lambda each: each.validation, default=None
        )
        if best is None:
            raise MereoError(f"{kind} with {control} couplings diverges at every rate of {RATES}.")
        return best.rate, self.epochs * (2 if best.rise > RISE else 1)

    def _trained(self, kind: str, control: str, rate: float, seed: int, epochs: int) -> Training:
        known = self.results.trainings.get((kind, control, rate, seed, epochs))
        if known is not None:
            return known
        self.say(f"{self.data}: {kind}, {control}, rate {rate:g}, seed {seed}, {epochs} epochs")
        try:
            result = train(self._configuration(kind, control, rate, seed, epochs), Report(silent=True), pictures=False)
        except NonFiniteLossError as stop:
            self.say(str(stop))
            self.results.add(training := Training(kind, control, rate, seed, epochs, math.nan, math.nan, 0, 0, 0))
            return training
        with result.folder.history.open(newline="") as file:
            history = [float(row["val_accuracy"]) for row in csv.DictReader(file)]
        earlier = max(history[: max(len(history) * 3 // 4, 1)])
        training = Training(
            kind, control, rate, seed, epochs, max(history), result.test_best.values["accuracy"],
            max(history) - earlier, result.results["parameters"], result.results["seconds"],
        )  # fmt: skip
        self.results.add(training)
        return training

    def _measured(self, kind: str, control: str, rate: float, seed: int, epochs: int) -> None:
        if (kind, control, seed) not in self.results.measured:
            config = self._configuration(kind, control, rate, seed, epochs)
            folder = Path(config.output) / str(config.name)
            if not folder.exists():  # trained on another machine
                train(config, Report(silent=True), pictures=False)
            made = measure(kind, control, rate, seed, epochs, folder, self.data, self.given, self.images)
            self.results.add_measured(made)

    def _configuration(self, kind: str, control: str, rate: float, seed: int, epochs: int) -> TrainConfig:
        return configuration(kind, control, self.data, rate, seed, epochs, self.given)
