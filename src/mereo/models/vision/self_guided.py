"""Multi-scale self-guided attention: maps of all scales, refined by two rounds of gated position and channel attention.

Source: Sinha, Dolz 2020, arXiv:1906.02849, and the authors' code, github.com/sinAshish/Multi-Scale-Attention.
Cost: position attention compares the (H / 4)(W / 4) places of a map with each other, eight times, without storing the
comparisons; the two bottlenecks hold 83 % of the parameters above the backbone.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mereo.core import AddedLoss, Coupling, bounded
from mereo.errors import UsageError, check_not_negative, check_positive
from mereo.layers import ConvNorm, GuidedAttention, SemanticBottleneck
from mereo.layers.guided_attention import Attention
from mereo.models.base import grid_of_cells
from mereo.models.on_backbone import OnBackbone
from mereo.models.registry import register_model

LARGEST = 1e6
"""Maps are clamped to this, so that the products of both rounds and their gradients stay finite."""


def _initialise(module: nn.Module) -> None:
    """Xavier for convolutions, N(1, 0.02) for the weights of norms, as the authors' code."""
    if isinstance(module, nn.Conv2d | nn.ConvTranspose2d):
        nn.init.xavier_normal_(module.weight)
    elif isinstance(module, nn.BatchNorm2d):
        nn.init.normal_(module.weight, 1, 0.02)
        nn.init.zeros_(module.bias)


