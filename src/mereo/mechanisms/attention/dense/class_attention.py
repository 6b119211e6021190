"""Class attention: one class token, the only query, gathers what it needs from itself and the patches.

Source: Touvron et al. 2021, arXiv:2103.17239, section 3, equations 5 and 6.
Cost: there is one query, so that keys and values are never computed. An image takes 2 H N D multiplications (N patches,
H heads, D channels of all heads together) and 2 D^2 for the query; keys and values of all tokens would take 2 N D^2.
"""

import torch
from torch import Tensor, nn

from mereo.core import Coupling, mechanism
from mereo.core.initialise import start_linears
from mereo.core.modes import must_be_called
from mereo.errors import check_heads, check_probability
from mereo.mechanisms.attention.dense.multi_head import four_axes


def _example() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return ClassAttention(12, 3), (torch.randn(2, 7, 12),)


@mechanism(
    "class_attention",
    family="dense attention",
    over="senders",
    steps=1,
    values="shared",
    update="linear",
    source="arXiv:2103.17239",
    promises=("normalised", "masks", "any length"),
    zero_gradients={"key.bias": "it adds the same to every score of the query, and the softmax takes that out"},
    sender_axes={"0": 1},
    largest_input=1e15,  # queries times keys must fit float32
    example=_example,
)
class ClassAttention(nn.Module):
    """Update only a class token, by its attention to all tokens, itself included.

    q = W_q u_0 + b_q,  k = W_k u + b_k,  v = W_v u + b_v   for each head

    out = W_o [softmax(q k^T / sqrt(d)) v, ...] + b_o

    The matrices of keys and values are applied to the query and to the weighted sum of tokens, not to every token:

    q k_n = (W_k^T q) u_n + q b_k,    sum_n p_n v_n = W_v (sum_n p_n u_n) + b_v sum_n p_n

    Args:
        dim: size of the tokens.
        num_heads: independent sets of couplings; divides `dim`.
        qkv_bias: biases of the three projections.
        attn_drop: dropout of the couplings.
        proj_drop: dropout of the output.

    Shapes: tokens (batch, 1 + patches, dim), the class token first; mask bool (batch, 1 + patches) or with the axes of
        couplings, True = takes part -> the update of the class token (batch, 1, dim).

    Reads as: couplings[b, h, 0, s] is the share of token s in the output of head h; sender 0 is the class token.

    Reference: arXiv:2103.17239, eq. 5 and 6.
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
        self.num_heads = num_heads
        self.query, self.key, self.value = (nn.Linear(dim, dim, bias=qkv_bias) for _ in range(3))
        self.coupling = Coupling("senders", dropout=attn_drop)
        self.proj = nn.Linear(dim, dim)
        self.proj_drop = nn.Dropout(proj_drop)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise: weights from a truncated normal of deviation 0.02, biases of zero."""
        for linear in (self.query, self.key, self.value, self.proj):
            start_linears(linear)

    def forward(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        return self.gather(tokens[:, :1], tokens[:, 1:], mask=mask)

    def gather(
        self,
        token: Tensor,
        patches: Tensor,
        gain: Tensor | None = None,
        shift: Tensor | None = None,
        mask: Tensor | None = None,
    ) -> Tensor:
        """The update of the class token, which attends to itself and to `gain * patches + shift`.

        Several layers that normalise the same patches, each with a gain and a shift of its own, share the normalised
        patches: the gain multiplies the transformed query and the weighted sum of patches.

        Shapes: token (batch, 1, dim), patches (batch, patches, dim), gain and shift (dim,), or neither
            -> (batch, 1, dim).
        """
        heads = (self.num_heads, -1)
        query = self.query(token).unflatten(-1, heads).squeeze(1)
        query = query * query.shape[-1] ** -0.5
        if must_be_called(self.key, self.value):
            patches = patches if gain is None else patches * gain
            tokens = torch.cat((token, patches if shift is None else patches + shift), 1)
            keys, given = (layer(tokens).unflatten(-1, heads) for layer in (self.key, self.value))
            scores = torch.einsum("bhd,bnhd->bhn", query, keys).unsqueeze(2)
            values = torch.einsum("bhn,bnhd->bhd", self.coupling(scores, four_axes(mask)).squeeze(2), given)
            return self._projected(values)
        wanted = torch.einsum("bhd,hdc->bhc", query, self.key.weight.unflatten(0, heads))
        pair = wanted @ token.mT, (wanted if gain is None else wanted * gain) @ patches.mT
        if shift is not None:
            pair = pair[0], pair[1] + wanted @ shift.unsqueeze(1)
        joined = torch.cat(pair, -1)
        if self.key.bias is not None:
            joined = joined + (query * self.key.bias.unflatten(0, heads)).sum(-1, keepdim=True)
        couplings = self.coupling(joined.unsqueeze(2), four_axes(mask)).squeeze(2)
        own, others = couplings[..., :1], couplings[..., 1:]
        gathered = others @ patches
        if gain is not None:
            gathered = gathered * gain
        if shift is not None:
            gathered = gathered + others.sum(-1, keepdim=True) * shift
        gathered = gathered + own * token
        values = torch.einsum("bhc,hdc->bhd", gathered, self.value.weight.unflatten(0, heads))
        if self.value.bias is not None:
            # Couplings that were dropped or changed do not sum to one.
            values = values + couplings.sum(-1, keepdim=True) * self.value.bias.unflatten(0, heads)
        return self._projected(values)

    def _projected(self, values: Tensor) -> Tensor:
        update: Tensor = self.proj_drop(self.proj(values.flatten(1).unsqueeze(1)))
        return update

    def extra_repr(self) -> str:
        return f"{self.query.in_features}, num_heads={self.num_heads}"
