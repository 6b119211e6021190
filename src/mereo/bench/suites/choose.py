"""Every mechanism that can replace dense self-attention, with its projections, over lengths."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from mereo.bench.counting import FLOAT
from mereo.bench.results import Measurement, Run
from mereo.bench.suite import Contender, Mode, Setting, Suite, Table, UnavailableError, Work, Workload
from mereo.mechanisms.attention import NeighborhoodAttention
from mereo.mechanisms.slots import Place, fill_slot

Make = Callable[[int, int, int], nn.Module]
"""(dim, heads, side of the image) -> a module of tokens (batch, tokens, dim)."""


def _slot(mechanism: str, arguments: Callable[[int, int], dict[str, Any]] = lambda heads, side: {}) -> Make:
    """A mechanism of the catalogue, with arguments by the number of heads and the side of the image."""

    def make(dim: int, heads: int, side: int) -> nn.Module:
        return fill_slot(mechanism, "tokens", Place(dim, heads, (side, side)), arguments(heads, side))

    return make


@dataclass(frozen=True)
class Choice:
    """One row.

    Attributes:
        name: of the row.
        make: makes the module.
        takes: grids that it can take, in words.
        causal: "always", "option" or "no".
        compared: how it differs from dense softmax attention.
        quadratic: whether its time grows with the square of the tokens.
    """

    name: str
    make: Make
    takes: str
    causal: str
    compared: str
    quadratic: bool = False


CHOICES = (
    Choice("multi-head", _slot("multi_head"), "any sequence", "option", "is dense", quadratic=True),
    Choice(
        "neighbourhood 7 x 7", _slot("neighborhood", lambda heads, side: {"window": 7}), "grid of 1 to 3 axes",
        "option, by axis", "exact inside a window around each token",
    ),
    Choice(
        "neighbourhood of 63, causal",
        lambda dim, heads, side: NeighborhoodAttention(dim, heads, window=63, axes=1, causal=True),
        "grid of 1 to 3 axes", "option, by axis", "exact inside a window behind each token",
    ),
    Choice(
        "CLEAR, radius 8", _slot("clear", lambda heads, side: {"radius": 8}), "text, then an image", "no",
        "exact for text, and inside a circle around each image token",
    ),
    Choice(
        "window 8 x 8", _slot("window", lambda heads, side: {"window_size": 8}), "image", "no",
        "exact inside fixed windows",
    ),
    Choice(
        "block 8 x 8", _slot("block_attention", lambda heads, side: {"window": (8, 8)}), "image", "no",
        "exact inside fixed blocks, with position biases",
    ),
    Choice(
        "grid 8 x 8", _slot("grid_attention", lambda heads, side: {"window": (8, 8)}), "image", "no",
        "exact among 64 tokens spread evenly, with position biases",
    ),
    Choice(
        "halo 8 + 3", _slot("halo", lambda heads, side: {"block": 8, "halo": 3}), "image", "no",
        "exact inside a block and around it, with position biases",
    ),
    Choice(
        "bi-level routing, 4 of the regions",
        _slot("bi_level_routing", lambda heads, side: {"regions": max(side // 8, 2), "top_k": 4}), "image", "no",
        "exact among regions that are chosen by content",
    ),
    Choice(
        "clusters, half of the heads",
        _slot("routing_attention", lambda heads, side: {"heads_local": heads // 2, "clusters": side, "window": side}),
        "any sequence", "option", "exact inside blocks, and among tokens of a k-means cluster",
    ),
    Choice(
        "Combiner, fixed", _slot("combiner"), "any sequence", "option",
        "near tokens directly, all others by summaries of blocks",
    ),
    Choice(
        "mixture of heads, half of them",
        _slot("mixture_of_head", lambda heads, side: {"shared": heads // 4, "active": heads // 2 - heads // 4}),
        "any sequence", "no", "each token uses some of the heads, which attend to all tokens", quadratic=True,
    ),
    Choice(
        "channel groups", _slot("channel_group"), "any sequence", "no",
        "another function: channels attend to channels",
    ),
    Choice(
        "lightning", _slot("lightning"), "any sequence", "always",
        "another function: linear, with a decay; streams with a state of fixed size",
    ),
)  # fmt: skip

MOST_PAIRS = 2**28
"""Pairs of tokens above which quadratic mechanisms are left out."""


def side_of(setting: Setting) -> int:
    """The number of rows, and of columns, of a square image of tokens."""
    return math.isqrt(setting.size("tokens"))


def inputs(setting: Setting, mode: Mode) -> tuple[Any, ...]:
    """Tokens (batch, tokens, dim) of a square image."""
    shape = (setting.size("batch"), side_of(setting) ** 2, setting.size("dim"))
    return (torch.randn(shape, device=setting.device).requires_grad_(mode == "training"),)


def work(setting: Setting, mode: Mode) -> Work:
    """The four projections only, which every row has in common: a lower bound for all."""
    rows, dim = setting.size("batch") * side_of(setting) ** 2, setting.size("dim")
    times = 1 if mode == "forward" else 3
    return Work(8 * times * rows * dim**2, FLOAT * times * (2 * rows * dim + 4 * dim**2))


def _contender(setting: Setting, choice: Choice, first: bool) -> Contender:
    side, dim = side_of(setting), setting.size("dim")

    def build(mode: Mode) -> Workload:
        if choice.quadratic and side**4 > MOST_PAIRS:
            raise UnavailableError(f"{side**2:,} tokens have too many pairs")
        module = choice.make(dim, setting.size("heads"), side).to(setting.device)
        if mode == "forward":
            module.eval()
            return Workload(torch.inference_mode()(module))
        return Workload(module, leaves=tuple(module.parameters()))

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
    "every mechanism that can replace dense self-attention, from 1k to 64k tokens",
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
