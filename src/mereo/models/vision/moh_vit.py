"""A plain vision transformer with mixture-of-head attention: each token uses some heads, and chooses them.

Source: Jin, Zhu, Yuan, Yan, ICML 2025, arXiv:2410.11842, section 3; the published vision networks are TransNeXt's.
"""

from typing import Any

from mereo.layers import TransformerBlock
from mereo.mechanisms.attention.sparse import HeadRouter
from mereo.models.registry import IMAGENET, register_model
from mereo.models.vision_transformer import VisionTransformer
from mereo.surgery.moh import MixtureOfHeads


class MoHViT(VisionTransformer):
    """Classify by a transformer in which each token uses the shared heads and the best of the others.

    out = W_o [g_1 H_1, ..., g_h H_h] + b,   gates g of `mereo.mechanisms.attention.HeadRouter`

    Args:
        num_classes, in_chans, img_size, patch_size, embed_dim, depth, num_heads, distilled, drop_path_rate: of the
            host, see `VisionTransformer`; its weights have the same names.
        shared: heads that always act.
        active: routed heads that act for a token.
        gate: form of the gates, "code" or "paper".

    In training it adds the loss "balance", so that all heads are used: `mereo train` sums it, a loop of your own takes
    it from `mereo.added_losses(model)`.

    Reads as: gates `blocks.I.attn.router.gates` (batch, tokens, heads) are how much each token takes of each head.

    Reference: arXiv:2410.11842, section 3.
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
        shared: int = 2,
        active: int = 2,
        gate: str = "code",
        drop_path_rate: float = 0.0,
    ) -> None:
        super().__init__(
            num_classes, in_chans, img_size, patch_size=patch_size, embed_dim=embed_dim, depth=depth,
            num_heads=num_heads, distilled=distilled, drop_path_rate=drop_path_rate,
        )  # fmt: skip
        for block in self.blocks:
            assert isinstance(block, TransformerBlock)
            block.attn = MixtureOfHeads(block.attn, HeadRouter(embed_dim, num_heads, shared, active, gate))


TINY: dict[str, Any] = {
    "img_size": 16, "patch_size": 4, "embed_dim": 16, "depth": 2, "num_heads": 4, "num_classes": 10, "shared": 1,
    "active": 2,
}  # fmt: skip

register_model(
    "moh_vit_cifar",
    MoHViT,
    "Six layers of 96 channels for small images; each token uses two shared heads and four of six others.",
    source="arXiv:2410.11842",
    parameters=689_002,
    tiny=TINY,
    variants={"gates of the text": {"gate": "paper", "shared": 2, "active": 1}},
    img_size=32,
    patch_size=4,
    embed_dim=96,
    depth=6,
    num_heads=8,
    shared=2,
    active=4,
    num_classes=10,
    **IMAGENET,
)
