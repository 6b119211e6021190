"""The published HaloNets, timm's hybrids, and how timm lays out their weights.

Sources: Vaswani et al. 2021, arXiv:2103.12731, table 3; timm's own networks with convolutions in the first stages.
"""

from collections.abc import Iterator
from typing import Any

from torch import nn

from mereo.errors import UsageError
from mereo.layers import ConvNorm
from mereo.models.layout import Pair, register_layout
from mereo.models.registry import IMAGENET, register_model
from mereo.models.vision.halonet import ACTIVATIONS, STEMS, HaloNet, HaloNetBlock


def _timm_pairs(model: HaloNet) -> Iterator[Pair]:
    def conv_norm(ours: str, theirs: str) -> Iterator[Pair]:
        yield Pair(f"{ours}.0", f"{theirs}.conv")
        yield Pair(f"{ours}.1", f"{theirs}.bn")

    for i in range(len(model.stem)):
        yield from conv_norm(f"stem.{i}", f"stem.conv{i + 1}")
    yield from conv_norm("enter", f"stem.conv{len(model.stem) + 1}")
    for name, block in model.stages.named_modules(prefix="stages"):
        if not isinstance(block, HaloNetBlock):
            continue
        for ours, theirs in (("shortcut", "shortcut"), ("reduce", "conv1_1x1"), ("expand", "conv3_1x1")):
            yield from conv_norm(f"{name}.{ours}", f"{name}.{theirs}")
        if not isinstance(block.mix, ConvNorm):
            names = {"query": "q", "key_value": "kv", "qkv": "qkv"}
            names |= {"rows": "pos_embed.height_rel", "columns": "pos_embed.width_rel"}
            yield from (Pair(f"{name}.mix.0.{ours}", f"{name}.self_attn.{theirs}") for ours, theirs in names.items())
            yield Pair(f"{name}.mix.1", f"{name}.post_attn")
        else:
            yield from conv_norm(f"{name}.mix", f"{name}.conv2_kxk")
    yield from conv_norm("final", "final_conv")
    yield Pair("head", "head.fc")


_ATTENTION = {"HaloAttn": "h", "BottleneckAttn": "b"}


def _one(what: str, values: set[Any]) -> Any:
    """The single value of a set."""
    if len(values) != 1:
        raise UsageError(f"the ByobNet has {what} {sorted(map(str, values))}; HaloNet has one for all its blocks.")
    return values.pop()


def _refuse_unless(condition: bool, what: str) -> None:
    if not condition:
        raise UsageError(
            f"the ByobNet {what}; of timm's ByobNets mereo converts those of plain bottlenecks and halo attention,"
            " such as halonet26t, halonet50ts and halonet_h1."
        )


def _letter(block: Any) -> str:
    """The kind of a block of timm's; UsageError if it is none of ours."""
    kind = type(block).__name__
    _refuse_unless(kind in ("BottleneckBlock", "SelfAttnBlock"), f"has a {kind}")
    _refuse_unless(block.shortcut is not None, "has a block without a shortcut")
    _refuse_unless(not isinstance(block.act, nn.Identity), "has a block without a last activation")
    if kind == "SelfAttnBlock":
        attention = type(block.self_attn).__name__
        _refuse_unless(attention in _ATTENTION, f"attends by {attention}")
        _refuse_unless(isinstance(block.conv2_kxk, nn.Identity), "has a convolution before its attention")
        _refuse_unless(not block.self_attn.scale_pos_embed, "scales its scores of positions")
        return _ATTENTION[attention]
    extra = (block.conv2b_kxk, block.attn, block.attn_last)
    _refuse_unless(all(isinstance(part, nn.Identity) for part in extra), "has channel attention or more convolutions")
    _refuse_unless(block.conv2_kxk.conv.groups == 1, "has convolutions in groups")
    return "c"


def _timm_arguments(source: Any) -> dict[str, Any]:
    parts = dict(source.stem.named_children())
    pool = parts.pop("pool", None)
    _refuse_unless(all(hasattr(part, "conv") for part in parts.values()), "has a stem without norms")
    stem = [part.conv for part in parts.values()]
    kernel, strides = stem[0].kernel_size[0], [conv.stride[0] for conv in stem]
    _refuse_unless((kernel, len(stem)) in STEMS.values(), f"has a stem of {len(stem)} {kernel}x{kernel} convolutions")
    pooled = isinstance(pool, nn.MaxPool2d) and pool.kernel_size == 3 and strides[1:] == [1] * (len(stem) - 1)
    _refuse_unless(pooled or (pool is None and strides == [2, 1, 2]), "has a stem with other strides or pooling")
    layers = tuple("".join(_letter(block) for block in stage) for stage in source.stages)
    _refuse_unless(any("h" in kinds for kinds in layers), "has no halo attention")
    blocks = [block for stage in source.stages for block in stage]
    attention = [block.self_attn for block in blocks if _letter(block) == "h"]
    widths = tuple(stage[0].conv1_1x1.conv.out_channels for stage in source.stages)
    ratios = {b.conv3_1x1.conv.out_channels / b.conv1_1x1.conv.out_channels for b in blocks}
    heads = [
        _one("numbers of heads", {b.self_attn.num_heads for b in stage if hasattr(b, "self_attn")} or {1})
        for stage in source.stages
    ]
    act = type(blocks[0].act).__name__.lower()
    _refuse_unless(act in ACTIVATIONS, f"has the activation {act}")
    final = source.final_conv
    configuration = getattr(source, "pretrained_cfg", None) or {}
    return {
        "num_classes": source.num_classes,
        "in_chans": stem[0].in_channels,
        "img_size": tuple(configuration.get("input_size", (3, 256, 256))[1:]),
        "stem": next(name for name, value in STEMS.items() if value == (kernel, len(stem))),
        "stem_width": stem[-1].out_channels,
        "stem_pool": pooled,
        "layers": layers,
        "widths": widths,
        "expansion": float(_one("ratios of outputs", ratios)),
        "value_ratio": float(_one("ratios of values", {m.dim_out_v / m.q.in_channels for m in attention})),
        "heads": tuple(heads),
        "block": _one("blocks of", {m.block_size for m in attention}),
        "halo": _one("halos of", {m.halo_size for m in attention}),
        "mask_padding": False,
        "final_width": 0 if isinstance(final, nn.Identity) else final.conv.out_channels,
        "activation": act,
        "drop_rate": float(source.drop_rate),
        "drop_path_rate": float(getattr(blocks[-1].drop_path, "drop_prob", 0.0) or 0.0),
    }


