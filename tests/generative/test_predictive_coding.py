"""Iterative inference: the closed form, a slow descent from the equations, clamped labels, wrong use."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mereo.errors import MereoError, UsageError
from mereo.generative import predictive_coding
from mereo.generative.predictive_coding import infer, label_energies
from mereo.models import create_model

SMALL = {"num_classes": 4, "img_size": 19, "conv_channels": 6, "primary_types": 3, "primary_dim": 4, "class_dim": 5}


@pytest.fixture
def model():
    """A small network in double precision whose class capsules are neither tiny nor saturated."""
    made = create_model("capsnet_unrouted", **SMALL, decoder=False).double()
    with torch.no_grad():
        made.primary.conv.weight.mul_(6)
        made.head.weight.mul_(3)
    return made


@pytest.fixture
def images():
    return torch.rand(3, 1, 19, 19, dtype=torch.float64)


class Fixed(nn.Module):
    """Class capsules of given values."""

    def __init__(self, poses: Tensor) -> None:
        super().__init__()
        self.poses = poses

    def forward(self, children: Tensor) -> Tensor:
        return self.poses.expand(len(children), -1, -1)


# --- the closed form, with the earlier layers held -----------------------------------------------------------------


@pytest.mark.parametrize("method", ["sgd", "prox"])
@pytest.mark.parametrize(("penalty", "true", "other"), [(0.0, 0.95, 0.15), (1.0, 0.70, 0.0)])
def test_worked_numbers(model, images, method, penalty, true, other):
    u = torch.randn(4, 5, dtype=torch.float64)
    u = u / u.norm(dim=1, keepdim=True) * torch.tensor([[0.9], [0.3], [0.3], [0.3]])
    model.head = Fixed(u)
    found = infer(model, images, torch.zeros(3, dtype=torch.int64), penalty=penalty, method=method, free="class")
    assert found.lengths[:, 0].tolist() == pytest.approx([true] * 3, abs=1e-3)
    if penalty == 0:
        assert found.lengths[0, 1:].tolist() == pytest.approx([other] * 3, abs=1e-3)
    elif method == "prox":
        assert (found.classes[:, 1:] == 0).all()
    else:
        assert found.lengths[:, 1:].max() < 0.02


@pytest.mark.parametrize("penalty", [0.0, 0.3, 1.0])
def test_the_closed_form(model, images, penalty):
    labels = torch.tensor([1, 0, 3])
    with torch.no_grad():
        u = model.capsules(images).pose
    t = F.one_hot(labels, 4)
    expected = ((u.norm(dim=2) + t - penalty / 2) / 2).clamp(min=0)
    found = infer(model, images, labels, penalty=penalty, method="prox", free="class")
    torch.testing.assert_close(found.lengths, expected, rtol=0, atol=1e-3)
    torch.testing.assert_close(found.classes, u * (expected / u.norm(dim=2)).unsqueeze(2), rtol=0, atol=1e-3)
    torch.testing.assert_close(found.primary, model.forward_features(images).detach())


# --- a slow descent, from the equations ----------------------------------------------------------------------------


def slow_squash(s: Tensor) -> Tensor:
    norm = s.norm(dim=-1, keepdim=True)
    return norm**2 / (1 + norm**2) * s / norm


def slow_primary(model: nn.Module, a1: Tensor) -> Tensor:
    maps = F.conv2d(a1, model.primary.conv.weight, model.primary.conv.bias, stride=2)
    rows, columns = maps.shape[2:]
    children = []
    for kind in range(3):
        for row in range(rows):
            for column in range(columns):
                atoms = [maps[0, kind * 4 + d, row, column] for d in range(4)]
                children.append(slow_squash(torch.stack(atoms)))
    return torch.stack(children)


def slow_classes(model: nn.Module, a2: Tensor) -> Tensor:
    votes = [[a2[i] @ model.head.weight[j, i] for i in range(len(a2))] for j in range(4)]
    return torch.stack([slow_squash(torch.stack(row).sum(0)) for row in votes])


def slow_energy(model: nn.Module, image: Tensor, label: int, penalty: float, a: list[Tensor], rectify: bool) -> Tensor:
    hidden = F.conv2d(image, model.conv.weight, model.conv.bias)
    total = ((a[0] - (hidden.relu() if rectify else hidden)) ** 2).sum()
    total = total + ((a[1] - slow_primary(model, a[0])) ** 2).sum() + ((a[2] - slow_classes(model, a[1])) ** 2).sum()
    for j in range(4):
        total = total + (a[2][j].norm() - float(j == label)) ** 2 + penalty * a[2][j].norm()
    return total


@pytest.mark.parametrize(("penalty", "rectify"), [(0.0, True), (0.4, True), (0.4, False)])
def test_equals_a_slow_descent(model, images, penalty, rectify):
    labels, steps, lr = torch.tensor([2, 0, 1]), 4, 0.02
    found = infer(model, images, labels, steps=steps, lr=lr, penalty=penalty, rectify=rectify)
    for place in range(3):
        image = images[place : place + 1]
        with torch.no_grad():
            hidden = F.conv2d(image, model.conv.weight, model.conv.bias)
            a1 = hidden.relu() if rectify else hidden
            a2 = slow_primary(model, a1)
            state = [a1, a2, slow_classes(model, a2)]
        for step in range(steps + 1):
            state = [s.detach().requires_grad_() for s in state]
            energy = slow_energy(model, image, int(labels[place]), penalty, state, rectify)
            assert found.energy[place, step].item() == pytest.approx(energy.item(), rel=1e-9)
            if step < steps:
                gradients = torch.autograd.grad(energy, state)
                state = [s - lr * g for s, g in zip(state, gradients, strict=True)]
        for layer, expected in zip(found[:3], (state[0][0], state[1], state[2]), strict=True):
            torch.testing.assert_close(layer[place], expected.detach())
        torch.testing.assert_close(found.lengths[place], state[2].detach().norm(dim=1))


def test_the_energy_falls_and_every_layer_moves(model, images):
    found = infer(model, images, torch.tensor([0, 1, 2]), steps=200)
    assert (found.energy.diff(dim=1) <= 1e-12).all()
    assert (found.energy[:, -1] < 0.8 * found.energy[:, 0]).all()
    with torch.no_grad():
        assert not torch.allclose(found.hidden, model.conv(images).relu(), atol=1e-6)


@pytest.mark.long
def test_prox_reaches_what_sgd_circles(model, images):
    labels = torch.tensor([0, 1, 2])
    circled = infer(model, images, labels, penalty=1.0)
    reached = infer(model, images, labels, penalty=1.0, method="prox")
    torch.testing.assert_close(reached.lengths, circled.lengths, rtol=0, atol=0.02)
    assert (reached.lengths == 0).any() and not (circled.lengths == 0).any()
    assert (reached.energy[:, -1] <= circled.energy[:, -1] + 1e-9).all()


# --- batches, labels, the model afterwards -------------------------------------------------------------------------


def test_images_do_not_see_each_other(model, images, monkeypatch):
    labels, calls = torch.tensor([3, 1, 0]), []
    whole = infer(model, images, labels, steps=10, penalty=0.5)
    monkeypatch.setattr(predictive_coding, "CHUNK", 2)
    parts = infer(
        model, images, labels, steps=10, penalty=0.5, progress=lambda done, total: calls.append((done, total))
    )
    for a, b in zip(whole, parts, strict=True):
        torch.testing.assert_close(a, b)
    assert calls == [(step, 20) for step in range(1, 21)]


@pytest.mark.parametrize("free", ["all", "class"])
def test_energies_of_labels_are_those_of_inference(model, images, free, monkeypatch):
    monkeypatch.setattr(predictive_coding, "CHUNK", 9)
    how = {"steps": 15, "penalty": 0.5, "free": free}
    found = label_energies(model, images, **how)
    expected = [infer(model, images, torch.full((3,), k), **how).energy[:, -1] for k in range(4)]
    torch.testing.assert_close(found, torch.stack(expected, 1))


@pytest.mark.parametrize("penalty", [0.0, 1.0, 2.0])
def test_with_earlier_layers_held_the_longest_capsule_wins(model, penalty):
    images = torch.rand(12, 1, 19, 19, dtype=torch.float64)
    with torch.no_grad():
        longest = model(images).argmax(1)
    assert len(longest.unique()) > 1
    energies = label_energies(model, images, penalty=penalty, method="prox", free="class", steps=300)
    assert torch.equal(energies.argmin(1), longest)


def test_capsules_of_length_zero_are_no_trouble(model, images):
    nn.init.zeros_(model.head.weight)
    for method in ("sgd", "prox"):
        found = infer(model, images, torch.tensor([0, 1, 2]), steps=5, penalty=1.0, method=method)
        assert all(part.isfinite().all() for part in found)


def test_the_model_is_left_as_it_was(model, images):
    model.train()
    model.conv.weight.requires_grad_(False)
    before = {name: p.clone() for name, p in model.named_parameters()}
    found = infer(model, images, torch.tensor([0, 1, 2]), steps=2)
    assert model.training and not model.conv.weight.requires_grad and model.head.weight.requires_grad
    assert all(torch.equal(p, before[name]) and p.grad is None for name, p in model.named_parameters())
    assert not any(part.requires_grad for part in found)


# --- wrong use -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"steps": 0}, "steps is 0"),
        ({"steps": 2.5}, "steps is 2.5"),
        ({"lr": 0}, "lr is 0"),
        ({"penalty": -1}, "penalty is -1"),
        ({"penalty": float("inf")}, "penalty is inf"),
        ({"method": "adam"}, "method is 'adam'"),
        ({"free": "some"}, "free is 'some'"),
        ({"labels": torch.tensor([0, 1])}, "labels is"),
        ({"labels": torch.tensor([0.0, 1.0, 2.0])}, "labels is"),
        ({"labels": torch.tensor([0, 1, 4])}, "outside 0 .. 3"),
        ({"labels": torch.tensor([0, 1, -1])}, "outside 0 .. 3"),
        ({"images": torch.ones(3, 1, 18, 19)}, "images are"),
        ({"images": torch.rand(0, 1, 19, 19), "labels": torch.zeros(0, dtype=torch.int64)}, "images"),
    ],
    ids=str,
)
def test_wrong_arguments(model, images, arguments, message):
    with pytest.raises(UsageError, match=message):
        infer(model, **{"images": images, "labels": torch.tensor([0, 1, 2]), **arguments})


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("capsnet", {}, "routing_steps=3"),
        ("capsnet", {"routing_steps": 1}, "routing_steps=1"),
        ("capsnet_middle", {"routing_steps": 0}, "middle layer"),
        ("capsnet_unrouted", {"num_classes": 0}, "num_classes is 0"),
        ("efficient_capsnet", {}, "EfficientCapsNet"),
    ],
)
def test_networks_that_do_not_fit(name, arguments, message):
    with torch.device("meta"):
        made = create_model(name, **arguments)
    images = torch.rand(1, 1, 28, 28)
    with pytest.raises(UsageError, match=message):
        infer(made, images, torch.tensor([0]))
    with pytest.raises(UsageError, match=message):
        label_energies(made, images)


@pytest.mark.parametrize("steps", [8, 300])
def test_a_descent_that_diverges_is_an_error(model, images, steps):
    with pytest.raises(MereoError, match="lr 3"):
        infer(model, images, torch.tensor([0, 1, 2]), lr=3, steps=steps)
