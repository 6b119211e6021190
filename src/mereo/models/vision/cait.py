"""CaiT: patches that attend to each other through many layers, and a class token that gathers them in the last two.

Source: Touvron, Cord, Sablayrolles, Synnaeve, Jegou, ICCV 2021, arXiv:2103.17239, and the authors' code.
"""

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mereo.core import Coupling, Grid
from mereo.core.initialise import start_linears
from mereo.core.modes import must_be_called
from mereo.core.shapes import image_size
from mereo.errors import UsageError, check_positive
from mereo.layers import FeedForward, Residual, resize_positions
from mereo.layers.residual import start_by_depth
from mereo.mechanisms.attention.dense import ClassAttention, TalkingHeadAttention
from mereo.models.base import VisionModel
from mereo.models.layout import Pair, register_layout
from mereo.models.registry import IMAGENET, register_model

EPS = 1e-6


class _Block(nn.Module):
    """Talking-heads attention among the patches, then a feed-forward: (batch, rows, columns, dim) -> the same."""

    def __init__(self, dim: int, heads: int, hidden: int, attn_drop: float, proj_drop: float, **residual: Any) -> None:
        super().__init__()
        attention = TalkingHeadAttention(dim, heads, attn_drop=attn_drop, proj_drop=proj_drop)
        self.attention = Residual(attention, dim, "proj", **residual)
        self.feed_forward = Residual(FeedForward(dim, hidden, proj_drop), dim, "second", **residual)

    def forward(self, maps: Tensor) -> Tensor:
        patches: Tensor = self.feed_forward(self.attention(maps.flatten(1, 2)))
        return patches.view_as(maps)


class _ClassBlock(nn.Module):
    """Class attention, then a feed-forward of the class token: (batch, 1, dim) and patches -> (batch, 1, dim)."""

    def __init__(self, dim: int, heads: int, hidden: int, **residual: Any) -> None:
        super().__init__()
        self.attention = Residual(ClassAttention(dim, heads), dim, "proj", **residual)
        self.feed_forward = Residual(FeedForward(dim, hidden), dim, "second", **residual)

    def forward(self, token: Tensor, patches: Tensor, normalised: bool) -> Tensor:
        """`normalised`: whether patches are normalised already, without the gain and the shift of this block's norm."""
        attention, norm = self.attention, self.attention.norm
        prepared = patches if normalised else attention.prepare(patches)
        scaled = (prepared, norm.weight, norm.bias) if normalised else (prepared,)
        update = attention.branch.gather(attention.prepare(token), *scaled)  # type: ignore[operator]
        return self.feed_forward(attention.add(token, update))


