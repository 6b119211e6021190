"""EViT: a vision transformer with and without the reduction of its tokens, images a second."""

from functools import partial

from mereo.bench.suite import Contender, Setting, Suite
from mereo.surgery import evit
from papers.common.deit import contender, inputs, work


def contenders(setting: Setting) -> tuple[Contender, ...]:
    """The host first; the others compute something else on purpose."""
    rates = (0.9, 0.7, 0.5)
    return contender(setting, "host"), *(contender(setting, f"keep {k}", partial(evit, keep_rate=k)) for k in rates)


EVIT = Suite(
    "evit",
    "a vision transformer (DeiT) without and with EViT, at keep rates of 0.9, 0.7 and 0.5",
    "images (batch, 3, side, side) -> logits (batch, 1000)",
    {"batch": 8, "side": 224, "width": "small"},
    inputs,
    contenders,
    work,
    quick={"batch": 2, "side": 64, "width": "tiny"},
)
