"""Networks of timm and torchvision under the protocol of vision networks: features, layers, files, refusals."""

from pathlib import Path

import pytest
import torch

import mereo
from mereo.errors import UsageError
from mereo.models import PlainNetwork, get_model_entry, save_weights
from mereo.models.weights import load_tensors, save_tensors

NAMES = ["timm:test_resnet", "timm:test_vit", "torchvision:shufflenet_v2_x0_5"]
"""Among the smallest: residual, transformer, and one without methods of timm."""


@pytest.fixture(autouse=True)
def _timm() -> None:
    pytest.importorskip("timm")


def make(name: str, **arguments: object) -> PlainNetwork:
    torch.manual_seed(0)
    model = mereo.create_model(name, **{"num_classes": 4, "in_chans": 1, "img_size": 64, **arguments})
    assert isinstance(model, PlainNetwork)
    return model.eval()


@pytest.mark.parametrize("name", NAMES)
def test_scores_are_the_head_of_the_features(name: str) -> None:
    model, images = make(name), torch.rand(2, 1, 64, 64)
    features = model.forward_features(images)
    torch.testing.assert_close(model.forward_head(features), model(images))
    pooled = model.forward_head(features, pre_logits=True)
    assert pooled.shape == (2, model.head_hidden_size) and model(images).shape == (2, 4)
    assert model.score_kind == "logits"
    model.reset_classifier(7)
    assert model(images).shape == (2, 7) and model.config["args"]["num_classes"] == 7
    model.reset_classifier(0)
    torch.testing.assert_close(model(images), pooled)


def test_a_network_without_stages_refuses_their_maps() -> None:
    model = make("torchvision:resnet18")
    with pytest.raises(mereo.UsageError, match="no stage 0"):
        model.stage(0, torch.rand(1, 1, 64, 64))
    with pytest.raises(mereo.UsageError, match="no stages"):
        model.forward_intermediates(torch.rand(1, 1, 64, 64))


@pytest.mark.parametrize("name", NAMES)
def test_layers_go_from_the_images_to_the_classifier(name: str) -> None:
    model = make(name)
    depths = model.layer_depths()
    assert set(depths.values()) == set(range(max(depths.values()) + 1)) and max(depths.values()) >= 3
    assert depths[f"{model.first_conv}.weight"] == 0
    last = {each for each, depth in depths.items() if depth == max(depths.values())}
    assert last == {f"{model.classifier}.weight", f"{model.classifier}.bias"}
    groups = model.parameter_groups(0.1, 0.5)
    assert sum(len(group["params"]) for group in groups) == len(list(model.parameters()))


@pytest.mark.parametrize("name", NAMES)
def test_saved_weights_need_the_name_and_plain_values_only(name: str, tmp_path: Path) -> None:
    model, images = make(name), torch.rand(2, 1, 64, 64)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    save_weights(tmp_path / "a.safetensors", model, class_names=tuple("abcd"))
    again = mereo.load(tmp_path / "a.safetensors")
    assert torch.equal(again(images), model(images)) and again.class_names == tuple("abcd")
    assert again.config == model.config and set(again.config["args"]) == {
        "num_classes", "in_chans", "img_size", "drop_rate", "drop_path_rate",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "fact"),
    [
        ({"model": "timm:resnet81"}, "unknown network of timm 'resnet81'"),
        ({"model": "timm:hf-hub:somebody/network"}, "unknown network of timm"),
        ({"model": "os:system"}, "unknown model 'os:system'"),
        ({"model": "timm:mspcaps_tiny"}, "unknown network of timm"),
        ({"args": {"block": "subprocess.run"}}, "'block', which is not an argument"),
        ({"args": {"library_name": "os"}}, "'library_name', which is not an argument"),
        ({"args": {"num_classes": 5}}, "does not fit"),
    ],
)
def test_a_file_makes_registered_networks_only(tmp_path: Path, changes: dict[str, object], fact: str) -> None:
    save_weights(tmp_path / "a.safetensors", make(NAMES[0]))
    tensors, metadata = load_tensors(tmp_path / "a.safetensors")
    given = changes.pop("args", {})
    changed = {**metadata, **changes, "args": {**metadata["args"], **given}}
    save_tensors(tmp_path / "b.safetensors", tensors, changed)
    with pytest.raises(UsageError, match=fact):
        mereo.load(tmp_path / "b.safetensors")


