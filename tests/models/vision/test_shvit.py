"""SHViT: its start, sizes, second head and form for inference."""

from typing import Any

import pytest
import torch

import mereo
from mereo.errors import UsageError
from mereo.mechanisms.attention import SingleHeadAttention
from mereo.models.conversion import to_layout
from mereo.models.layout import LAYOUTS
from mereo.models.registry import outline
from mereo.models.vision.shvit import Residual, SHViT, _merging

TINY: dict[str, Any] = {
    "img_size": 24, "num_classes": 4, "widths": (8, 12, 16), "depths": (1, 2, 1), "attended": (None, 3, 5),
    "key_dim": 3, "stem_strides": (2, 2),
}  # fmt: skip


def tiny(**changes: Any) -> SHViT:
    """In eval mode, with no parameter and no running statistic at its start."""
    model = mereo.create_model("shvit_s1", **{**TINY, **changes})
    with torch.no_grad():
        for tensor in model.state_dict().values():
            if tensor.is_floating_point():
                tensor.add_(0.1 * torch.rand_like(tensor))
    assert isinstance(model, SHViT)
    return model.eval()


def test_blocks_start_as_identities_and_downsampling_does_not() -> None:
    model = mereo.create_model("shvit_s1", **TINY)
    maps = torch.randn(2, 12, 4, 4)
    assert torch.equal(model.stages[1].blocks(maps), maps)
    assert not torch.equal(model.stages[1].downsample[3](maps), maps)


def test_the_first_stage_has_no_attention() -> None:
    model = tiny()
    holders = {name[:8] for name, module in model.named_modules() if isinstance(module, SingleHeadAttention)}
    assert holders == {"stages.1", "stages.2"}


@pytest.mark.parametrize(("side", "sides"), [(224, [14, 7, 4]), (256, [16, 8, 4])])
def test_maps_of_large_images(side: int, sides: list[int]) -> None:
    with torch.device("meta"):
        model = mereo.create_model("shvit_s4", features_only=True)
    maps = model(torch.empty(1, 3, side, side, device="meta"))
    assert [tuple(x.shape[1:]) for x in maps] == [
        (width, rows, rows) for width, rows in zip((224, 336, 448), sides, strict=True)
    ]


@pytest.mark.parametrize(("width", "hidden"), [(128, 128), (308, 312), (66, 64), (12, 16), (4, 8)])
def test_the_gate_of_merging_is_a_multiple_of_eight(width: int, hidden: int) -> None:
    assert _merging(width, 8)[2].squeeze.out_channels == hidden


def test_a_second_head_gives_the_mean_of_two() -> None:
    model = tiny(distillation=True)
    images = torch.rand(3, 3, 24, 24)
    scores, distilled = model.both_heads(model.forward_features(images))
    assert not torch.allclose(scores, distilled)
    torch.testing.assert_close(model(images), (scores + distilled) / 2)
    with pytest.raises(UsageError, match="distillation is False"):
        tiny().both_heads(torch.rand(1, 16, 2, 2))


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"depths": (1, 1)}, "one of each for every stage"), ({"widths": (9, 12, 16)}, "a multiple of 2")],
)
def test_wrong_arguments(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        tiny(**changes)


def test_fused_there_is_no_batch_norm_and_the_output_is_the_same() -> None:
    model, images = tiny(distillation=True), torch.rand(3, 3, 24, 24)
    ready = model.fuse()
    kinds = {type(module).__name__ for module in ready.modules()}
    assert not kinds & {"BatchNorm2d", "BatchNorm1d", "NormLinear"} and ready.distillation_head is None
    assert not isinstance(ready.stages[0].blocks[0].local, Residual)
    with torch.no_grad():
        torch.testing.assert_close(ready(images), model(images), rtol=1e-5, atol=1e-5)


def test_the_largest_preset_folds_to_its_size() -> None:
    model = outline("shvit_s4").eval()
    assert sum(p.numel() for p in model.fuse().parameters()) == 16_546_248


def test_two_heads_are_one_with_averaged_weights_after_folding() -> None:
    model, pooled = tiny(distillation=True), torch.randn(5, 16)
    expected = (model.head(pooled) + model.distillation_head(pooled)) / 2
    first, second = model.head.for_inference(), model.distillation_head.for_inference()
    weight, bias = (first.weight + second.weight) / 2, (first.bias + second.bias) / 2
    torch.testing.assert_close(torch.nn.functional.linear(pooled, weight, bias), expected, rtol=1e-5, atol=1e-6)


def official_names(model: SHViT) -> dict[str, torch.Tensor]:
    (layout,) = [each for each in LAYOUTS if each.module is SHViT and each.library == "official"]
    return to_layout(model, layout)


def test_the_names_of_the_authors() -> None:
    model = tiny(distillation=True)
    tensors = official_names(model)
    assert {"patch_embed.2.c.weight", "blocks1.0.conv.m.c.weight", "blocks2.0.1.m.pw1.bn.bias"} <= set(tensors)
    assert {"blocks2.1.se.fc1.bias", "blocks2.4.mixer.m.proj.1.bn.weight", "head_dist.l.bias"} <= set(tensors)
    again = mereo.convert(tensors, model="shvit_s1", **TINY, distillation=True)
    assert all(torch.equal(value, again.state_dict()[name]) for name, value in model.state_dict().items())


def test_timm_gives_the_same_before_and_after() -> None:
    timm = pytest.importorskip("timm")
    theirs = timm.create_model(
        "shvit_s1", num_classes=4, embed_dim=(16, 24, 32), depth=(1, 2, 1), partial_dim=(4, 5, 7), qk_dim=(3, 3, 3)
    ).eval()
    with torch.no_grad():
        for tensor in theirs.state_dict().values():
            if tensor.is_floating_point():
                tensor.add_(0.1 * torch.rand_like(tensor))
    before = {name: value.clone() for name, value in theirs.state_dict().items()}
    ours, images = mereo.convert(theirs), torch.rand(3, 3, 64, 96)
    torch.testing.assert_close(ours(images), theirs(images), rtol=1e-4, atol=1e-5)
    features, maps = theirs.forward_intermediates(images)
    for own, other in zip(
        [ours.forward_features(images), *ours.forward_intermediates(images)[1]], [features, *maps], strict=True
    ):
        torch.testing.assert_close(own, other, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(ours.train()(images), theirs.train()(images), rtol=1e-3, atol=1e-4)
    (layout,) = [each for each in LAYOUTS if each.module is SHViT and each.library == "timm"]
    back = to_layout(mereo.convert(theirs.eval()), layout)
    now = theirs.state_dict()
    assert set(back) == set(before) and all(torch.equal(back[name], now[name]) for name in before)
