"""Weights of the package: found by name, put into other networks, refused where they do not fit."""

from pathlib import Path

import pytest
import torch

import mereo
from mereo.cli.main import main
from mereo.errors import UsageError
from mereo.models import pretrained, save_weights

NAMES = tuple(f"digit {i}" for i in range(10))


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> mereo.models.CapsuleClassifier:
    """A package whose only weights are those of a small network, for two colours of digits."""
    monkeypatch.setattr(pretrained, "FOLDER", tmp_path)
    torch.manual_seed(0)
    model = mereo.create_model("mspcaps_tiny", num_classes=10, in_chans=3).eval()
    save_weights(tmp_path / "mspcaps_tiny.digits.safetensors", model, class_names=NAMES, data="digits")
    return model


def test_what_is_kept_is_listed_and_comes_back(shelf: mereo.models.CapsuleClassifier) -> None:
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
    ("arguments", "says"),
    [
        ({"pretrained": "mnist"}, "has weights for digits"),
        ({"pretrained": True, "img_size": 64}, "do not fit"),
        ({"pretrained": True, "depth": 3}, "do not fit"),
        ({"pretrained": True, "depth": 1, "in_chans": 1}, "do not fit"),
        ({"pretrained": True, "checkpoint_path": "x.safetensors"}, "checkpoint_path"),
    ],
)
def test_what_cannot_be_had_is_said(
    shelf: mereo.models.CapsuleClassifier, arguments: dict[str, object], says: str
) -> None:
    with pytest.raises(UsageError, match=says):
        mereo.create_model("mspcaps_tiny", **arguments)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"no weights of 'capsnet' come with mereo"):
        mereo.create_model("capsnet", pretrained=True)
    with pytest.raises(UsageError, match="has weights for digits"):
        mereo.create_model("mspcaps_tiny.nothing")


def test_every_network_of_the_package_is_small_has_a_card_and_answers() -> None:
    for name in mereo.list_models(pretrained=True):
        path = pretrained.pretrained_path(name)
        assert path.stat().st_size <= 5_000_000
        assert "Measured" in path.with_suffix(".md").read_text()
        model = mereo.create_model(name).eval()
        assert torch.isfinite(model(torch.rand(1, *model.image_shape))).all()
        assert len(model.class_names) == model.num_classes


def test_a_command_takes_the_network_of_the_package(
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
    (tmp_path / "mspcaps_tiny.digits.safetensors").rename(tmp_path / "mspcaps_tiny.numbers.safetensors")
    save_weights(tmp_path / "mspcaps_tiny.digits.safetensors", shelf, data="digits")
    with pytest.raises(UsageError, match="pretrained is True, and mspcaps_tiny has weights for digits, grey, numbers"):
        mereo.create_model("mspcaps_tiny", pretrained=True)


def test_timm_knows_the_same_weights_by_the_same_names() -> None:
    timm = pytest.importorskip("timm")
    names = mereo.list_models(pretrained=True)
    assert names == [name for name in timm.list_models(pretrained=True) if mereo.is_model(name.partition(".")[0])]
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
