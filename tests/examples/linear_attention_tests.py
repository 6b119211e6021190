"""Causal linear attention against loops."""

import torch
import torch.nn.functional as F
from mereo.mechanisms.scan.linear_attention import LinearAttention


def test_a_token_reads_the_sum_of_the_tokens_so_far() -> None:
    attention = LinearAttention(3).double()
    tokens = torch.randn(1, 4, 3, dtype=torch.float64)
    output = attention(tokens)
    for t in range(4):
        query = F.elu(attention.query(tokens[0, t])) + 1
        expected = torch.zeros(3, dtype=torch.float64)
        for s in range(t + 1):
            key = F.elu(attention.key(tokens[0, s])) + 1
            expected = expected + torch.dot(query, key) * attention.value(tokens[0, s])
        torch.testing.assert_close(output[0, t], expected)
