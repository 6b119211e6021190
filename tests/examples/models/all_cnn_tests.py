"""All-CNN-C against the published order of its last layers."""

import torch

import mereo


def test_the_classifier_may_stand_before_the_mean_as_in_the_paper() -> None:
    model = mereo.create_model("all_cnn_c", num_classes=3, img_size=12, widths=(6, 8)).eval()
    images = torch.rand(2, 3, 12, 12)
    maps = model.forward_features(images)
    weight, bias = model.head.weight, model.head.bias
    # A 1x1 convolution and the mean over the image are both linear.
    expected = torch.nn.functional.conv2d(maps, weight[:, :, None, None], bias).mean((2, 3))
    torch.testing.assert_close(model(images), expected)


def test_two_convolutions_halve_the_image() -> None:
    model = mereo.create_model("all_cnn_c", features_only=True, img_size=12, widths=(6, 8))
    assert [tuple(x.shape[1:]) for x in model(torch.rand(1, 3, 12, 20))] == [(6, 6, 10), (8, 3, 5), (8, 3, 5)]
