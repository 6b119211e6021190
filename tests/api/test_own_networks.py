"""Networks of timm, torchvision and a user's own in the functions of the library."""

import copy
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from torch import Tensor, nn
from torchvision.models import MobileNetV2, ResNet, VisionTransformer
from torchvision.models.resnet import BasicBlock

import mereo
from mereo.api.training import _own_options
from mereo.errors import UsageError
from mereo.models.plain.own import as_vision_model

Data = tuple[np.ndarray[tuple[int, ...], np.dtype[np.uint8]], list[str]]


def _halve(module: nn.Module, inputs: object, output: Tensor) -> Tensor:
    return output / 2


class Fixed(nn.Module):
    """A network whose last layer is made for one size, with a hook and a frozen layer of its user."""

    def __init__(self, channels: int = 3) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(channels, 4, 3, padding=1), nn.Linear(4 * 8 * 8, 5)
        self.first.bias.requires_grad_(False)
        self.first.register_forward_hook(_halve)
        self.pretrained_cfg = {"input_size": (channels, 16, 16), "mean": (0.5,) * channels, "std": (0.25,) * channels}

    def forward(self, images: Tensor) -> Tensor:
        return self.last(nn.functional.max_pool2d(self.first(images).relu(), 2).flatten(1))


NETWORKS = {
    "own": Fixed,
    "timm": lambda: timm.create_model("test_resnet", num_classes=7),
    "torchvision": lambda: ResNet(BasicBlock, [1, 1, 1, 1], num_classes=4),
    "torchvision vit": lambda: VisionTransformer(16, 8, 1, 2, 8, 16, num_classes=4),
    "changed mobile": lambda: nn.Sequential(
        MobileNetV2(width_mult=0.1).features, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.LazyLinear(3)
    ),
}


@pytest.fixture
def pictures() -> Data:
    drawn = np.random.default_rng(0)
    labels = [("cat", "dog")[n % 2] for n in range(24)]
    images = drawn.integers(0, 256, (24, 16, 16, 3), dtype=np.uint8)
    images[::2] //= 4
    return images, labels


def made(name: str) -> nn.Module:
    torch.manual_seed(0)
    network = NETWORKS[name]()
    if name == "changed mobile":
        network.eval()(torch.zeros(1, 3, 32, 32))
        network.pretrained_cfg = {"mean": (0.5,) * 3, "std": (0.5,) * 3}
    return network.eval()


@pytest.mark.parametrize("name", NETWORKS)
def test_predictions_are_those_of_the_network_itself(name: str, pictures: Data) -> None:
    network = made(name)
    before = {key: value.clone() for key, value in network.state_dict().items()}
    modes = [module.training for module in network.modules()]
    model = as_vision_model(network)
    images = torch.rand(2, *model.image_shape)
    assert torch.equal(model(images), network(images))
    mean, std = (torch.tensor(model.pretrained_cfg[key]).view(1, -1, 1, 1) for key in ("mean", "std"))
    side = model.image_shape[1]
    pixels = torch.randint(0, 256, (2, side, side, 3), dtype=torch.uint8)
    found = mereo.predict(network, pixels.permute(0, 3, 1, 2), top=1)
    if model.pretrained_cfg["crop_pct"] == 1:
        scores = network((pixels.permute(0, 3, 1, 2) / 255 - mean) / std)
        assert found.classes == [str(number) for number in scores.argmax(1).tolist()]
        assert found.scores == pytest.approx(scores.amax(1).tolist(), abs=1e-5)
    assert [module.training for module in network.modules()] == modes
    assert all(torch.equal(before[key], value) for key, value in network.state_dict().items())


@pytest.mark.parametrize("name", ["torchvision", "torchvision vit"])
def test_explanations_of_networks_of_torchvision(name: str, pictures: Data) -> None:
    explained = mereo.explain(made(name), pictures[0][:2])
    assert explained[0].occlusion_map is not None
    assert bool(explained[0].attention) == (name == "torchvision vit")
    assert explained.picture().startswith(b"\x89PNG")


