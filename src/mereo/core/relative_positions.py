"""Relative positions: a bias of scores that depends on how far a sender is from a receiver, down and across.

Sources: Liu et al. 2021, arXiv:2103.14030, section 3.2 (the table); Liu et al. 2022, arXiv:2111.09883, section 3.3 (a
small network on logarithmic offsets instead of a table).
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mereo.errors import check_positive

Window = tuple[int, int]


def look_up(table: Tensor, window: Window) -> Tensor:
    """The bias of each pair of cells of a window: b[i, j] = T[row(j) - row(i) + P - 1, column(j) - column(i) + Q - 1].

    Shapes: (heads, 2P - 1, 2Q - 1) -> (1, heads, P * Q receivers, P * Q senders).
    """
    rows, columns = window
    # Element t of the slice that starts at s is T[s + t]; receiver i needs the slice that starts at P - 1 - i.
    slices = table.unfold(1, rows, 1).flip(1).unfold(2, columns, 1).flip(2)
    return slices.reshape(1, -1, rows * columns, rows * columns)


def resize_relative_table(table: Tensor, window: Window) -> Tensor:
    """A table for windows of another size, interpolated linearly between offsets that are denser near zero, as timm.

    The offsets of the old table are placed at 0, 1, 1 + q, 1 + q + q^2, ... of the new one, with the ratio q that puts
    the outermost ones at the border: small offsets, on which most depends, keep their values.

    Shapes: (heads, 2P - 1, 2Q - 1) -> (heads, 2P' - 1, 2Q' - 1), of the same type.

    Reference: the resampling of BEiT's code, arXiv:2106.08254.
    """
    new = (2 * window[0] - 1, 2 * window[1] - 1)
    if tuple(table.shape[1:]) == new:
        return table
    down, across = (_interpolation(old, to).to(table.device) for old, to in zip(table.shape[1:], new, strict=True))
    return (down @ table.double() @ across.T).to(table.dtype)


def _interpolation(old: int, new: int) -> Tensor:
    """Linear interpolation from `old` offsets at geometric distances to `new` equal ones: float64 (new, old)."""
    low, high = 1.01, 1.5
    while high - low > 1e-6:
        ratio = (low + high) / 2
        border = (1 - ratio ** (old // 2)) / (1 - ratio)
        low, high = (low, ratio) if border > new // 2 else (ratio, high)
    distances = [0.0]
    for i in range(old // 2):
        distances.append(distances[-1] + ratio**i)
    source = torch.tensor([-x for x in reversed(distances[1:])] + distances)
    target = torch.arange(new, dtype=source.dtype) - new // 2
    right = torch.bucketize(target, source).clamp(1 if old > 1 else 0, old - 1)
    left = (right - 1).clamp(min=0)
    share = ((target - source[left]) / (source[right] - source[left]).clamp(min=1e-12)).clamp(0, 1)
    weights = torch.zeros(new, old, dtype=torch.float64)
    rows = torch.arange(new)
    weights[rows, left] += 1 - share.double()
    weights[rows, right] += share.double()
    return weights


class RelativePositions(nn.Module):
    """A learned bias for each offset between two cells of a window and each head.

    b[h, i, j] = T[h, row(j) - row(i) + P - 1, column(j) - column(i) + Q - 1]

    Args:
        heads: of the attention.
        window: rows P and columns Q of the windows.

    Shapes: () -> (1, heads, P * Q receivers, P * Q senders).

    Reference: arXiv:2103.14030, section 3.2; an offset points from the receiver to the sender, as in the official code
        of MaxViT (arXiv:2204.01697). Other libraries count from the sender to the receiver, which flips the table.
    """

    def __init__(self, heads: int, window: Window) -> None:
        super().__init__()
        check_positive(heads=heads, window=min(window))
        self.heads, self.window = heads, (window[0], window[1])
        self.table = nn.Parameter(torch.empty(heads, 2 * window[0] - 1, 2 * window[1] - 1))
        nn.init.normal_(self.table, std=0.02)

    def forward(self) -> Tensor:
        return look_up(self.table, self.window)

    @torch.no_grad()
    def resize(self, window: Window) -> None:
        """Interpolate the table for windows of another size."""
        self.table = nn.Parameter(resize_relative_table(self.table, window), self.table.requires_grad)
        self.window = (window[0], window[1])

    def for_inference(self) -> nn.Module:
        return ConstantPositions(self())

    def extra_repr(self) -> str:
        return f"{self.heads}, window={self.window}"


class RelativePositionNetwork(nn.Module):
    """A bias for each offset between two cells that a small network computes, so that windows may have any size.

    b[h, i, j] = B relu(A l + a) + c,   l = -sign(o) log(1 + |o|) of the offset o of sender j from receiver i, by axis

    Args:
        heads: of the attention.
        window: rows and columns of the windows.
        hidden: size between A and B.
        dropout: of the hidden units in training.

    Shapes: () -> (1, heads, P * Q receivers, P * Q senders).

    Deviates: as timm's "cr" form, offsets are not divided by the size of the window, and the bias is not bounded.

    Reference: arXiv:2111.09883, section 3.3.
    """

    def __init__(self, heads: int, window: Window, hidden: int = 512, dropout: float = 0.125) -> None:
        super().__init__()
        check_positive(heads=heads, window=min(window), hidden=hidden)
        self.heads, self.window, self.dropout = heads, (window[0], window[1]), dropout
        self.first, self.second = nn.Linear(2, hidden), nn.Linear(hidden, heads)

    def forward(self) -> Tensor:
        like = self.first.weight
        axes = [torch.arange(side - 1, -side, -1, device=like.device, dtype=torch.float32) for side in self.window]
        logs = [axis.sign() * axis.abs().log1p() for axis in axes]
        offsets = torch.stack((logs[0][:, None].expand(-1, len(logs[1])), logs[1][None].expand(len(logs[0]), -1)), -1)
        hidden = F.dropout(self.first(offsets.to(like.dtype)).relu(), self.dropout, self.training)
        return look_up(self.second(hidden).permute(2, 0, 1), self.window)

    def resize(self, window: Window) -> None:
        """Take windows of another size; the network stays as it is."""
        self.window = (window[0], window[1])

    def for_inference(self) -> nn.Module:
        return ConstantPositions(self())

    def extra_repr(self) -> str:
        return f"window={self.window}"


class ConstantPositions(nn.Module):
    """A bias that was looked up once, for inference."""

    bias: Tensor

    def __init__(self, bias: Tensor) -> None:
        super().__init__()
        self.register_buffer("bias", bias.detach().contiguous())

    def forward(self) -> Tensor:
        return self.bias
