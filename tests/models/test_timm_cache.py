"""timm's published weights without a network: at once from its cache, or an error with a remedy."""

import socket
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import mereo
from mereo.errors import UsageError
from mereo.models import timm_cache

timm = pytest.importorskip("timm")
NAME = "shvit_s1"
S2 = {"backbone": "shvit_s2"}


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object, **options: object) -> None:
        raise socket.gaierror("Name or service not known")

    monkeypatch.setattr(socket, "create_connection", refuse)
    monkeypatch.setattr(timm_cache, "getproxies", dict)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)


@pytest.mark.parametrize(
    "make",
    [
        lambda: mereo.create_model(NAME, weights="timm"),
        lambda: mereo.create_model("mspcaps_head", backbone=NAME, weights="timm", img_size=64),
        lambda: mereo.create_model("mspcaps_head", backbone="timm:resnet18", weights="timm", img_size=64),
    ],
    ids=["network", "backbone", "backbone of timm's"],
)
def test_weights_that_are_not_in_the_cache_are_refused_at_once(make, no_network, monkeypatch, tmp_path) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(time, "sleep", lambda seconds: pytest.fail("it waits and tries again"))
    with pytest.raises(UsageError, match=r"model\.safetensors of timm/.* is not in .*huggingface\.co") as caught:
        make()
    assert "\n" not in str(caught.value) and str(tmp_path) in str(caught.value)


def test_a_file_of_torchvision_that_is_missing_is_named_with_its_folder(no_network, monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
    with pytest.raises(UsageError, match=r"resnet18-\w+\.pth is not in .*download\.pytorch\.org") as caught:
        mereo.create_model("torchvision:resnet18", pretrained=True)
    assert str(tmp_path / "checkpoints") in str(caught.value)


def test_weights_of_the_cache_need_no_network(no_network, monkeypatch, tmp_path) -> None:
    file = tmp_path / "model.safetensors"
    theirs = timm.create_model(NAME).eval()
    save_file(theirs.state_dict(), file)
    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", lambda repository, name: str(file))
    ours = mereo.create_model(NAME, weights="timm").eval()
    images = torch.rand(1, 3, 64, 64)
    torch.testing.assert_close(ours(images), theirs(images), rtol=1e-3, atol=1e-4)


def test_pretrained_means_the_weights_of_the_library(no_network, monkeypatch, tmp_path) -> None:
    file = tmp_path / "model.safetensors"
    theirs = timm.create_model("test_resnet").eval()
    save_file(theirs.state_dict(), file)
    asked: list[str] = []

    def cached(repository: str, name: str) -> str:
        asked.append(repository)
        return str(file)

    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", cached)
    images = torch.rand(1, 3, 32, 32)
    for options in ({"pretrained": True}, {"pretrained": "r160_in1k"}, {"weights": "timm"}, {"weights": file}):
        ours = mereo.create_model("timm:test_resnet", **options).eval()
        torch.testing.assert_close(ours(images), theirs(images))
    torch.testing.assert_close(mereo.create_model("timm:test_resnet.r160_in1k").eval()(images), theirs(images))
    assert asked == ["timm/test_resnet.r160_in1k"] * 4
    run = mereo.train(
        model="timm:test_resnet", pretrained=True, data="digits", limit=64, epochs=2, batch_size=16, img_size=32,
        tensorboard=False, output=str(tmp_path), quiet=True,
    )  # fmt: skip
    assert "weights: timm\n" in run.folder.config.read_text() and len(asked) == 5
    before, after = theirs.state_dict(), run.model.network.state_dict()
    assert any(not torch.equal(before[name], after[name]) for name in before if name.startswith("layer1"))


def test_a_mirror_a_proxy_and_a_switch_count(no_network, monkeypatch) -> None:
    assert timm_cache.hub_host() == ("huggingface.co", 443) and not timm_cache.hub_is_reachable()
    monkeypatch.setenv("HF_ENDPOINT", "http://mirror.example:8080")
    assert timm_cache.hub_host() == ("mirror.example", 8080)
    monkeypatch.setattr(timm_cache, "getproxies", lambda: {"https": "proxy:3128"})
    assert timm_cache.hub_is_reachable()
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert not timm_cache.hub_is_reachable()


def test_a_backbone_starts_from_a_file_under_the_names_of_timm(tmp_path: Path) -> None:
    theirs = timm.create_model(NAME).eval()
    save_file(theirs.state_dict(), tmp_path / "theirs.safetensors")
    arguments = {"backbone": NAME, "img_size": 64, "num_classes": 3}
    head = mereo.create_model("mspcaps_head", weights=str(tmp_path / "theirs.safetensors"), **arguments).eval()
    ours, images = mereo.convert(theirs), torch.rand(1, 3, 64, 64)
    expected = ours.forward_intermediates(images, indices=3, intermediates_only=True)
    for given, wanted in zip(head.backbone(images), expected, strict=True):
        torch.testing.assert_close(given, wanted)
    with pytest.raises(UsageError, match=r"do not fit shvit_s2: .* is \(.*\), not \(.*\)"):
        mereo.create_model("mspcaps_head", weights=str(tmp_path / "theirs.safetensors"), **arguments | S2)
