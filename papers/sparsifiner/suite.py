"""Sparsifiner compared with the dense attention layer whose weights it has: where predicting the kept keys pays."""

from typing import Any

import torch

from mereo.bench.counting import FLOAT
from mereo.bench.suite import Contender, Mode, Setting, Suite, Table, Work, Workload
from mereo.mechanisms.attention import SparsifinerAttention
from mereo.mechanisms.attention.sparse import attention_cost

RATES = (0.05, 0.25, 0.5, 0.9)
"""Shares of the keys that a query keeps."""


def inputs(setting: Setting, mode: Mode) -> tuple[Any, ...]:
    """Tokens (batch, tokens, dim), the class token first."""
    return (torch.randn(setting.size("batch"), setting.size("tokens"), setting.size("dim"), device=setting.device),)


def work(setting: Setting, mode: Mode) -> Work:
    """Operations and traffic of the dense layer."""
    batch, tokens, dim = (setting.size(name) for name in ("batch", "tokens", "dim"))
    return Work(batch * (8 * tokens * dim**2 + 4 * tokens**2 * dim), FLOAT * (4 * dim**2 + 2 * batch * tokens * dim))


def _layer(setting: Setting, name: str, keep: float, *, dense: bool = False) -> Contender:
    def build(mode: Mode) -> Workload:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            layer = SparsifinerAttention(setting.size("dim"), setting.size("heads"), setting.size("tokens"), keep=keep)
        layer.set_phase("reconstruction" if dense else "sparse")
        return Workload(torch.inference_mode()(layer.to(setting.device).eval()))

    return Contender(name, build, "contender" if dense else "unchecked")


def contenders(setting: Setting) -> tuple[Contender, ...]:
    """The dense layer first; the others compute something else on purpose."""
    return _layer(setting, "dense", 1.0, dense=True), *(_layer(setting, f"keep {keep}", keep) for keep in RATES)


def costs(setting: Setting, quick: bool) -> list[Table]:
    """Multiply-adds of the attention by the paper's formula, as a share of dense attention."""
    head = setting.size("dim") // setting.size("heads")
    rows = []
    for tokens in (65, 197, 577, 1025, 2305):
        dense = 2 * tokens**2 * head
        shares = (f"{100 * attention_cost(tokens, head, keep) / dense:.0f} %" for keep in RATES)
        rows.append((str(tokens), f"{dense / 1e6:.1f} M", *shares))
    columns = ("tokens", "dense, a head", *(f"keep {keep}" for keep in RATES))
    return [Table("Multiply-adds of attention without its projections", columns, tuple(rows))]


SPARSIFINER = Suite(
    "sparsifiner",
    "a layer of dense attention (DeiT-S) and of Sparsifiner, by the share of keys that a query keeps",
    "tokens (batch, tokens, dim) -> (batch, tokens, dim)",
    {"batch": 8, "tokens": 197, "dim": 384, "heads": 6},
    inputs,
    contenders,
    work,
    sweeps={"tokens": (197, 577, 1025)},
    quick={"batch": 2, "dim": 96, "heads": 3},
    quick_sweeps={"tokens": (65,)},
    modes=("forward",),
    memory=("forward",),
    tables=costs,
)
