"""TransNeXt, and MoH-ViT, which lets each of its tokens choose among the heads.

Source: Shi 2024, arXiv:2311.17132; mixture of heads Jin, Zhu, Yuan, Yan, ICML 2025, arXiv:2410.11842; and their code.
"""

from collections.abc import Iterator
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from mereo.core.initialise import start_linears, start_off_zero
from mereo.core.shapes import image_size
from mereo.core.squash import bounded
from mereo.errors import UsageError, check_positive
from mereo.layers import ChannelNorm, StochasticDepth, linear_rates
from mereo.layers.aggregated_attention import AggregatedAttention, PixelAttention
from mereo.mechanisms.attention.sparse import HeadRouter
from mereo.mechanisms.attention.sparse.head_schedules import get_schedule
from mereo.models.base import VisionModel, check_sides, grid_of_cells
from mereo.models.layout import Pair, register_layout
from mereo.models.registry import IMAGENET, register_model

EPS = 1e-6


class ConvolutionalGLU(nn.Module):
    """W_2 (gelu(conv(W_1 x)) * V x), with a depthwise 3 x 3 convolution.  Shapes: (batch, rows, columns, dim)."""

    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.first = nn.Linear(dim, 2 * hidden)
        self.conv = nn.Conv2d(hidden, hidden, 3, padding=1, groups=hidden)
        self.second = nn.Linear(hidden, dim)

    def forward(self, cells: Tensor) -> Tensor:
        gate, value = self.first(cells).chunk(2, -1)
        gate = self.conv(gate.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
        return self.second(F.gelu(gate) * value)


class FovealBlock(nn.Module):
    """x <- x + attention(norm x);  x <- x + glu(norm x).  Shapes: (batch, rows, columns, dim) -> the same."""

    def __init__(self, dim: int, attention: nn.Module, hidden: int, drop_path: float) -> None:
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(dim, eps=EPS), attention
        self.norm2, self.glu = nn.LayerNorm(dim, eps=EPS), ConvolutionalGLU(dim, hidden)
        self.drop_path = StochasticDepth(drop_path)

    def forward(self, cells: Tensor) -> Tensor:
        cells = cells + self.drop_path(self.attention(self.norm1(cells)))
        return cells + self.drop_path(self.glu(self.norm2(cells)))


class Stage(nn.Module):
    """Overlapping patches, blocks, a norm.  Shapes: (batch, channels, rows, columns)."""

    def __init__(self, inputs: int, dim: int, stride: int, blocks: list[FovealBlock]) -> None:
        super().__init__()
        kernel = 2 * stride - 1
        self.patches = nn.Conv2d(inputs, dim, kernel, stride, kernel // 2)
        self.patch_norm = ChannelNorm(dim)
        self.blocks = nn.Sequential(*blocks)
        self.norm = nn.LayerNorm(dim, eps=EPS)

    def forward(self, maps: Tensor) -> Tensor:
        cells: Tensor = self.norm(self.blocks(self.patch_norm(self.patches(maps)).permute(0, 2, 3, 1)))
        return cells.permute(0, 3, 1, 2)


class TransNeXt(VisionModel):
    """Classify by attention to windows and to pooled maps, in a pyramid of four stages.

    scores = head(mean of the last map over its cells)

    Args:
        num_classes, in_chans: as everywhere.
        img_size: whose distances positions are measured by; images of any size are taken whose sides are multiples of
            `size_step`.
        widths, depths, num_heads: channels, blocks and heads of each stage.
        mlp_ratios: hidden size of the gated units, times 3/2, as a multiple of the width.
        pools: side of the squares of cells that attention pools in each stage; 1 attends to all cells, without a
            window of its own.
        shared, active: heads that always act, and routed heads that act for a token, in each stage; without entries
            all heads act, and there are no gates.
        drop_path_rate: of stochastic depth in the last block; it rises linearly from 0 in the first.

    Shapes: images (batch, in_chans, height, width) -> (batch, num_classes); the map of stage i is (batch, widths[i],
        height / (4 * 2^i), width / (4 * 2^i)).

    Reads as: `stages.I.blocks.J.attention.coupling` (batch, heads, cells, cells + pooled cells) is what each cell takes
        from its window and from the pooled map; `stages.I.blocks.J.attention.router.gates` (batch, cells, heads) how
        much of each head. With mixtures of heads it adds the loss "balance" in training.

    Reference: arXiv:2311.17132, section 3 and table 1; arXiv:2410.11842, section 3 and appendix A.
    """

    first_conv = "stages.0.patches"
    fixed_input_size = False

    def __init__(
        self,
        num_classes: int = 1000,
        in_chans: int = 3,
        img_size: int | tuple[int, int] = 224,
        *,
        widths: tuple[int, ...] = (72, 144, 288, 576),
        depths: tuple[int, ...] = (5, 5, 22, 5),
        num_heads: tuple[int, ...] = (3, 6, 12, 24),
        mlp_ratios: tuple[int, ...] = (8, 8, 4, 4),
        pools: tuple[int, ...] = (8, 4, 2, 1),
        shared: tuple[int, ...] = (),
        active: tuple[int, ...] = (),
        drop_path_rate: float = 0.0,
    ) -> None:
        super().__init__()
        stages = len(widths)
        if {len(depths), len(num_heads), len(mlp_ratios), len(pools)} != {stages} or not (
            len(shared) == len(active) and len(shared) in (0, stages)
        ):
            raise UsageError(
                f"widths, depths, num_heads, mlp_ratios and pools are {widths}, {depths}, {num_heads}, {mlp_ratios},"
                f" {pools}, shared and active {shared}, {active}; give one of each, or none of the last two."
            )
        check_positive(widths=min(widths), depths=min(depths), num_heads=min(num_heads), mlp_ratios=min(mlp_ratios))
        check_positive(pools=min(pools))
        self.image_shape, self.num_features = (in_chans, *image_size(img_size)), widths[-1]
        step = max(4 * 2**i * pool for i, pool in enumerate(pools))
        if any((step // (4 * 2**i)) % pool for i, pool in enumerate(pools)):
            raise UsageError(f"pools is {pools}; each must divide the cells of its stage, such as (8, 4, 2, 1).")
        self.size_step = (step, step)
        check_sides(f"img_size is {img_size}", self.image_shape[1:], self.size_step)
        rates, made = iter(linear_rates(drop_path_rate, sum(depths))), []
        for i, (width, heads, pool) in enumerate(zip(widths, num_heads, pools, strict=True)):
            size = (self.image_shape[1] // (4 * 2**i), self.image_shape[2] // (4 * 2**i))
            blocks = []
            for _ in range(depths[i]):
                router = HeadRouter(width, heads, shared[i], active[i]) if shared else None
                attention = (
                    PixelAttention(width, heads, size, router)
                    if pool == 1
                    else AggregatedAttention(width, heads, size, pool, router)
                )
                hidden = max(1, int(2 * width * mlp_ratios[i] / 3))
                blocks.append(FovealBlock(width, attention, hidden, next(rates)))
            made.append(Stage(widths[i - 1] if i else in_chans, width, 2 if i else 4, blocks))
        self.stages = nn.ModuleList(made)
        self.feature_info = [
            {"num_chs": width, "reduction": 4 * 2**i, "module": f"stages.{i}"} for i, width in enumerate(widths)
        ]
        self.reset_parameters()
        self.reset_classifier(num_classes)

    def reset_parameters(self) -> None:
        """Initialise: truncated normal of 0.02 for linear layers, He's normal over outputs for convolutions."""
        start_linears(self)
        for conv in (m for m in self.modules() if isinstance(m, nn.Conv2d)):
            fan = conv.kernel_size[0] * conv.kernel_size[1] * conv.out_channels // conv.groups
            nn.init.normal_(conv.weight, std=(2 / fan) ** 0.5)
            if conv.bias is not None:
                nn.init.zeros_(conv.bias)
        start_off_zero(self)

    def stage(self, index: int, inputs: Tensor) -> Tensor:
        return self.stages[index](bounded(inputs) if index == 0 else inputs)

    def pool(self, features: Tensor) -> Tensor:
        return features.mean((2, 3))

    def make_classifier(self) -> nn.Module:
        return start_linears(nn.Linear(self.num_features, self.num_classes))

    def place_couplings(self, height: int, width: int) -> None:
        super().place_couplings(height, width)
        for info in self.feature_info:
            for module in self.get_submodule(str(info["module"])).modules():
                if isinstance(module, AggregatedAttention):
                    step = info["reduction"]
                    cells, pooled = (grid_of_cells(height, width, step * side) for side in (1, module.pool))
                    module.coupling.senders = cells._replace(after=pooled)

    def no_weight_decay(self) -> set[str]:
        kept = ("query_embedding", "local_bias", "temperature")
        return {name for name, _ in self.named_parameters() if name.endswith(kept) or ".positions." in name}


_NAMES = {
    "temperature": "temperature", "query_embedding": "query_embedding", "positions.first": "cpb_fc1",
    "positions.second": "cpb_fc2", "proj": "proj", "qkv": "qkv", "query": "q", "key_value": "kv", "reduce": "sr",
    "norm": "norm", "local_bias": "relative_pos_bias_local", "local_tokens": "learnable_tokens",
    "local_shift": "learnable_bias", "router.routed_heads": "wg.weight", "router.stage": "wg_0.weight",
    "router.shared_heads": "wg_1.weight",
}  # fmt: skip


def _pairs(model: TransNeXt) -> Iterator[Pair]:
    yield Pair("head", "head")
    for i, info in enumerate(model.feature_info):
        stage = model.get_submodule(str(info["module"]))
        assert isinstance(stage, Stage)
        yield from (Pair(f"stages.{i}.patches", f"patch_embed{i + 1}.proj"), Pair(f"stages.{i}.norm", f"norm{i + 1}"))
        yield Pair(f"stages.{i}.patch_norm", f"patch_embed{i + 1}.norm")
        for j in range(len(stage.blocks)):
            ours, theirs = f"stages.{i}.blocks.{j}", f"block{i + 1}.{j}"
            yield from (Pair(f"{ours}.attention.{a}", f"{theirs}.attn.{b}") for a, b in _NAMES.items())
            yield from (Pair(f"{ours}.{norm}", f"{theirs}.{norm}") for norm in ("norm1", "norm2"))
            yield from (Pair(f"{ours}.glu.first", f"{theirs}.mlp.fc1"), Pair(f"{ours}.glu.second", f"{theirs}.mlp.fc2"))
            yield Pair(f"{ours}.glu.conv", f"{theirs}.mlp.dwconv.dwconv")


register_layout("official", TransNeXt, _pairs)

TINY: dict[str, Any] = {
    "img_size": 16, "widths": (8, 16), "depths": (1, 1), "num_heads": (4, 4), "mlp_ratios": (2, 2), "pools": (2, 1),
    "num_classes": 10,
}  # fmt: skip
MIXTURE: dict[str, Any] = {"shared": (1, 1), "active": (2, 2)}

# Name: published schedule of heads, stochastic depth, parameters.
PRESETS: dict[str, tuple[str | None, float, int]] = {
    "transnext_small": (None, 0.5, 49_741_564),
    "transnext_base": (None, 0.6, 89_721_496),
    "moh_vit_s_80": ("vit_s_80", 0.45, 49_910_548),
    "moh_vit_s_75": ("vit_s_75", 0.45, 49_910_548),
    "moh_vit_b_75": ("vit_b_75", 0.6, 90_020_632),
    "moh_vit_b_50": ("vit_b_50", 0.6, 90_023_512),
}

for _name, (_schedule, _rate, _parameters) in PRESETS.items():
    _heads = get_schedule(_schedule or ("vit_s_75" if _name.endswith("small") else "vit_b_75"))
    _described = f"of whose heads {_heads.active_share:.0%} act for a token." if _schedule else "all heads act."
    _first = _name == "transnext_small"
    register_model(
        _name,
        TransNeXt,
        f"TransNeXt-{'Small' if _heads.dims[0] == 72 else 'Base'}, {_described}",
        source="arXiv:2410.11842" if _schedule else "arXiv:2311.17132",
        parameters=_parameters,
        crop_pct=0.9,
        tiny=TINY if _first else None,
        variants={"mixture of heads": MIXTURE} if _first else None,
        widths=_heads.dims,
        depths=_heads.layers,
        num_heads=_heads.heads,
        drop_path_rate=_rate,
        shared=_heads.shared if _schedule else (),
        active=_heads.active if _schedule else (),
        **IMAGENET,
    )
