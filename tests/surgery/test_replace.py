"""Mechanisms in place of the attention of transformers of timm and torchvision."""

from pathlib import Path

import pytest
import timm
import torch
from torch import nn
from torchvision.models import VisionTransformer

import mereo
from mereo.errors import UsageError
from mereo.surgery.inserted import Replaced

FITTING = sorted({name for kind in ("tokens", "maps", "qkv") for name in mereo.list_mechanisms(interface=kind)})


def vit() -> nn.Module:
    torch.manual_seed(0)
    return timm.create_model("vit_tiny_patch16_224", img_size=32, patch_size=8, depth=2, embed_dim=24, num_classes=3)


@pytest.mark.long
@pytest.mark.parametrize("name", FITTING)
def test_every_mechanism_trains_in_place_of_the_attention_of_timm(name: str) -> None:
    model, images = vit(), torch.rand(2, 3, 32, 32)
    done = mereo.insert(model, name, where="attention", replace=True, img_size=32)
    assert done.places == ("blocks.0.attn", "blocks.1.attn") and "in place of" in str(done)
    tokens = model.forward_features(images)  # the class token does not read patches that are only pooled
    (tokens * torch.randn_like(tokens)).sum().backward()
    replaced = [module for module in model.modules() if isinstance(module, Replaced)]
    assert len(replaced) == 2
    for module in replaced:
        gradients = [each.grad for each in module.parameters() if each.grad is not None]
        assert not list(module.parameters()) or any(gradient.any() for gradient in gradients)
    other = vit()
    mereo.insert(other, name, where="attention", replace=True, img_size=32)
    other.load_state_dict(model.state_dict())
    assert torch.equal(other.eval()(images), model.eval()(images))


@pytest.mark.long
def test_couplings_of_what_replaced_attention_are_recorded_and_it_is_saved(tmp_path: Path) -> None:
    model = mereo.create_model("timm:test_vit", num_classes=3, img_size=32)
    mereo.insert(model, "vote_attention", where="attention", replace=True)
    mereo.save_weights(tmp_path / "changed.safetensors", model)
    again, images = mereo.load(tmp_path / "changed.safetensors"), torch.rand(1, 3, 32, 32)
    with mereo.record(model.eval()) as trace:
        scores = model(images)
    assert torch.allclose(again(images), scores, atol=1e-5) and len(trace) > 0


def test_attention_of_torchvision_is_replaced() -> None:
    model = VisionTransformer(32, 8, 2, 2, 12, 24, num_classes=3)
    mereo.insert(model, "lambda_attention", where="attention", replace=True)
    scores = model(torch.rand(2, 3, 32, 32))
    assert scores.shape == (2, 3) and scores.isfinite().all()
    assert not any(isinstance(module, nn.MultiheadAttention) for module in model.modules())


def test_what_a_replaced_layer_cannot_take_is_refused() -> None:
    model = vit()
    with pytest.raises(UsageError, match=r"start is 1\.0"):
        mereo.insert(model, "lambda_attention", where="attention", replace=True, start=1.0)
    mereo.insert(model, "lambda_attention", where="attention", replace=True)
    with pytest.raises(UsageError, match="attn_mask"):
        model.blocks[0](torch.rand(1, 17, 24), attn_mask=torch.ones(17, 17, dtype=torch.bool))
    with pytest.raises(UsageError, match="'attention'"):
        mereo.insert(nn.Sequential(nn.Conv2d(3, 4, 3)), "lambda_attention", where="attention", replace=True)
