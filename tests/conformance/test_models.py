"""Every model of the catalogue under one protocol: timm's, capsules, files of weights, compilers and exporters.

What is the same for every width is checked on narrow twins of the presets: the same arguments with fewer channels.
"""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from timm.data import create_transform, resolve_data_config
from torch import Tensor, nn

import mereo
from mereo.core import Capsules, Coupling
from mereo.errors import UsageError
from mereo.models import MODELS, CapsNet, CapsuleClassifier, EfficientCapsNet, MSPCaps, get_model_entry

NARROW: dict[type, Callable[[dict[str, Any]], dict[str, Any]]] = {
    MSPCaps: lambda preset: {"channels": (4, 8, 8)},
    CapsNet: lambda preset: {"conv_channels": 8, "primary_types": 2},
    EfficientCapsNet: lambda preset: {"stem": tuple((k, channels // 8, s) for k, channels, s in preset["stem"])},
}

OPTIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "mspcaps dynamic": ("mspcaps_tiny", {"routing": "dynamic"}),
    "mspcaps over senders": ("mspcaps_tiny", {"coupling_over": "senders"}),
    "mspcaps one scale": ("mspcaps_tiny", {"scales": (1,)}),
    "mspcaps two scales": ("mspcaps_tiny", {"scales": (0, 2)}),
    "mspcaps odd sides": ("mspcaps_tiny", {"img_size": (29, 38), "patch_size": 3}),
    "capsnet learned prior": ("capsnet", {"learned_prior": True, "capsule_bias": True, "init": "official"}),
    "capsnet uniform": ("capsnet_unrouted", {"coupling": "uniform", "decoder": False}),
    "efficient_capsnet norm first": ("efficient_capsnet", {"norm_first": True, "decoder": "none"}),
}
"""Options that change the computation and that no preset has."""

SIZES_ALONE = {
    "capsnet_32", "capsnet_mnist", "capsnet_multimnist", "capsnet_smallnorb", "capsnet_svhn", "efficient_capsnet_mnist",
}  # fmt: skip
"""Presets that differ from another in sizes alone: what takes seconds is left to the slow run."""

SLOW_IN_ONNX = SIZES_ALONE | {"efficient_capsnet_multimnist", "mspcaps odd sides", "mspcaps two scales"}

NAMES = sorted(MODELS)
CASES = NAMES + sorted(OPTIONS)
every_name = pytest.mark.parametrize("name", NAMES)
every_case = pytest.mark.parametrize("case", CASES)
every_graph = pytest.mark.parametrize(
    "case", [pytest.param(c, marks=pytest.mark.slow) if c in SIZES_ALONE else c for c in CASES]
)


def narrow(case: str, **overrides: Any) -> CapsuleClassifier:
    """The narrow twin, in eval mode, with batch norms that have seen images and parameters away from their start."""
    name, options = OPTIONS.get(case, (case, {}))
    entry = get_model_entry(name)
    model = mereo.create_model(name, **{**NARROW[entry.module](entry.defaults), **options, **overrides})
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.02 * torch.randn_like(parameter))
        model(some_images(model, 4))
    return model.eval()


def some_images(model: CapsuleClassifier, count: int = 3) -> Tensor:
    """Images for `model`; large ones where the capsules of narrow networks would be tiny."""
    scale = 1.0 if isinstance(model, MSPCaps) else 10.0
    return scale * torch.rand(count, *model.image_shape)


def difference(output: Tensor, expected: Tensor) -> float:
    """The largest difference as a share of the largest expected entry."""
    return ((output.double() - expected.double()).abs().max() / expected.double().abs().max()).item()


# --- the protocol ---------------------------------------------------------------------------------------------------


@every_case
def test_forward_gives_lengths(case: str) -> None:
    model = narrow(case, num_classes=7)
    scores = model(some_images(model))
    assert scores.shape == (3, 7) and scores.dtype == torch.float32
    assert (scores > 0).all() and (scores <= 1 + 1e-6).all()
    assert difference(scores[0], scores[1]) > 1e-6, "two images get two answers"


@every_name
def test_classes_channels_and_size_are_free(name: str) -> None:
    height, width = get_model_entry(name).pretrained_cfg(get_model_entry(name).defaults)["input_size"][1:]
    for side in (height + 6, (height + 8, width + 3)):
        model = narrow(name, num_classes=3, in_chans=4, img_size=side)
        sides = (side, side) if isinstance(side, int) else side
        assert model.image_shape == (4, *sides)
        assert model(torch.rand(2, 4, *sides)).shape == (2, 3)
        assert model.pretrained_cfg["input_size"] == (4, *sides)
        assert model.pretrained_cfg["num_classes"] == model.num_classes == 3
        assert len(model.pretrained_cfg["mean"]) == len(model.pretrained_cfg["std"]) == 4


@every_case
def test_forward_is_the_head_of_the_features(case: str) -> None:
    model = narrow(case)
    images = some_images(model)
    features = model.forward_features(images)
    assert torch.equal(model.forward_head(features), model(images))
    flat = model.forward_head(features, pre_logits=True)
    assert flat.shape == (3, model.num_features)
    assert torch.equal(flat, features.flatten(1))


@every_case
def test_capsules_are_the_poses_behind_the_scores(case: str) -> None:
    model = narrow(case)
    images = some_images(model)
    capsules = model.capsules(images)
    assert isinstance(capsules, Capsules) and capsules._fields == ("pose", "activation")
    assert capsules.pose.shape[:2] == capsules.activation.shape == (3, model.num_classes)
    assert torch.equal(capsules.activation, model(images))
    torch.testing.assert_close(capsules.pose.norm(dim=-1), capsules.activation, rtol=1e-3, atol=4e-4)


@every_case
def test_reset_classifier_starts_the_classes_anew_and_nothing_else(case: str) -> None:
    model = narrow(case)
    images = some_images(model)
    before = model.forward_features(images)
    head = model.get_classifier()
    for num_classes in (num for num in (7, 0, 3) if num != model.num_classes):
        model.reset_classifier(num_classes)
        assert model.num_classes == model.pretrained_cfg["num_classes"] == num_classes
        assert model.config["args"]["num_classes"] == num_classes
        assert torch.equal(model.forward_features(images), before)
        assert model.get_classifier() is not head and not any(m.training for m in model.modules())
        expected = num_classes or model.num_features
        assert model(images).shape == (3, expected)
    fresh = narrow(case, num_classes=3)
    assert {k: v.shape for k, v in model.state_dict().items()} == {k: v.shape for k, v in fresh.state_dict().items()}
    assert {n: m.training for n, m in model.named_modules()} == {n: m.training for n, m in fresh.named_modules()}


@pytest.mark.parametrize("name", ["mspcaps_tiny", "capsnet", "efficient_capsnet"])
def test_reset_classifier_keeps_type_mode_and_refuses_nonsense(name: str) -> None:
    model = narrow(name).double()
    model.class_names = tuple("abcdefghij")
    model.reset_classifier(3, "")
    assert model(some_images(model).double()).dtype == torch.float64
    assert model.class_names == ()
    assert not model.get_classifier().training and model.train().reset_classifier(4) is None
    assert model.get_classifier().training
    with pytest.raises(UsageError, match="num_classes is -1"):
        model.reset_classifier(-1)
    with pytest.raises(UsageError, match="global_pool is 'avg'"):
        model.reset_classifier(3, "avg")
    assert model.num_classes == 4


@every_name
def test_no_classes_give_features(name: str) -> None:
    model = narrow(name, num_classes=0)
    images = some_images(model)
    assert torch.equal(model(images), model.forward_features(images).flatten(1))
    assert isinstance(model.get_classifier(), nn.Identity) and model.decoder is None
    with pytest.raises(UsageError, match="num_classes is 0"):
        model.capsules(images)


@every_case
def test_reconstruct(case: str) -> None:
    model = narrow(case)
    capsules = model.capsules(some_images(model))
    if model.decoder is None:
        with pytest.raises(UsageError, match="without a decoder"):
            model.reconstruct(capsules)
        return
    image = model.reconstruct(capsules)
    assert image.shape == (3, *model.image_shape)
    assert (image > 0).all() and (image < 1).all()
    assert torch.equal(image, model.reconstruct(capsules, capsules.activation.argmax(1)))
    assert not torch.equal(image, model.reconstruct(capsules, capsules.activation.argmin(1)))


@every_name
def test_the_names_of_first_convolution_and_classifier_are_true(name: str) -> None:
    model = narrow(name)
    first, classifier = model.default_cfg["first_conv"], model.default_cfg["classifier"]
    convolutions = [n for n, m in model.named_modules() if isinstance(m, nn.Conv2d)]
    assert first == convolutions[0]
    assert model.get_submodule(first).in_channels == model.image_shape[0]
    assert model.get_submodule(classifier) is model.get_classifier()


# --- what is computed -----------------------------------------------------------------------------------------------


@every_case
def test_images_do_not_see_each_other(case: str) -> None:
    model = narrow(case)
    images = some_images(model)
    together = model(images)
    assert torch.equal(model(images), together), "eval is deterministic"
    for i in range(3):
        alone = model(images[i : i + 1])
        assert alone.shape == together[i : i + 1].shape
        assert difference(alone, together[i : i + 1]) < 1e-4


@every_case
@pytest.mark.parametrize("size", [0.0, 1e4, 1e30])
def test_blank_and_huge_images_give_finite_scores_and_gradients(case: str, size: float) -> None:
    model = narrow(case)
    images = (torch.rand(2, *model.image_shape) * size).requires_grad_()
    scores = model(images)
    scores.sum().backward()
    assert scores.isfinite().all() and images.grad is not None and images.grad.isfinite().all()
    used = {n: p.grad for n, p in model.named_parameters() if not n.startswith("decoder.")}
    assert [n for n, g in used.items() if g is None or not g.isfinite().all()] == []


@every_name
def test_blank_images_in_training(name: str) -> None:
    model = narrow(name).train()
    model(torch.zeros(2, *model.image_shape)).sum().backward()
    assert all(p.grad.isfinite().all() for n, p in model.named_parameters() if not n.startswith("decoder."))


@every_case
def test_bfloat16(case: str) -> None:
    model = narrow(case).to(torch.bfloat16)
    images = some_images(model).to(torch.bfloat16)
    scores = model(images)
    assert scores.dtype == torch.bfloat16
    assert difference(scores, model.float()(images.float())) < 0.1


@every_case
def test_autocast(case: str) -> None:
    model = narrow(case)
    images = some_images(model)
    with torch.autocast("cpu", torch.bfloat16):
        scores = model(images)
        scores.sum().backward()
    assert difference(scores, model(images)) < 0.1
    assert all(p.grad.isfinite().all() for n, p in model.named_parameters() if not n.startswith("decoder."))


@every_case
def test_recording_sees_couplings(case: str) -> None:
    model = narrow(case)
    images = some_images(model)
    with mereo.record(model) as trace:
        model(images)
    assert set(trace) == {name for name, m in model.named_modules() if isinstance(m, Coupling)}
    assert "head.coupling" in trace
    assert trace["head.coupling"].shape[:3] == (3, 1, model.num_classes)


@pytest.mark.parametrize("name", ["mspcaps_tiny", "capsnet", "efficient_capsnet"])
def test_images_of_another_shape_are_refused(name: str) -> None:
    model = narrow(name)
    channels, height, width = model.image_shape
    takes = rf"this model takes \(batch, {channels}, {height}, {width}\)"
    for shape in ((2, channels, height + 1, width), (2, channels + 1, height, width), (channels, height, width)):
        with pytest.raises(UsageError, match=re.escape(f"images are {shape}; ") + takes):
            model(torch.rand(shape))
    with pytest.raises(UsageError, match=r"images are torch.uint8; .*float\(\) / 255"):
        model(torch.zeros(2, *model.image_shape, dtype=torch.uint8))


# --- compilers and exporters ----------------------------------------------------------------------------------------


@every_graph
def test_compiles_to_one_graph(case: str) -> None:
    model = narrow(case)
    images = some_images(model)
    torch.compiler.reset()
    with torch.no_grad():
        assert difference(torch.compile(model, fullgraph=True, backend="aot_eager")(images), model(images)) < 1e-4


@pytest.mark.slow
def test_trains_compiled_with_the_default_backend() -> None:
    model = narrow("mspcaps two scales", depth=1)
    images = some_images(model)
    torch.compiler.reset()
    model(images).sum().backward()
    expected = {n: p.grad.clone() for n, p in model.named_parameters()}
    model.zero_grad()
    torch.compile(model, fullgraph=True)(images).sum().backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, expected[name], rtol=1e-3, atol=1e-4)


