"""Do the couplings matter? Metrics of a network whose couplings are replaced by uniform or shuffled ones.

Uniform attention as a baseline: Wiegreffe and Pinter 2019, arXiv:1908.04626; shuffled attention: Jain and Wallace 2019,
arXiv:1902.10186.
"""

import zlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from mereo.core import Coupling, intervene
from mereo.core.observe import Call
from mereo.core.tiles import Tiles
from mereo.data import Images
from mereo.errors import check_choice
from mereo.inference.answers import Answers, collect_answers
from mereo.inference.evaluate import evaluate
from mereo.inference.metrics import wilson_interval
from mereo.models import VisionModel
from mereo.tasks import Task

WAYS = ("uniform", "shuffled")
BATCH = 64
"""Largest batch: replaced couplings are computed by the plain paths, which store them."""
Progress = Callable[[int], None]


def replace_couplings(model: nn.Module, by: str, seed: int = 0) -> AbstractContextManager[None]:
    """Replace every coupling of a model, in every pass of its routing, while the block runs.

    uniform:  c_rs <- the mean of c along the axis that is normalised (of all of a head for both; over the senders for
              none), so that what a receiver takes or a sender gives in total stays the same
    shuffled: c_rs <- c_rp(s), the senders of every image permuted at random, alike for all receivers and heads

    Both are over the pairs that take part: what a mask, a topology or the tiles leave out stays as it is. Where these
    differ between receivers, each permutes its own senders.

    Args:
        model: any network; without couplings nothing changes.
        by: "uniform" or "shuffled".
        seed: of the permutations, which also depend on the order of the images.

    Reference: arXiv:1908.04626, arXiv:1902.10186.
    """
    check_choice("by", by, WAYS)
    names = [name for name, module in model.named_modules() if isinstance(module, Coupling)]
    if by == "uniform":
        return intervene(model, dict.fromkeys(names, uniform))
    return intervene(model, {name: partial(shuffled, _generator(seed, name)) for name in names})


def _generator(seed: int, name: str) -> torch.Generator:
    return torch.Generator().manual_seed(zlib.crc32(f"{seed} {name}".encode()))


def _taking_part(call: Call) -> tuple[Tensor | None, bool]:
    """The mask of pairs, bool (broadcastable to the couplings that `intervene` passes), or None if all pairs take part;
    and whether the couplings are inside tiles."""
    made, tiles = call.couplings, call.tiles
    assert made is not None
    if tiles is None:
        return call.mask, False
    ones = torch.ones_like(made) if call.mask is None else call.mask.expand_as(made).to(made.dtype)
    if tiles.exclusive and (whole := tiles.place(ones)).layout == torch.strided:
        return whole > 0, False
    return _unpadded(tiles, made) & (ones > 0), True


def _numbers(tiles: Tiles, numbers: Tensor, made: Tensor) -> Tensor:
    """Numbers of receivers or senders for each tile of each image: (batch * tiles, 1 or heads, numbers of a tile)."""
    batch, numbers = made.shape[0] // tiles.count, numbers.to(made.device)
    if numbers.dim() < 4:
        numbers = numbers.reshape(-1, 1, *numbers.shape[-2:])  # (batch or 1, 1, tiles, n)
    return numbers.expand(batch, -1, -1, -1).transpose(1, 2).flatten(0, 1)


def _unpadded(tiles: Tiles, made: Tensor) -> Tensor:
    receivers, senders = (_numbers(tiles, each, made) >= 0 for each in (tiles.receivers, tiles.senders))
    return receivers.unsqueeze(-1) & senders.unsqueeze(-2)


def uniform(couplings: Tensor, call: Call) -> Tensor:
    """The mean of the couplings along the axis that is normalised, over the pairs that take part."""
    part, tiled = _taking_part(call)
    axes = {"receivers": (-2,), "both": (-2, -1)}.get(call.over, (-1,))
    wide = couplings.float() if couplings.dtype in (torch.float16, torch.bfloat16) else couplings
    if part is None:
        return wide.mean(axes, keepdim=True).expand_as(wide).to(couplings.dtype)
    part = part.expand_as(wide)
    if tiled and axes == (-2,):
        mean = _mean_of_senders(wide, part, call)
    else:
        mean = (wide * part).sum(axes, keepdim=True) / part.sum(axes, keepdim=True).clamp(min=1)
    return torch.where(part, mean, wide).to(couplings.dtype)


