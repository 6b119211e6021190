"""Multi-head attention among the cells of windows, with a bias for their relative positions: what block and grid
attention share.

Source: Tu et al. 2022, arXiv:2204.01697, section 3.1 and eq. 1.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from mereo.core import Coupling
from mereo.core.kernels.attention import attend
from mereo.core.relative_positions import RelativePositions, Window
from mereo.core.topology import Blocks, Spread, Topology
from mereo.errors import UsageError, check_positive


class RelativeAttention(nn.Module):
    """Let each cell of a window attend to all cells of the window.

    q, k, v = A x,   out = B softmax(q k^T / sqrt(head_dim) + b) v,   b of the offset between sender and receiver

    Args:
        dim: channels.
        window: rows P and columns Q of a window.
        head_dim: channels of a head.
        out_dim: channels of the output; dim by default. Heads are made of it if it is larger than dim.
        positions: makes b from the number of heads and the window; None for the learned table.
        attn_drop, proj_drop: dropout of couplings and of the output.

    Shapes: maps (batch, rows, columns, dim) -> (batch, rows, columns, out_dim), with rows a multiple of P and columns
        one of Q.
    """

    topology: type[Blocks] | type[Spread]

    def __init__(
        self,
        dim: int,
        window: Window,
        head_dim: int = 32,
        *,
        out_dim: int | None = None,
        positions: Callable[[int, Window], nn.Module] | None = None,
        attn_drop: float = 0.0,
        proj_drop: float = 0.0,
    ) -> None:
        super().__init__()
        if not isinstance(window, Sequence) or len(window) != 2:
            raise UsageError(f"window is {window!r}; it must be (rows, columns).")
        out_dim = dim if out_dim is None else out_dim
        inner = max(dim, out_dim)
        check_positive(dim=dim, head_dim=head_dim, out_dim=out_dim, window=min(window))
        if inner % head_dim:
            raise UsageError(f"dim is {inner} and head_dim {head_dim}; dim must be a multiple of head_dim.")
        self.heads, self.window = inner // head_dim, (window[0], window[1])
        self.qkv = nn.Linear(dim, 3 * inner)
        self.positions = (positions or RelativePositions)(self.heads, self.window)
        self.coupling = Coupling("senders", dropout=attn_drop)
        self.proj = nn.Linear(inner, out_dim)
        self.proj_drop = nn.Dropout(proj_drop)

    def attend_inside(self, cells: Tensor, topology: Topology | None = None) -> Tensor:
        """The attention inside windows that are cut already: (windows, P * Q, dim) -> (windows, P * Q, out_dim)."""
        heads = self.qkv(cells).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        mixed = attend(heads[0], heads[1], heads[2], self.coupling, bias=self.positions(), tiles=topology)
        if torch.compiler.is_exporting():
            # Which strides fused attention returns is not known to the program that is exported.
            mixed = mixed.clone(memory_format=torch.contiguous_format)
        out: Tensor = self.proj_drop(self.proj(mixed.transpose(1, 2).flatten(2)))
        return out

    def forward(self, maps: Tensor) -> Tensor:
        rows, columns = maps.shape[1:3]
        if rows % self.window[0] or columns % self.window[1]:
            raise UsageError(
                f"maps are {tuple(maps.shape)}; they must be (batch, rows, columns, channels) with rows a multiple of"
                f" {self.window[0]} and columns one of {self.window[1]}."
            )
        topology = self.topology((rows, columns), self.window)
        return topology.join(self.attend_inside(topology.cut(maps), topology))

    def windows(self, cells: Tensor, rows: int, columns: int) -> Tensor:
        """The attention of an image that is cut already.

        Shapes: cells (batch, windows, P * Q, dim) -> (batch, windows, P * Q, out_dim).
        """
        out = self.attend_inside(cells.flatten(0, 1), self.topology((rows, columns), self.window))
        return out.unflatten(0, (-1, cells.shape[1]))

    def resize(self, window: Window) -> None:
        """Take windows of another size: the table of positions is interpolated."""
        self.window = (window[0], window[1])
        self.positions.resize(self.window)  # type: ignore[operator]

    def extra_repr(self) -> str:
        return f"window={self.window}"
