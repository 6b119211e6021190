"""Bridging attention (BVR): the cells of a detector's maps take what they need from a few predicted keypoints.

Source: Chi, Wei, Hu 2020, arXiv:2010.15831 (RelationNet++), sections 3 and 4.
Cost: 2 N K C multiply-adds for N cells, K keys and C channels, and H N K reads of the location table. The table itself
is two products of L x 128 and 128 x H, once a pass (L cells of an axis, H heads).
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mereo.core import depends, mechanism
from mereo.core.kernels.attention import attend
from mereo.core.squash import accumulation_type
from mereo.errors import UsageError, check_count, check_heads, check_positive
from mereo.mechanisms.attention.dense.multi_head import MultiHeadAttention

EMBEDDING, TEMPERATURE = 256, 1000.0
"""Sines and cosines of a location, half of them for each axis, and the base of their frequencies."""
_LEAST = 1e-6


class LocationTable(nn.Module):
    """The score of a key by where it lies from a query, for each head, read from a table that all pairs share.

    S_h(x, y) = X_h(x) + Y_h(y) + b_h,   X_h(x) = sum_m w_hm sin(x f_m) + v_hm cos(x f_m),   f_m = 1000^(-4 m / 256)

    The embedding of (x, y) is that of x beside that of y and the map is linear, so that the table is a sum of a column
    and a row. A bilinear sample of it is the sum of a linear sample of each: the square is never made.

    Args:
        heads: of the attention.
        cells: of an axis, an odd number; offsets beyond the border take its value. None for no table: the embedding of
            each pair is computed by itself, as the paper's Faster R-CNN does.
        log_scale: log(max(S, 1e-6)) in place of S, as the released code: half of the pairs start without gradient.
        exact: sample a whole offset at its cell; the released code samples at offsets 1 / (cells - 1) too large.

    Shapes: offsets (..., 2), x and y in cells -> (..., heads).

    Deviates: the paper states a network of two layers of 512, its code this linear map.

    Reference: arXiv:2010.15831, section 3.3 (shared location embedding).
    """

    rates: Tensor

    def __init__(self, heads: int, cells: int | None = 401, *, log_scale: bool = False, exact: bool = True) -> None:
        super().__init__()
        if cells is not None:
            check_count(3, cells=cells)
            if cells % 2 == 0:
                raise UsageError(f"cells is {cells}; it must be odd, so that the offset 0 has a cell.")
        self.cells, self.log_scale, self.exact = cells, log_scale, exact
        self.weight, self.bias = nn.Parameter(torch.empty(heads, EMBEDDING)), nn.Parameter(torch.zeros(heads))
        nn.init.normal_(self.weight, std=0.01)
        rates = TEMPERATURE ** (-torch.arange(EMBEDDING // 4, dtype=torch.float64) * 4 / EMBEDDING)
        self.register_buffer("rates", rates.float(), persistent=False)

    def _code(self, places: Tensor) -> Tensor:
        """Sines, then cosines, of one axis: (...) -> (..., 128)."""
        angles = places.unsqueeze(-1) * self.rates
        return torch.cat((angles.sin(), angles.cos()), -1).to(self.weight.dtype)

    def axes(self) -> tuple[Tensor, Tensor]:
        """X and Y: (cells, heads) each."""
        assert self.cells is not None
        code = self._code(torch.arange(self.cells, device=self.rates.device) - self.cells // 2)
        across, down = self.weight.split(EMBEDDING // 2, 1)
        return code @ across.T, code @ down.T

    def forward(self, offsets: Tensor) -> Tensor:
        if self.cells is None:
            scores = F.linear(self._code(offsets).flatten(-2), self.weight, self.bias)
            return scores.clamp(min=_LEAST).log() if self.log_scale else scores
        stretch = 1.0 if self.exact else self.cells / (self.cells - 1)
        # Offsets stay in float32 or more: half precision does not resolve the pixels of a large image.
        places = (offsets.to(accumulation_type(offsets)) * stretch + self.cells // 2).clamp(0, self.cells - 1)
        before = places.floor().clamp(max=self.cells - 2)
        share, index = (places - before).to(self.weight.dtype), before.long()
        bias: Tensor = self.bias
        for axis, table in enumerate(self.axes()):
            low, part = index[..., axis], share[..., axis, None]
            bias = bias + torch.lerp(table[low], table[low + 1], part.to(table.dtype))
        return bias.clamp(min=_LEAST).log() if self.log_scale else bias


def _example() -> tuple[nn.Module, tuple[Tensor, ...]]:
    module = BridgingAttention(8, 2, cells=33)
    nn.init.normal_(module.location.weight, std=0.1)
    inputs = torch.randn(3, 1, 5, 8), torch.randn(3, 6, 8), 40 * torch.rand(3, 1, 5, 2), 40 * torch.rand(3, 6, 2)
    return module, inputs


@mechanism(
    "bridging",
    family="dense attention",
    over="senders",
    steps=depends("key_types", 1),
    values="shared",
    update="linear",
    source="arXiv:2010.15831",
    promises=("normalised", "masks", "any sender order", "any receiver order", "any length"),
    lacks={"couplings only": "queries also reach the output directly"},
    zero_gradients={
        "attention.0.key.bias": "it adds the same to every score of a query, and the softmax takes that out",
        "location.bias": "it adds the same to every score, and the softmax takes that out",
    },
    sender_axes={"0": 2, "2": 2},
    receiver_axes={"1": 1, "3": 1, "output": 1},
    largest_input=1e15,  # queries times keys must fit float32
    example=_example,
    aliases=("bvr", "relationnet_plus_plus"),
)
class BridgingAttention(nn.Module):
    """Add to the features of each cell what keypoints of other representations know, such as centres and corners.

    f'_i = ReLU(f_i + sum_t W_o^t sum_j a_ij^t W_v^t k_j^t),   a^t = softmax_j(q_i.k_j / sqrt(d) + S((p_j - p_i) / u))

    The cells of all levels of a pyramid may stand one after the other: the keys are the same for every level.

    Args:
        dim: channels of cells and keys.
        num_heads: independent sets of couplings; divides `dim`.
        key_types: sets of keys, each with projections of its own: 1 for centres, 2 for both corners.
        cells, log_scale, exact: of the location table, which the key types share; see `LocationTable`.
        location: the table of another such module, to share it.

    Shapes:
        keys (batch, key_types, keys, dim), queries (batch, cells, dim), key_places (batch, key_types, keys, 2) and
        places (batch, cells, 2), x and y in pixels; unit, pixels of a cell of the table, a number or (cells,); mask
        bool (batch, keys) or (batch, key_types, keys), True = takes part -> (batch, cells, dim).

    Reads as: couplings[b, h, i, j] is the share of keypoint j in what cell i takes; one recorded coupling a key type.

    Deviates: the plain bias and exact sampling by default, of `LocationTable`. Each projection starts Xavier uniform by
        itself. A query without keys keeps ReLU(f_i + b_o).

    Reference: arXiv:2010.15831, eq. 2 to 4, section 4.1; the ReLU is in the released code.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int = 8,
        key_types: int = 1,
        *,
        cells: int | None = 401,
        log_scale: bool = False,
        exact: bool = True,
        location: LocationTable | None = None,
    ) -> None:
        super().__init__()
        check_heads(dim, num_heads)
        check_positive(key_types=key_types)
        self.attention = nn.ModuleList(MultiHeadAttention(dim, num_heads) for _ in range(key_types))
        self.location = location or LocationTable(num_heads, cells, log_scale=log_scale, exact=exact)

    def forward(
        self,
        keys: Tensor,
        queries: Tensor,
        key_places: Tensor,
        places: Tensor,
        unit: float | Tensor = 8.0,
        mask: Tensor | None = None,
    ) -> Tensor:
        if keys.shape[1] != len(self.attention):
            raise UsageError(f"keys are {tuple(keys.shape)}; they must be (batch, {len(self.attention)}, keys, dim).")
        if not isinstance(unit, Tensor):
            check_positive(unit=unit)
        else:
            unit = unit.unsqueeze(-1).unsqueeze(-1)
        if mask is not None and mask.dim() == 2:
            mask = mask.unsqueeze(1)
        updated = queries
        layers: Any = self.attention
        for kind, layer in enumerate(layers):
            offsets = (key_places[:, kind].unsqueeze(1) - places.unsqueeze(2)) / unit
            bias = self.location(offsets).permute(0, 3, 1, 2)
            shown = None if mask is None else mask[:, min(kind, mask.shape[1] - 1), None, None]
            given = layer.query(queries), layer.key(keys[:, kind]), layer.value(keys[:, kind])
            q, k, v = (x.unflatten(-1, (layer.num_heads, -1)).transpose(1, 2) for x in given)
            out = attend(q, k, v, layer.coupling, mask=shown, bias=bias)
            updated = updated + layer.proj(out.transpose(1, 2).flatten(2))
        return updated.relu()
