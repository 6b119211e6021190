"""ParseCaps: fewer and larger capsules with depth, attention between them, and numbers that may stand for concepts.

Source: Geng, Wang, Xu 2024, arXiv:2411.01564, and the authors' code, https://github.com/ornamentt/Parsecaps
Cost: 0.10 G multiply-adds an image of 32x32, 0.42 of 64x64, nearly all in the stem.
"""

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from mereo.core import AddedLoss, Capsules, Grid, bounded
from mereo.core.shapes import image_size
from mereo.errors import UsageError, check_choice, check_heads, check_positive, check_probability
from mereo.layers.capsules import ClassIndependentDecoder
from mereo.layers.capsules.attending import ROUTINGS, CapsuleCell, CapsuleStage
from mereo.mechanisms.routing import PositionRouting
from mereo.models.capsule_classifier import CapsuleClassifier
from mereo.models.registry import register_model

SLOPE = 0.01
DECODER = (64, 32, 16)
"""Channels inside the decoder."""


class PrimaryStage(nn.Module):
    """depthwise conv 3x3 with stride 2 -> LeakyReLU -> conv 1x1 -> cells -> GELU

    Args:
        channels: of the map below.
        dim: numbers in a capsule.
        depth, num_heads, routing: of the cells.
        public_view: read the numbers of a map as capsules without moving the axis of the numbers to the end, as the
            authors' code does, so that a capsule holds neighbouring cells of few channels.

    Shapes: maps (batch, channels, rows, columns) -> (batch, dim, ceil(rows / 2), ceil(columns / 2)).
    """

    def __init__(
        self, channels: int, dim: int, depth: int, num_heads: int = 1, *, routing: str, public_view: bool
    ) -> None:
        super().__init__()
        check_heads(dim, num_heads)
        self.public_view = public_view
        self.make = nn.Sequential(
            nn.Conv2d(channels, channels, 3, 2, 1, groups=channels), nn.LeakyReLU(SLOPE), nn.Conv2d(channels, dim, 1)
        )
        self.cells = nn.Sequential(*(CapsuleCell(dim, num_heads, routing=routing) for _ in range(depth)))

    def forward(self, maps: Tensor) -> Tensor:
        made = self.make(maps)
        if self.public_view:
            dim, rows, columns = made.shape[1:]
            capsules = made.reshape(made.shape[0], rows, columns, dim)
        else:
            capsules = made.permute(0, 2, 3, 1)
        capsules = self.cells(capsules)
        return nn.functional.gelu(capsules.permute(0, 3, 1, 2))


class ClassCapsules(nn.Module):
    """dropout -> conv 3x3 -> `PositionRouting`

    Args:
        dim: numbers in a capsule.
        positions: that the convolution leaves.
        stride: of the convolution.
        classes: how many.
        dropout: of the numbers of the map, in training.
        batch_stats, public_view: see `PositionRouting`.

    Shapes: maps (batch, dim, rows, columns) -> (batch, classes, dim).
    """

    def __init__(
        self,
        dim: int,
        positions: int,
        classes: int,
        dropout: float,
        batch_stats: bool,
        stride: int = 2,
        public_view: bool = False,
    ) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.conv = nn.Conv2d(dim, dim, 3, stride, 1)
        self.routing = PositionRouting(positions, classes, batch_stats=batch_stats, public_view=public_view)

    def forward(self, maps: Tensor) -> Tensor:
        return self.routing(self.conv(self.dropout(maps)).flatten(2).transpose(1, 2))


def correlation_penalty(capsules: Tensor) -> Tensor:
    """Mean square of the correlations between different numbers of capsules, over the batch.

    Shapes: (batch, dim) -> (), 0 if nothing varies.
    """
    wide = capsules.float() if capsules.dtype in (torch.float16, torch.bfloat16) else capsules
    centred = wide - wide.mean(0)
    covariance = centred.T @ centred / max(len(wide), 1)
    variance = covariance.diagonal()
    scale = torch.outer(variance, variance) + 1e-12
    off = 1 - torch.eye(len(variance), dtype=wide.dtype, device=wide.device)
    pairs = max(len(variance) * (len(variance) - 1), 1)
    return (off * covariance.square() / scale).sum() / pairs


