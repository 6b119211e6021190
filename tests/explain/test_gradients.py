"""Input gradients: the slope of the length that differences give, and their integral as a sum over loops."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from mereo.errors import UsageError
from mereo.explain import input_gradients, integrated_gradients, observe
from mereo.models import CapsuleClassifier

Make = Callable[..., CapsuleClassifier]
MakeImages = Callable[..., Tensor]


def class_length(model: CapsuleClassifier, images: Tensor, classes: Tensor) -> Tensor:
    mean, std = (images.new_tensor(model.pretrained_cfg[k]).view(1, -1, 1, 1) for k in ("mean", "std"))
    return model((images - mean) / std)[torch.arange(len(images)), classes]


def test_gradients_are_slopes(model: CapsuleClassifier, some_images: MakeImages) -> None:
    model, images = model.double(), some_images(model).double()
    with torch.no_grad():
        predicted = observe(model, images).capsules.activation.argmax(1)
        found = input_gradients(model, images)
        for c, y, x in ((0, 3, 5), (-1, 9, 9), (0, 11, 2)):
            up, down = images.clone(), images.clone()
            up[:, c, y, x] += 1e-6
            down[:, c, y, x] -= 1e-6
            slope = (class_length(model, up, predicted) - class_length(model, down, predicted)) / 2e-6
            torch.testing.assert_close(found[:, c, y, x], slope, atol=1e-7, rtol=1e-3)


@pytest.mark.parametrize("kind", ["three scales", "capsnet", "efficient"])
def test_integrated_gradients_are_a_sum(kind: str, make: Make, some_images: MakeImages) -> None:
    model = make(kind).double()
    images = some_images(model).double()
    asked = torch.tensor([1, 2])
    expected = torch.zeros_like(images)
    for k in range(1, 5):
        point = ((k - 0.5) / 4 * images).requires_grad_()
        expected += torch.autograd.grad(class_length(model, point, asked).sum(), point)[0] * images / 4
    torch.testing.assert_close(integrated_gradients(model, images, asked, steps=4), expected)


@pytest.mark.parametrize("kind", ["three scales", "capsnet", "efficient"])
def test_integrated_gradients_add_up_to_the_length(kind: str, make: Make, some_images: MakeImages) -> None:
    model = make(kind).double()
    images, asked = some_images(model).double(), torch.tensor([1, 2])
    risen = (class_length(model, images, asked) - class_length(model, torch.zeros_like(images), asked)).detach()
    found = integrated_gradients(model, images, asked, steps=128).flatten(1).sum(1)
    torch.testing.assert_close(found, risen, atol=float(0.03 * risen.abs().max()), rtol=0)


def test_the_model_is_left_as_it_was(make: Make, some_images: MakeImages) -> None:
    model = make("three scales").train()
    model.head.weight.requires_grad_(False)
    images = some_images(model)
    found = input_gradients(model, images)
    assert found.shape == images.shape and not found.requires_grad and not images.requires_grad
    assert model.training and not model.head.weight.requires_grad
    assert all(p.requires_grad for n, p in model.named_parameters() if n != "head.weight")
    assert all(p.grad is None for p in model.parameters())
    torch.testing.assert_close(found, input_gradients(model.eval(), images))


def test_refusals(make: Make, some_images: MakeImages) -> None:
    model = make("three scales")
    images = some_images(model)
    for steps in (0, 2.5):
        with pytest.raises(UsageError, match="steps"):
            integrated_gradients(model, images, steps=steps)
    with pytest.raises(UsageError, match="classes"):
        input_gradients(model, images, torch.tensor([0, 10]))
    with pytest.raises(UsageError, match="images"):
        input_gradients(model, images[:, :, 1:])
    with pytest.raises(UsageError, match="model is Linear"):
        integrated_gradients(torch.nn.Linear(2, 2), images)
