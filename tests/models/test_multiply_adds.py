"""The stored multiply-adds of the presets: there are some of each, a count gives the same, and the list is narrow."""

import json
import random

import pytest

from mereo.cli.main import main
from mereo.inference.flops import forward_flops
from mereo.models import MODELS, create_model
from mereo.models.multiply_adds import count_multiply_adds, multiply_adds, stored_counts
from plain_cnn import PlainCNN, registered

LARGEST = 30_000_000
"""Parameters of the networks that are counted again."""


def test_every_preset_has_an_entry_and_every_entry_a_preset() -> None:
    assert stored_counts().keys() == MODELS.keys(), "`make counts` writes the table"
    assert all(count > 0 for count in stored_counts().values())


def test_entries_drawn_at_random_are_what_a_count_gives() -> None:
    names = [name for name, entry in MODELS.items() if entry.parameters <= LARGEST]
    chosen = random.sample(names, 4)
    assert {name: count_multiply_adds(name) for name in chosen} == {name: stored_counts()[name] for name in chosen}


@pytest.mark.parametrize("name", ["mspcaps_tiny", "resnet20", "pointer_network_small", "tnl_tiny", "unet_small"])
def test_a_count_from_shapes_is_the_count_of_a_pass(name: str) -> None:
    assert 2 * stored_counts()[name] == forward_flops(create_model(name))


def test_the_list_fits_a_hundred_columns(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 100 and "mult-adds" in lines[0]
    (row,) = (line for line in lines if line.startswith("resnet20 "))
    assert "40.6 M" in row  # 0.041 G in the usual tables of ResNets for CIFAR-10


def test_a_network_that_is_registered_later_is_counted_if_it_is_small(capsys: pytest.CaptureFixture[str]) -> None:
    with registered("plain_later"):
        convolutions = 8 * 8 * 6 * (3 * 9) + 4 * 4 * 8 * (6 * 9) + 2 * 2 * 12 * (8 * 9)
        assert multiply_adds("plain_later") == convolutions + 12 * 5
    with registered("plain_large", parameters=10**9):
        assert main(["models", "plain_large", "--json"]) == 0
        (row,) = json.loads(capsys.readouterr().out)
        assert row["mult-adds"] == "-" and row["size"] == "1.0 G"

    class Broken(PlainCNN):
        def forward(self, images: object) -> object:  # type: ignore[override]
            raise RuntimeError("it needs values")

    with registered("plain_broken", Broken):
        assert multiply_adds("plain_broken") is None
