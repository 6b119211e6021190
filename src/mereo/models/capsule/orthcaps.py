"""OrthCaps: redundant capsules are pruned, and the others routed in one pass by sparse orthogonal attention.

Source: Geng, Wang, Gong, Xue, Xu, Chen, Huang 2024, arXiv:2403.13351.
Cost at 32x32: 0.06 G multiply-adds an image for the shallow network, nearly all in the stem.
"""

from collections.abc import Iterable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mereo.core import lengths, squash
from mereo.core.shapes import conv_out, image_size
from mereo.core.topology import Windows
from mereo.errors import UsageError, check_choice, check_positive, check_probability
from mereo.mechanisms.routing import OrthAttention
from mereo.mechanisms.routing.orth_attention import MODES, NORMALISERS
from mereo.mechanisms.select import CapsulePruning
from mereo.models.capsule_classifier import CapsuleClassifier
from mereo.models.registry import register_model

STEM = ((5, 32, 1), (3, 64, 1), (3, 64, 1), (3, 64, 2))
"""Kernel, channels and stride of the convolutions before the capsules."""
ACTIVATIONS = ("squash", "relu_batch", "relu_layer")
SHORTCUTS = ("repeat", "mix")
DEEP = ((16, 2, 3), (16, 1, 3), (32, 2, 3), (32, 1, 3), (64, 2, 3), (64, 1, 3), (64, 1, 3))
SHORTEST = 1e-5
"""Least length: a shorter capsule is divided by this in place of its length."""


class CapsuleActivation(nn.Module):
    """The nonlinearity of a layer's sums: squash, or ReLU(norm(|s|)) s / |s|.

    The norm has no parameters. It is over batch, rows and columns of each type ("relu_batch") or over types, rows and
    columns of each image ("relu_layer").

    Args:
        types: kinds of capsules.
        name: one of `ACTIVATIONS`.

    Shapes: (batch, types, dim, rows, columns) -> the same.
    """

    def __init__(self, types: int, name: str) -> None:
        super().__init__()
        self.name = name
        self.norm = nn.BatchNorm2d(types, affine=False) if name == "relu_batch" else None

    def forward(self, sums: Tensor) -> Tensor:
        if self.name == "squash":
            return squash(sums, 2)
        length = lengths(sums, 2)
        normed = F.layer_norm(length, length.shape[1:]) if self.norm is None else self.norm(length)
        return sums * (normed.relu() / length.clamp(min=SHORTEST)).unsqueeze(2)


class OrthConvCaps(nn.Module):
    """Votes by a separable convolution that all types share, orthogonal attention over the types, an activation.

    vote_ji = LeakyReLU(pointwise(depthwise(u_i)))_j at every position;   v_j = activation(attention over i)

    Args:
        in_types, out_types: kinds of children and parents.
        dim: numbers in a pose.
        stride: of the depthwise convolution of 3x3.
        mode, normaliser: of the attention, see `OrthAttention`.
        activation: one of `ACTIVATIONS`.

    Shapes: maps (batch, in_types * dim, rows, columns), kept bool (batch, in_types, rows, columns) -> (batch, out_types
        * dim, ceil(rows / stride), ceil(columns / stride)). A child with nothing kept under the convolution has
        no share.
    """

    def __init__(
        self, in_types: int, out_types: int, dim: int, stride: int, mode: str, normaliser: str, activation: str
    ) -> None:
        super().__init__()
        self.types, self.dim, self.stride = (in_types, out_types), dim, stride
        self.depthwise = nn.Conv2d(dim, dim, 3, stride, 1, groups=dim)
        self.pointwise = nn.Conv2d(dim, out_types * dim, 1)
        self.attention = OrthAttention(in_types, out_types, dim, mode, normaliser=normaliser)
        self.activation = CapsuleActivation(out_types, activation)

    def forward(self, maps: Tensor, kept: Tensor | None = None) -> Tensor:
        (in_types, out_types), dim = self.types, self.dim
        folded = maps.unflatten(1, (in_types, dim)).flatten(0, 1)
        votes = F.leaky_relu(self.pointwise(self.depthwise(folded)), 0.01)
        rows, columns = votes.shape[2:]
        votes = votes.unflatten(1, (out_types, dim)).unflatten(0, (-1, in_types))
        votes = votes.permute(0, 4, 5, 2, 1, 3).flatten(0, 2)  # (batch * positions, parents, children, dim)
        mask = None
        if kept is not None:
            under = F.max_pool2d(kept.to(votes.dtype), 3, self.stride, 1) > 0
            mask = under.permute(0, 2, 3, 1).flatten(0, 2)
        tiles = None
        if self.attention.coupling.observers:
            tiles = Windows(rows, columns, (1, 1)).of_types(in_types, out_types)
        sums = self.attention(votes, mask, tiles=tiles)
        sums = sums.unflatten(0, (-1, rows, columns)).permute(0, 3, 4, 1, 2)
        capsules: Tensor = self.activation(sums)
        return capsules.flatten(1, 2)


