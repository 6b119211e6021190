"""VOLO: its stages, class attention, token labelling, and timm's network with the same weights."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import mereo
from mereo.errors import UsageError
from mereo.mechanisms.attention import ClassAttention
from mereo.models.conversion import to_layout
from mereo.models.layout import LAYOUTS
from mereo.models.token_labels import TokenLabels, draw_box, token_label_loss
from mereo.models.vision.volo import VOLO

TINY: dict[str, Any] = {
    "num_classes": 5, "img_size": 48, "layers": (1, 2, 0, 1), "widths": (8, 12), "num_heads": (2, 3), "stem_width": 6,
}  # fmt: skip


def perturbed(model: nn.Module) -> nn.Module:
    """Parameters and running statistics away from where they start."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.running_mean.normal_(std=0.2)
                module.running_var.uniform_(0.5, 2)
    return model


def tiny(**changes: Any) -> VOLO:
    torch.manual_seed(0)
    model = mereo.create_model("volo_d1", **{**TINY, **changes})
    assert isinstance(model, VOLO)
    return model


def test_class_attention_is_attention_of_the_first_token() -> None:
    attention = ClassAttention(6, 2, qkv_bias=False).double()
    tokens = torch.randn(2, 5, 6, dtype=torch.float64)
    with mereo.record(attention) as trace:
        output = attention(tokens)
    keys, values = tokens @ attention.key.weight.T, tokens @ attention.value.weight.T
    for b in range(2):
        query, merged = attention.query.weight @ tokens[b, 0], []
        for head in range(2):
            size = slice(3 * head, 3 * head + 3)
            shares = torch.stack([torch.dot(query[size], key[size]) / 3**0.5 for key in keys[b]]).softmax(0)
            torch.testing.assert_close(trace["coupling"][b, head, 0], shares)
            merged.append(sum(share * value[size] for share, value in zip(shares, values[b], strict=True)))
        expected = attention.proj.weight @ torch.cat(merged) + attention.proj.bias
        torch.testing.assert_close(output[b, 0], expected)


def test_the_class_stage_leaves_tokens_and_ignores_their_order() -> None:
    model = perturbed(tiny()).eval()
    maps = torch.randn(2, 12, 3, 3)
    features = model.neck([maps])
    torch.testing.assert_close(features[:, 1:], model.norm(maps.flatten(2).transpose(1, 2)))
    moved = model.neck([maps.flatten(2)[:, :, torch.randperm(9)].unflatten(2, (3, 3))])
    torch.testing.assert_close(model.forward_head(moved), model.forward_head(features))


def test_half_of_the_largest_token_logit_is_added() -> None:
    model, images = perturbed(tiny()).eval(), torch.randn(2, 3, 48, 48)
    features = model.forward_features(images)
    difference = model(images) - model.head(model.forward_head(features, pre_logits=True))
    torch.testing.assert_close(difference, 0.5 * model.aux_head(features[:, 1:]).amax(1))
    without = tiny(aux=False).eval()
    state = {name: value for name, value in model.state_dict().items() if not name.startswith("aux_head")}
    without.load_state_dict(state)
    torch.testing.assert_close(without(images), model.head(features[:, 0]))


def test_positions_are_interpolated_for_images_of_another_size() -> None:
    model, larger = tiny().eval(), tiny(img_size=(64, 80)).eval()
    table = model.stages[1].positions
    assert table.shape == (1, 3, 3, 12) and larger.stages[1].positions.shape == (1, 4, 5, 12)
    state = model.state_dict()
    maps = nn.functional.interpolate(table.permute(0, 3, 1, 2), (4, 5), mode="bicubic", antialias=True)
    larger.load_state_dict({**state, "stages.1.positions": maps.permute(0, 2, 3, 1)})
    images = torch.randn(1, 3, 64, 80)
    torch.testing.assert_close(model(images), larger(images))
    small = tiny(img_size=32, patch_size=2, layers=(2, 4, 0, 0)).eval()
    shapes = [tuple(x.shape[1:]) for x in small.forward_intermediates(torch.rand(1, 3, 32, 32))[1]]
    assert shapes == [(8, 16, 16), (12, 8, 8), (12, 8, 8), (12, 8, 8)]


def test_stochastic_depth_rises_and_spares_outlookers() -> None:
    model = tiny(layers=(2, 1, 1, 1), drop_path_rate=0.4)
    rates = [block.drop_path.rate for stage in model.stages for block in stage.blocks]
    assert rates == pytest.approx([0, 0, 0.2, 0.3, 0.4])


def test_couplings_of_every_kind() -> None:
    model = tiny().eval()
    with mereo.record(model) as trace:
        model(torch.rand(2, 3, 48, 48))
    assert trace["stages.0.blocks.0.attention.coupling"].shape == (2, 2, 36, 36)
    assert trace["stages.3.blocks.0.attention.coupling"].shape == (2, 3, 9, 9)
    assert trace["class_blocks.1.attention.coupling"].shape == (2, 3, 1, 10)


# --- token labelling ------------------------------------------------------------------------------------------------