@every_graph
def test_exports_with_a_free_batch_size(case: str) -> None:
    model = narrow(case)
    images = some_images(model)
    program = torch.export.export(model, (images,), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},)).module()
    for batch in (images[:1], images, torch.cat((images, images))):
        assert difference(program(batch), model(batch)) < 1e-4


@pytest.mark.parametrize("case", [pytest.param(c, marks=pytest.mark.slow) if c in SLOW_IN_ONNX else c for c in CASES])
def test_onnx_with_a_free_batch_size(case: str) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    model = narrow(case)
    images = some_images(model)
    free = ({0: torch.export.Dim.DYNAMIC},)
    file = BytesIO()
    torch.onnx.export(model, (images,), dynamo=True, dynamic_shapes=free, verbose=False).save(file)
    session = onnxruntime.InferenceSession(file.getvalue(), providers=["CPUExecutionProvider"])
    (slot,) = session.get_inputs()
    for batch in (images[:1], images):
        (scores,) = session.run(None, {slot.name: batch.numpy()})
        assert difference(torch.from_numpy(scores), model(batch)) < 1e-4


# --- the catalogue --------------------------------------------------------------------------------------------------


def test_list_models_and_is_model() -> None:
    assert mereo.list_models() == NAMES
    assert mereo.list_models("mspcaps*") == ["mspcaps_large", "mspcaps_tiny"]
    assert mereo.list_models("*_mnist") == ["capsnet_mnist", "efficient_capsnet_mnist"]
    assert mereo.list_models("nothing*") == [] == mereo.list_models("capsnet*", pretrained=True)
    assert mereo.is_model("capsnet") and not mereo.is_model("capsnets")


