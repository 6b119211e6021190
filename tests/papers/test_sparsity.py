"""Sparsity by loops, at its ends, and of the layers of a network."""

import math

import pytest
import torch

from mereo.core import lengths, record
from mereo.errors import UsageError
from mereo.models import create_model
from papers.kiefer_generative_capsules.sparsity import coupling_entropy, hoyer_sparsity, layer_sparsity, winner_share


def slow_hoyer(row: list[float]) -> float:
    n = len(row)
    return (math.sqrt(n) - sum(row) / math.sqrt(sum(x * x for x in row))) / (math.sqrt(n) - 1)


def slow_entropy(column: list[float]) -> float:
    total = sum(column)
    return -sum(c / total * math.log(c / total) for c in column if c > 0) / math.log(len(column))


def test_by_loops():
    values = torch.rand(3, 4, 7, dtype=torch.float64)
    values[0, 1, 2] = 0
    for found, slow in ((winner_share, lambda r: max(r) / sum(r)), (hoyer_sparsity, slow_hoyer)):
        expected = [[slow(row) for row in rows] for rows in values.tolist()]
        torch.testing.assert_close(found(values), torch.tensor(expected, dtype=torch.float64))
    expected = [[slow_entropy(column) for column in rows.T.tolist()] for rows in values]
    torch.testing.assert_close(coupling_entropy(values), torch.tensor(expected, dtype=torch.float64))


def test_worked_numbers():
    assert winner_share(torch.tensor([3.0, 4.0])).item() == pytest.approx(4 / 7)
    assert hoyer_sparsity(torch.tensor([3.0, 4.0])).item() == pytest.approx((2**0.5 - 1.4) / (2**0.5 - 1))
    assert coupling_entropy(torch.tensor([[0.25], [0.75]])).item() == pytest.approx(0.811278, abs=1e-6)


@pytest.mark.parametrize(
    ("lengths", "share", "hoyer"),
    [([1.0, 0, 0, 0], 1, 1), ([0.3] * 4, 0.25, 0), ([0.0] * 4, 0.25, 0)],
    ids=["one alone", "all alike", "all zero"],
)
def test_the_ends(lengths, share, hoyer):
    assert winner_share(torch.tensor(lengths)).item() == pytest.approx(share)
    assert hoyer_sparsity(torch.tensor(lengths)).item() == pytest.approx(hoyer, abs=1e-6)


@pytest.mark.parametrize(
    ("given", "entropy"), [([1.0, 0, 0], 0), ([1.0, 1, 1], 1), ([0.0, 0, 0], 1)], ids=["one", "unit", "nothing"]
)
def test_the_ends_of_couplings(given, entropy):
    assert coupling_entropy(torch.tensor(given).unsqueeze(1)).item() == pytest.approx(entropy)


def test_wrong_use():
    with pytest.raises(UsageError, match="at least two"):
        winner_share(torch.rand(3, 1))
    with pytest.raises(UsageError, match="at least 0"):
        hoyer_sparsity(torch.tensor([0.5, -0.1]))
    with pytest.raises(UsageError, match="CapsNet"):
        layer_sparsity(create_model("mspcaps_tiny"), torch.rand(2, 3, 32, 32))


@torch.no_grad()
@pytest.mark.parametrize("middle", [0, 5])
def test_layers_of_a_network(middle, monkeypatch):
    monkeypatch.setattr("papers.kiefer_generative_capsules.sparsity.CHUNK", 2)
    model = create_model(
        "capsnet", img_size=19, conv_channels=4, primary_types=2, middle_capsules=middle, learned_prior=True
    )
    for parameter in model.parameters():
        parameter.add_(0.1 * torch.randn_like(parameter))
    images = torch.rand(5, 1, 19, 19)
    found = layer_sparsity(model, images)
    assert model.training and set(found) == {"classes", *(["middle"] if middle else [])}
    with record(model.eval()) as trace:
        poses = {"classes": model.capsules(images).pose, "middle": model.forward_features(images)}
    for layer, measures in found.items():
        length, couplings = lengths(poses[layer]), trace["head.coupling" if layer == "classes" else "middle.coupling"]
        assert measures["winner"] == pytest.approx(winner_share(length).mean().item(), rel=1e-5)
        assert measures["hoyer"] == pytest.approx(hoyer_sparsity(length).mean().item(), rel=1e-5)
        assert measures["entropy"] == pytest.approx(coupling_entropy(couplings).mean().item(), rel=1e-5)


def test_without_routing_a_child_gives_to_all_alike():
    model = create_model("capsnet", img_size=19, conv_channels=4, primary_types=2, routing_steps=0)
    assert layer_sparsity(model, torch.rand(2, 1, 19, 19))["classes"]["entropy"] == pytest.approx(1)
