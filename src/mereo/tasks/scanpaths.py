"""Scanpaths: the path of a gaze over the objects of a scene, while it looks for a target.

Source: Fang, Yu, Zhang, van der Lans, Shi 2024, arXiv:2407.13335.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mereo.data import Batch, Images
from mereo.data.scanpaths import (
    BEHAVIOUR,
    MULTIMATCH,
    behaviour,
    behaviour_gap,
    edit_distance,
    multimatch,
    sequence_score,
)
from mereo.data.shelves import check_scenes
from mereo.errors import UsageError, check_count
from mereo.files import write_atomically
from mereo.tasks.base import Metrics, Objective, Seen, Settings, Task, csv_bytes, register_task
from mereo.tasks.shelf_pictures import draw_shelves

SCORES = ("ss", "ed", "sim", *(f"multimatch_{name}" for name in MULTIMATCH))


@dataclass(frozen=True)
class ScanpathsOptions:
    """How paths are evaluated, and what the regions are.

    Args:
        samples: sampled paths of a scene that metrics average over; 0 takes the most probable path.
        height: pixels of the crops in the regions, for pictures.
        width: the same, from left to right.
    """

    samples: int = 4
    height: int = 16
    width: int = 16

    def __post_init__(self) -> None:
        check_count(samples=self.samples)
        check_count(1, height=self.height, width=self.width)


class Scanned(NamedTuple):
    """The outputs of a network for scenes.

    Attributes:
        log_shares: log probabilities of each fixation and of STOP, given the true fixations before it, (batch, steps,
            objects + 1); None for scenes without a path.
        chosen: the most probable object at each step, -1 behind the end: int64 (batch, steps).
        sampled: paths that were drawn, or the chosen one: int64 (batch, paths, steps).
    """

    log_shares: Tensor | None
    chosen: Tensor
    sampled: Tensor


def fixations_of(pointers: Tensor) -> Tensor:
    """Objects from 0, -1 from the end on: pointers int64 (batch, steps + 1) -> int64 (batch, steps)."""
    return (pointers[:, :-1] - 1).clamp(min=-1)


def classes_of(pointers: Tensor, objects: int) -> Tensor:
    """Classes of a network: objects from 0, STOP as the last, -1 for padding: int64, of the shape of `pointers`."""
    return torch.where(pointers == 0, objects, (pointers - 1).clamp(min=-1))


def targets_of(regions: Tensor) -> Tensor:
    """The object that is the target, by its place or else by its look; 0 if there is none: int64 (batch,)."""
    objects, target = regions[:, :-1], regions[:, -1:]
    at = (objects[..., -2:] == target[..., -2:]).all(-1) & (objects[..., -2] >= 0)
    alike = (objects[..., :-2] == target[..., :-2]).all(-1) & (objects[..., -2] >= 0)
    return torch.where(target[..., -2] >= 0, at, alike).long().argmax(1)


class ScanpathsObjective(Objective):
    """A network and the cross-entropy of the true fixations and the end, a mean over steps.

    L = - mean_(b, t) log P(f_bt | f_b1 .. f_b(t-1), scene)
    """

    def step(self, batch: Batch) -> tuple[Tensor, Scanned]:
        assert batch.pointers is not None and batch.regions is not None
        fixations = fixations_of(batch.pointers)
        log_shares = self.model.score(self.model.forward_features(batch.regions), fixations)
        outputs = Scanned(log_shares, fixations, fixations.unsqueeze(1))  # paths are not searched in training
        return self.loss(outputs, batch), outputs

    def loss(self, outputs: Scanned, batch: Batch) -> Tensor:
        assert outputs.log_shares is not None and batch.pointers is not None
        classes = classes_of(batch.pointers, outputs.log_shares.shape[-1] - 1)
        return F.nll_loss(outputs.log_shares.float().flatten(0, 1), classes.flatten(), ignore_index=-1)


class ScanpathsMetrics(Metrics):
    """Five means of behaviour, of the network and of people, how far they are apart, and likeness of paths.

    delta = mean over behaviours of |network - people| / people;   ss, ed, MultiMatch (`mereo.data.scanpaths`), each a
    mean over the paths of a scene, then over scenes;   sim = mean probability of the next true fixation.
    """

    def __init__(self) -> None:
        super().__init__(1 + 2 * len(BEHAVIOUR) + 3 + 2 * len(MULTIMATCH))

    def update(self, outputs: Scanned, batch: Batch) -> None:
        assert outputs.log_shares is not None and batch.pointers is not None and batch.regions is not None
        regions, true = batch.regions, fixations_of(batch.pointers)
        count, paths = outputs.sampled.shape[:2]
        probabilities = outputs.log_shares[:, : true.shape[1]].float().exp()
        next_ones = probabilities.gather(-1, true.clamp(min=0).unsqueeze(-1)).squeeze(-1) * (true >= 0)
        sim = (next_ones.sum(1) / (true >= 0).sum(1).clamp(min=1)).sum()
        target, places = targets_of(regions).cpu().numpy(), regions[..., -2:].double().cpu().numpy()
        human, found = true.cpu().numpy(), outputs.sampled.flatten(0, 1).cpu().numpy()
        again = np.arange(count).repeat(paths)
        size = places[:, :-1].max(1)[:, ::-1] + 1
        likeness = multimatch(found, human[again], places[again][:, :-1, ::-1], size[again]).reshape(count, paths, -1)
        known = np.isfinite(likeness[..., 0]).any(1)
        likeness = np.nanmean(likeness[known], 1) if known.any() else np.zeros((0, len(MULTIMATCH)))
        own = np.nan_to_num(behaviour(found, target[again])).sum(0) / paths
        sums = [
            np.array([count]), np.nan_to_num(behaviour(human, target)).sum(0), own,
            np.array([sequence_score(found, human[again]).sum() / paths]),
            np.array([edit_distance(found, human[again]).sum() / paths]),
        ]  # fmt: skip
        rest = [likeness.sum(0), np.full(len(MULTIMATCH), len(likeness))]
        first, last = (torch.from_numpy(np.concatenate(part).astype(np.float64)) for part in (sums, rest))
        self.add(first, sim.cpu(), last)

    def compute(self) -> dict[str, float]:
        values, kinds = self.state.cpu().numpy(), len(BEHAVIOUR)
        count = max(values[0], 1)
        human, own = values[1 : 1 + kinds] / count, values[1 + kinds : 1 + 2 * kinds] / count
        rest = values[1 + 2 * kinds :]
        scores = [*(rest[:3] / count), *(rest[3:7] / np.maximum(rest[7:], 1))]
        return {
            "delta": behaviour_gap(own, human),
            **dict(zip(SCORES, map(float, scores), strict=True)),
            **dict(zip(BEHAVIOUR, own.tolist(), strict=True)),
            **{f"human_{name}": float(value) for name, value in zip(BEHAVIOUR, human, strict=True)},
        }


@register_task
class Scanpaths(Task):
    """The path of a gaze over the objects of a scene while it looks for a target."""

    name = "scanpaths"
    requires = ("regions", "pointers")
    output_kinds = ("pointers",)
    input_kinds = ("regions",)
    chooses = ("delta", "min")
    is_share = True
    unit = "scenes"
    Options = ScanpathsOptions
    example_model = "oat_small"
    example_data = "shelves"
    settings: ClassVar[Mapping[str, Any]] = {"batch_size": 20, "epochs": 10, "lr": 1e-3, "clip_norm": 1.0}
    train_metrics = False
    most_drawn = 8

    def apply(self, model: nn.Module, batch: Batch) -> Scanned:
        network: Any = model
        assert batch.regions is not None
        if batch.pointers is None:
            check_scenes(batch.regions)
        shelf = network.forward_features(batch.regions)
        log_shares = None if batch.pointers is None else network.score(shelf, fixations_of(batch.pointers))
        chosen = network.search(shelf).fixations
        sampled, count = chosen, self.options.samples
        if count and log_shares is not None:
            # The same draws for each scene, so that metrics do not depend on batches.
            drawn = torch.rand(count, network.max_len, generator=torch.Generator().manual_seed(0)).to(batch.regions)
            sampled = network.search(
                shelf, count, sample=True, draws=drawn.expand(len(batch.regions), -1, -1)
            ).fixations
        return Scanned(log_shares, chosen[:, 0], sampled)

    def objective(self, model: nn.Module, settings: Settings) -> ScanpathsObjective:
        if settings.label_smoothing:
            raise UsageError(f"label_smoothing is {settings.label_smoothing}; paths are not smoothed, leave it out.")
        return ScanpathsObjective(model)

    def metrics(self) -> ScanpathsMetrics:
        return ScanpathsMetrics()

    def kept(self, outputs: Scanned) -> Tensor:
        """The most probable path of each scene: int64 (batch, steps)."""
        return outputs.chosen

    def predict(self, outputs: Tensor, top: int = 3) -> list[dict[str, Any]]:
        """The objects of each path, counted from 0."""
        return [{"fixations": [each for each in row if each >= 0]} for row in outputs.tolist()]

    @property
    def cell_names(self) -> tuple[str, ...]:
        return ("fixations",)

    def cells(self, outputs: Tensor) -> list[list[str | float]]:
        """The objects of each path, counted from 0, separated by spaces."""
        return [[" ".join(map(str, row["fixations"]))] for row in self.predict(outputs)]

    def write(self, outputs: Tensor, names: Sequence[str], folder: Path, seen: Sequence[Seen]) -> list[Path]:
        """scanpaths.csv, a row for each fixation: the scene, the step and the object, counted from 0."""
        rows = [
            [name, str(step), str(each)]
            for name, row in zip(names, self.predict(outputs), strict=True)
            for step, each in enumerate(row["fixations"])
        ]
        write_atomically(folder / "scanpaths.csv", csv_bytes([["scene", "step", "object"], *rows]))
        return [folder / "scanpaths.csv"]

    def describe_data(self, train: Images, validation: Images | None, test: Images) -> list[str]:
        return [f"up to {train.image_shape[1] - 1} objects in a scene, and a target"]

    def example(self, model: nn.Module, count: int, objects: int = 1) -> Batch:
        network: Any = model
        regions = network.example_inputs(count)
        steps = min(3, network.max_len)
        pointers = torch.randint(1, regions.shape[1], (count, steps), device=regions.device)
        return Batch(regions=regions, pointers=F.pad(pointers, (0, 1)))

    def titles(self, batch: Batch) -> list[str]:
        assert batch.regions is not None
        return [f"scene {number}" for number in range(len(batch.regions))]

    def _draw(self, regions: Tensor | None, size: tuple[int, int], answers: Mapping[str, Tensor], path: Path) -> None:
        assert regions is not None
        draw_shelves(regions, size, answers, self.titles(Batch(regions=regions)), path)

    def draw_samples(self, batch: Batch, path: Path) -> None:
        shown = batch.pick(slice(0, self.most_drawn))
        assert shown.pointers is not None
        size = self.options.height, self.options.width
        self._draw(shown.regions, size, {"true": fixations_of(shown.pointers)}, path)

    @torch.inference_mode()
    def draw(self, model: nn.Module, batch: Batch, prepared: Batch, path: Path) -> None:
        """Shelves with the true path, if known, and the most probable one."""
        network: Any = model
        shown = prepared.pick(slice(0, self.most_drawn))
        true = {} if shown.pointers is None else {"true": fixations_of(shown.pointers)}
        self._draw(shown.regions, network.crop, {**true, "predicted": self.apply(model, shown).chosen}, path)

    def summary(self, figures: Mapping[str, Any], chosen: str) -> list[tuple[str, str]]:
        rows = super().summary(figures, chosen)
        for name in BEHAVIOUR:
            rows.append((name, f"{figures[name]:.3f}, of people {figures[f'human_{name}']:.3f}"))
        return rows
