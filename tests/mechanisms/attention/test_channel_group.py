"""Channel group attention against loops over channels, and its two forms against each other."""

import pytest
import torch
from torch import Tensor

import mereo
from mereo.errors import UsageError
from mereo.mechanisms.attention.dense.channel_group import ChannelGroupAttention


def by_loops(attention: ChannelGroupAttention, tokens: Tensor, terms: int) -> Tensor:
    """The output for tokens (tokens, dim), channel by channel."""
    number, dim = tokens.shape
    size = dim // attention.num_groups
    q, k, v = (tokens @ attention.qkv.weight.T + attention.qkv.bias).chunk(3, 1)
    mixed = torch.zeros_like(tokens)
    for c in range(dim):
        group = range(c // size * size, (c // size + 1) * size)
        fits = torch.stack([sum(q[n, c] * k[n, other] for n in range(number)) / terms**0.5 for other in group])
        for share, other in zip(fits.softmax(0), group, strict=True):
            mixed[:, c] += share * v[:, other]
    return mixed @ attention.proj.weight.T + attention.proj.bias


def identity(method: str = "plain", groups: int = 1, dim: int = 2) -> ChannelGroupAttention:
    attention = ChannelGroupAttention(dim, groups, qkv_bias=False, method=method)
    attention.qkv.weight.data = torch.eye(dim).repeat(3, 1)
    attention.proj.load_state_dict({"weight": torch.eye(dim), "bias": torch.zeros(dim)})
    return attention


@pytest.mark.parametrize("method", ["plain", "gram"])
@pytest.mark.parametrize(("scale", "terms"), [("channels", 3), ("tokens", 5)])
def test_each_channel_is_a_weighted_sum_of_its_group(method: str, scale: str, terms: int) -> None:
    attention = ChannelGroupAttention(6, 2, scale=scale, method=method).double()
    tokens = torch.randn(2, 5, 6, dtype=torch.float64)
    expected = torch.stack([by_loops(attention, image, terms) for image in tokens])
    torch.testing.assert_close(attention(tokens), expected)


@pytest.mark.parametrize("method", ["plain", "gram"])
def test_worked_numbers(method: str) -> None:
    attention = identity(method)
    tokens = torch.tensor([[[1.0, 0], [0, 1], [1, 1]]])
    with mereo.record(attention) as trace:
        output = attention(tokens)
    scores = torch.tensor([[1.414214, 0.707107], [0.707107, 1.414214]])
    torch.testing.assert_close(trace.scores("coupling")[0][0, 0], scores, atol=1e-6, rtol=0)
    shares = torch.tensor([[0.669762, 0.330238], [0.330238, 0.669762]])
    torch.testing.assert_close(trace["coupling"][0, 0], shares, atol=1e-6, rtol=0)
    expected = torch.tensor([[0.669762, 0.330238], [0.330238, 0.669762], [1, 1]])
    torch.testing.assert_close(output[0], expected, atol=1e-6, rtol=0)


def test_equal_scores_give_the_mean_of_the_group() -> None:
    attention = identity("gram", groups=2, dim=6)
    attention.qkv.weight.data[:12] = 0
    tokens = torch.randn(2, 4, 6)
    means = tokens.unflatten(2, (2, 3)).mean(3, keepdim=True).expand(-1, -1, -1, 3).flatten(2)
    torch.testing.assert_close(attention(tokens), means)


@pytest.mark.parametrize("bias", [True, False])
def test_both_forms_agree_with_their_gradients_in_float32(bias: bool) -> None:
    attention = ChannelGroupAttention(16, 2, qkv_bias=bias)
    tokens = torch.randn(2, 70, 16, requires_grad=True)
    results = []
    for method in ("plain", "gram"):
        attention.method = method
        output = attention(tokens)
        results.append([output, *torch.autograd.grad(output.square().sum(), [tokens, *attention.parameters()])])
    for plain, gram in zip(*results, strict=True):
        torch.testing.assert_close(gram, plain, rtol=1e-4, atol=4e-6 * float(plain.detach().abs().max()))


def test_the_gram_form_runs_for_many_tokens_in_full_precision() -> None:
    attention = ChannelGroupAttention(4, 1)
    uses = attention._uses_gram
    assert uses(torch.zeros(1, 16, 4)) and not uses(torch.zeros(1, 15, 4))
    assert not uses(torch.zeros(1, 16, 4, dtype=torch.bfloat16))
    with torch.autocast("cpu", torch.bfloat16):
        assert not uses(torch.zeros(1, 16, 4))


def test_the_order_of_tokens_does_not_matter() -> None:
    attention = ChannelGroupAttention(6, 3).double()
    tokens, order = torch.randn(1, 30, 6, dtype=torch.float64), torch.randperm(30)
    torch.testing.assert_close(attention(tokens[:, order]), attention(tokens)[:, order])


def test_scores_grow_with_the_image_unless_divided_by_its_size() -> None:
    tokens = torch.randn(1, 8, 6, dtype=torch.float64)
    for scale, factor in (("channels", 2.0), ("tokens", 2**0.5)):
        attention = ChannelGroupAttention(6, 2, scale=scale, qkv_bias=False).double()
        scores = []
        for image in (tokens, tokens.repeat(1, 2, 1)):
            with mereo.record(attention) as trace:
                attention(image)
            scores += trace.scores("coupling")
        torch.testing.assert_close(scores[1], scores[0] * factor)


def test_wrong_arguments() -> None:
    with pytest.raises(UsageError, match="dim is 6 and num_groups 4"):
        ChannelGroupAttention(6, 4)
    with pytest.raises(UsageError, match="scale is 'pixels'"):
        ChannelGroupAttention(6, 2, scale="pixels")
    with pytest.raises(UsageError, match="method is 'fast'"):
        ChannelGroupAttention(6, 2, method="fast")
