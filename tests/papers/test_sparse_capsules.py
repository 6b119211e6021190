"""The experiment of competing capsules, on few images and one epoch."""

import math

import pytest
import torch
from PIL import Image

from mereo.errors import UsageError
from papers.common.settings import Settings
from papers.listing import EXPERIMENTS
from papers.sparse_capsules.sparse_capsules import COMPARED, affine_test


@pytest.mark.long
def test_a_row_a_mask_and_a_picture(tmp_path):
    settings = Settings(tmp_path, data="digits", limit=60, epochs=1, batch_size=30, say=lambda line: None)
    found = EXPERIMENTS["sparse_capsules"].run(settings)
    (rows,) = found["tables"].values()
    assert [row["mask"] for row in rows] == list(COMPARED)
    assert [row["capsules an image"] for row in rows] == [3, 8, 1]
    for row in rows:
        assert row["error"] > 0 and 0 <= row["entropy of wins"] <= 1
        assert all(10 < row[f"{name}, {kind} %"] <= 100 for name in ("linear", "SVM") for kind in ("test", "affine"))
    assert all(math.isclose(sum(wins), 1) for wins in found["wins"].values())
    with Image.open(tmp_path / "wins.png") as picture:
        assert picture.size[0] > 300


def test_affine_maps_keep_the_middle_and_stay_in_their_ranges():
    images = torch.zeros(200, 1, 29, 29)
    images[:, :, 12:17, 12:17] = 1
    moved = affine_test(images, torch.Generator().manual_seed(0))
    assert (moved[:, 0].flatten(1).sum(1) > 0.5 * 25).all() and (moved[:, 0].flatten(1).sum(1) < 1.6 * 25).all()
    places = torch.arange(29.0)
    rows = (moved.sum((1, 3)) * places).sum(1) / moved.sum((1, 2, 3))
    assert (rows - 14).abs().max() < 3.5 and rows.std() > 0.5


def test_an_unknown_mask(tmp_path):
    with pytest.raises(UsageError, match="variants"):
        EXPERIMENTS["sparse_capsules"].run(Settings(tmp_path, data="digits", variants=("best",)))