class Shortcut(nn.Module):
    """The maps of a block's input in the shape of its output: a strided mean, and its types repeated or mixed.

    Args:
        in_types, out_types: kinds of capsules.
        dim: numbers in a pose.
        stride: of the block.
        kind: "repeat" has no parameters; "mix" has a factor for each pair of types where their numbers or the stride
            differ, and starts as "repeat".

    Shapes: (batch, in_types * dim, rows, columns) -> (batch, out_types * dim, ceil(rows / stride), ceil(columns /
        stride)).
    """

    def __init__(self, in_types: int, out_types: int, dim: int, stride: int, kind: str) -> None:
        super().__init__()
        self.stride, self.dim = stride, dim
        self.order = [number % in_types for number in range(out_types)]
        self.weight: nn.Parameter | None = None
        if kind == "mix" and (stride > 1 or in_types != out_types):
            self.weight = nn.Parameter(torch.eye(in_types).repeat(-(-out_types // in_types), 1)[:out_types].clone())

    def forward(self, maps: Tensor) -> Tensor:
        if self.stride > 1:
            maps = F.avg_pool2d(maps, self.stride, ceil_mode=True)
        types = maps.unflatten(1, (-1, self.dim))
        if self.weight is not None:
            return torch.einsum("ji,bidhw->bjdhw", self.weight, types).flatten(1, 2)
        return maps if self.order == list(range(types.shape[1])) else types[:, self.order].flatten(1, 2)


class Block(nn.Module):
    """Layers of capsules one after the other, and a shortcut around them.

    Args:
        in_types: kinds of capsules below.
        types, stride, depth: kinds of capsules, stride of the first layer, number of layers.
        dim, mode, normaliser, activation: of every layer, see `OrthConvCaps`.
        shortcut: see `Shortcut`.

    Shapes: maps and kept as for `OrthConvCaps` -> (batch, types * dim, ceil(rows / stride), ceil(columns / stride)).
    """

    def __init__(
        self,
        in_types: int,
        types: int,
        stride: int,
        depth: int,
        dim: int,
        *,
        mode: str,
        normaliser: str,
        activation: str,
        shortcut: str,
    ) -> None:
        super().__init__()
        sizes = [(in_types, stride), *[(types, 1)] * (depth - 1)]
        self.layers = nn.ModuleList(
            OrthConvCaps(below, types, dim, step, mode, normaliser, activation) for below, step in sizes
        )
        self.shortcut = Shortcut(in_types, types, dim, stride, shortcut)

    def forward(self, maps: Tensor, kept: Tensor | None = None) -> Tensor:
        out = maps
        for layer in self.layers:
            out, kept = layer(out, kept), None
        return out + self.shortcut(maps)


class FlatClassCaps(nn.Module):
    """One capsule for each type of a map, and simplified orthogonal attention of the classes over the types.

    Two depthwise convolutions of 3x3 (the first with stride 2) for maps of 7x7 and 8x8, one over the whole map for
    others, leave one cell; a linear layer makes the votes of a type for all classes.

    Args:
        types, dim: kinds of capsules, and numbers in a pose.
        grid: rows and columns of the map.
        classes: how many.
        normaliser: of the attention.
        dropout: of the entries of the maps.

    Shapes: maps (batch, types * dim, rows, columns), kept bool (batch, types, rows, columns) -> (batch, classes, dim).
    """

    def __init__(
        self, types: int, dim: int, grid: tuple[int, int], classes: int, normaliser: str, dropout: float
    ) -> None:
        super().__init__()
        self.dim, self.classes = dim, classes
        self.dropout = nn.Dropout(dropout)
        kernels = [((3, 3), 2), ((3, 3), 1)] if set(grid) <= {7, 8} else [(grid, 1)]
        self.flat = nn.Sequential(*(nn.Conv2d(dim, dim, kernel, stride, groups=dim) for kernel, stride in kernels))
        self.pointwise = nn.Linear(dim, classes * dim)
        self.attention = OrthAttention(types, classes, dim, normaliser=normaliser)

    def forward(self, maps: Tensor, kept: Tensor | None = None) -> Tensor:
        folded = self.dropout(maps).unflatten(1, (-1, self.dim))
        types = folded.shape[1]
        votes = self.pointwise(self.flat(folded.flatten(0, 1)).flatten(1))
        votes = votes.unflatten(1, (self.classes, self.dim)).unflatten(0, (-1, types)).transpose(1, 2)
        mask = None if kept is None else kept.flatten(2).any(2)
        return squash(self.attention(votes, mask))


class OrthCaps(CapsuleClassifier):
    """Classify by pruned capsules with sparse orthogonal attention.

    image -> convolutions, BN, ReLU -> capsules -> pruning -> blocks -> one capsule a type -> class capsules

    Args:
        num_classes, in_chans, img_size: as in timm.
        types, dim: kinds of primary capsules, and numbers in every pose, also of the classes.
        blocks: (types, stride, depth) of each block of convolutional capsules.
        mode: of the attention in the blocks, "simplified" or "full", see `OrthAttention`.
        normaliser: "entmax15", "sparsemax" or "softmax".
        activation: of the blocks: "squash", or a ReLU of lengths that are normalised over the batch ("relu_batch") or
            over the image ("relu_layer").
        shortcut: around blocks: "repeat" without parameters, or "mix", see `Shortcut`.
        theta, greedy: of the pruning, see `CapsulePruning`.
        per_position: prune the capsules of each position among themselves; by default the whole map of a type is one
            capsule.
        drop_rate: of the map before the class capsules, in training.

    Shapes: images (batch, in_chans, height, width) -> lengths (batch, num_classes).

    Deviates: the presets with blocks follow a description of the paper, and their parameters are not those published
        (105.5K and 574K). Pruned types are also left out of the next attention. They are zero and not taken out: the
        layer that reads them has at most 1 % of the multiply-adds, which is all that gathering the others could save.

    Reference: arXiv:2403.13351.
    """

    first_conv = "stages.0.0"
    channels_last = False

    def __init__(
        self,
        num_classes: int = 10,
        in_chans: int = 1,
        img_size: int | tuple[int, int] = 32,
        *,
        types: int = 8,
        dim: int = 16,
        blocks: tuple[tuple[int, ...], ...] = (),
        mode: str = "simplified",
        normaliser: str = "entmax15",
        activation: str = "squash",
        shortcut: str = "repeat",
        theta: float = 0.7,
        greedy: bool = False,
        per_position: bool = False,
        drop_rate: float = 0.3,
    ) -> None:
        super().__init__()
        check_positive(types=types, dim=dim)
        check_choice("mode", mode, MODES)
        check_choice("normaliser", normaliser, NORMALISERS)
        check_choice("activation", activation, ACTIVATIONS)
        check_choice("shortcut", shortcut, SHORTCUTS)
        check_probability(drop_rate=drop_rate)
        _check_blocks(blocks)
        self.image_shape = (in_chans, *image_size(img_size))
        stem: list[nn.Module] = []
        channels = in_chans
        for kernel, width, stride in STEM:
            stem += [nn.Conv2d(channels, width, kernel, stride, kernel // 2), nn.BatchNorm2d(width), nn.ReLU()]
            channels = width
        primary = nn.Sequential(
            nn.Conv2d(channels, channels, 3, 2, 1, groups=channels),
            nn.LeakyReLU(0.01),
            nn.Conv2d(channels, types * dim, 1),
            nn.ReLU(),
        )
        self.stages = nn.ModuleList([nn.Sequential(*stem), primary])
        self.feature_info = [
            {"num_chs": channels, "reduction": 2, "module": "stages.0"},
            {"num_chs": types * dim, "reduction": 4, "module": "stages.1"},
        ]
        self.pruning = CapsulePruning(theta, greedy=greedy)
        self.types, self.dim, self.per_position = types, dim, per_position
        self.normaliser, self.drop_rate = normaliser, drop_rate
        below, reduction = types, 4
        for number, (width, stride, depth) in enumerate(blocks):
            options = {"mode": mode, "normaliser": normaliser, "activation": activation, "shortcut": shortcut}
            self.stages.append(Block(below, width, stride, depth, dim, **options))
            below, reduction = width, reduction * stride
            info = {"num_chs": width * dim, "reduction": reduction, "module": f"stages.{number + 2}"}
            self.feature_info.append(info)
        self.out_types = below
        self.grid = self._grid(stride for _, _, stride in (*STEM, (3, 0, 2), *((0, 0, row[1]) for row in blocks)))
        self.num_features = below * dim * self.grid[0] * self.grid[1]
        self.reset_classifier(num_classes)

    def _grid(self, strides: Iterable[int]) -> tuple[int, int]:
        rows, columns = self.image_shape[1:]
        for stride in strides:
            rows, columns = (conv_out(side, 3, stride, 1) for side in (rows, columns))
        return rows, columns

    def make_classifier(self) -> nn.Module:
        return FlatClassCaps(self.out_types, self.dim, self.grid, self.num_classes, self.normaliser, self.drop_rate)

    def prune(self, maps: Tensor) -> tuple[Tensor, Tensor]:
        """The primary capsules, zero where they are removed, and which were kept.

        Shapes: (batch, types * dim, rows, columns) -> the same, and bool (batch, types, rows, columns).
        """
        capsules = maps.unflatten(1, (self.types, self.dim))
        rows, columns = maps.shape[2:]
        if self.per_position:
            cells = capsules.permute(0, 3, 4, 1, 2).flatten(0, 2)
            pruned, kept = self.pruning.select(cells)
            pruned = pruned.unflatten(0, (-1, rows, columns)).permute(0, 3, 4, 1, 2)
            kept = kept.unflatten(0, (-1, rows, columns)).permute(0, 3, 1, 2)
        else:
            pruned, kept = self.pruning.select(capsules.flatten(2))
            pruned = pruned.unflatten(2, (self.dim, rows, columns))
            kept = kept[:, :, None, None].expand(-1, -1, rows, columns)
        return pruned.flatten(1, 2), kept

    def stage(self, index: int, inputs: Tensor) -> Tensor:
        return self.stages[index](*self.prune(inputs)) if index == 2 else self.stages[index](inputs)

    def route(self, features: Tensor) -> Tensor:
        return self.head(features) if len(self.stages) > 2 else self.head(*self.prune(features))


def _check_blocks(blocks: tuple[tuple[int, ...], ...]) -> None:
    """UsageError unless blocks are some (types, stride, depth)."""
    for row in blocks:
        numbers = isinstance(row, tuple | list) and len(row) == 3 and all(isinstance(n, int) for n in row)
        if not numbers or min(row) < 1 or row[1] > 2 or row[2] > 100:
            raise UsageError(
                f"blocks has {row!r}; give (types, stride, depth), with a stride of 1 or 2 and a depth of at most 100."
            )


_register = partial(register_model, module=OrthCaps, source="arXiv:2403.13351", recipe="orthcaps")

_register(
    "orthcaps_s",
    summary="The shallow OrthCaps for grey images, resized to 32x32: 107 thousand parameters.",
    parameters=107_088,
    tiny={"img_size": 16, "types": 4, "dim": 4, "blocks": ((6, 2, 2),), "theta": 0.9},
    variants={
        "full, mixed": {
            "blocks": ((6, 2, 1), (6, 1, 2)), "mode": "full", "activation": "relu_batch", "shortcut": "mix",
        },
        "no blocks": {"blocks": (), "img_size": (28, 31), "greedy": True, "theta": 0.2},
        "by position": {"per_position": True, "activation": "relu_layer", "normaliser": "sparsemax"},
    },
)  # fmt: skip
_register(
    "orthcaps_s_cifar",
    summary="The shallow OrthCaps for colour images of 32x32, with two layers of convolutional capsules.",
    parameters=125_632,
    in_chans=3,
    blocks=((16, 2, 2),),
)
_register(
    "orthcaps_d",
    summary="The deep OrthCaps for colour images of 32x32: seven blocks of three layers of convolutional capsules.",
    parameters=374_544,
    in_chans=3,
    blocks=DEEP,
    mode="full",
    activation="relu_batch",
    shortcut="mix",
)
