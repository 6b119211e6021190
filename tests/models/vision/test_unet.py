"""U-Net: scores of each pixel, made of every map of the encoder, for images of any sides."""

import pytest
import torch

import mereo
from mereo.errors import UsageError
from mereo.models.vision.unet import UNet


def small(**arguments: object) -> UNet:
    torch.manual_seed(0)
    return mereo.create_model("unet_small", num_classes=3, widths=(4, 6, 8), img_size=16, **arguments).eval()


@pytest.mark.parametrize("sides", [(16, 16), (13, 22), (5, 4)])
def test_there_are_scores_for_each_pixel_of_images_of_any_sides(sides: tuple[int, int]) -> None:
    assert small()(torch.rand(2, 3, *sides)).shape == (2, 3, *sides)


def test_the_decoder_is_that_of_its_equation() -> None:
    model = small()
    images = torch.rand(2, 3, 16, 16)
    maps = [model.stage(0, images)]
    for index in (1, 2):
        maps.append(model.stage(index, maps[-1]))
    assert [tuple(each.shape[1:]) for each in maps] == [(4, 16, 16), (6, 8, 8), (8, 4, 4)]
    joined = maps[2]
    for index in (1, 0):
        larger = torch.nn.functional.interpolate(joined, scale_factor=2, mode="bilinear")
        joined = model.joins[index](torch.cat([maps[index], larger], 1))
    torch.testing.assert_close(model(images), model.head(joined))


def test_a_pixel_far_away_changes_scores_through_the_coarse_maps() -> None:
    images = torch.rand(1, 3, 16, 16, requires_grad=True)
    small()(images)[0, 0, 0, 0].backward()
    assert images.grad is not None and images.grad[..., 12:, 12:].abs().sum() > 0


def test_widths_must_be_positive() -> None:
    with pytest.raises(UsageError, match="widths"):
        UNet(widths=(4, 0))
