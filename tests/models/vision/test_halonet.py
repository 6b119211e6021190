"""HaloNet: exact counts from the formula of a block, timm's networks, sizes that blocks do not divide."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import mereo
from mereo.errors import UsageError
from mereo.models import MODELS, get_model_entry
from mereo.models.registry import outline
from mereo.models.vision import HaloNet

H_FAMILY = [name for name in MODELS if name.startswith("halonet_h")]


def count_of_a_block(inputs: int, width: int, heads: int, r_v: float, r_b: float, win: int, projected: bool) -> int:
    mixed, outputs = int(width * r_v), int(width * r_b)
    weights = inputs * width + 2 * width**2 + width * mixed + 2 * (2 * win - 1) * (width // heads) + mixed * outputs
    norms = 2 * (width + mixed + outputs)
    return weights + norms + (inputs * outputs + 2 * outputs if projected else 0)


@pytest.mark.parametrize("name", H_FAMILY)
def test_counts_follow_from_the_formula_of_a_block(name: str) -> None:
    preset = get_model_entry(name).defaults
    win, inputs, total = preset["block"] + 2 * preset["halo"], 64, 3 * 49 * 64 + 2 * 64
    for stage, (kinds, width) in enumerate(zip(preset["layers"], preset["widths"], strict=True)):
        outputs = int(width * preset["expansion"])
        for block in range(len(kinds)):
            projected = inputs != outputs or (block == 0 and stage > 0)
            ratios = (preset["value_ratio"], preset["expansion"])
            total += count_of_a_block(inputs, width, preset["heads"][stage], *ratios, win, projected)
            inputs = outputs
    final = preset["final_width"]
    total += inputs * final + 2 * final
    total += 1000 * (final or inputs) + 1000
    assert total == get_model_entry(name).parameters == sum(p.numel() for p in outline(name).parameters())


def small(**changes: Any) -> HaloNet:
    arguments = {
        "img_size": 64, "stem": "tiered", "stem_width": 8, "widths": (8, 16), "layers": ("c", "hh"), "heads": (1, 2),
        "expansion": 2.0, "block": 4, "halo": 1, "num_classes": 3,
    }  # fmt: skip
    model = mereo.create_model("halonet26t", **{**arguments, **changes})
    assert isinstance(model, HaloNet)
    return model


def disturb(model: nn.Module, size: float = 0.1) -> None:
    """Every parameter away from its start, and norms with statistics."""
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(size * torch.randn_like(parameter))
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.running_mean.normal_(std=0.1)
                module.running_var.uniform_(0.5, 2)


def theirs(**changes: Any) -> nn.Module:
    """A small ByobNet of timm's with bottlenecks and halo attention."""
    pytest.importorskip("timm")
    from timm.models.byobnet import ByoBlockCfg, ByobNet, ByoModelCfg, interleave_blocks

    kinds, shared = ("bottle", "self_attn"), {"s": 2, "gs": changes.pop("gs", 0), "br": changes.pop("br", 0.25)}
    first, width = {**shared, "s": changes.pop("first_stride", 1)}, changes.pop("width", 64)
    middle = changes.pop("middle", {})
    last = {"self_attn_layer": changes.pop("last"), "self_attn_kwargs": {}} if "last" in changes else {}
    blocks = (
        ByoBlockCfg(type="bottle", d=1, c=32, **first),
        interleave_blocks(types=kinds, d=2, c=64, **shared, **middle),
        ByoBlockCfg(type="self_attn", d=2, c=width, **shared, **last),
    )
    settings = {
        "blocks": blocks, "stem_chs": 16, "stem_type": "tiered", "stem_pool": "maxpool", "self_attn_layer": "halo",
        "self_attn_kwargs": {"block_size": 4, "halo_size": 1, "num_heads": 2},
    }  # fmt: skip
    settings["self_attn_kwargs"] |= changes.pop("attention", {})
    model = ByobNet(ByoModelCfg(**{**settings, **changes}), num_classes=5, img_size=64)
    model.pretrained_cfg = {"architecture": "halonet26t", "input_size": (3, 64, 64), "crop_pct": 0.9}
    disturb(model)
    return model


