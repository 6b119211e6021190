"""Channel attention, against its equations."""

import torch

import mereo
from mereo.mechanisms.attention import ChannelAttention


def test_loops_give_the_same_output_and_gradients() -> None:
    module, maps = ChannelAttention().double(), torch.randn(2, 3, 2, 3, dtype=torch.float64, requires_grad=True)
    torch.testing.assert_close(module(maps), maps, rtol=0, atol=0)  # beta is 0 at first
    with torch.no_grad():
        module.beta.fill_(0.7)
    images = []
    for image in maps.flatten(2):
        rows = []
        for channel in image:
            grown = [(-torch.dot(channel, other)).exp() for other in image]
            mixed = sum(each / sum(grown) * other for each, other in zip(grown, image, strict=True))
            rows.append(channel + module.beta * mixed)
        images.append(torch.stack(rows))
    output, expected = module(maps), torch.stack(images).view_as(maps)
    torch.testing.assert_close(output, expected)
    weights, inputs = torch.randn_like(expected), (maps, module.beta)
    torch.testing.assert_close(*(torch.autograd.grad((x * weights).sum(), inputs) for x in (output, expected)))


def test_two_channels_by_hand() -> None:
    module = ChannelAttention()
    with torch.no_grad():
        module.beta.fill_(1)
    maps = torch.tensor([[1.0, 0.0], [1.0, 1.0]]).view(1, 2, 2, 1)
    with mereo.record(module) as trace:
        output = module(maps)
    torch.testing.assert_close(trace["coupling"][0, 0], torch.tensor([[0.5, 0.5], [0.7311, 0.2689]]), rtol=0, atol=1e-4)
    torch.testing.assert_close(output.view(2, 2), torch.tensor([[2.0, 0.5], [2.0, 1.2689]]), rtol=0, atol=1e-4)


def test_places_and_channels_have_no_order() -> None:
    module, maps = ChannelAttention().double(), torch.randn(1, 4, 2, 3, dtype=torch.float64)
    with torch.no_grad():
        module.beta.fill_(1)
    output, turned, places = module(maps), [2, 0, 3, 1], torch.randperm(6)
    torch.testing.assert_close(module(maps[:, turned]), output[:, turned])
    moved = maps.flatten(2)[..., places].view_as(maps)
    torch.testing.assert_close(module(moved).flatten(2), output.flatten(2)[..., places])


def test_scores_stay_in_float32_under_autocast() -> None:
    module, maps = ChannelAttention(), 4 * torch.randn(1, 3, 8, 8)
    with torch.no_grad():
        module.beta.fill_(1)
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(module(maps), module(maps.double()).float())
