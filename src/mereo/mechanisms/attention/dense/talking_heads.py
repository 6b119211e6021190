"""Talking-heads attention: heads exchange their scores before the softmax, and their couplings after it.

Source: Shazeer et al. 2020, arXiv:2003.02436, section 4; in CaiT, arXiv:2103.17239, section 4.
Cost: multi-head attention (4 N D D + 2 N N D multiplications an image) and 2 H H N N to mix, where fused attention
cannot run. Each mixing is one product of a matrix (H, H) with the maps (H, N N), without moving the heads' axis.
"""

import torch
from torch import Tensor, nn

from mereo.core import Coupling, mechanism
from mereo.core.initialise import start_linears
from mereo.core.kernels.transforms import transformed
from mereo.core.modes import must_be_called
from mereo.errors import check_heads, check_probability
from mereo.mechanisms.attention.dense.multi_head import four_axes

BLOCK = 2**18
"""Entries of the maps that inference works on at a time (1 MiB in float32), so that they stay in the cache."""


def mix_heads(layer: nn.Linear, maps: Tensor, scale: float = 1.0) -> Tensor:
    """mixed_g = scale sum_i W_gi maps_i + b_g, for each pair of receiver and sender.

    Shapes: maps (batch, heads, receivers, senders) -> the same.
    """
    if must_be_called(layer):
        return layer((scale * maps).movedim(1, -1)).movedim(-1, 1)
    batch, heads = maps.shape[:2]
    weight = (layer.weight if scale == 1 else scale * layer.weight).expand(batch, heads, heads)
    return torch.baddbmm(layer.bias.view(1, heads, 1), weight, maps.flatten(2)).view_as(maps)


class MixedCoupling(Coupling):
    """Couplings of all heads that are mixed after the softmax: c_g = dropout(sum_i W_gi softmax(scores_i) + b_g).

    Mixing is the last step of its normaliser, so that the mixed couplings are recorded, changed and dropped. Mixed
    couplings need not sum to one and may be negative; a pair that is masked out is 0 all the same.
    """

    def __init__(self, num_heads: int, *, dropout: float = 0.0) -> None:
        super().__init__("senders", dropout=dropout)
        self.mix = nn.Linear(num_heads, num_heads)

    @property
    def is_plain_softmax(self) -> bool:
        """Whether fused attention computes this coupling: no."""
        return False

    def normalise(self, scores: Tensor, mask: Tensor | None = None) -> Tensor:
        """Scores -> mixed couplings, 0 where the mask is False; without dropout."""
        mixed = mix_heads(self.mix, super().normalise(scores, mask))
        return mixed if mask is None else mixed.masked_fill(~mask, 0)


def _example() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return TalkingHeadAttention(12, 3), (torch.randn(2, 7, 12),)