BASE: dict[str, Any] = {
    "stem_width": 16, "layers": ("c", "ch", "hh"), "widths": (8, 16, 16), "heads": (1, 2, 2), "block": 4, "halo": 1,
}  # fmt: skip
"""Arguments of ours for the network of timm above."""
FORMS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "tiered": ({}, {}),
    "7x7": (
        {"act_layer": "silu", "stem_type": "7x7", "num_features": 24},
        {"activation": "silu", "stem": "7x7", "final_width": 24},
    ),
    "bottleneck attention": (
        {"stem_pool": "", "last": "bottleneck"},
        {"stem_pool": False, "layers": ("c", "ch", "bb"), "heads": (1, 2, 4)},
    ),
    "squeeze and excite, other outputs": (
        {"attn_layer": "se", "stem_pool": "", "width": 96, "num_features": 24},
        {"gate": "squeeze_excite", "gate_ratio": 0.5, "stem_pool": False, "widths": (8, 16, 24), "final_width": 24},
    ),
    "groups, channel gates, narrow queries": (
        {"attn_layer": "eca", "gs": 4, "attention": {"dim_head": 4}},
        {"gate": "efficient_channel", "group_size": 4, "key_ratios": (1.0, 0.5, 0.5)},
    ),
    "inverted": (
        {
            "stem_type": "", "stem_pool": "", "first_stride": 2, "downsample": "", "gs": 8, "br": 2,
            "attn_layer": "se", "attn_kwargs": {"rd_ratio": 0.25}, "width": 48, "act_layer": "silu",
            "block_kwargs": {"bottle_in": True, "linear_out": True}, "attention": {"qk_ratio": 0.5},
        },
        {
            "stem": "3x3", "stem_pool": False, "inverted": True, "group_size": 8, "gate": "squeeze_excite",
            "gate_ratio": 0.25, "widths": (64, 128, 96), "expansion": 1.0, "outputs": (32, 64, 48),
            "activation": "silu", "key_ratios": (1.0, 0.5, 0.5),
        },
    ),
    "lambda attention": (
        {"middle": {"self_attn_layer": "lambda", "self_attn_kwargs": {"r": 5, "dim_head": 4}}},
        {"layers": ("c", "cl", "hh"), "heads": (1, 4, 2), "scope": 5},
    ),
}  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize(("changes", "arguments"), FORMS.values(), ids=FORMS)
@pytest.mark.parametrize("training", [False, True])
def test_a_network_of_timm_computes_the_same(
    changes: dict[str, Any], arguments: dict[str, Any], training: bool
) -> None:
    source = theirs(**dict(changes)).train(training)
    model = mereo.convert(source, **{**BASE, **arguments})
    assert isinstance(model, HaloNet) and model.training == training and model.pretrained_cfg["crop_pct"] == 0.9
    back = {pair: tensor.clone() for pair, tensor in source.state_dict().items()}
    images = torch.randn(3, 3, 64, 64)
    torch.testing.assert_close(model(images), source(images), rtol=1e-4, atol=1e-4)
    features, maps = model.forward_intermediates(images)
    expected, their_maps = source.forward_intermediates(images)
    for ours, other in zip([features, *maps], [expected, *their_maps], strict=True):
        torch.testing.assert_close(ours, other, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(model.forward_features(images), source.forward_features(images), rtol=1e-4, atol=1e-4)
    from mereo.models.conversion import to_layout
    from mereo.models.layout import LAYOUTS

    (layout,) = (layout for layout in LAYOUTS if layout.module is HaloNet)
    returned = to_layout(mereo.convert(source, **{**BASE, **arguments}), layout)
    assert returned.keys() == back.keys()
    assert all(torch.equal(returned[name], value) for name, value in source.state_dict().items())


@pytest.mark.long
def test_a_preset_goes_to_timm_and_back_bit_for_bit() -> None:
    timm = pytest.importorskip("timm")
    source = timm.create_model("halonet26t", num_classes=7).eval()
    disturb(source, 0.01)
    model = mereo.convert(source)
    images = torch.randn(1, 3, 256, 256)
    with torch.inference_mode():
        torch.testing.assert_close(model(images), source(images), rtol=1e-4, atol=1e-4)
        info = [(i["num_chs"], i["reduction"]) for i in model.feature_info]
        assert info == [(i["num_chs"], i["reduction"]) for i in source.feature_info]
    back = mereo.convert(model, to="timm").state_dict()
    assert all(torch.equal(back[name], tensor) for name, tensor in source.state_dict().items())


OTHERS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "no halo attention": (
        {"self_attn_layer": "lambda", "self_attn_kwargs": {"r": 3}},
        {"layers": ("c", "cl", "ll"), "heads": (1, 4, 4), "scope": 5},
    ),
    "pool": ({"stem_pool": "avg"}, {}),
    "gates": ({"attn_layer": "cbam"}, {"gate": "squeeze_excite"}),
    "gates with maxima": ({"attn_layer": "se", "attn_kwargs": {"add_maxpool": True}}, {"gate": "squeeze_excite"}),
    "kernels of gates": ({"attn_layer": "eca", "attn_kwargs": {"gamma": 1}}, {"gate": "efficient_channel"}),
    "linear ends": ({"block_kwargs": {"linear_out": True}}, {}),
    "stem": ({"stem_type": "quad"}, {}),
    "activation": ({"act_layer": "gelu"}, {}),
    "scaled positions": ({"attention": {"scale_pos_embed": True}}, {}),
    "another block": ({"attention": {"block_size": 2, "halo_size": 2}}, {}),
    "other heads": ({}, {"heads": (1, 2, 4)}),
}


