"""Shared by the suites of attention over long sequences: the lengths, and causal attention to compare with."""

from collections.abc import Callable
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from mereo.bench.suite import Contender, Mode, Setting, UnavailableError, Workload

LENGTHS = (1024, 2048, 4096, 8192, 16384, 32768, 65536)
MOST_PAIRS = 2**31
"""Pairs of tokens, over batch and heads, above which quadratic attention is left out."""


def pairs(setting: Setting) -> int:
    """Pairs of tokens, over batch and heads."""
    return setting.size("batch") * setting.size("heads") * setting.size("tokens") ** 2


def causal_sdpa(setting: Setting, of: Callable[..., tuple[Tensor, Tensor, Tensor]]) -> Contender:
    """PyTorch's attention to all earlier tokens, another function than the suite's; left out if it takes minutes.

    Args:
        of: queries, keys and values among the inputs of the suite.
    """

    def call(*inputs: Any) -> Tensor:
        return F.scaled_dot_product_attention(*of(*inputs), is_causal=True)

    def build(mode: Mode) -> Workload:
        if pairs(setting) > MOST_PAIRS:
            raise UnavailableError("causal attention takes minutes")
        return Workload(call)

    return Contender("causal SDPA", build, "unchecked")
