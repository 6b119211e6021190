"""Mean-agreement routing against loops."""

import torch
from mereo.mechanisms.routing.mean_agreement import MeanAgreementRouting

from mereo.core import squash


def test_couplings_are_a_softmax_of_the_agreement_with_the_mean_vote() -> None:
    routing = MeanAgreementRouting(3, 2, 4, 5).double()
    children = torch.randn(1, 3, 4, dtype=torch.float64)
    votes = [[squash(children)[0, s] @ routing.weight[r, s] for s in range(3)] for r in range(2)]
    means = [squash(sum(votes[r]) / 3) for r in range(2)]
    parents = [torch.zeros(5, dtype=torch.float64) for _ in range(2)]
    for s in range(3):
        agreement = torch.stack([torch.dot(votes[r][s], means[r]) for r in range(2)]).softmax(0)
        for r in range(2):
            parents[r] = parents[r] + agreement[r] * votes[r][s]
    torch.testing.assert_close(routing(children)[0], torch.stack([squash(parent) for parent in parents]))
