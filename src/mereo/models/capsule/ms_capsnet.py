"""MS-CapsNet: primary capsules of three scales, of growing depth and pose size, in one routing to the classes.

Source: Xiang, Zhang, Tang, Zou, Xu, "MS-CapsNet: a novel multi-scale capsule network", IEEE Signal Processing Letters
25(12), 2018, https://doi.org/10.1109/LSP.2018.2873892, and the authors' code, https://github.com/cxiang26/MS-CapsNet
Cost at 32x32: 0.6 G multiply-adds an image, nearly all in the first convolutions of the branches; 518,400 numbers in
votes, which are not stored.
"""

from functools import partial

from torch import Tensor, nn

from mereo.core import Grid, squash
from mereo.core.shapes import conv_out, image_size
from mereo.errors import UsageError, check_choice, check_positive, check_probability, check_steps
from mereo.layers.capsules import MultiDimClassCaps, PaddedConv2d, flat_capsules
from mereo.layers.capsules.multi_dim import VARIANTS
from mereo.models.base import Features
from mereo.models.capsule_classifier import CapsuleClassifier
from mereo.models.registry import register_model

BRANCHES = ("low", "middle", "high")
GLUON_BOUND = 0.07
"""Convolutions of the authors' framework start uniform between minus this and this."""


def branch(name: str, channels: int, types: int, dim: int) -> nn.Sequential:
    """The convolutions of one scale: the first reads all channels, each other one the channels of one capsule type.

    low:     conv 9x9 / 2 to `dim` channels a type
    middle:  conv 5x5 / 2 to 16, BN, tanh, conv 3x3 to `dim`
    high:    conv 3x3 / 2, padded, to 32, ReLU, conv 3x3 to 16, BN, tanh, conv 3x3 to `dim`

    Shapes: (batch, channels, height, width) -> (batch, types * dim, (height - 9) // 2 + 1, (width - 9) // 2 + 1).
    """
    if name == "low":
        return nn.Sequential(nn.Conv2d(channels, types * dim, 9, 2))
    last = (nn.BatchNorm2d(16 * types), nn.Tanh(), nn.Conv2d(16 * types, types * dim, 3, groups=types))
    if name == "middle":
        return nn.Sequential(nn.Conv2d(channels, 16 * types, 5, 2), *last)
    first = (nn.Conv2d(channels, 32 * types, 3, 2, 1), nn.ReLU())
    return nn.Sequential(*first, nn.Conv2d(32 * types, 16 * types, 3, groups=types), *last)


