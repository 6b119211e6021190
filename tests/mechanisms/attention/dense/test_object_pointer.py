"""The object pointer against loops over heads and pairs, from its equation."""

import torch

from mereo.mechanisms.attention.dense import ObjectPointer


def test_probabilities_are_mixed_scaled_products_of_every_head() -> None:
    pointer = ObjectPointer(3, num_heads=2).double()
    senders, receivers = torch.randn(2, 4, 3).double(), torch.randn(2, 5, 3).double()
    present = torch.tensor([[True, True, False, True], [True] * 4])
    found = pointer(senders, receivers, present)
    (key, b), (query, c) = ((part.weight, part.bias) for part in (pointer.keys, pointer.queries))
    for n in range(2):
        for t in range(5):
            scores = []
            for i in range(4):
                score = pointer.mix.bias[0]
                for h in range(2):
                    rows = slice(3 * h, 3 * h + 3)
                    e, d = key[rows] @ senders[n, i] + b[rows], query[rows] @ receivers[n, t] + c[rows]
                    score = score + pointer.mix.weight[0, h] * (e @ d) / 3**0.5
                scores.append(score.exp() if present[n, i] else 0 * score)
            torch.testing.assert_close(found[n, t], torch.stack(scores) / sum(scores))
    assert (found[0, :, 2] == 0).all()


def test_parameters_of_the_published_size() -> None:
    pointer = ObjectPointer(512)
    assert sum(p.numel() for p in (*pointer.keys.parameters(), *pointer.queries.parameters())) == 1_050_624
    assert sum(p.numel() for p in pointer.mix.parameters()) == 3
