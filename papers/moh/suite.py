"""Mixture of heads: a vision transformer with all heads for every token, and with some of them."""

from functools import partial
from typing import Any

import torch

from mereo.bench.suite import Contender, Setting, Suite
from mereo.surgery import moh
from papers.common.deit import contender, inputs, work


def _mixed(model: Any, active: float, method: str = "auto") -> Any:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return moh(model, active, routing="tokens", method=method)


def contenders(setting: Setting) -> tuple[Contender, ...]:
    """The host first; the others compute something else on purpose."""
    return (
        contender(setting, "host"),
        *(contender(setting, f"{active:.0%} of heads", partial(_mixed, active=active)) for active in (0.75, 0.5)),
        contender(setting, "50% of heads, all computed", partial(_mixed, active=0.5, method="dense")),
    )


MOH = Suite(
    "moh",
    "a vision transformer (DeiT) with all heads, and with 75 and 50 % of them for each token (mixture of heads)",
    "images (batch, 3, side, side) -> logits (batch, 1000)",
    {"batch": 2, "side": 512, "width": "small"},
    inputs,
    contenders,
    work,
    sweeps={"side": (224, 384, 512, 768)},
    quick={"batch": 2, "side": 64, "width": "tiny"},
    quick_sweeps={"side": (64,)},
)
