"""Outlook attention: each place of a map predicts from its own features the couplings in a window around it.

Source: Yuan, Hou, Jiang, Feng, Yan 2021, arXiv:2106.13112, section 3.1.
Cost: multiply-adds of a map of N cells of C channels, with h heads, kernel K and stride s: values and output 2 N C^2,
couplings (N / s^2) C K^4 h, sums (N / s^2) K^4 C.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mereo.core import Coupling, mechanism
from mereo.core.modes import must_be_called
from mereo.core.topology import Tiles, Windows
from mereo.core.votes import SameVotes
from mereo.errors import UsageError, check_heads, check_positive, check_probability


def _example() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return OutlookAttention(8, 2), (torch.randn(2, 5, 6, 8),)


@mechanism(
    "outlook",
    family="local attention",
    over="senders",
    values="shared",
    update="linear",
    source="arXiv:2106.13112",
    promises=("normalised",),
    interface="maps",
    channels_last=True,
    example=_example,
)
class OutlookAttention(nn.Module):
    """Sum, over the windows that cover a cell, weighted sums of the values of each window's cells.

    A_ij = softmax((W_a mean(x_ij) + b_a) / sqrt(C / heads))   K^2 x K^2 for window (i, j), from the cells of its stride

    out[y, x] = W_o sum over windows (i, j) and places p that coincide with (y, x) of sum_m A_ij[p, m] W_v x_ij[m] + b_o

    Window (i, j) covers the rows s i - padding to s i - padding + K - 1, and columns likewise. There are no products of
    queries and keys. The sum over windows is not divided by their number.

    Args:
        dim: channels of the map.
        num_heads: independent sets of couplings; divides `dim`.
        kernel: cells down and across a window, K.
        padding: how far the first window reaches beyond the map; cells there have the value 0.
        stride: cells from a window to the next, s.
        attn_drop: dropout of the couplings.
        proj_drop: dropout of the output.

    Shapes: maps (batch, rows, columns, dim) -> the same. There are ceil(rows / s) ceil(columns / s) windows.

    Reads as: couplings[b, h, r, s] is the share of cell s in the output of head h for cell r, both numbered row by row
        over the whole map, added over the windows that hold both. Shares of cells outside the map are missing.

    Reference: arXiv:2106.13112, eq. 3 to 5.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        *,
        kernel: int = 3,
        padding: int = 1,
        stride: int = 2,
        attn_drop: float = 0.0,
        proj_drop: float = 0.0,
    ) -> None:
        super().__init__()
        check_positive(kernel=kernel, stride=stride)
        check_probability(attn_drop=attn_drop, proj_drop=proj_drop)
        check_heads(dim, num_heads)
        if not 0 <= padding < kernel:
            raise UsageError(f"padding is {padding}; it must be at least 0 and below kernel, {kernel}.")
        self.num_heads, self.kernel, self.padding, self.stride = num_heads, kernel, padding, stride
        self.value = nn.Linear(dim, dim, bias=False)
        self.weights = nn.Linear(dim, num_heads * kernel**4)
        self.coupling = Coupling("senders", dropout=attn_drop)
        self.proj = nn.Linear(dim, dim)
        self.proj_drop = nn.Dropout(proj_drop)

    def _scores(self, maps: Tensor) -> Tensor:
        """Scores (batch * windows, heads, K^2, K^2), for each window from the mean of the cells of its stride."""
        maps = self._means(maps)
        scale = (self.value.out_features // self.num_heads) ** -0.5
        if must_be_called(self.weights):
            scores = self.weights(maps) * scale
        else:
            scores = F.linear(maps, self.weights.weight * scale, self.weights.bias * scale)
        return scores.reshape(-1, self.num_heads, self.kernel**2, self.kernel**2)

    def _means(self, maps: Tensor) -> Tensor:
        """The mean over the cells of each stride that are inside the map."""
        stride = self.stride
        if stride == 1:
            return maps
        (rows, columns), device = maps.shape[1:3], maps.device
        down, across = -rows % stride, -columns % stride
        if down or across:
            maps = F.pad(maps, (0, 0, 0, across, 0, down))
        means = F.avg_pool2d(maps.permute(0, 3, 1, 2), stride).permute(0, 2, 3, 1)
        # The last row and column of means hold zeros of the padding.
        for axis, missing in ((1, down), (2, across)):
            if missing:
                last = torch.arange(means.shape[axis], device=device) == means.shape[axis] - 1
                gains = torch.where(last, stride / (stride - missing), 1.0).to(means.dtype)
                means = means * gains.view(-1, *[1] * (3 - axis))
        return means

    def _extent(self, side: int) -> int:
        """Cells from the first of the first window to the last of the last one or of the map."""
        windows = -(-side // self.stride)
        return max(side + self.padding, self.stride * (windows - 1) + self.kernel)

    def _tiles(self, rows: int, columns: int) -> Tiles:
        """The windows of an image row by row: the cells of a window send to each other; those outside are padding."""
        below, right = (self._extent(side) - side - 2 * self.padding for side in (rows, columns))
        kernel, stride, padding = ((size, size) for size in (self.kernel, self.stride, self.padding))
        cells = Windows(rows, columns, kernel, stride, padding, (below, right)).cells()
        return Tiles(cells, cells, rows * columns, rows * columns)

    def _gather(self, values: Tensor) -> Tensor:
        """Values of the cells of each window: (batch, rows, columns, dim) -> (batch * windows, heads, K^2, size)."""
        rows, columns = values.shape[1:3]
        first = self.padding
        down, across = self._extent(rows) - rows - first, self._extent(columns) - columns - first
        padded = F.pad(values, (0, 0, first, across, first, down))
        windows = padded.unfold(1, self.kernel, self.stride).unfold(2, self.kernel, self.stride)
        windows = windows.unflatten(3, (self.num_heads, -1)).permute(0, 1, 2, 3, 5, 6, 4)
        return windows.reshape(-1, self.num_heads, self.kernel**2, windows.shape[-1])

    def _fold(self, sums: Tensor, rows: int, columns: int) -> Tensor:
        """Add the windows' outputs to their cells: the adjoint of `_gather`."""
        kernel, stride, first = self.kernel, self.stride, self.padding
        h, w = -(-rows // stride), -(-columns // stride)
        parts = sums.view(-1, h, w, self.num_heads, kernel, kernel, sums.shape[-1])
        if torch.is_grad_enabled() or torch.compiler.is_compiling():
            whole = _overlap(_overlap(parts, 1, 4, stride, self._extent(rows)), 2, 4, stride, self._extent(columns))
        else:
            shape = (parts.shape[0], self._extent(rows), self._extent(columns), self.num_heads, parts.shape[-1])
            whole = parts.new_zeros(shape)
            for i in range(kernel):
                for j in range(kernel):
                    reached = whole[:, i : i + stride * h : stride, j : j + stride * w : stride]
                    reached += parts[..., i, j, :]
        return whole[:, first : first + rows, first : first + columns].flatten(3)

    def forward(self, maps: Tensor) -> Tensor:
        rows, columns = maps.shape[1:3]
        tiles = self._tiles(rows, columns) if self.coupling.watched else None
        couplings = self.coupling(self._scores(maps), tiles=tiles)
        sums = SameVotes(self._gather(self.value(maps))).combine(couplings)
        return self.proj_drop(self.proj(self._fold(sums, rows, columns)))

    def extra_repr(self) -> str:
        return (
            f"{self.proj.in_features}, num_heads={self.num_heads}, kernel={self.kernel}, padding={self.padding},"
            f" stride={self.stride}"
        )


def _overlap(parts: Tensor, windows: int, places: int, stride: int, extent: int) -> Tensor:
    """Add overlapping windows of one axis, without changing a tensor in place.

    Cell s q + r is place r + s t of window q - t, for every t.

    Args:
        windows, places: the axes that count windows, and the cells of a window, which goes away.

    Shapes: (..., windows, ..., kernel, ...) -> (..., extent, ...).
    """
    count, kernel = parts.shape[windows], parts.shape[places]
    reach = (kernel - 1) // stride
    rests = []
    for rest in range(stride):
        total = None
        for late, place in enumerate(range(rest, kernel, stride)):
            part = parts.select(places, place)
            padding = [0, 0] * (part.dim() - 1 - windows) + [late, reach - late]
            part = F.pad(part, padding)
            total = part if total is None else total + part
        if total is None:
            shape = [size for axis, size in enumerate(parts.shape) if axis != places]
            shape[windows] = count + reach
            total = parts.new_zeros(shape)
        rests.append(total)
    whole = torch.stack(rests, windows + 1).flatten(windows, windows + 1)
    missing = extent - whole.shape[windows]
    if missing > 0:
        return F.pad(whole, [0, 0] * (whole.dim() - 1 - windows) + [0, missing])
    return whole.narrow(windows, 0, extent)