@pytest.mark.long
@pytest.mark.parametrize("name", NETWORKS)
def test_a_copy_is_trained_saved_and_loaded(name: str, pictures: Data, tmp_path: Path) -> None:
    network = made(name)
    before = copy.deepcopy(network.state_dict())
    run = mereo.train(
        model=network,
        data=pictures,
        epochs=1,
        batch_size=8,
        img_size=16,
        output=str(tmp_path),
        tensorboard=False,
        quiet=True,
    )
    trained = run.model.network
    assert type(trained) is type(network) and run.model.num_classes == 2
    assert all(torch.equal(value, before[key]) for key, value in network.state_dict().items())
    assert any(
        not torch.equal(value, before[key])
        for key, value in trained.state_dict().items()
        if before[key].shape == value.shape
    )
    assert mereo.predict(run, pictures[0][:2]).classes[0] in ("cat", "dog")
    again, images = mereo.load(run.folder.path, network=trained), torch.rand(1, 3, 16, 16)
    assert torch.equal(again(images), run.model.eval()(images)) and again.class_names == ("cat", "dog")


def test_what_cannot_be_taken_is_refused_with_a_remedy(pictures: Data) -> None:
    with pytest.raises(UsageError, match=r"gives \(1, 4, \d+, \d+\).*\(batch, classes\)"):
        mereo.predict(nn.Sequential(nn.Conv2d(3, 4, 8, 8)), pictures[0])
    lacking = Fixed()
    del lacking.pretrained_cfg
    with pytest.raises(UsageError, match=r"\(1, 3, 224, 224\).*pretrained_cfg"):
        mereo.explain(lacking, [__file__])
    with pytest.warns(UserWarning, match="mean"):
        mereo.predict(lacking, pictures[0][:1])
    with pytest.raises(UsageError, match=r"img_size is 32x32.*16x16"):
        mereo.train(model=Fixed(), data=pictures, img_size=32, quiet=True)
    with pytest.raises(UsageError, match="own:Gone"):
        mereo.create_model("own:Gone")
    with pytest.raises(UsageError, match="resnet20"):
        mereo.train(model=mereo.create_model("resnet20"), data=pictures, quiet=True)


def test_a_network_that_was_given_decides_what_its_layers_fix() -> None:
    assert _own_options(Fixed(), {}) == {"model": "own:Fixed", "in_chans": 3, "img_size": (16, 16)}
    network = made("torchvision")
    assert _own_options(network, {"in_chans": 3}) == {"model": "own:ResNet"}


def test_a_network_that_states_no_size_is_tried_at_the_usual_ones() -> None:
    network = nn.Sequential(nn.Conv2d(1, 2, 3, stride=2, padding=1), nn.Flatten(), nn.Linear(2 * 14 * 14, 3))
    assert as_vision_model(network).image_shape == (1, 28, 28)
    with pytest.raises(UsageError, match=r"\(1, 1, 224, 224\).*pretrained_cfg"):
        as_vision_model(nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(7, 3)))