def capsules_of(capsules: Capsules, classes: Tensor) -> Tensor:
    """One class capsule of each image: int64 (batch,) -> (batch, dim)."""
    return capsules.pose[torch.arange(len(classes), device=classes.device), classes]


class Decorrelation(AddedLoss):
    """The loss "decorrelation": `correlation_penalty` of the capsules of the labels, for images of one class."""

    def term(self, recorded: Capsules, labels: Tensor | None) -> Tensor | None:
        if labels is None or labels.dim() != 1:
            return None
        return correlation_penalty(capsules_of(recorded, labels))


class ParseCaps(CapsuleClassifier):
    """Classify by stages of capsules that attend to each other, and read concepts off the class capsule.

    image -> convolutions, BN, ReLU -> primary capsules -> two stages -> class capsules;   concepts = W v_class + b

    A capsule is a cell of a map, and its numbers are the channels. The score of a class is |v|, below 0.85 sqrt(dim).
    All scores start near 2.8, so the margins 0.1 and 0.9 of the margin loss fit only `scaled` ones; by default the loss
    is the cross-entropy of the lengths.

    Args:
        num_classes, in_chans, img_size: as in timm.
        stem: channels of the first three convolutions.
        dims: channels of the fourth, and numbers in a capsule of the primary map and of the two stages.
        depths: cells of the primary map and of the stages.
        num_heads: of the attention of these.
        routing: "conv" as the authors' code, or "axial", the paper's idea, see `SparseAxialRouting`.
        drop_path: of the last cell of the last stage, in training, rising from 0 in its first.
        dropout: of the numbers of the last map, in training.
        class_stride: 2, or 1, of the convolution before the class capsules.
        num_concepts: scores of concepts; 0 for none.
        scaled: divide the lengths by sqrt(dim), so that they are in (0, 0.85).
        decorrelation: weight of `correlation_penalty` of the class capsule in the loss. Above 0 the decoder reads
            capsules that lose one number, drawn for each image, in training.
        decoder: have a decoder that rebuilds the image from one class capsule.
        public_view, batch_stats: as the authors' code, see `PrimaryStage` and `PositionRouting`.
        public_classes: give each class numbers of its own, as the authors' code does, see `public_view` of
            `PositionRouting`. Without it all classes read the same numbers by functions of their positions, and few
            positions separate few classes.

    Shapes: images (batch, in_chans, height, width) -> lengths (batch, num_classes).

    Deviates: sides need not be divisible by 32; a `class_stride` of 1 is ours. In evaluation there is no dropout and,
        unless `batch_stats`, the norm before the classes has running statistics; the authors' code has both always on.
        The decorrelation, the axial form and the loss of the concepts are ours.

    Reference: arXiv:2411.01564. With `public_view` and `batch_stats`, and without their dropout, lengths, concepts and
        gradients equal the authors' code with the same weights, to 1e-14 in float64.
    """

    unscored_parts = ("decoder", "concepts")
    first_conv = "stages.0.0"
    scores_are_lengths = False
    default_loss = "cross_entropy"

    def __init__(
        self,
        num_classes: int = 10,
        in_chans: int = 3,
        img_size: int | tuple[int, int] = 32,
        *,
        stem: tuple[int, int, int] = (32, 64, 128),
        dims: tuple[int, int, int, int] = (8, 16, 36, 64),
        depths: tuple[int, int, int] = (1, 2, 5),
        num_heads: tuple[int, int, int] = (1, 1, 1),
        routing: str = "conv",
        drop_path: float = 0.1,
        dropout: float = 0.3,
        class_stride: int = 2,
        num_concepts: int = 10,
        scaled: bool = False,
        decorrelation: float = 0.0,
        decoder: bool = False,
        public_view: bool = False,
        batch_stats: bool = False,
        public_classes: bool = True,
    ) -> None:
        super().__init__()
        check_positive(stem=min(stem), dims=min(dims))
        check_probability(drop_path=drop_path, dropout=dropout)
        check_choice("routing", routing, ROUTINGS)
        if class_stride not in (1, 2):
            raise UsageError(f"class_stride is {class_stride}; it must be 1 or 2.")
        if min(depths) < 0 or num_concepts < 0 or not decorrelation >= 0:
            raise UsageError(
                f"depths is {depths}, num_concepts {num_concepts}, decorrelation {decorrelation}; they must be at"
                " least 0."
            )
        self.image_shape, self.with_decoder = (in_chans, *image_size(img_size)), decoder
        self.dropout, self.batch_stats, self.scaled = dropout, batch_stats, scaled
        self.class_stride, self.public_classes = class_stride, public_classes
        self.dim, decorrelates = dims[-1], decorrelation > 0
        self.decorrelates = Decorrelation("decorrelation", decorrelation) if decorrelates else None
        convolutions: list[nn.Module] = []
        for inputs, outputs, kernel, stride in zip(
            (in_chans, *stem), (*stem, dims[0]), (5, 3, 3, 3), (1, 1, 1, 2), strict=True
        ):
            convolution = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2)
            convolutions += [convolution, nn.BatchNorm2d(outputs), nn.ReLU()]
        primary = PrimaryStage(dims[0], dims[1], depths[0], num_heads[0], routing=routing, public_view=public_view)
        stages: list[nn.Module] = [nn.Sequential(*convolutions), primary]
        for number, rate in ((1, 0.0), (2, drop_path)):
            sizes = dims[number], dims[number + 1], depths[number], num_heads[number]
            stages.append(CapsuleStage(*sizes, routing=routing, drop_path=rate))
        self.stages = nn.ModuleList(stages)
        self.feature_info = [
            {"num_chs": dims[i], "reduction": 2 ** (i + 1), "module": f"stages.{i}"} for i in range(len(stages))
        ]
        for i, stage in enumerate(stages):
            for module in stage.modules():
                if isinstance(module, CapsuleCell):
                    module.place(self._grid(i + 1))
        self.concepts = nn.Linear(self.dim, num_concepts) if num_concepts else None
        last = self._grid(len(stages))
        self.num_features = self.dim * last.rows * last.columns
        self.reset_classifier(num_classes)

    @classmethod
    def older_arguments(cls, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Files written before there was `public_classes` have classes that all read the same numbers."""
        return {} if "public_classes" in arguments else {"public_classes": False}

    def _grid(self, halvings: int, prefix: int = 0) -> Grid:
        """Where the cells of a map are, given the number of convolutions with stride 2."""
        step = 2**halvings
        rows, columns = (math.ceil(side / step) for side in self.image_shape[1:])
        return Grid(rows, columns, 1, 0.5, step, prefix=prefix)

    def make_classifier(self) -> nn.Module:
        grid = self._grid(len(self.stages) + self.class_stride - 1, prefix=1)
        head = ClassCapsules(
            self.dim, grid.rows * grid.columns, self.num_classes, self.dropout, self.batch_stats, self.class_stride,
            self.public_classes,
        )  # fmt: skip
        head.routing.coupling.senders = grid
        return head

    def make_decoder(self) -> nn.Module | None:
        return ClassIndependentDecoder(self.dim, self.image_shape, DECODER) if self.with_decoder else None

    @property
    def score_kind(self) -> str:
        return "activations" if self.scaled else "logits"

    def score(self, poses: Tensor) -> Tensor:
        return super().score(poses) * (self.dim**-0.5 if self.scaled else 1.0)

    def stage(self, index: int, inputs: Tensor) -> Tensor:
        # Norms of capsules square what leaves the convolutions.
        return self.stages[index](bounded(inputs) if index == 1 else inputs)

    def chosen(self, capsules: Capsules, classes: Tensor | None = None) -> Tensor:
        """The capsule of each image that counts: of `classes` (batch,), or the longest: (batch, dim)."""
        return capsules_of(capsules, capsules.activation.argmax(1) if classes is None else classes)

    def concept_scores(self, capsules: Capsules, classes: Tensor | None = None) -> Tensor:
        """Logits of the concepts, read off one class capsule of each image.

        Args:
            capsules: from `capsules(images)`.
            classes: int64 (batch,), the labels in training; the longest capsule when None.

        Shapes: -> (batch, num_concepts).
        """
        if self.concepts is None:
            raise UsageError("num_concepts is 0, so there are no scores of concepts; make the network with some.")
        return self.concepts(self.chosen(capsules, classes))

    def concept_loss(self, capsules: Capsules, concepts: Tensor, classes: Tensor | None = None) -> Tensor:
        """Binary cross-entropy of the scores of the concepts, the mean over images and concepts.

        Add it to the loss of the classes in a training loop of your own: no data set of `mereo train` has concepts.

        Args:
            capsules, classes: as for `concept_scores`.
            concepts: 1 for each that an image shows, else 0, (batch, num_concepts).
        """
        scores = self.concept_scores(capsules, classes).float()
        if concepts.shape != scores.shape:
            raise UsageError(f"concepts are {tuple(concepts.shape)}; they must be {tuple(scores.shape)}.")
        return nn.functional.binary_cross_entropy_with_logits(scores, concepts.to(scores.dtype))

    def reconstruct(self, capsules: Capsules, classes: Tensor | None = None) -> Tensor:
        if self.training and self.decorrelates is not None:
            poses = capsules.pose
            left_out = torch.randint(self.dim, (poses.shape[0], 1, 1), device=poses.device)
            kept = torch.arange(self.dim, device=poses.device) != left_out
            capsules = Capsules(poses * kept, capsules.activation)
        return super().reconstruct(capsules, classes)

    def class_capsules(self, features: Tensor) -> Capsules:
        capsules = super().class_capsules(features)
        if self.decorrelates is not None:
            self.decorrelates(capsules)
        return capsules


_register = partial(register_model, module=ParseCaps, source="arXiv:2411.01564", recipe="parsecaps")

_register(
    "parsecaps",
    summary="ParseCaps for colour images of 32x32: capsules of 16, 36 and 64 numbers.",
    parameters=496_460,
    tiny={
        "img_size": 40, "stem": (4, 4, 6), "dims": (4, 4, 6, 8), "depths": (1, 1, 2), "num_heads": (1, 2, 2),
        "num_concepts": 3,
    },
    variants={
        "axial, decoder": {"routing": "axial", "decoder": True, "scaled": True, "decorrelation": 0.01},
        "shared numbers": {"public_classes": False, "num_concepts": 0, "depths": (1, 1, 1)},
        "public code": {"public_view": True, "img_size": (36, 33), "num_concepts": 0},
    },
)  # fmt: skip
_register(
    "parsecaps_224",
    summary="ParseCaps for colour images of 224x224.",
    parameters=502_316,
    img_size=224,
)
_register(
    "parsecaps_wide",
    summary="A wider ParseCaps that the authors' code names: capsules of 64, 192 and 384 numbers, up to 6 heads.",
    parameters=22_044_348,
    img_size=224,
    dims=(16, 64, 192, 384),
    depths=(1, 2, 10),
    num_heads=(1, 3, 6),
)
_register(
    "parsecaps_small",
    summary="A small ParseCaps for grey images resized to 52x52, ours, with 16 positions before the class capsules.",
    parameters=397_780,
    recipe="parsecaps_digits",
    in_chans=1,
    img_size=52,
    stem=(8, 16, 16),
    class_stride=1,
)
