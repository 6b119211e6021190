"""Conditional cross-attention network: a learned query, cached tokens, conditions, weights of a vision transformer."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F

import mereo
from mereo.errors import UsageError
from mereo.models.registry import outline
from mereo.models.vision.cca import TINY


def made(**changes: Any) -> Any:
    torch.manual_seed(0)
    model = mereo.create_model("cca_tiny", **{**TINY, "num_classes": 4, **changes}).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def images(count: int = 3) -> torch.Tensor:
    return torch.rand(count, 3, 16, 16, dtype=torch.float64)


def test_counts_of_the_page() -> None:
    def count(name: str, **arguments: Any) -> int:
        return sum(p.numel() for p in outline(name, **arguments).parameters())

    vit = count("vit_base_patch16_224", num_classes=0)
    assert vit == 85_798_656 and count("cca_tiny") == 209_824
    assert count("cca_vit_b16") == vit + 8 * 768 + 2 * 768 + 768 * 512 + 512
    assert count("cca_vit_b16", condition="mask") == count("cca_vit_b16") + 768**2 + 768


def test_embeddings_have_length_one_and_come_from_tokens_that_no_condition_changes() -> None:
    model, x = made(), images()
    condition = torch.tensor([2, 0, 3])
    out, tokens = model(x, condition), model.tokens(x)
    assert out.shape == (3, 6) and tokens.shape == (3, 17, 12)
    torch.testing.assert_close(out.norm(dim=1), torch.ones(3).double())
    torch.testing.assert_close(model.embed(tokens, condition), out)
    together = model(x)
    assert together.shape == (3, 4, 6)
    for c in range(4):
        torch.testing.assert_close(model.embed(tokens, torch.full((3,), c)), together[:, c])
    torch.testing.assert_close(model.embed(tokens, torch.eye(4)[condition]), out)
    with torch.no_grad():
        model.head.table[1] = model.head.table[3]
    assert torch.equal(model.tokens(x), tokens)
    torch.testing.assert_close(model(x)[:, 1], together[:, 3])


def test_with_one_condition_it_pools_by_a_learned_query() -> None:
    model, x = made(num_classes=1), images(2)
    block, tokens = model.blocks[-1], model.tokens(x)
    q, k, v = block.attn.qkv.weight.split(12), block.norm1(tokens), None
    bias = block.attn.qkv.bias.split(12)
    query = block.condition_norm(model.head.table[0]) @ q[0].T + bias[0]
    keys, v = k @ q[1].T + bias[1], k @ q[2].T + bias[2]
    pooled = []
    for head in range(3):
        part = slice(4 * head, 4 * head + 4)
        shares = (keys[..., part] @ query[part] / 2).softmax(1)
        pooled.append((shares.unsqueeze(2) * v[..., part]).sum(1))
    z = model.head.table[0] + block.attn.proj(torch.cat(pooled, 1))
    z = z + block.mlp(block.norm2(z))
    torch.testing.assert_close(model(x)[:, 0], F.normalize(model.projection(model.norm(z)), dim=1))


def test_order_of_patches_does_not_matter_and_masked_tokens_take_no_part() -> None:
    model = made()
    tokens, order = model.tokens(images(2)), torch.randperm(16)
    moved = torch.cat((tokens[:, :1], tokens[:, 1:][:, order]), 1)
    torch.testing.assert_close(model.embed(moved), model.embed(tokens))
    mask = torch.rand(2, 17) < 0.5
    changed = tokens.masked_fill(~mask.unsqueeze(2), 9.0)
    torch.testing.assert_close(model.embed(changed, mask=mask), model.embed(tokens, mask=mask))
    with mereo.record(model) as trace:
        model(images(2))
    couplings = trace["blocks.1.attn.coupling"]
    assert couplings.shape == (2, 3, 4, 17)
    (call,) = trace.calls("blocks.1.attn.coupling")
    assert call.senders is not None and call.senders.prefix == 1 and call.receivers is None


def test_the_last_block_starts_from_the_last_self_attention_of_a_vision_transformer() -> None:
    sizes = {"img_size": 16, "patch_size": 4, "embed_dim": 12, "depth": 2, "num_heads": 3}
    vit: Any = mereo.create_model("vit_small", **sizes)
    model: Any = mereo.create_model("cca_vit_s16", **sizes, out_dim=6)
    model.start_from(vit)
    x = torch.rand(2, 3, 16, 16)
    assert torch.equal(model.tokens(x), vit.blocks[0](vit.embed(x)))
    block, tokens = vit.blocks[1], model.tokens(x)
    model.blocks[1].condition_norm = block.norm1
    model.blocks[1].residual = "cls"
    torch.testing.assert_close(model.blocks[1](tokens, tokens[:, :1]), block(tokens)[:, :1])
    with pytest.raises(UsageError, match="vit is a ViT with other blocks"):
        model.start_from(mereo.create_model("vit_small", **{**sizes, "depth": 3}))


def test_wrong_arguments() -> None:
    for name, value in {"depth": 1, "out_dim": 0, "residual": "sum", "condition": "text"}.items():
        with pytest.raises(UsageError, match=f"{name if name != 'condition' else 'kind'} is {value!r}"):
            made(**{name: value})
    with pytest.raises(UsageError, match="num_classes is 0"):
        made(num_classes=0).embed(torch.zeros(1, 17, 12))
