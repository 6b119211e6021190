"""Every mechanism that can replace dense self-attention, with its projections, over lengths."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from mereo.bench.counting import FLOAT
from mereo.bench.results import Measurement, Run
from mereo.bench.suite import Contender, Mode, Setting, Suite, Table, UnavailableError, Work, Workload
from mereo.mechanisms.attention import (
    BiLevelRoutingAttention,
    BlockAttention,
    ChannelGroupAttention,
    ClearAttention,
    CombinerAttention,
    GridAttention,
    HaloAttention,
    MoHAttention,
    MultiHeadAttention,
    NeighborhoodAttention,
    RoutingAttention,
    WindowAttention,
)
from mereo.mechanisms.scan import LightningAttention

Tokens = Literal["sequence", "image", "channels first"]
"""Shapes of the input: (batch, tokens, dim), (batch, rows, columns, dim) or (batch, dim, rows, columns)."""


@dataclass(frozen=True)
class Choice:
    """One row.

    Attributes:
        name: of the row.
        mechanism: name in the catalogue.
        make: (dim, heads, side of the image) -> the module.
        tokens: what it takes.
        takes: grids that it can take, in words.
        causal: "always", "option" or "no".
        compared: how it differs from dense softmax attention.
        quadratic: whether its time grows with the square of the tokens.
    """

    name: str
    mechanism: str
    make: Callable[[int, int, int], nn.Module]
    tokens: Tokens
    takes: str
    causal: str
    compared: str
    quadratic: bool = False


CHOICES = (
    Choice(
        "multi-head", "multi_head", lambda dim, heads, side: MultiHeadAttention(dim, heads), "sequence",
        "any sequence", "option", "is dense", quadratic=True,
    ),
    Choice(
        "neighbourhood 7 x 7", "neighborhood", lambda dim, heads, side: NeighborhoodAttention(dim, heads, window=7),
        "image", "grid of 1 to 3 axes", "option, by axis", "exact inside a window around each token",
    ),
    Choice(
        "neighbourhood of 63, causal", "neighborhood",
        lambda dim, heads, side: NeighborhoodAttention(dim, heads, window=63, axes=1, causal=True), "sequence",
        "grid of 1 to 3 axes", "option, by axis", "exact inside a window behind each token",
    ),
    Choice(
        "CLEAR, radius 8", "clear", lambda dim, heads, side: ClearAttention(dim, heads, grid=(side, side), radius=8),
        "sequence", "text, then an image", "no", "exact for text, and inside a circle around each image token",
    ),
    Choice(
        "window 8 x 8", "window", lambda dim, heads, side: WindowAttention(dim, heads, 8), "image", "image", "no",
        "exact inside fixed windows",
    ),
    Choice(
        "block 8 x 8", "block_attention", lambda dim, heads, side: BlockAttention(dim, (8, 8), dim // heads), "image",
        "image", "no", "exact inside fixed blocks, with position biases",
    ),
    Choice(
        "grid 8 x 8", "grid_attention", lambda dim, heads, side: GridAttention(dim, (8, 8), dim // heads), "image",
        "image", "no", "exact among 64 tokens spread evenly, with position biases",
    ),
    Choice(
        "halo 8 + 3", "halo", lambda dim, heads, side: HaloAttention(dim, heads, block=8, halo=3), "channels first",
        "image", "no", "exact inside a block and around it, with position biases",
    ),
    Choice(
        "bi-level routing, 4 of the regions", "bi_level_routing",
        lambda dim, heads, side: BiLevelRoutingAttention(dim, heads, regions=max(side // 8, 2), top_k=4), "image",
        "image", "no", "exact among regions that are chosen by content",
    ),
    Choice(
        "clusters, half of the heads", "routing_attention",
        lambda dim, heads, side: RoutingAttention(dim, heads // 2, heads - heads // 2, clusters=side, window=side),
        "sequence", "any sequence", "option", "exact inside blocks, and among tokens of a k-means cluster",
    ),
    Choice(
        "Combiner, fixed", "combiner", lambda dim, heads, side: CombinerAttention(dim, heads), "sequence",
        "any sequence", "option", "near tokens directly, all others by summaries of blocks",
    ),
    Choice(
        "mixture of heads, half of them", "mixture_of_head",
        lambda dim, heads, side: MoHAttention(dim, heads, shared=heads // 4, active=heads // 2 - heads // 4),
        "sequence", "any sequence", "no", "each token uses some of the heads, which attend to all tokens",
        quadratic=True,
    ),
    Choice(
        "channel groups", "channel_group", lambda dim, heads, side: ChannelGroupAttention(dim, heads), "sequence",
        "any sequence", "no", "another function: channels attend to channels",
    ),
    Choice(
        "lightning", "lightning", lambda dim, heads, side: LightningAttention(dim, heads), "sequence", "any sequence",
        "always", "another function: linear, with a decay; streams with a state of fixed size",
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
