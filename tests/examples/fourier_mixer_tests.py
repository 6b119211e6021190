"""Fourier mixing: worked numbers."""

import torch
from mereo.mechanisms.mixer.fourier_mixer import FourierMixer


def test_a_constant_goes_to_the_first_entry() -> None:
    mixed = FourierMixer()(torch.ones(1, 4, 9))
    expected = torch.zeros(1, 4, 9)
    expected[0, 0, 0] = 6
    torch.testing.assert_close(mixed, expected)