class CaiT(VisionModel):
    """Classify with deep attention among patches and a late class token.

    x <- x + g * THA(norm x),   x <- x + g' * FFN(norm x)            depth times, x the patches
    c <- c + g * CA(norm [c, x]),   c <- c + g' * FFN(norm c)        class_depth times, c the class token
    scores = head(norm c)

    THA is talking-heads attention, CA class attention; the gains g start close to zero (LayerScale).

    Args:
        num_classes, in_chans: as everywhere.
        img_size: size for which there is a position for each patch; for images of another size positions are
            interpolated. A border narrower than a patch is left out.
        patch_size: side of a patch in pixels.
        embed_dim: size of the tokens.
        depth, class_depth: layers of the patches, and of the class token.
        num_heads: of both attentions; divides `embed_dim`.
        mlp_ratio: hidden size of the feed-forwards, as a multiple of `embed_dim`.
        init_values: initial gains; smaller ones for deeper networks.
        residual: form of the residual branches, one of `mereo.layers.residual.FORMS`. Those without norms have none in
            the branches, and a norm before the classifier all the same.
        drop_path_rate: stochastic depth, the same rate in all layers of the patches, none for the class token.
        attn_drop, proj_drop: dropout of the couplings, and of the outputs of layers, of the patches.

    Shapes: images (batch, in_chans, height, width) -> (batch, num_classes); features (batch, 1 + patches, embed_dim),
        the class token first.

    Reads as: `class_blocks.I.attention.branch.coupling` (batch, heads, 1, 1 + patches) is what the class token takes
        from itself and from each patch; `blocks.I.attention.branch.coupling` (batch, heads, patches, patches) what
        patches take from each other, after heads are mixed.

    Deviates: the patches are normalised once for all class layers, whose own gains and shifts are applied to the query
        and to what it gathers. The published networks were trained by distillation, which is no part of the network.

    Reference: arXiv:2103.17239, sections 2 to 4.
    """

    first_conv = "patch_embed"
    fixed_input_size = False

    def __init__(
        self,
        num_classes: int = 1000,
        in_chans: int = 3,
        img_size: int | tuple[int, int] = 224,
        *,
        patch_size: int = 16,
        embed_dim: int = 192,
        depth: int = 24,
        num_heads: int = 4,
        mlp_ratio: float = 4.0,
        class_depth: int = 2,
        init_values: float = 1e-5,
        residual: str = "layer_scale",
        drop_path_rate: float = 0.0,
        attn_drop: float = 0.0,
        proj_drop: float = 0.0,
    ) -> None:
        super().__init__()
        check_positive(patch_size=patch_size, embed_dim=embed_dim, depth=depth, class_depth=class_depth)
        check_positive(num_heads=num_heads, mlp_ratio=mlp_ratio)
        self.image_shape, self.num_features = (in_chans, *image_size(img_size)), embed_dim
        if min(self.image_shape[1:]) < patch_size:
            raise UsageError(f"img_size is {img_size}; its sides must be at least patch_size, {patch_size}.")
        self.patch_size, hidden = patch_size, int(embed_dim * mlp_ratio)
        if hidden < 1:
            raise UsageError(f"mlp_ratio is {mlp_ratio} with embed_dim {embed_dim}; their product must be at least 1.")
        self.grid = (self.image_shape[1] // patch_size, self.image_shape[2] // patch_size)
        self.patch_embed = nn.Conv2d(in_chans, embed_dim, patch_size, patch_size)
        self.positions = nn.Parameter(torch.empty(1, self.grid[0] * self.grid[1], embed_dim))
        self.class_token = nn.Parameter(torch.empty(1, 1, embed_dim))
        how: dict[str, Any] = {"form": residual, "start": init_values, "eps": EPS}
        self.blocks = nn.ModuleList(
            _Block(embed_dim, num_heads, hidden, attn_drop, proj_drop, rate=drop_path_rate, **how) for _ in range(depth)
        )
        self.class_blocks = nn.ModuleList(_ClassBlock(embed_dim, num_heads, hidden, **how) for _ in range(class_depth))
        self.norm = nn.LayerNorm(embed_dim, eps=EPS)
        self.normalises_patches = isinstance(self.class_blocks[0].attention.norm, nn.LayerNorm)
        self.feature_info = [
            {"num_chs": embed_dim, "reduction": patch_size, "module": f"blocks.{i}"} for i in range(depth)
        ]
        self._start(residual)
        self.place_couplings(*self.image_shape[1:])
        self.reset_classifier(num_classes)

    def _start(self, residual: str) -> None:
        for tensor in (self.positions, self.class_token):
            nn.init.trunc_normal_(tensor, std=0.02)
        paths = []
        for block in (*self.blocks, *self.class_blocks):
            attention, feed_forward = block.attention.branch, block.feed_forward.branch
            for linear in (feed_forward.first, feed_forward.second):
                start_linears(linear)
            fused = isinstance(attention, TalkingHeadAttention)
            values = attention.qkv.weight[2 * self.num_features :] if fused else attention.value.weight
            paths += [(values, attention.proj), (feed_forward.first.weight, feed_forward.second)]
        start_by_depth(residual, paths)

    def place_couplings(self, height: int, width: int) -> None:
        grid, first = (height // self.patch_size, width // self.patch_size), self.patch_size / 2
        for stage, prefix in ((self.blocks, 0), (self.class_blocks, 1)):
            for module in stage.modules():
                if isinstance(module, Coupling):
                    module.senders = Grid(*grid, 1, first, self.patch_size, None if prefix else 0, prefix)
                    module.receivers = None if prefix else module.senders

    def make_classifier(self) -> nn.Module:
        return start_linears(nn.Linear(self.num_features, self.num_classes))

    def check_images(self, images: Tensor) -> None:
        """UsageError also for images smaller than a patch."""
        super().check_images(images)
        if min(images.shape[2:]) < self.patch_size:
            raise UsageError(f"images are {tuple(images.shape)}; both sides must be at least {self.patch_size}.")

    def embed(self, images: Tensor) -> Tensor:
        """The patches with their positions: (batch, rows, columns, dim)."""
        maps = self.patch_embed(images).permute(0, 2, 3, 1).contiguous()
        grid = (maps.shape[1], maps.shape[2])
        return maps + resize_positions(self.positions, self.grid, grid).unflatten(1, grid)

    def stage(self, index: int, inputs: Tensor) -> Tensor:
        return self.blocks[index](self.embed(inputs) if index == 0 else inputs)

    def as_map(self, tensor: Tensor, norm: bool) -> Tensor:
        """(batch, rows, columns, dim) -> (batch, dim, rows, columns), through the last norm if asked."""
        return (self.norm(tensor) if norm else tensor).permute(0, 3, 1, 2)

    def summarise(self, patches: Tensor) -> Tensor:
        """The class token after its layers, not normalised: (batch, patches, dim) -> (batch, 1, dim)."""
        token = self.class_token.expand(patches.shape[0], -1, -1)
        # All blocks share the patches, which are normalised once unless a norm must be called.
        norms: list[Any] = [block.attention.norm for block in self.class_blocks]
        normalised = self.normalises_patches and not must_be_called(*norms)
        if normalised:
            patches = F.layer_norm(patches, patches.shape[-1:], eps=EPS)
        for block in self.class_blocks:
            token = block(token, patches, normalised)
        return token

    def neck(self, maps: list[Tensor]) -> Tensor:
        """The class token and the patches, normalised: (batch, 1 + patches, dim)."""
        patches = maps[-1].flatten(1, 2)
        return self.norm(torch.cat((self.summarise(patches), patches), 1))

    def pool(self, features: Tensor) -> Tensor:
        """The class token."""
        return features[:, 0]

    def forward(self, images: Tensor) -> Tensor:
        """Scores: (batch, channels, height, width) -> (batch, classes). Only the class token takes the last norm."""
        (maps,) = self._maps(images, self._neck_inputs()).values()
        return self.forward_head(self.norm(self.summarise(maps.flatten(1, 2))))

    def no_weight_decay(self) -> set[str]:
        return {"positions", "class_token"}

    def resize_tensors(self, tensors: dict[str, Tensor], img_size: tuple[int, int]) -> dict[str, Tensor]:
        """With positions interpolated from the grid of another image size."""
        old = (img_size[0] // self.patch_size, img_size[1] // self.patch_size)
        if old == self.grid or "positions" not in tensors or tensors["positions"].shape[1] != old[0] * old[1]:
            return tensors
        return {**tensors, "positions": resize_positions(tensors["positions"], old, self.grid)}

    def layer_depths(self) -> dict[str, int]:
        """A layer for the patches and tokens before the blocks, one a block, the classifier last.

        The layers of the class token count as the last blocks do, and the last norm as the last block, as in timm.
        """
        last = len(self.blocks)

        def depth(name: str) -> int:
            part, _, rest = name.partition(".")
            if part == "blocks":
                return 1 + int(rest.partition(".")[0])
            if part == "class_blocks":
                return max(1, last - len(self.class_blocks) + 1 + int(rest.partition(".")[0]))
            return {"norm": last, "head": last + 1}.get(part, 0)

        return {name: depth(name) for name, _ in self.named_parameters()}


def _pairs(model: CaiT) -> Iterator[Pair]:
    yield Pair("patch_embed", "patch_embed.proj")
    yield Pair("positions", "pos_embed")
    yield Pair("class_token", "cls_token")
    yield from (Pair(name, name) for name in ("norm", "head"))
    for ours, theirs, count in (
        ("blocks", "blocks", len(model.blocks)),
        ("class_blocks", "blocks_token_only", len(model.class_blocks)),
    ):
        for i in range(count):
            a, b = f"{ours}.{i}", f"{theirs}.{i}"
            for number, part in ((1, "attention"), (2, "feed_forward")):
                yield Pair(f"{a}.{part}.norm", f"{b}.norm{number}")
                yield Pair(f"{a}.{part}.scale.gain", f"{b}.gamma_{number}")
            yield Pair(f"{a}.feed_forward.branch.first", f"{b}.mlp.fc1")
            yield Pair(f"{a}.feed_forward.branch.second", f"{b}.mlp.fc2")
            attention = f"{a}.attention.branch"
            yield from (
                Pair(f"{attention}.{x}", f"{b}.attn.{y}")
                for x, y in {
                    "qkv": "qkv", "query": "q", "key": "k", "value": "v", "proj": "proj",
                    "premix": "proj_l", "coupling.mix": "proj_w",
                }.items()
            )  # fmt: skip


def _arguments(source: Any) -> dict[str, Any]:
    block, conv = source.blocks[0], source.patch_embed.proj
    return {
        "num_classes": source.num_classes,
        "in_chans": conv.in_channels,
        "img_size": tuple(source.patch_embed.img_size),
        "patch_size": conv.kernel_size[0],
        "embed_dim": source.embed_dim,
        "depth": len(source.blocks),
        "num_heads": block.attn.num_heads,
        "mlp_ratio": block.mlp.fc1.out_features / source.embed_dim,
        "class_depth": len(source.blocks_token_only),
        "drop_path_rate": float(getattr(block.drop_path, "drop_prob", 0.0) or 0.0),
        "attn_drop": block.attn.attn_drop.p,
        "proj_drop": block.attn.proj_drop.p,
    }


register_layout("timm", CaiT, _pairs, classes=("Cait",), arguments=_arguments)

# Name: size of the tokens, depth, heads, start of the gains, stochastic depth; parameters by image size.
PRESETS: dict[str, tuple[int, int, int, float, float, dict[int, int]]] = {
    "xxs24": (192, 24, 4, 1e-5, 0.05, {224: 11_956_264, 384: 12_029_224}),
    "xxs36": (192, 36, 4, 1e-5, 0.1, {224: 17_299_720, 384: 17_372_680}),
    "xs24": (288, 24, 6, 1e-5, 0.05, {224: 26_560_648, 384: 26_670_088}),
    "xs36": (288, 36, 6, 1e-6, 0.1, {224: 38_557_432}),
    "s24": (384, 24, 8, 1e-5, 0.1, {224: 46_916_200, 384: 47_062_120}),
    "s36": (384, 36, 8, 1e-6, 0.2, {224: 68_220_712, 384: 68_366_632}),
    "s48": (384, 48, 8, 1e-6, 0.3, {224: 89_525_224}),
    "m24": (768, 24, 16, 1e-5, 0.2, {224: 185_850_088}),
    "m36": (768, 36, 16, 1e-6, 0.3, {224: 270_929_512, 384: 271_221_352}),
    "m48": (768, 48, 16, 1e-6, 0.4, {224: 356_008_936, 448: 356_460_520}),
}

TINY: dict[str, Any] = {"img_size": 16, "patch_size": 4, "embed_dim": 12, "depth": 2, "num_heads": 3, "num_classes": 10}
VARIANT: dict[str, Any] = {"img_size": (9, 14), "in_chans": 2, "class_depth": 1, "depth": 1, "mlp_ratio": 2.5}

for _name, (_dim, _depth, _heads, _start, _rate, _sizes) in PRESETS.items():
    for _size, _parameters in _sizes.items():
        _first = (_name, _size) == ("xxs24", 224)
        register_model(
            f"cait_{_name}_{_size}",
            CaiT,
            f"CaiT of {_depth} layers and {_dim} channels for images of {_size} pixels.",
            source="arXiv:2103.17239",
            parameters=_parameters,
            recipe="cait",
            tiny=TINY if _first else None,
            variants={"not square": VARIANT} if _first else None,
            aliases=(f"cait_{_name}",) if _size == 224 else (),
            img_size=_size,
            embed_dim=_dim,
            depth=_depth,
            num_heads=_heads,
            init_values=_start,
            drop_path_rate=_rate,
            **IMAGENET,
        )
