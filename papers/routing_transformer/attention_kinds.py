"""Kinds of causal attention of the same size, and the blocks around them, which experiments compare."""

from collections.abc import Callable

from torch import nn

from mereo.layers import DecoderBlock
from mereo.mechanisms.attention import CombinerAttention, RoutingAttention

DIM, HEADS, HIDDEN = 64, 4, 128


def _full(context: int, side: int) -> nn.Module:
    # A block of all tokens has no regions: this is causal attention without biases.
    return CombinerAttention(DIM, HEADS, size=context, causal=True)


def _local(context: int, side: int) -> nn.Module:
    return RoutingAttention(DIM, HEADS, 0, block=side, causal=True, positions=False)


def _routed(context: int, side: int) -> nn.Module:
    half, clusters = HEADS // 2, context // side
    return RoutingAttention(
        DIM, half, HEADS - half, clusters=clusters, window=side, block=side, causal=True, positions=False,
        strict="evaluation", decay=0.99,
    )  # fmt: skip


def _combiner(plan: str) -> Callable[[int, int], nn.Module]:
    def make(context: int, side: int) -> nn.Module:
        return CombinerAttention(DIM, HEADS, plan=plan, size=None if plan == "logsparse" else side, causal=True)

    return make


MIXERS: dict[str, Callable[[int, int], nn.Module]] = {
    "full attention": _full,
    "local blocks": _local,
    "local and clusters": _routed,
    "combiner, fixed": _combiner("fixed"),
    "combiner, logsparse": _combiner("logsparse"),
    "combiner, axial": _combiner("axial_rowmajor"),
}
"""(tokens of a sequence, about their square root) -> a mixer: blocks, clusters and rows have that many tokens."""


def make_blocks(name: str, depth: int, context: int, side: int) -> list[DecoderBlock]:
    """Blocks around mixers of one kind; their scores start away from zero."""
    blocks = [DecoderBlock(DIM, MIXERS[name](context, side), HIDDEN) for _ in range(depth)]
    for block in blocks:
        for parameter in block.mixer.parameters():
            if parameter.dim() == 2:
                nn.init.xavier_uniform_(parameter)
    return blocks
