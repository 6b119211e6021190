"""Distillation: a network, or a layer of one, learns to compute what a trained network computes.

Loop, order, learning rate and optimisers are the trainer's. Every random choice is a function of
(seed, epoch, step), so a run that continues from a checkpoint repeats an uninterrupted one bit for bit on a CPU.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mereo.core.modes import gradients_kept, modes_kept
from mereo.data import Batch, Images
from mereo.errors import MereoError, UsageError, check_positive
from mereo.inference.evaluate import prepare_batch
from mereo.runtime.device import choose_device
from mereo.runtime.progress import Reporter
from mereo.training.backend import deterministic_on, make_optimizer
from mereo.training.checkpoint import load_state, save_state
from mereo.training.config import TrainConfig
from mereo.training.freezing import by_pattern, outermost, start_training
from mereo.training.matching import Match, Views, check_places, terms, watching
from mereo.training.order import derived_seed, epoch_order, generator
from mereo.training.schedule import learning_rate, plateau_share
from mereo.training.step import descend

Data = Tensor | Sequence[Tensor] | Images
Prepare = Callable[[Any, torch.Generator], tuple[tuple[Any, ...], Any]]
Task = Callable[[Any, Any], Tensor]


@dataclass(frozen=True)
class Distilled:
    """The result of a distillation.

    Attributes:
        history: for each epoch the mean of "loss" and of each of its terms, by label.
        steps: optimiser steps, including earlier runs of the same checkpoint.
        seconds: of this run.
    """

    history: list[dict[str, float]]
    steps: int
    seconds: float

    @property
    def loss(self) -> float:
        """The mean loss of the last epoch."""
        return self.history[-1]["loss"]


class _Objective(nn.Module):
    """The student as checkpoints name it."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model


def _length(data: Data) -> int:
    """Number of samples; UsageError for data of another kind, or none."""
    if isinstance(data, Images):
        count = len(data)
    else:
        tensors = [data] if isinstance(data, Tensor) else list(data)
        if not tensors or not all(isinstance(x, Tensor) and x.dim() for x in tensors):
            raise UsageError("data is neither a tensor, tensors, nor a set of images; give one, samples first.")
        counts = {len(x) for x in tensors}
        if len(counts) > 1:
            raise UsageError(f"data has tensors of {sorted(counts)} samples; all must have the same number.")
        count = counts.pop()
    if not count:
        raise UsageError("data has no samples; give at least one.")
    return count


def _with_images(cfg: Any) -> Prepare:
    """Normalised images as inputs, and labels as the target."""

    def prepare(batch: Batch, draws: torch.Generator) -> tuple[tuple[Any, ...], Any]:
        ready = batch if cfg is None else prepare_batch(batch, cfg)
        return (ready.images,), ready.labels

    return prepare


def _as_they_are(tensors: tuple[Tensor, ...], draws: torch.Generator) -> tuple[tuple[Any, ...], Any]:
    return tensors, None