def _mean_of_senders(couplings: Tensor, part: Tensor, call: Call) -> Tensor:
    """The mean of what each sender gives to the receivers of all its tiles: (batch * tiles, heads, 1, senders)."""
    tiles = call.tiles
    assert tiles is not None
    numbers = _numbers(tiles, tiles.senders, couplings).remainder(tiles.num_senders + 1)  # padding comes last

    def by_image(x: Tensor) -> Tensor:
        """(batch * tiles, heads, s) -> (batch, heads, tiles * s)."""
        return x.unflatten(0, (-1, tiles.count)).transpose(1, 2).flatten(2)

    places = by_image(numbers.expand(-1, couplings.shape[1], -1))
    sums, counts = (
        x.new_zeros(*places.shape[:2], tiles.num_senders + 1).scatter_add(2, places, by_image(x)).gather(2, places)
        for x in ((couplings * part).sum(-2), part.sum(-2).to(couplings.dtype))
    )
    mean = (sums / counts.clamp(min=1)).unflatten(2, (tiles.count, -1))
    return mean.transpose(1, 2).flatten(0, 1).unsqueeze(-2)


def shuffled(generator: torch.Generator, couplings: Tensor, call: Call) -> Tensor:
    """The couplings with their senders permuted, among the senders that take part."""
    part, _ = _taking_part(call)
    batch, senders = couplings.shape[0], couplings.shape[-1]
    keys = torch.rand(batch, 1, 1, senders, generator=generator).to(couplings.device)
    if part is None:
        return couplings.gather(-1, keys.argsort(-1).expand_as(couplings))
    there, numbers = part.expand(*part.shape[:-1], senders), torch.arange(senders, device=couplings.device)
    # Those that take part come first: once in their order, once in a random one.
    before = torch.where(there, numbers, senders + numbers).argsort(-1)
    after = torch.where(there, keys, 2 + numbers).argsort(-1)
    changed = torch.empty_like(couplings).scatter_(
        -1, after.expand_as(couplings), couplings.gather(-1, before.expand_as(couplings))
    )
    return torch.where(there, changed, couplings)


@dataclass(frozen=True)
class Replaced:
    """A metric of a network with its couplings replaced.

    Attributes:
        value: of the metric.
        low, high: Wilson's 95 % interval of an accuracy; None of another metric.
        lost, gained: images that are classified correctly only with the network's own couplings, and only without; None
            of another metric.
    """

    value: float
    low: float | None = None
    high: float | None = None
    lost: int | None = None
    gained: int | None = None


@dataclass(frozen=True)
class CouplingEffect:
    """How much a metric depends on the couplings.

    Attributes:
        metric: its name.
        own: its value with the network's own couplings.
        uniform, shuffled: with replaced ones.
    """

    metric: str
    own: float
    uniform: Replaced
    shuffled: Replaced

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        ways = {name: {k: v for k, v in vars(getattr(self, name)).items() if v is not None} for name in WAYS}
        return {"metric": self.metric, "own": self.own, **ways}


def has_couplings(model: nn.Module) -> bool:
    """Whether a network has couplings."""
    return any(isinstance(module, Coupling) for module in model.modules())


def coupling_effect(
    model: VisionModel,
    split: Images,
    answers: Answers,
    *,
    batch_size: int = BATCH,
    seed: int = 0,
    progress: Progress | None = None,
) -> CouplingEffect | None:
    """The accuracy with every coupling replaced by uniform and by shuffled ones; None without couplings.

    Args:
        model: any classifier.
        split: the images of `answers`.
        answers: with the network's own couplings.
        batch_size: images of a forward pass, at most BATCH.
        seed: of the permutations.
        progress: called with the number of images done since the last call; there are two passes.
    """
    if not has_couplings(model):
        return None
    ways = {}
    for way in WAYS:
        with replace_couplings(model, way, seed):
            changed = collect_answers(model, split, batch_size=min(batch_size, BATCH), progress=progress)
        low, high = wilson_interval(changed.accuracy, len(changed.labels))
        lost, gained = (answers.correct & ~changed.correct).sum(), (changed.correct & ~answers.correct).sum()
        ways[way] = Replaced(changed.accuracy, low, high, int(lost), int(gained))
    return CouplingEffect("accuracy", answers.accuracy, **ways)


def coupling_effect_of_task(
    model: VisionModel, split: Images, task: Task, own: float, *, batch_size: int = BATCH, seed: int = 0
) -> CouplingEffect | None:
    """The same for the metric by which any task chooses.

    Args:
        own: its value with the network's own couplings.
    """
    if not has_couplings(model):
        return None
    metric, ways = task.chooses[0], {}
    for way in WAYS:
        with replace_couplings(model, way, seed):
            figures = evaluate(model, split, task=task, batch_size=min(batch_size, BATCH))
        ways[way] = Replaced(figures.values[metric])
    return CouplingEffect(metric, own, **ways)
