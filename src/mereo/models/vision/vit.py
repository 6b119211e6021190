"""ViT and DeiT: the plain vision transformer in the sizes that timm names.

Source: Dosovitskiy et al. 2021, arXiv:2010.11929; Touvron et al. 2021, arXiv:2012.12877.
"""

from typing import Any

from torch import nn

from mereo.errors import UsageError
from mereo.layers.transformer_block import EPS
from mereo.models.layout import register_layout
from mereo.models.registry import IMAGENET, register_model
from mereo.models.vision_transformer import VisionTransformer, transformer_pairs


class ViT(VisionTransformer):
    """The plain vision transformer, ViT and DeiT: see `VisionTransformer` for its arguments and shapes."""


def _arguments(source: Any) -> dict[str, Any]:
    """Ours, from a live network of timm; UsageError for one that differs in what ours has no argument for."""
    block, conv = source.blocks[0], source.patch_embed.proj
    absent = (block.ls1, block.attn.q_norm, block.attn.norm, source.norm_pre, source.fc_norm, source.patch_embed.norm)
    plain = all(isinstance(module, nn.Identity) for module in absent) and type(block).__name__ == "Block"
    plain = plain and isinstance(block.mlp.act, nn.GELU) and isinstance(source.norm, nn.LayerNorm)
    plain = plain and block.norm1.eps == EPS and getattr(block.attn, "gate", None) is None
    if not plain or source.global_pool != "token" or source.cls_token is None or source.reg_token is not None:
        raise UsageError(
            "source is a transformer with LayerScale, registers, other norms, blocks or pooling than ViT and DeiT;"
            " mereo has no counterpart."
        )
    if (
        source.pos_embed is None
        or source.pos_embed.shape[1] != source.num_prefix_tokens + source.patch_embed.num_patches
    ):
        raise UsageError("source has no position for each token; mereo's ViT has one.")
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
