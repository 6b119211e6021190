"""DA-CapsNet: counts, CapsNet at its start, both kinds of attention, couplings on the image."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import mereo
from mereo import create_model
from mereo.core import Grid, lengths
from mereo.errors import UsageError
from mereo.explain import explain
from mereo.models import CapsNet
from mereo.models.registry import outline
from mereo.tasks.losses import margin_loss
from mereo.training.recipes import apply_recipe

SMALL = {"img_size": 19, "conv_channels": 8, "primary_types": 3, "primary_dim": 4, "class_dim": 5}
FORMS = [{}, {"scale": True}, {"kind": "channel"}, {"caps_attention": "capsule"}]


def count(module: nn.Module | None) -> int:
    return 0 if module is None else sum(p.numel() for p in module.parameters())


def trained(**arguments: Any) -> nn.Module:
    """A small network with no parameter at its start."""
    model = create_model("da_capsnet_28", **SMALL, **arguments).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


@pytest.mark.parametrize(
    ("name", "arguments", "encoder", "decoder"),
    [
        ("da_capsnet_28", {}, 6_968_706, 1_411_344),
        ("da_capsnet_32", {}, 8_157_058, 3_756_544),
        ("da_capsnet_28", {"decoder": False}, 6_968_706, 0),
        ("da_capsnet_28", {"kind": "channel"}, 6_804_224 + 2 * 8464, 1_411_344),
        ("da_capsnet_28", {"caps_attention": "capsule"}, 6_804_224 + 82_241 + 73, 1_411_344),
    ],
)
def test_counts(name: str, arguments: dict[str, Any], encoder: int, decoder: int) -> None:
    model = outline(name, **arguments)
    assert (count(model) - count(model.decoder), count(model.decoder)) == (encoder, decoder)


def test_counts_and_sizes_of_the_parts() -> None:
    model = outline("da_capsnet_28")
    parts = (model.conv, model.conv_attention, model.primary, model.caps_attention, model.head)
    assert [count(part) for part in parts] == [20_992, 82_241, 5_308_672, 82_241, 1_474_560]
    assert model.conv_attention.sizes == (32, 32, 256) and model.head.steps == 3
    assert model.conv_attention.coupling.senders == Grid(20, 20, 1, 4.5, 1.0)
    assert model.caps_attention.coupling.receivers == Grid(6, 6, 1, 8.5, 2.0)
    assert outline("da_capsnet_32").senders == 2048


@pytest.mark.parametrize("arguments", [form for form in FORMS if form.get("kind") != "channel"])
def test_it_starts_as_capsnet(arguments: dict[str, Any]) -> None:
    model, plain = create_model("da_capsnet_28", **SMALL, **arguments).eval(), CapsNet(**SMALL).eval()
    missing, unexpected = model.load_state_dict(plain.state_dict(), strict=False)
    assert not unexpected and {name.split(".")[0] for name in missing} == {"conv_attention", "caps_attention"}
    images = torch.rand(3, 1, 19, 19)
    ours, theirs = model.capsules(images), plain.capsules(images)
    torch.testing.assert_close(ours.pose, theirs.pose, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(model(images), plain(images), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(model.reconstruct(ours), plain.reconstruct(theirs), rtol=1e-6, atol=1e-6)


def test_a_gate_of_channels_without_its_last_layer_halves_the_maps() -> None:
    model, plain = trained(kind="channel"), CapsNet(**SMALL).eval()
    plain.load_state_dict({k: v for k, v in model.state_dict().items() if "attention" not in k})
    with torch.no_grad():
        for gate in (model.conv_attention, model.caps_attention):
            gate.excite.weight.zero_()
            gate.excite.bias.zero_()
    images = torch.rand(2, 1, 19, 19)
    (maps,) = model.forward_intermediates(images, intermediates_only=True)
    (whole,) = plain.forward_intermediates(images, intermediates_only=True)
    torch.testing.assert_close(maps, whole / 2)
    with mereo.record(model) as trace:
        model(images)
    assert {name: trace.kinds[name] for name in trace} == {
        "conv_attention.gates": "gates", "caps_attention.gates": "gates", "head.coupling": "couplings"
    }  # fmt: skip
    assert trace["conv_attention.gates"].shape == (2, 8, 1, 1)


def squashed(vector: Tensor) -> Tensor:
    length = vector.norm()
    return length**2 / (1 + length**2) * vector / length


@pytest.mark.parametrize("arguments", FORMS)
def test_capsules_are_squashed_after_attention(arguments: dict[str, Any]) -> None:
    model, images = trained(**arguments).double(), torch.rand(2, 1, 19, 19, dtype=torch.float64)
    maps = model.conv_attention(model.conv(images).relu())
    before = model.primary.conv(maps)
    types, dim, (rows, columns) = 3, 4, before.shape[2:]
    attended = model.caps_attention(before) if "caps_attention" not in arguments else before
    capsules = torch.stack(
        [
            attended[:, kind * dim : (kind + 1) * dim, row, column]
            for kind in range(types)
            for row in range(rows)
            for column in range(columns)
        ],
        1,
    )
    capsules = capsules if "caps_attention" not in arguments else model.caps_attention(capsules)
    expected = torch.stack([torch.stack([squashed(capsule) for capsule in image]) for image in capsules])
    features = model.forward_features(images)
    torch.testing.assert_close(features, expected)
    assert (lengths(features) < 1).all()
    scores = model(images)
    assert (scores >= 0).all() and (scores < 1).all()


@pytest.mark.parametrize("arguments", FORMS)
def test_every_form_learns(arguments: dict[str, Any]) -> None:
    torch.manual_seed(0)
    model = create_model("da_capsnet_28", **SMALL, **arguments, num_classes=2)
    images, targets = torch.rand(8, 1, 19, 19), torch.eye(2).repeat(4, 1)
    images[::2, :, :9] = 0
    optimiser = torch.optim.Adam(model.parameters(), 3e-3)
    for _ in range(30):
        loss = margin_loss(model(images), targets)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    assert (model(images).argmax(1) == targets.argmax(1)).all()


def test_couplings_on_the_image_and_explanations() -> None:
    model, images = trained(), torch.rand(2, 1, 19, 19)
    with mereo.record(model) as trace:
        model(images)
    shapes = {name: tuple(trace[name].shape) for name in trace}
    assert shapes == {
        "conv_attention.coupling": (2, 1, 121, 121),
        "caps_attention.coupling": (2, 1, 4, 4),
        "head.coupling": (2, 1, 10, 12),
    }
    for name in ("conv_attention.coupling", "caps_attention.coupling"):
        torch.testing.assert_close(trace[name].sum(-1), torch.ones(shapes[name][:3]))
    explanation = explain(model, images)
    assert list(explanation.maps) == ["head.coupling"]
    assert explanation.contribution_map is not None and explanation.rebuilt is not None
    assert explanation.attention["rollout"].grid[:2] == (11, 11)
    assert explanation.attention["rollout"].layers == ("conv_attention.coupling", "caps_attention.coupling")


def test_couplings_of_the_capsule_gate() -> None:
    model = trained(caps_attention="capsule")
    with mereo.record(model) as trace:
        model(torch.rand(2, 1, 19, 19))
    assert trace["caps_attention.coupling"].shape == (2, 1, 1, 12)
    assert trace["caps_attention.gates"].shape == (2, 12, 1)


def test_recipe_and_wrong_arguments() -> None:
    config = apply_recipe("da_capsnet")
    assert (config.model, config.optimizer, config.lr, config.batch_size) == ("da_capsnet_28", "adam", 1e-3, 128)
    assert (config.loss, config.reconstruction_weight) == ("margin", 0.0005)
    assert apply_recipe("da_capsnet", data="cifar10").model == "da_capsnet_32"
    for argument in ("kind", "caps_attention"):
        with pytest.raises(UsageError, match=f"{argument} is 'none'"):
            create_model("da_capsnet_28", **{argument: "none"})
    with pytest.raises(UsageError, match="routing_steps is 0"):
        create_model("da_capsnet_28", routing_steps=0)
    with pytest.raises(UsageError, match="img_size has a side of 16"):
        create_model("da_capsnet_28", img_size=16)
