"""Conditional cross-attention network: an embedding of an image for each of its attributes, from one pass.

Source: Song, Hwang, Yoon, Choi, Gu, ICCV 2023, arXiv:2307.13254, of which only the abstract was available.
Cost: that of the vision transformer; each attribute takes a block on one token, without keys and values.
"""

from typing import Any, ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from mereo.core import Coupling
from mereo.core.initialise import xavier_linears
from mereo.errors import UsageError, check_count, check_positive
from mereo.mechanisms.attention import ConditionalCrossAttention, ConditionTokens
from mereo.models.base import grid_of_cells
from mereo.models.registry import IMAGENET, register_model
from mereo.models.vision_transformer import VisionTransformer


class CCA(VisionTransformer):
    """Give an image a vector of length one under each condition, such as an attribute.

    X = the first depth - 1 blocks of a vision transformer;   z_c = cross-attention of condition c to X

    e_c = W norm(z_c) + b, divided by its length

    The last block is a `ConditionalCrossAttention`; `start_from` gives it the weights of a last self-attention.

    Args:
        num_classes: number of conditions.
        in_chans, img_size, patch_size, embed_dim, depth, num_heads, drop_path_rate: see `VisionTransformer`; `depth`
            counts the last block, which is not self-attention.
        out_dim: numbers of an embedding.
        condition: how the token of a condition is made, "lookup" or "mask": see `ConditionTokens`.
        residual: "condition", "cls" or "none": see `ConditionalCrossAttention`.

    Shapes: images (batch, in_chans, height, width) -> (batch, num_classes, out_dim); with a condition, int64 (batch,)
        or weights (batch, num_classes) -> (batch, out_dim). Features are the tokens X, the class token first.

    Reads as: the coupling of the last block, (batch, heads, conditions, tokens), is where each condition looks.

    Deviates: weights start from Xavier's distribution; the paper's start from a trained network.

    Reference: arXiv:2307.13254.
    """

    output_kind: ClassVar[str] = "embeddings"

    def __init__(
        self,
        num_classes: int = 8,
        in_chans: int = 3,
        img_size: int | tuple[int, int] = 224,
        *,
        patch_size: int = 16,
        embed_dim: int = 384,
        depth: int = 12,
        num_heads: int = 6,
        out_dim: int = 512,
        condition: str = "lookup",
        residual: str = "condition",
        drop_path_rate: float = 0.0,
    ) -> None:
        check_count(2, depth=depth)
        check_positive(out_dim=out_dim)
        super().__init__(
            0, in_chans, img_size, patch_size=patch_size, embed_dim=embed_dim, depth=depth, num_heads=num_heads,
            drop_path_rate=drop_path_rate,
        )  # fmt: skip
        self.condition = condition
        self.feature_info = self.feature_info[:-1]
        self.blocks[-1] = ConditionalCrossAttention(self.blocks[-1], residual)
        self.projection = xavier_linears(nn.Linear(embed_dim, out_dim))
        self.reset_classifier(num_classes)

    def reset_parameters(self) -> None:
        """As a vision transformer, but weights from Xavier's distribution, with which narrow networks learn faster."""
        super().reset_parameters()
        xavier_linears(self)

    def start_from(self, vit: nn.Module) -> None:
        """Take the weights of a vision transformer; the last block gets those of its last self-attention.

        Args:
            vit: a `VisionTransformer` of the same sizes, of timm as `mereo.convert(timm.create_model(...))` makes it;
                its classifier is left out.
        """
        own, given = self.state_dict(), {n: x for n, x in vit.state_dict().items() if not n.startswith("head")}
        added = ("head.", "projection.", f"blocks.{len(self.blocks) - 1}.condition_norm.")
        wanted = {name: x for name, x in own.items() if not name.startswith(added)}
        shapes = [{name: x.shape for name, x in each.items()} for each in (wanted, given)]
        if shapes[0] != shapes[1]:
            different = sorted(n for n in {*shapes[0], *shapes[1]} if shapes[0].get(n) != shapes[1].get(n))
            raise UsageError(
                f"vit is a {type(vit).__name__} with other {', '.join(different[:3])}; give a vision transformer of"
                " mereo of the same sizes, without a mechanism."
            )
        self.load_state_dict({**own, **given})

    def tokens(self, images: Tensor) -> Tensor:
        """What all conditions read: (batch, 1 + patches, embed_dim), the class token first."""
        features: Tensor = self.forward_features(images)
        return features

    def embed(self, tokens: Tensor, condition: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
        """The embeddings of images, from `tokens`, under one condition each or under all.

        Args:
            tokens: of `tokens`.
            condition: the number of a condition, or weights of all; None for each of them, which share keys and values.
            mask: tokens that take part; all by default.

        Shapes: (batch, 1 + patches, embed_dim); None -> (batch, num_classes, out_dim); int64 (batch,) or floating
            point (batch, num_classes) -> (batch, out_dim); mask bool (batch, 1 + patches).
        """
        if self.num_classes == 0:
            raise UsageError("num_classes is 0, so that there is no condition; reset_classifier makes some.")
        queries = self.head(condition)
        queries = queries.expand(tokens.shape[0], -1, -1) if condition is None else queries.unsqueeze(1)
        z = self.projection(self.norm(self.blocks[-1](tokens, queries, mask)))
        return F.normalize(z if condition is None else z[:, 0], dim=-1)

    def forward(self, inputs: Tensor, condition: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
        """The embeddings under a condition, or under all: see `embed`."""
        if condition is None and mask is None:
            return super().forward(inputs)
        return self.embed(self.tokens(inputs), condition, mask)

    def stage(self, index: int, inputs: Tensor) -> Tensor:
        return self.blocks[index](super().embed(inputs) if index == 0 else inputs)

    def neck(self, maps: list[Tensor]) -> Tensor:
        return maps[-1]

    def as_map(self, tensor: Tensor, norm: bool) -> Tensor:
        return super().as_map(tensor, False)  # the last norm is for the last block

    def classify(self, features: Tensor) -> Tensor:
        return self.embed(features)

    def make_classifier(self) -> nn.Module:
        return ConditionTokens(self.num_classes, self.num_features, self.condition)

    def place_couplings(self, height: int, width: int) -> None:
        super().place_couplings(height, width)
        grid = grid_of_cells(height, width, self.patch_size, prefix=self.num_prefix_tokens, partial=False)
        for module in self.blocks[-1].modules():
            if isinstance(module, Coupling):
                module.senders = grid

    def layer_depths(self) -> dict[str, int]:
        """As of a vision transformer, the projection with the last block."""
        depths = super().layer_depths()
        return depths | {name: len(self.blocks) for name in depths if name.startswith("projection.")}

    def no_weight_decay(self) -> set[str]:
        return super().no_weight_decay() | {name for name, _ in self.named_parameters() if name == "head.table"}


SIZES: dict[str, dict[str, Any]] = {
    "s16": {},
    "b16": {"embed_dim": 768, "num_heads": 12},
}
TINY: dict[str, Any] = {"img_size": 16, "patch_size": 4, "embed_dim": 12, "depth": 2, "num_heads": 3, "out_dim": 6}

for _size, _parameters in {"s16": 21_866_624, "b16": 86_200_064}.items():
    register_model(
        f"cca_vit_{_size}",
        CCA,
        f"An embedding of 512 numbers for each of 8 attributes, on ViT-{_size[0].upper()}/16, for 224x224 images.",
        source="arXiv:2307.13254",
        parameters=_parameters,
        tiny={**TINY, "num_classes": 3} if _size == "s16" else None,
        variants={"mask": {"condition": "mask", "residual": "cls"}} if _size == "s16" else None,
        reconstruction="only the abstract of the paper was available",
        crop_pct=0.9,
        **{**IMAGENET, "mean": 0.5, "std": 0.5},
        **SIZES[_size],
    )

register_model(
    "cca_tiny",
    CCA,
    "An embedding of 32 numbers for each attribute, three blocks and one of cross-attention, for 32x32 images.",
    source="arXiv:2307.13254",
    parameters=209_824,
    reconstruction="only the abstract of the paper was available",
    num_classes=3,
    img_size=32,
    patch_size=4,
    embed_dim=64,
    depth=4,
    num_heads=4,
    out_dim=32,
    mean=0.5,
    std=0.5,
)
