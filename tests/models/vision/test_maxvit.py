"""MaxViT: its partitions, its sizes, and timm's networks as ours."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import mereo
from mereo.core.topology import Blocks, Spread
from mereo.errors import UsageError
from mereo.mechanisms.attention import BlockAttention
from mereo.models.conversion import to_layout
from mereo.models.layout import LAYOUTS
from mereo.models.registry import outline
from mereo.models.vision import MaxViT
from mereo.models.vision.maxvit import windows_to_grid

SMALL: dict[str, Any] = {
    "embed_dim": (32, 64, 96), "depths": (1, 2, 1), "block_type": ("M",) * 3, "img_size": 64, "num_classes": 7,
}  # fmt: skip
THEIRS: dict[str, tuple[str, dict[str, Any]]] = {
    "official": ("maxvit_tiny_tf_224", {"stem_width": 16, "head_hidden_size": 40}),
    "timm": ("maxvit_tiny_rw_224", {"stem_width": (16, 32)}),
    "computed positions": ("maxvit_rmlp_small_rw_224", {"stem_width": (16, 32)}),
    "parallel": ("maxvit_tiny_pm_256", {"stem_width": (16, 32), "block_type": ("PM",) * 3}),
}


def perturbed(model: nn.Module) -> nn.Module:
    """With gains away from their start, norms that have seen images, and no dropout."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.running_mean.normal_(0, 0.3)
                module.running_var.uniform_(0.5, 2)
            if isinstance(module, nn.Dropout):
                module.p = 0.0
            if isinstance(getattr(module, "dropout", None), float):
                module.dropout = 0.0
    return model.eval()


def theirs(form: str, **changes: Any) -> Any:
    timm = pytest.importorskip("timm")
    name, arguments = THEIRS[form]
    return perturbed(timm.create_model(name, **{**SMALL, **arguments, **changes}))


def tiny(**changes: Any) -> MaxViT:
    arguments = {
        "num_classes": 3,
        "img_size": 32,
        "stem_widths": (4, 8),
        "widths": (8, 12),
        "depths": (1, 1),
        "head_dim": 4,
    }
    return perturbed(mereo.create_model("maxvit_tiny_tf", **{**arguments, **changes}))


def close(ours: Tensor, other: Tensor) -> None:
    torch.testing.assert_close(ours, other, atol=1e-4, rtol=1e-4)


@pytest.mark.long
@pytest.mark.parametrize("form", THEIRS)
def test_a_network_of_timm_gives_the_same_here(form: str) -> None:
    source = theirs(form)
    model, images = perturbed(mereo.convert(source)), torch.randn(2, 3, 64, 64)
    model.load_state_dict(mereo.convert(source).state_dict())
    with torch.no_grad():
        close(model(images), source(images))
        close(model.forward_features(images), source.forward_features(images))
        features, maps = model.forward_intermediates(images, norm=True)
        expected, others = source.forward_intermediates(images, norm=True)
        close(features, expected)
        for ours, other in zip(maps, others, strict=True):
            close(ours, other)
        close(model.fuse()(images), source(images))
    assert [dict(info) for info in model.feature_info] == source.feature_info
    close(model.train()(images), source.train()(images))


@pytest.mark.parametrize("form", THEIRS)
def test_weights_go_back_bit_for_bit(form: str) -> None:
    source = theirs(form)
    layout = next(layout for layout in LAYOUTS if layout.module is MaxViT)
    back, state = to_layout(mereo.convert(source), layout), source.state_dict()
    assert back.keys() == state.keys() and all(torch.equal(back[name], state[name]) for name in back)


@pytest.mark.long
def test_a_preset_goes_to_timm_and_back() -> None:
    pytest.importorskip("timm")
    model = perturbed(mereo.create_model("maxvit_pico_rw", num_classes=3, img_size=(64, 96)))
    other = mereo.convert(model, to="timm")
    images = torch.randn(1, 3, 64, 96)
    close(other(images), model(images))
    state = mereo.convert(other).state_dict()
    assert all(torch.equal(state[name], tensor) for name, tensor in model.state_dict().items())


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:torch.searchsorted", "ignore:Using a non-tuple sequence")  # inside timm
@pytest.mark.parametrize("form", ["official", "timm", "computed positions"])
def test_images_of_another_size_resize_the_tables_as_in_timm(form: str) -> None:
    source = theirs(form)
    model = mereo.convert(source)
    source.set_input_size((128, 96))
    model.set_input_size((128, 96), (4, 3))
    assert model.image_shape == (3, 128, 96) and model.pretrained_cfg["input_size"] == (3, 128, 96)
    images = torch.randn(1, 3, 128, 96)
    close(model(images), source(images))
    fresh = mereo.convert(source)
    assert fresh.config["args"]["window_size"] is None or fresh.config["args"]["window_size"] == (4, 3)
    close(fresh(images), source(images))