@mechanism(
    "talking_heads",
    family="dense attention",
    over="senders",
    steps=1,
    values="shared",
    update="linear",
    source="arXiv:2003.02436",
    promises=("masks", "any sender order", "any receiver order", "any length"),
    zero_gradients={"premix.bias": "it adds the same to every score of a receiver, and the softmax takes that out"},
    sender_axes={"0": 1},
    receiver_axes={"0": 1, "output": 1},
    largest_input=1e15,  # queries times keys must fit float32
    interface="tokens",
    example=_example,
)
class TalkingHeadAttention(nn.Module):
    """Replace each token by a weighted sum of the values of all tokens, with couplings that heads make together.

    A_i = q_i k_i^T / sqrt(d),    P_g = softmax(sum_i L_gi A_i + l_g),    C_g = sum_i W_gi P_i + w_g

    out = W_o [C_1 v_1, C_2 v_2, ...] + b_o

    Args:
        dim: size of the tokens.
        num_heads: sets of couplings; divides `dim`.
        qkv_bias: a bias of queries, keys and values.
        attn_drop: dropout of the couplings C.
        proj_drop: dropout of the output.

    Shapes: tokens (batch, tokens, dim); mask bool (batch, tokens), (batch, tokens, tokens) or with the axes of
        couplings, True = takes part -> (batch, tokens, dim).

    Reads as: the recorded scores are the mixed ones before the softmax, and couplings[b, h, r, s] is C: the weight of
        sender s in the output of head h for token r, after the second mixing. They sum to one over the senders only
        where the rows of W do and w is zero.

    Deviates: the number of heads is the same before, in and after the softmax, and both mixings have a bias, as in
        CaiT; the weights of both start as in any other layer.

    Reference: arXiv:2003.02436, section 4.1; arXiv:2103.17239, section 4.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int = 8,
        *,
        qkv_bias: bool = True,
        attn_drop: float = 0.0,
        proj_drop: float = 0.0,
    ) -> None:
        super().__init__()
        check_probability(attn_drop=attn_drop, proj_drop=proj_drop)
        check_heads(dim, num_heads)
        self.num_heads, self.scale = num_heads, (dim // num_heads) ** -0.5
        self.qkv = nn.Linear(dim, 3 * dim, bias=qkv_bias)
        self.premix = nn.Linear(num_heads, num_heads)
        self.coupling = MixedCoupling(num_heads, dropout=attn_drop)
        self.proj = nn.Linear(dim, dim)
        self.proj_drop = nn.Dropout(proj_drop)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise: weights from a truncated normal of deviation 0.02, biases of zero."""
        for linear in (self.qkv, self.premix, self.coupling.mix, self.proj):
            start_linears(linear)

    def _runs_in_blocks(self, q: Tensor, mask: Tensor | None) -> bool:
        """Whether nobody needs the couplings of the whole batch: inference on a CPU."""
        coupling = self.coupling
        needed = coupling.watched or mask is not None or coupling.topology is not None or torch.is_grad_enabled()
        needed = needed or must_be_called(self.premix, coupling.mix)
        drops = coupling.training and coupling.dropout > 0
        traced = torch.compiler.is_compiling() or torch.onnx.is_in_onnx_export() or transformed()
        return not (needed or drops or traced) and q.device.type == "cpu" and q.dtype in (torch.float32, torch.float64)

    def _exchange(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        """The output of each head: q, k, v (batch, heads, tokens, d) -> (batch, tokens, heads, d)."""
        scores = mix_heads(self.premix, q @ k.mT, self.scale)
        return (self.coupling(scores, mask) @ v).transpose(1, 2)

    def _exchange_in_blocks(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """The same for a few receivers of an image at a time, in memory that is used again.

        The bias before the softmax is left out, since it changes nothing; the one after it adds a share of the sum of
        all values.
        """
        batch, heads, tokens, size = q.shape
        rows = min(tokens, max(1, BLOCK // (heads * tokens)))
        output, blocks = q.new_empty(batch, tokens, heads, size), q.new_empty(2, heads * rows * tokens)
        before, after = self.scale * self.premix.weight, self.coupling.mix.weight
        for image in range(batch):
            for first in range(0, tokens, rows):
                last = min(first + rows, tokens)
                maps, mixed = blocks[:, : heads * (last - first) * tokens].view(2, heads, last - first, tokens)
                torch.bmm(q[image, :, first:last], k[image].mT, out=maps)
                torch.mm(before, maps.flatten(1), out=mixed.flatten(1))
                torch.softmax(mixed, -1, out=maps)
                torch.mm(after, maps.flatten(1), out=mixed.flatten(1))
                output[image, first:last] = torch.bmm(mixed, v[image]).transpose(0, 1)
        return output.add_((self.coupling.mix.bias[:, None] * v.sum(2)).unsqueeze(1))

    def forward(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        q, k, v = self.qkv(tokens).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
        if self._runs_in_blocks(q, mask):
            merged = self._exchange_in_blocks(q, k, v)
        else:
            merged = self._exchange(q, k, v, four_axes(mask))
        out: Tensor = self.proj_drop(self.proj(merged.flatten(2)))
        return out

    def extra_repr(self) -> str:
        return f"{self.proj.in_features}, num_heads={self.num_heads}"
