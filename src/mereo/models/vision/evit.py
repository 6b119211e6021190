"""EViT: DeiT that drops the patches its class token attends to least, in three of its twelve layers.

Source: Liang, Ge, Tong, Song, Wang, Xie, ICLR 2022, arXiv:2202.07800, and the authors' code.
Cost: 4.0 G, 3.5 G, 3.0 G, 2.6 G and 2.3 G multiply-adds an image for S with keep rates of 0.9 to 0.5; DeiT-S: 4.6 G.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from mereo.core import Coupling
from mereo.errors import UsageError
from mereo.models.base import grid_of_cells
from mereo.models.checkpointing import checkpointed
from mereo.models.layout import register_layout
from mereo.models.registry import IMAGENET, register_model
from mereo.models.vision_transformer import VisionTransformer, transformer_pairs
from mereo.surgery.evit import reduce_blocks


class EViT(VisionTransformer):
    """Classify by a transformer over fewer and fewer patches.

    z = [class, the ceil(r N) patches with the largest class attention a, sum of a_i y_i over the others]

    Args:
        num_classes, in_chans, img_size, patch_size, embed_dim, depth, num_heads, distilled, drop_path_rate: of the
            host, see `VisionTransformer`; its weights have the same names, and fit.
        reducing_layers: numbers of the blocks that drop patches; the first block cannot.
        keep_rates: share of the patches that stay in each of them, r.
        keep_tokens: numbers of patches that stay in each, in place of the rates.
        fuse: keep the patches that leave as one token, the last.

    Shapes: images (batch, in_chans, height, width) -> (batch, num_classes); features (batch, tokens that are left,
        embed_dim), the class token first. There are maps of the blocks before the first reducing one.

    Reads as: kept tokens `blocks.I.kept` int64 (batch, count) are the patches of that block's input that stay, by
        falling attention; `mereo.mechanisms.select.kept_patches` gives their places on the image.

    `mereo.surgery.set_keep_rate` and `scheduled_keep_rate` change the rates during training from scratch.

    Reference: arXiv:2202.07800, section 3 and table 1.
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
        reducing_layers: tuple[int, ...] = (3, 6, 9),
        keep_rates: tuple[float, ...] = (0.7, 0.7, 0.7),
        keep_tokens: tuple[int, ...] = (),
        fuse: bool = True,
        drop_path_rate: float = 0.0,
    ) -> None:
        super().__init__(
            num_classes, in_chans, img_size, patch_size=patch_size, embed_dim=embed_dim, depth=depth,
            num_heads=num_heads, distilled=distilled, drop_path_rate=drop_path_rate,
        )  # fmt: skip
        if not all(isinstance(rate, int | float) for rate in keep_rates) or 0 in reducing_layers:
            raise UsageError(
                f"reducing_layers is {reducing_layers} and keep_rates {keep_rates}; give numbers of blocks from 1, and"
                " a rate for each."
            )
        reduce_blocks(
            self.blocks, self.num_prefix_tokens, keep_rates, reducing_layers, tokens=keep_tokens or None, fuse=fuse
        )
        self.feature_info = self.feature_info[: min(reducing_layers)]
        for block in self.blocks[len(self.feature_info) + 1 :]:
            for module in block.modules():
                if isinstance(module, Coupling):
                    module.of_places = False

    def neck(self, maps: list[Tensor]) -> Tensor:
        """Normalised tokens (batch, tokens that are left, dim), after the blocks with fewer patches."""
        tokens = maps[-1]
        run: Callable[[int, Tensor], Tensor] = lambda index, x: self.blocks[index](x)  # noqa: E731
        if self.grad_checkpointing and self.training and torch.is_grad_enabled():
            run = checkpointed(self, run)
        for index in range(len(self.feature_info), len(self.blocks)):
            tokens = run(index, tokens)
        return self.norm(tokens)

    def place_couplings(self, height: int, width: int) -> None:
        """The first reducing block still sees all patches; behind it, places differ from image to image."""
        super().place_couplings(height, width)
        grid = grid_of_cells(height, width, self.patch_size, prefix=self.num_prefix_tokens, partial=False)
        for module in self.blocks[len(self.feature_info)].modules():
            if isinstance(module, Coupling):
                module.senders = module.receivers = grid


register_layout("official", EViT, transformer_pairs)

TINY: dict[str, Any] = {
    "img_size": 16, "patch_size": 4, "embed_dim": 12, "depth": 3, "num_heads": 3, "num_classes": 10,
    "reducing_layers": (1, 2), "keep_rates": (0.7, 0.5),
}  # fmt: skip
BASE: dict[str, Any] = {"embed_dim": 768, "num_heads": 12}

# Name: parameters (DeiT's, with more positions), side of the images, keep rate, changes.
PRESETS: dict[str, tuple[int, int, float, dict[str, Any]]] = {
    "evit_deit_small": (22_050_664, 224, 0.7, {}),
    "evit_deit_small_272": (22_086_376, 272, 0.7, {}),
    "evit_deit_small_288": (22_099_816, 288, 0.6, {}),
    "evit_deit_small_304": (22_114_024, 304, 0.5, {}),
    "evit_deit_base": (86_567_656, 224, 0.7, BASE),
}

for _name, (_parameters, _side, _rate, _changes) in PRESETS.items():
    _first = _name == "evit_deit_small"
    register_model(
        _name,
        EViT,
        f"DeiT-{'Base' if _changes else 'Small'} for images of {_side} pixels that keeps {_rate:.0%} of its patches in"
        " each of three layers.",
        source="arXiv:2202.07800",
        parameters=_parameters,
        crop_pct=0.9,
        tiny=TINY if _first else None,
        variants={"distilled": {"distilled": True, "fuse": False, "keep_tokens": (9, 4)}} if _first else None,
        aliases={"evit_deit_small": ("evit_deit_s",), "evit_deit_base": ("evit_deit_b",)}.get(_name, ()),
        img_size=_side,
        keep_rates=(_rate,) * 3,
        **IMAGENET,
        **_changes,
    )
