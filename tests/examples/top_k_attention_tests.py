"""Top-k attention against loops."""

import torch
from mereo.mechanisms.attention.sparse.top_k_attention import TopKAttention


def test_a_token_is_a_mean_of_the_tokens_with_the_highest_scores() -> None:
    attention = TopKAttention(4, k=2).double()
    tokens = torch.randn(1, 5, 4, dtype=torch.float64)
    output = attention(tokens)
    for r in range(5):
        scores = attention.key(tokens[0]) @ attention.query(tokens[0, r]) / 4**0.5
        best = sorted(range(5), key=lambda s: -scores[s].item())[:2]
        torch.testing.assert_close(output[0, r], scores[best].softmax(0) @ attention.value(tokens[0, best]))
