"""Token selection: worked numbers."""

import torch
from mereo.mechanisms.select.top_tokens import TopTokens


def test_the_tokens_with_the_highest_scores_stay_in_the_order_of_their_scores() -> None:
    select = TopTokens(1, keep=2)
    torch.nn.init.ones_(select.score.weight)
    torch.nn.init.zeros_(select.score.bias)
    tokens = torch.tensor([[[0.5], [2.0], [-1.0], [1.0]]])
    expected = torch.tensor([[[2.0], [1.0]]])
    torch.testing.assert_close(select(tokens), expected * expected.sigmoid())
