"""The published MaxViT networks, and how timm lays out their weights.

Sources: Tu et al. 2022, arXiv:2204.01697, table 1 (`_tf`); timm's own variants (`_rw`, `_rmlp`, `_pm`).
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

from torch import Tensor, nn

from mereo.core.relative_positions import Window, resize_relative_table
from mereo.errors import UsageError
from mereo.models.layout import Pair, register_layout
from mereo.models.registry import IMAGENET, register_model
from mereo.models.vision.maxvit import MaxViT, MaxViTBlock, ParallelBlock

SOURCE = "arXiv:2204.01697"
HALF: dict[str, Any] = {"mean": 0.5, "std": 0.5, "interpolation": "bicubic"}
SHAPES: dict[str, dict[str, Any]] = {
    "tiny": {},
    "small": {"widths": (96, 192, 384, 768)},
    "base": {"widths": (96, 192, 384, 768), "depths": (2, 6, 14, 2)},
    "large": {"widths": (128, 256, 512, 1024), "depths": (2, 6, 14, 2), "stem_widths": (128, 128)},
    "xlarge": {"widths": (192, 384, 768, 1536), "depths": (2, 6, 14, 2), "stem_widths": (192, 192)},
}
PARAMETERS = {
    "tiny": (30_916_528, 30_977_008, 31_049_584),
    "small": (68_927_956, 69_018_676, 69_127_540),
    "base": (119_467_708, 119_653_468, 119_876_380),
    "large": (211_785_560, 212_033_240, 212_330_456),
    "xlarge": (474_951_952, 475_323_472, 475_769_296),
}
TINY: dict[str, Any] = {
    "num_classes": 5, "img_size": 16, "stem_widths": (8, 8), "widths": (8, 16), "depths": (1, 2), "head_dim": 4,
    "head_hidden_size": 12,
}  # fmt: skip
VARIANTS: dict[str, dict[str, Any]] = {
    "timm": {
        "form": "timm",
        "positions": "network",
        "position_hidden": 8,
        "layer_scale": 0.5,
        "head_hidden_size": None,
    },
    "parallel": {"form": "timm", "parallel": True},
}


def _official() -> None:
    for shape, counts in PARAMETERS.items():
        arguments = {**SHAPES[shape], "head_hidden_size": SHAPES[shape].get("widths", (512,))[-1]}
        for size, parameters in zip((224, 384, 512), counts, strict=True):
            first = (shape, size) == ("tiny", 224)
            small = size == 224
            register_model(
                f"maxvit_{shape}_tf_{size}", MaxViT, f"MaxViT-{shape[:1].upper()} for {size}x{size} images.",
                source=SOURCE, parameters=parameters,
                crop_pct=0.95 if small else 1.0, crop_mode="center" if small else "squash", recipe="maxvit",
                tiny=TINY if first else None, variants=VARIANTS if first else None,
                aliases=(f"maxvit_{shape}_tf",) if small else (), img_size=size,
                **(IMAGENET if small and shape != "xlarge" else HALF), **arguments,
            )  # fmt: skip


def _of_timm(name: str, size: int, parameters: int, summary: str, alias: str | None = None, **arguments: Any) -> None:
    small = size == 384
    register_model(
        name, MaxViT, summary, source=SOURCE, parameters=parameters,
        crop_pct=1.0 if small else arguments.pop("crop_pct", 0.95), crop_mode="squash" if small else "center",
        aliases=(alias,) if alias else (), form="timm", img_size=size, **HALF, **arguments,
    )  # fmt: skip


_official()
_PICO: dict[str, Any] = {"widths": (32, 64, 128, 256), "stem_widths": (24, 32)}
_NANO: dict[str, Any] = {"depths": (1, 2, 3, 1), "stem_widths": (32, 64)}
_TINY: dict[str, Any] = {"stem_widths": (32, 64)}
_SMALL: dict[str, Any] = {"widths": (96, 192, 384, 768), "stem_widths": (32, 64)}
_BASE: dict[str, Any] = {**_SMALL, "depths": (2, 6, 14, 2), "head_hidden_size": 768}
_NETWORK: dict[str, Any] = {"positions": "network"}
_COMPUTED = "with computed relative positions"

_of_timm("maxvit_pico_rw_256", 256, 7_457_996, "timm's MaxViT-pico.", "maxvit_pico_rw", **_PICO)
_of_timm("maxvit_nano_rw_256", 256, 15_451_148, "timm's MaxViT-nano.", "maxvit_nano_rw", **_NANO)
_of_timm("maxvit_tiny_rw_224", 224, 29_057_312, "timm's MaxViT-T.", "maxvit_tiny_rw", **_TINY)
_of_timm("maxvit_tiny_rw_256", 256, 29_066_720, "timm's MaxViT-T for 256x256 images.", **_TINY)
_of_timm(
    "maxvit_tiny_pm_256", 256, 30_089_344, "timm's MaxViT-T with parallel attentions.", "maxvit_tiny_pm",
    parallel=True, **_TINY,
)  # fmt: skip
for _name, _size, _count, _shape in (
    ("pico", 256, 7_515_980, _PICO),
    ("nano", 256, 15_501_452, _NANO),
    ("tiny", 256, 29_148_896, _TINY),
    ("small", 224, 64_895_044, {**_SMALL, "layer_scale": 1e-6, "crop_pct": 0.9}),
    ("small", 256, 64_895_044, {**_SMALL, "layer_scale": 1e-6}),
    ("base", 224, 116_135_788, _BASE),
    ("base", 384, 116_135_788, _BASE),
):
    _of_timm(
        f"maxvit_rmlp_{_name}_rw_{_size}", _size, _count, f"timm's MaxViT-{_name}, {_COMPUTED}, for {_size}x{_size}.",
        None if (_name, _size) in (("small", 256), ("base", 384)) else f"maxvit_rmlp_{_name}_rw", **_NETWORK, **_shape,
    )  # fmt: skip


def _turn(rows: Tensor, outer: int, inner: int) -> Tensor:
    """Rows numbered by (outer, inner, rest) in the order (inner, outer, rest)."""
    return rows.unflatten(0, (outer, inner, -1)).transpose(0, 1).flatten(0, 2)


def _kernel(matrix: Tensor) -> Tensor:
    return matrix[:, :, None, None]


def _matrix(kernel: Tensor) -> Tensor:
    return kernel.flatten(1)


def _from_pairs(table: Tensor, window: Window) -> Tensor:
    """timm's flat table, (offsets, heads) with offsets from sender to receiver, as ours."""
    length, heads = table.shape
    side = int(length**0.5)
    rows, columns = (side, side) if side * side == length else (2 * window[0] - 1, 2 * window[1] - 1)
    if rows * columns != length:
        return table
    return resize_relative_table(table.t().reshape(heads, rows, columns).flip(1, 2), window)


