"""Ensembles: the weighted mean of scores by hand, and members that do not fit together."""

from typing import Any

import pytest
import torch

from mereo import create_model
from mereo.errors import UsageError
from mereo.models import Ensemble, VisionModel
from mereo.models.registry import get_model_entry


def member(seed: int, name: str = "deepcaps_28", **changes: Any) -> VisionModel:
    torch.manual_seed(seed)
    tiny = get_model_entry("deepcaps_64").tiny
    return create_model(name, **{**tiny, "img_size": 16, "in_chans": 1, "num_classes": 3, **changes}).eval()


@torch.no_grad()
def test_scores_are_the_weighted_mean_of_the_lengths() -> None:
    members, images = [member(seed) for seed in range(3)], torch.rand(2, 1, 16, 16)
    lengths = [one.capsules(images).pose.square().sum(2).sqrt() for one in members]
    expected = (1 * lengths[0] + 2 * lengths[1] + 5 * lengths[2]) / 8
    torch.testing.assert_close(Ensemble(members, (1, 2, 5))(images), expected, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(expected, sum(lengths) / 3, atol=1e-5)
    torch.testing.assert_close(Ensemble(members)(images), sum(lengths) / 3, rtol=1e-4, atol=1e-5)
    assert torch.equal(Ensemble(members[:1], [4.0])(images), members[0](images))
    assert torch.equal(Ensemble(members, (0, 0, 1))(images), members[2](images))


def test_members_must_fit() -> None:
    one = member(0)
    for changes, message in (({"num_classes": 4}, "num_classes"), ({"in_chans": 3}, "image_shape")):
        with pytest.raises(UsageError, match=message):
            Ensemble([one, member(1, **changes)])
    other = member(1)
    other.pretrained_cfg = {**other.pretrained_cfg, "mean": (0.5,)}
    with pytest.raises(UsageError, match="mean of members"):
        Ensemble([one, other])
    for weights in ([1.0, 2.0], [-1.0], [0.0], [float("nan")], [float("inf")]):
        with pytest.raises(UsageError, match="weights is"):
            Ensemble([one], weights)
    with pytest.raises(UsageError, match="members is empty"):
        Ensemble([])
