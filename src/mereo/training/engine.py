"""The training engine: one loop for a CPU, one accelerator or several, on Hugging Face Accelerate.

Every random choice is a function of (seed, epoch, step) and the learning rate is a function of the step, so the state
of a run is its weights, its optimiser and a step number. A run that was killed and resumed computes what an
uninterrupted one computes, bit for bit on a CPU.
"""

import time
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mereo.data import Batch
from mereo.errors import MereoError, UsageError
from mereo.files import write_atomically
from mereo.inference.evaluate import Scores, evaluate, found, normalise
from mereo.models import save_weights
from mereo.models.weights import check_finite, load_tensors, save_tensors
from mereo.training.averaging import WeightAverage
from mereo.training.backend import deterministic_on, make_accelerator, make_optimizer
from mereo.training.batch_norm import restore_batch_norms, share_batch_statistics, statistics_note
from mereo.training.checkpoint import (
    check_progress,
    fitting,
    full_tensor,
    load_state,
    model_state,
    restore_model,
    save_state,
)
from mereo.training.config import TrainConfig
from mereo.training.events import open_events
from mereo.training.losses import Objective, score_loss
from mereo.training.order import derived_seed, epoch_order, generator
from mereo.training.pictures import draw_curves, draw_images
from mereo.training.provenance import compare_with_saved, describe_data, describe_environment
from mereo.training.report import Report, reading_progress, write_history
from mereo.training.results import RunResult, draw_test_samples
from mereo.training.run_folder import RunFolder, claimed
from mereo.training.schedule import learning_rate
from mereo.training.setup import Setup, images_told, prepare

FEW_STEPS = 100
"""In a whole training; with fewer a network is hardly moved from where it started."""

FINITE_CHECK_STEPS = {"cpu": 1}
"""How often the loss is looked at, by device: elsewhere looking stalls the queue of the device, so it is done less."""


