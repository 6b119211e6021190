"""Band attention against loops."""

import torch
from mereo.mechanisms.attention.local.band_attention import BandAttention


def test_a_token_is_a_mean_of_the_tokens_in_its_band() -> None:
    attention = BandAttention(4, radius=1).double()
    tokens = torch.randn(1, 5, 4, dtype=torch.float64)
    output = attention(tokens)
    for r in range(5):
        near = tokens[0, max(r - 1, 0) : r + 2]
        scores = attention.key(near) @ attention.query(tokens[0, r]) / 4**0.5
        torch.testing.assert_close(output[0, r], scores.softmax(0) @ attention.value(near))
