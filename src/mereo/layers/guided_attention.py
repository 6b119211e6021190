"""Guided attention: position and channel attention side by side, gated by what a bottleneck rebuilds of their input.

Source: Sinha, Dolz 2020, arXiv:1906.02849, sections 3.2 and 3.3, and the authors' code.
Cost: for N places of C channels and width W, 9 N (3 C W + 2 W^2) multiply-adds in convolutions and those of the two
attentions; the bottleneck, which scales can share, takes 124 N C^2 and has 425 C^2 parameters.
"""

from typing import Literal

import torch.nn.functional as F
from torch import Tensor, nn

from mereo.errors import UsageError, check_choice, check_positive
from mereo.layers.conv_norm import ConvNorm
from mereo.mechanisms.attention.dense.channel_attention import ChannelAttention
from mereo.mechanisms.attention.dense.position_attention import PositionAttention

ATTENTIONS = ("both", "position", "channel")
Attention = Literal["both", "position", "channel"]


def _convolutions(inputs: int, outputs: int) -> tuple[ConvNorm, ConvNorm]:
    return (
        ConvNorm(inputs, outputs, 3, activation=nn.ReLU, bias=True),
        ConvNorm(outputs, outputs, 3, activation=nn.ReLU, bias=True),
    )


class SemanticBottleneck(nn.Module):
    """Rebuild a map from a code of four times its channels and a quarter of its rows and columns.

    z = pool(convs(pool(convs(x)))),   R = up(convs(up(convs(z))))

    `convs` are two 3x3 convolutions with norm and ReLU, `pool` takes the maximum of 2 x 2, `up` is a transposed
    convolution of 2 x 2. Channels: dim -> 2 dim -> 4 dim = z -> 2 dim -> dim.

    Args:
        dim: channels of the map.

    Shapes: maps (batch, dim, rows, columns), at least 4 x 4 -> code (batch, 4 dim, rows // 4, columns // 4) and
        reconstruction, of the shape of the maps.

    Deviates: where sides are no multiples of 4, the reconstruction is resized at the end, and not between its steps.

    Reference: arXiv:1906.02849, section 3.3.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        check_positive(dim=dim)
        self.encoder = nn.Sequential(
            *_convolutions(dim, 2 * dim), nn.MaxPool2d(2), *_convolutions(2 * dim, 4 * dim), nn.MaxPool2d(2)
        )
        self.decoder = nn.Sequential(
            *_convolutions(4 * dim, 2 * dim), nn.ConvTranspose2d(2 * dim, 2 * dim, 2, 2),
            *_convolutions(2 * dim, dim), nn.ConvTranspose2d(dim, dim, 2, 2),
        )  # fmt: skip

    def forward(self, maps: Tensor) -> tuple[Tensor, Tensor]:
        code = self.encoder(maps)
        rebuilt: Tensor = self.decoder(code)
        if rebuilt.shape[2:] != maps.shape[2:]:
            rebuilt = F.interpolate(rebuilt, maps.shape[2:], mode="bilinear", align_corners=False)
        return code, rebuilt


class GuidedAttention(nn.Module):
    """Attend to places and to channels, each between convolutions of its own, and gate the sum of both.

    p = post(PAM(pre(x))),   c = post(CAM(pre(x))),   out = W ((p + c) * conv(R)) + b

    `pre` and `post` are 3x3 convolutions with norm and PReLU, to `width` channels; PAM is `PositionAttention`, CAM
    `ChannelAttention`, conv a 3x3 convolution, and R what `SemanticBottleneck` rebuilds of x. Attention starts as the
    identity.

    Args:
        dim: channels of the maps.
        width: channels of the output; half of `dim` by default.
        attention: "both", or only "position" or "channel", without the other term.
        gated: multiply by conv(R); without it there is no `guide`.

    Shapes: maps and guide (batch, dim, rows, columns) -> (batch, width, rows, columns).

    Reference: arXiv:1906.02849, section 3.2 and 3.3; `PAM_CAM_Layer` of the authors' code.
    """

    def __init__(
        self, dim: int, width: int | None = None, *, attention: Attention = "both", gated: bool = True
    ) -> None:
        super().__init__()
        width = dim // 2 if width is None else width
        check_positive(dim=dim, width=width)
        check_choice("attention", attention, ATTENTIONS)
        makers = {"position": lambda: PositionAttention(width), "channel": ChannelAttention}
        self.branches = nn.ModuleDict(
            {
                name: nn.Sequential(
                    ConvNorm(dim, width, 3, activation=nn.PReLU, bias=True),
                    make(),
                    ConvNorm(width, width, 3, activation=nn.PReLU, bias=True),
                )
                for name, make in makers.items()
                if attention in ("both", name)
            }
        )
        self.gate = nn.Conv2d(dim, width, 3, padding=1) if gated else None
        self.out = nn.Conv2d(width, width, 1)

    def forward(self, maps: Tensor, guide: Tensor | None = None) -> Tensor:
        if (guide is None) != (self.gate is None):
            given = "None" if guide is None else tuple(guide.shape)
            raise UsageError(f"guide is {given} and gated {self.gate is not None}; give a guide where gated is True,"
                             " such as what SemanticBottleneck rebuilds of the maps, and none elsewhere.")  # fmt: skip
        first, *others = (branch(maps) for branch in self.branches.values())
        mixed = first + others[0] if others else first
        return self.out(mixed if self.gate is None else mixed * self.gate(guide))