@every_name
def test_every_entry_is_described(name: str) -> None:
    entry = get_model_entry(name)
    assert entry.summary.endswith(".") and re.fullmatch(r"arXiv:\d{4}\.\d{5}", entry.paper)
    assert set(entry.arguments) <= set(entry.defaults)
    assert json.loads(json.dumps(entry.defaults)).keys() == entry.defaults.keys()


@pytest.mark.parametrize(
    ("alias", "name"), [("capsnet_mnist", "capsnet"), ("efficient_capsnet_mnist", "efficient_capsnet")]
)
def test_aliases_are_the_same_network(alias: str, name: str) -> None:
    assert get_model_entry(alias).defaults == get_model_entry(name).defaults


def test_what_is_not_given_or_none_is_the_presets() -> None:
    model = mereo.create_model("mspcaps_tiny", num_classes=None, in_chans=None, img_size=None, patch_size=None)
    assert model.config["args"] == get_model_entry("mspcaps_tiny").defaults


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("mspcap_tiny", {}, "unknown model 'mspcap_tiny'; did you mean 'mspcaps_tiny'"),
        ("resnet50", {}, "unknown model 'resnet50'"),
        ("mspcaps_tiny", {"pach_size": 2}, "unknown argument of mspcaps_tiny 'pach_size'; did you mean 'patch_size'"),
        ("mspcaps_tiny", {"zzz": 2}, "unknown argument of mspcaps_tiny 'zzz'; known: .*channels, .*patch_size"),
        ("capsnet", {"pretrained": True}, "pretrained is True, but no weights of 'capsnet'"),
        ("mspcaps_tiny", {"num_classes": -1}, "num_classes is -1"),
        ("mspcaps_tiny", {"num_classes": 2.5}, "num_classes .*2.5"),
        ("mspcaps_tiny", {"num_classes": "3"}, "num_classes .*'3'"),
        ("mspcaps_tiny", {"num_classes": True}, "num_classes .*True"),
        ("mspcaps_tiny", {"in_chans": 0}, "in_chans is 0"),
        ("mspcaps_tiny", {"img_size": 0}, "img_size is 0"),
        ("mspcaps_tiny", {"img_size": 28.5}, "img_size is 28.5"),
        ("mspcaps_tiny", {"img_size": "32"}, "img_size is '32'"),
        ("mspcaps_tiny", {"img_size": ()}, r"img_size is \(\)"),
        ("mspcaps_tiny", {"img_size": (32, 32, 3)}, r"img_size is \(32, 32, 3\)"),
        ("mspcaps_tiny", {"img_size": (32, -1)}, r"img_size is \(32, -1\)"),
        ("mspcaps_tiny", {"img_size": 12}, "img_size is 12 x 12, so map 2 is 3 x 3 .*at least 13"),
        ("mspcaps_tiny", {"patch_size": 9}, "no patch of patch_size 9; take an image of at least 33"),
        ("mspcaps_tiny", {"patch_size": 0}, "patch_size is 0"),
        ("mspcaps_tiny", {"depth": 0}, "depth is 0"),
        ("mspcaps_tiny", {"channels": (4, 8)}, r"channels .*\(4, 8\)"),
        ("mspcaps_tiny", {"channels": (0, 8, 8)}, "channels is 0"),
        ("mspcaps_tiny", {"pose_dims": (8, 8, -16)}, "pose_dims is -16"),
        ("mspcaps_tiny", {"pose_dims": (8, 16, 16)}, "share_weights needs .*they are 8 and 16"),
        ("mspcaps_tiny", {"scales": ()}, r"scales is \(\)"),
        ("mspcaps_tiny", {"scales": (1, 0)}, r"scales is \(1, 0\)"),
        ("mspcaps_tiny", {"scales": (3,)}, r"scales is \(3,\)"),
        ("mspcaps_tiny", {"routing": "dynamo"}, "routing is 'dynamo'; .*Did you mean 'dynamic'"),
        ("mspcaps_tiny", {"coupling_over": "parents"}, "over is 'parents'"),
        ("mspcaps_tiny", {"coupling_drop": 1.0}, "dropout is 1.0"),
        ("capsnet", {"img_size": 16}, "side of 16: the first 9x9 convolution leaves 8"),
        ("capsnet", {"padding": "full"}, "padding is 'full'"),
        ("capsnet", {"init": "offical"}, "Did you mean 'official'"),
        ("capsnet", {"coupling": "one"}, "coupling is 'one'"),
        ("capsnet", {"routing_steps": -1}, "steps is -1"),
        ("capsnet", {"primary_types": 0}, "primary_types is 0"),
        ("efficient_capsnet", {"img_size": 10}, "the stem leaves 10 -> 6 -> 4 -> 2, too little for the next 3x3"),
        ("efficient_capsnet", {"primary_dim": 7}, "primary_dim is 7; it must divide .*128"),
        ("efficient_capsnet", {"primary_kernel": 0}, "primary_kernel is 0"),
        ("efficient_capsnet", {"stem": ()}, r"stem is \(\)"),
        ("efficient_capsnet", {"stem": ((5, 32), (3, 64))}, "stem is "),
        ("efficient_capsnet", {"stem": ((5, 0, 1),)}, "stem is "),
        ("efficient_capsnet", {"norm": "layer"}, "norm is 'layer'"),
        ("efficient_capsnet", {"decoder": "conv"}, "decoder is 'conv'"),
    ],
)
def test_wrong_arguments(name: str, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        mereo.create_model(name, **arguments)


# --- timm -----------------------------------------------------------------------------------------------------------


@every_name
def test_timm_makes_the_same_model(name: str) -> None:
    assert timm.is_model(name) and name in timm.list_models(f"{name}*")
    small = NARROW[MODELS[name].module](MODELS[name].defaults)
    arguments: dict[str, Any] = {"num_classes": 3, "in_chans": 2, **small}
    torch.manual_seed(5)
    theirs = timm.create_model(name, **arguments)
    torch.manual_seed(5)
    ours = mereo.create_model(name, **arguments)
    assert type(theirs) is type(ours)
    assert theirs.config == ours.config and theirs.pretrained_cfg == ours.pretrained_cfg == ours.default_cfg
    assert all(torch.equal(a, b) for a, b in zip(theirs.parameters(), ours.parameters(), strict=True))


@every_name
def test_timm_reads_the_preprocessing(name: str) -> None:
    model = narrow(name)
    config = resolve_data_config({}, model=model)
    entry, channels = MODELS[name], model.image_shape[0]
    assert config["input_size"] == model.image_shape
    assert config["mean"] == (entry.mean,) * channels and config["std"] == (entry.std,) * channels
    assert config["crop_pct"] == entry.crop_pct and config["interpolation"] == "bilinear"
    known = timm.get_pretrained_cfg(name)
    assert known.input_size == model.image_shape and known.num_classes == entry.defaults["num_classes"]
    if channels in {1, 3}:
        mode, shape = ("L", (40, 50)) if channels == 1 else ("RGB", (40, 50, 3))
        image = Image.fromarray(np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8), mode)
        assert create_transform(**config)(image).shape == model.image_shape


