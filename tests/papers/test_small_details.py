"""Images that differ in one detail, and which partners the ablations allow."""

from pathlib import Path

import pytest
import torch

from mereo.errors import UsageError
from papers.common.settings import Settings
from papers.dual_cross_attention import small_details
from papers.dual_cross_attention.small_details import DETAILS, SIDE, VARIANTS, draw, run


def test_classes_differ_in_the_detail_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    images, labels = draw(12, 3)
    assert images.shape == (12, 3, SIDE, SIDE) and labels.bincount().tolist() == [2] * len(DETAILS)
    assert torch.equal(draw(12, 3)[0], images) and not torch.equal(draw(12, 4)[0], images)
    monkeypatch.setattr(small_details, "DETAILS", (*DETAILS[1:], DETAILS[0]))
    differ = (draw(12, 3)[0] - images).abs().amax(1) > 0
    for image in differ:
        rows, columns = image.nonzero().T
        assert image.sum() > 0 and max(rows.max() - rows.min(), columns.max() - columns.min()) < SIDE // 4


def test_partners_of_the_ablations() -> None:
    labels, random = torch.tensor([0, 0, 1, 1, 1, 2]), torch.Generator().manual_seed(0)
    same, other = (VARIANTS[f"pair-wise, {which} class"].pairs for which in ("same", "other"))
    assert same is not None and other is not None
    numbers = torch.arange(6)
    for _ in range(20):
        partners = same(labels, random)
        assert torch.equal(labels[partners], labels) and partners[5] == 5
        assert (partners[:5] != numbers[:5]).all()
        assert (labels[other(labels, random)] != labels).all()


def test_an_unknown_way_of_training_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"'bot'.*both"):
        run(Settings(tmp_path, variants=("bot",)))