def test_token_labels_mix_embeddings_and_unmix_logits() -> None:
    model = perturbed(tiny()).train()
    images, box = torch.randn(2, 3, 48, 48), (0, 1, 2, 3)
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.eval()
        output = model.token_labels(images, box)
        maps = model.stem(images)
        mixed = maps.clone()
        mixed[:, :, 0:4, 2:6] = maps.flip(0)[:, :, 0:4, 2:6]
        for stage in model.stages:
            mixed = stage(mixed)
        features = model.neck([mixed])
    torch.testing.assert_close(output.classes, model.head(features[:, 0]))
    expected = model.aux_head(features[:, 1:]).unflatten(1, (3, 3))
    swapped = expected.clone()
    swapped[:, 0:2, 1:3] = expected.flip(0)[:, 0:2, 1:3]
    torch.testing.assert_close(output.tokens, swapped.flatten(1, 2))
    assert output.box == box


def test_nothing_is_mixed_in_eval_and_wrong_calls_are_refused() -> None:
    model, images = perturbed(tiny()).eval(), torch.randn(2, 3, 48, 48)
    output = model.token_labels(images)
    assert output.box == (0, 0, 0, 0)
    torch.testing.assert_close(output.classes + 0.5 * output.tokens.amax(1), model(images))
    with pytest.raises(UsageError, match=r"box is \(0, 0, 4, 1\)"):
        model.train().token_labels(images, (0, 0, 4, 1))
    with pytest.raises(UsageError, match="aux=True"):
        tiny(aux=False).token_labels(images)


def test_boxes_lie_on_the_grid() -> None:
    torch.manual_seed(0)
    shares = []
    for _ in range(300):
        top, left, bottom, right = draw_box(14, 10)
        assert 0 <= top <= bottom <= 14 and 0 <= left <= right <= 10
        shares.append((bottom - top) * (right - left) / 140)
    assert min(shares) == 0 and max(shares) > 0.7


def test_the_loss_of_token_labels() -> None:
    classes, tokens = torch.randn(2, 3), torch.randn(2, 4, 3)
    targets, labels = torch.rand(2, 4, 3).softmax(-1), torch.tensor([0, 2])
    loss = token_label_loss(TokenLabels(classes, tokens, (0, 0, 1, 1)), labels, targets)
    logs, total = classes.log_softmax(-1), 0.0
    for i, (own, other) in enumerate(((0, 2), (2, 0))):
        total -= (0.75 * logs[i, own] + 0.25 * logs[i, other]) / 2
    total -= 0.5 * (targets * tokens.log_softmax(-1)).sum(-1).mean()
    torch.testing.assert_close(loss, total)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layers": (0, 0, 0, 0)}, "layers are"),
        ({"patch_size": 3}, "patch_size is 3"),
        ({"num_heads": (3, 3)}, "num_heads"),
        ({"img_size": 8}, "img_size is 8"),
    ],
)
def test_wrong_arguments(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        tiny(**changes)


# --- timm -----------------------------------------------------------------------------------------------------------


def theirs(**changes: Any) -> nn.Module:
    volo = pytest.importorskip("timm.models.volo")
    torch.manual_seed(1)
    arguments = {
        "layers": (1, 2, 1, 1), "embed_dims": (8, 12, 12, 12), "num_heads": (2, 3, 3, 3), "num_classes": 5,
        "img_size": 48, "stem_hidden_dim": 6, **changes,
    }  # fmt: skip
    return perturbed(volo.VOLO(**arguments))


def compare(ours: Tensor, given: Tensor) -> None:
    torch.testing.assert_close(ours, given, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "form", [{}, {"use_aux_head": False, "mlp_ratio": 4.0, "in_chans": 2, "img_size": 80}, {"num_classes": 0}]
)
def test_timm_with_the_same_weights(form: dict[str, Any]) -> None:
    source = theirs(**form)
    model = mereo.convert(source)
    side = form.get("img_size", 48)
    images = torch.randn(2, form.get("in_chans", 3), side, side)
    for training in (False, True):
        source.train(training), model.train(training)
        compare(model(images), source(images))
        compare(model.forward_features(images), source.forward_features(images))
        for norm in (False, True):
            maps = model.forward_intermediates(images, norm=norm, intermediates_only=True)
            for ours, given in zip(
                maps, source.forward_intermediates(images, norm=norm, intermediates_only=True), strict=True
            ):
                compare(ours, given)
    assert [info["reduction"] for info in model.feature_info] == [info["reduction"] for info in source.feature_info]
    back = to_layout(mereo.convert(source), next(each for each in LAYOUTS if each.module is VOLO))
    state = source.state_dict()
    assert back.keys() == state.keys() and all(torch.equal(back[name], state[name]) for name in back)


def test_token_labels_are_those_of_timm() -> None:
    source = theirs(use_mix_token=True).eval()
    model, images = mereo.convert(source), torch.randn(2, 3, 48, 48)
    source.mix_token = False
    source.train(), model.train()
    for network in (source, model):
        for module in network.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.eval()
    _, tokens, _ = source.forward_train(images)
    output = model.token_labels(images, (0, 0, 0, 0))
    compare(output.tokens, tokens)
    compare(output.classes, source.head(source.forward_features(images)[:, 0]))


def test_networks_of_timm_that_have_no_counterpart() -> None:
    for form in ({"qkv_bias": True}, {"post_layers": None, "global_pool": "avg"}):
        with pytest.raises(UsageError, match=r"no counterpart|do not fit"):
            mereo.convert(theirs(**form))
