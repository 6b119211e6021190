"""Normalised attention: attention without a softmax, divided by a learned function of the token that reads.

Source: arXiv:2405.15731; linear attention is from arXiv:2006.16236.
Cost: 4 C (C + N) FLOPs a token for queries and keys of N, and 4 N C for the scan. Read token by token, it carries N C
numbers.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mereo.core import mechanism
from mereo.core.kernels.linear_scan import BLOCK
from mereo.core.recurrence import Recurrence, normalised
from mereo.core.squash import accumulation_type
from mereo.errors import UsageError, check_choice, check_heads, check_positive
from mereo.mechanisms.scan.base import LinearScan, as_heads, from_heads, normal_weights

NORMALISERS = ("exp", "softplus", "sigmoid", "sum")
LARGEST = 30.0
"""Largest size of w . u, so that its exponential and its inverse fit half precision's sums in float32."""


def _example() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return NormalisedAttention(12, 3, qk_dim=6, block=4), (torch.randn(2, 9, 12),)


@mechanism(
    "normalised_attention",
    family="scan",
    source="arXiv:2405.15731",
    records="states",
    promises=("masks", "causal", "streaming", "any length", "recurrence"),
    sender_axes={"0": 1},
    receiver_axes={"0": 1, "output": 1},
    largest_input=1e6,  # queries, keys and values are multiplied and divided by exp(-30), and must fit float32
    interface="tokens",
    example=_example,
)
class NormalisedAttention(LinearScan):
    """Let each token read a sum of the tokens up to it, divided by a number of its own.

    y_i = W_o sum_{j<=i} phi(q_i)^T phi(k_j) v_j / eta_i + b_o   for each head

    exp:  phi(x) = x, eta_i = exp(w^T u_i + b)   (or softplus, sigmoid);   sum:  phi = elu + 1, eta_i = sum_{j<=i} phi(q_i)^T phi(k_j)

    Args:
        dim: size of the tokens, C.
        num_heads: independent states; divides `dim` and `qk_dim`.
        qk_dim: size of queries and keys together, the state expansion N; `dim` by default.
        normaliser: "exp", "softplus" or "sigmoid" of a linear function of the token, or "sum" for linear attention,
            whose couplings sum to one.
        block: tokens between two recorded states.

    Shapes: tokens (batch, tokens, dim), mask bool (batch, tokens) or None -> (batch, tokens, dim); recorded states
        (batch, heads, blocks, qk_dim / heads, dim / heads), with "sum" one more column, the sum of the keys.

    Reads as: phi(q_i)^T phi(k_j) / eta_i is the weight of token j in token i; only "sum" makes weights that are positive
        and sum to one.

    `step(token, state)` takes one token, and `extend(tokens, state, mask)` several. The state does not grow.

    Deviates: w^T u + b is limited to +-30. No dropout of weights, which a scan does not form.

    Reference: arXiv:2405.15731; weights normal of 0.02, biases 0.
    """  # noqa: E501

    def __init__(
        self, dim: int, num_heads: int = 1, *, qk_dim: int | None = None, normaliser: str = "exp", block: int = BLOCK
    ) -> None:
        super().__init__(block)
        qk_dim = dim if qk_dim is None else qk_dim
        check_positive(dim=dim, qk_dim=qk_dim)
        check_choice("normaliser", normaliser, NORMALISERS)
        check_heads(dim, num_heads)
        if qk_dim % num_heads:
            raise UsageError(f"qk_dim is {qk_dim} and num_heads {num_heads}; qk_dim must be a multiple of num_heads.")
        self.num_heads, self.normaliser = num_heads, normaliser
        self.query_key, self.value, self.proj = nn.Linear(dim, 2 * qk_dim), nn.Linear(dim, dim), nn.Linear(dim, dim)
        self.norm = None if normaliser == "sum" else nn.Linear(dim, num_heads)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise: normal weights of 0.02, biases 0."""
        normal_weights(*(layer for layer in (self.query_key, self.value, self.proj, self.norm) if layer is not None))

    def slopes(self) -> list[float]:
        return [0.0] * self.num_heads

    def read(self, tokens: Tensor, position: int) -> tuple[Tensor, Tensor, Tensor]:
        q, k = (as_heads(x, self.num_heads) for x in self.query_key(tokens).chunk(2, -1))
        v = as_heads(self.value(tokens), self.num_heads)
        if self.norm is not None:
            return q, k, v
        # A column of ones among the values sums up the weights.
        return F.elu(q) + 1, F.elu(k) + 1, F.pad(v, (0, 1), value=1.0)

    def log_eta(self, tokens: Tensor) -> Tensor:
        """The log of the learned normaliser: (batch, heads, tokens, 1)."""
        assert self.norm is not None
        x = self.norm(tokens).to(accumulation_type(tokens)).clamp(-LARGEST, LARGEST).transpose(1, 2).unsqueeze(-1)
        if self.normaliser == "exp":
            return x
        return F.softplus(x).log() if self.normaliser == "softplus" else F.logsigmoid(x)

    def write(self, out: Tensor, tokens: Tensor) -> Tensor:
        if self.norm is None:
            total = out[..., -1:]
            out = torch.where(total > 0, out[..., :-1] / total.clamp(min=torch.finfo(out.dtype).tiny), 0)
        else:
            out = (out * (-self.log_eta(tokens)).exp()).to(out.dtype)
        return self.proj(from_heads(out))

    def recurrence(self, tokens: Tensor) -> Recurrence:
        q, k, v = self.read(tokens, 0)
        if self.norm is not None:
            return normalised(q, k, v, self.log_eta(tokens), lambda out: self.proj(from_heads(out)))
        eta = (q * k.cumsum(2)).sum(-1, keepdim=True).clamp(min=torch.finfo(q.dtype).tiny)
        return normalised(q, k, v[..., :-1], eta.log(), lambda out: self.proj(from_heads(out)))

    def forward(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        return self.extend(tokens, None, mask)[0]

    def extra_repr(self) -> str:
        return f"{self.value.in_features}, num_heads={self.num_heads}, normaliser={self.normaliser!r}"
