"""ViT and DeiT in the sizes that timm names, and the same with a mixture of heads or with Sparsifiner.

Source: Dosovitskiy et al. 2021, arXiv:2010.11929; Touvron et al. 2021, arXiv:2012.12877; mixture of heads: Jin, Zhu,
Yuan, Yan, ICML 2025, arXiv:2410.11842, section 3, whose published vision networks are TransNeXt's; Sparsifiner: Wei,
Duke, Jiang, Aarabi, Taylor, Shkurti, CVPR 2023, arXiv:2303.13755.
Cost: with Sparsifiner, attention of DeiT-S takes 186 M multiply-adds with a quarter of the keys where only kept pairs
are computed; 358 M where all are.
"""

from typing import Any

from mereo.models.layout import register_layout
from mereo.models.registry import IMAGENET, register_model
from mereo.models.vision_transformer import VisionTransformer, transformer_pairs


class ViT(VisionTransformer):
    """The plain vision transformer, ViT and DeiT: see `VisionTransformer` for its arguments and shapes."""


def _arguments(source: Any) -> dict[str, Any]:
    """Ours, from a live network of timm."""
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
        "qkv_bias": block.attn.qkv.bias is not None,
        "distilled": hasattr(source, "dist_token"),
        "drop_path_rate": float(getattr(source.blocks[-1].drop_path1, "drop_prob", 0.0) or 0.0),
    }


register_layout(
    "timm", ViT, transformer_pairs, classes=("VisionTransformer", "VisionTransformerDistilled"), arguments=_arguments
)

TINY: dict[str, Any] = {"img_size": 16, "patch_size": 4, "embed_dim": 12, "depth": 2, "num_heads": 3, "num_classes": 10}
SIZES: dict[str, dict[str, Any]] = {
    "tiny": {"embed_dim": 192, "num_heads": 3},
    "small": {},
    "base": {"embed_dim": 768, "num_heads": 12},
    "large": {"embed_dim": 1024, "num_heads": 16, "depth": 24},
}

# Name: size, parameters, side of the images, whether there is a distillation token.
PRESETS: dict[str, tuple[str, int, int, bool]] = {
    "vit_tiny_patch16_224": ("tiny", 5_717_416, 224, False),
    "vit_tiny_patch16_384": ("tiny", 5_790_376, 384, False),
    "vit_small_patch16_224": ("small", 22_050_664, 224, False),
    "vit_small_patch16_384": ("small", 22_196_584, 384, False),
    "vit_base_patch16_224": ("base", 86_567_656, 224, False),
    "vit_base_patch16_384": ("base", 86_859_496, 384, False),
    "vit_large_patch16_224": ("large", 304_326_632, 224, False),
    "vit_large_patch16_384": ("large", 304_715_752, 384, False),
    "deit_tiny_patch16_224": ("tiny", 5_717_416, 224, False),
    "deit_small_patch16_224": ("small", 22_050_664, 224, False),
    "deit_base_patch16_224": ("base", 86_567_656, 224, False),
    "deit_base_patch16_384": ("base", 86_859_496, 384, False),
    "deit_tiny_distilled_patch16_224": ("tiny", 5_910_800, 224, True),
    "deit_small_distilled_patch16_224": ("small", 22_436_432, 224, True),
    "deit_base_distilled_patch16_224": ("base", 87_338_192, 224, True),
    "deit_base_distilled_patch16_384": ("base", 87_630_032, 384, True),
}

for _name, (_size, _parameters, _side, _distilled) in PRESETS.items():
    _deit, _first = _name.startswith("deit"), _name == "vit_tiny_patch16_224"
    _described: dict[str, Any] = dict(IMAGENET) if _deit else {**IMAGENET, "mean": 0.5, "std": 0.5}
    register_model(
        _name,
        ViT,
        f"{'DeiT' if _deit else 'ViT'}-{_size.capitalize()}{', distilled,' if _distilled else ''} for images of"
        f" {_side} pixels.",
        source="arXiv:2012.12877" if _deit else "arXiv:2010.11929",
        parameters=_parameters,
        crop_pct=1.0 if _side == 384 else 0.9,
        tiny=TINY if _first else None,
        variants={"distilled": {"distilled": True, "img_size": (9, 14), "in_chans": 2}} if _first else None,
        aliases=(_name.removesuffix("_patch16_224"),) if _side == 224 else (),
        img_size=_side,
        distilled=_distilled,
        **_described,
        **SIZES[_size],
    )

SMALL_IMAGES: dict[str, Any] = {"img_size": 32, "patch_size": 4, "embed_dim": 96, "depth": 6, "num_classes": 10}

# Each token uses some heads, and chooses them. In training they add the loss "balance", so that all are used.
register_model(
    "moh_vit_cifar",
    ViT,
    "Six layers of 96 channels for small images; each token uses two shared heads and four of six others.",
    source="arXiv:2410.11842",
    parameters=689_002,
    family="moh_vit",
    tiny={**TINY, "embed_dim": 16, "num_heads": 4, "shared": 1, "active": 2},
    variants={"gates of the text": {"gate": "paper", "shared": 2, "active": 1}},
    short={name: f"mechanism_args.{name}" for name in ("shared", "active", "gate")},
    mechanism="mixture_of_head",
    shared=2,
    active=4,
    num_heads=8,
    **SMALL_IMAGES,
    **IMAGENET,
)

# The predictors learn in the phase "reconstruction", from the attention of a trained transformer with the same weights:
# `mereo.mechanisms.attention.sparse.set_phase` and `mereo.sparsifiner` have the recipe.
# Name: parameters, summary, arguments.
OF_SPARSIFINER: dict[str, tuple[int, str, dict[str, Any]]] = {
    "sparsifiner_deit_small": (22_251_880, "DeiT-Small whose tokens attend to a quarter of the keys.", {}),
    "sparsifiner_deit_base": (86_768_872, "DeiT-Base whose tokens attend to a quarter of the keys.", SIZES["base"]),
    "sparsifiner_cifar": (
        697_378, "Six layers of 96 channels for small images, whose tokens attend to a quarter of the keys.",
        {**SMALL_IMAGES, "num_heads": 3},
    ),
}  # fmt: skip

for _name, (_parameters, _summary, _given) in OF_SPARSIFINER.items():
    _first = _name == "sparsifiner_deit_small"
    register_model(
        _name,
        ViT,
        _summary,
        source="arXiv:2303.13755",
        parameters=_parameters,
        family="sparsifiner_vit",
        crop_pct=0.9,
        tiny={**TINY, "keep": 0.5, "rank": 5, "top_basis": 3} if _first else None,
        variants={"all keys": {"keep": 1.0, "distilled": True}} if _first else None,
        aliases=(_name.replace("_small", "_s").replace("_base", "_b"),) if "deit" in _name else (),
        short={name: f"mechanism_args.{name}" for name in ("keep", "rank", "top_basis", "basis_threshold")},
        mechanism="sparsifiner",
        **IMAGENET,
        **_given,
    )