@pytest.mark.parametrize("order", [("mereo", "timm"), ("timm", "mereo")])
def test_either_import_may_come_first(order: tuple[str, str]) -> None:
    code = f"import {order[0]}, {order[1]}\nassert set(mereo.list_models()) <= set(timm.list_models())\n"
    code += "assert timm.create_model('mspcaps_tiny', num_classes=3).num_classes == 3"
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)


def test_importing_mereo_does_not_import_timm_or_torch() -> None:
    code = "import sys, mereo\nassert not {'timm', 'torch', 'numpy'} & sys.modules.keys()"
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)


# --- files of weights -----------------------------------------------------------------------------------------------


@every_case
def test_state_dict_carries_everything(case: str) -> None:
    model, other = narrow(case), narrow(case)
    images = some_images(model)
    assert not torch.equal(other(images), model(images))
    other.load_state_dict(model.state_dict())
    assert torch.equal(other(images), model(images))


@every_case
def test_saved_weights_load_as_the_same_model(case: str, tmp_path: Path) -> None:
    model = narrow(case, num_classes=3, img_size=(30, 41))
    path = tmp_path / "folder" / "model.safetensors"
    mereo.save_weights(path, model, class_names=("cat", "dog", "eel"), accuracy=0.5)
    loaded = mereo.load(path)
    images = some_images(model)
    assert not loaded.training and torch.equal(loaded(images), model(images))
    assert loaded.class_names == ("cat", "dog", "eel") and loaded.metadata["accuracy"] == 0.5
    assert loaded.config == model.config and loaded.pretrained_cfg == model.pretrained_cfg
    assert loaded.config["args"]["img_size"] == (30, 41)


