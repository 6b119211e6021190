"""Multiply-adds of the presets: a pass counts what is stored, and the list is narrow."""

import json

import pytest
import torch

from mereo.cli.lists import _size
from mereo.cli.main import main
from mereo.core.operations import forward_operations
from mereo.inference.flops import forward_flops
from mereo.models import MODELS, create_model
from mereo.models.multiply_adds import LARGEST, count_multiply_adds, multiply_adds, stored_counts
from mereo.models.registry import families, outline
from plain_cnn import PlainCNN, registered

SAMPLE = [
    "mspcaps_tiny",
    "aaren_tiny",
    "resnet20",
    "matrix_capsnet_68k",
    "tnl_tiny",
    "routing_transformer_tiny",
    "unet_small",
]
COUNTED_AGAIN = 1_000_000
"""Parameters of the networks that are counted again."""


def test_every_large_preset_is_stored_and_every_entry_is_a_preset() -> None:
    known = {name for name, entry in MODELS.items() if entry.module.counted_from_shapes}
    assert stored_counts().keys() <= known
    large = {name for name in known if MODELS[name].parameters > LARGEST}
    assert large <= stored_counts().keys(), "`make counts` writes the table"
    assert all(count > 0 for count in stored_counts().values())


@pytest.mark.long
def test_entries_of_small_presets_are_what_a_count_gives() -> None:
    small = [name for name in stored_counts() if MODELS[name].parameters <= COUNTED_AGAIN]
    assert {name: count_multiply_adds(name) for name in small} == {name: stored_counts()[name] for name in small}


@pytest.mark.parametrize("name", SAMPLE)
def test_a_count_from_shapes_is_the_count_of_a_pass(name: str) -> None:
    assert 2 * stored_counts()[name] == forward_flops(create_model(name))


@pytest.mark.long
@pytest.mark.parametrize("name", sorted(families()))
def test_families_state_whether_shapes_decide_the_count(name: str) -> None:
    entry = families()[name]
    model = create_model(entry.name, **(entry.tiny or {}))
    inputs = torch.zeros_like(model.example_inputs(1))
    from_shapes = forward_operations(outline(entry.name, **(entry.tiny or {})), inputs.to("meta"))
    assert (from_shapes == forward_operations(model, inputs)) == entry.module.counted_from_shapes


def test_the_list_fits_a_hundred_columns(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 100 and lines[0].split() == ["name", "kind", "input", "size", "MACs", "weights"]
    (row,) = (line for line in lines if line.startswith("resnet20 "))
    assert "40.6 M" in row  # 0.041 G in the usual tables of ResNets for CIFAR-10
    (row,) = (line for line in lines if line.startswith("pointer_network "))
    assert row.split() == ["pointer_network", "points", "10", "664", "k", "-"]


def test_sizes_have_three_digits() -> None:
    sizes = {0: "0 k", 999_499: "999 k", 999_500: "1.00 M", 9_999_999: "10.0 M", 99_960_000: "100 M", 45_000: "45 k"}
    sizes |= {1_406_500_000: "1.41 G", 10**15: "1000 T"}
    assert {count: _size(count) for count in sizes} == sizes


def test_a_network_that_is_registered_later_is_counted_if_it_is_small(capsys: pytest.CaptureFixture[str]) -> None:
    with registered("plain_later"):
        convolutions = 8 * 8 * 6 * (3 * 9) + 4 * 4 * 8 * (6 * 9) + 2 * 2 * 12 * (8 * 9)
        assert multiply_adds("plain_later") == convolutions + 12 * 5
    with registered("plain_large", parameters=10**9):
        assert main(["models", "plain_large", "--json"]) == 0
        (row,) = json.loads(capsys.readouterr().out)
        assert row["MACs"] == "" and row["size"] == "1.00 G"

    class Broken(PlainCNN):
        def forward(self, images: object) -> object:
            raise RuntimeError("it needs values")

    with registered("plain_broken", Broken):
        assert multiply_adds("plain_broken") is None
