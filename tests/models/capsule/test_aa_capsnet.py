"""AA-CapsNet in both readings: counts, equations, what it is before training, couplings on the image."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import mereo
from mereo import create_model
from mereo.core import Grid
from mereo.errors import UsageError
from mereo.explain import explain
from mereo.models import AACapsNet, AAVotesCapsNet, CapsNet
from mereo.models.registry import outline
from mereo.training.recipes import apply_recipe

SMALL = {"img_size": 19, "conv_channels": 4, "primary_types": 3, "primary_dim": 4}


def count(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def trained(**arguments: Any) -> nn.Module:
    """A small network whose gamma has left 0."""
    model = create_model("aa_capsnet_28", **SMALL, **arguments).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        ("aa_capsnet_28", {}, 6_592_971),
        ("aa_capsnet_32", {}, 7_551_947),
        ("aa_capsnet_28", {"reading": "votes"}, 6_836_425),
        ("aa_capsnet_32", {"reading": "votes"}, 8_024_777),
        ("aa_capsnet_28", {"reading": "votes", "per_class": True}, 6_804_224 + 10 * (2 * (16 * 2 + 2) + 16 * 16 + 17)),
    ],
)
def test_counts(name: str, arguments: dict[str, Any], expected: int) -> None:
    assert count(outline(name, **arguments)) == expected


def test_counts_of_the_parts() -> None:
    model = outline("aa_capsnet_28")
    assert (count(model.conv), count(model.primary), count(model.attention)) == (20_992, 5_308_672, 82_241)
    assert count(model.head) == 9216 * 128 + 128 + 128 * 10 + 10
    assert outline("aa_capsnet_32").places[:2] == (8, 8) and model.places == Grid(6, 6, 32, 8.5, 2.0)


def test_readings_have_their_classes_and_losses() -> None:
    by_map, by_votes = create_model("aa_capsnet_28", **SMALL), create_model("aa_capsnet_28", **SMALL, reading="votes")
    assert type(by_map) is AACapsNet and type(by_votes) is AAVotesCapsNet
    assert (by_map.default_loss, by_votes.default_loss) == ("cross_entropy", "margin")
    assert (by_map.score_kind, by_votes.score_kind) == ("logits", "lengths")
    assert by_votes.decoder is None
    for cls, wrong in ((AACapsNet, "votes"), (AAVotesCapsNet, "map")):
        with pytest.raises(UsageError, match=f"reading is '{wrong}'"):
            cls(reading=wrong)
    with pytest.raises(UsageError, match="reading is 'both'"):
        create_model("aa_capsnet_28", reading="both")
    with pytest.raises(UsageError, match="img_size has a side of 16"):
        create_model("aa_capsnet_28", img_size=16)


def squashed(vector: Tensor) -> Tensor:
    length = vector.norm()
    return length**2 / (1 + length**2) * vector / length


def test_reading_map_by_loops() -> None:
    model = trained().double()
    images = torch.rand(2, 1, 19, 19, dtype=torch.float64)
    maps = F.conv2d(images, model.conv.weight, model.conv.bias).relu()
    maps = F.conv2d(maps, model.primary.conv.weight, model.primary.conv.bias, stride=2)
    attention, d = model.attention, model.attention.key_dim
    types, dim, (rows, columns) = 3, 4, maps.shape[2:]
    places = [(row, column) for row in range(rows) for column in range(columns)]
    scores = []
    for image in maps:
        cells = {p: torch.cat([squashed(part) for part in image[:, p[0], p[1]].split(dim)]) for p in places}
        made = {p: attention.weight @ cells[p] + attention.bias for p in places}
        attended = {}
        for r in places:
            grown = [torch.dot(made[r][:d], made[s][d : 2 * d]).exp() for s in places]
            gathered = sum(g / sum(grown) * made[s][2 * d :] for g, s in zip(grown, places, strict=True))
            attended[r] = cells[r] + attention.gamma[0] * gathered
        capsules = torch.cat([attended[p].split(dim)[kind] for kind in range(types) for p in places])
        first, _, last = model.head
        scores.append(last.weight @ (first.weight @ capsules + first.bias).clamp(min=0) + last.bias)
    assert model.forward_features(images).shape == (2, types * len(places), dim)
    torch.testing.assert_close(model(images), torch.stack(scores))


def test_before_training_reading_map_classifies_plain_capsules() -> None:
    model = create_model("aa_capsnet_28", **SMALL)
    images = torch.rand(2, 1, 19, 19)
    torch.testing.assert_close(model.forward_features(images), model.primary(model.conv(images).relu()))


def test_before_training_the_sum_of_votes_is_capsnet_without_routing() -> None:
    """With the mean of the votes, all is the same up to the division by their number before the squash."""
    options = {**SMALL, "class_dim": 5}
    plain = CapsNet(**options, routing_steps=0, decoder=False).eval()
    model = create_model("aa_capsnet_28", **options, reading="votes", reduce="sum").eval()
    missing, unexpected = model.load_state_dict(plain.state_dict(), strict=False)
    assert not unexpected and all(name.startswith("head.attention.") for name in missing)
    images = torch.rand(3, 1, 19, 19)
    torch.testing.assert_close(model.capsules(images).pose, plain.capsules(images).pose, rtol=1e-5, atol=1e-6)
    model.head.reduce = "mean"
    sums = torch.einsum("bsd,rsde->bre", model.forward_features(images), model.head.weight)
    lengths = (sums / model.senders).norm(dim=-1)
    torch.testing.assert_close(model(images), lengths**2 / (1 + lengths**2))


def test_lengths_are_below_one_and_capsules_in_reading_map_may_be_longer() -> None:
    model = trained(reading="votes")
    assert (model(10 * torch.rand(4, 1, 19, 19)) < 1).all()
    model = trained()
    with torch.no_grad():
        model.attention.gamma.fill_(50)
    assert model.forward_features(torch.rand(2, 1, 19, 19)).norm(dim=-1).max() > 1


def test_couplings_on_the_image_and_explanations() -> None:
    images = torch.rand(2, 1, 19, 19)
    model = trained()
    with mereo.record(model) as trace:
        model(images)
    assert trace["attention.coupling"].shape == (2, 1, 4, 4)
    explanation = explain(model, images)
    assert explanation.attention["rollout"].grid[:2] == (2, 2) and explanation.occlusion_map is not None

    model = trained(reading="votes", class_dim=5)
    with mereo.record(model) as trace:
        model(images)
    assert trace["head.attention.coupling"].shape == (2, 1, 12, 12)
    assert trace["head.coupling"].shape == (2, 1, 10, 12)
    explanation = explain(model, images)
    first, last = explanation.maps.values()
    assert (first.num_receivers, last.num_receivers, first.over) == (12, 10, "senders")
    # Children are equal for the classes, so their map is the mean share that each has in the others.
    shares = trace["head.attention.coupling"].mean((1, 2)).unflatten(1, (3, 2, 2)).mean(1)
    torch.testing.assert_close(first.cells, shares)
    assert explanation.contributions is not None and explanation.contribution_map is not None
    lengths = explanation.contributions.sum(1)
    best = explanation.scores.amax(1)
    torch.testing.assert_close(lengths**2 / (1 + lengths**2), best)


@pytest.mark.parametrize("reading", ["map", "votes"])
def test_starts(reading: str) -> None:
    torch.manual_seed(0)
    model = create_model("aa_capsnet_28", reading=reading, img_size=19, conv_channels=64, primary_types=8)
    for layer, inputs in ((model.conv, 1), (model.primary.conv, 64)):
        assert layer.weight.std().item() == pytest.approx((2 / (inputs * 81)) ** 0.5, rel=0.03)
        assert not layer.bias.any()
    if reading == "votes":
        assert model.head.weight.std().item() == pytest.approx(0.1, rel=0.03)
        assert not model.head.attention.gamma.any()
        return
    assert not model.attention.gamma.any()
    for layer in (model.head[0], model.head[2]):
        bound = (6 / (layer.in_features + layer.out_features)) ** 0.5
        assert 0.98 * bound < layer.weight.abs().max() <= bound and not layer.bias.any()


def test_recipe() -> None:
    config = apply_recipe("aa_capsnet")
    assert (config.model, config.optimizer, config.lr, config.batch_size) == ("aa_capsnet_28", "adam", 1e-3, 128)
    assert config.reconstruction_weight == 0 and apply_recipe("aa_capsnet", data="svhn").model == "aa_capsnet_32"


@pytest.mark.parametrize("arguments", [{"class_dim": 5}, {"reduce": "sum"}, {"reading": "votes", "hidden": 5}])
def test_options_of_the_other_reading_are_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=r"reading '(map|votes)'"):
        mereo.create_model("aa_capsnet_28", **arguments)
