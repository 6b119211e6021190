"""Capsule dropout: whole children are left out of a training step.

Source: Xiang, Zhang, Tang, Zou, Xu, "MS-CapsNet: a novel multi-scale capsule network", IEEE Signal Processing Letters
25(12), 2018, and the authors' code, https://github.com/cxiang26/MS-CapsNet
"""

import torch
from torch import Tensor, nn

from mereo.errors import check_probability


class CapsuleDropout(nn.Module):
    """In training, u / (1 - rate) with probability 1 - rate, else 0, for each capsule as a whole; in evaluation, u.

    A vote is linear in its child, so this multiplies all votes of a child, for every parent and in every pass of a
    routing, by the same draw.

    Args:
        rate: probability that a capsule is left out; at least 0 and below 1.

    Shapes: (batch, capsules, pose) -> the same.

    Reference: Xiang, Zhang, Tang, Zou, Xu 2018 (IEEE Signal Processing Letters).
    """

    def __init__(self, rate: float = 0.0) -> None:
        super().__init__()
        check_probability(rate=rate)
        self.rate = rate

    def forward(self, capsules: Tensor) -> Tensor:
        if not self.training or self.rate == 0:
            return capsules
        kept = torch.rand(*capsules.shape[:2], 1, device=capsules.device) >= self.rate
        return capsules * (kept.to(capsules.dtype) / (1 - self.rate))

    def extra_repr(self) -> str:
        return f"{self.rate}"