def test_maps_are_those_of_the_library() -> None:
    backbone = mereo.create_model("timm:test_resnet", features_only=True, out_indices=(1, 2), in_chans=1)
    maps = backbone(torch.rand(1, 1, 32, 32))
    assert [x.shape[1] for x in maps] == backbone.feature_info.channels()
    with pytest.raises(UsageError, match="no stages"):
        mereo.create_model("torchvision:shufflenet_v2_x0_5", features_only=True)


def test_preprocessing_is_the_library_s_at_its_size() -> None:
    entry = get_model_entry("timm:test_resnet")
    own = mereo.create_model("timm:test_resnet")
    assert own.pretrained_cfg["crop_pct"] < 1 and len(own.pretrained_cfg["mean"]) == 3
    assert make("timm:test_resnet").pretrained_cfg["crop_pct"] == 1.0
    assert entry.parameters == sum(p.numel() for p in own.parameters())


@pytest.mark.parametrize(
    ("call", "fact"),
    [
        (lambda: mereo.create_model("timm:resnet81"), "did you mean 'resnet18'"),
        (lambda: mereo.create_model("torchvision:resnet81"), "did you mean 'resnet18'"),
        (lambda: mereo.create_model("torchvision:regnet_x_16gf"), "use one of timm's"),
        (lambda: mereo.create_model("timm:test_resnet", widths=(1,)), "unknown argument of timm:test_resnet"),
        (lambda: mereo.create_model("torchvision:vit_b_16", img_size=(32, 64)), "takes squares"),
        (lambda: mereo.create_model("torchvision:vit_b_16", img_size=33), "cannot be made for images of 33x33"),
        (lambda: mereo.create_model("torchvision:resnet18", drop_rate=0.5), "drop_rate cannot be set"),
        (lambda: mereo.create_model("timm:test_resnet", weights="torchvision"), "weights is 'torchvision'"),
        (lambda: mereo.create_model("timm:test_resnet", weights="timm.nobody"), "which timm has not published"),
        (lambda: mereo.create_model("torchvision:resnet18", weights="torchvision.NONE"), "IMAGENET1K_V1"),
        (lambda: make("torchvision:shufflenet_v2_x0_5").set_grad_checkpointing(), "no gradient checkpointing"),
        (lambda: make("timm:test_vit")(torch.rand(1, 1, 32, 32)), "this model takes"),
    ],
)
def test_wrong_calls(call: object, fact: str) -> None:
    with pytest.raises(UsageError, match=fact):
        call()


@pytest.mark.parametrize("library", ["timm", "torchvision"])
def test_a_library_that_is_not_installed(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    from mereo.models.plain.libraries import LIBRARIES

    monkeypatch.setitem(sys.modules, library, None)
    monkeypatch.setitem(sys.modules, f"{library}.models", None)
    with pytest.raises(UsageError, match=f"{library} is not installed; install it"):
        type(LIBRARIES[library])().check("resnet18")


def test_published_weights_fill_the_network_and_its_classifier(monkeypatch: pytest.MonkeyPatch) -> None:
    from torchvision.models import shufflenet_v2_x0_5

    from mereo.models.plain.libraries import Timm, Torchvision

    state = {k: v + 0.5 if v.is_floating_point() else v for k, v in shufflenet_v2_x0_5().state_dict().items()}
    monkeypatch.setattr(Torchvision, "published", lambda *given: state)
    model = mereo.create_model("torchvision:shufflenet_v2_x0_5", weights="torchvision")
    assert torch.equal(model.head.weight, state["fc.weight"])
    assert torch.equal(model.network.conv1[0].weight, state["conv1.0.weight"])
    few = mereo.create_model("torchvision:shufflenet_v2_x0_5", weights="torchvision", num_classes=3)
    assert few.head.weight.shape[0] == 3 and torch.equal(few.network.conv1[0].weight, state["conv1.0.weight"])
    source = make("timm:test_vit").network.state_dict()
    monkeypatch.setattr(Timm, "published", lambda *given: source)
    with pytest.raises(UsageError, match="do not fit images of 32x32"):
        mereo.create_model("timm:test_vit", weights="timm", num_classes=4, in_chans=1, img_size=32)
