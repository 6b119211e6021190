"""Generated sequences of papers: event times, the density of their prediction, and chance for triples."""

import itertools

import pytest
import torch

from mereo.data.match3 import draw_triples
from papers.aaren.aaren_tasks import hawkes, journeys, log_normal, processes
from papers.tensor_attention.match_three import GROUP, MODULUS, balanced_accuracy


def test_the_loss_of_event_times_is_a_normal_density_of_their_logarithms() -> None:
    torch.manual_seed(0)
    out, wanted = torch.randn(3, 5, 2), torch.randn(3, 5, 1)
    density = torch.distributions.Normal(out[..., :1], out[..., 1:].exp()).log_prob(wanted)
    torch.testing.assert_close(log_normal(out, wanted), -density.mean())


def test_events_come_at_the_rate_of_their_process() -> None:
    examples = hawkes(400, torch.Generator().manual_seed(0))
    times = examples.wanted.exp()
    # The rate is 0.2 at first, and the first waiting time is exponential.
    assert examples.inputs[:, 0].exp().mean().item() == pytest.approx(5, rel=0.15)
    # After an event the intensity is at least one; every event is followed sooner than it would be without it.
    assert times[:, -10:].mean() < examples.inputs[:, 0].exp().mean() / 2
    torch.testing.assert_close(examples.inputs[:, 1:], examples.wanted[:, :-1])


def test_processes_and_journeys() -> None:
    series, kinds = processes(200, torch.Generator().manual_seed(0))
    by_kind = [series[kinds[:, 0] == kind, :, 0] for kind in range(4)]
    alike = [(x[:, 1:] * x[:, :-1]).mean() / x.square().mean() for x in by_kind]
    for found, (first, second) in zip(alike, ((0.9, -0.3), (0.5, 0.2), (0.2, -0.6), (-0.4, 0.2)), strict=True):
        assert found.item() == pytest.approx(first / (1 - second), abs=0.05)
    inputs, actions = journeys(5, torch.Generator().manual_seed(0))
    assert actions.abs().max() <= 1 and inputs[:, 1:, 5:].abs().max() == 0
    goal, places = inputs[:, :1, 5:], inputs[..., 1:3]
    # The first token's return is the mean reward of all places; the action before is that of the token before.
    apart = (places - goal).norm(dim=-1)
    for now, after in itertools.pairwise(range(inputs.shape[1])):
        spent = inputs[:, now, 0] - inputs[:, after, 0]
        torch.testing.assert_close(spent, -(places[:, after] - goal[:, 0]).norm(dim=-1) / inputs.shape[1])
    assert apart.shape == inputs.shape[:2]
    torch.testing.assert_close(inputs[:, 1:, 3:5], actions[:, :-1])


def test_any_answer_that_ignores_the_tokens_is_at_chance() -> None:
    class Always(torch.nn.Module):
        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            return torch.ones(len(tokens), GROUP)

    triples = draw_triples(200, MODULUS, GROUP, torch.Generator().manual_seed(0))
    assert balanced_accuracy(Always(), *triples) == 0.5
