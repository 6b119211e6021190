"""Global-local cross-attention: the patches that matter most to the class token attend to all tokens once more.

`mereo.dual_cross_attention` puts it behind a network.

Source: Zhu, Ke, Li, Liu, Tian, Shan 2022, arXiv:2205.02151, section 3.2; the rollout is from arXiv:2005.00928.
Cost: keys and values of N tokens, 2 N D^2 multiplications, and a block on n of them, 10 n D^2 + 2 n N D; the rollout
N^2 a layer.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from mereo.core import Signal, mechanism
from mereo.errors import UsageError, check_fraction
from mereo.mechanisms.attention.hosted import CrossBlock
from mereo.mechanisms.select.evit import _Block, order_of


def rollout_row(maps: Sequence[Tensor]) -> Tensor:
    """How much each input token counts for the first token after all layers, if attention moves information.

    r <- (r S_l + r) / 2   from the last layer to the first, beginning with one for the first token

    It is the first row of the product of all (S_l + 1) / 2, the last layer on the left, in N^2 operations a layer.

    Args:
        maps: the mean over the heads of each layer's couplings, S_l, the first layer first.

    Shapes: (batch, tokens, tokens) each -> (batch, tokens); rows that sum to one give one that does.
    """
    if not maps:
        raise UsageError("maps is empty; give the couplings of at least one layer.")
    last = maps[-1][:, 0] / 2
    row = torch.cat((last[:, :1] + 0.5, last[:, 1:]), 1)
    for each in reversed(maps[:-1]):
        row = ((row.unsqueeze(1) @ each).squeeze(1) + row) / 2
    return row


def most_important(row: Tensor, prefix: int, share: float) -> Tensor:
    """Numbers of the patches that count most, in falling order, equal ones by their number.

    Args:
        row: of `rollout_row`.
        prefix: tokens before the patches.
        share: of the patches, rounded down; at least one is chosen.

    Shapes: (batch, prefix + patches) -> int64 (batch, count).
    """
    check_fraction(share=share)
    patches = row[:, prefix:]
    count = max(int(share * patches.shape[1] + 1e-6), 1)  # 0.29 * 100 is a little below 29
    return order_of(patches)[:, :count]


def _example() -> tuple[nn.Module, tuple[Tensor, ...]]:
    kept = torch.stack([torch.randperm(12)[:4] for _ in range(2)])
    return GlobalLocalBlock(_Block(8, 2)), (torch.randn(2, 13, 8), kept)


@mechanism(
    "global_local",
    family="token selection",
    source="arXiv:2205.02151",
    records="kept tokens",
    also_records=("couplings",),
    largest_input=1e15,  # the layer norms of the block
    example=_example,
)
class GlobalLocalBlock(CrossBlock):
    """A transformer block for the class token and some patches, which attend to all tokens.

    z = x_kept + W_o [softmax(q k^T / sqrt(d)) v, ...],   q of norm(x_kept), k and v of norm(x),   out = z + mlp(norm z)

    Args:
        block: with `norm1`, `attn`, `norm2` and `mlp`, and, if it has them, `ls1`, `ls2`, `drop_path1`, `drop_path2`;
            copied, with its weights.
        prefix: number of tokens before the patches, the first of which is the class token; they are always queries.

    Shapes: tokens (batch, prefix + patches, dim), numbers of patches int64 (batch, count), see `most_important`
        -> (batch, prefix + count, dim), the rows that the block would give if all tokens were queries.

    Reads as: `attn.coupling` (batch, heads, prefix + count, prefix + patches) is what each query takes from each token.

    Deviates: that the block reads the output of the last layer, and that other rows are dropped, is not stated; the
        published number of multiplications agrees with it.

    Reference: arXiv:2205.02151, eq. 3 to 5.
    """

    def __init__(self, block: nn.Module, prefix: int = 1) -> None:
        super().__init__(block)
        self.prefix = prefix
        self.kept = Signal("kept tokens")
        self.train(block.training)

    def forward(self, tokens: Tensor, kept: Tensor) -> Tensor:
        patches = self.prefix + self.kept(kept)
        first = torch.arange(self.prefix, device=kept.device).expand(kept.shape[0], -1)
        rows = torch.cat((first, patches), 1).unsqueeze(-1).expand(-1, -1, tokens.shape[-1])
        normed = self.norm1(tokens)
        return self.cross(tokens.gather(1, rows), normed.gather(1, rows), normed)
