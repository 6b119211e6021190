"""The decoder around RCMHA: its equations, its number of parameters, and its memory over segments."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F

import mereo
from mereo.errors import UsageError
from mereo.models.registry import outline
from mereo.models.sequence.rcmha import read_segment


def made(**arguments: Any) -> Any:
    sizes = {"dim": 12, "depth": 2, "num_heads": 3, "reach": 32, "hidden_dim": 20, "vocab_size": 31}
    model = mereo.create_model("rcmha_tiny", **{**sizes, **arguments}).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def test_it_equals_its_equations() -> None:
    model, tokens = made(), torch.randint(31, (2, 11))
    x = model.embedding(tokens) * 12**0.5
    for block in model.blocks:
        x = x + block.mixer(block.norm1(x))
        x = x + block.channels.second(block.channels.first(block.norm2(x)).relu())
    torch.testing.assert_close(model(tokens), F.linear(model.norm(x), model.head.weight, model.head.bias))


def test_the_released_network() -> None:
    model = outline("rcmha_shakespeare")
    assert sum(p.numel() for p in model.parameters()) == 7_496_897
    assert (model.vocab_size, model.num_features, len(model.blocks), model.head.bias.shape) == (65, 128, 6, (65,))
    layer = model.blocks[0].mixer
    assert (layer.num_heads, layer.kernel, layer.reach) == (8, 3, 4096)


def test_a_segment_with_memory_is_the_whole_but_for_the_first_queries() -> None:
    model, tokens = made(depth=1), torch.randint(31, (2, 12))
    whole = model(tokens)
    first, memory = read_segment(model, tokens[:, :5])
    second, behind = read_segment(model, tokens[:, 5:], memory)
    torch.testing.assert_close(first, whole[:, :5])
    torch.testing.assert_close(second[:, 2:], whole[:, 7:])
    assert ((second[:, :2] - whole[:, 5:7]).abs().amax((0, 2)) > 1e-4).all()
    assert memory[0].shape == (2, 5, 12) and behind[0].shape == (2, 12, 12)
    assert torch.equal(behind[0], model.embed(tokens))


def test_a_memory_is_cut_and_takes_no_gradient() -> None:
    model, tokens, memory = made(), torch.randint(31, (2, 9)), None
    for part in tokens.split(2, 1):
        scores, memory = read_segment(model, part, memory, length=3)
        assert all(layer.shape[1] <= 3 and not layer.requires_grad for layer in memory)
    assert scores.requires_grad
    # Without convolutions and layers above, a memory of 3 is attention to the 3 tokens before the segment.
    model = made(depth=1, kernel=0)
    _, memory = read_segment(model, tokens[:, :6], None, length=3)
    scores, _ = read_segment(model, tokens[:, 6:8], memory)
    torch.testing.assert_close(scores, model(tokens[:, 3:8])[:, 3:])
    without, memory = read_segment(model, tokens[:, :2], None, length=0)
    torch.testing.assert_close(read_segment(model, tokens[:, :2], memory)[0], without)


def test_bad_input() -> None:
    tokens = torch.randint(31, (2, 9))
    with pytest.raises(UsageError, match="length is -1"):
        read_segment(made(), tokens, None, -1)
    with pytest.raises(UsageError, match="sines is True"):
        read_segment(made(sines=True), tokens)
    with pytest.raises(UsageError, match="reach is 8, and there are 9"):
        made(reach=8)(tokens)
    with pytest.raises(UsageError, match="head_bias is True with tied=True"):
        made(tied=True)


def test_memory_of_another_network_is_refused() -> None:
    tokens = torch.randint(31, (2, 4))
    _, memory = read_segment(made(depth=1), tokens)
    for wrong, model in ((memory, made(depth=2)), (memory, made(depth=1, dim=24)), ((memory[0][:1],), made(depth=1))):
        with pytest.raises(UsageError, match="memory is of another network or batch"):
            read_segment(model, tokens, wrong)
    with pytest.raises(UsageError, match="CausalTransformer without rcmha in its blocks"):
        read_segment(mereo.create_model("causal_transformer_tiny"), tokens)