class Trainer:
    """One run, from its setup to its results."""

    def __init__(self, setup: Setup, folder: RunFolder, report: Report) -> None:
        self.config, self.splits, self.folder, self.report = setup.config, setup.splits, folder, report
        self.augmentation, self.crop = setup.augmentation, setup.crop
        self.model, self.cfg = setup.model, setup.model.pretrained_cfg
        self.accelerator = make_accelerator(self.config, setup.device)
        self.device, self.rank = self.accelerator.device, self.accelerator.process_index
        self.processes, self.main = self.accelerator.num_processes, self.accelerator.is_main_process
        parts = self.processes * self.config.accumulate
        count = len(self.splits.train)
        self.batch_size = min(self.config.batch_size, count - count % parts)
        if self.batch_size < 1 or self.batch_size % parts:
            raise UsageError(
                f"batch_size is {self.config.batch_size} for {count} training images; it must be a multiple of the"
                f" {self.processes} processes times accumulate, {self.config.accumulate}."
            )
        self.steps = count // self.batch_size
        self._prepare_model()
        self.history: list[dict[str, Any]] = []
        self.best: dict[str, Any] | None = None
        self.seconds = 0.0
        self.provenance = {
            "data": describe_data(self.splits),
            "environment": describe_environment(self.device, self.processes, self.config.sync_batchnorm),
        }
        self._partial = [0.0, 0.0]

    def _prepare_model(self) -> None:
        wanted = self.config.channels_last
        channels_last = self.model.channels_last if wanted is None else wanted
        self.memory_format = torch.channels_last if channels_last else torch.contiguous_format
        model = self.model.to(memory_format=self.memory_format)
        if self.config.sync_batchnorm and self.processes > 1:
            share_batch_statistics(model, self.device)
        objective = Objective(model, self.config.loss, self.config.reconstruction_weight)
        optimizer = make_optimizer(self.config, objective.parameters())
        self.objective, self.optimizer = self.accelerator.prepare(objective, optimizer)
        self.step_module: Any = torch.compile(self.objective) if self.config.compile else self.objective
        self.average = None if self.config.ema_decay is None else WeightAverage(self.model, self.config.ema_decay)

    def batch(self, epoch: int, step: int, order: Tensor, part: int) -> Batch:
        """This process's share of one part of a batch: a pure function of (seed, epoch, step)."""
        size = self.batch_size // (self.processes * self.config.accumulate)
        # The processes share a part, so that its batch statistics do not depend on how many they are.
        start = (part * self.processes + self.rank) * size
        return self.splits.train.batch(
            order[step * self.batch_size : (step + 1) * self.batch_size],
            augmentation=self.augmentation,
            crop=self.crop,
            generator=generator(self.config.seed, "augment", epoch, step),
            share=slice(start, start + size),
            device=self.device,
        )

    def optimise(self, epoch: int, step: int, order: Tensor) -> tuple[Tensor, Tensor, float]:
        """One optimiser step: mean loss, share judged right, and the seconds spent on making the batch."""
        number = epoch * self.steps + step
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(self.config, number, self.steps)
        torch.manual_seed(derived_seed(self.config.seed, "dropout", number, self.rank))
        parts, loading = self.config.accumulate, 0.0
        total = torch.zeros(2, device=self.device)
        for part in range(parts):
            began = time.perf_counter()
            batch = self.batch(epoch, step, order, part)
            images = normalise(batch.images, self.cfg["mean"], self.cfg["std"])
            images = images.contiguous(memory_format=self.memory_format)
            loading += time.perf_counter() - began
            last = part == parts - 1
            with nullcontext() if last else self.accelerator.no_sync(self.objective):
                pixels = batch.images if batch.targets is None else batch.targets
                loss, scores = self.step_module(images, batch.labels, pixels)
                self.accelerator.backward(loss / parts)
            right = found(scores.detach(), batch.labels).all(1).float().mean()
            total += torch.stack((loss.detach().float(), right)) / parts
        if self.config.clip_norm is not None:
            self.accelerator.clip_grad_norm_(self.objective.parameters(), self.config.clip_norm)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        if self.average is not None:
            self.average.update(number)
        return total[0], total[1], loading

    def check_finite(self, epoch: int, first: int, losses: list[Tensor], order: Tensor) -> None:
        """MereoError at the first loss that is not finite, with its batch saved for a look."""
        values = self.accelerator.reduce(torch.stack(losses), "mean") if self.processes > 1 else torch.stack(losses)
        bad = (~torch.isfinite(values)).nonzero()
        if not len(bad):
            return
        step = first + int(bad[0])
        path = self.folder.path / f"non_finite_epoch{epoch + 1}_step{step}.safetensors"
        if self.main:
            batch = self.batch(epoch, step, order, 0)
            save_tensors(path, {"images": batch.images, "labels": batch.labels}, {"epoch": epoch + 1, "step": step})
        saved = f"The last checkpoint is {self.folder.state}. " if self.folder.state.exists() else ""
        raise MereoError(
            f"the loss is {values[bad[0]].item()} at step {step} of epoch {epoch + 1}; its batch is in {path}. {saved}"
            "Try a smaller --lr, --clip-norm 1, a longer --warmup-epochs, or --precision fp32."
        )

    def fit(self) -> None:
        """All epochs that are still to be done."""
        epoch, first = self._resume()
        events = open_events(self.folder, self.config.tensorboard and self.main, epoch + 1, self.report)
        if self.main and epoch == 0 and first == 0:
            self._draw_training_samples()
        self.report.start(self.config.epochs * self.steps, epoch * self.steps + first)
        try:
            for current in range(epoch, self.config.epochs):
                row = self._epoch(current, first if current == epoch else 0)
                if events is not None:
                    events.epoch(row)
        finally:
            self.report.stop()
            if events is not None:
                events.close()

    def _epoch(self, epoch: int, first: int) -> dict[str, Any]:
        order = epoch_order(self.config.seed, epoch, len(self.splits.train))
        sums = torch.tensor(
            self._partial, device=self.device, dtype=torch.float64 if self.device.type != "mps" else torch.float32
        )
        began = saved = time.monotonic()
        loading, pending = 0.0, []
        check_steps = FINITE_CHECK_STEPS.get(self.device.type, 20)
        self.objective.train()
        for step in range(first, self.steps):
            loss, right, waited = self.optimise(epoch, step, order)
            pending.append(loss)
            sums += torch.stack((loss, right)).to(sums.dtype)
            loading += waited
            done = step + 1 - first
            told = None
            if len(pending) >= check_steps or step == self.steps - 1:
                self.check_finite(epoch, step + 1 - len(pending), pending, order)
                told, pending = loss.item(), []
            rate = done * self.batch_size / max(time.monotonic() - began, 1e-9)
            self.report.step(epoch + 1, self.config.epochs, rate, told)
            # Several processes would have to agree on the moment; they save at the end of an epoch alone.
            late = self.processes == 1 and time.monotonic() - saved > self.config.checkpoint_seconds
            if late and step < self.steps - 1 and not pending:
                self._save_state(epoch, step + 1, sums.tolist(), began)
                saved = time.monotonic()
        elapsed = time.monotonic() - began
        rate = (self.steps - first) * self.batch_size / max(elapsed, 1e-9)
        self._partial = [0.0, 0.0]
        return self._finish_epoch(epoch, sums, rate, elapsed, loading)

    def _finish_epoch(self, epoch: int, sums: Tensor, rate: float, elapsed: float, loading: float) -> dict[str, Any]:
        if self.processes > 1:
            sums = self.accelerator.reduce(sums, "mean")
        train_loss, train_accuracy = (sums / self.steps).tolist()
        self.seconds += elapsed
        state = self.evaluated_state()
        check_finite(state, self.folder.last)
        split = self.splits.test if self.config.paper_protocol else self.splits.validation
        scores = None if split is None else self.judge(split)
        row: dict[str, Any] = {
            "epoch": epoch + 1,
            "lr": learning_rate(self.config, (epoch + 1) * self.steps - 1, self.steps),
            "train_loss": train_loss,
            "train_accuracy": train_accuracy,
            "val_loss": None if scores is None else scores.loss,
            "val_accuracy": None if scores is None else scores.accuracy,
            "images_per_second": round(rate, 1),
            "seconds": round(self.seconds, 2),
            "loading_share": loading / max(elapsed, 1e-9),
        }
        self.history.append(row)
        better = (
            scores is None
            or self.best is None
            or ((scores.accuracy, -scores.loss) > (self.best["accuracy"], -self.best["loss"]))
        )
        if better:
            figures = {"accuracy": None, "loss": None} if scores is None else scores.to_dict()
            self.best = {"epoch": epoch + 1, **figures}
        if self.main:
            if better:
                self._save_weights(self.folder.best, state)
            self._save_weights(self.folder.last, state)
            write_history(self.folder.history, self.history)
        self._save_state(epoch + 1, 0, [0.0, 0.0], None)
        mean_seconds = self.seconds / (epoch + 1)
        self.report.epoch(
            row, self.config.epochs, better and scores is not None, mean_seconds * (self.config.epochs - epoch - 1)
        )
        return row

    def evaluated_state(self) -> dict[str, Tensor]:
        """The weights that are judged and saved: the average where there is one, else the model's own."""
        state = model_state(self.objective)
        if self.average is not None:
            state |= {name: full_tensor(tensor).cpu() for name, tensor in self.average.average.items()}
        return state

    def judge(self, split: Any) -> Scores:
        """Scores of the weights that count, on every image of a split, shared among the processes."""
        backup = None
        if self.average is not None:
            backup = {name: p.detach().clone() for name, p in self.model.named_parameters()}
            self._put(self.average.average)
        scores = evaluate(
            self.model, split, loss=partial(score_loss, kind=self.config.loss),
            batch_size=max(self.batch_size, 256), rank=self.rank, processes=self.processes,
            reduce=(lambda t: self.accelerator.reduce(t, "sum")) if self.processes > 1 else None,
            autocast=self.accelerator.autocast,
        )  # fmt: skip
        if backup is not None:
            self._put(backup)
        return scores

    @torch.no_grad()
    def _put(self, weights: dict[str, Tensor]) -> None:
        for name, parameter in self.model.named_parameters():
            parameter.copy_(weights[name])

    def _save_weights(self, path: Path, state: dict[str, Tensor]) -> None:
        save_weights(
            path, self.model, class_names=self.splits.class_names, state=state,
            data=self.config.data, seed=self.config.seed, epoch=len(self.history),
        )  # fmt: skip

    def _save_state(self, epoch: int, step: int, partial: list[float], began: float | None) -> None:
        elapsed = 0.0 if began is None else time.monotonic() - began
        progress = {
            "epoch": epoch, "step": step, "partial": partial, "history": self.history, "best": self.best,
            "seconds": self.seconds + elapsed, "processes": self.processes,
        } | self.provenance  # fmt: skip
        save_state(self.folder.state, self.objective, self.optimizer, self.average, progress, write=self.main)

    def _resume(self) -> tuple[int, int]:
        if not (self.config.resume and self.folder.state.exists()):
            return 0, 0
        progress = load_state(self.folder.state, self.objective, self.optimizer, self.average)
        check_progress(self.folder.state, progress)
        for warning in compare_with_saved(self.folder.path, progress, self.provenance):
            self.report.say(warning)
        self.history, self.best = progress["history"], progress["best"]
        self.seconds, self._partial = progress["seconds"], progress["partial"]
        if progress["epoch"] < self.config.epochs:
            self.report.say(f"going on at epoch {progress['epoch'] + 1}, step {progress['step'] + 1} of {self.steps}")
        return progress["epoch"], progress["step"]

    def _draw_training_samples(self) -> None:
        order = epoch_order(self.config.seed, 0, len(self.splits.train))
        batch = self.batch(0, 0, order, 0)
        names = self.splits.class_names
        titles = [", ".join(names[c] for c in row) for row in batch.labels.reshape(len(batch.labels), -1)[:32].tolist()]
        draw_images(batch.images[:32], titles, self.folder.train_samples)

    def finish(self) -> RunResult:
        """Judge the last and the best weights on the test images and write the results."""
        restore_batch_norms(self.model)
        self.report.say(f"judging {len(self.splits.test):,} test images")
        test_last = self.judge(self.splits.test)
        self.accelerator.wait_for_everyone()
        tensors, _ = load_tensors(self.folder.best)
        self.average = None
        with fitting(self.folder.best):
            restore_model(self.objective, tensors)
        best_is_last = self.best is not None and self.best["epoch"] == len(self.history)
        test_best = test_last if best_is_last else self.judge(self.splits.test)
        rates = [row["images_per_second"] for row in self.history]
        results = {
            "model": self.config.model,
            "data": self.config.data,
            "parameters": sum(p.numel() for p in self.model.parameters()),
            "best_epoch": self.best["epoch"] if self.best else None,
            "chosen_on": "test"
            if self.config.paper_protocol
            else "validation"
            if self.splits.validation
            else "last epoch",
            "test_best": test_best.to_dict(),
            "test_last": test_last.to_dict(),
            "train_images": len(self.splits.train),
            "skipped_images": self.splits.skipped,
            "images_per_second": sorted(rates)[len(rates) // 2],
            "loading_share": sum(row["loading_share"] for row in self.history) / len(self.history),
            "seconds": round(self.seconds, 1),
            "device": str(self.device),
            "torch": torch.__version__,
        }
        if self.main:
            self.folder.write_json(self.folder.results, results)
            draw_curves(self.history, self.folder.curves)
            if self.processes == 1:
                draw_test_samples(self.model, self.splits.test, self.device, self.folder.test_samples)
        self.accelerator.wait_for_everyone()
        return RunResult(self.folder, test_best, test_last, results, self.model.eval(), self.main)


def train(config: TrainConfig, report: Report | None = None) -> RunResult:
    """Train a network as configured and return what came of it; the same as `mereo train`."""
    import os

    main = int(os.environ.get("RANK", "0")) == 0
    report = report or Report(silent=not main)
    with claimed(config) as folder:
        return _train_in(folder, config, report)


def _train_in(folder: RunFolder, config: TrainConfig, report: Report) -> RunResult:
    goes_on = config.resume and folder.state.exists()
    setup = prepare(config, progress=reading_progress(report), cache=folder.path, goes_on=goes_on)
    report.say(images_told(setup))
    if setup.start is not None:
        report.say(setup.start)
    with deterministic_on(setup.device):
        trainer = Trainer(setup, folder, report)
        steps = trainer.steps * setup.config.epochs
        if steps < FEW_STEPS:
            report.say(f"{steps} steps are few to learn in; a smaller --batch-size or more --epochs would give more")
        note = statistics_note(
            setup.model, processes=trainer.processes, parts=setup.config.accumulate, batch_size=trainer.batch_size
        )
        if note is not None:
            report.say(note)
        if trainer.main:
            saved = setup.config.replace(resume=False, dry_run=False)
            write_atomically(folder.config, saved.to_yaml().encode())
        trainer.fit()
        return trainer.finish()
