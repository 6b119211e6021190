"""DaViT: its blocks, images of any size, and timm's network with the same weights."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import mereo
from mereo.errors import UsageError
from mereo.models.conversion import to_layout
from mereo.models.layout import LAYOUTS
from mereo.models.vision.davit import ChannelBlock, DaViT, PositionConv, SpatialBlock

TINY: dict[str, Any] = {"num_classes": 5, "img_size": 40, "widths": (8, 16), "depths": (1, 2), "num_heads": (2, 4)}


def perturbed(model: nn.Module) -> nn.Module:
    """Parameters away from where they start, so that those at zero count."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def tiny(**changes: Any) -> DaViT:
    torch.manual_seed(0)
    model = mereo.create_model("davit_tiny", **{**TINY, **changes})
    assert isinstance(model, DaViT)
    return model


def test_a_convolution_of_positions_adds_its_input() -> None:
    conv, x = PositionConv(6), torch.randn(2, 6, 5, 4)
    expected = x + torch.conv2d(x, conv.weight, conv.bias, padding=1, groups=6)
    torch.testing.assert_close(conv(x), expected)
    torch.testing.assert_close(conv.for_inference()(x), expected)
    half = conv.to(torch.bfloat16)
    torch.testing.assert_close(half(x.bfloat16()).float(), expected, atol=0.05, rtol=0.05)
    assert conv.state_dict().keys() == {"weight", "bias"}


@pytest.mark.parametrize("kind", [SpatialBlock, ChannelBlock])
def test_a_block_by_its_equations(kind: type[SpatialBlock]) -> None:
    block = next(b for b in perturbed(tiny()).modules() if isinstance(b, kind)).double()
    x = torch.randn(2, 8, 9, 5, dtype=torch.float64)

    def conv(x: Tensor, layer: PositionConv) -> Tensor:
        return x + torch.conv2d(x, layer.weight, layer.bias, padding=1, groups=8)

    cells = conv(x, block.position1).permute(0, 2, 3, 1)
    normed = block.norm1(cells)
    attended = block.attention(normed if kind is SpatialBlock else normed.flatten(1, 2)).reshape(cells.shape)
    cells = conv((cells + attended).permute(0, 3, 1, 2), block.position2).permute(0, 2, 3, 1)
    hidden = nn.functional.gelu(block.feed_forward.first(block.norm2(cells)))
    expected = cells + block.feed_forward.second(hidden)
    torch.testing.assert_close(block(x), expected.permute(0, 3, 1, 2))


def test_a_block_of_zeros_is_the_identity() -> None:
    for block in tiny().stages[0].blocks:
        for layer in (block.position1, block.position2, block.attention.proj, block.feed_forward.second):
            nn.init.zeros_(layer.weight)
            nn.init.zeros_(layer.bias)
        x = torch.randn(2, 8, 6, 5)
        torch.testing.assert_close(block(x), x)


def test_every_cell_sees_every_pixel_after_one_unit() -> None:
    stage = perturbed(tiny().stages[0]).double()
    x = torch.randn(1, 8, 16, 15, dtype=torch.float64, requires_grad=True)
    for corner in ((0, 0), (15, 14)):
        (gradient,) = torch.autograd.grad(stage(x)[0, :, *corner].sum(), x)
        assert (gradient[0].abs().sum(0) > 0).all()


