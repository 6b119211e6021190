"""RS-CapsNet: capsules of three sizes from a Res2Net stem, combined to few before they are routed to the classes.

Source: Yang, Lee, Miao, Cai, Chen, Yao, Kotani, Chen, "RS-CapsNet: an advanced capsule network", IEEE Access 8,
2020, doi:10.1109/ACCESS.2020.2992655.
Neither its text nor code was available: the mechanisms follow title and abstract, as their own papers define
them, and widths are ours, chosen for the published 5.0 million parameters.
Cost at 32x32: about 0.16 G multiply-adds an image, nearly all in the convolutions.
"""

import math
from functools import partial

from torch import Tensor, nn

from mereo.core import Grid, squash
from mereo.core.shapes import image_size
from mereo.errors import UsageError, check_positive, check_steps
from mereo.layers import ConvNorm, Res2SEBlock
from mereo.layers.capsules import MultiScalePrimaryCapsules
from mereo.mechanisms.routing import DynamicRouting, LinearCombinationCaps
from mereo.models.capsule_classifier import CapsuleClassifier
from mereo.models.registry import register_model

SOURCE = "doi:10.1109/ACCESS.2020.2992655"
RECONSTRUCTION = "only title and abstract were available"
MOST_BLOCKS = 100
"""Largest number of blocks of a stage."""


class RSCapsNet(CapsuleClassifier):
    """Classify by capsules of three maps, which are combined linearly before dynamic routing.

    image -> conv 3x3 -> 3 stages of Res2Net blocks with gates, each half as large -> capsules of all three maps
        -> linear combination, squash -> dynamic routing -> class capsules

    Args:
        num_classes, in_chans, img_size: as in timm.
        stem: channels of the first convolution.
        channels: of the three stages.
        blocks: of each stage, the first with stride 2.
        scale: groups of a block.
        reduction: of the channels, inside the gates.
        types: kinds of capsules of each map.
        dim: numbers in a capsule.
        combined: how many capsules the combination makes.
        normalise: of its weights, see `LinearCombinationCaps`.
        squash_before: squash the capsules of the maps too; after the combination they always are.
        class_dim: pose size of a class capsule.
        routing_steps: passes of the routing.
        decoder: have a decoder that rebuilds the image from the class capsules.

    Shapes: images (batch, in_chans, height, width) -> lengths (batch, num_classes).

    Deviates: all sizes are ours, see the module; whether the paper squashes before the combination is not confirmed.

    Reference: RS-CapsNet, IEEE Access 2020. There is no public code; the network equals loops over the equations above.
    """

    first_conv = "stages.0.0.0"
    neck_inputs = (0, 1, 2)

    def __init__(
        self,
        num_classes: int = 10,
        in_chans: int = 3,
        img_size: int | tuple[int, int] = 32,
        *,
        stem: int = 64,
        channels: tuple[int, int, int] = (128, 256, 512),
        blocks: int = 2,
        scale: int = 4,
        reduction: int = 16,
        types: tuple[int, int, int] = (2, 16, 32),
        dim: int = 8,
        combined: int = 256,
        normalise: str = "none",
        squash_before: bool = True,
        class_dim: int = 16,
        routing_steps: int = 3,
        decoder: bool = False,
    ) -> None:
        super().__init__()
        check_positive(stem=stem, channels=min(channels), blocks=blocks, types=min(types))
        check_positive(combined=combined, class_dim=class_dim)
        check_steps(1, routing_steps=routing_steps)
        if blocks > MOST_BLOCKS:
            raise UsageError(f"blocks is {blocks}; it must be at most {MOST_BLOCKS}.")
        self.image_shape, self.with_decoder = (in_chans, *image_size(img_size)), decoder
        self.dim, self.combined, self.class_dim, self.routing_steps = dim, combined, class_dim, routing_steps
        stages, inputs, grids = [], stem, []
        for i, (width, kinds) in enumerate(zip(channels, types, strict=True)):
            entry = [ConvNorm(in_chans, stem, 3, activation=nn.ReLU)] if i == 0 else []
            made = [Res2SEBlock(width if n else inputs, width, 1 if n else 2, scale, reduction) for n in range(blocks)]
            stages.append(nn.Sequential(*entry, *made))
            step, inputs = 2 ** (i + 1), width
            rows, columns = (math.ceil(side / step) for side in self.image_shape[1:])
            grids.append(Grid(rows, columns, kinds, step / 2, step, feeds=0))
        self.stages, self.num_features = nn.ModuleList(stages), combined * dim
        self.feature_info = [
            {"num_chs": width, "reduction": 2 ** (i + 1), "module": f"stages.{i}"} for i, width in enumerate(channels)
        ]
        fine, middle, coarse = grids
        placed = fine._replace(after=middle._replace(after=coarse))
        self.primary = MultiScalePrimaryCapsules(channels, types, dim, squashed=squash_before)
        self.combination = LinearCombinationCaps(placed.size, combined, normalise=normalise)
        self.combination.coupling.senders = placed
        entries = [module[0] for module in self.modules() if isinstance(module, ConvNorm)]
        for convolution in (*entries, *self.primary.convs):
            assert isinstance(convolution, nn.Conv2d)
            nn.init.kaiming_normal_(convolution.weight, mode="fan_out", nonlinearity="relu")
            if convolution.bias is not None:
                nn.init.zeros_(convolution.bias)
        self.reset_classifier(num_classes)

    def make_classifier(self) -> nn.Module:
        head = DynamicRouting(self.combined, self.num_classes, self.dim, self.class_dim, steps=self.routing_steps)
        nn.init.normal_(head.weight, std=0.1)
        return head

    def neck(self, maps: list[Tensor]) -> Tensor:
        """The combined capsules: (batch, combined, dim)."""
        return squash(self.combination(self.primary(maps)))


_register = partial(register_model, module=RSCapsNet, source=SOURCE, reconstruction=RECONSTRUCTION, recipe="rs_capsnet")

_register(
    "rs_capsnet",
    summary="RS-CapsNet for 32x32 colour images: 5.0 million parameters.",
    parameters=4_984_256,
    tiny={
        "img_size": 12,
        "stem": 8,
        "channels": (8, 8, 12),
        "reduction": 1,
        "types": (1, 2, 2),
        "dim": 4,
        "combined": 6,
    },
    variants={
        "decoder": {"img_size": (10, 13), "decoder": True, "scale": 1, "blocks": 1, "squash_before": False},
        "softmax": {"normalise": "softmax", "routing_steps": 1, "scale": 2},
    },
)
_register(
    "rs_capsnet_small",
    summary="A small RS-CapsNet with one block a stage, ours.",
    parameters=130_951,
    stem=16,
    channels=(16, 32, 64),
    blocks=1,
    types=(1, 4, 8),
    combined=32,
)
