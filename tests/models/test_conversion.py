"""Networks of other libraries as mereo's: names, changed tensors, what does not fit."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

import mereo
from mereo.errors import UsageError
from mereo.models import VisionModel
from mereo.models.conversion import to_layout
from mereo.models.layout import LAYOUTS, Pair, register_layout
from plain_cnn import PlainCNN, registered


class Elsewhere(nn.Module):
    """The plain network as another library might lay it out: norms apart, the classifier's rows reversed."""

    def __init__(self, num_classes: int = 5, in_chans: int = 3, widths: tuple[int, ...] = (6, 8, 12)) -> None:
        super().__init__()
        self.pretrained_cfg = {"architecture": "plain_cnn", "mean": (0.1,) * in_chans, "crop_pct": 0.8}
        inputs = (in_chans, *widths[:-1])
        self.conv = nn.ModuleList(nn.Conv2d(i, o, 3, 2, 1) for i, o in zip(inputs, widths, strict=True))
        self.bn = nn.ModuleList(nn.BatchNorm2d(o) for o in widths)
        self.fc = nn.Linear(widths[-1], num_classes)
        self.register_buffer("index", torch.arange(3))

    def forward(self, images: Tensor) -> Tensor:
        for conv, bn in zip(self.conv, self.bn, strict=True):
            images = bn(conv(images)).relu()
        return self.fc(images.mean((2, 3))).flip(1)


def pairs(model: PlainCNN) -> Iterator[Pair]:
    yield Pair("head.weight", "fc.weight", lambda rows: rows.flip(0), lambda rows: rows.flip(0))
    yield Pair("head.bias", "fc.bias", lambda rows: rows.flip(0), lambda rows: rows.flip(0))
    for i in range(len(model.stages)):
        yield Pair(f"stages.{i}.0", f"conv.{i}")
        yield Pair(f"stages.{i}.1", f"bn.{i}")


def arguments(source: Elsewhere) -> dict[str, Any]:
    return {
        "num_classes": source.fc.out_features,
        "in_chans": source.conv[0].in_channels,
        "widths": tuple(conv.out_channels for conv in source.conv),
    }


@pytest.fixture(autouse=True)
def _layout() -> Iterator[None]:
    with registered():
        register_layout("timm", PlainCNN, pairs, classes=("Elsewhere",), arguments=arguments, ignored=("index",))
        yield
        LAYOUTS.pop()


def trained(**changes: Any) -> Elsewhere:
    source = Elsewhere(**changes)
    source(torch.randn(4, source.conv[0].in_channels, 16, 16))
    return source.eval()


def test_a_live_network_has_the_same_outputs_and_its_preprocessing() -> None:
    source = trained(num_classes=3, in_chans=2, widths=(4, 6, 8))
    model = mereo.convert(source)
    assert isinstance(model, VisionModel) and not model.training and model.image_shape == (2, 16, 16)
    assert model.pretrained_cfg["mean"] == (0.1, 0.1) and model.pretrained_cfg["crop_pct"] == 0.8
    images = torch.randn(2, 2, 16, 16)
    torch.testing.assert_close(model(images), source(images))
    assert mereo.convert(source.double()).head.weight.dtype == torch.float64
    assert mereo.convert(source.train()).training


def test_weights_go_back_under_the_other_names() -> None:
    source = trained()
    back = to_layout(mereo.convert(source), LAYOUTS[-1])
    state = source.state_dict()
    assert back.keys() == state.keys() - {"index"} and all(torch.equal(back[name], state[name]) for name in back)


@pytest.mark.parametrize("as_file", [True, False])
def test_tensors_of_a_file_or_mapping(as_file: bool, tmp_path: Path) -> None:
    source, images = trained(num_classes=7), torch.randn(2, 3, 16, 16)
    tensors = source.state_dict()
    if as_file:
        save_file(tensors, tmp_path / "theirs.safetensors")
    given = tmp_path / "theirs.safetensors" if as_file else tensors
    model = mereo.convert(given, model="plain_cnn", num_classes=7)
    torch.testing.assert_close(model(images), source(images))


