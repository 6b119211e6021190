"""The scan of S6: compiled, compared with a loop over tokens in PyTorch."""

from typing import Any

import torch
from torch import Tensor

from mereo.bench.counting import FLOAT
from mereo.bench.suite import Contender, Mode, Setting, Suite, Work, Workload
from mereo.core.kernels.gated_scan import GatedScan, gated_scan


def inputs(setting: Setting, mode: Mode) -> tuple[Any, ...]:
    """Queries and keys (batch, 1, tokens, states), and values, rates and steps of each channel."""
    batch, tokens, channels, states = (setting.size(name) for name in ("batch", "tokens", "channels", "states"))
    q, k = torch.randn(2, batch, 1, tokens, states, device=setting.device)
    v, steps = torch.randn(2, batch, tokens, channels, device=setting.device).transpose(2, 3).unsqueeze(-1)
    rates = -torch.arange(1.0, states + 1, device=setting.device).repeat(1, channels, 1, 1)
    return tuple(x.requires_grad_(mode == "training") for x in (q, k, v, rates, 0.1 * steps.abs()))


def work(setting: Setting, mode: Mode) -> Work:
    """For each state and token 6 operations, three times that backward, and what is moved without the states."""
    tokens, channels, states = (
        setting.size("batch") * setting.size("tokens"),
        setting.size("channels"),
        setting.size("states"),
    )
    operations, moved = (6, 1) if mode == "forward" else (24, 3)
    return Work(operations * tokens * channels * states, FLOAT * moved * tokens * (2 * states + 3 * channels))


def contenders(setting: Setting) -> tuple[Contender, ...]:
    """The loop over tokens first."""
    return tuple(Contender(method, _workload(method)) for method in ("recurrent", "compiled"))


def _workload(method: str) -> Any:
    def call(q: Tensor, k: Tensor, v: Tensor, rates: Tensor, steps: Tensor) -> Tensor:
        return gated_scan(GatedScan(q, k, v, rates, None, steps), method)[0]

    return lambda mode: Workload(call)


SELECTIVE_SCAN = Suite(
    "selective_scan",
    "the scan of S6 by its number of states: compiled, compared with a loop over tokens",
    "(q, k, v, rates, steps) -> (batch, channels, tokens, 1)",
    {"batch": 8, "tokens": 512, "channels": 64, "states": 16},
    inputs,
    contenders,
    work,
    sweeps={"states": (4, 16, 64)},
    quick={"batch": 2, "tokens": 64},
    quick_sweeps={"states": (4,)},
)