@pytest.mark.parametrize(("changes", "arguments"), OTHERS.values(), ids=OTHERS)
def test_other_byobnets_are_refused(changes: dict[str, Any], arguments: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        mereo.convert(theirs(**dict(changes)), **{**BASE, "gate_ratio": 0.5, **arguments})


def test_a_convolutional_byobnet_is_refused() -> None:
    timm = pytest.importorskip("timm")
    for name in ("test_byobnet", "resnext26ts"):
        with pytest.raises(UsageError, match=name):
            mereo.convert(timm.create_model(name))


@pytest.mark.parametrize("size", [(64, 64), (50, 61), (7, 9)])
@pytest.mark.parametrize("changes", [{}, {"block": 3}, {"layers": ("cb", "bh"), "stem_pool": False, "heads": (2, 2)}])
def test_images_of_any_size(size: tuple[int, int], changes: dict[str, Any]) -> None:
    model = small(**changes).eval()
    maps = model.forward_intermediates(torch.randn(2, 3, *size), intermediates_only=True)
    sides = [tuple(-(-side // reduction) for side in size) for reduction in (2, 4, 8)]
    assert [tuple(x.shape[2:]) for x in maps] == sides


def test_couplings_of_each_block_lie_on_the_image() -> None:
    model = small(mask_padding=True).eval()
    with mereo.record(model) as trace:
        model(torch.randn(2, 3, 64, 64))
    shapes = [trace[name].shape for name in trace]
    assert shapes == [(2, 2, 64, 256), (2, 2, 64, 64)]
    for name in trace:
        torch.testing.assert_close(trace[name].sum(-1), torch.ones(2, 2, 64))


@pytest.mark.parametrize("stem", ["7x7", "tiered"])
def test_folded_for_inference_it_computes_the_same(stem: str) -> None:
    model = small(stem=stem, final_width=12).eval()
    disturb(model)
    fused = model.fuse()
    images = torch.randn(2, 3, 64, 64)
    torch.testing.assert_close(fused(images), model(images), rtol=1e-4, atol=1e-4)
    assert sum(isinstance(m, nn.BatchNorm2d) for m in fused.modules()) == 2, "those after attention stay"


def test_a_fresh_block_passes_its_shortcut() -> None:
    model = small(layers=("c", "h"), widths=(8, 8), stem="7x7", stem_width=16).eval()
    maps = torch.rand(2, 16, 8, 8)
    torch.testing.assert_close(model.stages[0](maps), maps)


def test_gates_follow_convolutions_and_inverted_blocks_cut_shortcuts() -> None:
    changes = {"stem": "3x3", "stem_pool": False, "layers": ("cc", "ch"), "widths": (16, 32), "outputs": (8, 8)}
    model = small(**changes, inverted=True, gate="squeeze_excite", gate_ratio=0.25, heads=(1, 2)).eval()
    first, last = model.stages[0][0], model.stages[1][1]
    assert first.reduce[0].out_channels == 16 and model.stages[1][0].reduce[0].out_channels == 32
    assert first.shortcut is None and last.shortcut is not None and model.stages[0][0].mix[0].stride == (2, 2)
    assert isinstance(first.activation, nn.Identity) and isinstance(last.gate, nn.Identity)
    assert first.gate.squeeze.out_channels == 8
    with mereo.record(model) as trace:
        model(torch.randn(2, 3, 32, 32))
    assert [name for name in trace if name.endswith("gates")] == [
        f"stages.{stage}.{block}.gate.gates" for stage, block in ((0, 0), (0, 1), (1, 0))
    ]


def test_dropout_and_stochastic_depth_act_in_training_only() -> None:
    model = small(drop_rate=0.5, drop_path_rate=0.5)
    disturb(model)
    images = torch.randn(4, 3, 32, 32)

    def twice(model: nn.Module) -> tuple[Tensor, Tensor]:
        return model(images), model(images)

    assert not torch.equal(*twice(model.train()))
    assert torch.equal(*twice(model.eval()))
    assert [block.drop_path.rate for stage in model.stages for block in stage] == [0.0, 0.25, 0.5]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"layers": ("c", "x")}, r"layers\[1\] is 'x'"),
        ({"layers": ("c",)}, "each must have an entry"),
        ({"heads": (1, 3)}, "heads has 3 for a width of 16"),
        ({"outputs": (8,)}, r"outputs is \(8,\)"),
        ({"outputs": (8.5, 8)}, r"outputs of halonet26t is \(8.5, 8\); it must be whole numbers"),
        ({"outputs": (8, 0)}, r"outputs\[1\] is 0"),
        ({"outputs": (800, 8), "inverted": True}, r"layers\[0\] has a block of 0 channels"),
        ({"key_ratios": (1.0,)}, "key_ratios"),
        ({"group_size": 3}, "group_size is 3 for a width of 8"),
        ({"gate": "softmax"}, "softmax"),
        ({"stem": "9x9"}, "9x9"),
        ({"activation": "gelu"}, "gelu"),
        ({"drop_rate": 1.5}, "drop_rate"),
    ],
)
def test_wrong_arguments(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        small(**arguments)
