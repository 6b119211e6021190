"""The detector: where its cells are, what a box is at the start, and what bridging leaves as it is."""

import pytest
import torch

import mereo
from mereo.errors import UsageError


def test_cells_are_those_of_the_maps_and_boxes_start_around_them() -> None:
    model = mereo.create_model("detector_small", num_classes=3, img_size=(48, 40)).eval()
    places, strides = model.cells(48, 40)
    images = torch.rand(2, 3, 48, 40)
    levels = model.forward_features(images)
    assert [x.shape[2:].numel() for x in levels] == [int((strides == s).sum()) for s in model.strides]
    with torch.no_grad():
        model.distances.weight.zero_()
        outputs = model(images)
    sides = torch.tensor([40.0, 48.0])
    torch.testing.assert_close((outputs[0, :, :2] + outputs[0, :, 2:4]) / 2 * sides, places)
    torch.testing.assert_close((outputs[0, :, 2:4] - outputs[0, :, :2]) * sides, 4 * strides[:, None].expand(-1, 2))
    torch.testing.assert_close(outputs[..., 5:].sigmoid(), torch.full_like(outputs[..., 5:], 0.01), atol=0.02, rtol=0)


def test_bridging_changes_only_the_branches() -> None:
    torch.manual_seed(0)
    plain = mereo.create_model("detector_small", num_classes=3, img_size=32).eval()
    bridged = mereo.create_model("detector_bridged", num_classes=3, img_size=32).eval()
    bridged.load_state_dict(plain.state_dict(), strict=False)
    images = torch.rand(1, 3, 32, 32)
    with torch.no_grad():
        for attention in (bridged.bridge.classing, bridged.bridge.placing):
            for layer in attention.attention:
                layer.proj.weight.zero_()
        # Without an output of the attention, ReLU(f) = f, since the towers end with a ReLU.
        torch.testing.assert_close(bridged(images), plain(images))


def test_any_backbone_with_maps_of_stages_can_carry_it() -> None:
    model = mereo.create_model(
        "detector_small", num_classes=2, img_size=64, backbone="timm:resnet10t", stages=(2, 3), extra_levels=0
    )
    assert model.strides == (8, 16) and model(torch.rand(1, 3, 64, 64)).shape == (1, 64 + 16, 7)
    with pytest.raises(UsageError, match="extra_levels"):
        mereo.create_model("detector_small", extra_levels=-1)
