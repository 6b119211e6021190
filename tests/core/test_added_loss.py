"""Losses that modules add: summed by name, weighted, the same compiled and checkpointed, nothing in evaluation."""

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import mereo
from mereo.core import AddedLoss
from mereo.core.added_loss import loss_weights, weigh_losses
from mereo.data import Batch
from mereo.errors import UsageError
from mereo.tasks.base import Objective


class Layer(nn.Module):
    """A layer whose outputs should be small, and whose weights should be small in the mean over layers."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.size, self.weights = AddedLoss("size", 0.5), AddedLoss("weights", 2.0, across="mean")

    def forward(self, x: Tensor) -> Tensor:
        x = self.linear(x).tanh()
        self.size(x.square().mean())
        self.weights(self.linear.weight.square().sum())
        return x


class Network(nn.Module):
    def __init__(self, checkpointed: bool = False) -> None:
        super().__init__()
        self.layers, self.checkpointed = nn.ModuleList(Layer() for _ in range(2)), checkpointed

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if self.checkpointed else layer(x)
        return x


class Sum(Objective):
    def step(self, batch: Batch) -> tuple[Tensor, Tensor]:
        out = self.model(batch.images)
        return out.sum(), out

    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        return outputs.sum()


def by_hand(network: Network, x: Tensor) -> dict[str, Tensor]:
    first = network.layers[0].linear(x).tanh()
    second = network.layers[1].linear(first).tanh()
    weights = [layer.linear.weight.square().sum() for layer in network.layers]
    return {
        "size": 0.5 * (first.square().mean() + second.square().mean()),
        "weights": 2 * (weights[0] + weights[1]) / 2,
    }


def test_terms_are_put_together_by_name_and_taken_once() -> None:
    network, x = Network().double(), torch.randn(3, 4, dtype=torch.float64)
    network(x)
    torch.testing.assert_close(mereo.added_losses(network), by_hand(network, x))
    assert mereo.added_losses(network) == {}
    network(x)
    assert mereo.added_losses(copy.deepcopy(network)) == {}
    network.eval()(x)
    assert mereo.added_losses(network) == {}


# The compiler leaves a graph where a checkpointed layer records, and warns of that itself.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("checkpointed", [False, True])
def test_an_objective_adds_them_compiled_and_checkpointed(compiled: bool, checkpointed: bool) -> None:
    network, x = Network(checkpointed), torch.randn(3, 4)
    objective = Sum(network)
    torch.compiler.reset()
    step = torch.compile(objective, backend="aot_eager", fullgraph=not checkpointed) if compiled else objective
    for _ in range(2):
        terms = by_hand(network, x)
        expected = Network.forward(network.eval(), x).sum() + terms["size"] + terms["weights"]
        wanted = torch.autograd.grad(expected, list(network.parameters()))
        loss, _ = (step.train())(Batch(x))
        torch.testing.assert_close(loss, expected)
        torch.testing.assert_close(torch.autograd.grad(loss, list(network.parameters())), wanted)
        torch.testing.assert_close(objective.added, {name: term.detach() for name, term in terms.items()})
    loss, out = objective.eval()(Batch(x))
    assert torch.equal(loss, out.sum()) and objective.added == {}


def test_weights_are_changed_by_name() -> None:
    network, x = Network(), torch.randn(3, 4)
    weigh_losses(network, {"size": 0})
    assert loss_weights(network) == {"size": 0.0, "weights": 2.0}
    network(x)
    assert mereo.added_losses(network)["size"] == 0
    for wrong, value in ({"balance": 1.0}, "balance"), ({"size": -1.0}, "-1.0"), ({"size": "much"}, "much"):
        with pytest.raises(UsageError, match=value):
            weigh_losses(network, wrong)
