"""Pointers: for a set of points a sequence of pointers to them, such as their convex hull or a tour through them.

Source: Vinyals, Fortunato, Jaitly 2015, arXiv:1506.03134.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mereo.data import Batch, Images
from mereo.data.pointing import FORMS, area_of, counts_of, improved_tours, is_simple, length_of, shortest_tours
from mereo.errors import UsageError, check_choice, check_count
from mereo.files import write_atomically
from mereo.tasks.base import Metrics, Objective, Seen, Settings, Task, csv_bytes, precise, register_task
from mereo.tasks.point_pictures import draw_points

FAIL = 0.01
"""Share of invalid answers above which area or length of the valid ones is not informative."""
_DRAWN = 32


@dataclass(frozen=True)
class PointersOptions:
    """The meaning of the pointers, and how they are searched.

    Args:
        problem: "hull", a polygon; "tour", each point once; "triangles"; or "sequence", anything else.
        beam: sequences that a prediction follows at once; 1 takes the most probable pointer at each step.
    """

    problem: str = "sequence"
    beam: int = 1

    def __post_init__(self) -> None:
        check_choice("problem", self.problem, FORMS)
        check_count(1, beam=self.beam)


class Pointed(NamedTuple):
    """The outputs of a network of pointers.

    Attributes:
        log_shares: log probabilities of each choice, given the true choices before it, (batch, steps, 1 +
            points); None for points without an answer.
        chosen: the choices that a search found, int64 (batch, steps), 0 from the end on.
    """

    log_shares: Tensor | None
    chosen: Tensor


def sequence_loss(log_shares: Tensor, pointers: Tensor) -> Tensor:
    """The negative log probability of sequences, with their end: sum over steps, mean over sequences.

    L = - mean_b sum_i log p(C_i | C_1 .. C_(i-1), P)

    Shapes: log_shares (batch, steps, choices), pointers int64 (batch, steps), -1 for padding -> ().

    Reference: arXiv:1506.03134, equation 2.
    """
    total = F.nll_loss(log_shares.float().flatten(0, 1), pointers.flatten(), ignore_index=-1, reduction="sum")
    return total / max(len(pointers), 1)


class PointersObjective(Objective):
    """A network and the loss of the true sequences; the search for outputs has no gradient."""

    def __init__(self, model: nn.Module, constraint: str | None) -> None:
        super().__init__(model)
        self.constraint = constraint

    def step(self, batch: Batch) -> tuple[Tensor, Pointed]:
        memory = self.model.forward_features(batch.points, batch.lengths)
        log_shares = self.model.score(memory, batch.pointers)
        with torch.no_grad():
            chosen = self.model.search(memory, constraint=self.constraint)[0]
        outputs = Pointed(log_shares, chosen)
        return self.loss(outputs, batch), outputs

    def loss(self, outputs: Pointed, batch: Batch) -> Tensor:
        assert outputs.log_shares is not None and batch.pointers is not None
        return sequence_loss(outputs.log_shares, batch.pointers)


def same_answers(points: Tensor, one: Tensor, other: Tensor, problem: str) -> Tensor:
    """Whether sequences are the same answer: polygons from any corner on, tours in both directions, any triangles.

    Shapes: points (batch, n, 2), pointers int64 (batch, steps), of any numbers of steps -> bool (batch,).
    """
    steps = max(one.shape[1], other.shape[1])
    forms = (FORMS[problem](points, F.pad(each.clamp(min=0), (0, steps - each.shape[1]))) for each in (one, other))
    first, second = forms
    return (first == second).all(1)


class PointersMetrics(Metrics):
    """The share of sequences that are the right answer, and further metrics of the problem.

    hull: the mean share of the true area that a polygon covers, over simple polygons, and the share of the others.
    tour: the mean length, and that divided by the true one, over the tours that visit each point once.   triangles: the
    share of the true triangles that are found.

    Args:
        problem: of the pointers.
    """

    def __init__(self, problem: str) -> None:
        super().__init__(5)
        self.problem = problem

    def update(self, outputs: Pointed, batch: Batch) -> None:
        points, lengths, true, chosen = batch.points, batch.lengths, batch.pointers, outputs.chosen
        assert points is not None and lengths is not None and true is not None
        points = points.to(precise(points.device))
        right = same_answers(points, chosen, true, self.problem)
        valid, part, whole = torch.ones_like(right), right.to(points), torch.ones_like(right).to(points)
        if self.problem == "hull":
            valid = is_simple(points, chosen)
            part = area_of(points, chosen).abs() / area_of(points, true).abs().clamp(min=1e-12) * valid
            whole = whole * valid
        elif self.problem == "tour":
            valid = visits_all(chosen, lengths)
            part, whole = (length_of(points, each) * valid for each in (chosen, true))
        elif self.problem == "triangles":
            valid = counts_of(chosen) % 3 == 0
            found, there = (triangle_numbers(each, points.shape[1]) for each in (chosen, true))
            hits = (found.unsqueeze(1) == there.unsqueeze(2)).any(2) & (there >= 0)
            part, whole = hits.sum(1), (there >= 0).sum(1)
        self.add(points.new_tensor(len(right)), *(each.to(points).sum() for each in (right, valid, part, whole)))

    def compute(self) -> dict[str, float]:
        count, right, valid, part, whole = self.state.tolist()
        metrics = {"accuracy": right / max(count, 1)}
        if self.problem == "tour":
            metrics |= {"tour_length": part / max(valid, 1), "over_optimum": part / whole - 1 if whole else 0.0}
        elif self.problem != "sequence":
            name = {"hull": "area_covered", "triangles": "triangles_found"}[self.problem]
            metrics[name] = part / whole if whole else 0.0
        return metrics if self.problem == "sequence" else {**metrics, "invalid": 1 - valid / count if count else 0.0}


def visits_all(pointers: Tensor, lengths: Tensor) -> Tensor:
    """Whether each point is visited once: int64 (batch, steps), (batch,) -> bool (batch,)."""
    steps = torch.arange(pointers.shape[1], device=pointers.device)
    inside = steps < counts_of(pointers).unsqueeze(1)
    ordered = pointers.masked_fill(~inside, torch.iinfo(torch.int64).max).sort(1).values
    return (counts_of(pointers) == lengths) & ((ordered == steps + 1) | ~inside).all(1)


def triangle_numbers(pointers: Tensor, number: int) -> Tensor:
    """A number for each triangle, the same for its corners in any order: int64 (batch, steps // 3), -1 for none."""
    whole = pointers.shape[1] // 3
    triples = pointers[:, : 3 * whole].unflatten(1, (whole, 3)).sort(2).values
    numbers = (triples[..., 0] * (number + 1) + triples[..., 1]) * (number + 1) + triples[..., 2]
    there = torch.arange(whole, device=pointers.device) < (counts_of(pointers) // 3).unsqueeze(1)
    return numbers.masked_fill(~there, -1)


@register_task
class Pointers(Task):
    """A sequence of pointers to the points of a set: its convex hull, a tour, triangles, or any other."""

    name = "pointers"
    requires = ("points", "lengths", "pointers")
    output_kinds = ("pointers",)
    input_kinds = ("points",)
    chooses = ("accuracy", "max")
    is_share = True
    unit = "sets"
    Options = PointersOptions
    example_model = "pointer_network_small"
    example_data = "convex_hull"
    settings: ClassVar[Mapping[str, Any]] = {"batch_size": 64, "epochs": 5, "lr": 6e-3, "clip_norm": 2.0}
    most_drawn = _DRAWN

    @property
    def constraint(self) -> str | None:
        """The constraint of a search: for tours each point once, otherwise the network's own."""
        return "tour" if self.options.problem == "tour" else None

    def apply(self, model: nn.Module, batch: Batch) -> Pointed:
        network: Any = model
        memory = network.forward_features(batch.points, batch.lengths)
        log_shares = None if batch.pointers is None else network.score(memory, batch.pointers)
        return Pointed(log_shares, network.search(memory, self.options.beam, self.constraint)[0])

    def objective(self, model: nn.Module, settings: Settings) -> PointersObjective:
        if settings.label_smoothing:
            raise UsageError(f"label_smoothing is {settings.label_smoothing}; pointers are not smoothed, leave it out.")
        return PointersObjective(model, self.constraint)

    def metrics(self) -> PointersMetrics:
        return PointersMetrics(self.options.problem)

    def kept(self, outputs: Pointed) -> Tensor:
        """The chosen pointers: int64 (batch, steps)."""
        return outputs.chosen

    def predict(self, outputs: Tensor, top: int = 3) -> list[dict[str, Any]]:
        """The chosen points of each set, counted from 0."""
        counts = counts_of(outputs).tolist()
        return [{"points": (row[:count] - 1).tolist()} for row, count in zip(outputs, counts, strict=True)]

    @property
    def cell_names(self) -> tuple[str, ...]:
        return ("predicted points",)

    def cells(self, outputs: Tensor) -> list[list[str | float]]:
        """The chosen points of each set, counted from 0, separated by spaces."""
        return [[" ".join(map(str, row["points"]))] for row in self.predict(outputs)]

    def write(self, outputs: Tensor, names: Sequence[str], folder: Path, seen: Sequence[Seen]) -> list[Path]:
        """pointers.csv, a row for each pointer: the set, the step and the point, counted from 0."""
        rows = [
            [name, str(step), str(point)]
            for name, row in zip(names, self.predict(outputs), strict=True)
            for step, point in enumerate(row["points"])
        ]
        write_atomically(folder / "pointers.csv", csv_bytes([["set", "step", "point"], *rows]))
        return [folder / "pointers.csv"]

    def describe_data(self, train: Images, validation: Images | None, test: Images) -> list[str]:
        """What is pointed to, and how."""
        how = {"hull": "polygons", "tour": "tours", "triangles": "triangles", "sequence": "sequences"}
        beam = "" if self.options.beam == 1 else f", found by a beam of {self.options.beam}"
        return [f"up to {train.image_shape[1]} points in a set; pointers are {how[self.options.problem]}{beam}"]

    def references(self, split: Images) -> dict[str, dict[str, float]]:
        """For tours, nearest neighbours improved by 2-opt."""
        if self.options.problem != "tour" or not len(split):
            return {}
        batch = split.batch(torch.arange(len(split)), device="cpu")
        assert batch.points is not None and batch.lengths is not None and batch.pointers is not None
        metrics = self.metrics()
        for number in batch.lengths.unique().tolist():
            part = batch.pick(batch.lengths == number)
            assert part.points is not None and part.lengths is not None
            found = (improved_tours if number > 3 else shortest_tours)(part.points[:, :number])
            metrics.update(Pointed(None, found), part)
        return {"2-opt from all points": metrics.compute()}

    def example(self, model: nn.Module, count: int, objects: int = 1) -> Batch:
        network: Any = model
        points = network.example_inputs(count)
        number = points.shape[1]
        order = torch.rand(count, number, device=points.device).argsort(1) + 1
        pointers = F.pad(order, (0, 1))
        return Batch(points=points, lengths=torch.full_like(order[:, 0], number), pointers=pointers)

    def titles(self, batch: Batch) -> list[str]:
        assert batch.lengths is not None
        return [f"{length} points" for length in batch.lengths.tolist()]

    def _draw(self, batch: Batch, chosen: Tensor | None, path: Path) -> None:
        points, lengths, true = batch.points, batch.lengths, batch.pointers
        assert points is not None and lengths is not None
        answers = {} if true is None else {"true": true}
        answers |= {} if chosen is None else {"predicted": chosen}
        wrong: list[bool] = []
        if true is not None and chosen is not None:
            wrong = (~same_answers(points, chosen, true, self.options.problem)).tolist()
        draw_points(
            points, lengths, answers, self.titles(batch), path,
            triangles=self.options.problem == "triangles", wrong=wrong,
        )  # fmt: skip

    def draw_samples(self, batch: Batch, path: Path) -> None:
        self._draw(batch.pick(slice(0, self.most_drawn)), None, path)

    @torch.inference_mode()
    def draw(self, model: nn.Module, batch: Batch, prepared: Batch, path: Path) -> None:
        """Draw sets with the true answer, if known, and the predicted one."""
        shown = prepared.pick(slice(0, self.most_drawn))
        self._draw(shown, self.apply(model, shown).chosen, path)

    def summary(self, figures: Mapping[str, Any], chosen: str) -> list[tuple[str, str]]:
        rows, invalid = super().summary(figures, chosen), figures.get("invalid", 0.0)
        if self.options.problem == "hull":
            covered = f"{self.show(figures['area_covered'])} of the true area"
            rows.append(("polygons", f"{covered if invalid <= FAIL else 'FAIL'}, {self.show(invalid)} not simple"))
        elif self.options.problem == "tour":
            over = f"{self.show(figures['over_optimum'])} longer than the true ones"
            rows.append(("tours", f"length {figures['tour_length']:.3f} in the mean, {over}"))
        elif self.options.problem == "triangles":
            rows.append(("triangles", f"{self.show(figures['triangles_found'])} of the true ones found"))
        return rows
