"""SpectFormer, the hierarchical family: two stages that gate frequencies, two that attend, and a class block.

Source: Patro, Namboodiri, Agneeswaran 2023, arXiv:2304.06446, section 3.2, with the sizes of the authors' code.
Cost: 3.9 G to 12.7 G multiply-adds an image for S to L at 224 x 224.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from mereo.core import Coupling
from mereo.core.initialise import start_linears, start_off_zero
from mereo.core.kernels.attention import attend
from mereo.core.shapes import image_size
from mereo.core.squash import bounded
from mereo.errors import UsageError, check_positive
from mereo.layers import ChannelNorm, ConvNorm, FeedForward, StochasticDepth, linear_rates
from mereo.mechanisms.attention.dense import ClassAttention
from mereo.mechanisms.mixer.spectral_gating import SpectralGating
from mereo.models.base import VisionModel, grid_of_cells
from mereo.models.layout import Pair, register_layout
from mereo.models.registry import IMAGENET, register_model
from mereo.models.token_labels import Box, TokenLabels, choose_box, exchanged

_relu = partial(nn.ReLU, inplace=True)


class _Attention(nn.Module):
    """Multi-head self-attention with queries apart from keys and values. Shapes: (batch, tokens, dim) -> the same."""

    def __init__(self, dim: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.query, self.key_value = nn.Linear(dim, dim), nn.Linear(dim, 2 * dim)
        self.coupling = Coupling("senders")
        self.proj = nn.Linear(dim, dim)

    def forward(self, tokens: Tensor) -> Tensor:
        q = self.query(tokens).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
        k, v = self.key_value(tokens).unflatten(-1, (2, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        return self.proj(attend(q, k, v, self.coupling).transpose(1, 2).flatten(2))


class _LocalFeedForward(nn.Module):
    """second(gelu(depthwise(first(x)))). Shapes: cells (batch, rows, columns, dim) -> the same."""

    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.first = nn.Linear(dim, hidden)
        self.depthwise = nn.Sequential(nn.Conv2d(hidden, hidden, 3, padding=1, groups=hidden), nn.GELU())
        self.second = nn.Linear(hidden, dim)

    def forward(self, cells: Tensor) -> Tensor:
        maps = self.depthwise(self.first(cells).permute(0, 3, 1, 2))
        return self.second(maps.permute(0, 2, 3, 1))


class _Block(nn.Module):
    """x += mixer(norm_1(x)); x += feed_forward(norm_2(x)), the mixer is spectral gating if `size` is given.

    Shapes: maps (batch, dim, rows, columns), in channels-last memory -> the same.
    """

    def __init__(self, dim: int, num_heads: int, size: tuple[int, int] | None, ratio: int, drop_path: float) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim, eps=1e-6), nn.LayerNorm(dim, eps=1e-6)
        self.mixer = _Attention(dim, num_heads) if size is None else SpectralGating(dim, size)
        self.feed_forward = _LocalFeedForward(dim, ratio * dim)
        self.drop_path = StochasticDepth(drop_path)

    def forward(self, maps: Tensor) -> Tensor:
        size = (maps.shape[2], maps.shape[3])
        x = maps.permute(0, 2, 3, 1)
        tokens = self.norm1(x).flatten(1, 2)
        mixed = self.mixer(tokens, size) if isinstance(self.mixer, SpectralGating) else self.mixer(tokens)
        x = x + self.drop_path(mixed.unflatten(1, size))
        x = x + self.drop_path(self.feed_forward(self.norm2(x)))
        return x.permute(0, 3, 1, 2)


class _ClassBlock(nn.Module):
    """A class token, the mean of the tokens at first, attends to itself and the tokens, which stay as they are.

    c = mean x;  c += class_attention(norm_1 [c, x]);  c += feed_forward(norm_2 c)

    Shapes: tokens (batch, tokens, dim) -> (batch, 1 + tokens, dim).
    """

    def __init__(self, dim: int, num_heads: int, ratio: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim, eps=1e-6), nn.LayerNorm(dim, eps=1e-6)
        self.attention = ClassAttention(dim, num_heads)
        self.feed_forward = FeedForward(dim, ratio * dim)

    def forward(self, tokens: Tensor) -> Tensor:
        token = tokens.mean(1, keepdim=True)
        token = token + self.attention(self.norm1(torch.cat((token, tokens), 1)))
        token = token + self.feed_forward(self.norm2(token))
        return torch.cat((token, tokens), 1)


def _stem(inputs: int, hidden: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        ConvNorm(inputs, hidden, 7, 2, activation=_relu),
        ConvNorm(hidden, hidden, 3, activation=_relu),
        ConvNorm(hidden, hidden, 3, activation=_relu),
        nn.Conv2d(hidden, outputs, 3, 2, 1),
        ChannelNorm(outputs),
    )


class HierarchicalSpectFormer(VisionModel):
    """Classify with four stages of falling resolution: frequencies are gated in two, and two attend.

    blocks: x += mixer(norm x), x += local_feed_forward(norm x);  [c, t] = norm(class_block(x));
    scores = W c + b + max over tokens of (V t + d) / 2

    Args:
        num_classes, in_chans, img_size: as in timm. Images of other sizes resize the filters.
        widths, depths, num_heads, ratios: of each stage: channels, blocks, heads, and the hidden size of the
            feed-forward over the channels. The heads of spectral stages are not used.
        stem_width: channels of the stem.
        spectral_stages: how many stages are spectral, the first ones.
        token_labels: whether there is a second head, on tokens, as for training with labels of tokens.
        drop_path_rate: of stochastic depth in the last block; it rises linearly from 0 in the first.

    Shapes: images (batch, in_chans, height, width) -> scores (batch, num_classes); maps at 4, 8, 16 and 32 pixels.

    Deviates: scores are the same in training as in eval; the authors return the scores of both heads there and mix
        tokens of two images, which `token_labels` does.

    Reference: arXiv:2304.06446, section 3.2 and table 2.
    """

    first_conv = "stages.0.downsample.0.0"
    classifier_parts = ("head", "token_head")
    fixed_input_size = False

    def __init__(
        self,
        num_classes: int = 1000,
        in_chans: int = 3,
        img_size: int | tuple[int, int] = 224,
        *,
        widths: tuple[int, ...] = (64, 128, 320, 448),
        depths: tuple[int, ...] = (3, 4, 6, 3),
        num_heads: tuple[int, ...] = (2, 4, 10, 14),
        ratios: tuple[int, ...] = (8, 8, 4, 4),
        stem_width: int = 32,
        spectral_stages: int = 2,
        token_labels: bool = True,
        drop_path_rate: float = 0.0,
    ) -> None:
        super().__init__()
        check_positive(widths=min(widths, default=0), depths=min(depths, default=0), ratios=min(ratios, default=0))
        check_positive(num_heads=min(num_heads, default=0), stem_width=stem_width)
        if not len(widths) == len(depths) == len(num_heads) == len(ratios):
            raise UsageError(
                f"widths are {widths}, depths {depths}, num_heads {num_heads} and ratios {ratios}; give one of each"
                " for every stage."
            )
        if not 0 <= spectral_stages <= len(widths):
            raise UsageError(f"spectral_stages is {spectral_stages}; it must be between 0 and {len(widths)}.")
        self.image_shape, self.num_features = (in_chans, *image_size(img_size)), widths[-1]
        self.labelled = token_labels
        rates = iter(linear_rates(drop_path_rate, sum(depths)))
        self.stages = nn.ModuleList()
        for i, (width, heads, ratio) in enumerate(zip(widths, num_heads, ratios, strict=True)):
            if (i >= spectral_stages or i == len(widths) - 1) and width % heads:
                raise UsageError(f"num_heads is {num_heads} with widths {widths}; each must divide its width.")
            height, across = (-(-side // (4 * 2**i)) for side in self.image_shape[1:])
            size = (height, across) if i < spectral_stages else None
            stage = nn.Sequential()
            if i == 0:
                stage.add_module("downsample", _stem(in_chans, stem_width, width))
            else:
                stage.add_module(
                    "downsample", nn.Sequential(nn.Conv2d(widths[i - 1], width, 3, 2, 1), ChannelNorm(width))
                )
            blocks = [_Block(width, heads, size, ratio, next(rates)) for _ in range(depths[i])]
            stage.add_module("blocks", nn.Sequential(*blocks))
            if i < len(widths) - 1:
                stage.add_module("norm", ChannelNorm(width, eps=1e-6))
            self.stages.append(stage)
        self.class_block = _ClassBlock(widths[-1], num_heads[-1], ratios[-1])
        self.norm = nn.LayerNorm(widths[-1], eps=1e-6)
        self.feature_info = [
            {"num_chs": width, "reduction": 4 * 2**i, "module": f"stages.{i}"} for i, width in enumerate(widths)
        ]
        self.reset_classifier(num_classes)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise: linear layers truncated normal of 0.02, convolutions normal of sqrt(2 / fan out), biases 0."""
        start_linears(self)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                fan_out = module.weight[0, 0].numel() * module.out_channels // module.groups
                nn.init.normal_(module.weight, std=(2 / fan_out) ** 0.5)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
        start_off_zero(self)

    def place_couplings(self, height: int, width: int) -> None:
        super().place_couplings(height, width)
        self.class_block.attention.coupling.senders = grid_of_cells(
            height, width, int(self.feature_info[-1]["reduction"]), prefix=1
        )

    def stage(self, index: int, inputs: Tensor) -> Tensor:
        # The variances of larger entries overflow in the first norm over channels.
        return self.stages[index](bounded(inputs) if index == 0 else inputs)

    def neck(self, maps: list[Tensor]) -> Tensor:
        """The class token and the tokens, normalised: (batch, 1 + rows * columns, channels)."""
        tokens = maps[-1].permute(0, 2, 3, 1).flatten(1, 2)
        return self.norm(self.class_block(tokens))

    def pool(self, features: Tensor) -> Tensor:
        return features[:, 0]

    def make_classifier(self) -> nn.Module:
        return start_linears(nn.Linear(self.num_features, self.num_classes))

    def _renew_classifier(self) -> None:
        super()._renew_classifier()
        self.token_head = self.make_classifier() if self.labelled and self.num_classes else None

    def token_scores(self, features: Tensor) -> Tensor:
        """Scores of every token, (batch, rows * columns, classes), from the output of `forward_features`."""
        if self.token_head is None:
            raise UsageError("token_labels is False; create the network with token_labels=True for scores of tokens.")
        return self.token_head(features[:, 1:])

    def token_labels(self, images: Tensor, box: Box | None = None) -> TokenLabels:
        """Scores for token labelling: the maps of image pairs are mixed in a box, and scores of tokens are unmixed.

        In training, the embeddings in the box come from the image at the mirrored place of the batch, before the
        first block; scores of tokens in the box go back to the image that they are of. In eval nothing is mixed.

        Args:
            box: of tokens of the last stage; drawn by default, with an area uniform between 0 and the map's.

        Shapes: images (batch, channels, height, width) -> classes (batch, classes), without the maximum over tokens,
            and tokens (batch, tokens, classes).

        Reference: arXiv:2104.10858, section 3.2 (MixToken).
        """
        self.check_images(images)
        first: Any = self.stages[0]
        others = self.stages[1:]
        maps, cells = first.downsample(bounded(images)), 2 ** len(others)
        rows, columns = (-(-side // cells) for side in maps.shape[2:])
        box = choose_box(box, rows, columns, self.training)
        maps = first.norm(first.blocks(exchanged(maps, box, cells)))
        for stage in others:
            maps = stage(maps)
        features = self.neck([maps])
        tokens = self.token_scores(features).mT.unflatten(2, (rows, columns))
        return TokenLabels(self.head(features[:, 0]), exchanged(tokens, box).flatten(2).mT, box)

    def classify(self, features: Tensor) -> Tensor:
        scores = super().classify(features)
        return scores if self.token_head is None else scores + 0.5 * self.token_scores(features).amax(1)


def _pairs(model: HierarchicalSpectFormer) -> Iterator[Pair]:
    for i in range(3):
        yield Pair(f"stages.0.downsample.{i}.0", f"patch_embed1.conv.{3 * i}")
        yield Pair(f"stages.0.downsample.{i}.1", f"patch_embed1.conv.{3 * i + 1}")
    attention = {"query": "q", "key_value": "kv", "proj": "proj"}
    names = {
        "norm1": "norm1", "norm2": "norm2", "mixer.filter": "attn.complex_weight",
        "feed_forward.first": "mlp.fc1", "feed_forward.depthwise.0": "mlp.dwconv.dwconv",
        "feed_forward.second": "mlp.fc2", **{f"mixer.{ours}": f"attn.{theirs}" for ours, theirs in attention.items()},
    }  # fmt: skip
    for i, stage in enumerate(model.stages):
        convolution, norm = (3, 4) if i == 0 else (0, 1)
        yield Pair(f"stages.{i}.downsample.{convolution}", f"patch_embed{i + 1}.proj")
        yield Pair(f"stages.{i}.downsample.{norm}", f"patch_embed{i + 1}.norm")
        for j, _ in enumerate(stage.get_submodule("blocks").children()):
            yield from (Pair(f"stages.{i}.blocks.{j}.{a}", f"block{i + 1}.{j}.{b}") for a, b in names.items())
        yield Pair(f"stages.{i}.norm", f"norm{i + 1}")
    final = {
        "norm1": "norm1", "norm2": "norm2", "feed_forward.first": "mlp.fc1", "feed_forward.second": "mlp.fc2",
        "attention.query": "attn.q", "attention.proj": "attn.proj",
    }  # fmt: skip
    yield from (Pair(f"class_block.{ours}", f"post_network.0.{theirs}") for ours, theirs in final.items())
    for i, ours in enumerate(("key", "value")):
        yield Pair(f"class_block.attention.{ours}", "post_network.0.attn.kv", part=(i, 2))
    yield from (Pair("norm", f"norm{len(model.stages)}"), Pair("head", "head"), Pair("token_head", "aux_head"))


register_layout("official", HierarchicalSpectFormer, _pairs)

_PAPER: dict[str, Any] = {"source": "arXiv:2304.06446", "crop_pct": 0.9, "recipe": "spectformer_h", **IMAGENET}

_register: Callable[..., None] = partial(register_model, module=HierarchicalSpectFormer, drop_path_rate=0.1, **_PAPER)

_register(
    "spectformer_h_small",
    summary="SpectFormer-H-S, hierarchical, with a second head on tokens.",
    parameters=22_226_928,
    tiny={
        "img_size": 40, "num_classes": 10, "widths": (6, 8, 8, 12), "depths": (1, 1, 1, 1), "num_heads": (1, 1, 2, 2),
        "ratios": (2, 2, 2, 2), "stem_width": 4,
    },
    variants={"one head": {"token_labels": False}},
    aliases=("spectformer_h_s",),
    )  # fmt: skip
_register(
    "spectformer_h_base",
    summary="SpectFormer-H-B, hierarchical, with a second head on tokens.",
    parameters=33_052_880,
    widths=(64, 128, 320, 512),
    depths=(3, 4, 12, 3),
    num_heads=(2, 4, 10, 16),
    stem_width=64,
    aliases=("spectformer_h_b",),
)
_register(
    "spectformer_h_large",
    summary="SpectFormer-H-L, hierarchical, with a second head on tokens.",
    parameters=54_675_792,
    widths=(96, 192, 384, 512),
    depths=(3, 6, 18, 3),
    num_heads=(3, 6, 12, 16),
    stem_width=64,
    drop_path_rate=0.3,
    aliases=("spectformer_h_l",),
)
