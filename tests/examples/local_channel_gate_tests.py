"""Local channel gate: worked numbers."""

import torch
from mereo.gate.local_channel_gate import LocalChannelGate


def test_zero_weights_halve_every_channel() -> None:
    gate = LocalChannelGate()
    torch.nn.init.zeros_(gate.weights.weight)
    features = torch.randn(2, 4, 3, 3)
    torch.testing.assert_close(gate(features), features / 2)