def test_tensors_of_another_size_are_resized_on_the_way() -> None:
    source = theirs("timm", depths=(1, 1, 1))
    arguments = {"num_classes": 7, "widths": (32, 64, 96), "depths": (1, 1, 1), "window_size": (4, 4)}
    model = mereo.convert(source.state_dict(), model="maxvit_tiny_rw", stem_widths=(16, 32), img_size=64, **arguments)
    other = mereo.convert(source)
    other.set_input_size(64, (4, 4))
    assert torch.equal(model(images := torch.randn(1, 3, 64, 64)), other.eval()(images))


def test_other_families_of_timm_are_refused() -> None:
    timm = pytest.importorskip("timm")
    for name in ("test_coatnet", "maxxvit_rmlp_nano_rw_256"):
        with torch.device("meta"):
            source = timm.create_model(name)
        with pytest.raises(UsageError, match=r"mereo converts timm's maxvit_\* networks"):
            mereo.convert(source)


# --- partitions -----------------------------------------------------------------------------------------------------


def test_windows_and_grid_of_sixteen_cells() -> None:
    maps = torch.arange(16.0).view(1, 4, 4, 1)
    windows, grid = (kind((maps.shape[1], maps.shape[2]), (2, 2)).cut(maps) for kind in (Blocks, Spread))
    assert windows[..., 0].tolist() == [[0, 1, 4, 5], [2, 3, 6, 7], [8, 9, 12, 13], [10, 11, 14, 15]]
    assert grid[..., 0].tolist() == [[0, 2, 8, 10], [1, 3, 9, 11], [4, 6, 12, 14], [5, 7, 13, 15]]


@pytest.mark.parametrize(
    ("rows", "columns", "window"), [(6, 4, (3, 2)), (8, 6, (2, 3)), (3, 2, (3, 2)), (6, 6, (2, 2))]
)
def test_partitions_are_undone_and_joined(rows: int, columns: int, window: tuple[int, int]) -> None:
    maps = torch.randn(2, rows, columns, 3)
    blocks, groups = Blocks((rows, columns), window), Spread((rows, columns), window)
    cells = blocks.cut(maps)
    assert torch.equal(blocks.join(cells), maps)
    assert torch.equal(groups.join(groups.cut(maps)), maps)
    cut = cells.unflatten(0, (2, -1))
    expected = groups.cut(maps).unflatten(0, (2, -1))
    assert torch.equal(windows_to_grid(cut, window, rows, columns), expected)
    with torch.no_grad():
        assert torch.equal(windows_to_grid(cut, window, rows, columns), expected)


# --- the network ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("changes", [{}, {"form": "timm", "positions": "network", "layer_scale": 0.5}])
def test_the_folded_network_gives_the_same(changes: dict[str, Any]) -> None:
    model, images = tiny(**changes), torch.randn(2, 3, 32, 32)
    ready = model.fuse()
    assert not any(isinstance(module, nn.BatchNorm2d) for module in ready.modules())
    torch.testing.assert_close(ready(images), model(images), atol=1e-5, rtol=1e-5)


def test_couplings_are_recorded_over_the_whole_map() -> None:
    model = tiny()
    with mereo.record(model) as trace:
        model(torch.randn(2, 3, 32, 32))
    couplings = {name: trace[name] for name in trace if name.endswith("coupling")}
    assert len(couplings) == 4
    assert couplings["stages.0.0.grid.attention.coupling"].shape == (2, 2, 64, 64)
    gates = [name for name in trace if name.endswith("gates")]
    assert len(gates) == 2


