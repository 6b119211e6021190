"""The trainer: one loop for a CPU, one accelerator or several, on Hugging Face Accelerate.

Every random choice is a function of (seed, epoch, step) and the learning rate is a function of the step, so the state
of a run is its weights, its optimiser and a step number. A killed and resumed run computes the same as an
uninterrupted one, bit for bit on a CPU. With `minutes` the rate and the end follow a clock, whose time is saved too.
The task defines predictions, loss and metrics.

Read it from top to bottom: `train` prepares a run, `Trainer.fit` goes through its epochs, `train_epoch` through the
steps of one, `optimise` is a step, `batch` loads its images; then the end of an epoch, checkpoints, and `finish`.
"""

import math
import os
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from mereo.data import Batch, Images
from mereo.errors import MereoError
from mereo.files import write_atomically
from mereo.inference.evaluate import Scores, normalise, prepare_batch
from mereo.inference.temperature import KEY, MOST_TEST_IMAGES
from mereo.models import save_weights
from mereo.models.registry import lay_out
from mereo.models.weights import check_finite, load_tensors, save_tensors
from mereo.runtime.text import counted
from mereo.tasks.base import Epoch
from mereo.training.adversarial import adversarial_training
from mereo.training.averaging import WeightAverage
from mereo.training.backend import deterministic_on, make_accelerator, make_optimizer, memory_format
from mereo.training.batch_norm import restore_batch_norms, share_batch_statistics, statistics_note
from mereo.training.calibrate import calibrate_run, store_calibration
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
from mereo.training.evaluation import choosing_metric, evaluate_run, is_better
from mereo.training.events import open_events
from mereo.training.fingerprints import keep_fingerprints, training_statistics
from mereo.training.freezing import describe_trained, freeze_as_configured, start_training
from mereo.training.groups import group_rate, parameter_groups
from mereo.training.mixing import mix_step
from mereo.training.order import derived_seed, generator, sample_epoch
from mereo.training.plan import Plan, as_plan
from mereo.training.provenance import compare_with_saved, describe_data, describe_environment
from mereo.training.regularisers import regularise
from mereo.training.report import Report, draw_curves, reading_progress, write_history
from mereo.training.results import RunResult, still_improving
from mereo.training.run_folder import RunFolder, claimed
from mereo.training.schedule import EVALUATION, GUESSED, SINGLE, Clock, learning_rate, plateau_share
from mereo.training.setup import Setup, describe_setup, prepare, uneven_classes
from mereo.training.threads import Threads, threads_kept
from mereo.training.trackers import TENSORBOARD, Trackers, check_trackers
from mereo.training.unreadable import write_set_aside

FEW_STEPS = 100
"""Fewest steps of a useful training; with fewer a network hardly changes."""
FINITE_CHECK_STEPS = {"cpu": 1}
"""Steps between checks of the loss, by device: reading it synchronises other devices, so it is checked less often."""
SHOWN = 32
"""Images on the pictures of training and test images."""


def train(
    config: TrainConfig | Plan, report: Report | None = None, *, pictures: bool = True, began: float | None = None
) -> RunResult:
    """Train a network as configured and return the result; the same as `mereo train`.

    Args:
        config: of the training.
        report: shows the progress.
        pictures: draw the curves and some images into the run folder.
        began: start of a training of given minutes, by `time.monotonic`; now by default.
    """
    main = int(os.environ.get("RANK", "0")) == 0
    report = report or Report(silent=not main)
    plan = as_plan(config)
    # Several processes would see different times, so they train all epochs of the configuration.
    several = int(os.environ.get("WORLD_SIZE", "1")) > 1
    clock = Clock(None if several else plan.config.minutes, began)
    with claimed(plan.config) as folder, threads_kept():
        try:
            return _train_in(folder, plan, report, clock, pictures=pictures)
        except KeyboardInterrupt as stop:
            if not folder.state.exists():
                raise
            raise KeyboardInterrupt(f"stopped. Continue with: mereo train {folder.path} --resume") from stop