@pytest.mark.parametrize("name", ["mspcaps_tiny", "capsnet", "efficient_capsnet"])
def test_a_reset_model_can_be_saved(name: str, tmp_path: Path) -> None:
    model = narrow(name)
    model.reset_classifier(4)
    mereo.save_weights(tmp_path / "w.safetensors", model)
    loaded = mereo.load(tmp_path / "w.safetensors")
    assert torch.equal(loaded(images := some_images(model)), model(images))
    assert loaded.pretrained_cfg["num_classes"] == 4


def test_other_weights_than_the_models_own_can_be_saved(tmp_path: Path) -> None:
    model, average = narrow("mspcaps_tiny"), narrow("mspcaps_tiny")
    mereo.save_weights(tmp_path / "w.safetensors", model, state=average.state_dict())
    images = some_images(model)
    assert torch.equal(mereo.load(tmp_path / "w.safetensors")(images), average(images))


def test_the_folder_of_a_run_loads_its_best_weights(tmp_path: Path) -> None:
    model = narrow("mspcaps_tiny")
    mereo.save_weights(tmp_path / "weights" / "best.safetensors", model)
    assert torch.equal(mereo.load(tmp_path)(images := some_images(model)), model(images))


def test_create_model_and_timm_take_a_file_of_weights(tmp_path: Path) -> None:
    model = narrow("mspcaps_tiny")
    path, images = tmp_path / "w.safetensors", some_images(model)
    mereo.save_weights(path, model)
    for create in (mereo.create_model, timm.create_model):
        again = create("mspcaps_tiny", channels=(4, 8, 8), checkpoint_path=str(path)).eval()
        assert torch.equal(again(images), model(images))


