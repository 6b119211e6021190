"""Pair attention against loops."""

import torch
from mereo.mechanisms.attention.higher_order.pair_attention import PairAttention


def test_a_token_is_a_mean_of_products_of_two_tokens() -> None:
    attention = PairAttention(4).double()
    tokens = torch.randn(1, 3, 4, dtype=torch.float64)
    output, (x,) = attention(tokens), tokens
    for r in range(3):
        pairs = [(s, t) for s in range(3) for t in range(3)]
        keys = [attention.key(x[s]) * attention.key2(x[t]) for s, t in pairs]
        shares = torch.stack([attention.query(x[r]) @ key / 4 for key in keys]).softmax(0)
        values = torch.stack([attention.value(x[s]) * attention.value2(x[t]) for s, t in pairs])
        torch.testing.assert_close(output[0, r], shares @ values)
