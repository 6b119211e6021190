"""Attention of a trained network made linear in the size of the image: every dense layer becomes CLEAR.

Source: arXiv:2412.16112, section 3; the network keeps its weights, and `mereo.distil` trains them further.
Cost: see `clear_attention`.
"""

from collections.abc import Sequence
from copy import deepcopy
from fnmatch import fnmatchcase

import torch
from torch import Tensor, nn

from mereo.core import Circle, Coupling, mechanism
from mereo.core.surgery import surgery
from mereo.errors import UsageError
from mereo.mechanisms.attention.dense import MultiHeadAttention
from mereo.mechanisms.attention.hosted import HostedAttention, attention_drop, attention_layers, check_host
from mereo.mechanisms.attention.local.clear import clear_attention, length_scale, mean_weight


class CircleHost(HostedAttention):
    """Self-attention of a network with its own projections and norms, whose tokens attend as in CLEAR.

    Args:
        host: the layer whose modules it takes over, under their names.
        circle: who attends to whom.
        scale: factor of the scores; 1 / sqrt(d) by default.

    Shapes: (batch, text + rows * columns, dim) -> the same.
    """

    def __init__(self, host: nn.Module, circle: Circle, scale: float | None = None) -> None:
        super().__init__(host)
        self.topology, self.scale, drop = circle, scale, attention_drop(host)
        self.coupling = Coupling("senders", dropout=drop)
        self.text_coupling = Coupling("senders", dropout=drop) if circle.text else None
        self.down_weight: nn.Parameter | None = None
        if circle.down_factor is not None:
            self.down_weight = nn.Parameter(mean_weight(circle.down_factor).to(next(host.parameters())))

    def exchange(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        circle = self.topology
        out = clear_attention(
            q, k, v, circle.grid, circle.radius, text_tokens=circle.text, down_weight=self.down_weight,
            scale=self.scale, coupling=self.coupling, text_coupling=self.text_coupling,
        )  # fmt: skip
        return out.transpose(1, 2).flatten(2)

    def extra_repr(self) -> str:
        return f"num_heads={self.num_heads}, {self.topology}"


def _grid_of(model: nn.Module, grid: tuple[int, int] | None) -> tuple[int, int]:
    if grid is None:
        grid = getattr(getattr(model, "patch_embed", None), "grid_size", None) or getattr(model, "grid", None)
    if grid is None:
        raise UsageError(f"grid is None, and {type(model).__name__} does not state its rows and columns; give them.")
    return (int(grid[0]), int(grid[1]))


class _Blocks(nn.Sequential):
    """Layers of attention over a class token and an image."""

    grid, num_prefix_tokens = (24, 2), 1


def _example() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return _Blocks(*(MultiHeadAttention(8, 2, qkv_bias=False) for _ in range(2))), (torch.randn(2, 49, 8),)


@mechanism(
    "linearise",
    family="technique",
    source="arXiv:2412.16112",
    steps=4,
    over="senders",
    largest_input=1e15,  # queries times keys must fit float32
    example=_example,
)
@surgery
def linearise(
    model: nn.Module,
    radius: float = 8,
    *,
    grid: tuple[int, int] | None = None,
    text_tokens: int | None = None,
    down_factor: int | None = None,
    layers: Sequence[str | int] = ("*",),
    trained_tokens: int | None = None,
    length_factor: float = 1.0,
) -> nn.Module:
    """A copy of a network whose image tokens attend to text and to a circle of image tokens, with the same weights.

    out_q = sum_k softmax_k(<q, k> / sqrt(d)) v_k   over text and the image tokens nearer than the radius

    Args:
        model: of mereo, timm, torchvision or transformers, with self-attention. It is not changed; the copy has the
            same weights under the same names, and learns with `mereo.distil(model, copy, data)`.
        radius: image tokens attend to image tokens nearer than this; one beyond the diagonal of the image changes
            nothing.
        grid: rows and columns of the image; by default `model.patch_embed.grid_size` or `model.grid`.
        text_tokens: tokens before the image, which attend to all and are attended to by all, such as text or a class
            token; by default `model.num_prefix_tokens`, or none.
        down_factor: side of the blocks, each of which adds a key; its weights (f, f) in each layer start at
            the mean and are learned.
        layers: numbers from 0, names or shell-style patterns of the attention layers to replace; all by default.
        trained_tokens, length_factor: for a scale of the scores that grows with the length, see `length_scale`.

    Shapes: as for `model`.

    Raises:
        UsageError: for a model without self-attention among `layers`, layers that compute something else, and blocks
            that do not divide the grid.

    Reference: arXiv:2412.16112; for the distillation trained there are the projections of the attention and the
        weights of the blocks, by the outputs of the networks and of their attention layers.
    """
    rows_columns = _grid_of(model, grid)
    text = int(getattr(model, "num_prefix_tokens", 0) if text_tokens is None else text_tokens)
    circle = Circle(rows_columns, radius, text, down_factor)
    hosts = [name for name in attention_layers(model) if name]
    matched = [
        {name for n, name in enumerate(hosts) if (fnmatchcase(name, each) if isinstance(each, str) else each == n)}
        for each in layers
    ]
    chosen = [name for name in hosts if any(name in names for names in matched)]
    if not chosen or not all(matched):
        there = f"it has {', '.join(hosts)}" if hosts else "give a network with layers of self-attention"
        raise UsageError(
            f"layers is {tuple(layers)!r}; each must match self-attention of {type(model).__name__}; {there}."
        )
    copy = deepcopy(model)
    for name in chosen:
        host = copy.get_submodule(name)
        check_host(name, host, dense=True)
        layer = CircleHost(host, circle)
        if trained_tokens is not None:
            layer.scale = length_scale(text + circle.image, trained_tokens, layer.head_dim, length_factor)
        copy.set_submodule(name, layer)
    return copy
