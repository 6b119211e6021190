"""Attention to a part of the keys, with the logarithm of its normaliser, so that parts can be merged exactly.

Source: online softmax, arXiv:1805.02867; backward from the saved normaliser, arXiv:2205.14135.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from mereo.core.squash import accumulation_type

BLOCK = 1024
"""Number of queries whose scores are held at once without a fused operator."""

_FUSED_TYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class Kernel:
    """How a piece is computed: softmax(scale q k^T) v, in blocks of queries.

    PyTorch's public fused attention does not return the normaliser, which merging needs, so the operator behind it is
    called by its name.
    """

    scale: float
    block: int | None = None

    def _fused(self, q: Tensor, v: Tensor) -> bool:
        """Whether PyTorch's fused attention for CPUs takes this; a given block asks for the plain form."""
        same = q.shape[-1] == v.shape[-1] and q.dtype in _FUSED_TYPES
        return self.block is None and same and q.device.type == "cpu" and q.numel() > 0 and v.numel() > 0

    def forward(self, q: Tensor, k: Tensor, v: Tensor, causal: bool) -> tuple[Tensor, Tensor]:
        """Output of a piece, and log sum exp of its scores.

        Shapes: q (batch, heads, r, dim), k, v (batch, heads, s, dim or pose) -> (batch, heads, r, pose),
            (batch, heads, r), the second float32 or wider.
        """
        if self._fused(q, v):
            out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
                q, k, v, 0.0, causal, scale=self.scale
            )
            return out, lse
        outs, normalisers = [], []
        for first in range(0, max(q.shape[2], 1), self.block or BLOCK):
            scores = self._scores(q, k, causal, first)
            lse = scores.logsumexp(-1)
            outs.append(((scores - lse.unsqueeze(-1)).exp() @ v.to(scores.dtype)).to(q.dtype))
            normalisers.append(lse)
        return torch.cat(outs, 2), torch.cat(normalisers, 2)

    def _scores(self, q: Tensor, k: Tensor, causal: bool, first: int) -> Tensor:
        wide = accumulation_type(q)
        rows = q[:, :, first : first + (self.block or BLOCK)]
        scores = (rows.to(wide) * self.scale) @ k.to(wide).transpose(-1, -2)
        if causal:
            later = torch.ones(rows.shape[2], k.shape[2], dtype=torch.bool, device=q.device).triu(first + 1)
            scores = scores.masked_fill(later, float("-inf"))
        return scores

    def backward(
        self,
        grad: Tensor,
        grad_lse: Tensor | None,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        out: Tensor,
        lse: Tensor,
        causal: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Gradients of q, k, v through one piece, given the output and normaliser over all pieces."""
        if self._fused(q, v) and grad_lse is None:
            gradients = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
                grad, q, k, v, out, lse, 0.0, causal, scale=self.scale
            )
            return gradients[0], gradients[1], gradients[2]
        wide = accumulation_type(q)
        delta = (grad.to(wide) * out.to(wide)).sum(-1)
        if grad_lse is not None:
            delta = delta - grad_lse
        dq = []
        dk, dv = k.new_zeros(k.shape, dtype=wide), v.new_zeros(v.shape, dtype=wide)
        for first in range(0, max(q.shape[2], 1), self.block or BLOCK):
            rows = slice(first, first + (self.block or BLOCK))
            shares = (self._scores(q, k, causal, first) - lse[:, :, rows, None]).exp()
            upper = grad[:, :, rows].to(wide)
            dv += shares.transpose(-1, -2) @ upper
            inner = shares * (upper @ v.to(wide).transpose(-1, -2) - delta[:, :, rows, None]) * self.scale
            dq.append(inner @ k.to(wide))
            dk += inner.transpose(-1, -2) @ q[:, :, rows].to(wide)
        return torch.cat(dq, 2), dk, dv


def merge(out: Tensor, lse: Tensor, part: Tensor, part_lse: Tensor) -> None:
    """Add a part to the attention so far, in place; parts and sums without any sender have an lse of -infinity.

    lse' = log(e^lse + e^part_lse),   out' = out e^(lse - lse') + part e^(part_lse - lse')

    Shapes: out, part (..., r, pose); lse, part_lse (..., r).
    """
    top = torch.maximum(lse, part_lse)
    top = top.masked_fill(top == float("-inf"), 0)
    # Weights are divided by their sum, because rounding loses the logarithm of that sum when lse is large.
    old, new = (lse - top).exp(), (part_lse - top).exp()
    total = old + new
    divisor = total.masked_fill(total == 0, 1)
    out.mul_((old / divisor).unsqueeze(-1))
    out.addcmul_(part.to(out.dtype), (new / divisor).to(out.dtype).unsqueeze(-1))
    lse.copy_(top + total.log())


def empty_sums(q: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """An output of zeros and a normaliser of no senders, in the type in which parts are added."""
    wide = accumulation_type(q)
    return q.new_zeros(*q.shape[:3], v.shape[3], dtype=wide), q.new_full(q.shape[:3], float("-inf"), dtype=wide)
