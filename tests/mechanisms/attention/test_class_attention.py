"""Class attention against loops over its equations, worked numbers, and what recording shows."""

import pytest
import torch
from torch import Tensor

from mereo.core import intervene, record
from mereo.errors import UsageError
from mereo.mechanisms.attention import ClassAttention, MultiHeadAttention


def randomised(dim: int, heads: int, **options: object) -> ClassAttention:
    module = ClassAttention(dim, heads, **options).double().eval()  # type: ignore[arg-type]
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_(std=0.5)
    return module


def by_loops(module: ClassAttention, tokens: Tensor) -> Tensor:
    """Keys and values of every token, one at a time."""
    size = tokens.shape[2] // module.num_heads
    rows = []
    for image in tokens:
        query, merged = module.query(image[0]), torch.zeros_like(image[0])
        for head in range(module.num_heads):
            part = slice(head * size, (head + 1) * size)
            scores = [torch.dot(query[part], module.key(token)[part]) / size**0.5 for token in image]
            total = sum(score.exp() for score in scores)
            for score, token in zip(scores, image, strict=True):
                merged[part] += score.exp() / total * module.value(token)[part]
        rows.append(module.proj(merged))
    return torch.stack(rows).unsqueeze(1)


@pytest.mark.parametrize(("heads", "bias"), [(1, True), (3, True), (2, False), (12, True)])
def test_equals_keys_and_values_of_every_token(heads: int, bias: bool) -> None:
    torch.manual_seed(heads)
    module = randomised(12, heads, qkv_bias=bias)
    tokens = torch.randn(2, 6, 12, dtype=torch.float64)
    torch.testing.assert_close(module(tokens), by_loops(module, tokens), rtol=1e-10, atol=1e-10)
    one = tokens[:, :1]
    torch.testing.assert_close(module(one), by_loops(module, one), rtol=1e-10, atol=1e-10)


def test_is_the_first_row_of_multi_head_attention_with_its_gradients() -> None:
    torch.manual_seed(0)
    module, twin = randomised(8, 2), MultiHeadAttention(8, 2).double()
    twin.load_state_dict(module.state_dict())
    tokens = torch.randn(3, 5, 8, dtype=torch.float64)
    mask = torch.rand(3, 5) < 0.7
    gradients = []
    for attention in (lambda x: module(x, mask), lambda x: twin(x[:, :1], x, mask)):
        given = tokens.clone().requires_grad_()
        output = attention(given)
        gradients.append((output, *torch.autograd.grad((output * torch.arange(8)).sum(), given)))
    for ours, expected in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, expected)


def test_worked_numbers() -> None:
    module = ClassAttention(2, 1).double()
    with torch.no_grad():
        for linear in (module.query, module.key, module.value, module.proj):
            linear.weight.copy_(torch.eye(2))
    tokens = torch.tensor([[[1.0, 0], [0, 1], [1, 1]]], dtype=torch.float64)
    with record(module) as trace:
        output = module(tokens)
    weights = torch.tensor([0.401112, 0.197776, 0.401112], dtype=torch.float64)
    torch.testing.assert_close(trace["coupling"], weights.view(1, 1, 1, 3), atol=1e-6, rtol=0)
    torch.testing.assert_close(output, torch.tensor([[[0.802224, 0.598888]]], dtype=torch.float64), atol=1e-6, rtol=0)


def test_a_gain_and_a_shift_of_the_patches_are_taken_out_of_them() -> None:
    torch.manual_seed(1)
    module = randomised(6, 3)
    token, patches, gain, shift = (torch.randn(*shape).double() for shape in ((2, 1, 6), (2, 4, 6), (6,), (6,)))
    expected = by_loops(module, torch.cat((token, gain * patches + shift), 1))
    torch.testing.assert_close(module.gather(token, patches, gain, shift), expected)
    with record(module) as trace:
        module.gather(token, patches, gain, shift)
    with record(module) as plain:
        module(torch.cat((token, gain * patches + shift), 1))
    torch.testing.assert_close(trace.scores("coupling"), plain.scores("coupling"))


def test_couplings_that_are_changed_are_those_that_act() -> None:
    torch.manual_seed(2)
    module = randomised(6, 2)
    tokens = torch.randn(2, 4, 6, dtype=torch.float64)
    with record(module) as trace, intervene(module, {"coupling": lambda c: 3 * c}):
        output = module(tokens)
    assert trace["coupling"].shape == (2, 2, 1, 4)
    torch.testing.assert_close(trace["coupling"].sum(-1), torch.full((2, 2, 1), 3.0, dtype=torch.float64))
    plain = by_loops(module, tokens)
    torch.testing.assert_close(output - module.proj.bias, 3 * (plain - module.proj.bias))
    with intervene(module, {"coupling": torch.zeros_like}):
        torch.testing.assert_close(module(tokens), module.proj.bias.expand(2, 1, 6))


def test_patches_in_any_order_and_without_all_senders() -> None:
    torch.manual_seed(3)
    module = randomised(6, 2)
    tokens = torch.randn(2, 5, 6, dtype=torch.float64)
    torch.testing.assert_close(module(tokens[:, [0, 3, 1, 4, 2]]), module(tokens))
    mask = torch.ones(2, 5, dtype=torch.bool)
    mask[1] = False
    torch.testing.assert_close(module(tokens, mask)[1, 0], module.proj.bias)


def test_refusals() -> None:
    with pytest.raises(UsageError, match="dim is 8 and num_heads 3"):
        ClassAttention(8, 3)
    with pytest.raises(UsageError, match="attn_drop is 2"):
        ClassAttention(8, 2, attn_drop=2)
    with pytest.raises(UsageError, match=r"mask is torch\.float32"):
        ClassAttention(8, 2)(torch.zeros(1, 3, 8), torch.ones(1, 3))