def test_what_does_not_fit_is_named_with_its_shape() -> None:
    tensors = trained().state_dict()
    tensors["extra"] = tensors.pop("bn.1.weight")
    with pytest.raises(UsageError, match=r"fc.weight is \(5, 12\), not \(4, 12\)"):
        mereo.convert(trained().state_dict(), model="plain_cnn", num_classes=4)
    with pytest.raises(UsageError, match=r"missing bn\.1\.weight"):
        mereo.convert(tensors, model="plain_cnn")
    with pytest.raises(UsageError, match="unexpected extra"):
        mereo.convert({**trained().state_dict(), "extra": torch.zeros(1)}, model="plain_cnn")


def test_a_network_starts_from_a_file_of_either_library(tmp_path: Path) -> None:
    theirs, images = trained(), torch.rand(2, 3, 32, 32)
    save_file(theirs.state_dict(), tmp_path / "theirs.safetensors")
    model = mereo.create_model("plain_cnn", weights=tmp_path / "theirs.safetensors").eval()
    torch.testing.assert_close(model(images), theirs(images))
    mereo.save_weights(tmp_path / "ours.safetensors", model, class_names=tuple("abcde"))
    for name in ("theirs", "ours"):
        file = str(tmp_path / f"{name}.safetensors")
        other = mereo.create_model("plain_cnn", weights=file, num_classes=2, in_chans=1).eval()
        assert other(images[:, :1]).shape == (2, 2) and other.class_names == ()
        grey = images[:, :1].expand(-1, 3, -1, -1)
        torch.testing.assert_close(other.forward_features(images[:, :1]), model.forward_features(grey))
    again = mereo.create_model("plain_cnn", weights=file)
    assert again.training and again.class_names == tuple("abcde")
    with pytest.raises(UsageError, match="which belongs to plain_cnn, not to shvit_s1"):
        mereo.create_model("shvit_s1", weights=file)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: mereo.convert(nn.Linear(2, 2)), "source is a Linear; mereo converts.*Elsewhere"),
        (lambda: mereo.convert(nn.Linear(2, 2), to="timm"), "source is a Linear"),
        (lambda: mereo.convert(trained(), to="keras"), "to is 'keras'"),
        (lambda: mereo.convert(trained(), model="capsnet"), "model is 'capsnet'"),
        (lambda: mereo.convert(trained(), widths=(6, 8, 13)), r"not \(13,\)"),
        (lambda: mereo.convert(mereo.create_model("capsnet"), to="timm", model="capsnet"), "model is 'capsnet'"),
        (lambda: mereo.convert({}), "model is None"),
        (lambda: mereo.convert({"a": 1}, model="plain_cnn"), "'a', which is no tensor"),
        (lambda: mereo.convert({}, model="mspcaps_tiny"), "mspcaps_tiny has no counterpart"),
        (lambda: mereo.convert({}, model="plain_cn"), "plain_cnn"),
        (lambda: mereo.convert("nowhere.safetensors", model="plain_cnn"), "nowhere.safetensors is not a file"),
        (lambda: mereo.convert(mereo.create_model("capsnet"), to="timm"), "CapsNet has no counterpart"),
        (lambda: mereo.create_model("capsnet", weights="timm"), "timm has no 'capsnet'"),
        (lambda: mereo.create_model("capsnet", weights="keras"), "weights is 'keras'; give 'timm', or a file"),
        (lambda: mereo.create_model("mspcaps_tiny.mnist", weights="timm"), "other weights are given"),
    ],
)
def test_calls_that_cannot_work(call: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        call()


def test_a_name_may_have_aliases() -> None:
    with registered("plain_small", aliases=("plain_s",), family="plain_small", tiny={}):
        model = mereo.create_model("plain_s")
        assert model.config["model"] == "plain_small" and mereo.is_model("plain_s")
        assert "plain_s" not in mereo.list_models()
        with pytest.raises(UsageError, match="'plain_s' is registered twice"), registered("plain_s"):
            pass
