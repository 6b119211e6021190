"""CaiT against timm's, its worked checks, its places on the image, its layers and its forms of residual branches."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import mereo
from mereo.core import Grid
from mereo.errors import UsageError
from mereo.layers import resize_positions
from mereo.layers.residual import FORMS
from mereo.models import get_model_entry
from mereo.models.conversion import to_layout
from mereo.models.layout import LAYOUTS
from mereo.models.pretrained import fill
from mereo.models.vision.cait import CaiT

NARROW = {"mlp_ratio": 2.0, "mlp_ratio_token_only": 2.0}
TINY = dict(get_model_entry("cait_xxs24_224").tiny or {})


def perturbed(model: Any, by: float = 0.1) -> Any:
    """A network in which LayerScale and all that starts at zero count."""
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(by * torch.randn_like(parameter))
    return model.eval()


def tiny(**changes: Any) -> CaiT:
    model: CaiT = perturbed(mereo.create_model("cait_xxs24", **{**TINY, "drop_path_rate": 0.0, **changes}))
    return model


def timm_model(**changes: Any) -> nn.Module:
    cait = pytest.importorskip("timm.models.cait")
    how: dict[str, Any] = {"img_size": 16, "patch_size": 4, "embed_dim": 12, "depth": 3, "num_heads": 3}
    model: nn.Module = perturbed(cait.Cait(**{**how, "num_classes": 7, **changes}))
    return model


# --- timm -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes", [{}, {"img_size": (8, 12), "in_chans": 2, "depth_token_only": 1, **NARROW}, {"num_classes": 0}]
)
def test_timms_network_converts_with_all_its_outputs(changes: dict[str, Any]) -> None:
    source = timm_model(**changes)
    model = mereo.convert(source)
    assert isinstance(model, CaiT) and not model.training
    images = torch.randn(2, *model.image_shape)
    for ours, theirs in ((model, source), (model.train(), source.train()), (model.eval(), source.eval())):
        torch.testing.assert_close(ours(images), theirs(images), rtol=1e-4, atol=1e-4)
    with torch.inference_mode():
        torch.testing.assert_close(model(images), source(images), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(model.forward_features(images), source.forward_features(images), rtol=1e-4, atol=1e-4)
    for options in ({}, {"indices": [0, 2], "norm": True}, {"indices": 1, "output_fmt": "NLC"}):
        features, maps = model.forward_intermediates(images, **options)
        expected, theirs = source.forward_intermediates(images, **options)
        torch.testing.assert_close(features, expected, rtol=1e-4, atol=1e-4)
        for ours, map_ in zip(maps, theirs, strict=True):
            torch.testing.assert_close(ours, map_, rtol=1e-4, atol=1e-4)


def test_weights_go_back_to_timm_bit_for_bit() -> None:
    source = timm_model()
    (layout,) = (layout for layout in LAYOUTS if layout.module is CaiT)
    back, state = to_layout(mereo.convert(source), layout), source.state_dict()
    assert back.keys() == state.keys() and all(torch.equal(back[name], state[name]) for name in state)
    with pytest.raises(UsageError, match=r"pos_embed is \(1, 16, 12\)"):
        mereo.convert(state, model="cait_xxs24", **{**TINY, "num_classes": 7, "img_size": 20})


def test_gradients_and_stochastic_depth_are_timms() -> None:
    source = timm_model(drop_path_rate=0.4)
    model = mereo.convert(source)
    assert {block.attention.drop.rate for block in model.blocks} == {0.4}
    assert {block.attention.drop.rate for block in model.class_blocks} == {0.0}
    images, gradients = torch.randn(2, *model.image_shape), []
    for network in (source, model):
        network(images).square().sum().backward()
        gradients.append({name: p.grad for name, p in network.named_parameters()})
    (layout,) = (layout for layout in LAYOUTS if layout.module is CaiT)
    for pair in layout.pairs(model):
        theirs, ours = gradients[0].get(f"{pair.theirs}.weight"), gradients[1].get(f"{pair.ours}.weight")
        if theirs is not None:
            torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4, msg=pair.ours)


def test_what_timms_network_has_and_ours_not() -> None:
    with pytest.raises(UsageError, match="no counterpart"):
        mereo.convert(timm_model(global_pool="avg"))
    with pytest.raises(UsageError, match="qkv"):
        mereo.convert(timm_model(qkv_bias=False))


# --- what is computed -----------------------------------------------------------------------------------------------


def test_without_gains_every_layer_is_the_identity() -> None:
    model = mereo.create_model("cait_xxs24", **{**TINY, "init_values": 0.0}).eval()
    images = torch.rand(2, 3, 16, 16)
    features, maps = model.forward_intermediates(images)
    embedded = model.embed(images)
    assert all(torch.equal(m, embedded.permute(0, 3, 1, 2)) for m in maps)
    torch.testing.assert_close(features[:, 0], model.norm(model.class_token[0]).expand(2, -1))
    assert torch.equal(features[:, 1:], model.norm(embedded.flatten(1, 2)))


def test_class_layers_leave_patches_unchanged_and_ignore_their_order() -> None:
    model = tiny()
    patches = torch.randn(2, 16, 12)
    before = patches.clone()
    token = model.summarise(patches)
    assert torch.equal(patches, before)
    torch.testing.assert_close(model.summarise(patches[:, torch.randperm(16)]), token, rtol=1e-4, atol=1e-5)
    # Patches are what the layers of the patches made of them, bit for bit.
    images = torch.rand(2, 3, 16, 16)
    features, maps = model.forward_intermediates(images)
    assert torch.equal(features[:, 1:], model.norm(maps[-1].permute(0, 2, 3, 1).flatten(1, 2)))


def test_a_class_layer_is_that_of_the_equations() -> None:
    model = tiny().double()
    block, token, patches = model.class_blocks[0], torch.randn(2, 1, 12).double(), torch.randn(2, 9, 12).double()
    part, after = block.attention, block.feed_forward
    expected = token + part.scale.gain * part.branch(part.norm(torch.cat((token, patches), 1)))
    expected = expected + after.scale.gain * after.branch(after.norm(expected))
    normalised = nn.functional.layer_norm(patches, (12,), eps=1e-6)
    torch.testing.assert_close(block(token, normalised, True), expected)
    torch.testing.assert_close(block(token, patches, False), expected)


def test_scalars_are_gains_that_are_equal() -> None:
    scalar = tiny(residual="scalar")
    state = {
        name: value.expand(12) if name.endswith("scale.gain") else value for name, value in scalar.state_dict().items()
    }
    gains = tiny()
    gains.load_state_dict(state)
    images = torch.rand(2, 3, 16, 16)
    torch.testing.assert_close(gains(images), scalar(images))


@pytest.mark.parametrize("residual", FORMS)
def test_a_folded_network_is_the_same(residual: str) -> None:
    model = tiny(residual=residual)
    ready, images = model.fuse(), torch.rand(2, 3, 16, 16)
    gains = [name for name, _ in ready.named_parameters() if "scale" in name or "shift_after" in name]
    assert gains == [] and all(p.requires_grad for p in model.parameters())
    with torch.no_grad():
        torch.testing.assert_close(ready(images), model(images), rtol=1e-5, atol=1e-6)


def test_inference_skips_no_more_than_it_says() -> None:
    model, images = tiny(), torch.rand(3, 3, 16, 16)
    expected = model(images)
    with torch.inference_mode():
        torch.testing.assert_close(model(images), expected, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(model.forward_head(model.forward_features(images)), model(images))


# --- sizes, places, layers ------------------------------------------------------------------------------------------


def test_images_of_another_size_get_interpolated_positions() -> None:
    model = tiny()
    images = torch.rand(2, 3, 25, 14)
    patches = model.patch_embed(images).permute(0, 2, 3, 1)
    expected = patches + resize_positions(model.positions, (4, 4), (6, 3)).view(1, 6, 3, 12)
    torch.testing.assert_close(model.embed(images), expected)
    assert model(images).shape == (2, 10) and model.forward_features(images).shape == (2, 19, 12)
    with pytest.raises(UsageError, match="both sides must be at least 4"):
        model(torch.rand(2, 3, 3, 16))
    with pytest.raises(UsageError, match=r"img_size is \(16, 3\)"):
        tiny(img_size=(16, 3))
    with pytest.raises(UsageError, match=r"mlp_ratio is 0\.05 with embed_dim 12"):
        tiny(mlp_ratio=0.05)


def test_weights_for_another_image_size_bring_interpolated_positions() -> None:
    model = tiny()
    larger = mereo.create_model("cait_xxs24", **{**TINY, "img_size": (24, 16), "num_classes": 3}).eval()
    new = fill(larger, model.state_dict(), model.config, "the small ones")
    assert new.new == ("head",) and new.moved == ("positions",)
    torch.testing.assert_close(larger.positions, resize_positions(model.positions, (4, 4), (6, 4)))
    images = torch.rand(2, 3, 24, 16)
    torch.testing.assert_close(larger.forward_features(images), model.forward_features(images))


def test_couplings_have_their_places() -> None:
    model = tiny()
    with mereo.record(model) as trace:
        model(torch.rand(2, 3, 16, 24))
    late = trace["class_blocks.1.attention.branch.coupling"]
    assert late.shape == (2, 3, 1, 1 + 4 * 6)
    torch.testing.assert_close(late.sum(-1), torch.ones(2, 3, 1))
    (call,) = trace.calls("class_blocks.1.attention.branch.coupling")
    assert call.senders == Grid(4, 6, 1, 2.0, 4, prefix=1) and call.receivers is None
    (call,) = trace.calls("blocks.0.attention.branch.coupling")
    assert trace["blocks.0.attention.branch.coupling"].shape == (2, 3, 24, 24)
    assert call.senders is not None and call.senders[:5] == (4, 6, 1, 2.0, 4) and call.receivers == call.senders
    with mereo.intervene(model, {f"class_blocks.{i}.attention.branch.coupling": torch.zeros_like for i in range(2)}):
        blind = model(torch.rand(2, 3, 16, 16))
    torch.testing.assert_close(blind[0], blind[1], msg="the class token has no other source")


def test_layers_are_counted_as_in_timm() -> None:
    model, source = tiny(depth=3), timm_model()
    depths = model.layer_depths()
    (layout,) = (layout for layout in LAYOUTS if layout.module is CaiT)
    theirs, matcher = {pair.ours: pair.theirs for pair in layout.pairs(model)}, source.group_matcher()
    for name, depth in depths.items():
        prefix = name if name in theirs else name.rpartition(".")[0]
        expected = matcher(f"{theirs[prefix]}.weight")
        assert depth == min(expected, len(model.blocks) + 1), name
    assert model.no_weight_decay() == {"positions", "class_token"}


def test_branches_of_each_form_start_as_they_should() -> None:
    images = torch.rand(2, 3, 16, 16)
    for residual in FORMS:
        torch.manual_seed(0)
        model: Any = mereo.create_model("cait_xxs24", **{**TINY, "residual": residual}).eval()
        change = (model.stage(0, images) - model.embed(images)).abs().max().item()
        if residual in ("rezero", "fixup"):
            assert change == 0
        elif residual in ("scalar", "layer_scale"):
            assert 0 < change < 1e-4
        else:
            assert change > 1e-4
        norms = sum(isinstance(m, nn.LayerNorm) for m in model.modules())
        assert norms == (1 if residual in ("rezero", "fixup", "t_fixup") else 1 + 2 * (TINY["depth"] + 2))
    with pytest.raises(UsageError, match="residual is 'post_norm'"):
        tiny(residual="post_norm")


def test_a_small_network_learns() -> None:
    torch.manual_seed(0)
    model = mereo.create_model("cait_xxs24", **{**TINY, "num_classes": 2, "init_values": 0.1})
    images = torch.rand(32, 3, 16, 16)
    labels = torch.arange(32) % 2
    images[labels == 1, :, :8] *= 0.3
    optimizer = torch.optim.AdamW(model.parameter_groups(0.05), lr=5e-3)
    losses = []
    for _ in range(25):
        loss: Tensor = nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]