def _to_pairs(table: Tensor) -> Tensor:
    return table.flip(1, 2).flatten(1).t().contiguous()


def _attention_pairs(ours: str, theirs: str, attention: Any, official: bool) -> Iterator[Pair]:
    if official:
        yield Pair(f"{ours}.qkv", f"{theirs}.qkv")
    else:
        for part in ("weight", "bias"):
            turns = partial(_turn, outer=attention.heads, inner=3), partial(_turn, outer=3, inner=attention.heads)
            yield Pair(f"{ours}.qkv.{part}", f"{theirs}.qkv.{part}", *turns)
    table = f"{theirs}.rel_pos.relative_position_bias_table"
    if not hasattr(attention.positions, "table"):
        yield Pair(f"{ours}.positions.first", f"{theirs}.rel_pos.mlp.fc1")
        yield Pair(f"{ours}.positions.second", f"{theirs}.rel_pos.mlp.fc2")
    elif official:
        yield Pair(f"{ours}.positions.table", table, partial(resize_relative_table, window=attention.window))
    else:
        yield Pair(f"{ours}.positions.table", table, partial(_from_pairs, window=attention.window), _to_pairs)
    yield Pair(f"{ours}.proj", f"{theirs}.proj")


def _exchange_pairs(ours: str, theirs: str) -> Iterator[Pair]:
    for i in (1, 2):
        yield Pair(f"{ours}.norm{i}", f"{theirs}.norm{i}")
        yield Pair(f"{ours}.scale{i}.gain", f"{theirs}.ls{i}.gamma")
    yield Pair(f"{ours}.feed_forward.first", f"{theirs}.mlp.fc1")
    yield Pair(f"{ours}.feed_forward.second", f"{theirs}.mlp.fc2")


BOTTLENECK = {
    "norm": "pre_norm",
    "wide_norm": "norm1",
    "mixed_norm": "norm2",
    "depthwise": "conv2_kxk",
    "gate.squeeze": "se.fc1",
    "gate.excite": "se.fc2",
    "narrow.bias": "conv3_1x1.bias",
    "project.bias": "shortcut.expand.bias",
}


