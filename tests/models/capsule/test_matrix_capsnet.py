"""Matrix capsules with EM routing: counts, coordinates, viewpoints, the spread loss, public code, black images."""

import math

import pytest
import torch
from torch import Tensor, nn

from mereo import create_model
from mereo.core import record
from mereo.explain import coupling_maps, observe
from mereo.layers.capsules import ConvCapsules
from mereo.models.registry import outline
from mereo.tasks.losses import spread_loss, spread_margin

TINY = {"img_size": 17, "channels": 6, "types": (2, 3, 3), "pose": 2, "padding": 2, "num_classes": 4}


def count(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        ("matrix_capsnet_310k", {"batch_norm": False}, 316_394),
        ("matrix_capsnet_310k", {}, 316_458),
        ("matrix_capsnet_68k", {}, 67_282),
        ("matrix_capsnet_310k", {"num_classes": 10}, 319_028),
    ],
)
def test_counts(name: str, arguments: dict[str, int], expected: int) -> None:
    assert count(outline(name, **arguments)) == expected


def test_sizes_without_padding() -> None:
    model = outline("matrix_capsnet_310k")
    assert [(grid.rows, grid.columns, grid.types) for grid in model.grids] == [(14, 14, 32), (6, 6, 32), (4, 4, 32)]
    assert count(model.first) == 9 * 32 * 32 * 16 + 2 * 32 and count(model.head) == 16 * 32 * 5 + 2 * 5


def test_cells_have_the_centres_of_their_receptive_fields() -> None:
    """A change of one pixel reaches exactly the primary capsules around it."""
    model = create_model("matrix_capsnet_310k", **{**TINY, "batch_norm": False}).eval()
    images = torch.randn(1, 1, 17, 17)
    for grid, layer in zip(model.grids[:1], (model.primary,), strict=True):
        changed = images.clone()
        row, column = 2, 3
        changed[..., int(grid.first + row * grid.step), int(grid.first + column * grid.step)] += 1
        moved = (layer(model.stem(changed).relu())[0] - layer(model.stem(images).relu())[0]).abs().amax((0, 1, 2, 3))
        rows, columns = torch.nonzero(moved, as_tuple=True)
        assert abs(rows.float().mean() - row) <= 0.5 and abs(columns.float().mean() - column) <= 0.5


def test_coordinates_change_two_entries_of_a_vote() -> None:
    torch.manual_seed(0)
    layer = ConvCapsules(2, 3, None, shared=True, size=(4, 4), coordinates=True)
    poses = torch.randn(1, 2, 4, 4, 4, 4)
    moved = layer.votes(poses).dense()
    layer.coordinates = None
    change = (moved - layer.votes(poses).dense()).squeeze(1)
    assert (change.abs() > 1e-5).sum(-1).eq(2).all()
    # Child at row 1 and column 2: cell 6, types innermost.
    torch.testing.assert_close(change[0, 0, 2 * 6, 3].item(), 1.5 / 4, rtol=0, atol=1e-5)
    torch.testing.assert_close(change[0, 0, 2 * 6, 7].item(), 2.5 / 4, rtol=0, atol=1e-5)


def test_a_change_of_viewpoint_changes_the_poses_by_the_same_matrix() -> None:
    torch.manual_seed(0)
    layer = ConvCapsules(2, 3, 3, 2, routing_options={"steps": 1}).double()
    poses, present = torch.randn(2, 2, 4, 4, 7, 7).double(), torch.rand(2, 2, 7, 7).double()
    turn = torch.randn(4, 4).double()
    turned = torch.einsum("ij,btjkyx->btikyx", turn, poses)
    expected = torch.einsum("ij,btjkyx->btikyx", turn, layer(poses, present).pose)
    torch.testing.assert_close(layer(turned, present).pose, expected)


def test_spread_loss_and_its_margins() -> None:
    scores, labels = torch.tensor([[0.5, 0.4, 0.1]]), torch.tensor([0])
    assert spread_loss(scores, labels, 0.2).item() == pytest.approx(0.01)
    assert spread_loss(scores, labels, 0.9).item() == pytest.approx(0.89)
    assert (spread_margin(0, 10), spread_margin(9, 10)) == pytest.approx((0.2, 0.9))
    expected = 0.2 + 0.79 / (1 + math.exp(4))
    assert spread_margin(0, 10, "sigmoid") == pytest.approx(expected)
    assert spread_margin(200_000, 10, "sigmoid") == pytest.approx(0.2 + 0.79 / 2)
    assert spread_margin(10**7, 10, "sigmoid") == pytest.approx(0.2 + 0.79 / (1 + math.exp(-10)))


