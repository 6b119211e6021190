"""Whether couplings matter for an answer: the network with these couplings replaced by uniform ones.

Reference: Wiegreffe, Pinter 2019, arXiv:1908.04626, section 3.2.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mereo.core import intervene
from mereo.explain.observation import normalised, ready
from mereo.explain.wording import bars_of, kind_of
from mereo.inference.mode import evaluating
from mereo.models import VisionModel

LEAST = 0.05
"""Change of the bar of a class, between 0 and 1, from which on couplings matter even if no answer changes."""


@dataclass(frozen=True)
class UniformTest:
    """The answers of a network whose couplings are uniform, compared with its own.

    Attributes:
        answers: whether another class has the highest score, bool (batch,).
        change: of the score of the explained class, or for logits of its softmax, (batch,).
    """

    answers: Tensor
    change: Tensor

    @property
    def matters(self) -> bool:
        """Whether an answer changes, or a score by `LEAST`."""
        return bool(self.answers.any()) or float(self.change.abs().max()) >= LEAST


@torch.no_grad()
def uniform_test(
    model: VisionModel, images: Tensor, scores: Tensor, classes: Tensor, names: Sequence[str]
) -> UniformTest:
    """Run a network once more with some of its couplings replaced by their mean along the normalised axis.

    Args:
        model: any classifier; it is left as it was.
        images: in [0, 1], not normalised.
        scores: of the same images with the network's own couplings, (batch, classes).
        classes: that are explained, int64 (batch,).
        names: of the couplings that are replaced.

    Shapes: images (batch, channels, height, width).
    """
    model, inputs = ready(model, images)
    with evaluating(model), intervene(model, dict.fromkeys(names, "uniform")):
        replaced = model(normalised(model, inputs))
    kind = kind_of(model)
    before, after = (bars_of(each, kind).gather(1, classes[:, None])[:, 0] for each in (scores, replaced))
    return UniformTest(replaced.argmax(1) != scores.argmax(1), after - before)
