"""CapsNet against the paper: counts, order of channels and children, padding, options, start."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mereo import create_model
from mereo.models import CapsNet, CapsuleClassifier
from mereo.training.recipes import apply_recipe

SMALL = {"conv_channels": 8, "primary_types": 3, "primary_dim": 4, "class_dim": 5}


def count(module: nn.Module | None) -> int:
    return 0 if module is None else sum(p.numel() for p in module.parameters())


@pytest.mark.parametrize(
    ("name", "arguments", "encoder", "decoder"),
    [
        ("capsnet", {}, 6_804_224, 1_411_344),
        ("capsnet", {"capsule_bias": True}, 6_804_384, 1_411_344),
        ("capsnet", {"learned_prior": True}, 6_815_744, 1_411_344),
        ("capsnet", {"decoder": False}, 6_804_224, 0),
        ("capsnet_mnist", {}, 6_804_224, 1_411_344),
        ("capsnet_mnist_r1", {}, 6_804_224, 1_411_344),
        ("capsnet_unrouted", {}, 6_804_224, 1_411_344),
        ("capsnet_32", {}, 7_992_576, 3_756_544),
        ("capsnet_multimnist", {}, 9_425_664, 1_936_144),
        ("capsnet_cifar", {}, 22_476_448, 0),
        ("capsnet_middle", {}, 3_285_632, 1_411_344),
        ("capsnet_middle", {"learned_prior": True}, 3_295_008, 1_411_344),
    ],
)
def test_counts_of_the_paper(name: str, arguments: dict[str, Any], encoder: int, decoder: int) -> None:
    with torch.device("meta"):
        model = create_model(name, **arguments)
    assert count(model.decoder) == decoder
    assert count(model) - decoder == encoder


def test_counts_of_the_parts() -> None:
    with torch.device("meta"):
        model = create_model("capsnet")
    assert (count(model.conv), count(model.primary), count(model.head)) == (20_992, 5_308_672, 1_474_560)


@pytest.mark.parametrize(
    ("name", "arguments", "children"),
    [
        ("capsnet", {}, 1152),
        ("capsnet_32", {}, 2048),
        ("capsnet_multimnist", {}, 3200),
        ("capsnet", {"img_size": 40}, 4608),
        ("capsnet_cifar", {}, 9216),
        ("capsnet", {"img_size": 17}, 32),
        ("capsnet", {"img_size": (17, 30)}, 32 * 7),
        ("capsnet", {"img_size": 5, "padding": "same"}, 32 * 9),
    ],
)
def test_number_of_children(name: str, arguments: dict[str, Any], children: int) -> None:
    small = {**arguments, "conv_channels": 4}
    model = create_model(name, **small).eval()
    assert model.senders == model.head.weight.shape[1] == children
    features = model.forward_features(torch.rand(1, *model.image_shape))
    assert features.shape == (1, children, 8)
    assert model(torch.rand(2, *model.image_shape)).shape == (2, 10)


def test_presets() -> None:
    with torch.device("meta"):
        made = {n: create_model(n) for n in ("capsnet", "capsnet_mnist_r1", "capsnet_unrouted", "capsnet_cifar",
                                             "capsnet_smallnorb", "capsnet_svhn", "capsnet_multimnist")}  # fmt: skip
    assert [m.head.steps for m in made.values()] == [3, 1, 0, 3, 3, 3, 3]
    assert made["capsnet"].conv.weight.shape == (256, 1, 9, 9) and made["capsnet"].conv.stride == (1, 1)
    assert made["capsnet"].primary.conv.weight.shape == (256, 256, 9, 9)
    assert made["capsnet"].primary.conv.stride == (2, 2)
    assert made["capsnet"].head.weight.shape == (10, 1152, 8, 16)
    assert made["capsnet_unrouted"].head.coupling.normaliser == "none"
    assert made["capsnet_cifar"].head.coupling.normaliser == "leaky_softmax"
    assert made["capsnet_cifar"].grid == (12, 12) and made["capsnet_cifar"].decoder is None
    assert made["capsnet_smallnorb"].image_shape == (2, 32, 32) and made["capsnet_smallnorb"].num_classes == 5
    assert made["capsnet_svhn"].head.weight.shape == (10, 16 * 64, 6, 8)
    assert made["capsnet_multimnist"].image_shape == (1, 36, 36)


@pytest.mark.parametrize(
    ("name", "weight", "augment"),
    [("paper", 0.0005, ("shift=2",)), ("cifar", 0.0, ("none",)), ("multimnist", 0.0005, ("none",))],
)
def test_recipes_of_the_authors_code(name: str, weight: float, augment: tuple[str, ...]) -> None:
    config = apply_recipe(f"capsnet_{name}")
    assert (config.optimizer, config.lr, config.batch_size, config.weight_decay) == ("adam", 1e-3, 128, 0.0)
    rate = (config.schedule, config.decay_rate, config.decay_steps, config.min_lr, config.warmup_epochs)
    assert rate == ("exponential", 0.96, 2000, 1e-6, 0.0)
    assert (config.reconstruction_weight, config.augment) == (weight, augment)
    if name == "paper":  # 60,000 images are 469 batches, and the authors train for 300,000 steps
        assert abs(config.epochs * 469 - 300_000) < 469


# --- a slow forward, from the equations -----------------------------------------------------------------------------


def slow_squash(s: Tensor) -> Tensor:
    norm = s.norm(dim=-1, keepdim=True)
    return norm**2 / (1 + norm**2) * s / norm


def slow_children(model: CapsuleClassifier, images: Tensor) -> Tensor:
    """Children by type, then row, then column; channel type * 8 + atom of the convolution is an atom."""
    arguments = model.config["args"]
    types, dim = arguments["primary_types"], arguments["primary_dim"]
    features = F.conv2d(images, model.conv.weight, model.conv.bias).relu()
    maps = F.conv2d(features, model.primary.conv.weight, model.primary.conv.bias, stride=2)
    children = []
    for kind in range(types):
        for row in range(maps.shape[2]):
            for column in range(maps.shape[3]):
                atoms = [maps[:, kind * dim + atom, row, column] for atom in range(dim)]
                children.append(slow_squash(torch.stack(atoms, -1)))
    return torch.stack(children, 1)


def slow_classes(model: CapsuleClassifier, children: Tensor, routing: nn.Module | None = None) -> Tensor:
    arguments, routing = model.config["args"], routing or model.head
    weight, steps = routing.weight, arguments["routing_steps"]
    parents = weight.shape[0]
    votes = torch.einsum("bid,jide->bije", children, weight)
    b = torch.zeros(votes.shape[:3], dtype=votes.dtype)
    bias = torch.zeros(parents, weight.shape[3], dtype=votes.dtype)
    if arguments["learned_prior"]:
        b = b + routing.prior.T
    if arguments["capsule_bias"]:
        bias = routing.bias
    if steps == 0:
        c = torch.full_like(b, 1.0 if arguments["coupling"] == "unit" else 1 / parents)
        return slow_squash((c.unsqueeze(-1) * votes).sum(1) + bias)
    for _ in range(steps):
        e = b.exp()
        c = e / (e.sum(2, keepdim=True) + (1 if arguments["leaky"] else 0))
        v = slow_squash((c.unsqueeze(-1) * votes).sum(1) + bias)
        b = b + (votes * v.unsqueeze(1)).sum(-1)
    return v


@torch.no_grad()
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"routing_steps": 1},
        {"routing_steps": 5},
        {"routing_steps": 0},
        {"routing_steps": 0, "coupling": "uniform"},
        {"leaky": True, "capsule_bias": True},
        {"learned_prior": True},
        {"detach_routing": True},
    ],
    ids=str,
)
def test_equals_the_equations(options: dict[str, Any]) -> None:
    model = create_model("capsnet", num_classes=4, img_size=(20, 23), in_chans=2, **SMALL, **options).double().eval()
    for parameter in model.head.parameters():
        parameter.add_(torch.randn_like(parameter))
    images = 5 * torch.randn(2, 2, 20, 23, dtype=torch.float64)
    children = model.forward_features(images)
    torch.testing.assert_close(children, slow_children(model, images), rtol=1e-6, atol=1e-9)
    expected = slow_classes(model, children)
    capsules = model.capsules(images)
    torch.testing.assert_close(capsules.pose, expected, rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(model(images), expected.norm(dim=-1), rtol=1e-6, atol=1e-7)


@torch.no_grad()
@pytest.mark.parametrize("options", [{}, {"routing_steps": 0}, {"routing_steps": 4, "learned_prior": True}], ids=str)
def test_a_middle_layer_routes_as_the_classes_do(options: dict[str, Any]) -> None:
    made = create_model("capsnet_middle", num_classes=4, img_size=21, **{**SMALL, "middle_capsules": 6}, **options)
    model = made.double().eval()
    for parameter in (*model.middle.parameters(), *model.head.parameters()):
        parameter.add_(torch.randn_like(parameter))
    images = 5 * torch.randn(2, 1, 21, 21, dtype=torch.float64)
    children = slow_children(model, images)
    assert (model.senders, model.num_features) == (6, 48)
    middle = slow_classes(model, children, model.middle)
    torch.testing.assert_close(model.forward_features(images), middle, rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(model.capsules(images).pose, slow_classes(model, middle), rtol=1e-6, atol=1e-9)
    assert model.middle.coupling.senders is not None and model.head.coupling.senders is None


def test_detaching_changes_gradients_and_nothing_else() -> None:
    def model(detach: bool) -> CapsuleClassifier:
        torch.manual_seed(0)
        made = create_model("capsnet", img_size=19, **SMALL, decoder=False, detach_routing=detach)
        nn.init.normal_(made.head.weight)
        return made

    plain, detached = model(False), model(True)
    images = 5 * torch.rand(2, 1, 19, 19)
    torch.testing.assert_close(detached(images), plain(images))
    for m in (plain, detached):
        m(images).sum().backward()
    assert not torch.allclose(plain.head.weight.grad, detached.head.weight.grad, rtol=1e-3)


@torch.no_grad()
def test_the_decoder_sees_one_capsule() -> None:
    model = create_model("capsnet", img_size=17, num_classes=3, **SMALL)
    capsules = model.capsules(torch.rand(2, 1, 17, 17))
    labels = torch.tensor([2, 0])
    image = model.reconstruct(capsules, labels)
    masked = torch.zeros(2, 3, 5)
    masked[0, 2], masked[1, 0] = capsules.pose[0, 2], capsules.pose[1, 0]
    first, _, second, _, third = model.decoder.layers
    expected = third(second(first(masked.flatten(1)).relu()).relu()).sigmoid().view(2, 1, 17, 17)
    torch.testing.assert_close(image, expected)
    changed = capsules._replace(pose=capsules.pose.clone())
    changed.pose[0, :2] += 1
    torch.testing.assert_close(model.reconstruct(changed, labels)[0], image[0])


# --- starts ---------------------------------------------------------------------------------------------------------


def test_official_start() -> None:
    torch.manual_seed(0)
    model = create_model("capsnet", init="official", capsule_bias=True, learned_prior=True, conv_channels=64)
    for parameter, std in (
        (model.conv.weight, 0.05),
        (model.primary.conv.weight, 0.1),
        (model.head.weight, 0.1),
        (model.decoder.layers[0].weight, 0.1),
    ):
        # A normal cut off at two deviations has 0.88 of the deviation.
        assert parameter.abs().max() <= 2 * std
        assert parameter.std().item() == pytest.approx(0.8796 * std, rel=0.03)
    for bias in (model.conv.bias, model.primary.conv.bias, model.head.bias, model.decoder.layers[4].bias):
        assert (bias == 0.1).all()
    assert (model.head.prior == 0).all()


def test_official_start_of_new_classes_leaves_the_rest() -> None:
    model = create_model("capsnet", img_size=17, init="official", capsule_bias=True, **SMALL)
    nn.init.constant_(model.conv.weight, 0.25)
    nn.init.constant_(model.primary.conv.bias, 0.25)
    model.reset_classifier(3)
    assert (model.conv.weight == 0.25).all() and (model.primary.conv.bias == 0.25).all()
    assert (model.head.bias == 0.1).all() and model.head.weight.abs().max() <= 0.2


def test_default_start() -> None:
    model = CapsNet(conv_channels=8)
    assert 0.99 * 1152**-0.5 < model.head.weight.abs().max() <= 1152**-0.5
    assert model.head.bias is None and model.head.prior is None
