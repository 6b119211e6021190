"""mereo's networks in timm's registry: the same networks, preprocessing and weights by the same names."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from timm.data import create_transform, resolve_data_config
from timm.optim import param_groups_layer_decay

import mereo
from mereo._timm_hook import register_with_timm
from mereo.models import MODELS, ModelEntry, timm_entrypoints
from mereo.models.pretrained import default_tag, description_of
from mereo.models.registry import families, outline
from mereo.models.timm_entrypoints import timm_name
from plain_cnn import PlainCNN, registered

OWNED = "resnet18"
"""A name that timm owns."""


def is_classifier(entry: ModelEntry) -> bool:
    """Whether timm makes it too: a network from images to scores of classes."""
    return (entry.module.input_kind, entry.module.output_kind) == ("images", "scores")


every_family = pytest.mark.parametrize("name", [e.name for e in families("images").values() if is_classifier(e)])


@every_family
def test_timm_makes_the_same_model(name: str) -> None:
    arguments: dict[str, Any] = {**(MODELS[name].tiny or {}), "num_classes": 3, "in_chans": 2}
    torch.manual_seed(5)
    theirs = timm.create_model(timm_name(name), **arguments)
    torch.manual_seed(5)
    ours = mereo.create_model(name, **arguments)
    assert type(theirs) is type(ours)
    assert theirs.config == ours.config and theirs.pretrained_cfg == ours.pretrained_cfg == ours.default_cfg
    assert all(torch.equal(a, b) for a, b in zip(theirs.parameters(), ours.parameters(), strict=True))
    backbone = timm.create_model(timm_name(name), features_only=True, out_indices=(0,), **arguments)
    assert [x.shape[1] for x in backbone(torch.rand(2, *ours.image_shape))] == backbone.feature_info.channels()
    scales = {group["lr_scale"] for group in param_groups_layer_decay(theirs, layer_decay=0.5)}
    assert scales == {group["lr_scale"] for group in ours.parameter_groups(layer_decay=0.5)}


@every_family
def test_timm_reads_the_preprocessing(name: str) -> None:
    entry = MODELS[name]
    expected = entry.pretrained_cfg(entry.defaults)
    known_as = timm_name(name)
    assert timm.is_model(known_as) and known_as in timm.list_models(f"{known_as}*")
    known = timm.get_pretrained_cfg(known_as)
    config = resolve_data_config({}, model=outline(name))
    for field in ("input_size", "mean", "std", "crop_pct", "interpolation", "crop_mode"):
        assert config[field] == expected[field]
    tag = default_tag(name)
    weights = {} if tag is None else description_of(f"{name}.{tag}")["args"]
    assert known.num_classes == (entry.defaults | weights)["num_classes"]
    if (channels := expected["input_size"][0]) in {1, 3}:
        mode, shape = ("L", (40, 50)) if channels == 1 else ("RGB", (40, 50, 3))
        image = Image.fromarray(np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8), mode)
        assert create_transform(**config)(image).shape == expected["input_size"]


@pytest.fixture
def owned() -> Iterator[None]:
    """A network of mereo with a name that timm owns, registered with timm as an import does."""
    from timm.models import _registry

    with registered(OWNED):
        timm_entrypoints.register()
        yield
    _registry._clear_model_entries(f"mereo_{OWNED}")
    _registry._model_entrypoints.pop(f"mereo_{OWNED}", None)
    delattr(timm_entrypoints, f"mereo_{OWNED}")


@pytest.mark.usefixtures("owned")
def test_a_name_that_timm_owns_stays_timms_and_both_answer() -> None:
    assert isinstance(mereo.create_model(OWNED), PlainCNN)
    theirs = timm.create_model(OWNED)
    assert not isinstance(theirs, PlainCNN) and type(theirs).__module__.startswith("timm.")
    ours = timm.create_model(f"mereo_{OWNED}", num_classes=3)
    assert isinstance(ours, PlainCNN) and ours.num_classes == 3
    assert timm.get_pretrained_cfg(f"mereo_{OWNED}").interpolation == "bicubic"
    assert timm.get_pretrained_cfg(OWNED).hf_hub_id.startswith("timm/")
    timm_entrypoints.register()
    assert not timm.is_model(f"mereo_mereo_{OWNED}") and not timm.is_model("mereo_capsnet")


@pytest.mark.long
def test_timm_may_be_imported_after_mereo() -> None:
    code = "import mereo, timm\nfrom mereo.models.registry import families\n"
    code += "ours = {e.name for e in families('images').values() if e.module.output_kind == 'scores'}\n"
    code += "assert ours <= set(timm.list_models())\n"
    code += "assert timm.create_model('mspcaps_tiny', num_classes=3).num_classes == 3"
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)


def test_timm_may_be_imported_before_mereo(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    monkeypatch.setattr(timm_entrypoints, "register", lambda: calls.append("registered"))
    register_with_timm()
    assert calls == ["registered"]


def test_importing_mereo_does_not_import_timm_or_torch() -> None:
    code = "import sys, mereo\nassert not {'timm', 'torch', 'numpy'} & sys.modules.keys()"
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)


def test_timm_loads_a_file_of_weights(tmp_path: Path) -> None:
    tiny = MODELS["mspcaps_tiny"].tiny or {}
    model = mereo.create_model("mspcaps_tiny", **tiny).eval()
    path, images = tmp_path / "w.safetensors", torch.rand(2, *model.image_shape)
    mereo.save_weights(path, model)
    for create in (mereo.create_model, timm.create_model):
        assert torch.equal(create("mspcaps_tiny", checkpoint_path=str(path), **tiny).eval()(images), model(images))
