"""Channel attention: every channel of a map adds a mixture of the channels least like it, with a learned weight.

Source: Fu, Liu, Tian, Li, Bao, Fang, Lu 2019, arXiv:1809.02983, section 3.3, and the authors' code.
Cost: 2 N C^2 multiply-adds an image (N places, C channels) and a map of C^2 couplings; one parameter.
"""

import torch
from torch import Tensor, nn

from mereo.core import Coupling, SameVotes, bounded, mechanism
from mereo.core.modes import unconverted
from mereo.core.shapes import flat_cells
from mereo.core.squash import accumulation_type


def _example() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return ChannelAttention(), (0.5 * torch.randn(2, 6, 4, 3),)


@mechanism(
    "channel_attention",
    family="dense attention",
    over="senders",
    steps=1,
    values="shared",
    update="residual",
    source="arXiv:1809.02983",
    promises=("normalised", "any sender order", "any receiver order", "any length"),
    lacks={"couplings only": "the map itself goes past attention"},
    sender_axes={"0": 1},
    receiver_axes={"0": 1, "output": 1},
    interface="maps",
    example=_example,
)
class ChannelAttention(nn.Module):
    """Add to each channel of a map a weighted sum of all channels, most of those whose map is unlike its own.

    E = X X^T,   A = softmax over channels c' of -E_cc',   out_c = x_c + beta sum_c' A_cc' x_c'

    There are no projections, and the scores are not scaled: X is (channels, places). beta is 0 at first.

    Shapes: maps (batch, channels, rows, columns) -> the same; couplings (batch, 1, channels, channels).

    Reads as: couplings[b, 0, r, s] is the share of channel s in what channel r adds.

    Deviates: eq. 3 of the paper has the softmax of E, without the sign; its code has softmax(max E - E), which is that
        of -E, and networks trained with it need the same. Scores are computed in float32 at least, because they grow
        with the number of places.

    Reference: arXiv:1809.02983, section 3.3; "CAM" in arXiv:1906.02849.
    """

    def __init__(self) -> None:
        super().__init__()
        self.beta = nn.Parameter(torch.zeros(1))
        self.coupling = Coupling("senders")
        self.coupling.of_places = False

    def forward(self, maps: Tensor) -> Tensor:
        with unconverted(maps):
            channels = flat_cells(bounded(maps.to(accumulation_type(maps)))).unsqueeze(1)
            votes = SameVotes(channels)
            mixed = votes.combine(self.coupling(-votes.agree(channels)))
            return maps + (self.beta * mixed.squeeze(1)).to(maps.dtype).view_as(maps)
