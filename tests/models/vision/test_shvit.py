"""SHViT: its start, sizes, second head and form for inference."""

from typing import Any

import pytest
import torch

import mereo
from mereo.attention import SingleHeadAttention
from mereo.errors import UsageError
from mereo.models.vision.shvit import SHViT, _merging

TINY: dict[str, Any] = {
    "img_size": 24, "num_classes": 4, "widths": (8, 12, 16), "depths": (1, 2, 1), "attended": (None, 3, 5),
    "key_dim": 3, "stem_strides": (2, 2),
}  # fmt: skip


def tiny(**changes: Any) -> SHViT:
    """In eval mode, with no parameter and no running statistic at its start."""
    model = mereo.create_model("shvit_s1", **{**TINY, **changes})
    with torch.no_grad():
        for tensor in model.state_dict().values():
            if tensor.is_floating_point():
                tensor.add_(0.1 * torch.rand_like(tensor))
    assert isinstance(model, SHViT)
    return model.eval()


def test_blocks_start_as_identities_and_downsampling_does_not() -> None:
    model = mereo.create_model("shvit_s1", **TINY)
    maps = torch.randn(2, 12, 4, 4)
    assert torch.equal(model.stages[1].blocks(maps), maps)
    assert not torch.equal(model.stages[1].downsample[3](maps), maps)


def test_the_first_stage_has_no_attention() -> None:
    model = tiny()
    holders = {name[:8] for name, module in model.named_modules() if isinstance(module, SingleHeadAttention)}
    assert holders == {"stages.1", "stages.2"}


@pytest.mark.parametrize(("side", "sides"), [(224, [14, 7, 4]), (256, [16, 8, 4])])
def test_maps_of_large_images(side: int, sides: list[int]) -> None:
    with torch.device("meta"):
        model = mereo.create_model("shvit_s4", features_only=True)
    maps = model(torch.empty(1, 3, side, side, device="meta"))
    assert [tuple(x.shape[1:]) for x in maps] == [
        (width, rows, rows) for width, rows in zip((224, 336, 448), sides, strict=True)
    ]


@pytest.mark.parametrize(("width", "hidden"), [(128, 128), (308, 312), (66, 64), (12, 16), (4, 8)])
def test_the_gate_of_merging_is_a_multiple_of_eight(width: int, hidden: int) -> None:
    assert _merging(width, 8)[2].squeeze.out_channels == hidden


def test_a_second_head_gives_the_mean_of_two() -> None:
    model = tiny(distillation=True)
    images = torch.rand(3, 3, 24, 24)
    scores, distilled = model.both_heads(model.forward_features(images))
    assert not torch.allclose(scores, distilled)
    torch.testing.assert_close(model(images), (scores + distilled) / 2)
    with pytest.raises(UsageError, match="distillation is False"):
        tiny().both_heads(torch.rand(1, 16, 2, 2))


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"depths": (1, 1)}, "one of each for every stage"), ({"widths": (9, 12, 16)}, "a multiple of 2")],
)
def test_wrong_arguments(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        tiny(**changes)