def test_half_precision_weights_load_as_float32(tmp_path: Path) -> None:
    model = narrow("mspcaps_tiny").to(torch.bfloat16)
    mereo.save_weights(tmp_path / "w.safetensors", model)
    loaded = mereo.load(tmp_path / "w.safetensors")
    assert all(torch.equal(a, b.float()) for a, b in zip(loaded.parameters(), model.parameters(), strict=True))
    assert loaded(some_images(model)).dtype == torch.float32


def test_a_model_that_create_model_did_not_make_is_not_saved(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="create_model"):
        mereo.save_weights(tmp_path / "w.safetensors", MSPCaps(channels=(4, 8, 8)))


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "model.safetensors"
    mereo.save_weights(path, narrow("mspcaps_tiny"))
    return path


def rewrite(path: Path, change: Callable[[dict[str, Tensor], dict[str, Any]], Any]) -> None:
    """Change the tensors and the metadata of a file of weights."""
    header = path.read_bytes()
    size = int.from_bytes(header[:8], "little")
    metadata = json.loads(json.loads(header[8 : 8 + size])["__metadata__"]["mereo"])
    tensors = load_file(path)
    change(tensors, metadata)
    save_file(tensors, path, {"format": "pt", "mereo": json.dumps(metadata)})


def test_rewriting_alone_breaks_nothing(saved: Path) -> None:
    rewrite(saved, lambda tensors, metadata: None)
    assert isinstance(mereo.load(saved), MSPCaps)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t, m: t.pop("head.weight"), "does not fit MSPCaps: missing head.weight"),
        (lambda t, m: t.update(extra=torch.zeros(1)), "unexpected extra"),
        (lambda t, m: t.update({"head.weight": torch.zeros(2, 3)}), r"head.weight is \(2, 3\), not \(10, 4, 16, 32\)"),
        (lambda t, m: t["head.weight"].view(-1)[0].fill_(torch.nan), "head.weight holds values that are not finite"),
        (lambda t, m: t["head.weight"].view(-1)[0].fill_(torch.inf), "head.weight holds values that are not finite"),
        (lambda t, m: t.update({"head.weight": t["head.weight"].long()}), "head.weight is torch.int64"),
        (lambda t, m: t.clear(), "; and [0-9]+ more"),
        (lambda t, m: m.update(format=99), "has format 99, and this version reads up to 1"),
        (lambda t, m: m.update(model="mspcaps_tin"), "did you mean 'mspcaps_tiny'"),
        (lambda t, m: m.pop("args"), "does not say which model it is for"),
        (lambda t, m: m["args"].update(wings=2), "with 'wings', which that network has no use for"),
        (lambda t, m: m["args"].update(num_classes=3), r"head.weight is \(10, .*\), not \(3, "),
    ],
)  # fmt: skip
def test_weights_that_do_not_fit(saved: Path, change: Callable[..., Any], message: str) -> None:
    rewrite(saved, change)
    with pytest.raises(UsageError, match=message):
        mereo.load(saved)


