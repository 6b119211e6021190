"""Small networks to attack: one whose optimum is known, and real ones."""

import pytest
import torch
from torch import Tensor, nn

import mereo
from mereo.data import ImageSet
from mereo.models import CapsuleClassifier


class LinearLengths(CapsuleClassifier):
    """Scores that are linear in the pixels, so that the worst image of a ball is known in closed form."""

    first_conv, classifier = "head", "head"

    def __init__(self, classes: int, shape: tuple[int, int, int], scale: float = 1.0, seed: int = 0) -> None:
        super().__init__()
        self.num_classes, self.image_shape, self.decoder, self.scale = classes, shape, None, scale
        self.num_features = shape[0] * shape[1] * shape[2]
        self.head = nn.Linear(self.num_features, classes)
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            # Small weights around one half: scores stay where no loss is flat.
            self.head.weight.copy_(0.02 * torch.randn(self.head.weight.shape, generator=generator))
            if classes == 2:
                # Mirrored, so that every loss rises in the same direction.
                self.head.weight[1] = -self.head.weight[0]
            self.head.bias.copy_(0.5 - self.head.weight.sum(1) / 2)
        mean, std = (0.25,) * shape[0], (0.5,) * shape[0]
        self.pretrained_cfg = {"mean": mean, "std": std, "input_size": shape, "crop_pct": 1.0}

    def forward_features(self, images: Tensor) -> Tensor:
        self.check_images(images)
        return images.flatten(1)

    def route(self, features: Tensor) -> Tensor:
        return self.head(features).unsqueeze(2)

    def score(self, poses: Tensor) -> Tensor:
        return (self.scale * (poses.squeeze(2) - 0.5)).sigmoid() if self.scale != 1 else poses.squeeze(2)

    def make_classifier(self) -> nn.Module:
        return self.head


def pixels(shape: tuple[int, ...], seed: int = 0) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def linear():
    """linear(classes=2, scale=1): a linear classifier of 2x5x6 images; scale saturates it."""

    def make(classes: int = 2, scale: float = 1.0, seed: int = 0) -> LinearLengths:
        return LinearLengths(classes, (2, 5, 6), scale, seed).eval()

    return make


REAL = {
    "mspcaps": ("mspcaps_tiny", {"channels": (4, 8, 8), "in_chans": 1, "img_size": 16, "num_classes": 4}),
    "capsnet": ("capsnet", {"conv_channels": 4, "primary_types": 2, "primary_dim": 4, "class_dim": 4, "img_size": 18,
                            "num_classes": 4}),
    "efficient": ("efficient_capsnet", {"stem": ((5, 8, 2), (3, 16, 2)), "img_size": 20, "num_classes": 4}),
}  # fmt: skip


@pytest.fixture(params=REAL)
def network(request):
    """A real network with random weights, in training mode, for it must not matter."""
    name, arguments = REAL[request.param]
    torch.manual_seed(0)
    return mereo.create_model(name, **arguments).train()


@pytest.fixture
def some_pixels():
    return pixels


@pytest.fixture
def digits_like():
    """A split of 40 images of 16 x 16 in four classes that a network can tell apart."""
    labels = torch.arange(40) % 4
    images = 0.2 * pixels((40, 1, 16, 16))
    for label in range(4):
        rows, columns = divmod(label, 2)
        images[labels == label, :, 8 * rows : 8 * rows + 8, 8 * columns : 8 * columns + 8] += 0.7
    return ImageSet((images * 255).to(torch.uint8), labels, ("a", "b", "c", "d"))