def _train_in(folder: RunFolder, plan: Plan, report: Report, clock: Clock, *, pictures: bool) -> RunResult:
    check_trackers(plan.config.track)
    resumed = plan.config.resume and folder.state.exists()
    setup = prepare(plan, progress=reading_progress(report), cache=folder.path, resumed=resumed)
    for line in describe_setup(setup):
        report.say(line)
    with deterministic_on(setup.device):
        trainer = Trainer(setup, folder, report, pictures=pictures, clock=clock)
        steps = trainer.steps * setup.config.epochs
        if steps < FEW_STEPS and clock.total is None:
            report.say(
                f"{counted(steps, 'step')} {'is' if steps == 1 else 'are'} too few for good results; use a smaller"
                " --batch-size or more --epochs"
            )
        note = statistics_note(
            setup.model, processes=trainer.processes, parts=setup.config.accumulate, batch_size=trainer.batch_size
        )
        if note is not None:
            report.say(note)
        for line in describe_trained(setup.model, setup.config.layer_decay, setup.config.lr):
            report.say(line)
        if trainer.main:
            saved = setup.config.replace(resume=False, dry_run=False)
            write_atomically(folder.config, saved.to_yaml().encode())
            keep_fingerprints(folder, setup.splits, setup.crop)
            if write_set_aside(folder, setup.splits):
                report.say(f"files that could not be read are listed in {folder.set_aside}")
        trainer.fit()
        return trainer.finish()


class NonFiniteLossError(MereoError):
    """The loss of a training is not finite."""


