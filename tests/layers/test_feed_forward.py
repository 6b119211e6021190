"""The feed-forward layer: tokens in parts are the tokens together."""

import pytest
import torch

from mereo.layers import FeedForward


@pytest.mark.parametrize(("narrow", "size"), [(8, 37), (9, 4)])
def test_tokens_in_parts_are_the_tokens_together(narrow: int, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mereo.layers.feed_forward.NARROW", narrow)
    layer, x = FeedForward(4, 9).eval(), torch.randn(3, 50, 4)
    expected = layer(x)
    monkeypatch.setattr("mereo.layers.feed_forward._WHOLE", 100)
    monkeypatch.setattr("mereo.layers.feed_forward._PART", 9 * 37)
    parts: list[int] = []
    layer.first.register_forward_hook(lambda _m, _i, output: parts.append(len(output)))
    torch.testing.assert_close(layer(x), expected)
    assert parts == [3], "with gradients, tokens stay together"
    with torch.no_grad():
        torch.testing.assert_close(layer(x), expected)
        assert parts[1:] == [size] * (150 // size) + [150 % size]
        assert layer(x.transpose(0, 1)).shape == (50, 3, 4)
