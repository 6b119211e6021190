"""Conditional cross-attention: loops over heads, PyTorch's layer, a block of timm, one query for many, masks."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import mereo
from mereo.errors import UsageError
from mereo.layers.transformer_block import TransformerBlock
from mereo.mechanisms.attention import ConditionalCrossAttention, ConditionTokens


def made(residual: str = "condition") -> tuple[Any, Tensor, Tensor]:
    """A block of 4 heads and 16 numbers, 11 tokens of 2 images, 3 conditions."""
    torch.manual_seed(0)
    block = ConditionalCrossAttention(TransformerBlock(16, 4, 24), residual).double().eval()
    for parameter in block.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    return block, torch.randn(2, 11, 16).double(), torch.randn(2, 3, 16).double()


@pytest.mark.parametrize("residual", ["condition", "cls", "none"])
def test_it_is_that_of_loops(residual: str) -> None:
    block, tokens, conditions = made(residual)
    weight, bias = block.attn.qkv.weight.unflatten(0, (3, 4, 4)), block.attn.qkv.bias.unflatten(0, (3, 4, 4))
    for image, asked, out in zip(tokens, conditions, block(tokens, conditions), strict=True):
        x = block.norm1(image)
        for u, found in zip(asked, out, strict=True):
            heads = []
            for head in range(4):
                q = weight[0, head] @ block.condition_norm(u) + bias[0, head]
                keys, values = ([weight[i, head] @ t + bias[i, head] for t in x] for i in (1, 2))
                shares = torch.stack([q @ k / 2 for k in keys]).softmax(0)
                heads.append(sum(share * v for share, v in zip(shares, values, strict=True)))
            z = block.attn.proj(torch.cat(heads)) + {"condition": u, "cls": image[0], "none": 0}[residual]
            torch.testing.assert_close(found, z + block.mlp(block.norm2(z)))


def test_a_query_repeated_for_every_token_gives_equal_rows() -> None:
    block, tokens, conditions = made()
    one, repeated = block(tokens, conditions[:, :1]), block(tokens, conditions[:, :1].expand(-1, 11, -1))
    torch.testing.assert_close(repeated, repeated[:, :1].expand_as(repeated), rtol=0, atol=1e-12)
    torch.testing.assert_close(repeated[:, :1], one, rtol=0, atol=1e-12)


def test_attention_is_pytorchs_and_the_first_row_of_a_block_of_timm() -> None:
    block, tokens, conditions = made()
    theirs = nn.MultiheadAttention(16, 4, batch_first=True).double()
    theirs.in_proj_weight, theirs.in_proj_bias = block.attn.qkv.weight, block.attn.qkv.bias
    theirs.out_proj.weight, theirs.out_proj.bias = block.attn.proj.weight, block.attn.proj.bias
    torch.testing.assert_close(block.attn(conditions, tokens), theirs(conditions, tokens, tokens)[0])
    timm = pytest.importorskip("timm")
    source = timm.create_model("vit_tiny_patch16_224", embed_dim=16, num_heads=4, depth=1).double().eval().blocks[0]
    ours: Any = ConditionalCrossAttention(source, "cls")
    ours.condition_norm = nn.Identity()
    torch.testing.assert_close(ours(tokens, source.norm1(tokens)[:, :1]), source(tokens)[:, :1])


def test_a_mask_of_all_tokens_but_one_gives_its_value() -> None:
    block, tokens, conditions = made("none")
    mask = torch.zeros(2, 11, dtype=torch.bool)
    mask[:, 5] = True
    with mereo.record(block) as trace:
        out = block(tokens, conditions, mask)
    assert torch.equal(trace["attn.coupling"], mask.double()[:, None, None].expand(-1, 4, 3, -1))
    z = block.attn.proj(block.attn.qkv(block.norm1(tokens[:, 5]))[:, 32:])
    torch.testing.assert_close(out, (z + block.mlp(block.norm2(z))).unsqueeze(1).expand(-1, 3, -1))


def test_tokens_of_conditions() -> None:
    torch.manual_seed(0)
    lookup, mask = ConditionTokens(4, 6), ConditionTokens(4, 6, "mask")
    assert sum(p.numel() for p in lookup.parameters()) == 24 and sum(p.numel() for p in mask.parameters()) == 24 + 42
    assert torch.equal(lookup(torch.tensor([3, 0])), lookup.table[[3, 0]])
    assert mask.linear is not None
    torch.testing.assert_close(mask()[1], mask.linear.weight @ mask.table[1].relu() + mask.linear.bias)
    for tokens in (lookup, mask):
        torch.testing.assert_close(tokens(torch.eye(4)[[2]]), tokens(torch.tensor([2])))
        torch.testing.assert_close(tokens(torch.tensor([[0.5, 0, 0, 0.5]])), tokens()[[0, 3]].mean(0, keepdim=True))


@pytest.mark.parametrize("wrong", [torch.tensor([0, 4]), torch.tensor([-1]), torch.zeros(2, 3), torch.zeros(2)])
def test_wrong_conditions(wrong: Tensor) -> None:
    with pytest.raises(UsageError, match="condition "):
        ConditionTokens(4, 6)(wrong)
    with pytest.raises(UsageError, match="residual is 'class'"):
        ConditionalCrossAttention(TransformerBlock(16, 4, 24), "class")
    with pytest.raises(UsageError, match="kind is 'table'"):
        ConditionTokens(4, 6, "table")
