"""Capsules with variational Bayes routing: counts, maps, coordinates, black images, options."""

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import mereo
from mereo import create_model
from mereo.errors import UsageError
from mereo.explain import explain
from mereo.models import VariationalCapsNet
from mereo.models.registry import outline

SMALL: dict[str, Any] = {"channels": 6, "types": (2, 3, 3), "side": 2, "num_classes": 4, "img_size": 19}


def count(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


@pytest.mark.parametrize(
    ("name", "arguments", "parameters"),
    [
        ("variational_capsnet_small", {}, 68_714),
        ("variational_capsnet_base", {}, 244_682),
        ("variational_capsnet_base", {"types": (16, 16, 16), "num_classes": 10}, 97_172),
        ("variational_capsnet_tiny", {}, 206_154),
    ],
)
def test_counts_of_the_authors_code(name: str, arguments: dict[str, Any], parameters: int) -> None:
    assert count(outline(name, **arguments)) == parameters


@pytest.mark.parametrize(("channels", "types", "classes"), [(6, (2, 3, 5), 4), (3, (1, 2, 1), 2)])
def test_formula_of_the_counts(channels: int, types: tuple[int, int, int], classes: int) -> None:
    b, c, d = types
    expected = 25 * 3 * channels + 2 * channels + 17 * channels * b + 4 * b
    expected += 9 * 16 * (b * c + c * d) + 2 * (c + d) + 16 * d * classes + 2 * classes
    assert (
        count(outline("variational_capsnet_base", in_chans=3, channels=channels, types=types, num_classes=classes))
        == expected
    )


def test_maps_of_the_paper() -> None:
    assert [(grid.rows, grid.columns) for grid in outline("variational_capsnet_base").grids] == [
        (14, 14),
        (6, 6),
        (4, 4),
    ]
    assert [(grid.rows, grid.columns) for grid in outline("variational_capsnet_tiny").grids] == [(6, 6)]


def some(**arguments: Any) -> VariationalCapsNet:
    torch.manual_seed(0)
    return create_model("variational_capsnet_base", **{**SMALL, **arguments})


def test_norms_of_the_primary_capsules() -> None:
    model, features = some().train(), torch.randn(4, 6, 5, 4)
    capsules = model.primary(features)
    made = F.conv2d(features, model.primary.conv.weight)
    for kind in range(2):
        poses, active = made[:, 4 * kind : 4 * kind + 4], made[:, 8 + kind]
        expected = (poses - poses.mean()) / (poses.var(correction=0) + 1e-5).sqrt()
        torch.testing.assert_close(capsules.pose[:, kind].flatten(1, 2), expected)
        expected = (active - active.mean()) / (active.var(correction=0) + 1e-5).sqrt()
        torch.testing.assert_close(capsules.activation[:, kind], expected.sigmoid())


@pytest.mark.parametrize("coordinates", ["paper", "released"])
@torch.no_grad()
def test_coordinates_are_added_to_two_entries_of_the_votes_for_the_classes(coordinates: str) -> None:
    model = some(coordinates=coordinates).eval()
    capsules = model.forward_features(torch.rand(1, 2, 19, 19))
    rows, columns = capsules.pose.shape[-2:]
    votes = model.head.votes(capsules.pose).dense()[0, 0].unflatten(1, (rows, columns, 3))
    for row in range(rows):
        for column in range(columns):
            for kind in range(3):
                plain = (capsules.pose[0, kind, ..., row, column] @ model.head.weight[1, kind]).flatten()
                places = (row + 1) / (10 * rows), (column + 1) / (10 * columns)
                added = torch.tensor([0, places[0], 0, places[1]] if coordinates == "paper" else [0, 0.1, 0, 0.1])
                torch.testing.assert_close(votes[1, row, column, kind], plain + added)


@torch.no_grad()
def test_scores() -> None:
    images = torch.rand(3, 2, 19, 19)
    model, evidence = some().eval(), some(scores="evidence").eval()
    evidence.load_state_dict(model.state_dict())
    torch.testing.assert_close(evidence(images).sigmoid(), model(images))
    assert (model.score_kind, evidence.score_kind) == ("activations", "logits")
    certain = F.cross_entropy(torch.eye(5)[:1], torch.zeros(1, dtype=torch.int64))
    assert certain.item() == pytest.approx(0.9048, abs=1e-4) == pytest.approx(math.log(1 + 4 / math.e), abs=1e-4)


def test_one_image_in_training_keeps_its_axes() -> None:
    model = some().train()
    capsules = model.capsules(torch.rand(1, 2, 19, 19))
    assert capsules.pose.shape == (1, 4, 4) and capsules.activation.shape == (1, 4)
    assert capsules.pose.isfinite().all()


@torch.no_grad()
def test_couplings_are_shown_over_the_maps() -> None:
    model, images = some().eval(), torch.rand(2, 2, 19, 19)
    with mereo.record(model) as trace:
        model(images)
    assert trace["layers.0.routing.coupling"].shape == (2, 1, 3 * 3 * 3, 2 * 8 * 8)
    assert trace["head.routing.coupling"].shape[2] == 4
    assert [len(trace.steps(name)) for name in trace] == [3, 3, 3], "three fits, as published"
    assert explain(model, images).scores.shape == (2, 4)


@pytest.mark.long
@pytest.mark.parametrize("covariance", ["diagonal", "full"])
def test_a_hundred_steps_on_black_images(covariance: str) -> None:
    model = some(covariance=covariance).train()
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(100):
        loss = F.cross_entropy(model(torch.zeros(4, 2, 19, 19)), torch.arange(4))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss.isfinite() and all(p.isfinite().all() for p in model.parameters())


@torch.no_grad()
def test_starts_of_the_transforms() -> None:
    weight = outline_of(some(types=(8, 16, 16), side=4))
    bound = (6 / ((8 + 16) * 9 * 16)) ** 0.5
    assert bound * 0.98 < weight.abs().max() <= bound
    model = some(types=(8, 16, 16), side=4, channels=32)
    # Classes share their transforms, so that a child counts once; poses and activations start apart.
    bounds = [
        (model.head.weight, 6 / ((16 + 4) * 16)), (model.stem[0].weight, 6 / (2 * 25)),
        (model.primary.conv.weight[:128], 6 / (32 + 128)), (model.primary.conv.weight[128:], 6 / (32 + 8)),
    ]  # fmt: skip
    for started, square in bounds:
        assert 0.95 * square**0.5 < started.abs().max() <= square**0.5
    noisy = outline_of(some(init="noisy_identity")) - 0.1 * torch.eye(2)
    assert noisy.min() >= 0 and noisy.max() <= 0.01


def outline_of(model: VariationalCapsNet) -> Tensor:
    weight: Tensor = model.layers[0].weight
    return weight


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"types": (2, 3)}, "types is"),
        ({"img_size": 12}, "at least 17"),
        ({"types": (3,), "img_size": 8}, "at least 9"),
        ({"scores": "odds"}, "scores is 'odds'"),
        ({"init": "zeros"}, "init is 'zeros'"),
        ({"coordinates": "none"}, "coordinates is 'none'"),
    ],
)
def test_wrong_arguments(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        some(**arguments)
