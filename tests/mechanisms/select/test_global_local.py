"""Global-local cross-attention: the rollout by hand, rows of a full block, order of equal patches, bad input."""

import pytest
import torch
from torch import Tensor, nn

from mereo.errors import UsageError
from mereo.layers.transformer_block import TransformerBlock
from mereo.mechanisms.select import GlobalLocalBlock, most_important, rollout_row

FIRST = torch.tensor([[[0.5, 0.3, 0.2], [0.2, 0.6, 0.2], [0.1, 0.1, 0.8]]])
SECOND = torch.tensor([[[0.4, 0.1, 0.5], [0.3, 0.4, 0.3], [0.2, 0.2, 0.6]]])


def product(maps: list[Tensor]) -> Tensor:
    """The whole rollout, the last layer on the left."""
    whole = torch.eye(maps[0].shape[-1], dtype=maps[0].dtype)
    for each in maps:
        whole = (each + torch.eye(each.shape[-1], dtype=each.dtype)) / 2 @ whole
    return whole


def host() -> tuple[TransformerBlock, Tensor]:
    torch.manual_seed(0)
    return TransformerBlock(12, 3, 24).double().eval(), torch.randn(2, 9, 12, dtype=torch.float64)


def test_worked_rollout() -> None:
    expected = torch.tensor([[0.5425, 0.1575, 0.3], [0.19, 0.59, 0.22], [0.125, 0.135, 0.74]])
    torch.testing.assert_close(product([FIRST, SECOND])[0], expected)
    torch.testing.assert_close(rollout_row([FIRST, SECOND]), expected[:1])
    torch.testing.assert_close(rollout_row([FIRST]), torch.tensor([[0.75, 0.15, 0.1]]))


def test_the_row_is_that_of_the_product_and_sums_to_one() -> None:
    maps = [torch.randn(3, 6, 6, dtype=torch.float64).softmax(-1) for _ in range(5)]
    row = rollout_row(maps)
    torch.testing.assert_close(row, product(maps)[:, 0])
    torch.testing.assert_close(row.sum(1), torch.ones(3, dtype=torch.float64))


def test_without_attention_the_class_token_counts_alone_and_equal_patches_keep_their_order() -> None:
    row = rollout_row([torch.eye(6).expand(2, 6, 6)] * 3)
    assert row.tolist() == [[1, 0, 0, 0, 0, 0]] * 2
    assert most_important(row, 1, 0.6).tolist() == [[0, 1, 2]] * 2


def test_the_share_is_rounded_down() -> None:
    row = torch.rand(1, 785)
    assert most_important(row, 1, 0.1).shape == (1, 78) and most_important(row, 1, 1e-6).shape == (1, 1)
    assert most_important(torch.rand(1, 101), 1, 0.29).shape == (1, 29)
    assert most_important(row, 1, 1.0)[0].sort().values.tolist() == list(range(784))
    assert most_important(torch.tensor([[9.0, 8.0, 0.1, 0.3, 0.2]]), 2, 0.7).tolist() == [[1, 2]]


def test_rows_are_those_of_the_whole_block() -> None:
    block, tokens = host()
    whole, changed = block(tokens), GlobalLocalBlock(block)
    kept = torch.tensor([[4, 0, 6], [1, 2, 3]])
    out = changed(tokens, kept)
    assert out.shape == (2, 4, 12)
    for image in range(2):
        for row, token in enumerate([0, *(1 + kept[image]).tolist()]):
            torch.testing.assert_close(out[image, row], whole[image, token])
    everything = torch.stack([torch.randperm(8) for _ in range(2)])
    out = changed(tokens, everything)
    torch.testing.assert_close(out[:, 0], whole[:, 0])
    torch.testing.assert_close(out[:, 1:], whole[:, 1:].gather(1, everything.unsqueeze(-1).expand(-1, -1, 12)))
    two = GlobalLocalBlock(block, 2)(tokens, kept)
    torch.testing.assert_close(two[:, :2], whole[:, :2])
    torch.testing.assert_close(two[0, 2], whole[0, 2 + 4])


def test_the_block_is_copied() -> None:
    block, tokens = host()
    changed, kept = GlobalLocalBlock(block), torch.zeros(2, 1, dtype=torch.int64)
    expected = changed(tokens, kept)
    nn.init.zeros_(block.mlp.first.weight)
    assert torch.equal(changed(tokens, kept), expected)
    assert changed.state_dict().keys() == block.state_dict().keys()


def test_what_does_not_fit_is_named() -> None:
    with pytest.raises(UsageError, match="maps"):
        rollout_row([])
    with pytest.raises(UsageError, match="share"):
        most_important(torch.rand(1, 5), 1, 0.0)
