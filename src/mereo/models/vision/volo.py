"""VOLO: outlook attention on fine maps, self-attention on coarse ones, and a class token that attends to the result.

Source: Yuan, Hou, Jiang, Feng, Yan 2021, arXiv:2106.13112, and the authors' code.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn

from mereo.core.initialise import start_linears
from mereo.core.shapes import conv_out, image_size
from mereo.core.squash import bounded
from mereo.errors import UsageError, check_positive
from mereo.layers import ConvNorm, FeedForward, SelfAttention, StochasticDepth, linear_rates, resize_positions
from mereo.mechanisms.attention.dense import ClassAttention
from mereo.mechanisms.attention.local.outlook import OutlookAttention
from mereo.models.base import VisionModel, grid_of_cells
from mereo.models.layout import Pair, register_layout
from mereo.models.registry import IMAGENET, register_model
from mereo.models.token_labels import Box, TokenLabels, choose_box, exchanged


class Block(nn.Module):
    """x <- x + attention(norm(x));   x <- x + feed_forward(norm(x)).

    Shapes: (batch, rows, columns, dim) -> the same.
    """

    def __init__(self, dim: int, attention: nn.Module, mlp_ratio: float, drop_path: float = 0.0) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(dim)
        self.attention = attention
        self.norm2 = nn.LayerNorm(dim)
        self.feed_forward = FeedForward(dim, int(dim * mlp_ratio))
        self.drop_path = StochasticDepth(drop_path)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.drop_path(self.attention(self.norm1(x)))
        return x + self.drop_path(self.feed_forward(self.norm2(x)))


class ClassBlock(Block):
    """A `Block` that changes the class token and leaves the others.

    Shapes: class token (batch, 1, dim), tokens (batch, tokens, dim) -> (batch, 1, dim).
    """

    def forward(self, token: Tensor, tokens: Tensor) -> Tensor:  # type: ignore[override]
        token = token + self.attention(self.norm1(torch.cat((token, tokens), 1)))
        return token + self.feed_forward(self.norm2(token))


class Stage(nn.Module):
    """Halves the map and adds positions if it is the first of its width, then blocks.

    Shapes: (batch, inputs, rows, columns) -> (batch, dim, rows, columns).
    """

    def __init__(
        self, blocks: list[Block], downsample: nn.Module | None = None, grid: tuple[int, int] = (0, 0)
    ) -> None:
        super().__init__()
        self.downsample, self.grid, self.positions = downsample, grid, None
        if isinstance(downsample, nn.Conv2d):
            self.positions = nn.Parameter(torch.zeros(1, *grid, downsample.out_channels))
            nn.init.trunc_normal_(self.positions, std=0.02)
        self.blocks = nn.ModuleList(blocks)

    def forward(self, maps: Tensor) -> Tensor:
        if self.downsample is not None:
            maps = self.downsample(maps)
        cells = maps.permute(0, 2, 3, 1)
        if self.positions is not None:
            table, grid = self.positions, (cells.shape[1], cells.shape[2])
            if grid != self.grid:
                table = resize_positions(table.flatten(1, 2), self.grid, grid).unflatten(1, grid)
            cells = cells + table
        for block in self.blocks:
            cells = block(cells)
        return cells.permute(0, 3, 1, 2)


class Stem(nn.Module):
    """Three convolutions with batch normalisation, then one of patches.

    Shapes: (batch, in_chans, height, width) -> (batch, dim, height / patch, width / patch), rounded down.
    """

    def __init__(self, in_chans: int, width: int, dim: int, patch: int) -> None:
        super().__init__()
        relu, stride = partial(nn.ReLU, inplace=True), min(2, patch)
        self.convs = nn.Sequential(
            ConvNorm(in_chans, width, 7, stride, activation=relu),
            ConvNorm(width, width, 3, activation=relu),
            ConvNorm(width, width, 3, activation=relu),
        )
        self.proj = nn.Conv2d(width, dim, patch // stride, patch // stride)

    def forward(self, images: Tensor) -> Tensor:
        return bounded(self.proj(self.convs(bounded(images))))


class VOLO(VisionModel):
    """Classify by outlook attention at 1/8 of the resolution, self-attention at 1/16, and class attention.

    logits = head(class token) + 0.5 * max over tokens of aux_head(token)

    Args:
        num_classes, in_chans: of the task.
        img_size: of the table of positions, which is interpolated for images of another size.
        layers: blocks of the four stages, outlookers first; a stage may be empty.
        widths: channels of the first stage and of the others.
        num_heads: of the first stage and of the others.
        mlp_ratio: hidden size of the feed-forward networks as a multiple of the width.
        stem_width: channels of the first convolutions.
        patch_size: pixels of a cell of the first stage: 8, or 1, 2 or 4 for small images.
        aux: whether there is a classifier of tokens; without it the class token alone gives the logits.
        drop_path_rate: of stochastic depth in the last block. It rises linearly from the first outlooker on, but
            outlookers themselves are never left out.

    Reference: arXiv:2106.13112, sections 3 and 4.
    """

    first_conv = "stem.convs.0.0"
    classifier_parts = ("head", "aux_head")
    fixed_input_size = False
    partial_cells = False
    aux_head: nn.Linear | None

    def __init__(
        self,
        num_classes: int = 1000,
        in_chans: int = 3,
        img_size: int | tuple[int, int] = 224,
        *,
        layers: tuple[int, int, int, int] = (4, 4, 8, 2),
        widths: tuple[int, int] = (192, 384),
        num_heads: tuple[int, int] = (6, 12),
        mlp_ratio: float = 3.0,
        stem_width: int = 64,
        patch_size: int = 8,
        aux: bool = True,
        drop_path_rate: float = 0.0,
    ) -> None:
        super().__init__()
        check_positive(mlp_ratio=mlp_ratio, stem_width=stem_width, widths=min(widths), num_heads=min(num_heads))
        if min(layers) < 0 or sum(layers) == 0:
            raise UsageError(f"layers are {layers}; they must be at least 0, and one of them above.")
        if patch_size not in (1, 2, 4, 8, 16):
            raise UsageError(f"patch_size is {patch_size}; it must be 1, 2, 4, 8 or 16.")
        if any(width % heads for width, heads in zip(widths, num_heads, strict=True)):
            raise UsageError(f"widths are {widths} and num_heads {num_heads}; a width must be a multiple of its heads.")
        self.image_shape, self.num_features, self.aux = (in_chans, *image_size(img_size)), widths[1], aux
        stride = min(2, patch_size)
        fine = [conv_out(side, 7, stride, 3) // (patch_size // stride) for side in self.image_shape[1:]]
        grid = (fine[0] // 2, fine[1] // 2)
        if min(grid) < 1:
            raise UsageError(f"img_size is {img_size}; it must be at least {2 * patch_size} pixels on each side.")
        self.stem = Stem(in_chans, stem_width, widths[0], patch_size)
        rates, stages = iter(linear_rates(drop_path_rate, sum(layers))), []
        for i, depth in enumerate(layers):
            own = [next(rates) for _ in range(depth)]
            if i == 0:
                blocks = [Block(widths[0], OutlookAttention(widths[0], num_heads[0]), mlp_ratio) for _ in own]
            else:
                blocks = [
                    Block(widths[1], SelfAttention(widths[1], num_heads[1], qkv_bias=False), mlp_ratio, rate)
                    for rate in own
                ]
            stages.append(Stage(blocks, nn.Conv2d(*widths, 2, 2), grid) if i == 1 else Stage(blocks))
        self.stages = nn.ModuleList(stages)
        self.class_token = nn.Parameter(torch.zeros(1, 1, widths[1]))
        nn.init.trunc_normal_(self.class_token, std=0.02)
        self.class_blocks = nn.ModuleList(
            ClassBlock(widths[1], ClassAttention(widths[1], num_heads[1], qkv_bias=False), mlp_ratio) for _ in range(2)
        )
        self.norm = nn.LayerNorm(widths[1])
        self.feature_info = [
            {"num_chs": widths[min(i, 1)], "reduction": patch_size * (2 if i else 1), "module": f"stages.{i}"}
            for i in range(4)
        ]
        start_linears(self)
        self.reset_classifier(num_classes)

    def place_couplings(self, height: int, width: int) -> None:
        super().place_couplings(height, width)
        cells = grid_of_cells(height, width, int(self.feature_info[-1]["reduction"]), prefix=1, partial=False)
        for module in self.class_blocks.modules():
            if isinstance(module, ClassAttention):
                module.coupling.senders = cells

    def no_weight_decay(self) -> set[str]:
        return {"stages.1.positions", "class_token"}

    def neck(self, maps: list[Tensor]) -> Tensor:
        """The class token and all others, normalised: (batch, 1 + tokens, dim)."""
        tokens = maps[-1].flatten(2).transpose(1, 2)
        token = self.class_token.expand(tokens.shape[0], -1, -1)
        for block in self.class_blocks:
            token = block(token, tokens)
        return self.norm(torch.cat((token, tokens), 1))

    def pool(self, features: Tensor) -> Tensor:
        return features[:, 0]

    def classify(self, features: Tensor) -> Tensor:
        logits: Tensor = self.head(features[:, 0])
        return logits if self.aux_head is None else logits + 0.5 * self.aux_head(features[:, 1:]).amax(1)

    def as_map(self, tensor: Tensor, norm: bool) -> Tensor:
        if not norm or tensor.shape[1] != self.num_features:
            return tensor
        normed: Tensor = self.norm(tensor.permute(0, 2, 3, 1))
        return normed.permute(0, 3, 1, 2)

    def make_classifier(self) -> nn.Module:
        return start_linears(nn.Linear(self.num_features, self.num_classes))

    def _renew_classifier(self) -> None:
        super()._renew_classifier()
        self.aux_head = cast(nn.Linear, self.make_classifier()) if self.aux and self.num_classes else None

    def token_labels(self, images: Tensor, box: Box | None = None) -> TokenLabels:
        """Logits for token labelling: the token maps of image pairs are mixed in a box, and token logits are unmixed.

        In training, the embeddings in the box come from the image at the mirrored place of the batch, before the
        first stage; token logits in the box go back to the image that they are of. In eval nothing is mixed.

        Args:
            box: of tokens of the last stages; drawn by default, with an area uniform between 0 and the map's.

        Shapes: images (batch, channels, height, width) -> classes (batch, classes), without the maximum over tokens,
            and tokens (batch, tokens, classes).

        Reference: arXiv:2104.10858, section 3.2 (MixToken).
        """
        if self.aux_head is None:
            raise UsageError("the network has no classifier of tokens; create it with aux=True and classes.")
        self.check_images(images)
        maps = self.stem(images)
        rows, columns = maps.shape[2] // 2, maps.shape[3] // 2
        box = choose_box(box, rows, columns, self.training)
        current = exchanged(maps, box, 2)
        for module in self.stages:
            current = module(current)
        features = self.neck([current])
        tokens = self.aux_head(features[:, 1:]).mT.unflatten(2, (rows, columns))
        tokens = exchanged(tokens, box).flatten(2).mT
        return TokenLabels(self.head(features[:, 0]), tokens, box)


_SMALL: dict[str, Any] = {"widths": (256, 512), "num_heads": (8, 16)}
_LARGE: dict[str, Any] = {"widths": (384, 768), "num_heads": (12, 16)}
_SIZES: dict[str, dict[str, Any]] = {
    "d1": {},
    "d2": {"layers": (6, 4, 10, 4), **_SMALL},
    "d3": {"layers": (8, 8, 16, 4), **_SMALL},
    "d4": {"layers": (8, 8, 16, 4), **_LARGE},
    "d5": {"layers": (12, 12, 20, 4), **_LARGE, "mlp_ratio": 4.0, "stem_width": 128},
}
_PRESETS: tuple[tuple[str, int, int, float], ...] = (
    ("d1", 224, 26_632_040, 0.96),
    ("d1", 384, 26_777_960, 1.0),
    ("d2", 224, 58_678_336, 0.96),
    ("d2", 384, 58_872_896, 1.0),
    ("d3", 224, 86_325_072, 0.96),
    ("d3", 448, 86_626_128, 1.0),
    ("d4", 224, 192_961_520, 0.96),
    ("d4", 448, 193_413_104, 1.15),
    ("d5", 224, 295_455_584, 0.96),
    ("d5", 448, 295_907_168, 1.15),
    ("d5", 512, 296_091_488, 1.15),
)
_TINY: dict[str, Any] = {
    "img_size": 32, "layers": (1, 1, 1, 1), "widths": (8, 12), "num_heads": (2, 3), "stem_width": 6,
}  # fmt: skip

for _size, _side, _parameters, _crop in _PRESETS:
    _first = (_size, _side) == ("d1", 224)
    register_model(
        f"volo_{_size}_{_side}", VOLO, f"VOLO-{_size.upper()} at {_side} pixels.",
        source="arXiv:2106.13112", parameters=_parameters, recipe="volo",
        crop_pct=_crop, **IMAGENET,
        tiny=_TINY if _first else None, variants={"without aux": {"aux": False}} if _first else None,
        aliases=(f"volo_{_size}",) if _side == 224 else (), img_size=_side, **_SIZES[_size],
    )  # fmt: skip


def _block_pairs(ours: str, theirs: str, attention: tuple[Pair, ...]) -> Iterator[Pair]:
    for pair in attention:
        yield replace(pair, ours=f"{ours}.attention.{pair.ours}", theirs=f"{theirs}.attn.{pair.theirs}")
    yield Pair(f"{ours}.feed_forward.first", f"{theirs}.mlp.fc1")
    yield Pair(f"{ours}.feed_forward.second", f"{theirs}.mlp.fc2")
    yield Pair(ours, theirs)


_OUTLOOK = (Pair("value", "v"), Pair("weights", "attn"), Pair("proj", "proj"))
_SELF = (Pair("qkv", "qkv"), Pair("proj", "proj"))
_CLASS = (Pair("query", "q"), Pair("key", "kv", part=(0, 2)), Pair("value", "kv", part=(1, 2)), Pair("proj", "proj"))


def _pairs(model: VOLO) -> Iterator[Pair]:
    """The names of timm, which the authors use too."""
    for name in ("norm", "head", "aux_head"):
        yield Pair(name, name)
    yield Pair("class_token", "cls_token")
    yield Pair("stem.proj", "patch_embed.proj")
    for i in range(3):
        yield Pair(f"stem.convs.{i}.0", f"patch_embed.conv.{3 * i}")
        yield Pair(f"stem.convs.{i}.1", f"patch_embed.conv.{3 * i + 1}")
    yield Pair("stages.1.positions", "pos_embed")
    yield Pair("stages.1.downsample", "network.1.proj")
    for i, stage in enumerate(cast(Iterable[Stage], model.stages)):
        for j in range(len(stage.blocks)):
            theirs = f"network.{i + 1 if i else 0}.{j}"
            yield from _block_pairs(f"stages.{i}.blocks.{j}", theirs, _SELF if i else _OUTLOOK)
    for j in range(len(model.class_blocks)):
        yield from _block_pairs(f"class_blocks.{j}", f"post_network.{j}", _CLASS)


def _arguments(source: Any) -> dict[str, Any]:
    """Ours, from a live network of timm."""
    network = list(source.network)
    first, last = network[0][0], source.post_network[0]
    layers = tuple(len(network[i]) for i in (0, 2, 3, 4))
    patch = 2 * source.patch_embed.proj.kernel_size[0]
    late = [block.drop_path1 for stage in network[2:] for block in stage]
    rate = float(getattr(late[-1], "drop_prob", None) or 0.0) if late else 0.0
    return {
        "num_classes": source.num_classes,
        "in_chans": source.patch_embed.conv[0].in_channels,
        "img_size": tuple(2 * patch * side for side in source.pos_embed.shape[1:3]),
        "layers": layers,
        "widths": (network[1].proj.in_channels, network[1].proj.out_channels),
        "num_heads": (first.attn.num_heads, last.attn.num_heads),
        "mlp_ratio": first.mlp.fc1.out_features / first.mlp.fc1.in_features,
        "stem_width": source.patch_embed.conv[0].out_channels,
        "patch_size": patch,
        "aux": bool(source.use_aux_head),
        "drop_path_rate": rate,
    }


register_layout("timm", VOLO, _pairs, classes=("VOLO",), arguments=_arguments)
register_layout("official", VOLO, _pairs)
