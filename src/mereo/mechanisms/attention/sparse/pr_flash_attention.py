"""PrFlash attention: causal attention to blocks at random distances, which are the same for all rows of blocks.

Source: Li 2024, arXiv:2410.18441; only its abstract was available, and the laws of the distances are ours.
Cost: N b / 2 and N b for each further kept distance scores a head, for N tokens in blocks of b. With 1 / (1 + distance)
19 % of the blocks of 32 x 32 below the diagonal take part on average, with 8 x 8 blocks 46 %.
"""

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mereo.core import Causal, Coupling, mechanism
from mereo.core.kernels.attention import attend
from mereo.errors import UsageError, check_choice, check_heads, check_not_negative, check_positive
from mereo.mechanisms.attention.dense.multi_head import four_axes

LAWS: dict[str, Callable[[Tensor, float], Tensor]] = {
    "power": lambda distance, strength: (1 + distance).pow(-strength),
    "exponential": lambda distance, strength: (-strength * distance).exp(),
    "window": lambda distance, strength: (distance <= strength).to(distance.dtype),
}
"""The probability that a distance of blocks is kept: 1 at distance 0, and never rising."""


def distance_law(blocks: int, law: str = "power", strength: float = 1.0) -> Tensor:
    """P of each distance 0 ... blocks - 1, float64 (blocks,): (1 + d)^-a, exp(-a d), or whether d <= a.

    Args:
        law: "power", "exponential" or "window".
        strength: a, at least 0.
    """
    check_choice("law", law, LAWS)
    check_positive(blocks=blocks)
    check_not_negative(strength=strength)
    return LAWS[law](torch.arange(blocks, dtype=torch.float64), strength)


