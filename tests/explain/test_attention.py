"""Attention as maps: which couplings count, rows and rollout against whole matrices, and layers of several sizes."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from torch import Tensor, nn

import mereo
from attention_nets import LateTokenNet, TokenNet, WindowNet
from mereo.core.topology import Blocks
from mereo.explain import (
    attention_layers,
    attention_rollout,
    class_attention,
    draw_attention,
    draw_explanation,
    explain,
    observe,
    write_explanations,
)
from mereo.explain.attention_layers import cells_of
from mereo.explain.attention_pictures import _draw_spectrum, _gate_maps, chosen_layers, why_no_attention
from mereo.explain.folder import why_not
from mereo.mechanisms.gate import SqueezeExcite
from mereo.mechanisms.mixer import SpectralGating
from mereo.models import VisionModel
from mereo.models.plain.own import as_vision_model
from mereo.pictures import new_figure
from plain_cnn import PlainCNN, registered

NETS = {"token": TokenNet, "late token": LateTokenNet, "windows": WindowNet}


def make(kind: str, **arguments: object) -> VisionModel:
    torch.manual_seed(0)
    model: VisionModel = NETS[kind](**arguments)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model.double().eval()


def images_of(model: VisionModel, count: int = 2) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.rand(count, *model.image_shape, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("kind", NETS)
def test_layers_with_places_are_in_the_order_of_the_network(kind: str) -> None:
    model = make(kind, img_size=(32, 48))
    layers = attention_layers(observe(model, images_of(model)))
    expected = {
        "token": ["blocks.0.coupling", "blocks.1.coupling", "blocks.2.coupling"],
        "late token": ["blocks.0.coupling", "blocks.1.coupling", "blocks.2.coupling"],
        "windows": ["first.0.coupling", "first.1.coupling", "second.0.coupling", "second.1.coupling"],
    }[kind]
    assert [layer.name for layer in layers] == expected
    assert (layers[0].senders.rows, layers[0].senders.columns, layers[0].senders.step) == (8, 12, 4.0)
    assert layers[0].senders.prefix == (kind == "token")
    assert layers[-1].has_class_token == (kind != "windows")
    if kind == "windows":
        assert (layers[-1].senders.rows, layers[-1].senders.columns, layers[-1].senders.step) == (4, 6, 8.0)


@pytest.mark.parametrize("kind", NETS)
def test_rows_are_those_of_the_map_over_the_whole_image(kind: str) -> None:
    model = make(kind)
    for layer in attention_layers(observe(model, images_of(model))):
        assert layer.call.couplings is not None
        whole = layer.call.placed(layer.call.couplings)
        wanted = torch.tensor([0, layer.num_receivers - 1])
        row, reach = layer.rows(wanted)
        torch.testing.assert_close(row, whole[torch.arange(2), :, wanted])
        assert reach.eq((row > 0).any(1)).all()
        weights = torch.rand(2, layer.num_receivers, dtype=torch.float64)
        expected = torch.zeros(2, layer.num_senders, dtype=torch.float64)
        mean = whole.mean(1).clamp(min=0)
        for image in range(2):
            for r in range(layer.num_receivers):
                for s in range(layer.num_senders):
                    expected[image, s] += weights[image, r] * mean[image, r, s] / mean[image, r].sum()
        torch.testing.assert_close(layer.pull(weights), expected)


def test_rollout_of_equal_layers_is_the_product_of_the_paper() -> None:
    model = make("token")
    observation = observe(model, images_of(model))
    product = torch.eye(65, dtype=torch.float64).expand(2, 65, 65)
    for name in observation.trace:
        mixed = 0.5 * observation.trace[name].mean(1) + 0.5 * torch.eye(65, dtype=torch.float64)
        product = mixed / mixed.sum(-1, keepdim=True) @ product
    found = attention_rollout(observation)
    assert found is not None and len(found.layers) == 3
    expected = product[:, 0, 1:] / product[:, 0, 1:].sum(1, keepdim=True)
    torch.testing.assert_close(found.cells.flatten(1), expected)


def test_rollout_of_a_late_class_token_reaches_the_patches_through_its_layer() -> None:
    model = make("late token")
    observation = observe(model, images_of(model))
    eye = torch.eye(64, dtype=torch.float64)
    first, second, last = (observation.trace[f"blocks.{i}.coupling"].mean(1) for i in range(3))
    # The token has nothing of the image before its layer: what it takes from itself leads to no place.
    row = last[:, :, 1:] @ ((second + eye) / 2) @ ((first + eye) / 2)
    found = attention_rollout(observation)
    assert found is not None
    torch.testing.assert_close(found.cells.flatten(1), (row / row.sum(-1, keepdim=True)).squeeze(1))
    (of_class,) = class_attention(observation)
    torch.testing.assert_close(of_class.cells.flatten(2), observation.trace["blocks.2.coupling"][:, :, 0, 1:])


def test_rollout_of_windows_over_two_sizes() -> None:
    model = make("windows")
    observation = observe(model, images_of(model))
    weights = torch.full((2, 1, 16), 1 / 16, dtype=torch.float64)
    for name in ("second.1", "second.0"):
        weights = weights @ (observation.trace[f"{name}.coupling"].mean(1) + torch.eye(16, dtype=torch.float64)) / 2
    fine = weights.view(2, 4, 4).repeat_interleave(2, 1).repeat_interleave(2, 2).reshape(2, 1, 64) / 4
    for name in ("first.1", "first.0"):
        fine = fine @ (observation.trace[f"{name}.coupling"].mean(1) + torch.eye(64, dtype=torch.float64)) / 2
    found = attention_rollout(observation)
    assert found is not None and found.cells.shape == (2, 8, 8)
    torch.testing.assert_close(found.cells.reshape(2, 1, 64), fine)
    torch.testing.assert_close(found.cells.sum((1, 2)), torch.ones(2, dtype=torch.float64))
    assert class_attention(observation) == []


def test_padding_of_windows_counts_for_nothing() -> None:
    model = make("windows")
    observation = observe(model, images_of(model))
    (layer, *_) = attention_layers(observation)
    assert layer.call.couplings is not None
    tiles = Blocks((7, 5), (4, 4)).tiles()
    padded = replace(layer, call=replace(layer.call, tiles=tiles), senders=layer.senders)
    assert tiles.count == 4 and padded.num_senders == 35
    pulled = padded.pull(torch.ones(2, 35, dtype=torch.float64))
    torch.testing.assert_close(pulled.sum(1), torch.full((2,), 35.0, dtype=torch.float64))
    row, reach = padded.rows(torch.tensor([34, 0]))
    assert reach.sum(1).tolist() == [3, 16] and row.shape == (2, 2, 35)


@pytest.mark.parametrize(
    ("count", "sides", "grid"),
    [(64, (32, 32), (8, 8)), (96, (32, 48), (8, 12)), (50, (32, 32), None), (3, (32, 32), None), (65, (32, 32), None)],
)
def test_a_grid_follows_from_a_number_only_if_its_cells_are_squares(
    count: int, sides: tuple[int, int], grid: tuple[int, int] | None
) -> None:
    found = cells_of(count, *sides)
    assert (None if found is None else (found.rows, found.columns)) == grid


def test_attention_between_channels_and_networks_without_any_have_no_rollout() -> None:
    model = PlainCNN().eval()
    observation = observe(model, torch.rand(2, 3, 16, 16))
    assert attention_layers(observation) == [] and attention_rollout(observation) is None
    assert class_attention(observation) == []


@pytest.mark.parametrize("pooling", ["token", "avg"])
def test_rollout_with_registers_starts_where_the_network_reads_its_tokens(pooling: str) -> None:
    torch.manual_seed(0)
    model = mereo.create_model("timm:vit_small_patch16_dinov3", img_size=64).double().eval()
    model.network.global_pool = pooling
    observation = observe(model, images_of(model))
    assert [layer.senders.prefix for layer in attention_layers(observation)] == [5] * 12
    product = torch.eye(21, dtype=torch.float64)
    for couplings in observation.trace.values():
        product = (couplings.mean(1) + torch.eye(21, dtype=torch.float64)) / 2 @ product
    rows = product[:, :1] if pooling == "token" else product[:, 5:]
    expected = rows.mean(1)[:, 5:]
    found = attention_rollout(observation)
    assert found is not None
    torch.testing.assert_close(found.cells.flatten(1), expected / expected.sum(1, keepdim=True))


def test_windows_that_are_not_placed_have_no_rollout() -> None:
    model = mereo.create_model("timm:swin_tiny_patch4_window7_224", img_size=64).eval()
    observation = observe(model, torch.rand(2, 3, 64, 64))
    placed = {layer.call.scores.shape[-1] for layer in attention_layers(observation)}
    assert len(observation.trace) == 12 and placed == {4, 16}, "in the last two stages one window is the whole image"
    assert attention_rollout(observation) is None


# --- pictures -------------------------------------------------------------------------------------------------------


def read(path: Path) -> Tensor:
    with Image.open(path) as image:
        return torch.from_numpy(np.array(image.convert("RGB"))).float()


@pytest.mark.long
@pytest.mark.parametrize("kind", NETS)
def test_the_explanation_has_columns_of_attention(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mereo.explain.uniform_test.LEAST", 0)
    model = make(kind, img_size=(32, 48))
    images = images_of(model)
    explanation = explain(model, images)
    names = ["rollout"] if kind == "windows" else ["class attention", "rollout"]
    assert list(explanation.attention) == names and explanation.maps == {}
    assert (
        explanation.trace_shapes.items()
        >= {
            layer.name: (2, 2, layer.num_receivers, layer.num_senders)
            for layer in attention_layers(observe(model, images))
        }.items()
    )
    plain = read(draw_explanation(PlainCNN(4, img_size=(32, 48)).eval(), images.float(), tmp_path / "plain.png"))
    drawn = read(draw_explanation(model, images, tmp_path / "drawn.png"))
    assert drawn.shape[1] > plain.shape[1] + 120 * len(names)


@pytest.mark.parametrize("kind", NETS)
def test_a_picture_of_attention(kind: str, tmp_path: Path) -> None:
    model = make(kind)
    pixels = read(draw_attention(model, images_of(model), tmp_path / "a.png", number=1, title="a $name$ <b>"))
    assert pixels.shape[0] > 300 and pixels.std() > 20
    other = read(draw_attention(model, images_of(model), tmp_path / "b.png", number=1, place=(30.0, 2.0)))
    assert kind == "late token" or not torch.equal(pixels[80:], other[80:])


def test_windows_of_other_networks_are_drawn_only_where_their_places_are_known(tmp_path: Path) -> None:
    sizes = {"img_size": 32, "patch_size": 4, "window_size": 5, "embed_dim": 12, "depths": (1, 1), "num_heads": (1, 1)}
    network = timm.create_model(
        "swin_tiny_patch4_window7_224", num_classes=4, **sizes
    )  # one window in the second stage
    model, images = as_vision_model(network, (32, 32)).eval(), torch.rand(1, 3, 32, 32)
    layers = attention_layers(observe(model, images))
    assert [layer.name for layer in layers] == ["network.layers.1.blocks.0.attn.coupling"]
    drawn = read(draw_attention(model, images, tmp_path / "middle.png"))
    middle = read(draw_attention(model, images, tmp_path / "place.png", place=(16.0, 16.0)))
    torch.testing.assert_close(drawn, middle)
    margin = drawn[:, -4:]
    assert (margin == drawn[0, 0]).all(), "the caption must end within the picture"


def test_layers_of_every_kind_are_drawn() -> None:
    model = make("windows")
    layers = attention_layers(observe(model, images_of(model)))
    assert [layer.name for layer in chosen_layers(layers)] == [layer.name for layer in layers]
    assert [layer.name for layer in chosen_layers(layers, 2)] == ["second.0.coupling", "second.1.coupling"]
    deep = attention_layers(observe(make("token", depth=24), torch.rand(1, 3, 32, 32, dtype=torch.float64)))
    names = [int(layer.name.split(".")[1]) for layer in chosen_layers(deep, 6)]
    assert names == [3, 7, 11, 15, 19, 23]


def test_zero_images_and_half_precision_are_drawn(tmp_path: Path) -> None:
    model = make("windows").to(torch.bfloat16)
    images = torch.zeros(1, *model.image_shape, dtype=torch.bfloat16)
    found = attention_rollout(observe(model, images))
    assert found is not None and found.cells.isfinite().all()
    assert read(draw_attention(model, images, tmp_path / "a.png")).std() > 0


class Filter(nn.Module):
    """A filter that keeps low frequencies."""

    def spectrum(self) -> Tensor:
        away = torch.linspace(-2, 2, 9)
        return (-(away[:, None] ** 2) - away[None] ** 2).exp().expand(4, 9, 9)


def test_gates_and_filters_are_drawn_where_there_is_no_attention(tmp_path: Path) -> None:
    model = PlainCNN().eval()
    images = torch.rand(1, 3, 16, 16)
    assert "PlainCNN" in str(why_no_attention(model))
    alone = read(draw_attention(model, images, tmp_path / "none.png"))
    model.filter = Filter()
    assert why_no_attention(model) is None
    with_filter = read(draw_attention(model, images, tmp_path / "filter.png"))
    model.stages.append(SqueezeExcite(12, 4))
    model.feature_info = [*model.feature_info, {"num_chs": 12, "reduction": 8, "module": "stages.3"}]
    with_gates = read(draw_attention(model, images, tmp_path / "gates.png"))
    inks = [int((pixels < 250).sum()) for pixels in (alone, with_filter, with_gates)]
    assert inks[0] + 1000 < inks[1] and inks[1] + 1000 < inks[2]


@pytest.mark.parametrize("size", [(4, 6), (5, 7), (8, 5)])
def test_the_ticks_of_a_filter_are_at_frequency_zero(size: tuple[int, int]) -> None:
    gating = SpectralGating(3, size)
    with torch.no_grad():
        gating.filter.zero_()[0, 0] = 1.0
    axes = new_figure(2, 2).add_subplot()
    _draw_spectrum(axes, gating.spectrum(), "gating")
    assert divmod(int(gating.spectrum()[0].argmax()), size[1]) == (axes.get_yticks()[0], axes.get_xticks()[0])


def test_gates_of_places_are_drawn_over_the_image() -> None:
    torch.manual_seed(0)
    model = mereo.create_model("ninformer_cifar", num_classes=3).eval()
    observation = observe(model, torch.rand(2, 3, 32, 32))
    maps = _gate_maps(observation, 1)
    assert [name for name, _, _ in maps] == [f"stages.{i}.gate" for i in range(4)]
    name, cells, grid = maps[0]
    assert (grid.rows, grid.columns, grid.step) == (8, 8, 4.0)
    torch.testing.assert_close(cells.flatten()[9], observation.trace[f"{name}.gates"][1, 9].abs().mean())


@pytest.mark.long
def test_the_folder_has_a_picture_of_attention_for_each_image(tmp_path: Path) -> None:
    model = make("token").float()
    batches = [(["one.png", "two.png"], images_of(model).float())]
    written = write_explanations(model, batches, tmp_path, kinds=("picture", "attention"))
    assert [path.name for path in written["attention"]] == ["0001-one.png", "0002-two.png"]
    assert {*why_not(model)} == {"trees", "sweeps"} and "attention" in why_not(mereo.create_model("mspcaps_tiny"))


@pytest.mark.long
def test_the_capsule_head_is_explained_with_the_attention_of_its_backbone(tmp_path: Path) -> None:
    with registered("late_token", module=LateTokenNetWithStages):
        model = mereo.create_model(
            "mspcaps_head", backbone="late_token", out_indices=(-1,), cells=(4,), pose_dims=(4,), img_size=32
        ).eval()
        images = torch.rand(2, 3, 32, 32)
        explanation = explain(model, images)
        assert list(explanation.maps) == ["head.coupling"] and list(explanation.attention) == ["rollout"]
        assert explanation.contribution_map is not None
        written = write_explanations(model, [(["a", "b"], images)], tmp_path, kinds=("picture", "attention", "trees"))
        assert all(read(path).std() > 10 for paths in written.values() for path in paths)


class LateTokenNetWithStages(LateTokenNet):
    """Its patches as a stage, so that it is a backbone."""

    def __init__(self, num_classes: int = 4, in_chans: int = 3, img_size: int = 32) -> None:
        super().__init__(num_classes, in_chans, img_size)
        self.feature_info = [{"num_chs": 16, "reduction": 4, "module": "blocks.1"}]

    def stage(self, index: int, inputs: Tensor) -> Tensor:
        tokens = self.patches(inputs).flatten(2).mT + self.positions
        for block in list(self.blocks)[:-1]:
            tokens = tokens + block(self.norm(tokens))
        return tokens.mT.unflatten(2, (8, 8))


def test_what_a_mask_rules_out_is_out_of_reach() -> None:
    model = make("windows")
    (layer, *_) = attention_layers(observe(model, images_of(model)))
    mask = torch.ones(layer.call.scores.shape[0], 1, 1, 16, dtype=torch.bool)
    mask[..., 3] = False
    masked = replace(layer, call=replace(layer.call, mask=mask))
    _, reach = masked.rows(torch.tensor([0, 63]))
    _, free = layer.rows(torch.tensor([0, 63]))
    assert free.sum(1).tolist() == [16, 16] and reach.sum(1).tolist() == [15, 15]
    assert not reach[0, 3] and not reach[1, 39]
    scores = layer.call.scores.clone()
    scores[..., 3] = torch.finfo(scores.dtype).min
    biased = replace(layer, call=replace(layer.call, scores=scores))
    assert biased.rows(torch.tensor([0, 63]))[1].equal(reach)
