"""Sets of points with pointers to them, which a network should find; served a batch at a time."""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from mereo.data.batch import Batch
from mereo.data.images import BatchOptions
from mereo.data.load import Splits, Wanted, limited, made_splits
from mereo.data.point_problems import ORDERS
from mereo.data.pointing import FORMS
from mereo.data.tensor_set import TensorSet
from mereo.errors import UsageError, check_choice

Answers = Callable[[Tensor], Sequence[Tensor]]
"""Points (batch, n, 2), equally many in each set -> the pointers of each, int64 (steps,), without the end."""
PADDING = -1
TURNS = 4


class PointSets(TensorSet):
    """Sets of points, with a sequence of pointers for each.

    With a generator (training) the points of a set come turned by a random number of right angles and in another
    order, and the pointers follow; without (evaluation) they are as they are. Sets of "sequence" are not changed,
    because their answer may depend on the order and the place of the points.

    Args:
        points: of all sets, padded at the end.
        lengths: points of each set.
        pointers: 1 for the first point, 0 for the end, -1 for padding; None for points to predict.
        problem: what the pointers are, of `mereo.data.pointing.FORMS`.
        order_of_points: in training, "drawn" at random or "angle", see `by_angle`.

    Shapes: points float32 (sets, most, coordinates), lengths int64 (sets,), pointers int64 (sets, steps).
    """

    class_names: tuple[str, ...] = ()
    serves = "points"
    of_samples = ("points", "lengths", "pointers")

    def __init__(
        self,
        points: Tensor,
        lengths: Tensor,
        pointers: Tensor | None = None,
        problem: str = "sequence",
        order_of_points: str = "drawn",
    ) -> None:
        check_choice("problem", problem, FORMS)
        check_choice("order_of_points", order_of_points, ORDERS)
        if points.dim() != 3 or points.dtype != torch.float32:
            raise UsageError(
                f"points are {points.dtype} of {tuple(points.shape)}; they must be float32 (sets, most, 2)."
            )
        if lengths.shape != points.shape[:1] or (
            len(lengths) and not 1 <= int(lengths.min()) <= int(lengths.max()) <= points.shape[1]
        ):
            raise UsageError(f"lengths of {len(points)} sets must be from 1 to {points.shape[1]}, the points of a set.")
        if pointers is not None and (
            pointers.dim() != 2 or len(pointers) != len(points) or bool((pointers.amax(1) > lengths).any())
        ):
            raise UsageError(
                f"pointers are {tuple(pointers.shape)}; they must be ({len(points)}, steps), to points there."
            )
        self.points, self.lengths, self.pointers = points, lengths, pointers
        self.problem, self.order_of_points = problem, order_of_points

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """(1, points, coordinates): what a set takes in memory."""
        return 1, self.points.shape[1], self.points.shape[2]

    def make_batch(self, indices: Tensor, options: BatchOptions) -> Batch:
        """The sets at `indices`; there are no images to crop."""
        generator, share = options.generator, options.share
        keys = turns = None
        if generator is not None and self.pointers is not None and self.problem != "sequence":
            if self.order_of_points == "drawn":
                keys = torch.rand(len(indices), self.points.shape[1], generator=generator)[share]
            turns = torch.randint(TURNS, (len(indices),), generator=generator)[share]
        chosen = indices[share].to(self.points.device)
        batch = Batch(
            points=self.points[chosen], lengths=self.lengths[chosen],
            pointers=None if self.pointers is None else self.pointers[chosen],
        ).to(options.device or self.points.device)  # fmt: skip
        return batch if turns is None else moved(batch, keys, turns, self.problem)


def moved(batch: Batch, keys: Tensor | None, turns: Tensor, problem: str) -> Batch:
    """Sets turned by right angles around the centre of the unit square, in the order of their keys or by angle.

    Shapes: keys (batch, most) or None, turns int64 (batch,).
    """
    points, lengths, pointers = batch.points, batch.lengths, batch.pointers
    assert points is not None and lengths is not None and pointers is not None
    turns = turns.to(points.device)
    padding = torch.arange(points.shape[1], device=points.device) >= lengths.unsqueeze(1)
    centred = points - 0.5
    for turn in range(1, TURNS):
        centred = torch.where(
            (turns >= turn)[:, None, None], torch.stack((-centred[..., 1], centred[..., 0]), -1), centred
        )
    points = (centred + 0.5).masked_fill(padding.unsqueeze(-1), 0)
    if keys is None:
        order = by_angle(points, lengths)
    else:
        order = keys.to(points.device).masked_fill(padding, 2).argsort(dim=1, stable=True)
    points = points.gather(1, order.unsqueeze(-1).expand_as(points))
    pointers = torch.where(pointers > 0, order.argsort(1).gather(1, (pointers - 1).clamp(min=0)) + 1, pointers)
    return batch._replace(points=points, pointers=FORMS[problem](points, pointers))


def by_angle(points: Tensor, lengths: Tensor) -> Tensor:
    """The order of points by their angle atan2(y, x) in [-pi, pi] as seen from the mean of their set, padding last.

    Shapes: points (batch, most, 2), whose padding is 0, lengths int64 (batch,) -> places int64 (batch, most).
    """
    x, y = (points - points.sum(1, keepdim=True) / lengths[:, None, None]).unbind(-1)
    padding = torch.arange(points.shape[1], device=points.device) >= lengths.unsqueeze(1)
    return torch.atan2(y, x).masked_fill(padding, torch.inf).argsort(dim=1, stable=True)


# --- made sets ------------------------------------------------------------------------------------------------------


def padded(rows: Sequence[Tensor], steps: int | None = None) -> Tensor:
    """Pointers of each set with the end behind them and padding behind that: int64 (sets, steps)."""
    width = max(map(len, rows), default=0) + 1 if steps is None else steps
    table = torch.full((len(rows), width), PADDING)
    for row, pointers in zip(table, rows, strict=True):
        row[: len(pointers)] = pointers
        row[len(pointers)] = 0
    return table


def make_sets(
    problem: str, answers: Answers, least: int, most: int, seed: int, count: int, order: str = "drawn"
) -> PointSets:
    """Sets of points drawn evenly from the unit square, their numbers evenly from a range, with exact answers."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(least, most + 1, (count,), generator=generator)
    points = torch.rand(count, most, 2, generator=generator)
    points[torch.arange(most) >= lengths.unsqueeze(1)] = 0
    if order == "angle":
        points = points.gather(1, by_angle(points, lengths).unsqueeze(-1).expand_as(points))
    rows: list[Tensor] = [lengths] * count
    for number in range(least, most + 1):
        places = (lengths == number).nonzero().flatten()
        if len(places):
            for place, pointers in zip(places.tolist(), answers(points[places, :number]), strict=True):
                rows[place] = pointers
    return PointSets(points, lengths, padded(rows), problem, order)


def load_sets(
    wanted: Wanted, problem: str, answers: Answers, least: int, most: int, order: str, splits: Mapping[str, int]
) -> Splits:
    """The splits of sets of `least` to `most` points."""
    made = {
        split: make_sets(problem, answers, least, most, number, size, order)
        for number, (split, size) in enumerate(limited(splits, wanted.limit).items())
    }
    return made_splits(made, in_chans=2)
