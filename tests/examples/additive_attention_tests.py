"""Additive attention against loops."""

import torch
from mereo.mechanisms.attention.dense.additive_attention import AdditiveAttention


def test_scores_come_from_the_network_that_compares() -> None:
    attention = AdditiveAttention(3, 4).double()
    queries, context = (torch.randn(1, n, 3, dtype=torch.float64) for n in (2, 5))
    output = attention(queries, context)
    for r in range(2):
        scores = [
            attention.score((attention.query(queries[0, r]) + attention.key(context[0, s])).tanh()) for s in range(5)
        ]
        torch.testing.assert_close(output[0, r], torch.cat(scores).softmax(0) @ context[0])
