"""Mechanisms by name: what a slot fills in, and what it says of what it cannot."""

import pytest
import torch
from torch import nn

import mereo
from mereo.errors import UsageError
from mereo.mechanisms.attention import MultiHeadAttention, NeighborhoodAttention
from mereo.mechanisms.slots import Adapted, Place, fill_slot


def test_width_heads_tokens_and_size_are_filled_in() -> None:
    attention = mereo.create_mechanism("multi_head", 12)
    assert isinstance(attention, MultiHeadAttention) and attention.num_heads == 6
    assert mereo.create_mechanism("multi_head", 12, heads=3).num_heads == 3
    assert mereo.create_mechanism("mixer_gate", 4, tokens=3)(torch.randn(2, 3, 4)).shape == (2, 3, 4)
    assert mereo.create_mechanism("bottleneck", 8, size=(3, 4))(torch.randn(2, 8, 3, 4)).shape == (2, 8, 3, 4)
    assert mereo.create_mechanism("sea", 8, heads=2)(*torch.randn(3, 2, 2, 5, 4)).shape == (2, 5, 8)


def test_maps_have_their_channels_first_whatever_the_mechanism_takes() -> None:
    made = mereo.create_mechanism("neighborhood", 8, heads=2, size=(5, 6), window=3)
    assert isinstance(made, Adapted) and isinstance(made.mechanism, NeighborhoodAttention)
    maps = torch.randn(2, 8, 5, 6)
    torch.testing.assert_close(made(maps).permute(0, 2, 3, 1), made.mechanism(maps.permute(0, 2, 3, 1)))


def test_tokens_before_the_patches_get_the_mean_of_what_the_patches_get() -> None:
    made = fill_slot("efficient_channel_gate", "tokens", Place(8, size=(2, 3), prefix=2))
    tokens = torch.randn(2, 8, 8)
    output = made(tokens)
    maps = tokens[:, 2:].transpose(1, 2).unflatten(2, (2, 3))
    torch.testing.assert_close(output[:, 2:], made.mechanism(maps).flatten(2).transpose(1, 2))
    torch.testing.assert_close(output[:, :2], output[:, 2:].mean(1, keepdim=True).expand(-1, 2, -1))


@pytest.mark.parametrize(
    ("name", "given", "words"),
    [
        ("multi_haed", {}, "multi_head"),
        ("em", {}, "activation"),
        ("moh", {}, "model"),
        ("multi_head", {"hedas": 3}, "hedas"),
        ("mixer_gate", {}, "num_tokens"),
        ("bottleneck", {}, "size"),
        ("multi_head", {"heads": 5}, "5"),
    ],
)
def test_what_does_not_fit_is_named(name: str, given: dict[str, int], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        mereo.create_mechanism(name, 12, **given)


def test_the_list_of_an_interface() -> None:
    assert {"squeeze_excite", "neighborhood"} <= set(mereo.list_mechanisms(interface="maps"))
    assert "multi_head" in mereo.list_mechanisms("multi*", interface="tokens")
    assert not set(mereo.list_mechanisms(interface="maps")) & set(mereo.list_mechanisms(interface="tokens"))
    with pytest.raises(UsageError, match="interface is 'map'"):
        mereo.list_mechanisms(interface="map")


class Halved(nn.Module):
    """Half of its input."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(dim))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight


class Noisy(Halved):
    """Another output each time."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) + torch.rand(())


def test_a_class_of_a_user_is_checked() -> None:
    before = mereo.list_mechanisms()
    report = mereo.check_mechanism(Halved, lambda: (Halved(4), (torch.randn(2, 5, 4),)), records="nothing")
    assert not report.failed and "eval_is_deterministic" in report.held
    report = mereo.check_mechanism(Noisy, lambda: (Noisy(4), (torch.randn(2, 5, 4),)), records="nothing")
    assert "eval_is_deterministic" in report.failed
    with pytest.raises(mereo.MereoError, match="Noisy"):
        mereo.check_mechanism(Noisy, lambda: (Noisy(4), (torch.randn(2, 5, 4),)), records="nothing", raises=True)
    with pytest.raises(UsageError, match="example is None"):
        mereo.check_mechanism(Halved)
    assert mereo.list_mechanisms() == before