def public_layer(layer: ConvCapsules, poses: Tensor, present: Tensor) -> tuple[Tensor, Tensor]:
    """A convolution of capsules as public PyTorch code computes it: every window by itself, activations renormalised.

    Shapes: poses (types, 4, 4, rows, columns), present (types, rows, columns).
    """
    options, routing = layer.routing.options, layer.routing
    rows, columns = (
        (side - k) // s + 1 for side, k, s in zip(poses.shape[-2:], layer.kernel, layer.stride, strict=True)
    )
    means, activations = torch.zeros(layer.out_types, 4, 4, rows, columns), torch.zeros(layer.out_types, rows, columns)
    for y in range(rows):
        for x in range(columns):
            top, left = y * layer.stride[0], x * layer.stride[1]
            window = poses[..., top : top + layer.kernel[0], left : left + layer.kernel[1]].permute(3, 4, 0, 1, 2)
            alive = present[:, top : top + layer.kernel[0], left : left + layer.kernel[1]].permute(1, 2, 0).flatten()
            votes = torch.einsum("sij,rsjk->srik", window.flatten(0, 2), layer.weight.flatten(1, 2)).flatten(2)
            if layer.coordinates is not None:
                for offset in range(votes.shape[0]):
                    cell = offset // layer.in_types
                    votes[offset, :, 0] += cell // layer.kernel[1] / poses.shape[-2]
                    votes[offset, :, 1] += cell % layer.kernel[1] / poses.shape[-1]
            share = torch.full(votes.shape[:2], 1 / layer.out_types)
            for temperature in options.temperatures:
                r = share * alive[:, None]
                r = r / (r.sum(1, keepdim=True) + 1e-8)
                total = r.sum(0)
                mean = torch.einsum("sr,srh->rh", r, votes) / total[:, None]
                spread = torch.einsum("sr,srh->rh", r, (votes - mean) ** 2) / total[:, None] + options.variance_floor
                cost = ((routing.beta_use[:, None] + spread.sqrt().log()) * total[:, None]).sum(1)
                active = (temperature * (routing.beta_activation - cost)).sigmoid()
                log_p = -((votes - mean) ** 2 / (2 * spread)) - spread.sqrt().log() - 0.5 * math.log(2 * math.pi)
                share = (log_p.sum(2) + active.log()).softmax(1)
            means[..., y, x], activations[:, y, x] = mean.unflatten(1, (4, 4)), active
    return means, activations


@pytest.mark.parametrize(
    "geometry",
    [
        {"kernel": 3, "stride": 1},
        {"kernel": None, "size": (4, 4), "shared": True, "coordinates": (0, 1), "coordinate_offset": 0.0},
    ],
)
@torch.no_grad()
def test_equals_public_code_under_its_options(geometry: dict[str, int]) -> None:
    torch.manual_seed(0)
    options = {"schedule": "constant", "inverse_temperature": 1e-3, "variance_floor": 1e-8, "renormalise": True}
    layer = ConvCapsules(2, 3, compete="window", routing_options=options, **geometry)
    for beta in (layer.routing.beta_use, layer.routing.beta_activation):
        nn.init.normal_(beta)
    poses, present = torch.randn(1, 2, 4, 4, 4, 4), torch.rand(1, 2, 4, 4)
    parents = layer(poses, present)
    if layer.shared:
        layer.weight.data = layer.weight.unsqueeze(1).expand(-1, layer.offsets, -1, -1, -1)
    means, activations = public_layer(layer, poses[0], present[0])
    torch.testing.assert_close(parents.pose[0], means, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(parents.activation[0], activations, rtol=1e-4, atol=1e-5)


@pytest.mark.long
@pytest.mark.parametrize("batch_norm", [True, False])
def test_hundred_steps_on_black_images(batch_norm: bool) -> None:
    torch.manual_seed(0)
    model = create_model("matrix_capsnet_310k", **{**TINY, "batch_norm": batch_norm})
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    images, labels = torch.zeros(4, 1, 17, 17), torch.arange(4)
    for step in range(100):
        optimizer.zero_grad()
        loss = spread_loss(model(images), labels, spread_margin(step, 100))
        loss.backward()
        optimizer.step()
        assert loss.isfinite()
    assert all(p.isfinite().all() for p in model.parameters())


def test_couplings_of_all_layers_are_shown_over_the_image() -> None:
    torch.manual_seed(0)
    model = create_model("matrix_capsnet_310k", **TINY).eval()
    images = torch.rand(2, 1, 17, 17)
    with record(model) as trace, torch.no_grad():
        model(images)
    sizes = {name: tuple(trace[name].shape) for name in trace}
    assert [len(trace.steps(name)) for name in trace] == [3, 3, 3], "three fits, as published"
    assert sizes == {
        "first.routing.coupling": (2, 1, 3 * 4 * 4, 2 * 9 * 9),
        "second.routing.coupling": (2, 1, 3 * 2 * 2, 3 * 4 * 4),
        "head.routing.coupling": (2, 1, 4, 3 * 2 * 2),
    }
    maps = coupling_maps(observe(model, images))
    assert list(maps) == list(sizes)
    for each in maps.values():
        assert (
            each.heat.shape == (2, 17, 17) and each.heat.isfinite().all() and (each.heat.flatten(1).amax(1) > 0).all()
        )
