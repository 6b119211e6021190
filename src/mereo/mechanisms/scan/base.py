"""The base of linear attention: tokens become queries, keys and values, and a scan with a decaying state mixes them.

A subclass defines how tokens are read (`read`), how fast the state decays (`slopes`) and how outputs are made
(`write`).
"""

from abc import ABC, abstractmethod
from typing import NamedTuple

import torch
from torch import Tensor, nn

from mereo.core import Signal
from mereo.core.inputs import check_streamed
from mereo.core.kernels.linear_scan import BLOCK, Scan, linear_scan
from mereo.errors import check_positive


class ScanState(NamedTuple):
    """The state that a scan carries from token to token.

    Attributes:
        memory: (batch, heads, dim, pose), float32 or wider; its size does not depend on how many tokens it has read.
        position: number of tokens read so far.
    """

    memory: Tensor
    position: int


class LinearScan(nn.Module, ABC):
    """Linear attention with decay: out_t = q_t^T S_t,  S_t = exp(-slope) S_(t-1) + k_t v_t^T for each head.

    Args:
        block: tokens between two recorded states; also the size of blocks where the compiled form cannot run.

    Shapes: tokens (batch, tokens, dim) -> (batch, tokens, dim); recorded states, those before each block: (batch,
        heads, blocks, dim, pose).
    """

    def __init__(self, block: int = BLOCK) -> None:
        super().__init__()
        check_positive(block=block)
        self.block = block
        self.states = Signal("states")

    @abstractmethod
    def read(self, tokens: Tensor, position: int) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values of tokens, counted from `position`.

        Shapes: (batch, tokens, dim) -> (batch, heads, tokens, dim or pose) each.
        """

    @abstractmethod
    def slopes(self) -> list[float]:
        """For each head, minus the log of the factor that multiplies the state at each token."""

    @abstractmethod
    def write(self, out: Tensor, tokens: Tensor) -> Tensor:
        """Outputs of the scan (batch, heads, tokens, pose), and the tokens themselves -> (batch, tokens, dim)."""

    def extend(
        self, tokens: Tensor, state: ScanState | None = None, mask: Tensor | None = None
    ) -> tuple[Tensor, ScanState]:
        """The next tokens after `state`: their outputs, and the state after them.

        Args:
            mask: bool (batch, tokens), True = takes part; the values of the others are 0.
        """
        samples = None if state is None else state.memory.shape[0]
        check_streamed(type(self).__name__, tokens, "(batch, tokens, dim)", samples)
        position = 0 if state is None else state.position
        q, k, v = self.read(tokens, position)
        if mask is not None:
            v = v.masked_fill(~mask[:, None, :, None], 0)
        slopes = torch.tensor(self.slopes(), dtype=torch.promote_types(torch.float32, q.dtype), device=q.device)
        memory, watch = None if state is None else state.memory, self.states if self.states.watched else None
        out, memory = linear_scan(Scan(q, k, v, slopes, memory, self.block, watch))
        return self.write(out, tokens), ScanState(memory, position + tokens.shape[1])

    def step(self, token: Tensor, state: ScanState | None = None) -> tuple[Tensor, ScanState]:
        """One token: (batch, dim) and the state before it -> (batch, dim) and the state behind it."""
        out, state = self.extend(token.unsqueeze(1), state)
        return out.squeeze(1), state
