"""DeiT whose tokens attend to the keys that Sparsifiner predicts for them.

Source: Wei, Duke, Jiang, Aarabi, Taylor, Shkurti, CVPR 2023, arXiv:2303.13755.
Cost: attention of DeiT-S takes 186 M multiply-adds with a quarter of the keys where only kept pairs are computed; 358 M
where all are.
"""

from typing import Any

from mereo.layers import TransformerBlock
from mereo.mechanisms.attention.sparse import SparsifinerAttention
from mereo.models.registry import IMAGENET, register_model
from mereo.models.vision_transformer import VisionTransformer


class SparsifinerViT(VisionTransformer):
    """Classify by a transformer whose attention keeps the keys that a predictor of low rank ranks highest.

    keep the b = ceil(keep n) largest entries of each row of A, and all keys for the class token;
    out = W_o [softmax over the kept keys(q k^T / sqrt(d)) v, ...] + b_o

    Args:
        num_classes, in_chans, img_size, patch_size, embed_dim, depth, num_heads, distilled, drop_path_rate: of the
            host, see `VisionTransformer`; its weights have the same names.
        keep: share of the keys that a query keeps.
        rank: rows of the predictor's basis; 0 means a sixth of the number of tokens.
        top_basis, basis_threshold: what is kept of its coefficients and its basis, see `ConnectivityPredictor`.

    The predictors learn in the phase "reconstruction", from the attention of a trained transformer with the same
    weights; `mereo.mechanisms.attention.sparse.set_phase` and `mereo.sparsifiner` have the recipe.

    Reference: arXiv:2303.13755, section 3.
    """

    def __init__(
        self,
        num_classes: int = 1000,
        in_chans: int = 3,
        img_size: int | tuple[int, int] = 224,
        *,
        patch_size: int = 16,
        embed_dim: int = 384,
        depth: int = 12,
        num_heads: int = 6,
        distilled: bool = False,
        keep: float = 0.25,
        rank: int = 0,
        top_basis: int = 8,
        basis_threshold: float = 0.02,
        drop_path_rate: float = 0.0,
    ) -> None:
        super().__init__(
            num_classes, in_chans, img_size, patch_size=patch_size, embed_dim=embed_dim, depth=depth,
            num_heads=num_heads, distilled=distilled, drop_path_rate=drop_path_rate,
        )  # fmt: skip
        for block in self.blocks:
            assert isinstance(block, TransformerBlock)
            block.attn = SparsifinerAttention(
                embed_dim, num_heads, self.num_tokens, keep=keep, rank=rank or None, top_basis=top_basis,
                basis_threshold=basis_threshold, prefix=self.num_prefix_tokens, host=block.attn,
            )  # fmt: skip


TINY: dict[str, Any] = {
    "img_size": 16, "patch_size": 4, "embed_dim": 12, "depth": 2, "num_heads": 3, "num_classes": 10, "keep": 0.5,
    "rank": 5, "top_basis": 3,
}  # fmt: skip

# Name: parameters, summary, arguments.
PRESETS: dict[str, tuple[int, str, dict[str, Any]]] = {
    "sparsifiner_deit_small": (22_251_880, "DeiT-Small whose tokens attend to a quarter of the keys.", {}),
    "sparsifiner_deit_base": (
        86_768_872, "DeiT-Base whose tokens attend to a quarter of the keys.", {"embed_dim": 768, "num_heads": 12},
    ),
    "sparsifiner_cifar": (
        697_378, "Six layers of 96 channels for small images, whose tokens attend to a quarter of the keys.",
        {"img_size": 32, "patch_size": 4, "embed_dim": 96, "depth": 6, "num_heads": 3, "num_classes": 10},
    ),
}  # fmt: skip

for _name, (_parameters, _summary, _given) in PRESETS.items():
    _first = _name == "sparsifiner_deit_small"
    register_model(
        _name,
        SparsifinerViT,
        _summary,
        source="arXiv:2303.13755",
        parameters=_parameters,
        crop_pct=0.9,
        tiny=TINY if _first else None,
        variants={"all keys": {"keep": 1.0, "distilled": True}} if _first else None,
        aliases=(_name.replace("_small", "_s").replace("_base", "_b"),) if "deit" in _name else (),
        **IMAGENET,
        **_given,
    )