def pr_flash_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    kept: Tensor,
    block: int,
    *,
    probabilities: Tensor | None = None,
    mask: Tensor | None = None,
    coupling: Coupling | None = None,
) -> Tensor:
    """Causal softmax attention of each token to the blocks at kept distances before its own.

    out_i = sum_j w_ij v_j / sum_j w_ij,   w_ij = exp(<q_i, k_j> / sqrt(d)) / P(D)  for kept D = i // b - j // b, j <= i

    Without `probabilities` P is 1. With them, the means of numerator and denominator over draws of the kept distances
    are what attention to all tokens has; the ratio is nearly unbiased, and its variance is larger.

    Args:
        kept: of each distance, whether it takes part; distance 0 always does.
        block: b, tokens of a block.
        probabilities: P of each distance, above 0 where it is kept; see `distance_law`.
        mask: bool, True = takes part.
        coupling: makes the couplings, causal; while it is watched they are made for all pairs of tokens.

    Shapes: q, k (batch, heads, tokens, dim), v (batch, heads, tokens, pose), kept bool (blocks,), mask (batch, tokens)
        -> (batch, heads, tokens, pose).

    Raises:
        UsageError: for shapes that do not fit, distance 0 that is not kept, and a kept distance of probability 0.

    Reference: arXiv:2410.18441.
    """
    tokens = q.shape[2]
    check_positive(block=block, tokens=tokens)
    rows = -(-tokens // block)
    if kept.shape != (rows,) or not bool(kept[0]):
        raise UsageError(f"kept is {kept.tolist()}; it must have {rows} entries, one for each distance, and keep 0.")
    if probabilities is not None and not bool((probabilities > 0)[kept].all()):
        raise UsageError(f"probabilities are {probabilities.tolist()}; they must be above 0 where kept is True.")
    coupling = Coupling("senders", topology=Causal()) if coupling is None else coupling
    logs = None if probabilities is None else -probabilities.clamp(min=1e-30).log().to(q.device, q.dtype)
    if coupling.watched:
        number = torch.arange(tokens, device=q.device) // block
        apart = (number.unsqueeze(1) - number).clamp(min=0)
        there = kept.to(q.device)[apart]
        dense = there if mask is None else there & mask[:, None, None]
        return attend(q, k, v, coupling, mask=dense, bias=None if logs is None else logs[apart])
    # The block of the queries comes last, so that causality leaves the earlier ones whole.
    distances = kept.nonzero().flatten().flip(0).tolist()
    there = torch.ones(1, tokens, dtype=torch.bool, device=q.device) if mask is None else mask
    queries, keys, values = (_blocks(x.transpose(1, 2), block) for x in (q, k, v))
    seen = _before(_blocks(there, block), distances).expand(len(q), -1, -1)
    bias = None if logs is None else logs[distances].repeat_interleave(block).view(1, 1, 1, -1)
    own, near, given = (
        x.flatten(0, 1).transpose(1, 2) for x in (queries, _before(keys, distances), _before(values, distances))
    )
    mixed = attend(own, near, given, coupling, mask=seen.reshape(-1, 1, 1, seen.shape[-1]), bias=bias)
    return mixed.transpose(1, 2).unflatten(0, (-1, rows)).flatten(1, 2)[:, :tokens].transpose(1, 2)


def _blocks(x: Tensor, block: int) -> Tensor:
    """(batch, tokens, ...) -> (batch, blocks, tokens of a block, ...), with zeros behind the last token."""
    return F.pad(x, (0, 0) * (x.dim() - 2) + (0, -x.shape[1] % block)).unflatten(1, (-1, block))


def _before(x: Tensor, distances: Sequence[int]) -> Tensor:
    """For each block the blocks at some distances before it, side by side; zeros before the first.

    Shapes: (batch, blocks, tokens of a block, ...) -> (batch, blocks, distances * tokens of a block, ...).
    """
    shifted = [F.pad(x[:, : x.shape[1] - d], (0, 0) * (x.dim() - 2) + (d, 0)) for d in distances]
    return torch.stack(shifted, 2).flatten(2, 3)


def _example() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return PrFlashAttention(12, 3, block=3), (torch.randn(2, 8, 12),)


@mechanism(
    "pr_flash_attention",
    family="sparse attention",
    over="senders",
    values="shared",
    update="linear",
    source="arXiv:2410.18441",
    promises=("normalised", "masks", "causal", "any length"),
    sender_axes={"0": 1},
    receiver_axes={"0": 1, "output": 1},
    largest_input=1e15,  # queries times keys must fit float32
    reconstruction="only the abstract was available; the laws of the distances are ours",
    interface="tokens",
    example=_example,
)
class PrFlashAttention(nn.Module):
    """Causal attention that is trained on blocks at random distances, and sees all tokens afterwards.

    q, k, v = W x   for each head;   out = W_o [prflash(q, k, v), ...]

    Args:
        dim: size of the tokens.
        num_heads: independent sets of couplings; divides `dim`.
        block: tokens of a block.
        law: of the probability with which a distance of blocks is kept in a training step, see `distance_law`.
        strength: of the law, at least 0; 0 keeps all distances with "power" and "exponential".
        rescale: divide by this probability, see `pr_flash_attention`.
        distances: of the blocks that take part in evaluation, 0 included; all by default.

    Shapes: tokens (batch, tokens, dim), mask bool (batch, tokens) or None, True = takes part -> (batch, tokens, dim).

    Reads as: couplings[b, h, r, s] is the share of token s in the output of head h for token r; 0 in blocks at
        distances that do not take part.

    Deviates: the laws, the rescaling, and attention to all tokens in evaluation are ours.

    Reference: arXiv:2410.18441. Weights normal of 0.02.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int = 8,
        *,
        block: int = 64,
        law: str = "power",
        strength: float = 1.0,
        rescale: bool = False,
        distances: Sequence[int] | None = None,
    ) -> None:
        super().__init__()
        check_heads(dim, num_heads)
        check_positive(block=block)
        distance_law(1, law, strength)
        if distances is not None and (0 not in distances or min(distances) < 0):
            raise UsageError(f"distances are {tuple(distances)}; they must include 0, and none may be below it.")
        self.num_heads, self.block, self.law, self.strength = num_heads, block, law, strength
        self.rescale, self.distances = rescale, None if distances is None else tuple(distances)
        self.qkv, self.proj = nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, dim, bias=False)
        for linear in (self.qkv, self.proj):
            nn.init.normal_(linear.weight, std=0.02)
        self.coupling = Coupling("senders", topology=Causal())

    def draw(self, tokens: int) -> tuple[Tensor, Tensor]:
        """The distances that are kept in a training step, from PyTorch's random numbers, and their probabilities."""
        probabilities = distance_law(-(-tokens // self.block), self.law, self.strength)
        return torch.rand(len(probabilities), dtype=torch.float64) < probabilities, probabilities

    def forward(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        if not tokens.shape[1]:
            raise UsageError("PrFlashAttention: tokens are (batch, tokens, dim) with 0 tokens; give one at least.")
        q, k, v = self.qkv(tokens).unflatten(-1, (3, self.num_heads, -1)).transpose(1, 3).unbind(2)
        if self.training:
            kept, probabilities = self.draw(tokens.shape[1])
            given = probabilities if self.rescale else None
            mixed = pr_flash_attention(
                q, k, v, kept, self.block, probabilities=given, mask=mask, coupling=self.coupling
            )
        elif self.distances is not None:
            rows = -(-tokens.shape[1] // self.block)
            kept = torch.tensor([row in self.distances for row in range(rows)])
            mixed = pr_flash_attention(q, k, v, kept, self.block, mask=mask, coupling=self.coupling)
        else:
            mixed = attend(q, k, v, self.coupling, mask=four_axes(mask))
        out: Tensor = self.proj(mixed.transpose(1, 2).flatten(2))
        return out

    def extra_repr(self) -> str:
        return f"{self.qkv.in_features}, num_heads={self.num_heads}, block={self.block}, law={self.law!r}"
