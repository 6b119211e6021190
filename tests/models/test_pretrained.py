"""Weights of the package: listed by name, put into other networks, refused where they do not fit."""

import math
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

import mereo
from mereo.cli.main import main
from mereo.data.captions import scene_rows
from mereo.errors import UsageError
from mereo.models import get_model_entry, pretrained, save_weights

NAMES = tuple(f"digit {i}" for i in range(10))


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> mereo.models.CapsuleClassifier:
    """A package whose only weights belong to a small network, for two colours of digits."""
    with suppress(ImportError):
        import timm  # noqa: F401 - it registers the weights of the package, so it must not see these

    monkeypatch.setattr(pretrained, "FOLDER", tmp_path)
    torch.manual_seed(0)
    model = mereo.create_model("mspcaps_tiny", num_classes=10, in_chans=3).eval()
    save_weights(tmp_path / "mspcaps_tiny.digits.safetensors", model, class_names=NAMES, data="digits")
    return model


def test_weights_of_the_package_are_listed_and_load(shelf: mereo.models.CapsuleClassifier) -> None:
    assert mereo.list_models(pretrained=True) == ["mspcaps_tiny.digits"]
    assert mereo.list_models("capsnet*", pretrained=True) == []
    images = torch.rand(2, *shelf.image_shape)
    wanted = shelf(images)
    for model in (
        mereo.create_model("mspcaps_tiny", pretrained="digits"),
        mereo.create_model("mspcaps_tiny", pretrained=True),
        mereo.create_model("mspcaps_tiny.digits"),
        mereo.load("mspcaps_tiny.digits"),
    ):
        torch.testing.assert_close(model.eval()(images), wanted)
        assert model.class_names[3] == "digit 3"


def test_another_number_of_classes_has_a_new_head_on_the_same_parts(shelf: mereo.models.CapsuleClassifier) -> None:
    model = mereo.create_model("mspcaps_tiny", pretrained="digits", num_classes=4).eval()
    images = torch.rand(2, *shelf.image_shape)
    assert model(images).shape == (2, 4)
    for found, wanted in zip(flat(model.forward_features(images)), flat(shelf.forward_features(images)), strict=True):
        torch.testing.assert_close(found, wanted)
    assert model.class_names == ()


def flat(features: object) -> list[torch.Tensor]:
    return [features] if isinstance(features, torch.Tensor) else list(features)  # type: ignore[call-overload]


def test_grey_images_are_seen_as_three_equal_colours(shelf: mereo.models.CapsuleClassifier) -> None:
    model = mereo.create_model("mspcaps_tiny", pretrained="digits", in_chans=1).eval()
    grey = torch.rand(2, 1, *shelf.image_shape[1:])
    torch.testing.assert_close(model(grey), shelf(grey.expand(-1, 3, -1, -1)))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"pretrained": "mnist"}, "has weights for digits"),
        ({"pretrained": True, "img_size": 64, "depth": 3}, "do not fit"),
        ({"pretrained": True, "depth": 3}, "do not fit"),
        ({"pretrained": True, "depth": 1, "in_chans": 1}, "do not fit"),
        ({"pretrained": True, "checkpoint_path": "x.safetensors"}, "checkpoint_path"),
    ],
)
def test_wrong_requests_for_weights(
    shelf: mereo.models.CapsuleClassifier, arguments: dict[str, object], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        mereo.create_model("mspcaps_tiny", **arguments)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"no bundled weights of 'capsnet'"):
        mereo.create_model("capsnet", pretrained=True)
    with pytest.raises(UsageError, match="has weights for digits"):
        mereo.create_model("mspcaps_tiny.nothing")


def test_every_network_of_the_package_is_small_has_a_card_and_predicts() -> None:
    for name in mereo.list_models(pretrained=True):
        path = pretrained.pretrained_path(name)
        assert path.stat().st_size <= 5_000_000
        assert "Measured" in path.with_suffix(".md").read_text()
        model = mereo.create_model(name).eval()
        assert torch.isfinite(model(model.example_inputs(1))).all()
        assert len(model.class_names) == model.num_classes


