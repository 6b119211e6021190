"""EViT: a vision transformer with and without the reduction of its tokens, images a second."""

import torch

from mereo.bench.suite import Contender, Mode, Setting, Suite, Workload
from mereo.surgery import evit
from papers.common.deit import host, inputs, work


def _contender(setting: Setting, name: str, keep_rate: float) -> Contender:
    def build(mode: Mode) -> Workload:
        model = host(setting)
        if keep_rate < 1:
            model = evit(model, keep_rate)
        if mode == "training":
            return Workload(model.train(), leaves=tuple(model.parameters()))
        return Workload(torch.inference_mode()(model.eval()))

    return Contender(name, build, "contender" if keep_rate == 1 else "unchecked")


def contenders(setting: Setting) -> tuple[Contender, ...]:
    """The host first; the others compute something else on purpose."""
    rates = (0.9, 0.7, 0.5)
    return _contender(setting, "host", 1.0), *(_contender(setting, f"keep {rate}", rate) for rate in rates)


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
