"""Blocks with the norm behind: PyTorch's layers with the same weights, and tokens one at a time."""

import torch
from torch import Tensor, nn

from mereo.layers.post_norm import PostNormDecoderBlock, PostNormEncoderBlock
from mereo.mechanisms.attention.dense import MultiHeadAttention


def copy_attention(mine: MultiHeadAttention, theirs: nn.MultiheadAttention) -> None:
    parts = zip(
        (mine.query, mine.key, mine.value), theirs.in_proj_weight.chunk(3), theirs.in_proj_bias.chunk(3), strict=True
    )
    for layer, weight, bias in parts:
        layer.weight.copy_(weight)
        layer.bias.copy_(bias)
    mine.proj.load_state_dict(theirs.out_proj.state_dict())


@torch.no_grad()
def test_blocks_are_those_of_pytorch() -> None:
    torch.manual_seed(0)
    encoder, decoder = PostNormEncoderBlock(6, 2, 5).double().eval(), PostNormDecoderBlock(6, 2, 5).double().eval()
    theirs = nn.TransformerEncoderLayer(6, 2, 5, batch_first=True).double().eval()
    reader = nn.TransformerDecoderLayer(6, 2, 5, batch_first=True).double().eval()
    for parameter in (*theirs.parameters(), *reader.parameters()):
        parameter.add_(0.3 * torch.randn_like(parameter))
    pairs: list[tuple[nn.Module, nn.Module]] = []
    for block, layer, norms in ((encoder, theirs, 2), (decoder, reader, 3)):
        copy_attention(block.attention, layer.self_attn)
        pairs += [(block.mlp.first, layer.linear1), (block.mlp.second, layer.linear2)]
        pairs += [(getattr(block, f"norm{n}"), getattr(layer, f"norm{n}")) for n in range(1, norms + 1)]
    for one, other in pairs:
        one.load_state_dict(other.state_dict())
    copy_attention(decoder.cross, reader.multihead_attn)
    x, y = torch.randn(2, 4, 6).double(), torch.randn(2, 3, 5, 6).double()
    present = torch.tensor([[True, True, True, False], [True] * 4])
    memory = encoder(x, present)
    torch.testing.assert_close(memory[0, :3], theirs(x, src_key_padding_mask=~present)[0, :3])
    context = decoder.read(memory)
    found, _ = decoder(y, context, present)
    hidden = torch.ones(5, 5, dtype=torch.bool).triu(1)
    for path in range(3):
        expected = reader(y[:, path], memory, hidden, memory_key_padding_mask=~present)
        torch.testing.assert_close(found[:, path], expected)
    past: tuple[Tensor, Tensor] | None = None
    for step in range(5):
        one_step, past = decoder(y[:, :, step : step + 1], context, present, past)
        torch.testing.assert_close(one_step, found[:, :, step : step + 1])
