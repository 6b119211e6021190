"""The capsule head on backbones: MSPCaps itself as a special case, timm's backbones, freezing, places, weights."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import mereo
from mereo.errors import UsageError
from mereo.models import CapsuleClassifier, LinearHead, MSPCapsHead, VisionModel
from mereo.models.on_backbone import OnBackbone
from mereo.models.registry import families, outline
from mereo.models.weights import read_metadata, save_tensors
from mereo.training.config import TrainConfig
from mereo.training.plan import make_plan
from mereo.training.start import start_from

SMALL = {"widths": (4, 6, 8), "blocks": 1}
TINY: dict[str, Any] = {"backbone": "resnet20", "backbone_args": SMALL, "img_size": 32}


def shake(model: nn.Module) -> None:
    with torch.no_grad():
        for tensor in [*model.parameters(), *model.buffers()]:
            if tensor.is_floating_point():
                tensor.add_(0.05 * torch.rand_like(tensor))


@torch.no_grad()
def test_on_its_own_maps_the_head_is_mspcaps() -> None:
    whole = mereo.create_model("mspcaps_tiny").eval()
    shake(whole)
    head = mereo.create_model(
        "mspcaps_head", backbone="mspcaps_tiny", out_indices=(0, 1, 2), img_size=32, pose_dims=(8, 8, 16), mid_dim=16,
        out_dim=32,
    ).eval()  # fmt: skip
    assert isinstance(head, MSPCapsHead) and head.places == whole.places
    state = {
        f"backbone.model.{name}" if name.startswith("blocks") else name: x for name, x in whole.state_dict().items()
    }
    missing = head.load_state_dict(state, strict=False)
    assert not missing.unexpected_keys
    # What the backbone has beyond its maps is its own routing, which is not used.
    assert all(name.startswith(("backbone.model.patchify", "backbone.model.middle")) for name in missing.missing_keys)
    assert not any(p.requires_grad for name, p in head.named_parameters() if name in missing.missing_keys)
    images = torch.rand(3, 3, 32, 32)
    torch.testing.assert_close(head(images), whole(images))


@pytest.mark.parametrize(("side", "grids"), [(32, [8, 4, 2]), (64, [8, 4, 2]), (224, [8, 4, 2]), (12, [8, 4, 2])])
def test_the_number_of_capsules_does_not_grow_with_the_image(side: int, grids: list[int]) -> None:
    head = mereo.create_model("mspcaps_head", **{**TINY, "img_size": side}).eval()
    assert isinstance(head, MSPCapsHead)
    assert [(place.rows, place.columns) for place in head.places.values()] == [(n, n) for n in grids]
    for place in head.places.values():
        assert place.step * place.rows == pytest.approx(side) and place.first == place.step / 2
    assert sum(c.shape[1] for c in head.patch_capsules(torch.rand(2, 3, side, side)).values()) == 84


def test_a_map_of_fewer_cells_gives_one_capsule_a_cell() -> None:
    head = mereo.create_model("mspcaps_head", **{**TINY, "img_size": (16, 40)}).eval()
    assert isinstance(head, MSPCapsHead)
    assert [(place.rows, place.columns) for place in head.places.values()] == [(8, 20), (4, 10), (2, 5)]
    head = mereo.create_model("mspcaps_head", **{**TINY, "img_size": 6, "cells": (8, 8, 8)}).eval()
    assert isinstance(head, MSPCapsHead)
    assert [place.rows for place in head.places.values()] == [6, 3, 2]
    assert head(torch.rand(2, 3, 6, 6)).shape == (2, 10)


def test_a_patch_is_the_mean_of_the_cells_over_its_pixels() -> None:
    head = mereo.create_model("mspcaps_head", **{**TINY, "img_size": 64}).eval()
    assert isinstance(head, MSPCapsHead)
    (first, *_) = head.backbone(torch.rand(2, 3, 64, 64))
    pooled = head.patchify["0"].pool(first)
    for row in range(8):
        for column in range(8):
            patch = first[:, :, 8 * row : 8 * row + 8, 8 * column : 8 * column + 8]
            torch.testing.assert_close(pooled[:, :, row, column], patch.mean((2, 3)))


def test_the_linear_head_is_one_argument_away() -> None:
    model = mereo.create_model("mspcaps_head", **TINY, head="linear").eval()
    assert isinstance(model, LinearHead) and not isinstance(model, CapsuleClassifier) and model.score_kind == "logits"
    images = torch.rand(2, 3, 32, 32)
    means = torch.cat([x.mean((2, 3)) for x in model.backbone(images)], 1)
    torch.testing.assert_close(model(images), means @ model.head.weight.T + model.head.bias)
    with pytest.raises(UsageError, match="head is 'linaer'"):
        mereo.create_model("mspcaps_head", head="linaer")


@pytest.mark.parametrize("head", ["capsules", "linear"])
def test_a_frozen_backbone_stays_as_it_is(head: str) -> None:
    model = mereo.create_model("mspcaps_head", **TINY, head=head, frozen=True).train()
    before = {name: x.clone() for name, x in model.state_dict().items()}
    optimizer = torch.optim.SGD(model.parameter_groups(0.1), lr=0.1)
    model(torch.rand(4, 3, 32, 32)).square().sum().backward()
    optimizer.step()
    changed = {name for name, x in model.state_dict().items() if not torch.equal(x, before[name])}
    assert changed and not any(name.startswith("backbone") for name in changed)
    assert model.get_classifier().training and not model.backbone.training
    images = torch.rand(2, 3, 32, 32).requires_grad_()
    model(images).sum().backward()
    assert images.grad is not None and images.grad.any()


def test_preprocessing_follows_from_the_backbone() -> None:
    cfg = mereo.create_model("mspcaps_head", **TINY).pretrained_cfg
    assert cfg["mean"] == mereo.create_model("resnet20").pretrained_cfg["mean"]
    assert cfg["first_conv"] == "backbone.model.stem.0" and cfg["input_size"] == (3, 32, 32)
    assert len(mereo.create_model("mspcaps_head", **TINY, in_chans=1).pretrained_cfg["mean"]) == 1


def test_a_plan_has_the_loss_and_normalisation_of_the_form_that_is_built() -> None:
    for head, loss in (("capsules", "margin"), ("linear", "cross_entropy")):
        config = TrainConfig(
            model="mspcaps_head", data="digits", in_chans=3, model_args={"head": head, **TINY}, device="cpu"
        )
        plan = make_plan(config)
        assert plan.config.loss == loss
        assert plan.config.mean == mereo.create_model("resnet20").pretrained_cfg["mean"]
        assert plan.build_model().config["args"]["backbone_args"] == SMALL


def test_layers_of_the_backbone_learn_more_slowly() -> None:
    model = mereo.create_model("mspcaps_head", **TINY)
    own = model.backbone.model.layer_depths()
    depths = model.layer_depths()
    assert all(depths[f"backbone.model.{name}"] == depth for name, depth in own.items())
    assert max(own.values()) < depths["patchify.0.proj.weight"] < depths["head.weight"]
    assert "patchify.0.position" in model.no_weight_decay()


# --- weights --------------------------------------------------------------------------------------------------------


def test_the_backbone_starts_from_a_trained_one(tmp_path: Path) -> None:
    classifier = mereo.create_model("resnet20", **SMALL, num_classes=7)
    shake(classifier)
    mereo.save_weights(tmp_path / "classifier.safetensors", classifier)
    head = mereo.create_model("mspcaps_head", **TINY, weights=str(tmp_path / "classifier.safetensors"))
    for name, tensor in head.backbone.model.state_dict().items():
        assert torch.equal(tensor, classifier.state_dict()[name]), name
    shake(head)
    mereo.save_weights(tmp_path / "head.safetensors", head)
    linear = mereo.create_model("mspcaps_head", **TINY, head="linear", weights=str(tmp_path / "head.safetensors"))
    for name, tensor in linear.backbone.state_dict().items():
        assert torch.equal(tensor, head.backbone.state_dict()[name]), name
    # A network on its backbone is saved whole: nothing else is needed to load it.
    (tmp_path / "classifier.safetensors").unlink()
    images = torch.rand(2, 3, 32, 32)
    assert torch.equal(mereo.load(tmp_path / "head.safetensors")(images), head.eval()(images))


def test_weights_of_another_network_are_refused(tmp_path: Path) -> None:
    mereo.save_weights(tmp_path / "other.safetensors", mereo.create_model("mspcaps_tiny", channels=(4, 6, 8)))
    with pytest.raises(UsageError, match="which belongs to mspcaps_tiny, not to 'resnet20'"):
        mereo.create_model("mspcaps_head", **TINY, weights=str(tmp_path / "other.safetensors"))
    mereo.save_weights(tmp_path / "wide.safetensors", mereo.create_model("resnet20"))
    with pytest.raises(UsageError, match="do not fit"):
        mereo.create_model("mspcaps_head", **TINY, weights=str(tmp_path / "wide.safetensors"))


def test_a_file_may_hold_a_table_only_for_an_argument_that_is_one(tmp_path: Path) -> None:
    model, path = mereo.create_model("mspcaps_head", **TINY), tmp_path / "w.safetensors"
    mereo.save_weights(path, model)
    metadata = read_metadata(path)
    timms = {"backbone": "timm:resnet18", "backbone_args": {"checkpoint_path": "x"}}
    for changes, message in (({"cells": {"a": 1}}, r"cells in args .* is a table"), (timms, "of timm take none")):
        save_tensors(path, model.state_dict(), {**metadata, "args": {**metadata["args"], **changes}})
        with pytest.raises(UsageError, match=message):
            mereo.load(path)


# --- backbones of timm ----------------------------------------------------------------------------------------------


@pytest.fixture
def timm() -> Any:
    return pytest.importorskip("timm")


@pytest.mark.long
@torch.no_grad()
@pytest.mark.parametrize(
    ("name", "head"), [("resnet10t", "capsules"), ("resnet10t", "linear"), ("swin_tiny_patch4_window7_224", "linear")]
)
def test_maps_of_timm_are_those_of_timm(timm: Any, name: str, head: str, tmp_path: Path) -> None:
    model = mereo.create_model("mspcaps_head", backbone=f"timm:{name}", img_size=64, num_classes=4, head=head).eval()
    theirs = timm.create_model(name, num_classes=0).eval() if name.startswith("resnet") else None
    images = torch.rand(2, 3, 64, 64)
    maps = model.backbone(images)
    assert [x.shape[1] for x in maps] == [info["num_chs"] for info in model.feature_info]
    assert [x.shape[2] for x in maps] == [64 // info["reduction"] for info in model.feature_info] == [8, 4, 2]
    if theirs is not None:
        state = model.backbone.model.state_dict()
        theirs.load_state_dict({name: state[name] for name in theirs.state_dict()})
        for ours, other in zip(maps, theirs.forward_intermediates(images, 3, intermediates_only=True), strict=True):
            torch.testing.assert_close(ours, other)
    assert model.pretrained_cfg["mean"] == (0.485, 0.456, 0.406)
    mereo.save_weights(tmp_path / "w.safetensors", model)
    assert torch.equal(mereo.load(tmp_path / "w.safetensors")(images), model(images))
    assert model.get_submodule(model.first_conv).in_channels == 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"backbone": "timm:resnet1o"}, "unknown backbone of timm 'resnet1o'"),
        ({"backbone": "timm:hf-hub:someone/network"}, "unknown backbone of timm"),
        ({"backbone": "timm:mspcaps_tiny"}, "unknown backbone of timm"),
        ({"backbone": "timm:resnet10t", "out_indices": (7, 8, 9)}, "gives no maps of stages"),
        ({"backbone": "timm:resnet10t", "backbone_args": {"checkpoint_path": "x"}}, "take none"),
    ],
)
def test_wrong_backbones_of_timm(timm: Any, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        outline("mspcaps_head", img_size=64, **arguments)


def test_without_timm_the_error_explains_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(UsageError, match=r"pip install 'mereo\[timm\]'"):
        mereo.create_model("mspcaps_head", backbone="timm:resnet18")
    assert mereo.create_model("mspcaps_head", **TINY)(torch.rand(1, 3, 32, 32)).shape == (1, 10)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"backbone": "mspcaps_head"}, "stands on a backbone itself"),
        ({"backbone": "resnet2O"}, "unknown model 'resnet2O'"),
        ({"backbone_args": {"img_size": 3}}, "backbone_args has img_size"),
        ({"backbone_args": {"width": 3}}, "unknown argument of resnet20 'width'"),
        ({"backbone_args": ("width", 3)}, "backbone_args of mspcaps_head is"),
        ({"out_indices": (2, 0, 1)}, "out_indices is"),
        ({"out_indices": (0, 1, 2, 3)}, "one number for each map"),
        ({"cells": (4, 2)}, r"cells is \(4, 2\) and out_indices"),
        ({"cells": (2, 4, 8)}, "cannot have more patches"),
    ],
)
def test_wrong_arguments(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        mereo.create_model("mspcaps_head", **{**TINY, **arguments})


def test_photographs_fit_in_the_memory_of_a_laptop() -> None:
    model: VisionModel = outline("mspcaps_head", num_classes=1000)
    assert sum(p.numel() for n, p in model.named_parameters() if not n.startswith("backbone")) < 5e6
    largest = 0

    def keep(module: nn.Module, inputs: Any, output: Any) -> None:
        nonlocal largest
        if isinstance(output, Tensor):
            largest = max(largest, output[0].numel())

    for name, module in model.named_modules():
        if not name.startswith("backbone") and name:
            module.register_forward_hook(keep)
    model(torch.empty(1, 3, 224, 224, device="meta"))
    # What stands on the backbone makes nothing larger than the capsules of the classes.
    assert largest == 1000 * 32


def test_a_training_starts_from_a_trained_backbone(tmp_path: Path) -> None:
    classifier = mereo.create_model("resnet20", **SMALL, num_classes=7, in_chans=1)
    shake(classifier)
    path = tmp_path / "classifier.safetensors"
    mereo.save_weights(path, classifier)
    config = TrainConfig(model="mspcaps_head", data="digits", img_size=32, weights=str(path), device="cpu")
    plan = make_plan(config)
    assert plan.arguments["backbone"] == "resnet20" and plan.arguments["backbone_args"] == {
        "widths": [4, 6, 8],
        "blocks": 1,
    }
    model = plan.build_model()
    assert start_from(model, str(plan.config.weights)) == f"backbone starting from {path}"
    for name, tensor in model.backbone.model.state_dict().items():
        assert torch.equal(tensor, classifier.state_dict()[name]), name
    with pytest.raises(UsageError, match="which belongs to resnet20, and model is 'mspcaps_head'"):
        make_plan(config.replace(model_args={"backbone": "mspcaps_tiny"}))
    mereo.save_weights(tmp_path / "head.safetensors", model)
    again = plan.build_model()
    assert start_from(again, str(tmp_path / "head.safetensors")).startswith("starting from")
    assert all(torch.equal(x, model.state_dict()[name]) for name, x in again.state_dict().items() if "norm" in name)


BACKBONES = sorted(
    name
    for name, entry in families("images").items()
    if ".vision." in entry.module.__module__ and not issubclass(entry.module, OnBackbone)
)


@pytest.mark.parametrize("family", BACKBONES)
def test_every_backbone_carries_both_heads(family: str) -> None:
    entry = families()[family]
    tiny = {name: value for name, value in (entry.tiny or {}).items() if name not in ("num_classes", "in_chans")}
    size = tiny.pop("img_size", entry.defaults["img_size"])
    count = min(3, len(mereo.create_model(entry.name, **(entry.tiny or {})).feature_info))
    for head in ("capsules", "linear"):
        model = mereo.create_model(
            "mspcaps_head", num_classes=3, head=head, backbone=entry.name, backbone_args=tiny, img_size=size,
            out_indices=tuple(range(-count, 0)), cells=(8, 4, 2)[:count], pose_dims=(8, 8, 16)[:count], mid_dim=16,
        )  # fmt: skip
        scores = model(torch.rand(3, *model.image_shape))
        scores.square().sum().backward()
        assert scores.shape == (3, 3) and scores.isfinite().all()
        unused = {name for name, p in model.named_parameters() if p.requires_grad and p.grad is None}
        # Registered before the stages, and read after them.
        assert unused <= {"backbone.model.class_token"}
