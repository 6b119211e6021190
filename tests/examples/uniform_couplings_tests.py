"""Uniform couplings: what they are and that they end."""

import torch
from mereo.interventions.uniform_couplings import uniform_couplings

from mereo.core import record
from mereo.mechanisms.attention import MultiHeadAttention


def test_every_sender_counts_alike_inside_the_block() -> None:
    model, x = MultiHeadAttention(4, 2).eval(), torch.randn(1, 5, 4)
    with uniform_couplings(model), record(model) as trace:
        model(x)
    torch.testing.assert_close(trace["coupling"], torch.full((1, 2, 5, 5), 0.2))
    with record(model) as trace:
        model(x)
    assert trace["coupling"].std() > 0.001