class MSCapsNet(CapsuleClassifier):
    """Classify by capsules of three scales that are routed together.

    image -> conv, ReLU -> three branches, squash -> sets of capsules of 4, 8 and 12 numbers -> class capsules

    Args:
        num_classes, in_chans, img_size: as in timm; the image must be at least stem_kernel + 8 pixels high and wide.
        stem_kernel: of the first convolution, which is not padded.
        channels: of the first convolution.
        types: kinds of capsules of each branch.
        dims: pose sizes in the branches "low", "middle" and "high".
        branches: which of them there are.
        class_dim: pose size of a class capsule.
        routing_steps: evaluations of the couplings.
        variant: of the routing, "classical" or "public", see `MultiDimClassCaps`.
        capsule_drop: probability with which a capsule is left out in training.
        decoder: have a decoder that rebuilds the image from one class capsule.
        init: "default" (PyTorch's convolutions) or "official" (uniform in +-0.07, as in the authors' framework).

    Shapes: images (batch, in_chans, height, width) -> lengths (batch, num_classes).

    Deviates: the convolutions of a branch's 30 types are one convolution, or one with groups, instead of 30. The
        authors' code has CIFAR-10 only: the kernel of 28x28 images follows from the grid of 6x6, and the rate of the
        dropout is not stated. Neither is confirmed. Their code has no decoder.

    Reference: Xiang, Zhang, Tang, Zou, Xu 2018 (IEEE Signal Processing Letters). The network equals 30 separate stacks
        and loops over the routing, both written from the authors' code, which runs on MXNet only and was not run.
    """

    first_conv = "conv"
    channels_last = False

    def __init__(
        self,
        num_classes: int = 10,
        in_chans: int = 3,
        img_size: int | tuple[int, int] = 32,
        *,
        stem_kernel: int = 13,
        channels: int = 256,
        types: int = 30,
        dims: tuple[int, int, int] = (4, 8, 12),
        branches: tuple[str, ...] = BRANCHES,
        class_dim: int = 16,
        routing_steps: int = 3,
        variant: str = "classical",
        capsule_drop: float = 0.1,
        decoder: bool = False,
        init: str = "default",
    ) -> None:
        super().__init__()
        check_positive(stem_kernel=stem_kernel, channels=channels, types=types, class_dim=class_dim)
        check_steps(1, routing_steps=routing_steps)
        check_probability(capsule_drop=capsule_drop)
        check_choice("variant", variant, VARIANTS)
        check_choice("init", init, ("default", "official"))
        if len(dims) != len(BRANCHES) or min(dims) < 1:
            raise UsageError(f"dims is {dims}; give three sizes above 0, of the branches {', '.join(BRANCHES)}.")
        if not branches or [name for name in BRANCHES if name in branches] != list(branches):
            raise UsageError(f"branches is {branches}; give one or more of {BRANCHES}, each once and in this order.")
        self.image_shape, self.with_decoder = (in_chans, *image_size(img_size)), decoder
        stem = [conv_out(side, stem_kernel) for side in self.image_shape[1:]]
        if min(stem) < 9:
            raise UsageError(
                f"img_size is {self.image_shape[1]} x {self.image_shape[2]} with stem_kernel {stem_kernel}; the first"
                f" convolution must leave 9 or more: give sides of at least {stem_kernel + 8}."
            )
        self.grid = (conv_out(stem[0], 9, 2), conv_out(stem[1], 9, 2))
        self.dims = tuple(dim for name, dim in zip(BRANCHES, dims, strict=True) if name in branches)
        self.types, self.class_dim, self.routing_steps = types, class_dim, routing_steps
        self.variant, self.capsule_drop, self.stem_kernel = variant, capsule_drop, stem_kernel
        self.senders = (types * self.grid[0] * self.grid[1],) * len(branches)
        self.conv = PaddedConv2d(in_chans, channels, stem_kernel, same=False)
        self.branches = nn.ModuleDict(
            {name: branch(name, channels, types, dim) for name, dim in zip(branches, self.dims, strict=True)}
        )
        if init == "official":
            for module in self.modules():
                if isinstance(module, nn.Conv2d):
                    nn.init.uniform_(module.weight, -GLUON_BOUND, GLUON_BOUND)
                    nn.init.zeros_(module.bias)  # type: ignore[arg-type]
        self.num_features = sum(count * dim for count, dim in zip(self.senders, self.dims, strict=True))
        self.feature_info = [{"num_chs": channels, "reduction": 1, "module": "conv"}]
        self.reset_classifier(num_classes)

    def make_classifier(self) -> nn.Module:
        head = MultiDimClassCaps(
            self.senders, self.dims, self.num_classes, self.class_dim,
            steps=self.routing_steps, variant=self.variant, capsule_drop=self.capsule_drop,
        )  # fmt: skip
        # All branches see 9 x 9 cells of the stem's map, whatever their padding: the first one centres on its cell 4.
        types = self.types * len(self.dims)
        head.coupling.senders = Grid(*self.grid, types, 4 + self.stem_kernel / 2, 2.0)
        return head

    def stage(self, index: int, inputs: Tensor) -> Tensor:
        return self.conv(inputs).relu_()

    def neck(self, maps: list[Tensor]) -> Features:
        """For each branch its capsules (batch, types * rows * columns, dim), by type, row and column."""
        made = zip(self.branches.values(), self.dims, strict=True)
        return tuple(squash(flat_capsules(layers(maps[0]), dim)) for layers, dim in made)

    def primary(self, images: Tensor) -> list[Tensor]:
        """The primary capsules of each branch: (batch, types * rows * columns, dim)."""
        return list(self.forward_features(images))


_register = partial(register_model, module=MSCapsNet, source="doi:10.1109/LSP.2018.2873892", recipe="ms_capsnet")

_register(
    "ms_capsnet_cifar10",
    summary="MS-CapsNet for colour images of 32x32: 12.3 million parameters.",
    parameters=12_278_608,
    tiny={"img_size": 15, "stem_kernel": 5, "channels": 8, "types": 2, "dims": (2, 3, 4), "class_dim": 6},
    variants={
        "public": {"variant": "public", "decoder": True, "in_chans": 1, "img_size": (14, 17)},
        "one branch": {"branches": ("middle",), "init": "official", "routing_steps": 1},
    },
)
_register(
    "ms_capsnet_fashion",
    summary="MS-CapsNet for grey images of 28x28, as Fashion-MNIST has.",
    parameters=12_169_552,
    in_chans=1,
    img_size=28,
    stem_kernel=9,
)
_register(
    "ms_capsnet_small",
    summary="A small MS-CapsNet for grey images of 28x28, with four types of capsules in each branch, ours.",
    parameters=1_640_800,
    in_chans=1,
    img_size=28,
    stem_kernel=9,
    types=4,
)
