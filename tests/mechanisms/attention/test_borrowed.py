"""Attention of timm, torchvision and PyTorch under observation, compared with loops and with the layers themselves."""

import math

import pytest
import timm
import torch
from torch import Tensor, nn
from torchvision.models import VisionTransformer

import mereo
from mereo.errors import UsageError


def vit() -> nn.Module:
    torch.manual_seed(0)
    arguments = {"embed_dim": 12, "depth": 2, "num_heads": 3, "num_classes": 4}
    return timm.create_model("vit_tiny_patch16_224", img_size=32, **arguments).double().eval()


def torchvision_vit() -> nn.Module:
    torch.manual_seed(0)
    made = VisionTransformer(32, 16, 2, 2, 8, 16, num_classes=4).double().eval()
    nn.init.normal_(made.heads[-1].weight)  # torchvision starts it at zero
    return made


class Own(nn.Module):
    """Attention between two sets, tokens first, with masks of both kinds."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.mix = nn.MultiheadAttention(6, 2, kdim=4, vdim=5, dtype=torch.float64)
        self.allowed = torch.tensor([[0.0, -1.0, 0.5], [1.0, -math.inf, 0.0]], dtype=torch.float64)

    def forward(self, x: Tensor) -> Tensor:
        padding = torch.tensor([[0.0, 0.0, 0.0], [0.0, 0.0, -math.inf]], dtype=torch.float64)
        keys = torch.linspace(-1, 1, 24, dtype=torch.float64).view(3, 2, 4)
        values = torch.linspace(1, 3, 30, dtype=torch.float64).view(3, 2, 5)
        out, weights = self.mix(x, keys, values, key_padding_mask=padding, attn_mask=self.allowed)
        return torch.cat((out.flatten(), weights.flatten()))


def images() -> Tensor:
    return torch.rand(2, 3, 32, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("make", [vit, torchvision_vit, Own])
def test_a_watched_model_computes_the_same_and_is_unchanged_afterwards(make: type[nn.Module]) -> None:
    model = make()
    x = torch.ones(2, 2, 6, dtype=torch.float64) if make is Own else images()
    names, expected = list(model.state_dict()), model(x)
    attributes = [sorted(vars(module)) for module in model.modules()]
    with mereo.record(model) as trace:
        assert torch.allclose(model(x), expected, atol=1e-12)
    assert len(trace) == (1 if make is Own else 2)
    assert all(torch.allclose(each.sum(-1), torch.ones(())) for each in map(torch.Tensor.float, trace.values()))
    assert [sorted(vars(module)) for module in model.modules()] == attributes
    assert list(model.state_dict()) == names and torch.equal(model(x), expected)
    assert torch.backends.mha.get_fastpath_enabled()


def test_the_couplings_of_a_layer_of_timm_are_those_of_its_formula() -> None:
    model = vit()
    with mereo.record(model) as trace:
        model(images())
    layer, tokens = model.blocks[0].attn, model.blocks[0].norm1(model.norm_pre(model._pos_embed(embedded(model))))
    for head in range(3):
        q, k = (tokens @ layer.qkv.weight[s : s + 4].T + layer.qkv.bias[s : s + 4] for s in (4 * head, 12 + 4 * head))
        expected = (q @ k.mT / 2).softmax(-1)
        assert torch.allclose(trace["blocks.0.attn.coupling"][:, head], expected, atol=1e-12)


def embedded(model: nn.Module) -> Tensor:
    return model.patch_embed(images())  # type: ignore[operator]


def test_interventions_act_on_layers_of_other_libraries_and_what_is_recorded_acts() -> None:
    model, name = torchvision_vit(), "encoder.layers.encoder_layer_1.self_attention.coupling"
    with torch.no_grad():
        before = model(images())
        with mereo.record(model) as trace, mereo.intervene(model, {name: "uniform"}):
            after = model(images())
        assert torch.allclose(trace[name], torch.full((2, 2, 5, 5), 0.2, dtype=torch.float64))
        assert not torch.allclose(before, after) and torch.equal(model(images()), before)


@pytest.mark.parametrize("causal", [False, True])
def test_masks_of_timm_leave_pairs_out(causal: bool) -> None:
    model, seen = vit(), torch.ones(5, 5, dtype=torch.bool).tril()
    given = {"is_causal": True} if causal else {"attn_mask": seen}
    expected = model(images(), **given)
    with mereo.record(model) as trace:
        assert torch.allclose(model(images(), **given), expected, atol=1e-12)
    assert not trace["blocks.1.attn.coupling"][..., ~seen].any()


def test_encoder_layers_are_seen_in_evaluation_with_padding() -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    x, padding = torch.randn(1, 4, 8), torch.tensor([[False, False, False, True]])
    with torch.no_grad():
        expected = model(x, src_key_padding_mask=padding)
        with mereo.record(model) as trace:
            found = model(x, src_key_padding_mask=padding)
    assert torch.allclose(found[:, :3], expected[:, :3], atol=1e-5)
    assert len(trace) == 2 and not trace["layers.0.self_attn.coupling"][..., 3].any()


def test_attention_that_computes_something_else_is_left_alone() -> None:
    model = timm.create_model("beit_base_patch16_224", img_size=32, depth=1, embed_dim=12, num_heads=3, num_classes=2)
    with mereo.record(model.eval()) as trace:
        model(images().float())
    assert not trace and trace.nothing and "convolutions make none" in repr(trace)
    with pytest.raises(UsageError, match=r"'blocks\.0' .* torch\.nn\.MultiheadAttention"):
        trace.steps("blocks.0")
