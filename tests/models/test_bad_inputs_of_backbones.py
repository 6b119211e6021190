"""What backbones answer to sizes that do not fit, names that do not exist and weights of another preset."""

import pytest
import torch
from safetensors.torch import save_file

import mereo
from mereo.errors import UsageError
from mereo.models import get_model_entry
from mereo.training.start import start_from


def tiny(name: str, **changes: object):
    return mereo.create_model(name, **{**(get_model_entry(name).tiny or {}), "num_classes": 3, **changes}).eval()


@pytest.mark.parametrize("name", ["davit_tiny", "biformer_tiny", "cait_xxs24_224", "volo_d1_224", "shvit_s1"])
def test_sizes_that_windows_and_regions_do_not_divide_are_padded(name: str) -> None:
    model = tiny(name)
    height, width = model.image_shape[1:]
    with torch.no_grad():
        assert model(torch.rand(1, 3, height + 13, width + 6)).isfinite().all()


def test_sizes_that_windows_must_divide_are_refused_with_those_that_would_do() -> None:
    model = tiny("maxvit_tiny_tf_224")
    step, side = model.size_step[0], model.image_shape[1]
    with pytest.raises(UsageError, match=f"height of {side} or {side + step}.*width of {side} or {side + step}"):
        model(torch.rand(1, 3, side + 1, side + 1))
    with pytest.raises(UsageError, match="multiple"):
        mereo.create_model("maxvit_tiny_tf_224", img_size=225)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("vit_tiny", {"depth": 2**31 - 1}),
        ("cait_xxs24", {"class_depth": 10**6}),
        ("nat_mini", {"depths": (1, 1, 1, 5000)}),
    ],
)
def test_networks_of_millions_of_layers_are_refused_at_once(name: str, arguments: dict) -> None:
    with pytest.raises(UsageError, match=r"depth.*at most 1,000"):
        mereo.create_model(name, **arguments)


def test_a_network_of_one_size_names_it() -> None:
    with pytest.raises(UsageError, match=r"takes \(batch, 3, 32, 32\).*img_size"):
        mereo.create_model("ninformer_cifar")(torch.rand(1, 3, 48, 32))


@pytest.mark.parametrize(
    ("name", "nearest"),
    [("davit_tny", "davit_tiny"), ("biformer-tiny", "biformer_tiny"), ("volo_d6_224", "volo_d5_224")],
)
def test_unknown_presets_are_answered_with_the_nearest(name: str, nearest: str) -> None:
    with pytest.raises(UsageError, match=nearest):
        mereo.create_model(name)


def test_weights_of_another_preset_are_refused_with_names_and_shapes(tmp_path) -> None:
    model = tiny("davit_tiny")
    wider = tiny("davit_tiny", widths=(16, 32))
    mereo.save_weights(tmp_path / "wider.safetensors", wider)
    with pytest.raises(UsageError, match=r"stem.conv.weight is \(16, 3, 7, 7\), not \(8, 3, 7, 7\)"):
        start_from(model, str(tmp_path / "wider.safetensors"))
    other = tiny("shvit_s1")
    mereo.save_weights(tmp_path / "other.safetensors", other)
    with pytest.raises(UsageError, match=r"missing .*"):
        start_from(model, str(tmp_path / "other.safetensors"))


def test_files_under_the_names_of_timm_of_another_preset_are_refused(tmp_path) -> None:
    timm = pytest.importorskip("timm")
    theirs = timm.create_model("davit_tiny", embed_dims=(16, 32, 64, 128), num_heads=(1, 2, 4, 8), num_classes=3)
    save_file(theirs.state_dict(), tmp_path / "theirs.safetensors")
    model = mereo.create_model("davit_tiny", num_classes=3)
    with pytest.raises(
        UsageError, match=r"do not fit davit_tiny: stem.conv.weight is \(16, 3, 7, 7\), not \(96, 3, 7, 7\)"
    ):
        start_from(model, str(tmp_path / "theirs.safetensors"))