class TwoHeads(nn.Module):
    """Scores of the classes of pixels at half the size, added by two layers, beside those of an auxiliary head."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 6, 3, 2, 1)
        self.low_classifier, self.high_classifier = (nn.Conv2d(6, 4, 1) for _ in range(2))
        self.auxiliary_head = nn.Conv2d(6, 4, 1)
        self.pretrained_cfg = {"input_size": (3, 16, 16), "mean": (0.5,) * 3, "std": (0.25,) * 3}

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        maps = self.first(images).relu()
        return {"aux": self.auxiliary_head(maps), "out": self.low_classifier(maps) + self.high_classifier(maps)}


def of_transformers(kind: str) -> nn.Module:
    library = pytest.importorskip("transformers")
    if kind == "segformer":
        sizes = {"depths": [1] * 4, "hidden_sizes": [8] * 4, "decoder_hidden_size": 8, "num_attention_heads": [1] * 4}
        made = library.SegformerForSemanticSegmentation(library.SegformerConfig(**sizes, num_labels=4))
    else:
        sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
        made = library.ViTForImageClassification(library.ViTConfig(**sizes, image_size=16, patch_size=8, num_labels=4))
    made.pretrained_cfg = {"mean": (0.5,) * 3, "std": (0.25,) * 3}
    return made.eval()


PIXELS = {"two heads": TwoHeads, "segformer": lambda: of_transformers("segformer")}
HEADS = {"two heads": ("low_classifier", "high_classifier"), "segformer": ("decode_head.classifier",)}


@pytest.mark.parametrize("name", PIXELS)
def test_a_network_that_scores_pixels_is_trained_on_masks(name: str, pictures: Data, tmp_path: Path) -> None:
    torch.manual_seed(0)
    network = PIXELS[name]().eval()
    images = np.repeat(np.repeat(pictures[0], 2, 1), 2, 2)  # 32 x 32
    masks = (images[..., 0] > 90).astype(np.uint8)
    model = as_vision_model(network, (32, 32))
    assert model.output_kind == "maps" and model.classifier_parts == tuple(f"network.{each}" for each in HEADS[name])
    if name == "two heads":
        with pytest.raises(UsageError, match="adds the scores of 2 heads"):
            model.forward_head(model.forward_features(torch.rand(1, 3, 32, 32)))
    answers = network(torch.rand(1, 3, 32, 32))
    assert (answers["out"] if name == "two heads" else answers.logits).shape[:2] == (1, 4)
    run = mereo.train(model=network, data=(images, masks), epochs=1, output=tmp_path, quiet=True)
    trained = run.model.network  # type: ignore[attr-defined]
    assert [trained.get_submodule(each).out_channels for each in HEADS[name]] == [2] * len(HEADS[name])
    assert [network.get_submodule(each).out_channels for each in HEADS[name]] == [4] * len(HEADS[name])
    loaded, pixels = mereo.load(run.folder.path, network=network), torch.rand(2, 3, *run.model.image_shape[1:])
    assert torch.equal(loaded.eval()(pixels), run.model.eval()(pixels))
    assert loaded(pixels).shape == (2, 2, *pixels.shape[2:])
    assert len(mereo.predict(loaded, images[:2])) == 2
    assert mereo.explain(loaded, images[:1])[0].kind == "areas"


class Mixed(Fixed):
    """A network whose last layer with an output for each class is not what makes the scores."""

    def forward(self, images: Tensor) -> Tensor:
        scores: Tensor = super().forward(images)
        return scores[:, :1].expand(-1, 5)


def test_a_network_that_keeps_its_number_of_classes_is_refused(pictures: Data) -> None:
    with pytest.raises(UsageError, match=r"num_classes is 2, and the Mixed .* has 5 by a Linear 'last'"):
        mereo.train(model=Mixed(), data=pictures, epochs=1, quiet=True)


class Features(Fixed):
    """A network that gives features, to which its last layer adds."""

    def forward(self, images: Tensor) -> Tensor:
        return super().forward(images) + images.mean((2, 3)).repeat(1, 2)[:, :5]


def test_a_network_that_gives_features_is_told_what_to_add(pictures: Data, tmp_path: Path) -> None:
    remedy = r"features torch\.nn\.Sequential\(network, torch\.nn\.Linear\(5, 2\)\)"
    with pytest.raises(UsageError, match=rf"has 5 by a Linear 'last'.* {remedy}"):
        mereo.train(model=Features(), data=pictures, epochs=1, quiet=True)
    classifier = nn.Sequential(features := Features(), nn.Linear(5, 2))
    classifier.pretrained_cfg = features.pretrained_cfg
    run = mereo.train(model=classifier, data=pictures, epochs=1, output=tmp_path, quiet=True)
    assert run.model(torch.rand(3, 3, 16, 16)).shape == (3, 2)


def test_a_classifier_of_transformers_is_trained_and_states_its_classes(pictures: Data, tmp_path: Path) -> None:
    network = of_transformers("vit")
    network.config.id2label = {0: "ape", 1: "bee", 2: "cow", 3: "dog"}
    images = torch.rand(2, 3, 16, 16)
    model = as_vision_model(network)
    assert model.class_names == ("ape", "bee", "cow", "dog")
    assert torch.equal(model(images), network(images).logits)
    run = mereo.train(model=network, data=pictures, epochs=1, output=tmp_path, quiet=True)
    trained = run.model.network  # type: ignore[attr-defined]
    assert (trained.config.num_labels, network.config.num_labels) == (2, 4)
    trained.save_pretrained(tmp_path / "theirs")
    back = type(network).from_pretrained(tmp_path / "theirs").eval()
    torch.testing.assert_close(back(images).logits, run.model.eval()(images))
