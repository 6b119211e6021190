"""The work of the engine at the beginning of an epoch, in each of its steps and at its end."""

import time
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from mereo.training.trackers import Trackers

if TYPE_CHECKING:
    from mereo.training.engine import Trainer

FINITE_CHECK_STEPS = {"cpu": 1}
"""Steps between checks of the loss, by device: reading it synchronises other devices, so it is checked less often."""


class Epochs:
    """The epochs of a run as the loop of all fits takes them: sums, checks of the loss, checkpoints and reports."""

    def __init__(self, trainer: "Trainer", events: Any, trackers: Trackers) -> None:
        self.trainer, self.events, self.trackers = trainer, events, trackers
        self.check_steps = FINITE_CHECK_STEPS.get(trainer.device.type, 20)

    def begin_epoch(self, epoch: int, first: int) -> None:
        """Order the images and put the network in training mode."""
        trainer = self.trainer
        if first == 0:
            for callback in trainer.callbacks.values():
                callback.on_epoch_start(trainer, epoch)
        self.order = trainer.sampler(epoch)
        trainer.prefetch(self.order, first)
        precise = torch.float64 if trainer.device.type != "mps" else torch.float32
        self.sums = torch.tensor(trainer.partial, device=trainer.device, dtype=precise)
        self.first, self.loading = first, 0.0
        self.pending: list[Tensor] = []
        self.began = self.saved = time.monotonic()
        trainer.start_training()

    def step(self, epoch: int, step: int) -> None:
        """One optimiser step, its loss checked and shown, and a checkpoint where one is due."""
        trainer, config = self.trainer, self.trainer.config
        loss, metrics, waited = trainer.optimise(epoch, step, self.order)
        self.pending.append(loss)
        self.sums += torch.cat((loss.unsqueeze(0).to(self.sums), metrics.to(self.sums)))
        self.loading += waited
        done = step + 1 - self.first
        shown = None
        if len(self.pending) >= self.check_steps or step == trainer.steps - 1:
            trainer.check_finite(epoch, step + 1 - len(self.pending), self.pending, self.order)
            shown, self.pending = loss.item(), []
        rate = done * trainer.batch_size / max(time.monotonic() - self.began, 1e-9)
        trainer.report.step(epoch + 1, config.epochs, rate, shown)
        if not self.pending and step < trainer.steps - 1 and self._checkpoint_is_due():
            sums = self.sums if trainer.processes == 1 else trainer.accelerator.reduce(self.sums, "mean")
            trainer.save_state(epoch, step + 1, sums.tolist(), self.began)
            self.saved = time.monotonic()

    def _checkpoint_is_due(self) -> bool:
        """Whether `checkpoint_seconds` have passed, in any process: all save together."""
        trainer = self.trainer
        due = time.monotonic() - self.saved > trainer.config.checkpoint_seconds
        if trainer.processes == 1:
            return due
        return bool(trainer.accelerator.reduce(torch.tensor(float(due), device=trainer.device), "sum") > 0)

    def end_epoch(self, epoch: int) -> bool:
        """Evaluate, save and report; whether the run goes on."""
        trainer = self.trainer
        elapsed = time.monotonic() - self.began
        rate = (trainer.steps - self.first) * trainer.batch_size / max(elapsed, 1e-9)
        trainer.partial = [0.0] * len(self.sums)
        row = trainer.finish_epoch(epoch, self.sums, rate, elapsed, self.loading)
        self.trackers.epoch(row)
        if self.events is not None:
            self.events.epoch(row)
            if epoch == 0 and trainer.folder.train_samples.exists():
                self.events.picture("training images", 0, trainer.folder.train_samples)
            weights = {f"weights/{name}": p for name, p in trainer.model.named_parameters() if p.requires_grad}
            self.events.histograms(epoch + 1, weights)
        return not trainer.stopped_early
