"""Embedding networks: vectors of length one on any backbone."""

import pytest
import torch

import mereo
from mereo.errors import UsageError


@pytest.mark.parametrize(
    "arguments",
    [
        {"backbone_args": {"widths": (4, 6, 8), "blocks": 1}, "img_size": 16},
        {"backbone": "unet_small", "backbone_args": {"widths": (4, 6)}, "img_size": 16},
    ],
)
def test_outputs_have_length_one_and_are_the_projected_mean_of_the_last_map(arguments: dict[str, object]) -> None:
    torch.manual_seed(0)
    model = mereo.create_model("embedding_resnet20", num_classes=5, **arguments).eval()
    images = torch.rand(3, 3, 16, 16)
    vectors = model(images)
    torch.testing.assert_close(vectors.norm(dim=1), torch.ones(3))
    projected = model.head(model.backbone(images)[-1].mean((2, 3)))
    torch.testing.assert_close(vectors, projected / projected.norm(dim=1, keepdim=True))


def test_a_backbone_may_be_frozen_and_must_exist() -> None:
    model = mereo.create_model("embedding_resnet20", backbone_args={"widths": (4, 6, 8), "blocks": 1}, frozen=True)
    assert {name.partition(".")[0] for name, p in model.named_parameters() if p.requires_grad} == {"head"}
    with pytest.raises(UsageError, match="resnet21"):
        mereo.create_model("embedding_resnet20", backbone="resnet21")
