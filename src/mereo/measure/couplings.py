"""Do the couplings matter? Metrics of a network whose couplings are replaced by uniform or shuffled ones.

Uniform attention as a baseline: Wiegreffe and Pinter 2019, arXiv:1908.04626; shuffled attention: Jain and Wallace 2019,
arXiv:1902.10186.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import nn

import mereo.mechanisms.attention.borrowed  # noqa: F401  attention of other libraries has couplings too
from mereo.core import Coupling, intervene
from mereo.core.observe import observables
from mereo.core.replacements import seeded, shuffled
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


def _couplings(model: nn.Module) -> list[str]:
    """The names of couplings, those of attention of other libraries among them."""
    return [name for name, module in observables(model).items() if isinstance(module, Coupling)]


def replace_couplings(model: nn.Module, by: str, seed: int = 0) -> AbstractContextManager[None]:
    """Replace every coupling of a model, in every pass of its routing, while the block runs.

    uniform:  c_rs <- the mean of c along the axis that is normalised (of all of a head for both; over the senders for
              none), so that the total that a receiver takes or a sender gives stays the same
    shuffled: c_rs <- c_rp(s), the senders of every image permuted at random, alike for all receivers and heads

    Both are over the pairs that take part: masked pairs and pairs outside a topology or tile do not change. Where these
    differ between receivers, each permutes its own senders.

    Args:
        model: any network; without couplings nothing changes.
        by: "uniform" or "shuffled".
        seed: of the permutations, which also depend on the order of the images.

    Reference: arXiv:1908.04626, arXiv:1902.10186.
    """
    check_choice("by", by, WAYS)
    names = _couplings(model)
    if by == "uniform":
        return intervene(model, dict.fromkeys(names, by))
    return intervene(model, {name: partial(shuffled, seeded(f"{seed} {name}")) for name in names})


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
    return bool(_couplings(model))


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
    """The same for the metric that a task chooses models by, for any task.

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
