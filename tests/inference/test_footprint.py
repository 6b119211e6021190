"""The memory estimated from an outline of a network, against what the network itself stores."""

from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import Tensor, nn

import mereo
from mereo.cli.main import main
from mereo.errors import UsageError
from mereo.inference import footprint
from mereo.inference.footprint import check_fits, map_bytes, step_bytes, stored_bytes
from mereo.models.registry import outline
from mereo.tasks import Classification
from mereo.training.config import TrainConfig
from mereo.training.estimate import estimate
from mereo.training.plan import make_plan

TASK, SETTINGS = Classification(("a", "b")), TrainConfig().replace(loss="cross_entropy")
NARROW = {"channels": [4, 8, 8], "num_classes": 2}


class Products(nn.Module):
    """Stores its input, two of its products, and one of them twice."""

    def forward(self, x: Tensor) -> Tensor:
        y = x * x
        return (y * y).exp()


def test_each_storage_counts_once() -> None:
    images = torch.rand(3, 5, requires_grad=True)
    assert stored_bytes(Products(), images) == 3 * 3 * 5 * 4  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "arguments"), [("mspcaps_tiny", NARROW), ("resnet20", {"num_classes": 2}), ("cait_xxs24_224", None)]
)
def test_an_outline_needs_what_the_network_stores(name: str, arguments: dict[str, object] | None) -> None:
    arguments = {"depth": 2, "num_classes": 2} if arguments is None else arguments
    weights = {}
    for size in (64, 96):
        network = mereo.create_model(name, img_size=size, **arguments)
        own = 4 * sum(p.numel() for p in network.parameters())
        stored = stored_bytes(TASK.objective(network, SETTINGS).train(), TASK.example(network, 2))
        shapes = outline(name, img_size=size, **arguments)
        needed = step_bytes(shapes, lambda m: TASK.objective(m, SETTINGS), lambda m: TASK.example(m, 2))
        assert needed - 2 * own == pytest.approx(stored, rel=0.15)
        weights[size] = map_bytes(outline(name, img_size=size, **arguments)) - own
    assert weights[96] > 2 * weights[64]


@pytest.mark.long
def test_a_size_that_fits_is_named() -> None:
    size = (512, 512)
    needed = map_bytes(outline("resnet20", num_classes=2, img_size=512))
    check_fits("resnet20", {"num_classes": 2, "img_size": 512}, size, map_bytes, needed)
    with pytest.raises(UsageError, match="--img-size 256 would fit"):
        check_fits("resnet20", {"num_classes": 2, "img_size": 512}, size, map_bytes, needed - 1)
    with pytest.raises(UsageError, match="smaller --img-size"):
        check_fits("resnet20", {"num_classes": 2, "img_size": 512}, size, map_bytes, 1)
    check_fits("resnet20", {"num_classes": 2, "img_size": 64}, (64, 64), map_bytes, 1)  # small images are not checked


def test_several_large_images_are_not_made_to_estimate_one(monkeypatch: pytest.MonkeyPatch) -> None:
    config = TrainConfig().replace(data="digits", img_size=272, model_args={"channels": [2, 2, 2]}, batch_size=6)
    counts = []
    example = Classification.example

    def counted(self: Classification, model: nn.Module, count: int, objects: int = 1) -> object:
        counts.append(count)
        return example(self, model, count, objects)

    monkeypatch.setattr(Classification, "example", counted)
    estimated = estimate(make_plan(config), measure=False)
    assert set(counts) == {1}
    smaller = estimate(make_plan(config.replace(img_size=136)), measure=False)
    assert estimated.memory - smaller.memory > 0


def test_weights_of_images_that_do_not_fit_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    weights = tmp_path / "large.safetensors"
    network, names = mereo.create_model("resnet20", num_classes=10, in_chans=1, img_size=300), tuple("0123456789")
    mereo.save_weights(weights, network, class_names=names, data="digits")
    image = tmp_path / "image.png"
    Image.new("L", (8, 8)).save(image)
    words = (["predict", str(image), "--weights"], ["explain", str(image), "--weights"], ["export"])
    monkeypatch.setattr(footprint, "free_memory", lambda device: 2**20)
    for command in (*words, ["evaluate", "--data", "digits"]):
        assert main([*command, str(weights)]) == 2
        assert "300x300" in capsys.readouterr().err
