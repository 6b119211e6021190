"""The catalogue of networks: names, presets, arguments and their faults, sources."""

import contextlib
import typing
from pathlib import Path
from typing import Any

import pytest
import torch

import mereo
from mereo.core import Source
from mereo.errors import UsageError
from mereo.models import MODELS, ModelEntry, get_model_entry, register_model
from mereo.models.registry import ALIASES, families, outline
from mereo.training.compare import parse_variant
from plain_cnn import PlainCNN, registered


def test_list_models_and_is_model() -> None:
    assert mereo.list_models() == sorted(MODELS)
    assert mereo.list_models("mspcaps*") == sorted(name for name in MODELS if name.startswith("mspcaps"))
    assert {"capsnet_mnist", "efficient_capsnet_mnist"} <= set(mereo.list_models("*_mnist")) < set(MODELS)
    assert mereo.list_models("nothing*") == [] == mereo.list_models("capsnet*", pretrained=True)
    assert mereo.is_model("capsnet") and not mereo.is_model("capsnets")


@pytest.mark.parametrize(
    ("one", "other"), [("capsnet_mnist", "capsnet"), ("efficient_capsnet_mnist", "efficient_capsnet")]
)
def test_two_presets_of_one_network(one: str, other: str) -> None:
    assert get_model_entry(one).defaults == get_model_entry(other).defaults


@pytest.mark.long
@pytest.mark.parametrize(("alias", "name"), sorted(ALIASES.items()))
def test_an_alias_is_taken_wherever_a_name_is(alias: str, name: str) -> None:
    assert mereo.is_model(alias) and get_model_entry(alias) is get_model_entry(name)
    if name in MODELS:
        assert outline(alias).config == outline(name).config
        assert parse_variant(f"{alias}:num_classes=3", recipes=False)[1].changes == {"model": name}


@pytest.mark.parametrize("alias", ["vb_small", "sr_resnet20", "idpa_cifar10_resnet"])
def test_a_file_with_an_old_name_loads_as_the_same_network(alias: str, tmp_path: Path) -> None:
    name = ALIASES[alias]
    model = mereo.create_model(name, **families()[get_model_entry(name).family].tiny).eval()
    model.config = model.config | {"model": alias}
    mereo.save_weights(tmp_path / "old.safetensors", model)
    loaded, images = mereo.load(tmp_path / "old.safetensors"), torch.rand(2, *model.image_shape)
    assert loaded.config["model"] == name and torch.equal(loaded(images), model(images))


def test_what_is_not_given_or_none_is_the_presets() -> None:
    model = mereo.create_model("mspcaps_tiny", num_classes=None, in_chans=None, img_size=None, patch_size=None)
    assert model.config["args"] == get_model_entry("mspcaps_tiny").defaults


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("mspcap_tiny", {}, "unknown model 'mspcap_tiny'; did you mean 'mspcaps_tiny'"),
        ("resnet50", {}, "unknown model 'resnet50'; did you mean '(timm|torchvision):resnet50'"),
        ("mspcaps_tiny", {"pach_size": 2}, "unknown argument of mspcaps_tiny 'pach_size'; did you mean 'patch_size'"),
        ("mspcaps_tiny", {"zzz": 2}, "unknown argument of mspcaps_tiny 'zzz'; known: .*channels, .*patch_size"),
        ("capsnet", {"pretrained": True}, "pretrained is True, but .*weights of 'capsnet'"),
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


# --- registration ---------------------------------------------------------------------------------------------------


def test_a_registered_network_is_made_like_any_other() -> None:
    with registered():
        assert mereo.is_model("plain_cnn")
        model = mereo.create_model("plain_cnn", num_classes=4, in_chans=1, img_size=8)
    assert isinstance(model, PlainCNN) and not mereo.is_model("plain_cnn")
    cfg = model.pretrained_cfg
    assert cfg["interpolation"] == "bicubic" and cfg["crop_pct"] == 0.9 and cfg["fixed_input_size"] is False
    # Values of another number of channels give their mean.
    assert cfg["mean"] == pytest.approx((0.4,)) and cfg["std"] == pytest.approx((0.3,))
    with registered():
        assert mereo.create_model("plain_cnn").pretrained_cfg["mean"] == (0.5, 0.4, 0.3)


@pytest.mark.parametrize(
    ("changes", "argument"),
    [
        ({"source": "Sabour 2017"}, "source"),
        ({"source": "arXiv:17"}, "source"),
        ({"interpolation": "cubic"}, "interpolation"),
        ({"crop_mode": "centre"}, "crop_mode"),
        ({"tiny": None}, "tiny"),
    ],
)
def test_wrong_registrations(changes: dict[str, Any], argument: str) -> None:
    with pytest.raises(UsageError, match=f"{argument} is "), registered(**changes):
        pass


def test_a_name_and_a_tiny_preset_are_registered_once() -> None:
    how: dict[str, Any] = {"source": "arXiv:1710.09829", "parameters": 1}
    with registered():
        with pytest.raises(UsageError, match="'plain_cnn' is registered twice"):
            register_model("plain_cnn", PlainCNN, "Another.", **how)
        with pytest.raises(UsageError, match=r"tiny is \{\}"):
            register_model("plain_cnn_wide", PlainCNN, "Another.", tiny={}, **how)
        register_model("plain_cnn_wide", PlainCNN, "Another.", **how, widths=(12, 16))
        assert get_model_entry("plain_cnn_wide").family == get_model_entry("plain_cnn").family == "plain_cnn"
        assert mereo.create_model("plain_cnn_wide").num_features == 16


@pytest.mark.parametrize(
    ("text", "link", "field"),
    [
        ("arXiv:1710.09829", "https://arxiv.org/abs/1710.09829", "eprint = {1710.09829}"),
        ("doi:10.1109/ICCV.2021.00010", "https://doi.org/10.1109/ICCV.2021.00010", "doi = {10.1109/ICCV.2021.00010}"),
        ("https://openreview.net/forum?id=HJWLfGWRb", "https://openreview.net/forum?id=HJWLfGWRb", "url = {https"),
    ],
)
def test_sources(text: str, link: str, field: str) -> None:
    source = Source(text)
    assert source.link == link and field in source.citation
    assert ("archivePrefix" in source.citation) == text.startswith("arXiv")
    key = source.citation.partition("{")[2].partition(",")[0]
    assert key.replace("_", "").isalnum()


@pytest.mark.parametrize("entry", families().values(), ids=lambda entry: entry.family)
def test_arguments_of_any_type_are_taken_or_refused_in_words(entry: ModelEntry) -> None:
    for name in entry.defaults:
        for value in ([], [1], {}, {"a": 1}, "x", 1.5, float("nan")):
            with contextlib.suppress(UsageError):
                outline(entry.name, **(dict(entry.tiny or {}) | {name: value}))


@pytest.mark.parametrize("entry", families().values(), ids=lambda entry: entry.family)
def test_a_switch_is_no_number(entry: ModelEntry) -> None:
    hints = typing.get_type_hints(entry.module.__init__)
    for name, value in (dict(entry.defaults) | dict(entry.tiny or {})).items():
        hint = hints.get(name, typing.Any)
        kinds = typing.get_args(hint) or (hint,)
        if name == "img_size" or (value is not None and type(value) is not int):
            continue
        if bool in kinds or typing.Any in kinds or not {int, float} & set(kinds):
            continue
        with pytest.raises(UsageError, match=name):
            mereo.create_model(entry.name, **dict(entry.tiny or {}) | {name: True})
