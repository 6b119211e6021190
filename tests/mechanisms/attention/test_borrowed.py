"""Attention of timm, torchvision and PyTorch under observation, compared with loops and with the layers themselves."""

import math
from typing import Any

import pytest
import timm
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchvision.models import VisionTransformer, get_model

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


WINDOWS = (
    "swin_tiny_patch4_window7_224",
    {"img_size": 32, "window_size": 2, "embed_dim": 12, "depths": (2,), "num_heads": (3,)},
)
ROTARY = "vit_small_patch16_dinov3", {"img_size": 32, "embed_dim": 24, "depth": 2, "num_heads": 3}
RELATIVE = "beit_base_patch16_224", {"img_size": 32, "depth": 2, "embed_dim": 12, "num_heads": 3}


@pytest.mark.parametrize(
    ("made", "shape"), [(WINDOWS, (32, 3, 4, 4)), (ROTARY, (2, 3, 9, 9)), (RELATIVE, (2, 3, 5, 5))]
)
def test_windows_and_positions_that_enter_the_scores_are_recorded(
    made: tuple[str, dict[str, Any]], shape: tuple[int, ...]
) -> None:
    torch.manual_seed(0)
    model = timm.create_model(made[0], num_classes=4, **made[1]).double().eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.2)
    expected = model(images())
    attributes = [sorted(vars(module)) for module in model.modules()]
    fused = [getattr(module, "fused_attn", None) for module in model.modules()]
    with mereo.record(model) as trace:
        torch.testing.assert_close(model(images()), expected, rtol=0, atol=1e-10)
    assert [tuple(each.shape) for each in trace.values()] == [shape] * 2
    assert all(torch.allclose(each.sum(-1), each.new_ones(())) for each in trace.values())
    with mereo.intervene(model, dict.fromkeys(trace, "uniform")):
        assert not torch.allclose(model(images()), expected, rtol=0, atol=1e-9)
    torch.testing.assert_close(model(images()), expected, rtol=0, atol=0)
    assert [sorted(vars(module)) for module in model.modules()] == attributes
    assert [getattr(module, "fused_attn", None) for module in model.modules()] == fused


def test_a_mask_of_windows_leaves_pairs_out() -> None:
    model = timm.create_model(WINDOWS[0], num_classes=4, **WINDOWS[1]).double().eval()
    with mereo.record(model) as trace:
        model(images())
    _, shifted = (each.unflatten(0, (2, 4, 4)) for each in trace.values())
    assert not (shifted[:, :3, :3] < 1e-20).any(), "windows inside the image have no mask"
    corner = shifted[:, 3, 3].mean((0, 1))
    torch.testing.assert_close(corner, torch.eye(4, dtype=corner.dtype), rtol=0, atol=1e-20)


class Written(nn.Module):
    """Attention as a user writes it, with a softmax of its own kind."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.heads, self.project = kind, 2, nn.Linear(8, 24)
        self.share = nn.Softmax(dim=-1)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.project(x).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
        if self.kind == "fused":
            return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        if self.kind == "one head":
            return torch.softmax(q[:, 0] @ k[:, 0].mT / 2, 2) @ v[:, 0]
        if self.kind == "grouped":
            return F.scaled_dot_product_attention(q, k[:, :1], v[:, :1], enable_gqa=True)
        if self.kind == "merged":
            q, k, v = (each.flatten(0, 1) for each in (q, k, v))
            return (torch.softmax(q @ k.mT / 2, -1) @ v).unflatten(0, (-1, 2))
        if self.kind == "merged fused":
            q, k, v = (each.flatten(0, 1) for each in (q, k, v))
            return F.scaled_dot_product_attention(q, k, v, is_causal=True).unflatten(0, (-1, 2))
        scores = q @ k.mT / 2
        couplings = {"module": self.share, "method": lambda s: s.softmax(-1), "function": lambda s: F.softmax(s, dim=3)}
        return couplings[self.kind](scores) @ v


KINDS = ("fused", "one head", "grouped", "merged", "merged fused", "module", "method", "function")


@pytest.mark.parametrize("kind", KINDS)
def test_attention_of_your_own_is_recorded_and_changed(kind: str) -> None:
    torch.manual_seed(0)
    model, x = Written(kind).eval(), torch.randn(2, 5, 8)
    expected = model(x)
    with mereo.record(model) as trace:
        torch.testing.assert_close(model(x), expected)
    q, k, _ = model.project(x).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
    scores = q @ (k[:, :1] if kind == "grouped" else k).mT / 2
    if "fused" in kind:
        scores = scores.masked_fill(torch.ones(5, 5).triu(1) > 0, -math.inf)
    couplings = scores.softmax(-1)[:, : 1 if kind == "one head" else 2]
    torch.testing.assert_close(trace["coupling"], couplings)
    with mereo.intervene(model, {"coupling": "zero"}):
        assert not model(x).any()
    torch.testing.assert_close(model(x), expected)


def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.softmax(q @ k.mT, dim=-1) @ v


class Called(Written):
    """Attention whose softmax is in a function."""

    def forward(self, x: Tensor) -> Tensor:
        return self.mixed(x)

    def mixed(self, x: Tensor) -> Tensor:
        q, k, v = self.project(x).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
        return attend(q / 2, k, v)


class Inherited(Called):
    """Attention with the forward pass of another."""


@pytest.mark.parametrize("make", [Called, Inherited])
def test_attention_is_known_by_what_its_forward_pass_calls(make: type[Written]) -> None:
    torch.manual_seed(0)
    model, x = make("").eval(), torch.randn(2, 5, 8)
    expected = model(x)
    with mereo.record(model) as trace:
        torch.testing.assert_close(model(x), expected)
    q, k, _ = model.project(x).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
    torch.testing.assert_close(trace["coupling"], (q @ k.mT / 2).softmax(-1))


@pytest.mark.parametrize("name, shape", [("swin_t", (9, 3, 49, 49)), ("swin_v2_t", (4, 3, 64, 64))])
def test_windows_of_torchvision_are_recorded_and_changed(name: str, shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    model, x = get_model(name, weights=None, num_classes=4).eval(), torch.randn(1, 3, 64, 64)
    expected = model(x)
    with mereo.record(model) as trace:
        torch.testing.assert_close(model(x), expected)
    assert len(trace) == 12
    torch.testing.assert_close(trace["features.1.0.attn.coupling"].sum(-1), torch.ones(shape[:-1]))
    with mereo.intervene(model, {"features.1.0.attn.coupling": "uniform"}):
        assert not model(x).equal(expected)
    torch.testing.assert_close(model(x), expected)


def test_gradients_flow_through_recorded_attention_of_your_own() -> None:
    torch.manual_seed(0)
    model, x = Written("fused"), torch.randn(2, 5, 8)
    with mereo.record(model):
        (found,) = torch.autograd.grad(model(x).square().sum(), [model.project.weight])
    (expected,) = torch.autograd.grad(model(x).square().sum(), [model.project.weight])
    torch.testing.assert_close(found, expected)


def test_what_makes_no_couplings_is_left_alone() -> None:
    model = timm.create_model("resnet18", num_classes=4).eval()
    with mereo.record(model) as trace:
        model(images().float())
    assert not trace and trace.nothing and "convolutions make none" in repr(trace)
    with pytest.raises(UsageError, match=r"'layer1' .* scaled_dot_product_attention"):
        trace.steps("layer1")