def test_images_of_any_size() -> None:
    model = tiny().eval()
    for size in ((33, 50), (7, 3), (225, 40)):
        maps = model.forward_intermediates(torch.rand(1, 3, *size), intermediates_only=True)
        first = tuple(-(-side // 4) for side in size)
        assert maps[0].shape[2:] == first and maps[1].shape[2:] == tuple(-(-side // 2) for side in first)
    small = tiny(img_size=32, stem_stride=1, window_size=4).eval()
    assert small.forward_intermediates(torch.rand(1, 3, 32, 32), [0], intermediates_only=True)[0].shape[2:] == (32, 32)


def test_the_head_pools_before_the_norm() -> None:
    model = perturbed(tiny()).eval()
    features = torch.randn(2, 16, 5, 5)
    expected = model.head(model.norm(features.flatten(2).mean(2)))
    torch.testing.assert_close(model.forward_head(features), expected)


def test_stochastic_depth_rises_over_the_blocks() -> None:
    rates = [block.drop_path.rate for stage in tiny(drop_path_rate=0.5).stages for block in stage.blocks]
    assert rates == pytest.approx([0, 0.1, 0.2, 0.3, 0.4, 0.5])


def test_couplings_of_windows_and_of_channels() -> None:
    model = tiny(img_size=36).eval()
    with mereo.record(model) as trace:
        model(torch.rand(2, 3, 36, 36))
    windows, channels = trace["stages.0.blocks.0.attention.coupling"], trace["stages.0.blocks.1.attention.coupling"]
    assert windows.shape == (2, 2, 81, 81) and channels.shape == (2, 2, 4, 4)
    assert windows[0, 0, 0, 8] == 0 and windows[0, 0, 0, 6] > 0, "cells 0 to 6 of a row are a window"
    torch.testing.assert_close(windows[:, :, 0].sum(-1), torch.ones(2, 2))


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"depths": (1,)}, "widths, depths"), ({"stem_stride": 3}, "stem_stride is 3"), ({"down_kernel": 4}, "is 4")],
)
def test_wrong_arguments(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        tiny(**changes)


def theirs(**changes: Any) -> nn.Module:
    davit = pytest.importorskip("timm.models.davit")
    torch.manual_seed(1)
    arguments = {"depths": (1, 2), "embed_dims": (8, 16), "num_heads": (2, 4), "num_classes": 5, **changes}
    return perturbed(davit.DaVit(**arguments))


FORMS = [
    {},
    {"down_kernel_size": 3, "channel_attn_v2": True, "named_blocks": True, "window_size": 4, "in_chans": 2},
    {"qkv_bias": False, "num_classes": 0, "mlp_ratio": 2},
]


@pytest.mark.parametrize("form", FORMS)
def test_timm_with_the_same_weights(form: dict[str, Any]) -> None:
    source = theirs(**form)
    model = mereo.convert(source)
    images = torch.randn(2, form.get("in_chans", 3), 45, 60)
    for training in (False, True):
        source.train(training), model.train(training)
        for ours, given in ((model, source), (model.forward_features, source.forward_features)):
            torch.testing.assert_close(ours(images), given(images), rtol=1e-4, atol=1e-4)
        maps, expected = (m.forward_intermediates(images, intermediates_only=True) for m in (model, source))
        for ours, given in zip(maps, expected, strict=True):
            torch.testing.assert_close(ours, given, rtol=1e-4, atol=1e-4)
    back = to_layout(model, next(each for each in LAYOUTS if each.module is DaViT and each.library == "timm"))
    state = source.state_dict()
    assert back.keys() == state.keys() and all(torch.equal(back[name], state[name]) for name in back)


def test_networks_of_timm_that_have_no_counterpart() -> None:
    for form in ({"head_norm_first": True}, {"cpe_act": True}, {"ffn": False}):
        with pytest.raises(UsageError, match=r"no counterpart|do not fit"):
            mereo.convert(theirs(**form))


def test_the_names_of_the_authors() -> None:
    davit, source = pytest.importorskip("timm.models.davit"), theirs()
    model = mereo.convert(source).eval()
    official = to_layout(model, next(each for each in LAYOUTS if each.module is DaViT and each.library == "official"))
    assert {"patch_embeds.1.proj.weight", "main_blocks.1.1.0.cpe.1.proj.bias", "norms.weight"} <= official.keys()
    renamed, state = davit.checkpoint_filter_fn(dict(official), source), source.state_dict()
    assert renamed.keys() == state.keys() and all(torch.equal(renamed[name], state[name]) for name in state)
    again = mereo.convert(official, model="davit_tiny", **{**TINY, "img_size": 224})
    images = torch.rand(1, 3, 32, 32)
    assert torch.equal(again(images), model(images))