def test_files_that_are_not_weights(saved: Path, tmp_path: Path) -> None:
    whole = saved.read_bytes()
    other = tmp_path / "other.safetensors"
    for length in (0, 4, 100, len(whole) // 2, len(whole) - 1):
        other.write_bytes(whole[:length])
        with pytest.raises(UsageError, match=r"other.safetensors is not a readable safetensors file"):
            mereo.load(other)
    torch.save({"weight": torch.zeros(2)}, other)
    with pytest.raises(UsageError, match="Pickled checkpoints are not opened"):
        mereo.load(other)
    save_file({"weight": torch.zeros(2)}, other)
    with pytest.raises(UsageError, match="it is not mereo's"):
        mereo.load(other)


def test_missing_files(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"none.safetensors.*no such file or folder"):
        mereo.load(tmp_path / "none.safetensors")
    with pytest.raises(UsageError, match=r"a folder without weights"):
        mereo.load(tmp_path)
    with pytest.raises(UsageError, match=r"none.safetensors is not a file"):
        mereo.create_model("mspcaps_tiny", checkpoint_path=tmp_path / "none.safetensors")


def test_a_file_of_another_architecture_does_not_load_into_a_model(saved: Path) -> None:
    with pytest.raises(UsageError, match=r"does not fit CapsNet: missing conv\.bias"):
        mereo.create_model("capsnet", **NARROW[CapsNet]({}), checkpoint_path=saved)