def test_images_of_more_windows_run_unchanged_and_others_are_refused() -> None:
    model = tiny()
    assert model.size_step == (32, 32) and model(torch.randn(1, 3, 64, 32)).shape == (1, 3)
    with pytest.raises(UsageError, match=r"\(1, 3, 48, 32\).* a height of 32 or 64"):
        model(torch.randn(1, 3, 48, 32))
    with pytest.raises(UsageError, match=r"img_size is \(230, 224\); .*a height of 224 or 256"):
        outline("maxvit_tiny_tf", img_size=(230, 224))
    with pytest.raises(UsageError, match=r"img_size is \(20, 20\); .*a height of 32 and a width of 32"):
        outline("maxvit_tiny_tf", img_size=20)
    with pytest.raises(UsageError, match=r"multiples of 224 .*a height of 224 or 448"):
        outline("maxvit_tiny_tf", img_size=256, window_size=7)
    assert outline("maxvit_tiny_tf", img_size=448, window_size=7).stages[0][0].grid.attention.window == (7, 7)


def test_at_224_one_pair_of_attentions_covers_every_stage_but_the_first() -> None:
    for stage, side in enumerate((56, 28, 14, 7)):
        model = outline("maxvit_tiny_tf")
        rows = model.stages[stage][0].grid.attention.window[0]
        assert side % rows == 0 and (rows >= side / rows) == (stage > 0)


def test_arguments_that_do_not_fit() -> None:
    for changes, message in (
        ({"depths": (1,)}, r"widths is \(8, 12\) and depths \(1,\)"),
        ({"form": "tf"}, "form is 'tf'"),
        ({"positions": "mlp"}, "positions is 'mlp'"),
        ({"head_dim": 5}, "head_dim 5"),
        ({"drop_path_rate": 1.0}, "drop_path_rate is 1.0"),
        ({"head_hidden_size": 0}, "head_hidden_size is 0"),
    ):
        with pytest.raises(UsageError, match=message):
            tiny(**changes)


def test_tables_of_positions_have_no_weight_decay() -> None:
    model = tiny(form="timm", positions="network")
    assert {name.split(".positions.")[1] for name in model.no_weight_decay()} == {
        "first.weight", "first.bias", "second.weight", "second.bias",
    }  # fmt: skip
    assert len(tiny().no_weight_decay()) == 4


def test_stochastic_depth_rises_and_leaves_out_whole_images() -> None:
    model = tiny(drop_path_rate=0.3, depths=(1, 2))
    blocks = [block for stage in model.stages for block in stage]
    assert [block.grid.drop_path.rate for block in blocks] == pytest.approx([0, 0.15, 0.3])
    assert [block.bottleneck.drop_path.rate for block in blocks] == pytest.approx([0, 0.15, 0.3])
    exchange = blocks[-1].block.train()
    cells = torch.randn(64, 1, 16, 12)
    torch.manual_seed(0)
    changed = (exchange(cells, 4, 4) != cells).flatten(1)
    assert (changed.all(1) | ~changed.any(1)).all() and not changed.all()


def test_classes_of_a_larger_data_set() -> None:
    assert sum(p.numel() for p in outline("maxvit_xlarge_tf", num_classes=21_843).parameters()) == 506_987_643


def test_the_window_of_the_last_stage_is_its_whole_map() -> None:
    model = tiny()
    attention = model.stages[1][0].block.attention
    assert isinstance(attention, BlockAttention) and attention.window == (4, 4)
    cells = torch.randn(1, 1, 16, 12)
    assert windows_to_grid(cells, (4, 4), 4, 4) is cells


def test_layers_start_as_those_of_timm() -> None:
    timm = pytest.importorskip("timm")
    source = timm.create_model("maxvit_pico_rw_256", embed_dim=(32, 64, 64, 96), depths=(1, 1, 1, 1))
    torch.manual_seed(0)
    model = mereo.create_model("maxvit_pico_rw_256", widths=(32, 64, 64, 96), depths=(1, 1, 1, 1))
    copied = mereo.convert(source)
    for (name, ours), theirs in zip(model.named_parameters(), copied.parameters(), strict=True):
        if not name.startswith("head") and ours.numel() >= 32:
            expected = float(theirs.detach().std())
            assert abs(float(ours.detach().std()) - expected) <= 0.5 * expected, name
