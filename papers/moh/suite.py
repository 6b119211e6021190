"""Mixture of heads: a vision transformer with all heads for every token, and with some of them."""

import torch

from mereo.bench.suite import Contender, Mode, Setting, Suite, Workload
from mereo.surgery import moh
from papers.common.deit import host, inputs, work


def _contender(setting: Setting, name: str, active: float, method: str = "auto") -> Contender:
    def build(mode: Mode) -> Workload:
        model = host(setting)
        if active < 1:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(0)
                model = moh(model, active, routing="tokens", method=method)
        if mode == "training":
            return Workload(model.train(), leaves=tuple(model.parameters()))
        return Workload(torch.inference_mode()(model.eval()))

    return Contender(name, build, "contender" if active == 1 else "unchecked")


def contenders(setting: Setting) -> tuple[Contender, ...]:
    """The host first; the others compute something else on purpose."""
    return (
        _contender(setting, "host", 1.0),
        *(_contender(setting, f"{active:.0%} of heads", active) for active in (0.75, 0.5)),
        _contender(setting, "50% of heads, all computed", 0.5, "dense"),
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
