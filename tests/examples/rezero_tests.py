"""ReZero: the start and the equation."""

import torch
from mereo.surgery.rezero import rezero
from torch import nn


def test_the_branch_counts_nothing_at_the_start_and_its_weight_afterwards() -> None:
    branch, x = nn.Linear(3, 3), torch.randn(2, 3)
    model = rezero(branch)
    assert torch.equal(model(x), x)
    nn.init.constant_(model.weight, 0.5)
    torch.testing.assert_close(model(x), x + branch(x) / 2)