PREDICTIONS = {
    "mspcaps_tiny.cifar10": [
        [0.915808, 0.04992, 0.114166, 0.01645, 0.038553, 0.032269, 0.012656, 0.046474, 0.06454, 0.064413],
        [0.916219, 0.057243, 0.176474, 0.01323, 0.03076, 0.037473, 0.018291, 0.044756, 0.062857, 0.091179],
    ],
    "mspcaps_tiny.cifar10_robust": [
        [0.228671, 0.065103, 0.342365, 0.179253, 0.307641, 0.172299, 0.147579, 0.10765, 0.435178, 0.086727],
        [0.234181, 0.065036, 0.343694, 0.17629, 0.306385, 0.170591, 0.146569, 0.107435, 0.433114, 0.086451],
    ],
    "mspcaps_tiny.fashion_mnist": [
        [0.040582, 0.19703, 0.086818, 0.088656, 0.013221, 0.058322, 0.089133, 0.152144, 0.69494, 0.050318],
        [0.09175, 0.205053, 0.084086, 0.069852, 0.018976, 0.072648, 0.116565, 0.115357, 0.711072, 0.036833],
    ],
    "mspcaps_tiny.mnist": [
        [0.125489, 0.049788, 0.093686, 0.262945, 0.168132, 0.066896, 0.044245, 0.035071, 0.778984, 0.091571],
        [0.13837, 0.051756, 0.095456, 0.278232, 0.168326, 0.074279, 0.053289, 0.026721, 0.771886, 0.101453],
    ],
    "resnet8_64.tiny_imagenet": [
        [-3.456213, -1.864216, -3.962791, -3.117773, -2.435511, -3.125548, 1.315521, -1.181262, 0.912993, -0.981178],
        [-3.411361, -1.968151, -3.98819, -3.152273, -2.56676, -3.16803, 1.346335, -1.403506, 0.76359, -0.937454],
    ],
    "shvit_cifar.cifar10": [
        [3.103384, 0.952145, 0.380849, -0.586329, -1.234268, -0.560684, 0.728702, -0.786299, -0.407634, -1.383514],
        [2.934181, 1.013856, 0.335851, -0.463469, -1.204181, -0.531823, 0.766809, -0.821283, -0.412467, -1.383368],
    ],
    "tinyvl.captions": [
        [-3.996474, 6.875473, -3.23481, -5.741763, -2.024619, -1.07603, -1.457775, -1.025498, -1.308847, 0.495808],
        [-2.989758, 3.223861, -2.956366, 0.791062, 5.172936, -4.717305, -1.732251, -2.92263, 0.708578, -1.055654],
    ],
}
"""The first scores of two images for each network of the package, recorded once: the code may not change them."""


def test_a_drawing_network_is_loaded_by_its_name_alone() -> None:
    model: Any = mereo.load("tinydiff")
    drawn = model.draw(["a red square left of a blue star"], steps=2)
    assert drawn.shape == (1, 3, 32, 32) and model.metadata["data"] == "glyph_scenes"


def test_networks_of_the_package_predict_what_they_always_did() -> None:
    kinds = {name: get_model_entry(name.partition(".")[0]).module for name in mereo.list_models(pretrained=True)}
    assert list(PREDICTIONS) == [name for name, network in kinds.items() if network.output_kind != "images"]
    for name, expected in PREDICTIONS.items():
        model = mereo.load(name)
        if model.input_kind == "rows":
            rows = scene_rows(torch.linspace(-3, 3, 512).view(2, 16, 16).sin(), torch.tensor([[2], [7]]))
            with torch.no_grad():
                torch.testing.assert_close(model(rows)[:, -1, :10], torch.tensor(expected), rtol=0, atol=1e-5)
            continue
        shape = (2, *model.image_shape)
        images = ((torch.arange(math.prod(shape)) * 7919 % 1009).float() / 1008).view(shape)
        with torch.no_grad():
            torch.testing.assert_close(model(images)[:, :10], torch.tensor(expected), rtol=0, atol=1e-5)


def test_a_command_uses_bundled_weights(
    shelf: mereo.models.CapsuleClassifier, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from PIL import Image

    Image.new("RGB", (40, 30), "white").save(tmp_path / "photo.png")
    assert main(["predict", str(tmp_path / "photo.png"), "--weights", "mspcaps_tiny.digits"]) == 0
    assert "digit" in capsys.readouterr().out


def test_true_means_the_weights_for_images_of_the_preset(shelf: mereo.models.CapsuleClassifier, tmp_path: Path) -> None:
    grey = mereo.create_model("mspcaps_tiny", num_classes=4, in_chans=1)
    save_weights(tmp_path / "mspcaps_tiny.grey.safetensors", grey, class_names=tuple("abcd"), data="grey")
    assert mereo.create_model("mspcaps_tiny", pretrained=True).class_names == NAMES
    assert mereo.create_model("mspcaps_tiny", pretrained="grey").class_names == tuple("abcd")
    save_weights(tmp_path / "mspcaps_tiny.digits_robust.safetensors", grey, data="digits")
    assert mereo.create_model("mspcaps_tiny", pretrained=True).class_names == NAMES
    save_weights(tmp_path / "mspcaps_tiny.numbers.safetensors", shelf, data="numbers")
    with pytest.raises(UsageError, match=r"mspcaps_tiny .*digits, .*grey, numbers"):
        mereo.create_model("mspcaps_tiny", pretrained=True)


def test_timm_creates_the_same_weights_by_the_same_names() -> None:
    timm = pytest.importorskip("timm")
    entries = {
        name: mereo.models.get_model_entry(name.partition(".")[0]) for name in mereo.list_models(pretrained=True)
    }
    names = [name for name, entry in entries.items() if entry.module.registered_with_timm]
    # Of networks that timm has too, it lists its own weights.
    bundled = {name.partition(".")[0] for name in names}
    assert names == [name for name in timm.list_models(pretrained=True) if name.partition(".")[0] in bundled]
    for name in names:
        model, tag = name.split(".")
        wanted = mereo.create_model(name).eval()
        images = torch.rand(2, *wanted.image_shape)
        for found in (timm.create_model(name, pretrained=True), timm.create_model(model, pretrained=tag)):
            torch.testing.assert_close(found.eval()(images), wanted(images))
            assert found.pretrained_cfg["mean"] == wanted.pretrained_cfg["mean"]
        data = timm.data.resolve_data_config({}, pretrained_cfg=timm.get_pretrained_cfg(name).to_dict())
        assert tuple(data["input_size"]) == wanted.image_shape
        assert timm.create_model(name, pretrained=False).class_names == ()
