"""The published HaloNets and timm's hybrids.

Sources: Vaswani et al. 2021, arXiv:2103.12731, table 3; timm's own networks with convolutions in the first stages, one
of them of the blocks of RegNet-Z (arXiv:2103.06877).
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from mereo.models.registry import IMAGENET, register_model
from mereo.models.vision.halonet import HaloNet

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
        "inverted": {"stem": "3x3", "stem_pool": False, "layers": ("cc", "chh"), "widths": (24, 24), "heads": (1, 2),
                     "outputs": (8, 8), "inverted": True, "group_size": 4, "gate": "squeeze_excite", "gate_ratio": 0.25,
                     "key_ratios": (1.0, 0.5)},
        "lambda attention": {"layers": ("cc", "ll"), "widths": (8, 8), "heads": (1, 2), "scope": 3,
                             "gate": "efficient_channel"},
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
_register: Callable[..., None] = partial(
    register_model, module=HaloNet, crop_pct=0.94, stem="tiered", heads=(8, 8, 8, 8), **_SHARED
)

_register(
    "halonet26t",
    summary="A tiered ResNet-26 with halo attention in its last two stages.",
    parameters=12_480_288,
    crop_pct=0.95,
    layers=("cc", "cc", "ch", "hh"),
    expansion=4.0,
    halo=2,
)
_register(
    "halonet50ts",
    summary="A tiered ResNet-50 with SiLU and halo attention in the fourth block of stage 2 and then in every second.",
    parameters=22_733_280,
    layers=("ccc", "ccch", "chchch", "chc"),
    expansion=4.0,
    heads=(8, 4, 8, 8),
    activation="silu",
)
_register(
    "halo2botnet50ts_256",
    summary="A tiered ResNet-50 with SiLU, halo attention in two stages and bottleneck attention in the last.",
    parameters=22_635_360,
    crop_pct=0.95,
    aliases=("halo2botnet50ts",),
    stem_pool=False,
    layers=("ccc", "chch", "chchch", "cbc"),
    expansion=4.0,
    heads=(8, 8, 8, 4),
    activation="silu",
)
_register(
    "sehalonet33ts",
    summary="A tiered ResNet-33 with SiLU, squeeze and excite, and halo attention in its last three stages.",
    parameters=13_691_712,
    stem_pool=False,
    layers=("cc", "cch", "cch", "hh"),
    outputs=(256, 512, 1024, 1536),
    gate="squeeze_excite",
    final_width=1280,
    activation="silu",
)
_register(
    "eca_halonext26ts",
    summary="A tiered ResNeXt-26 with SiLU, efficient channel gates and halo attention in its last two stages.",
    parameters=10_756_885,
    layers=("cc", "cc", "ch", "hh"),
    expansion=4.0,
    group_size=16,
    gate="efficient_channel",
    key_ratios=(1.0, 1.0, 0.5, 0.25),
    halo=2,
    activation="silu",
)
_register(
    "haloregnetz_b",
    summary="RegNet-Z with SiLU, squeeze and excite, and halo attention in its last two stages.",
    parameters=11_680_072,
    img_size=224,
    stem="3x3",
    stem_width=32,
    stem_pool=False,
    layers=("cc", "cccccc", "ccchccchccch", "hh"),
    widths=(144, 288, 576, 864),
    outputs=(48, 96, 192, 288),
    inverted=True,
    group_size=16,
    gate="squeeze_excite",
    gate_ratio=0.25,
    key_ratios=(1 / 3, 1 / 3, 1 / 3, 1 / 3),
    block=7,
    halo=2,
    final_width=1536,
    activation="silu",
    mean=(0.5, 0.5, 0.5),
    std=(0.5, 0.5, 0.5),
)
_register(
    "lamhalobotnet50ts_256",
    summary="A tiered ResNet-50 with SiLU, lambda attention in its second stage, halo and then bottleneck attention.",
    parameters=22_569_824,
    crop_pct=0.95,
    aliases=("lamhalobotnet50ts",),
    stem_pool=False,
    layers=("ccc", "clcl", "chchch", "cbc"),
    expansion=4.0,
    heads=(8, 4, 8, 4),
    key_ratios=(1.0, 0.5, 1.0, 1.0),
    scope=13,
    activation="silu",
)