def _bottleneck_pairs(ours: str, theirs: str) -> Iterator[Pair]:
    for name, other in BOTTLENECK.items():
        yield Pair(f"{ours}.{name}", f"{theirs}.{other}")
    # timm's 1x1 convolutions are linear layers here.
    for name, other in (("widen", "conv1_1x1"), ("narrow", "conv3_1x1"), ("project", "shortcut.expand")):
        yield Pair(f"{ours}.{name}.weight", f"{theirs}.{other}.weight", _matrix, _kernel)


def _pairs(model: MaxViT) -> Iterator[Pair]:
    for name, other in (("first", "conv1"), ("norm", "norm1"), ("second", "conv2")):
        yield Pair(f"stem.{name}", f"stem.{other}")
    official = model.form == "official"
    for i, stage in enumerate(model.stages):
        for j, block in enumerate(stage.children()):
            ours, theirs = f"stages.{i}.{j}", f"stages.{i}.blocks.{j}"
            if isinstance(block, ParallelBlock):
                for k in range(2):
                    yield from _bottleneck_pairs(f"{ours}.bottlenecks.{k}", f"{theirs}.conv.{k}")
                for name in ("block", "grid"):
                    attention = getattr(block, name)
                    yield from _attention_pairs(f"{ours}.{name}", f"{theirs}.attn.attn_{name}", attention, official)
                yield from _exchange_pairs(ours, f"{theirs}.attn")
            elif isinstance(block, MaxViTBlock):
                yield from _bottleneck_pairs(f"{ours}.bottleneck", f"{theirs}.conv")
                for name in ("block", "grid"):
                    attention, there = getattr(block, name).attention, f"{theirs}.attn_{name}"
                    yield from _attention_pairs(f"{ours}.{name}.attention", f"{there}.attn", attention, official)
                    yield from _exchange_pairs(f"{ours}.{name}", there)
    yield from (Pair("norm", "norm"), Pair("pre_logits.0", "head.norm"), Pair("pre_logits.1", "head.pre_logits.fc"))
    yield Pair("head", "head.fc")


def _arguments(source: Any) -> dict[str, Any]:
    """All arguments of a live network of timm's; UsageError for its other families."""
    blocks = [block for stage in source.stages for block in stage.blocks]
    parts = [block.conv if "Parallel" in type(block).__name__ else [getattr(block, "conv", block)] for block in blocks]
    kinds = {type(block).__name__ for block in blocks} | {type(part).__name__ for many in parts for part in many}
    if kinds not in ({"MaxxVitBlock", "MbConvBlock"}, {"ParallelMaxxVitBlock", "MbConvBlock"}):
        raise UsageError(
            f"source is a MaxxVit of {', '.join(sorted(kinds))}; mereo converts timm's maxvit_* networks, and neither"
            " coatnet_*, coatnext_*, maxxvit_* nor maxxvitv2_*."
        )
    parallel = "ParallelMaxxVitBlock" in kinds
    last = blocks[-1].attn if parallel else blocks[-1].attn_grid
    attention = last.attn_grid if parallel else last.attn
    window = tuple(last.partition_size)
    sides = tuple(source.img_size)
    reduction = source.feature_info[-1]["reduction"]
    form = "timm" if attention.head_first else "official"
    positions = attention.rel_pos
    computed = hasattr(positions, "mlp")
    hidden = getattr(source.head, "hidden_size", None)
    return {
        "num_classes": source.num_classes,
        "in_chans": source.stem.conv1.in_channels,
        "img_size": sides,
        "stem_widths": (source.stem.conv1.out_channels, source.stem.conv2.out_channels),
        "widths": tuple(info["num_chs"] for info in source.feature_info[1:]),
        "depths": tuple(len(stage.blocks) for stage in source.stages),
        "window_size": None if window == tuple(side // reduction for side in sides) else window,
        "head_dim": attention.dim_head,
        "form": form,
        "momentum": source.stem.norm1.momentum,
        "positions": "network" if computed else "table",
        "position_hidden": positions.mlp.fc1.out_features if computed else 512,
        "parallel": parallel,
        "layer_scale": None if isinstance(last.ls1, nn.Identity) else 1e-6,
        "head_hidden_size": hidden,
        "drop_rate": source.drop_rate,
        "attn_drop": attention.attn_drop.p,
        "proj_drop": attention.proj_drop.p,
        "drop_path_rate": getattr(last.drop_path2, "drop_prob", 0.0),
    }


register_layout("timm", MaxViT, _pairs, classes=("MaxxVit",), arguments=_arguments)