class Trainer:
    """One run, from its setup to its results.

    Attributes:
        sampler: the order in which an epoch visits the images.
        splits: the data.
        epochs: of the whole training; with a given time it is planned anew after each epoch.
        clock: of a training of a given time.
    """

    def __init__(
        self, setup: Setup, folder: RunFolder, report: Report, *, pictures: bool = True, clock: Clock | None = None
    ) -> None:
        self.plan, self.config, self.task = setup.plan, setup.config, setup.task
        self.splits, self.folder, self.report, self.pictures = setup.splits, folder, report, pictures
        self.augmentation, self.crop = setup.plan.augmentation, setup.crop
        self.model, self.cfg = setup.model, setup.model.pretrained_cfg
        self.accelerator = make_accelerator(self.config, setup.device)
        self.device, self.rank = self.accelerator.device, self.accelerator.process_index
        self.processes, self.main = self.accelerator.num_processes, self.accelerator.is_main_process
        self.batch_size, self.steps = self.plan.steps(len(self.splits.train), self.processes)
        self.chosen_by = choosing_metric(self.task, uneven=uneven_classes(setup) is not None)
        self.statistics = training_statistics(self.plan, self.splits.train)
        self._prepare_model()
        added = [f"train_{name}" for name in self.plain_objective.added_names]
        added += self.plain_objective.figures
        self.columns = tuple(dict.fromkeys((*self.task.columns, f"val_{self.chosen_by}", *added)))
        self.history: list[dict[str, Any]] = []
        self.best: dict[str, Any] | None = None
        self.seconds, self.rate, self.reduced = 0.0, 0.0, 1.0
        self.clock, self.epochs = clock or Clock(), self.config.epochs
        self.provenance = {
            "data": describe_data(self.splits),
            "environment": describe_environment(self.device, self.processes, self.config.sync_batchnorm),
        }
        self.threads = Threads(self.device, chosen=self.clock.total is not None)
        self.partial = self._no_sums()

    def _prepare_model(self) -> None:
        model = self.model
        self.memory_format = memory_format(self.config, model)
        lay_out(model, self.memory_format)
        if self.config.sync_batchnorm and self.processes > 1:
            share_batch_statistics(model, self.device)
        self.frozen = freeze_as_configured(model, self.config)
        self.plain_objective = regularise(self.task.objective(model, self.config), self.config)
        optimizer = make_optimizer(self.config, parameter_groups(self.config, self.plain_objective, model))
        self.objective, self.optimizer = self.accelerator.prepare(self.plain_objective, optimizer)
        self.step_module: Any = torch.compile(self.objective) if self.config.compile else self.objective
        self.adversary = adversarial_training(self.config, self._normalised, self.accelerator.autocast)
        self.average = None if self.config.ema_decay is None else WeightAverage(self.model, self.config.ema_decay)

    def _normalised(self, images: Tensor) -> Tensor:
        return normalise(images, self.cfg["mean"], self.cfg["std"]).contiguous(memory_format=self.memory_format)

    # --- the epochs and their steps ---------------------------------------------------------------------------------

    def fit(self) -> None:
        """Train all remaining epochs."""
        self.clock.start()
        start, first = self._resume()
        wanted = (self.config.tensorboard or TENSORBOARD in self.config.track) and self.main
        events = open_events(self.folder, wanted, start + 1, self.report, self.columns)
        trackers = Trackers(self.config, self.folder, main=self.main)
        self.report.start(self.epochs * self.steps, start * self.steps + first, self.task.unit)
        try:
            while (epoch := len(self.history)) < self.epochs and not self.stopped_early:
                row = self.train_epoch(epoch, first if epoch == start else 0)
                trackers.epoch(row)
                if events is not None:
                    events.epoch(row)
                    if epoch == 0 and self.folder.train_samples.exists():
                        events.picture("training images", 0, self.folder.train_samples)
                    weights = {f"weights/{name}": p for name, p in self.model.named_parameters() if p.requires_grad}
                    events.histograms(epoch + 1, weights)
        finally:
            self.report.stop()
            if events is not None:
                events.close()
            trackers.close()
        if self.stopped_early:
            best = self.best["epoch"] if self.best else 0
            patience = counted(self.config.patience or 0, "epoch")
            self.report.say(f"stopped: no better epoch than {best} in {patience}")

    @property
    def stopped_early(self) -> bool:
        """Whether the last `patience` epochs were no better than one before them, with epochs left."""
        patience, best = self.config.patience, self.best
        if patience is None or best is None or len(self.history) >= self.epochs:
            return False
        return len(self.history) - int(best["epoch"]) >= patience

    def train_epoch(self, epoch: int, first: int) -> dict[str, Any]:
        """The steps of an epoch from step `first` on, with checks of the loss and checkpoints; its row of results.

        The epoch ends early when a given time is up.
        """
        so_far = [row["train_loss"] if row["val_loss"] is None else row["val_loss"] for row in self.history]
        self.reduced = plateau_share(self.config, so_far)
        if first == 0:
            self.plain_objective.begin_epoch(self._of_epoch(epoch))
        order = self.sampler(epoch)
        # A set that decodes its images needs to know which of them this process takes in the remaining steps.
        rest = order[first * self.batch_size : self.steps * self.batch_size]
        self.splits.train.prefetch(rest.view(-1, self.processes, self.part_size)[:, self.rank].flatten())
        precise = torch.float64 if self.device.type != "mps" else torch.float32
        sums = torch.tensor(self.partial, device=self.device, dtype=precise)
        loading, took, pending = 0.0, math.inf, list[Tensor]()
        began = saved = time.monotonic()
        start_training(self.objective, self.frozen)
        for step in range(first, self.steps):
            started = time.monotonic()
            losses, metrics, waited = self.optimise(epoch, step, order)
            self.threads.took(time.monotonic() - started)
            if step > first:  # the first step takes longer
                took = min(took, time.monotonic() - started)
            pending.append(losses[0])
            sums += torch.cat((losses.to(sums), metrics.to(sums)))
            loading += waited
            last, shown = step == self.steps - 1 or self.clock.is_over, None
            if last or len(pending) >= FINITE_CHECK_STEPS.get(self.device.type, 20):
                self.check_finite(epoch, step + 1 - len(pending), pending, order)
                shown, pending = losses[0].item(), []
            speed = (step + 1 - first) * self.batch_size / max(time.monotonic() - began, 1e-9)
            if not self.history and took < math.inf:  # no evaluation has been timed
                self._keep_time(EVALUATION * took / self.batch_size, GUESSED)
            self._plan_epochs(epoch + (step + 1) / self.steps)
            self.report.step(epoch + 1, self.epochs, speed, shown)
            if last:
                break
            if not pending and self._checkpoint_is_due(saved):
                partial = sums if self.processes == 1 else self.accelerator.reduce(sums, "mean")
                self.save_state(epoch, step + 1, partial.tolist(), began)
                saved = time.monotonic()
        elapsed = time.monotonic() - began
        speed = (step + 1 - first) * self.batch_size / max(elapsed, 1e-9)
        self.partial = self._no_sums()
        sums[: 1 + len(self.plain_objective.added_names)] /= step + 1
        return self.finish_epoch(epoch, sums, speed, elapsed, loading)

    def _keep_time(self, each: float, most: float = 0.5) -> None:
        """Keep time for what follows the last step, from the seconds of evaluating an image, and at most this share.

        Held-out images are evaluated for the epoch and for the calibration, test images with the last weights, with the
        best ones and for the calibration.
        """
        held, tested = len(self.splits.validation or ()), len(self.splits.test)
        final = each * self.task.final_cost * (1 if self.config.precision == "fp32" else SINGLE)
        self.clock.keep(each * held + final * (held + 2 * tested + min(tested, MOST_TEST_IMAGES)), most)

    def _plan_epochs(self, done: float) -> None:
        """Plan the number of epochs anew, if it follows from a given time."""
        self.epochs = self.clock.epochs(done, self.config.epochs)
        self.report.expect(self.epochs * self.steps)

    def _no_sums(self) -> list[float]:
        """The sums of an epoch before its first step: of loss, added losses and metrics of the training images."""
        return [0.0] * (1 + len(self.plain_objective.added_names) + len(self.task.metrics().state))

    def _checkpoint_is_due(self, saved: float) -> bool:
        """Whether `checkpoint_seconds` have passed since the last one, in any process: all save together."""
        due = time.monotonic() - saved > self.config.checkpoint_seconds
        if self.processes == 1:
            return due
        return bool(self.accelerator.reduce(torch.tensor(float(due), device=self.device), "sum") > 0)

    # --- one step ---------------------------------------------------------------------------------------------------

    def optimise(self, epoch: int, step: int, order: Tensor, rate: float | None = None) -> tuple[Tensor, Tensor, float]:
        """One optimiser step on the mean loss of the parts of a batch; one part at a time has a graph.

        Args:
            epoch, step: counted from 0.
            order: of the images of the epoch.
            rate: the learning rate; by default the schedule's.

        Returns:
            the mean loss and, behind it, the added losses, (1 + added,), the sums of the metrics, and the seconds spent
            on loading the batch.
        """
        config, number, parts = self.config, epoch * self.steps + step, self.config.accumulate
        self.plain_objective.at_step(number, self.epochs * self.steps)
        torch.manual_seed(derived_seed(config.seed, "dropout", number, self.rank))
        if rate is None:
            rate = self.reduced * learning_rate(config, number, self.steps, self.clock.share)
        self.rate = rate
        share = self.clock.share if self.clock.total is not None else number / max(self.epochs * self.steps, 1)
        for group in self.optimizer.param_groups:
            group["lr"] = group_rate(group, self.rate, share or 0.0)
        added = self.plain_objective.added_names
        total, metrics, loading = torch.zeros(1 + len(added), device=self.device), self.task.metrics(), 0.0
        for part in range(parts):
            began = time.perf_counter()
            batch = self.batch(epoch, step, order, part)
            loading += time.perf_counter() - began
            if self.adversary is not None:
                seed = derived_seed(config.seed, "adversarial", number)
                batch = self.adversary(self.model, batch, self._share(part).start, seed)
            batch = prepare_batch(batch, self.cfg, self.memory_format)
            self.task.check(batch)
            # Gradients are exchanged with the last part only.
            with nullcontext() if part == parts - 1 else self.accelerator.no_sync(self.objective):
                loss, outputs = self.step_module(batch)
                self.accelerator.backward(loss / parts)
            terms = (self.plain_objective.added.get(name, torch.zeros_like(loss)) for name in added)
            total.add_(torch.stack([loss.detach().float(), *(term.float() for term in terms)]) / parts)
            if self.task.train_metrics:
                metrics.update(tree_map_only(Tensor, Tensor.detach, outputs), batch)
        if config.clip_norm is not None:
            self.accelerator.clip_grad_norm_(self.objective.parameters(), config.clip_norm)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        if self.average is not None:
            self.average.update(number)
        return total, metrics.state.to(self.device), loading

    def sampler(self, epoch: int) -> Tensor:
        """The order in which an epoch visits the images: int64 (images,)."""
        order = self.plain_objective.order(self._of_epoch(epoch))
        return sample_epoch(self.config.sampler, self.config.seed, epoch, self.splits.train) if order is None else order

    def _of_epoch(self, epoch: int) -> Epoch:
        """What the objective may know of an epoch."""
        images, seed = self.splits.train, self.config.seed

        def batches() -> Iterator[Batch]:
            for part in torch.arange(len(images)).split(max(self.batch_size, self.task.evaluated_at_once)):
                batch = images.batch(part, crop=self.crop, device=self.device)
                yield prepare_batch(batch, self.cfg, self.memory_format)

        def draws(purpose: str) -> torch.Generator:
            return generator(seed, purpose, epoch)

        return Epoch(epoch, self.epochs, self.steps, self.batch_size, images, draws, batches)

    @property
    def part_size(self) -> int:
        """Images that this process takes of each part of a batch."""
        return self.batch_size // (self.processes * self.config.accumulate)

    def _share(self, part: int) -> slice:
        """The images of a batch that this process takes in one of its parts."""
        # The processes share a part, so that its batch statistics do not depend on how many they are.
        start = (part * self.processes + self.rank) * self.part_size
        return slice(start, start + self.part_size)

    def batch(self, epoch: int, step: int, order: Tensor, part: int) -> Batch:
        """This process's share of one part of a batch: a pure function of (seed, epoch, step)."""
        config, share = self.config, self._share(part)

        def take(share: slice) -> Batch:
            return self.splits.train.batch(
                order[step * self.batch_size : (step + 1) * self.batch_size],
                augmentation=self.augmentation,
                crop=self.crop,
                generator=generator(config.seed, "augment", epoch, step),
                share=share,
                device=self.device,
            )

        if config.mixup == config.cutmix == 0:
            return take(share)
        return mix_step(
            take, share, self.batch_size, num_classes=len(self.task.class_names), mixup=config.mixup,
            cutmix=config.cutmix, seed=config.seed, step=epoch * self.steps + step,
        )  # fmt: skip

    def check_finite(self, epoch: int, first: int, losses: list[Tensor], order: Tensor) -> None:
        """NonFiniteLossError at the first loss that is not finite, with its batch saved for inspection."""
        values = self.accelerator.reduce(torch.stack(losses), "mean") if self.processes > 1 else torch.stack(losses)
        bad = (~torch.isfinite(values)).nonzero()
        if not len(bad):
            return
        step = first + int(bad[0])
        path = self.folder.path / f"non_finite_epoch{epoch + 1}_step{step}.safetensors"
        if self.main:
            batch = self.batch(epoch, step, order, 0)._asdict()
            tensors = {name: tensor for name, tensor in batch.items() if isinstance(tensor, Tensor)}
            save_tensors(path, tensors, {"epoch": epoch + 1, "step": step})
        saved = f"The last checkpoint is {self.folder.state}. " if self.folder.state.exists() else ""
        raise NonFiniteLossError(
            f"the loss is {values[bad[0]].item()} at step {step} of epoch {epoch + 1}; its batch is in {path}. {saved}"
            "Try a smaller --lr, --clip-norm 1, a longer --warmup-epochs, or --precision fp32."
        )

    # --- after an epoch ---------------------------------------------------------------------------------------------

    def finish_epoch(self, epoch: int, sums: Tensor, rate: float, elapsed: float, loading: float) -> dict[str, Any]:
        """Evaluate, keep the row of results, save and report.

        Args:
            epoch: counted from 0.
            sums: the mean of the losses of the steps, and the sums of their metrics.
            rate: samples per second.
            elapsed, loading: seconds of the steps, and of these the time of loading batches.
        """
        if self.processes > 1:
            sums = self.accelerator.reduce(sums, "mean")
        self.seconds += elapsed
        state = self.evaluated_state()
        check_finite(state, self.folder.last)
        split = self.splits.test if self.config.paper_protocol else self.splits.validation
        began = self.clock.elapsed
        scores = None if split is None else self.evaluate(split)
        evaluation = self.clock.elapsed - began
        timing = {
            "images_per_second": round(rate, 3),
            "seconds": round(self.seconds, 2),
            "loading_share": loading / max(elapsed, 1e-9),
        }
        metrics = self.task.metrics()
        losses, metrics.state = sums.tensor_split([1 + len(self.plain_objective.added_names)])
        metrics.state = metrics.state * self.processes  # the mean over the processes, of their sums
        trained = metrics.compute()[self.task.chooses[0]] if self.task.train_metrics else None
        row = self._row(epoch, losses.tolist(), trained, scores) | self.plain_objective.figures | timing
        self.history.append(row)
        better = scores is None or is_better(self.task, scores, self.best, self.chosen_by)
        if better:
            figures = {self.task.chooses[0]: None, "loss": None} if scores is None else scores.to_dict()
            self.best = {"epoch": epoch + 1, **figures}
        if self.main:
            if better:
                self._save_weights(self.folder.best, state)
            self._save_weights(self.folder.last, state)
            write_history(self.folder.history, self.history, self.columns)
        if split is not None:
            self._keep_time(evaluation / len(split))
        self._plan_epochs(epoch + 1)
        figures = {} if scores is None else scores.values
        for line in self.plain_objective.end_epoch(self._of_epoch(epoch), figures, self.optimizer):
            self.report.say(line)
        self.save_state(epoch + 1, 0, self._no_sums(), None)
        left = self.seconds / (epoch + 1) * (self.epochs - epoch - 1)
        self.report.epoch(row, self.epochs, better and scores is not None, left, self.task, self.chosen_by)
        # Not before the first results are shown, because the library that draws takes a second to load.
        if self.main and self.pictures and epoch == 0:
            self._draw_training_samples()
        return row

    def _draw_training_samples(self) -> None:
        """Some images of the first batch, as they are trained on."""
        batch = self.batch(0, 0, self.sampler(0), 0)
        self.task.check(prepare_batch(batch, self.cfg))
        shown = tree_map_only(Tensor, lambda field: field[:SHOWN], batch)
        self.task.draw_samples(shown, self.folder.train_samples)

    def _row(self, epoch: int, losses: list[float], trained: float | None, scores: Scores | None) -> dict[str, Any]:
        """The learning rate and the metrics of an epoch: mean training losses, and the metric of training images."""
        metric = self.task.chooses[0]
        return {
            "epoch": epoch + 1,
            "lr": self.rate,
            "train_loss": losses[0],
            f"train_{metric}": trained,
            "val_loss": None if scores is None else scores.loss,
            **{f"train_{name}": loss for name, loss in zip(self.plain_objective.added_names, losses[1:], strict=True)},
        } | {f"val_{name}": None if scores is None else scores.values.get(name) for name in (metric, self.chosen_by)}

    def evaluated_state(self) -> dict[str, Tensor]:
        """The weights that are evaluated and saved: the average if there is one, otherwise the model's."""
        state = model_state(self.objective)
        if self.average is not None:
            state |= {name: full_tensor(tensor).cpu() for name, tensor in self.average.average.items()}
        return state

    def evaluate(self, split: Images, *, final: bool = False) -> Scores:
        """Evaluate those weights on every image of a split, divided among the processes; see `evaluate_run`."""
        return evaluate_run(
            self.plain_objective, split, self.task,
            average=self.average, accelerator=self.accelerator, batch_size=self.batch_size, final=final,
        )  # fmt: skip

    def _save_weights(self, path: Path, state: dict[str, Tensor]) -> None:
        # Weights that name no task are a classifier's, as in earlier versions.
        kind: dict[str, Any] = {} if self.task.name == "classification" else {"task": self.task.name}
        if self.config.task_options:
            kind["task_options"] = self.config.task_options
        kind |= self.task.fitted
        if self.augmentation is not None:
            kind["augment"] = self.augmentation.texts
        save_weights(
            path, self.model, class_names=self.task.output_names, state=state,
            data=self.config.data, seed=self.config.seed, epoch=len(self.history),
            image_statistics=self.statistics.to_dict(), **kind,
        )  # fmt: skip

    # --- checkpoints ------------------------------------------------------------------------------------------------

    def save_state(self, epoch: int, step: int, partial: list[float], began: float | None) -> None:
        """Save everything that resuming needs: `partial` sums of the epoch that `began` at a time and is under way."""
        elapsed = 0.0 if began is None else time.monotonic() - began
        progress = {
            "epoch": epoch, "step": step, "partial": partial, "history": self.history, "best": self.best,
            "seconds": self.seconds + elapsed, "processes": self.processes, "memory": self.plain_objective.memory(),
        } | self.provenance  # fmt: skip
        if self.clock.total is not None:
            progress["clock"] = self.clock.state()
        save_state(self.folder.state, self.objective, self.optimizer, self.average, progress, write=self.main)

    def _resume(self) -> tuple[int, int]:
        if not (self.config.resume and self.folder.state.exists()):
            return 0, 0
        progress = load_state(self.folder.state, self.objective, self.optimizer, self.average)
        check_progress(self.folder.state, progress, self.task.columns)
        for warning in compare_with_saved(self.folder.path, progress, self.provenance):
            self.report.say(warning)
        self.history, self.best = progress["history"], progress["best"]
        self.seconds, empty = progress["seconds"], self._no_sums()
        with fitting(self.folder.state):
            self.plain_objective.restore(progress.get("memory", {}))
        # A checkpoint of an earlier version has sums of the loss and of another metric.
        earlier = len(progress["partial"]) != len(empty)
        self.partial = [progress["partial"][0], *empty[1:]] if earlier else progress["partial"]
        if "clock" not in progress:  # a run of a number of epochs
            self.clock = Clock()
        elif self.clock.total is not None:
            self.clock.restore(**progress["clock"])
        epoch = progress["epoch"]
        self._plan_epochs(epoch)
        if self.stopped_early or epoch >= self.epochs:
            self.report.say(f"training is already finished, after epoch {epoch} of {self.epochs}")
        else:
            self.report.say(f"resuming at epoch {epoch + 1}, step {progress['step'] + 1} of {self.steps}")
        return epoch, progress["step"]

    # --- the end ----------------------------------------------------------------------------------------------------

    def finish(self) -> RunResult:
        """Evaluate the last and the best weights on the test images, calibrate the best, and write the results."""
        model, task, splits, folder = self.model, self.task, self.splits, self.folder
        restore_batch_norms(model)
        self.report.say(f"evaluating {len(splits.test):,} test {task.unit}")
        total = self.epochs * self.steps
        self.plain_objective.at_step(total - 1, total)
        test_last = self.evaluate(splits.test, final=True)
        self.accelerator.wait_for_everyone()
        tensors, _ = load_tensors(folder.best)
        self.average = None
        with fitting(folder.best):
            restore_model(self.objective, tensors)
        best_is_last = self.best is not None and self.best["epoch"] == len(self.history)
        test_best = test_last if best_is_last else self.evaluate(splits.test, final=True)
        results = self._results(test_best, test_last)
        calibration = calibrate_run(model, task, splits, chosen_on_test=self.config.paper_protocol)
        if calibration is not None:
            results[KEY] = calibration.to_dict()
            model.metadata = {**model.metadata, KEY: results[KEY]}
        if self.main:
            if calibration is not None:
                store_calibration(folder.best, calibration)
            folder.write_json(folder.results, results)
            write_set_aside(folder, splits)
        if self.main and self.pictures:
            draw_curves(self.history, folder.curves, task.chooses[0], is_share=task.is_share)
            if self.processes == 1:
                self._draw_test_samples()
        self.accelerator.wait_for_everyone()
        note = still_improving(self.history, task, self.config, folder.path)
        return RunResult(folder, test_best, test_last, results, model.eval(), self.main, task, note)

    def _results(self, test_best: Scores, test_last: Scores) -> dict[str, Any]:
        """The content of results.json."""
        rates = [row["images_per_second"] for row in self.history]
        splits, config = self.splits, self.config
        chosen_on = "test" if config.paper_protocol else "validation" if splits.validation else "last epoch"
        return {
            "model": config.model,
            "data": config.data,
            "parameters": sum(p.numel() for p in self.model.parameters()),
            "epochs": len(self.history),
            "best_epoch": self.best["epoch"] if self.best else None,
            "chosen_on": chosen_on,
            "test_best": test_best.to_dict(),
            "test_last": test_last.to_dict(),
            "train_images": len(splits.train),
            "skipped_images": splits.skipped,
            "images_per_second": sorted(rates)[len(rates) // 2],
            "loading_share": sum(row["loading_share"] for row in self.history) / len(self.history),
            "seconds": round(self.seconds, 1),
            "device": str(self.device),
            "torch": torch.__version__,
        }

    @torch.inference_mode()
    def _draw_test_samples(self) -> None:
        """Draw some test images with their predictions."""
        batch = self.splits.test.batch(self.task.pictured(self.splits.test), crop=self.crop, device=self.device)
        self.task.draw(self.model.eval(), batch, prepare_batch(batch, self.cfg), self.folder.test_samples)
