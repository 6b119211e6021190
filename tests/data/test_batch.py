"""Batches of any fields."""

import pytest
import torch

from mereo.data import Batch
from mereo.errors import UsageError

FIELDS = {
    "images": torch.rand(4, 1, 3, 3),
    "labels": torch.arange(4),
    "targets": torch.rand(4, 2, 1, 3, 3),
    "masks": torch.randint(-1, 3, (4, 3, 3)),
    "boxes": torch.rand(4, 2, 4),
    "box_labels": torch.tensor([[0, -1]] * 4),
    "tokens": torch.randint(0, 9, (4, 7)),
    "lengths": torch.tensor([7, 3, 1, 2]),
    "pairs": torch.tensor([0, 0, 1, 1]),
    "points": torch.rand(4, 3, 2),
    "pointers": torch.tensor([[1, 0]] * 4),
    "multi_hot": torch.tensor([[1, 0, 1]] * 4),
    "values": torch.rand(4, 2),
    "rows": torch.rand(4, 3, 2),
    "regions": torch.rand(4, 2, 5),
    "prompts": torch.arange(8).view(4, 2),
    "sequences": torch.rand(4, 5, 6),
    "attributes": torch.tensor([[0, 2, -1]] * 4),
}


def test_order_of_fields() -> None:
    assert Batch._fields == tuple(FIELDS)
    assert Batch(*FIELDS.values()).pairs is FIELDS["pairs"]


@pytest.mark.parametrize("given", [("images", "labels"), ("tokens", "lengths"), tuple(FIELDS)])
def test_pick_and_to_keep_what_is_absent(given: tuple[str, ...]) -> None:
    batch = Batch(**{name: FIELDS[name] for name in given})
    assert batch.length == 4
    for share in (slice(1, 3), torch.tensor([1, 2])):
        part = batch.pick(share)
        assert part.length == 2
        for name in FIELDS:
            value = getattr(part, name)
            assert (value is None) == (name not in given)
            assert value is None or torch.equal(value, FIELDS[name][1:3])
    moved = batch.to("meta")
    assert all(value is None or value.device.type == "meta" for value in moved)


def test_a_batch_of_nothing_has_no_length() -> None:
    with pytest.raises(UsageError, match="every field is None"):
        _ = Batch().length
