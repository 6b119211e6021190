"""Every mechanism that can stand where dense self-attention stands, with its projections, over lengths."""

import math
from typing import Any

import torch
from torch import Tensor

from mereo.bench.case import Contender, Mode, Setting, Suite, Table, UnavailableError, Work, Workload
from mereo.bench.choices import CHOICES, Choice
from mereo.bench.counting import FLOAT
from mereo.bench.results import Measurement, Run

MOST_PAIRS = 2**28
"""Pairs of tokens above which what is quadratic is left out."""


def side_of(setting: Setting) -> int:
    """Rows and columns of a square image of so many tokens."""
    return math.isqrt(setting.size("tokens"))


def inputs(setting: Setting, mode: Mode) -> tuple[Any, ...]:
    """Tokens (batch, tokens, dim) of a square image."""
    shape = (setting.size("batch"), side_of(setting) ** 2, setting.size("dim"))
    return (torch.randn(shape, device=setting.device).requires_grad_(mode == "training"),)


def work(setting: Setting, mode: Mode) -> Work:
    """The four projections only: what every row has in common, and less than any needs."""
    rows, dim = setting.size("batch") * side_of(setting) ** 2, setting.size("dim")
    times = 1 if mode == "forward" else 3
    return Work(8 * times * rows * dim**2, FLOAT * times * (2 * rows * dim + 4 * dim**2))


def _contender(setting: Setting, choice: Choice, first: bool) -> Contender:
    side, dim = side_of(setting), setting.size("dim")

    def build(mode: Mode) -> Workload:
        if choice.quadratic and side**4 > MOST_PAIRS:
            raise UnavailableError(f"{side**2:,} tokens have too many pairs")
        module = choice.make(dim, setting.size("heads"), side).to(setting.device)

        def call(tokens: Tensor) -> Tensor:
            if choice.tokens == "sequence":
                return module(tokens)
            image = tokens.unflatten(1, (side, side))
            return module(image) if choice.tokens == "image" else module(image.permute(0, 3, 1, 2))

        if mode == "forward":
            module.eval()
            return Workload(torch.inference_mode()(call))
        return Workload(call, leaves=tuple(module.parameters()))

    return Contender(choice.name, build, "contender" if first else "unchecked")


def contenders(setting: Setting) -> tuple[Contender, ...]:
    """Dense attention first; the others compute something else on purpose."""
    return tuple(_contender(setting, choice, choice is CHOICES[0]) for choice in CHOICES)


def digest(run: Run) -> list[Table]:
    """One row for each mechanism: what it takes, its time by length, and time and memory of a training step."""
    tables = []
    for threads in dict.fromkeys(m.threads for m in run.measurements):
        measured = {
            (m.contender, m.mode, int(m.sizes["tokens"])): m
            for m in run.measurements
            if m.threads == threads and m.wall
        }
        lengths = sorted({tokens for _, _, tokens in measured})
        dense = [tokens for name, mode, tokens in measured if name == CHOICES[0].name and mode == "training"]
        common = max(dense, default=lengths[-1] if lengths else 0)

        def ms(m: Measurement | None) -> str:
            return "-" if m is None or m.wall is None else f"{1e3 * m.wall.median:.3g}"

        rows = []
        for choice in CHOICES:
            training = measured.get((choice.name, "training", common))
            peak = "-" if training is None or not training.resident else f"{training.resident / 2**20:,.0f}"
            times = (ms(measured.get((choice.name, "forward", tokens))) for tokens in lengths)
            facts = (choice.name, choice.takes, choice.causal, choice.compared)
            rows.append((*facts, *times, ms(training), peak))
        columns = (
            "attention", "tokens", "causal", "compared with dense", *(f"{n:,} tokens, ms" for n in lengths),
            f"training step, {common:,} tokens, ms", "its memory, MiB",
        )  # fmt: skip
        tables.append(Table(f"Which attention, {threads} threads", columns, tuple(rows)))
    return tables


CHOOSE = Suite(
    "choose",
    "every mechanism that can stand where dense self-attention stands, from 1k to 64k tokens",
    "tokens (batch, tokens, dim) of a square image -> anything",
    {"batch": 1, "tokens": 4096, "heads": 4, "dim": 256},
    inputs,
    contenders,
    work,
    sweeps={"tokens": (1024, 4096, 16384, 65536)},
    growth=("tokens",),
    digest=digest,
    adopted="unchecked",
    quick={"dim": 32, "heads": 2},
    quick_sweeps={"tokens": (256, 1024)},
)
