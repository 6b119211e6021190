"""The loop of all fits: epochs of optimiser steps, from any step on, until the last epoch or an early end."""

from typing import Protocol


class Fit(Protocol):
    """A training, as the loop calls it."""

    def begin_epoch(self, epoch: int, first: int) -> None:
        """Before the step `first` of an epoch: 0, or where a run is resumed."""

    def step(self, epoch: int, step: int) -> None:
        """One optimiser step."""

    def end_epoch(self, epoch: int) -> bool:
        """After the last step of an epoch; whether to go on."""


def run_epochs(fit: Fit, epochs: int, steps: int, start: tuple[int, int] = (0, 0)) -> None:
    """Run all steps of all epochs in order.

    Args:
        fit: the training.
        epochs, steps: how many epochs, and steps of each.
        start: epoch and step of the first step, counted from 0.
    """
    for epoch in range(start[0], epochs):
        first = start[1] if epoch == start[0] else 0
        fit.begin_epoch(epoch, first)
        for step in range(first, steps):
            fit.step(epoch, step)
        if not fit.end_epoch(epoch):
            return