class SelfGuidedNetwork(OnBackbone):
    """Score the classes of each pixel, from the maps of four scales that two rounds of guided attention refine.

    F_s = resize(PReLU(BN(conv1x1(backbone_s)))),   M = fuse([F_4, F_3, F_2, F_1])

    X_s = [F_s, M],   (z_s, R_s) = bottleneck_1(X_s),   A_s = guided_1s(X_s, R_s)

    Y_s = [F_s, A_s * M],   (z'_s, R'_s) = bottleneck_2(Y_s),   D_s = guided_2s(Y_s, R'_s)

    P_s = resize(conv1x1(F_s)),   Q_s = resize(conv1x1(D_s)),   scores = mean_s Q_s

    loss of a task = sum_s loss(P_s) + loss(Q_s),   guide = sum_s MSE(z_s, z'_s),
    reconstruction = sum_s MSE(X_s, R_s) + MSE(Y_s, R'_s)

    "guided" is `GuidedAttention`, with weights for each scale; the bottleneck of a round is shared by its scales.

    Args:
        num_classes, in_chans, img_size: as in timm; sides are multiples of the pixels of a cell of the first map.
        backbone: a network of the catalogue with maps of stages, or "timm:" and a name of timm's. The paper trains it
            from scratch; `create_model(..., weights="timm")` gives it timm's published weights.
        backbone_args: its arguments, beyond channels and size of the images.
        scales: the stages whose maps are taken, the finest first.
        frozen: keep the weights of the backbone.
        width: channels of F, M, A and D.
        attention: "both", or only "position" or "channel".
        gated: make bottlenecks and multiply by what they rebuild; without them there are no added losses.
        rounds: 2, or 1: then D_s is A_s, and there is no guide loss.
        guide_weight, reconstruction_weight: of the added losses "guide" and "reconstruction".

    Shapes: images (batch, in_chans, height, width) -> scores (batch, num_classes, height, width); in training
        (batch, 8, num_classes, height, width), P_1 to P_4 and Q_1 to Q_4 of scales from the finest.

    Deviates: layers of the authors' code that it never calls are not built (955,412 parameters for five classes).

    Reference: arXiv:1906.02849, section 3.
    """

    fixed_input_size = False
    usual_rate = 5.6e-3
    output_kind: ClassVar[str] = "maps"
    classifier_parts: ClassVar[tuple[str, ...]] = ("head", "raw_head")
    unscored_parts: ClassVar[tuple[str, ...]] = ("raw_head",)

    head: Any
    raw_head: Any
    attentions: Any

    def __init__(
        self,
        num_classes: int = 5,
        in_chans: int = 1,
        img_size: int | tuple[int, int] = 64,
        *,
        backbone: str = "resnet20",
        backbone_args: Mapping[str, Any] = {"widths": (16, 32, 64, 128), "blocks": 1, "stem_stride": 4},
        scales: tuple[int, ...] = (0, 1, 2, 3),
        frozen: bool = False,
        width: int = 16,
        attention: Attention = "both",
        gated: bool = True,
        rounds: int = 2,
        guide_weight: float = 0.25,
        reconstruction_weight: float = 0.1,
    ) -> None:
        super().__init__()
        check_positive(width=width)
        check_not_negative(guide_weight=guide_weight, reconstruction_weight=reconstruction_weight)
        if rounds not in (1, 2):
            raise UsageError(f"rounds is {rounds}; it must be 1 or 2.")
        self._build_backbone(backbone, scales, backbone_args, in_chans, img_size, frozen)
        number, self.num_features = len(self.feature_info), width
        self.cell = int(self.feature_info[0]["reduction"])
        self.size_step = (self.cell, self.cell)

        def layer(inputs: int, kernel: int) -> ConvNorm:
            return ConvNorm(inputs, width, kernel, activation=nn.PReLU, bias=True)

        self.projections = nn.ModuleList(layer(int(info["num_chs"]), 1) for info in self.feature_info)
        self.fuse_scales = nn.Sequential(layer(number * width, 3), layer(width, 3), layer(width, 1))
        self.bottlenecks = nn.ModuleList(SemanticBottleneck(2 * width) for _ in range(rounds if gated else 0))
        self.attentions = nn.ModuleList(
            nn.ModuleList(GuidedAttention(2 * width, width, attention=attention, gated=gated) for _ in range(number))
            for _ in range(rounds)
        )
        self.guide = AddedLoss("guide", guide_weight) if gated and rounds == 2 else None
        self.reconstruction = AddedLoss("reconstruction", reconstruction_weight) if gated else None
        self.apply(_initialise)
        self.reset_classifier(num_classes)

    def refine(self, own: Tensor, fused: Tensor, scale: int) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        """All rounds at one scale.

        Args:
            own: F_s, (batch, width, rows, columns).
            fused: M, of that shape.
            scale: s, from 0.

        Returns:
            D_s; the codes z of each round; and X, R, Y, R', the inputs of the bottlenecks, each with its
            reconstruction.
        """
        refined = fused
        codes: list[Tensor] = []
        pairs: list[Tensor] = []
        for index, attentions in enumerate(self.attentions):
            entry = torch.cat((own, fused if index == 0 else bounded(refined, LARGEST) * fused), 1)
            if self.reconstruction is None:
                refined = attentions[scale](entry)
            else:
                code, rebuilt = self.bottlenecks[index](entry)
                codes, pairs = [*codes, code], [*pairs, entry, rebuilt]
                refined = attentions[scale](entry, rebuilt)
        return refined, codes, pairs

    def neck(self, maps: list[Tensor]) -> tuple[Tensor, ...]:
        """F_1 to F_4 and D_1 to D_4, (batch, width, rows, columns) each."""
        size = maps[0].shape[2:]
        own = [
            F.interpolate(bounded(project(each), LARGEST), size, mode="bilinear", align_corners=False)
            for project, each in zip(self.projections, maps, strict=True)
        ]
        fused = bounded(self.fuse_scales(torch.cat(own[::-1], 1)), LARGEST)
        # From the coarsest scale, because the norms of a shared bottleneck remember the last one best.
        order = range(len(own))[::-1]
        refined, codes, pairs = zip(*(self.refine(own[scale], fused, scale) for scale in order), strict=True)
        if self.training:
            if self.guide is not None:
                self.guide(torch.stack([F.mse_loss(first, second) for first, second in codes]).sum())
            if self.reconstruction is not None:
                errors = [F.mse_loss(x, r) for each in pairs for x, r in zip(each[::2], each[1::2], strict=True)]
                self.reconstruction(torch.stack(errors).sum())
        return (*own, *refined[::-1])

    def pool(self, features: tuple[Tensor, ...]) -> Tensor:
        return torch.stack(features[len(features) // 2 :]).mean((0, 3, 4))

    def classify(self, features: tuple[Tensor, ...]) -> Tensor:
        half = len(features) // 2
        refined = [layer(maps) for layer, maps in zip(self.head, features[half:], strict=True)]
        if not self.training:
            return self._resized(torch.stack(refined).mean(0))  # resizing is linear, so that the mean may come first
        raw = [layer(maps) for layer, maps in zip(self.raw_head, features[:half], strict=True)]
        return self._resized(torch.stack(raw + refined, 1).flatten(0, 1)).unflatten(0, (-1, len(features)))

    def _resized(self, scores: Tensor) -> Tensor:
        return F.interpolate(scores, scale_factor=self.cell, mode="bilinear", align_corners=False)

    def make_classifier(self) -> nn.Module:
        layers = (nn.Conv2d(self.num_features, self.num_classes, 1) for _ in self.feature_info)
        return nn.ModuleList(layers).apply(_initialise)

    def _renew_classifier(self) -> None:
        super()._renew_classifier()
        self.raw_head = None if self.num_classes == 0 else self.make_classifier()

    def place_couplings(self, height: int, width: int) -> None:
        super().place_couplings(height, width)
        grid = grid_of_cells(height, width, self.cell)
        for module in self.attentions.modules():
            if isinstance(module, Coupling) and module.of_places:
                module.senders = module.receivers = grid


register_model(
    "self_guided_small",
    SelfGuidedNetwork,
    "Self-guided attention of 16 channels on a residual network of four stages, for the class of each pixel.",
    source="arXiv:1906.02849",
    parameters=1_341_439,
    tiny={"backbone_args": {"widths": (4, 6), "blocks": 1, "stem_stride": 2}, "scales": (0, 1), "width": 4,
          "img_size": 16},
    variants={
        "one round": {"rounds": 1, "attention": "position", "img_size": (16, 20)},
        "without a gate": {"gated": False, "attention": "channel"},
    },
)  # fmt: skip
register_model(
    "self_guided_resnext101",
    SelfGuidedNetwork,
    "Self-guided attention of 64 channels on timm's ResNeXt-101 32x8d, the network of the paper.",
    source="arXiv:1906.02849",
    parameters=103_556_063,
    img_size=256,
    backbone="timm:resnext101_32x8d",
    backbone_args={},
    scales=(1, 2, 3, 4),
    width=64,
)
