"""The bases of scans: linear attention, whose state decays at one rate, and gated scans with a decay of each token.

A linear scan defines how tokens are read (`read`), how fast the state decays (`slopes`) and how outputs are made
(`write`). A gated scan defines the recurrence of its tokens.
"""

from abc import ABC, abstractmethod
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from mereo.core import Signal
from mereo.core.inputs import check_streamed
from mereo.core.kernels.gated_scan import LEAST
from mereo.core.kernels.linear_scan import BLOCK, Scan, linear_scan
from mereo.core.recurrence import Recurrence
from mereo.errors import check_positive

ANY_MEMORY = (None, None, None)
"""Sizes of a memory behind the batch, which are compared with the tokens' when it is scanned."""


class ScanState(NamedTuple):
    """The state that a scan carries from token to token.

    Attributes:
        memory: (batch, heads, dim, pose), float32 or wider; its size does not depend on how many tokens it has read.
        position: number of tokens read so far.
        mixer: name of the class whose state it is.
    """

    memory: Tensor
    position: int
    mixer: str


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
        name = type(self).__name__
        check_streamed(name, tokens, "(batch, tokens, dim)", state, ScanState, memory=ANY_MEMORY)
        position = 0 if state is None else state.position
        q, k, v = self.read(tokens, position)
        if mask is not None:
            v = v.masked_fill(~mask[:, None, :, None], 0)
        slopes = torch.tensor(self.slopes(), dtype=torch.promote_types(torch.float32, q.dtype), device=q.device)
        memory, watch = None if state is None else state.memory, self.states if self.states.watched else None
        out, memory = linear_scan(Scan(q, k, v, slopes, memory, self.block, watch))
        return self.write(out, tokens), ScanState(memory, position + tokens.shape[1], name)

    def step(self, token: Tensor, state: ScanState | None = None) -> tuple[Tensor, ScanState]:
        """One token: (batch, dim) and the state before it -> (batch, dim) and the state behind it."""
        out, state = self.extend(token.unsqueeze(1), state)
        return out.squeeze(1), state

    def recurrence(self, tokens: Tensor) -> Recurrence:
        """Lambda is one number for each head: see `mereo.recurrence`."""
        q, k, v = self.read(tokens, 0)
        logs = -torch.tensor(self.slopes(), dtype=q.dtype, device=q.device).view(1, -1, 1, 1)
        return Recurrence(logs.expand(1, -1, tokens.shape[1], 1), k, q, v, None, lambda out: self.write(out, tokens))


class GatedState(NamedTuple):
    """The state that a gated scan carries from token to token; its size does not depend on how many it has read.

    Attributes:
        memory: (batch, heads, states, channels), float32 or wider.
        before: the last inputs of its convolution, (batch, width - 1, channels); None without a convolution.
        mixer: name of the class whose state it is.
    """

    memory: Tensor
    before: Tensor | None
    mixer: str


class GatedScanMixer(nn.Module, ABC):
    """A recurrence h_i = Lambda_i h_(i-1) + B_i u_i, y_i = C_i h_i + D u_i whose terms each token decides.

    Shapes: tokens (batch, tokens, dim) -> (batch, tokens, dim); recorded gates, Lambda: (batch, heads, tokens, states),
        or one state if all decay alike.
    """

    def __init__(self) -> None:
        super().__init__()
        self.gates = Signal("gates")

    @property
    def before(self) -> tuple[int, int] | None:
        """Numbers of tokens and channels that a convolution keeps; None without a convolution."""
        return None

    @abstractmethod
    def terms(self, tokens: Tensor, before: Tensor | None) -> tuple[Recurrence, Tensor | None]:
        """The recurrence of tokens (batch, tokens, dim) that follow `before`, and what comes before the next ones."""

    def recurrence(self, tokens: Tensor) -> Recurrence:
        """The terms that are executed: see `mereo.recurrence`."""
        return self.terms(tokens, None)[0].discretised()

    def extend(self, tokens: Tensor, state: GatedState | None = None) -> tuple[Tensor, GatedState]:
        """The next tokens after `state`: their outputs, and the state after them."""
        name, before = type(self).__name__, self.before
        check_streamed(name, tokens, "(batch, tokens, dim)", state, GatedState, memory=ANY_MEMORY, before=before)
        made, last = self.terms(tokens, None if state is None else state.before)
        if self.gates.watched:
            made = made.discretised()
            made = replace(made, log_lambda=self.gates(made.Lambda).clamp(min=0).log().clamp(min=LEAST))
        out, memory = made.scan(None if state is None else state.memory)
        return made.outputs(out), GatedState(memory, last, name)

    def step(self, token: Tensor, state: GatedState | None = None) -> tuple[Tensor, GatedState]:
        """One token: (batch, dim) and the state before it -> (batch, dim) and the state behind it."""
        out, state = self.extend(token.unsqueeze(1), state)
        return out.squeeze(1), state

    def forward(self, tokens: Tensor) -> Tensor:
        return self.extend(tokens)[0]


def as_heads(x: Tensor, heads: int) -> Tensor:
    """(batch, tokens, heads * channels) -> (batch, heads, tokens, channels)."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def from_heads(x: Tensor) -> Tensor:
    """(batch, heads, tokens, channels) -> (batch, tokens, heads * channels)."""
    return x.transpose(1, 2).flatten(2)


def normal_weights(*layers: nn.Linear, std: float = 0.02) -> None:
    """Initialise: normal weights, biases of 0."""
    for layer in layers:
        nn.init.normal_(layer.weight, std=std)
        if layer.bias is not None:
            nn.init.zeros_(layer.bias)


def step_sizes(count: int, low: float = 1e-3, high: float = 0.1) -> Tensor:
    """Biases whose softplus is log-uniform between two step sizes, as state-space models start: (count,)."""
    sizes = low * (high / low) ** torch.rand(count)
    return sizes + (-torch.expm1(-sizes)).log()
