"""Attention as maps: which couplings count, rows and rollout against whole matrices, and layers of several sizes."""

import pytest
import torch
from torch import Tensor

from attention_nets import LateTokenNet, TokenNet, WindowNet
from mereo.core.tiles import window_tiles
from mereo.explain import attention_layers, attention_rollout, class_attention, observe
from mereo.explain.attention_layers import cells_of
from mereo.models import VisionModel

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
    from dataclasses import replace

    tiles = window_tiles(7, 5, (4, 4))
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
    from plain_cnn import PlainCNN

    model = PlainCNN().eval()
    observation = observe(model, torch.rand(2, 3, 16, 16))
    assert attention_layers(observation) == [] and attention_rollout(observation) is None
    assert class_attention(observation) == []
