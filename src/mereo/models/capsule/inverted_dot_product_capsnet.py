"""Capsules with inverted dot-product attention routing: all layers are updated together, pass by pass.

Source: Tsai, Srivastava, Goh, Salakhutdinov 2020, arXiv:2002.04764, and the authors' code.
Cost at 32x32 with the residual backbone: 0.4 G multiply-adds an image, a tenth of them in the capsules.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from mereo.core import Capsules, Grid, bounded
from mereo.core.modes import must_be_called
from mereo.core.shapes import conv_out, image_size
from mereo.core.window_votes import WindowVotes
from mereo.errors import UsageError, check_choice, check_positive, check_steps
from mereo.layers import BasicBlock, ConvNorm
from mereo.layers.capsules import ConvCapsules
from mereo.mechanisms.routing import InvertedDotProductRouting, InvertedDotProductVoteRouting
from mereo.mechanisms.routing.inverted_dot_product import square_side
from mereo.models.base import Features
from mereo.models.capsule_classifier import CapsuleClassifier
from mereo.models.registry import register_model

BACKBONES = ("resnet", "simple")
SCHEDULES = ("concurrent", "sequential")


class ConvLayer(nn.Module):
    """A convolution of capsules whose parents are updated one pass at a time.

    Args:
        types, dim: of capsules, and their pose size, a square.
        stride: of the windows of 3x3.
        steps, dropout: of the routing.

    Shapes: maps (batch, types, dim, rows, columns).
    """

    def __init__(self, types: int, dim: int, stride: int, steps: int, dropout: float) -> None:
        super().__init__()
        side = square_side(dim)
        self.capsules = ConvCapsules(
            types, types, 3, stride, in_pose=(side, side), compete="window", routing="inverted_dot_product",
            routing_options={"steps": steps, "dropout": dropout},
        )  # fmt: skip
        nn.init.normal_(self.capsules.weight, std=(types / (side * types * 9)) ** 0.5)

    def votes_of(self, maps: Tensor) -> WindowVotes:
        """The votes in every window."""
        return self.capsules.votes(maps.unflatten(2, self.capsules.in_pose))

    def update(self, votes: WindowVotes, parents: Tensor | None) -> Tensor:
        """One pass: (batch * windows, types, dim)."""
        assert isinstance(self.capsules.routing, InvertedDotProductVoteRouting)
        return self.capsules.routing.update(votes, parents)

    def place(self, parents: Tensor, votes: WindowVotes) -> Tensor:
        """The parents of all windows as maps."""
        assert votes.windows is not None
        return votes.windows.place(parents)


class FullLayer(InvertedDotProductRouting):
    """A layer between all capsules of the one below and a few; with the methods of `ConvLayer`."""

    def votes_of(self, children: Tensor, mask: Tensor | None = None) -> WindowVotes:
        return super().votes_of(as_list(children), mask)

    def place(self, parents: Tensor, votes: WindowVotes) -> Tensor:
        """The parents as they are."""
        return parents


class ClassCapsules(InvertedDotProductRouting):
    """The capsules of the classes, and the linear layer that scores each of them alike."""

    def __init__(self, senders: int, classes: int, dim: int, *, steps: int, dropout: float) -> None:
        super().__init__(senders, classes, dim, steps=steps, dropout=dropout)
        self.scores = nn.Linear(dim, 1)

    def forward(self, *children: Tensor) -> Tensor:  # type: ignore[override]
        """Poses (batch, classes, dim) from the children of each pass, see `over_passes`; one tensor is of all."""
        return self.over_passes(children if len(children) > 1 else children * max(self.steps - 1, 1))


def as_list(capsules: Tensor) -> Tensor:
    """Maps (batch, types, dim, rows, columns) as capsules by type, row and column (batch, capsules, dim)."""
    return capsules.movedim(2, -1).flatten(1, 3) if capsules.dim() == 5 else capsules


class InvertedDotProductCapsNet(CapsuleClassifier):
    """Classify by capsules that are routed by inverted dot-product attention.

    backbone -> LayerNorm(conv 1x1) as capsules -> convolutions of capsules -> class capsules -> one linear score each

    "concurrent": in the first pass each layer reads the new capsules of the layer below, uniformly; in every later pass
    all layers route the capsules of the previous pass. Passes that the classes do not depend on are skipped: of 2
    passes, the second one below the classes. "sequential": each layer makes all passes before the next one begins.

    Args:
        num_classes, in_chans, img_size: as in timm.
        backbone: "resnet" (a convolution and 7 residual blocks) or "simple" (one convolution); both halve the sides.
        channels: of its last map; the maps before have half of them.
        blocks: of each of the two stages of "resnet".
        capsules, capsule_dim: types of capsules, and their pose size, a square.
        strides: of the convolutions of capsules, one for each.
        hidden: numbers of capsules of further layers below the classes, each between all capsules.
        routing_steps: passes of routing; 1 is uniform.
        schedule: "concurrent" or "sequential".
        dropout: of the entries of capsules, in training.

    Shapes: images (batch, in_chans, height, width) -> scores (batch, num_classes).

    Deviates: windows are gathered as in the paper; the first release of the authors' code scrambles them.

    Reference: arXiv:2002.04764.
    """

    first_conv = "stages.0.0.0"
    scores_are_lengths = False
    default_loss = "cross_entropy"

    def __init__(
        self,
        num_classes: int = 10,
        in_chans: int = 3,
        img_size: int | tuple[int, int] = 32,
        *,
        backbone: str = "resnet",
        channels: int = 128,
        blocks: tuple[int, int] = (3, 4),
        capsules: int = 32,
        capsule_dim: int = 16,
        strides: tuple[int, ...] = (2, 1),
        hidden: tuple[int, ...] = (),
        routing_steps: int = 2,
        schedule: str = "concurrent",
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        check_choice("backbone", backbone, BACKBONES)
        check_choice("schedule", schedule, SCHEDULES)
        check_positive(channels=channels, capsules=capsules, capsule_dim=capsule_dim)
        check_steps(1, routing_steps=routing_steps)
        check_positive(blocks=min(blocks), **({"hidden": min(hidden)} if hidden else {}))
        self.image_shape = (in_chans, *image_size(img_size))
        self.schedule, self.types, self.capsule_dim = schedule, capsules, capsule_dim
        self.routing_options: dict[str, Any] = {"steps": routing_steps, "dropout": dropout}
        self._build_stages(backbone, in_chans, channels, blocks)
        self.primary = nn.Conv2d(channels, capsules * capsule_dim, 1, bias=False)
        self.norm = nn.LayerNorm(capsule_dim)
        sides, first, step = [-(-side // 2) for side in self.image_shape[1:]], 0.5, 2
        self.layers = nn.ModuleList()
        for stride in strides:
            self.layers.append(ConvLayer(capsules, capsule_dim, stride, routing_steps, dropout))
            sides, first, step = [conv_out(side, 3, stride) for side in sides], first + step, step * stride
        if min(sides) < 1:
            raise UsageError(
                f"img_size is {self.image_shape[1]} x {self.image_shape[2]} with strides {strides}: nothing is left of"
                " the map after the convolutions of capsules; give larger images or fewer strides."
            )
        count, self.grid = capsules * sides[0] * sides[1], Grid(sides[0], sides[1], capsules, first, step)
        for more in hidden:
            self.layers.append(FullLayer(count, more, capsule_dim, **self.routing_options))
            count = more
        self.senders = count
        self.lists = max(routing_steps - 1, 1) if schedule == "concurrent" and len(self.layers) else 1
        self.num_features = count * capsule_dim * self.lists
        self.placed = not hidden
        self.reset_classifier(num_classes)

    def _build_stages(self, backbone: str, in_chans: int, channels: int, blocks: Sequence[int]) -> None:
        if backbone == "simple":
            stages = [nn.Sequential(nn.Sequential(nn.Conv2d(in_chans, channels, 3, 2, 1), nn.ReLU()))]
            widths = [(channels, 2)]
        else:
            half = max(channels // 2, 1)
            stem = ConvNorm(in_chans, half, 3, activation=nn.ReLU)
            same = [BasicBlock(half, half, 1, "projection") for _ in range(blocks[0])]
            down = [BasicBlock(half, channels, 2, "projection")]
            down += [BasicBlock(channels, channels, 1, "projection") for _ in range(blocks[1] - 1)]
            stages, widths = [nn.Sequential(stem, *same), nn.Sequential(*down)], [(half, 1), (channels, 2)]
        self.stages = nn.ModuleList(stages)
        self.feature_info = [
            {"num_chs": width, "reduction": pixels, "module": f"stages.{i}"} for i, (width, pixels) in enumerate(widths)
        ]

    @property
    def score_kind(self) -> str:
        return "logits"

    def make_classifier(self) -> nn.Module:
        head = ClassCapsules(self.senders, self.num_classes, self.capsule_dim, **self.routing_options)
        head.coupling.senders = self.grid if self.placed else None
        return head

    def _primary(self, features: Tensor) -> Tensor:
        maps = bounded(self.primary(features)).unflatten(1, (self.types, self.capsule_dim))
        maps = maps.movedim(2, -1)
        if must_be_called(self.norm):
            normed: Tensor = self.norm(maps)
        else:
            weight, bias = self.norm.weight.to(maps.dtype), self.norm.bias.to(maps.dtype)
            normed = F.layer_norm(maps, (self.capsule_dim,), weight, bias, self.norm.eps)
        return normed.movedim(-1, 2)

    def neck(self, maps: list[Tensor]) -> Features:
        """The input of the classes: the last capsules (batch, capsules, dim) of each pass that counts."""
        steps = self.routing_options["steps"]
        below, dtype = [self._primary(maps[-1])], maps[-1].dtype
        for number, layer in enumerate(self.layers):
            # The classes need the passes of the layer below but the last one, and so on downwards.
            assert isinstance(layer, ConvLayer | FullLayer)
            needed = steps if self.schedule == "sequential" else max(steps - len(self.layers) + number, 1)
            votes, parents, passes = layer.votes_of(below[0]), None, []
            for count in range(needed):
                if count > 1 and len(below) > 1:
                    votes = layer.votes_of(below[count - 1])
                parents = layer.update(votes, parents)
                passes.append(layer.place(parents, votes).to(dtype))
            below = passes[-1:] if self.schedule == "sequential" else passes
        lists = tuple(as_list(capsules) for capsules in below)
        return lists[0] if len(lists) == 1 else lists

    def class_capsules(self, features: Features) -> Capsules:
        """Poses (batch, classes, dim) and their scores (batch, classes)."""
        poses = self.head(features) if isinstance(features, Tensor) else self.head(*features)
        assert isinstance(self.head, ClassCapsules)
        return Capsules(poses, self.head.scores(poses).squeeze(-1))


_CIFAR: dict[str, Any] = {
    "source": "arXiv:2002.04764",
    "mean": (0.4914, 0.4822, 0.4465),
    "std": (0.2023, 0.1994, 0.2010),
}
_register: Callable[..., None] = partial(
    register_model, module=InvertedDotProductCapsNet, recipe="inverted_dot_product", **_CIFAR
)

_register(
    "inverted_dot_product_capsnet_cifar10_resnet",
    summary="Inverted dot-product routing on a residual backbone, for CIFAR-10.",
    parameters=1_828_817,
    aliases=("idpa_cifar10_resnet",),
    tiny={"channels": 16, "blocks": (1, 1), "capsules": 3, "capsule_dim": 16, "img_size": 18},
    variants={
        "simple": {"backbone": "simple"},
        "sequential": {"backbone": "simple", "schedule": "sequential", "routing_steps": 3, "img_size": (18, 20)},
        "three passes": {"backbone": "simple", "routing_steps": 3, "hidden": (5,)},
        "one pass": {"backbone": "simple", "routing_steps": 1},
    },
)
_register(
    "inverted_dot_product_capsnet_cifar100_resnet",
    summary="Inverted dot-product routing on a residual backbone, for CIFAR-100: poses of 6x6, 20 capsules in between.",
    parameters=2_799_629,
    aliases=("idpa_cifar100_resnet",),
    num_classes=100,
    capsule_dim=36,
    hidden=(20,),
)
_register(
    "inverted_dot_product_capsnet_cifar10_simple",
    summary="Inverted dot-product routing on one convolution of 256 channels, for CIFAR-10.",
    parameters=561_297,
    aliases=("idpa_cifar10_simple",),
    backbone="simple",
    channels=256,
)
_register(
    "inverted_dot_product_capsnet_cifar10_simple128",
    summary="Inverted dot-product routing on one convolution of 128 channels, as in the authors' code.",
    parameters=492_177,
    aliases=("idpa_cifar10_simple128",),
    backbone="simple",
)
_register(
    "inverted_dot_product_capsnet_cifar100_simple",
    summary="Inverted dot-product routing on one convolution, for CIFAR-100.",
    parameters=1_462_989,
    aliases=("idpa_cifar100_simple",),
    num_classes=100,
    backbone="simple",
    capsule_dim=36,
    hidden=(20,),
)
