"""Squeeze and excite: worked numbers."""

import torch
from mereo.gate.squeeze_excite import SqueezeExcite


def test_zero_weights_halve_every_channel() -> None:
    gate = SqueezeExcite(4, reduction=2)
    for parameter in gate.parameters():
        torch.nn.init.zeros_(parameter)
    features = torch.randn(2, 4, 3, 3)
    torch.testing.assert_close(gate(features), features / 2)
