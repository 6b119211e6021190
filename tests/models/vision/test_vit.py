"""ViT and DeiT against timm's, both ways, with their functions model -> model, places and sizes."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import mereo
from mereo.errors import UsageError
from mereo.layers import resize_positions
from mereo.models.conversion import to_layout
from mereo.models.layout import LAYOUTS
from mereo.models.vision.vit import TINY, ViT
from mereo.surgery import linearise

DISTILLED = {"distilled": True, "img_size": (13, 8)}


def perturbed(model: Any) -> Any:
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model.eval()


def tiny(**changes: Any) -> ViT:
    model: ViT = perturbed(mereo.create_model("vit_tiny", **{**TINY, **changes}))
    return model


def timm_model(distilled: bool = False, **changes: Any) -> nn.Module:
    pytest.importorskip("timm")
    from timm.models.deit import VisionTransformerDistilled
    from timm.models.vision_transformer import VisionTransformer

    how = {"img_size": 16, "patch_size": 4, "embed_dim": 12, "depth": 3, "num_heads": 3, "num_classes": 7}
    kind = VisionTransformerDistilled if distilled else VisionTransformer
    model: nn.Module = perturbed(kind(**{**how, **changes}))
    return model


@pytest.mark.parametrize(
    "changes",
    [
        {}, {"distilled": True, "img_size": (8, 12)}, {"num_classes": 0}, {"qkv_bias": False, "mlp_ratio": 2.5},
        {"drop_path_rate": 0.3, "in_chans": 2},
    ],
)  # fmt: skip
def test_timms_network_converts_with_all_its_outputs(changes: dict[str, Any]) -> None:
    source = timm_model(**changes)
    model = mereo.convert(source)
    assert isinstance(model, ViT)
    assert model.blocks[-1].drop_path2.rate == pytest.approx(changes.get("drop_path_rate", 0.0))
    images = torch.randn(2, *model.image_shape)
    torch.testing.assert_close(model(images), source(images), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(model.forward_features(images), source.forward_features(images), rtol=1e-4, atol=1e-4)
    for options in ({}, {"indices": [0, 2], "norm": True}, {"indices": 1, "output_fmt": "NLC"}):
        features, maps = model.forward_intermediates(images, **options)
        expected, theirs = source.forward_intermediates(images, **options)
        torch.testing.assert_close(features, expected, rtol=1e-4, atol=1e-4)
        for ours, map_ in zip(maps, theirs, strict=True):
            torch.testing.assert_close(ours, map_, rtol=1e-4, atol=1e-4)
    if not changes.get("drop_path_rate"):
        torch.testing.assert_close(model.train()(images), source.train()(images), rtol=1e-4, atol=1e-4)
    (layout,) = (layout for layout in LAYOUTS if layout.module is ViT)
    back, state = to_layout(model, layout), source.state_dict()
    assert back.keys() == state.keys() and all(torch.equal(back[name], state[name]) for name in state)


@pytest.mark.parametrize("name", ["vit_tiny_patch16_224", "deit_tiny_distilled_patch16_224"])
def test_ours_becomes_timms(name: str) -> None:
    pytest.importorskip("timm")
    model = perturbed(mereo.create_model(name, num_classes=3, img_size=48))
    theirs, images = mereo.convert(model, to="timm"), torch.rand(1, 3, 48, 48)
    torch.testing.assert_close(theirs(images), model(images), rtol=1e-4, atol=1e-4)


def test_what_timms_network_has_and_ours_not() -> None:
    for changes in ({"init_values": 0.1}, {"reg_tokens": 2}, {"qk_norm": True}, {"global_pool": "avg"}):
        with pytest.raises(UsageError, match=r"no counterpart|do not fit"):
            mereo.convert(timm_model(**changes))
    with pytest.raises(UsageError, match="pos_embed"):
        mereo.convert(timm_model(no_embed_class=True))


def test_a_block_is_that_of_the_equations() -> None:
    model = tiny().double()
    block, x = model.blocks[1], torch.randn(2, 17, 12, dtype=torch.float64)
    normed, y = block.norm1(x), torch.empty_like(x)
    q, k, v = block.attn.qkv(normed).unflatten(-1, (3, 3, 4)).unbind(2)
    for b in range(2):
        heads = [
            torch.stack([(k[b, :, h] @ q[b, i, h] / 2).softmax(0) @ v[b, :, h] for i in range(17)]) for h in range(3)
        ]
        y[b] = x[b] + block.attn.proj(torch.cat(heads, 1))
    torch.testing.assert_close(block(x), y + block.mlp(block.norm2(y)))


def test_a_distilled_network_has_two_tokens_and_two_classifiers() -> None:
    model = tiny(**DISTILLED)
    assert model.num_prefix_tokens == 2 and model.grid == (3, 2) and model.num_tokens == 8
    features = model.forward_features(torch.rand(2, 3, 13, 8))
    assert features.shape == (2, 8, 12)
    expected = (model.head(features[:, 0]) + model.distillation_head(features[:, 1])) / 2
    torch.testing.assert_close(model.forward_head(features), expected)
    model.reset_classifier(0)
    assert model.distillation_head is None
    torch.testing.assert_close(model(torch.rand(2, 3, 13, 8)).shape, (2, 12))


def test_couplings_have_their_places() -> None:
    model = tiny(**DISTILLED)
    with mereo.record(model) as trace:
        model(torch.rand(2, 3, 13, 8))
    couplings = trace["blocks.1.attn.coupling"]
    torch.testing.assert_close(couplings.sum(-1), torch.ones(2, 3, 8))
    (call,) = trace.calls("blocks.1.attn.coupling")
    assert call.senders is not None and call.senders == call.receivers
    assert (call.senders.rows, call.senders.columns, call.senders.first, call.senders.prefix) == (3, 2, 2.0, 2)


def test_weights_for_another_image_size_bring_interpolated_positions() -> None:
    model, larger = tiny(**DISTILLED), tiny(**{**DISTILLED, "img_size": (16, 24)})
    tensors = larger.resize_tensors(model.state_dict(), (13, 8))
    larger.load_state_dict(tensors)
    torch.testing.assert_close(larger.positions[:, :2], model.positions[:, :2])
    torch.testing.assert_close(larger.positions[:, 2:], resize_positions(model.positions[:, 2:], (3, 2), (4, 6)))


def changed(what: str, model: ViT) -> nn.Module:
    """A model with another attention, made by one of the functions model -> model."""
    functions: dict[str, Any] = {
        "evit": lambda: mereo.evit(model, 0.5, layers=[0]),
        "moh": lambda: mereo.moh(model, 1.0, shared=3),
        "sparsifiner": lambda: mereo.sparsifiner(model, keep=0.5),
        "dual": lambda: mereo.dual_cross_attention(model, 0.3),
        "linearise": lambda: linearise(model, radius=2),
        "watchable": lambda: mereo.watchable(model),
    }
    replaced: nn.Module = functions[what]()
    return replaced


@pytest.mark.parametrize("distilled", [False, True])
@pytest.mark.parametrize("what", ["evit", "moh", "sparsifiner", "dual", "linearise", "watchable"])
def test_functions_from_model_to_model_take_it(what: str, distilled: bool) -> None:
    model = tiny(distilled=distilled)
    images, before = torch.rand(2, 3, 16, 16), {name: p.clone() for name, p in model.state_dict().items()}
    with mereo.record(replaced := changed(what, model).eval()) as trace:
        scores: Tensor = replaced(images)
    assert scores.shape == (2, 10) and scores.isfinite().all() and len(trace) > 0
    same = what in ("watchable", "moh")  # all of the heads are shared
    assert torch.allclose(scores, model(images), atol=1e-5) == same
    after = replaced.state_dict()
    assert all(torch.equal(after[name], value) for name, value in before.items()), "weights keep names and values"
    if what == "evit":
        assert trace["blocks.0.attn.coupling"].shape == (2, 3, 16 + 1 + distilled, 16 + 1 + distilled)


def test_wrong_arguments() -> None:
    for changes, message in (
        ({"img_size": (3, 16)}, "patch_size, 4"),
        ({"num_heads": 5}, "num_heads 5"),
        ({"mlp_ratio": 0.01}, "product must be at least 1"),
        ({"depth": 0}, "depth is 0"),
    ):
        with pytest.raises(UsageError, match=message):
            tiny(**changes)
    with pytest.raises(UsageError, match=r"takes \(batch, 3, 16, 16\)"):
        tiny()(torch.rand(1, 3, 16, 20))
