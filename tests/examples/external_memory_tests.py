"""External attention against loops."""

import torch
from mereo.mechanisms.attention.memory.external_memory import ExternalMemory


def test_each_token_is_the_weighted_sum_of_the_values() -> None:
    memory = ExternalMemory(2, slots=3).double()
    tokens = torch.randn(1, 4, 2, dtype=torch.float64)
    output = memory(tokens)
    for n in range(4):
        fits = [torch.dot(tokens[0, n], key).exp() for key in memory.keys]
        expected = sum(fit / sum(fits) * value for fit, value in zip(fits, memory.values, strict=True))
        torch.testing.assert_close(output[0, n], expected)
