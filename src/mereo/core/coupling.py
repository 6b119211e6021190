"""Coupling: the one place where scores become couplings.

Whether couplings sum to one over the senders (attention: each receiver divides its attention) or over the receivers
(routing: each part divides its vote among wholes) is the argument `over`. Because every mechanism couples here, a
forward hook on this module watches or changes any of them: see `mereo.core.record`.
"""

from functools import partial
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mereo.core.normalisers import NORMALISERS, top_k_softmax
from mereo.core.squash import accumulation_type
from mereo.errors import UsageError, check_choice, check_positive, check_probability

Over = Literal["senders", "receivers"]
AXIS: dict[str, int] = {"senders": -1, "receivers": -2}


class Coupling(nn.Module):
    """Who listens to whom: c = dropout(normalise(scores / temperature)), normalised along one axis.

    Args:
        over: the axis along which couplings are normalised, "senders" or "receivers".
        normaliser: "softmax", "leaky_softmax", "sparsemax", "entmax15", "top_k", "sigmoid" or "none".
        temperature: divides the scores; above 0.
        top_k: how many entries keep a coupling, for the normaliser "top_k" alone.
        dropout: probability with which a coupling is dropped in training (the others are scaled up).

    Shapes:
        scores (batch, heads, receivers, senders), mask bool broadcastable to it -> couplings of the shape of scores.

    Reads as:
        couplings[b, h, r, s]: the share of sender s in what receiver r becomes. A pair that is masked out gets
        exactly 0, and so does a line with every pair masked out: never NaN.
    """

    def __init__(
        self,
        over: Over,
        normaliser: str = "softmax",
        *,
        temperature: float = 1.0,
        top_k: int | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        check_choice("over", over, AXIS)
        check_choice("normaliser", normaliser, [*NORMALISERS, "top_k"])
        check_positive(temperature=temperature)
        check_probability(dropout=dropout)
        if (normaliser == "top_k") != (top_k is not None):
            raise UsageError(f"top_k is {top_k} with normaliser {normaliser!r}; give both or neither.")
        if top_k is not None:
            check_positive(top_k=top_k)
        self.over, self.normaliser = over, normaliser
        self.temperature, self.top_k, self.dropout = temperature, top_k, dropout
        self._normalise = NORMALISERS[normaliser] if top_k is None else partial(top_k_softmax, k=top_k)

    @property
    def watched(self) -> bool:
        """Whether a hook waits for the couplings, so that they must be made."""
        return bool(self._forward_hooks or self._forward_pre_hooks)

    @property
    def is_plain_softmax(self) -> bool:
        """Whether this is the coupling that fused attention computes."""
        return self.over == "senders" and self.normaliser == "softmax" and self.temperature == 1.0

    def forward(self, scores: Tensor, mask: Tensor | None = None) -> Tensor:
        wide = scores.to(accumulation_type(scores)) / self.temperature
        if wide.dtype != scores.dtype:
            # Large activations overflow half precision to infinite scores, and inf - inf is NaN in every normaliser.
            wide = wide.clamp(torch.finfo(wide.dtype).min, torch.finfo(wide.dtype).max)
        if mask is not None:
            wide = wide.masked_fill(~mask, torch.finfo(wide.dtype).min)
        couplings = self._normalise(wide, AXIS[self.over])
        if mask is not None:
            couplings = couplings.masked_fill(~mask, 0)
        return F.dropout(couplings.to(scores.dtype), self.dropout, self.training)

    def extra_repr(self) -> str:
        parts = [f"over={self.over!r}", f"normaliser={self.normaliser!r}"]
        parts += [f"temperature={self.temperature}"] if self.temperature != 1 else []
        parts += [f"top_k={self.top_k}"] if self.top_k else []
        parts += [f"dropout={self.dropout}"] if self.dropout else []
        return ", ".join(parts)