@dataclass
class _Distillation:
    """The state of a distillation between its steps."""

    run_teacher: Callable[..., Views]
    run_student: Callable[..., Views]
    objective: _Objective
    data: Data
    matches: Sequence[Match]
    task: Task | None
    task_weight: float
    prepare: Prepare
    config: TrainConfig
    device: torch.device
    checkpoint: Path | None
    reporter: Reporter

    def __post_init__(self) -> None:
        self.count = _length(self.data)
        self.steps = -(-self.count // self.config.batch_size)
        self.trained = [p for p in self.objective.parameters() if p.requires_grad]
        self.optimizer = make_optimizer(self.config, self.trained)
        self.history: list[dict[str, float]] = []

    def resume(self) -> int:
        """Restore the checkpoint, if there is one; the epoch to go on with."""
        if self.checkpoint is None or not self.checkpoint.exists():
            return 0
        progress = load_state(self.checkpoint, self.objective, self.optimizer, None)
        if progress.get("run") != self._run() or not isinstance(progress.get("history"), list):
            raise UsageError(
                f"{self.checkpoint} is of another distillation: its data, terms or arguments differ; remove it to start"
                " from the beginning, or give another checkpoint."
            )
        self.history = progress["history"]
        return len(self.history)

    def _run(self) -> dict[str, Any]:
        """The settings in which a checkpoint must agree."""
        how = self.config
        surgery = getattr(self.objective.model, "config", {}).get("surgery")
        return ({"surgery": surgery} if surgery else {}) | {
            "samples": self.count, "terms": [[m.label, m.weight, m.temperature] for m in self.matches],
            "task_weight": self.task_weight if self.task else None, "epochs": how.epochs, "seed": how.seed,
            "batch_size": how.batch_size, "lr": how.lr, "optimizer": how.optimizer, "schedule": how.schedule,
            "weight_decay": how.weight_decay, "min_lr": how.min_lr, "warmup_epochs": how.warmup_epochs,
            "clip_norm": how.clip_norm,
        }  # fmt: skip

    def _samples(self, indices: Tensor, draws: torch.Generator) -> Any:
        if isinstance(self.data, Images):
            return self.data.batch(indices, generator=draws, device=self.device)
        tensors = (self.data,) if isinstance(self.data, Tensor) else self.data
        return tuple(x[indices.to(x.device)].to(self.device) for x in tensors)

    def begin_epoch(self, epoch: int) -> None:
        """Order the samples."""
        self.sums: dict[str, Tensor] = {}
        self.reduced = plateau_share(self.config, [row["loss"] for row in self.history])
        self.parts = epoch_order(self.config.seed, epoch, self.count).split(self.config.batch_size)
        start_training(self.objective, outermost(self.objective.model))

    def step(self, epoch: int, step: int) -> None:
        """One optimiser step on the sum of all terms."""
        config, number, indices = self.config, epoch * self.steps + step, self.parts[step]
        torch.manual_seed(derived_seed(config.seed, "dropout", number))
        draws = generator(config.seed, "augment", epoch, step)
        inputs, target = self.prepare(self._samples(indices, draws), draws)
        teacher = self.run_teacher(*inputs)
        student = self.run_student(*inputs)
        values = dict(terms(self.matches, teacher, student))
        if self.task is not None:
            values["task"] = self.task_weight * self.task(student.output, target)
        loss = torch.stack(list(values.values())).sum()
        if not bool(loss.isfinite()):
            raise MereoError(
                f"the loss is {loss.item()} at step {step} of epoch {epoch + 1}. Try a smaller lr, or clip_norm=1."
            )

        def clip() -> None:
            if config.clip_norm is not None:
                nn.utils.clip_grad_norm_(self.trained, config.clip_norm)

        descend(self.optimizer, self.reduced * learning_rate(config, number, self.steps), loss, clip=clip)
        for label, value in {"loss": loss, **values}.items():
            self.sums[label] = self.sums.get(label, torch.zeros(())) + value.detach().float().cpu() * len(indices)
        self.reporter.reach("distilling", number + 1, config.epochs * self.steps)

    def end_epoch(self, epoch: int) -> None:
        """Keep the means, and write the checkpoint."""
        self.history.append({label: total.item() / self.count for label, total in self.sums.items()})
        self.reporter.say(f"epoch {epoch + 1}/{self.config.epochs}: loss {self.history[-1]['loss']:.4g}")
        if self.checkpoint is not None:
            save_state(
                self.checkpoint, self.objective, self.optimizer, None, {"run": self._run(), "history": self.history}
            )


def _train_only(student: nn.Module, patterns: Sequence[str]) -> None:
    named = dict(student.named_parameters())
    if patterns:
        chosen = {name for pattern in patterns for name in by_pattern(student, named, pattern, "trained")}
        for name, parameter in named.items():
            parameter.requires_grad_(name in chosen)
    if not any(parameter.requires_grad for parameter in named.values()):
        raise UsageError("the student has no parameter that is trained; unfreeze some, or name them in `trained`.")


def distil(
    teacher: nn.Module,
    student: nn.Module,
    data: Data,
    matches: Sequence[Match] = (Match(),),
    *,
    task: Task | str | None = None,
    task_weight: float = 1.0,
    prepare: Prepare | None = None,
    trained: Sequence[str] = (),
    epochs: int = 10,
    batch_size: int = 32,
    lr: float = 1e-3,
    optimizer: str = "adamw",
    weight_decay: float = 0.0,
    schedule: str = "cosine",
    min_lr: float = 0.0,
    warmup_epochs: float = 0.0,
    clip_norm: float | None = None,
    seed: int = 0,
    device: str | torch.device | None = None,
    checkpoint: str | Path | None = None,
    progress: bool = True,
) -> Distilled:
    """Train a student to compute what a teacher computes: outputs, outputs of layers, couplings.

    loss = sum over the matches of weight * loss(student, teacher) + task_weight * task(output, target)

    The student is trained in place. The teacher is in eval mode and gets no gradients; it may be a single layer, and so
    may the student.

    Args:
        teacher, student: modules that take the same inputs.
        data: one tensor or several, samples first, all used as inputs; or a set of images, whose labels are the
            target of the task.
        matches: what is compared where, and how; by default the outputs, by their mean squared difference.
        task: a further loss, a function (output of the student, target) -> scalar, or "cross_entropy".
        task_weight: its factor.
        prepare: (samples, generator) -> (inputs, target), in place of the inputs that `data` states: `samples` is a
            `mereo.data.Batch` of images, or a tuple of tensors. It draws only from the generator.
        trained: names or shell-style patterns of modules and parameters of the student; all others keep their values,
            and modules without a trained parameter are in eval mode. By default everything that requires gradients.
        epochs, batch_size, lr, optimizer, weight_decay, schedule, min_lr, warmup_epochs, clip_norm, seed: as in
            `TrainConfig`. The last batch of an epoch has the remaining samples.
        device: where to train; by default where the student is.
        checkpoint: a file written after every epoch. If it exists, the distillation goes on from there.
        progress: whether to print progress.

    Raises:
        UsageError: for places that a network does not have, values that cannot be compared, wrong data or arguments,
            and a checkpoint of another distillation.
        MereoError: for a loss that is not finite.

    mereo.distil(teacher, student, tokens, [Match("coupling", "attention.coupling", loss="kl"), Match("output")])
    """
    config = TrainConfig(
        epochs=epochs, batch_size=batch_size, lr=lr, optimizer=optimizer, weight_decay=weight_decay,  # type: ignore[arg-type]
        schedule=schedule, min_lr=min_lr, warmup_epochs=warmup_epochs, clip_norm=clip_norm, seed=seed,  # type: ignore[arg-type]
    )  # fmt: skip
    config.check()
    check_positive(task_weight=task_weight)
    if isinstance(task, str) and task != "cross_entropy":
        raise UsageError(f"task is {task!r}; it must be 'cross_entropy' or a function (output, target) -> scalar.")
    if not matches and task is None:
        raise UsageError("matches is empty and task None; there is nothing to learn from.")
    if teacher is student:
        raise UsageError("teacher and student are one module; give a copy, as copy.deepcopy makes it.")
    of_teacher, of_student = ([match.places[side] for match in matches] for side in (0, 1))
    check_places(teacher, of_teacher, "teacher")
    check_places(student, of_student, "student")
    _length(data)
    if device is None:
        device = next((parameter.device for parameter in student.parameters()), torch.device("cpu"))
    where = choose_device(str(device))
    if prepare is None and isinstance(data, Images):
        cfg = getattr(student, "pretrained_cfg", None) or getattr(teacher, "pretrained_cfg", None)
        prepare = _with_images(cfg)
    began = time.monotonic()
    with (
        modes_kept(teacher, student),
        gradients_kept(teacher, student),
        torch.random.fork_rng(),
        deterministic_on(where),
        watching(teacher, of_teacher, "teacher", gradients=False) as run_teacher,
        watching(student, of_student, "student", gradients=True) as run_student,
    ):
        _train_only(student, trained)
        teacher.to(where).eval()
        fit = _Distillation(
            run_teacher, run_student, _Objective(student.to(where)), data, matches,
            F.cross_entropy if isinstance(task, str) else task, task_weight, prepare or _as_they_are, config, where,
            None if checkpoint is None else Path(checkpoint), Reporter(silent=not progress),
        )  # fmt: skip
        try:
            for epoch in range(fit.resume(), epochs):
                fit.begin_epoch(epoch)
                for step in range(fit.steps):
                    fit.step(epoch, step)
                fit.end_epoch(epoch)
        finally:
            fit.reporter.stop()
    return Distilled(fit.history, fit.steps * len(fit.history), time.monotonic() - began)