register_layout("timm", HaloNet, _timm_pairs, classes=("ByobNet",), arguments=_timm_arguments)

_SHARED: dict[str, Any] = {"source": "arXiv:2103.12731", "recipe": "halonet", **IMAGENET}


def _preset(
    name: str,
    summary: str,
    parameters: int,
    third: int,
    ratios: tuple[float, float],
    **more: Any,
) -> None:
    """Register a network with attention in all stages, `third` blocks in the third, and (r_v, r_b)."""
    layers = ("hhh", "hhh", "h" * third, "hhh")
    register_model(
        name, HaloNet, summary, parameters=parameters, layers=layers, value_ratio=ratios[0], expansion=ratios[1],
        crop_pct=0.95, **_SHARED, **more,
    )  # fmt: skip


_preset(
    "halonet_h0", "HaloNet-H0: halo attention in all stages, 5.5 million parameters.", 5_502_248, 7, (1.0, 0.5),
    tiny={
        "img_size": 32, "stem_width": 8, "widths": (8, 8, 8, 16), "layers": ("h", "h", "h", "h"), "heads": (2, 2, 2, 2),
        "block": 2, "halo": 1, "num_classes": 5,
    },
    variants={
        "tiered": {"stem": "tiered", "layers": ("c", "ch"), "widths": (8, 8), "heads": (1, 2), "expansion": 2.0,
                   "activation": "silu", "final_width": 12, "mask_padding": True, "value_ratio": 2.0},
        "bottleneck attention": {"stem": "tiered", "stem_pool": False, "layers": ("c", "bb"), "widths": (8, 8),
                                 "heads": (1, 2), "expansion": 2.0},
    },
)  # fmt: skip
_preset(
    "halonet_h1", "HaloNet-H1 as timm has it, with 8 heads in every stage.", 8_100_056, 10, (1.0, 1.0),
    heads=(8, 8, 8, 8),
)  # fmt: skip
_preset("halonet_h1_heads4", "HaloNet-H1 with 4 heads in the first stage, as in the paper.", 8_101_352, 10, (1.0, 1.0))
_preset("halonet_h2", "HaloNet-H2, 9.4 million parameters.", 9_405_608, 11, (1.0, 1.25))
_preset(
    "halonet_h3", "HaloNet-H3 for images of 320 pixels.", 11_842_792, 12, (1.0, 1.5), img_size=320, block=10,
    final_width=1024,
)  # fmt: skip
_preset(
    "halonet_h4", "HaloNet-H4 for images of 384 pixels.", 19_103_464, 12, (1.0, 3.0), img_size=384, block=12, halo=2,
    final_width=1280,
)  # fmt: skip
_preset(
    "halonet_h5", "HaloNet-H5 for images of 448 pixels.", 30_718_952, 23, (2.5, 2.0), img_size=448, block=14, halo=2,
    final_width=1536,
)  # fmt: skip
_preset(
    "halonet_h6", "HaloNet-H6 for images of 512 pixels.", 43_458_280, 24, (3.0, 2.75), img_size=512, halo=4,
    final_width=1536,
)  # fmt: skip
_preset(
    "halonet_h7", "HaloNet-H7 for images of 600 pixels; blocks of 10 do not divide its maps, which are padded.",
    67_434_728, 26, (4.0, 3.5), img_size=600, block=10, final_width=2048,
)  # fmt: skip
register_model(
    "halonet26t",
    HaloNet,
    "A tiered ResNet-26 with halo attention in its last two stages.",
    parameters=12_480_288,
    crop_pct=0.95,
    stem="tiered",
    layers=("cc", "cc", "ch", "hh"),
    expansion=4.0,
    heads=(8, 8, 8, 8),
    halo=2,
    **_SHARED,
)
register_model(
    "halonet50ts",
    HaloNet,
    "A tiered ResNet-50 with SiLU and halo attention in every fourth block of its second stage and then every second.",
    parameters=22_733_280,
    crop_pct=0.94,
    stem="tiered",
    layers=("ccc", "ccch", "chchch", "chc"),
    expansion=4.0,
    heads=(8, 4, 8, 8),
    activation="silu",
    **_SHARED,
)
register_model(
    "halo2botnet50ts_256",
    HaloNet,
    "A tiered ResNet-50 with SiLU, halo attention in two stages and bottleneck attention in the last.",
    parameters=22_635_360,
    crop_pct=0.95,
    aliases=("halo2botnet50ts",),
    stem="tiered",
    stem_pool=False,
    layers=("ccc", "chch", "chchch", "cbc"),
    expansion=4.0,
    heads=(8, 8, 8, 4),
    activation="silu",
    **_SHARED,
)
